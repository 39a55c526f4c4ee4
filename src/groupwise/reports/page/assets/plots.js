/* The cards that hold the plots: drawn when they come on screen, again when something changed, never more than needed. */
"use strict";

(function () {
  const { page, element, drawing, number, colours, onTheme, several, traces, marks } = window.groupwise;
  const DASHES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" };
  const CONFIG = {
    displaylogo: false, responsive: true, scrollZoom: false, showTips: false, displayModeBar: true, doubleClick: "reset+autosize",
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]], showSendToCloud: false, plotlyServerURL: "",
  };
  const AHEAD = "250px"; // drawn this far before it comes on screen
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  const cards = new Map();
  const hiddenRuns = new Set();
  let smoothing = "off";
  let palette = colours();
  let asked = false;

  const watcher = new IntersectionObserver(onScreen, { rootMargin: AHEAD });

  function onScreen(entries) {
    for (const entry of entries) {
      const card = cards.get(entry.target.dataset.plot);
      if (card) card.visible = entry.isIntersecting;
    }
    ask();
  }

  /** A card for a plot; it is drawn when it comes on screen. The card of a plot that is there already is kept. */
  function card(plot) {
    if (cards.has(plot.id)) return renewed(cards.get(plot.id), plot);
    const made = { plot, dirty: true, visible: false, hiddenSeries: new Set(), wide: false };
    made.legend = element("div", { class: "legend" });
    made.area = element("div", { class: "area" });
    made.cross = element("div", { class: "cross", hidden: true, "aria-hidden": "true" });
    made.tellAt = (step) => tellAt(made, step);
    made.keys = element("p", { class: "keys" });
    made.node = element("figure", { class: "plot", "data-plot": plot.id, "data-drawn": "false", role: "figure" },
      element("div", { class: "head" },
        element("h3", {}, plot.title), element("span", { class: "unit" }, plot.unit), largerButton(made)),
      made.keys, made.legend, element("div", { class: "frame" }, made.area, made.cross), element("p", { class: "hint" }, plot.hint));
    describe(made);
    made.keys.replaceChildren(...keysOf(plot));
    cards.set(plot.id, made);
    watcher.observe(made.node);
    return made.node;
  }

  function renewed(made, plot) {
    const same = JSON.stringify(made.plot.keys) === JSON.stringify(plot.keys);
    made.plot = plot;
    made.dirty = true;
    if (!same) made.keys.replaceChildren(...keysOf(plot));
    return made.node;
  }

  /** The metrics that the plot is drawn from, each with what it is: on hover, and where the link leads. */
  function keysOf(plot) {
    return plot.keys.map((key) => (key.meaning ? element("a", { href: `#key-${key.name}`, title: key.meaning }, key.name) : element("span", {}, key.name)));
  }

  /** The legend's numbers at a step, or the last ones again. */
  function tellAt(made, step) {
    for (const { node, series, last } of made.numbers || []) {
      const value = step === null ? last : traces.valueAt(page.runs[0], made.plot, series, step);
      node.textContent = number(value);
      node.classList.toggle("at", step !== null);
    }
  }

  function largerButton(made) {
    const arrows = drawing("svg", { width: 15, height: 15, viewBox: "0 0 16 16", "aria-hidden": "true" },
      drawing("path", { d: "M9.5 2.5h4v4M13 3 9 7M6.5 13.5h-4v-4M3 13l4-4", fill: "none", stroke: "currentColor", "stroke-width": 1.4 }));
    const button = element("button", { type: "button", "aria-label": `Larger: ${made.plot.title}`, title: "Larger", "aria-pressed": "false", onclick: () => {
      made.wide = !made.wide;
      button.setAttribute("aria-pressed", String(made.wide));
      made.node.classList.toggle("wide", made.wide);
      touch(made);
      ask();
    } }, arrows);
    return button;
  }

  /** The plot in words: its title, and where each line stands at the end. */
  function describe(made) {
    const { plot } = made;
    const words = [];
    for (const run of page.runs) {
      for (const series of plot.kind === "points" ? [] : plot.series) {
        const last = series.column && traces.lastOf(run, plot, series);
        if (last) words.push(`${several ? run.label + " " : ""}${series.name} ${traces.withUnit(last.value, plot.unit)} at ${plot.across || "step"} ${last.step}`);
      }
    }
    made.node.setAttribute("aria-label", words.length ? `${plot.title}. Last: ${words.join("; ")}.` : plot.title);
  }

  function swatch(colour, dash, filled) {
    const shape = filled
      ? drawing("rect", { x: 3, y: 2, width: 14, height: 8, rx: 2, fill: colour })
      : drawing("line", { x1: 0, y1: 6, x2: 22, y2: 6, stroke: colour, "stroke-width": 2.2, "stroke-dasharray": DASHES[dash] || null });
    return drawing("svg", { width: filled ? 18 : 22, height: 12, "aria-hidden": "true" }, shape);
  }

  function legendEntry(made, series, index, style) {
    const last = several || !series.column ? null : traces.lastOf(page.runs[0], made.plot, series);
    const isArea = (made.plot.kind === "stack" && !several) || !series.column;
    const colour = several ? palette.muted : series.column ? style.colour : style.colour + "50";
    const told = last ? element("span", { class: "last" }, number(last.value)) : null;
    if (told) made.numbers.push({ node: told, series, last: last.value });
    const children = [swatch(colour, series.dash, isArea && !several), element("span", {}, series.name), told];
    const shown = !made.hiddenSeries.has(index);
    return element("button", { type: "button", "aria-pressed": String(shown), title: shown ? "Hide this line" : "Show this line", onclick: () => {
      if (shown) made.hiddenSeries.add(index);
      else made.hiddenSeries.delete(index);
      touch(made);
      ask();
    } }, children);
  }

  function drawLegend(made) {
    const { plot } = made;
    made.numbers = [];
    if (plot.kind === "points" || traces.asTotal(plot)) {
      const words = plot.kind === "points" ? `across: ${plot.series[0].name}, up: ${plot.series[1].name}` : "the sum of all, a line for each run";
      made.legend.replaceChildren(element("span", { class: "last" }, words));
      return;
    }
    const found = traces.styles(plot, palette.series, page.runs[0], 0);
    const entries = several && plot.series.length === 1 ? [] : plot.series.map((series, index) => legendEntry(made, series, index, found[index]));
    made.legend.replaceChildren(...entries);
  }

  /** The steps that every plot shows, so that they line up. */
  function stepRange() {
    const steps = page.runs.flatMap((run) => [run.steps.step, run.evaluations.step]).filter((step) => step.length);
    if (!steps.length) return [0, 1];
    const low = Math.min(...steps.map((step) => step[0]));
    const high = Math.max(...steps.map((step) => step[step.length - 1]));
    const room = Math.max(0.5, 0.015 * (high - low));
    return [low - room, high + room];
  }

  function xAxis(plot, base) {
    if (plot.kind === "points") return { ...base, title: { text: traces.plain(plot.series[0].name), standoff: 6 }, showgrid: true, automargin: true };
    if (plot.across) return ownAxis(plot, base);
    const range = stepRange();
    return {
      ...base, range, showgrid: false, spikecolor: palette.muted, spikethickness: 1, spikedash: "dot", title: { text: "step", standoff: 4 }, tickformat: ",d", hoverformat: ",d",
      unifiedhovertitle: { text: "step %{x:,d}" }, dtick: range[1] - range[0] < 7 ? 1 : undefined,
    };
  }

  /** The horizontal axis of a plot that is not over steps. */
  function ownAxis(plot, base) {
    const axis = { ...base, showgrid: false, automargin: true, spikecolor: palette.muted, spikethickness: 1, spikedash: "dot", title: { text: traces.plain(plot.across), standoff: 6 } };
    const hover = { hoverformat: ",.6~g", unifiedhovertitle: { text: `${traces.plain(plot.across)}: %{x:,.6~g}` } };
    return plot.log_across ? { ...axis, ...hover, type: "log", tickformat: ",.6~g" } : { ...axis, ...hover, tickformat: ",.6~g" };
  }

  function yAxis(plot, base, log, drawn) {
    const axis = { ...base, showgrid: true, automargin: true, nticks: 6, separatethousands: true, exponentformat: "power", minexponent: 6 };
    if (plot.kind === "points") return { ...axis, title: { text: traces.plain(plot.series[1].name), standoff: 4 } };
    const [low, high] = traces.extent(plot, drawn, log);
    const room = 0.04 * (high - low);
    axis.range = [low - room, high + room];
    return log ? { ...axis, type: "log", dtick: high - low >= 1 ? Math.ceil((high - low) / 5) : undefined } : axis;
  }

  function marksOf(plot, log) {
    const line = { color: palette.muted, width: 1, dash: "dot" };
    return {
      shapes: [...marks.shapesOf(plot), ...plot.marks.map((mark) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: mark.at, y1: mark.at, line, layer: "below" }))],
      annotations: plot.marks.map((mark) => ({
        xref: "paper", x: 1, xanchor: "right", y: log ? Math.log10(mark.at) : mark.at, yanchor: "bottom", showarrow: false,
        text: traces.plain(mark.words), font: { size: 11, color: palette.muted }, borderpad: 1,
      })),
    };
  }

  /** Pixels within which a point answers: half the way to the next, so that none answers for another step. */
  function hoverReach(drawn, width) {
    const most = Math.max(1, ...drawn.filter((trace) => trace.fill !== "toself").map((trace) => trace.x.length));
    return Math.max(3, Math.ceil(width / most / 2));
  }

  function layoutOf(plot, log, drawn, width) {
    const base = {
      gridcolor: palette.line, linecolor: palette.line, zeroline: false, ticks: "outside", ticklen: 4, tickcolor: palette.line,
      fixedrange: coarse, color: palette.muted, tickfont: { size: 11.5, color: palette.muted },
    };
    return {
      autosize: true, margin: { l: 44, r: 10, t: 8, b: 38 }, showlegend: false, uirevision: "kept",
      paper_bgcolor: palette.surface, plot_bgcolor: palette.surface,
      font: { family: palette.font, size: 12, color: palette.muted },
      hovermode: plot.kind === "points" ? "closest" : "x unified", hoverdistance: plot.kind === "points" ? 20 : hoverReach(drawn, width), dragmode: coarse ? false : "zoom",
      hoverlabel: { bgcolor: palette.surface, bordercolor: palette.line, font: { family: palette.font, size: 12.5, color: palette.text } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: palette.muted, activecolor: palette.text },
      xaxis: xAxis(plot, base), yaxis: yAxis(plot, base, log, drawn), yaxis2: marks.axis(), ...marksOf(plot, log),
    };
  }

  function draw(made) {
    const { plot } = made;
    const log = plot.log && traces.hasPositive(plot, page.runs);
    const context = {
      palette: palette.series, width: made.area.clientWidth || 500, smoothing, log, hiddenRuns, hiddenSeries: made.hiddenSeries,
    };
    made.dirty = false;
    drawLegend(made);
    describe(made);
    const drawn = traces.tracesOf(plot, page.runs, context);
    Plotly.react(made.area, [...drawn, ...marks.tracesOf(plot)], layoutOf(plot, log, drawn, context.width), CONFIG);
    if (made.node.dataset.drawn !== "true") link(made);
    made.node.dataset.drawn = "true";
  }

  /** What is hovered here is shown on the other plots, too. */
  function link(made) {
    if (!marks.overSteps(made.plot)) return;
    made.area.on("plotly_hover", (event) => marks.cross(cards, event.points[0].x, made));
    made.area.on("plotly_unhover", () => marks.cross(cards, null, made));
  }

  const touch = (made) => { made.dirty = true; };

  /** Draws what is on screen and out of date, once per frame however often it is asked. */
  function ask() {
    if (asked) return;
    asked = true;
    window.requestAnimationFrame(() => {
      asked = false;
      for (const made of cards.values()) if (made.visible && made.dirty) draw(made);
    });
  }

  /** Every plot is out of date. */
  function redraw() {
    cards.forEach(touch);
    ask();
  }

  function drawAll() {
    for (const made of cards.values()) if (made.dirty) draw(made);
  }

  /** Forgets the cards of plots that are no longer there. */
  function keep(ids) {
    for (const [id, made] of cards) {
      if (ids.has(id)) continue;
      watcher.unobserve(made.node);
      Plotly.purge(made.area);
      cards.delete(id);
    }
  }

  function setSmoothing(name) {
    smoothing = name;
    redraw();
  }

  function showRun(id, shown) {
    if (shown) hiddenRuns.delete(id);
    else hiddenRuns.add(id);
    redraw();
  }

  onTheme(() => {
    palette = colours();
    redraw();
  });
  window.addEventListener("beforeprint", () => { window.groupwise.showTheme("light"); drawAll(); });
  window.addEventListener("afterprint", () => window.groupwise.showTheme(window.groupwise.theme()));

  window.groupwise.redraw = redraw;
  window.groupwise.plots = { card, keep, setSmoothing, showRun, drawAll, cards };
})();
