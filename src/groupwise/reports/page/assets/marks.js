/* What happened at a step, marked on every plot over steps; and the crosshair that all of these share. */
"use strict";

(function () {
  const { page, element, drawing, colours, several } = window.groupwise;
  const KINDS = {
    evaluation: { symbol: "line-ns-open", size: 8, height: 0.03, colour: "muted", words: "evaluation" },
    checkpoint: { symbol: "diamond", size: 7, height: 0.1, colour: "accent", words: "checkpoint" },
    resumed: { symbol: "circle-open", size: 7, height: 0.17, colour: "muted", words: "resumed" },
    "went back": { symbol: "triangle-left", size: 8, height: 0.17, colour: "bad", words: "went back" },
    warning: { symbol: "triangle-up", size: 9, height: 0.24, colour: "warn", words: "warning" },
  };
  const SHAPES = { evaluation: "M6 1v10", checkpoint: "M6 2l4 4-4 4-4-4z", warning: "M6 2l5 8H1z", "went back": "M2 6l8-5v10z", resumed: "M6 2a4 4 0 1 0 .01 0z" };
  const AXIS = "y2";

  const events = () => (several || !page.runs.length ? [] : page.runs[0].events);
  const overSteps = (plot) => plot.kind !== "points" && !plot.across;

  /** One trace a kind, on an axis of its own that no zoom moves. */
  function tracesOf(plot) {
    if (!overSteps(plot)) return [];
    const palette = colours();
    return Object.entries(KINDS).flatMap(([kind, style]) => {
      const found = events().filter((event) => event.kind === kind);
      if (!found.length) return [];
      const text = found.map((event) => (event.words ? `${style.words}: ${window.groupwise.traces.plain(event.words)}` : style.words));
      return [{
        type: "scatter", mode: "markers", yaxis: AXIS, x: found.map((event) => event.step), y: found.map(() => style.height), name: "", text,
        hovertemplate: "%{text}<extra></extra>", cliponaxis: false,
        marker: { symbol: style.symbol, size: style.size, color: palette[style.colour], line: { width: style.symbol.endsWith("open") ? 1.4 : 0, color: palette[style.colour] } },
      }];
    });
  }

  /** A dotted line down the whole plot where a warning began. */
  function shapesOf(plot) {
    if (!overSteps(plot)) return [];
    const line = { color: colours().warn, width: 1, dash: "dot" };
    const steps = new Set(events().filter((event) => event.kind === "warning").map((event) => event.step));
    return [...steps].map((step) => ({ type: "line", yref: "paper", y0: 0, y1: 1, x0: step, x1: step, line, opacity: 0.7, layer: "below" }));
  }

  const axis = () => ({ overlaying: "y", range: [0, 1], visible: false, fixedrange: true });

  /** What the marks are, those that the run has. */
  function legend() {
    const there = Object.keys(KINDS).filter((kind) => events().some((event) => event.kind === kind));
    if (!there.length) return null;
    return element("p", { class: "marks" }, "On every chart: ", there.map((kind) => element("span", {},
      drawing("svg", { width: 12, height: 12, "aria-hidden": "true", style: `color: var(--${KINDS[kind].colour})` },
        drawing("path", { d: SHAPES[kind], fill: kind === "evaluation" || kind === "resumed" ? "none" : "currentColor", stroke: "currentColor", "stroke-width": 1.4 })),
      KINDS[kind].words)));
  }

  /** Shows a step on every plot in sight, in its legend too; null takes it away. */
  function cross(cards, step, from) {
    for (const made of cards.values()) {
      if (!made.cross || !overSteps(made.plot)) continue;
      const place = step === null || !made.visible ? null : placeOf(made.area, step);
      made.cross.hidden = place === null || made === from;
      if (place) Object.assign(made.cross.style, { left: `${place.left}px`, top: `${place.top}px`, height: `${place.height}px` });
      if (made.visible) made.tellAt(step);
    }
  }

  function placeOf(area, step) {
    const layout = area._fullLayout;
    if (!layout || !layout.xaxis || !layout.yaxis) return null;
    const inside = layout.xaxis.d2p(step);
    if (!(inside >= 0 && inside <= layout.xaxis._length)) return null;
    return { left: layout.xaxis._offset + inside, top: layout.yaxis._offset, height: layout.yaxis._length };
  }

  window.groupwise.marks = { tracesOf, shapesOf, axis, legend, cross, overSteps, AXIS };
})();
