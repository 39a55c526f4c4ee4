/* From curves to what plotly draws: smoothing, thinning to the pixels, bands, hover. Nothing here touches the page. */
"use strict";

(function () {
  const { number, several } = window.groupwise;
  const SMOOTH = { off: null, light: { least: 2, share: 0.012 }, strong: { least: 5, share: 0.04 } }; // rows to each side
  const PIXELS_PER_BUCKET = 3; // a bucket keeps its lowest and its highest row
  const WITHOUT_UNIT = new Set(["", "share", "ratio", "level", "norm", "absolute value"]);
  const MOST_LETTERS = 44;
  const MOST_LINES = 3; // of a stack drawn as lines, for several runs; beyond, their sum

  /** The rows that a series of a run is drawn from, null if the run has none of them. */
  function curvesOf(run, plot, series) {
    const table = (series && series.table) || plot.table;
    return table === "points" ? run.points[plot.id] : run[table];
  }

  function columnOf(run, plot, series, name) {
    const curves = curvesOf(run, plot, series);
    return (curves && curves.columns[name]) || null;
  }

  /** The last number of a series and its step. */
  function lastOf(run, plot, series) {
    const values = columnOf(run, plot, series, series.column);
    for (let row = values ? values.length - 1 : -1; row >= 0; row--) {
      if (values[row] !== null) return { value: values[row], step: curvesOf(run, plot, series).step[row] };
    }
    return null;
  }

  /** The number of a series at a step, null if it has none there. */
  function valueAt(run, plot, series, step) {
    const values = columnOf(run, plot, series, series.column);
    const row = values ? curvesOf(run, plot, series).step.indexOf(step) : -1;
    return row < 0 ? null : values[row];
  }

  function withUnit(value, unit) {
    return WITHOUT_UNIT.has(unit) || /share|;/.test(unit) ? number(value) : number(value) + " " + unit;
  }

  /** Text that plotly shows as it is, for it reads a few tags; a name too long for a hover box is cut. */
  function plain(text) {
    const short = text.length > MOST_LETTERS ? text.slice(0, MOST_LETTERS - 1) + "…" : text;
    return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  /** Mean over the rows around each, nearer ones counting more: it lags behind nothing. A gap stays a gap. */
  function smooth(values, { least, share }) {
    const reach = Math.max(least, Math.round(share * values.length));
    return values.map((value, row) => {
      if (value === null) return null;
      let sum = 0;
      let weight = 0;
      for (let away = -reach; away <= reach; away++) {
        const near = values[row + away];
        if (near === null || near === undefined) continue;
        const counts = reach + 1 - Math.abs(away);
        sum += counts * near;
        weight += counts;
      }
      return sum / weight;
    });
  }

  /** The rows worth drawing: of each bucket the first gap, the lowest and the highest; all of them if they are few. */
  function thinned(values, width) {
    const buckets = Math.max(50, Math.round(width / PIXELS_PER_BUCKET));
    const rows = values.length;
    if (rows <= 3 * buckets) return Array.from(values.keys());
    const kept = new Set([0, rows - 1]);
    for (let bucket = 0; bucket < buckets; bucket++) {
      const from = Math.floor((bucket * rows) / buckets);
      const to = Math.floor(((bucket + 1) * rows) / buckets);
      for (const row of extremes(values, from, to)) kept.add(row);
    }
    return Array.from(kept).sort((one, other) => one - other);
  }

  function extremes(values, from, to) {
    let lowest = -1;
    let highest = -1;
    let gap = -1;
    for (let row = from; row < to; row++) {
      if (values[row] === null) gap = gap < 0 ? row : gap;
      else {
        if (lowest < 0 || values[row] < values[lowest]) lowest = row;
        if (highest < 0 || values[row] > values[highest]) highest = row;
      }
    }
    return [lowest, highest, gap].filter((row) => row >= 0);
  }

  /** Rows for areas that add up: the same ones in each, evenly spaced. */
  function evenly(rows, width) {
    const most = Math.max(100, width);
    if (rows <= most) return Array.from({ length: rows }, (_, row) => row);
    return Array.from({ length: most }, (_, index) => Math.round((index * (rows - 1)) / (most - 1)));
  }

  const pick = (list, rows) => rows.map((row) => list[row]);

  /** On a logarithmic axis there is no place for 0 and below. */
  function onAxis(values, logarithmic) {
    return logarithmic ? values.map((value) => (value > 0 ? value : null)) : values;
  }

  function faded(colour, opacity) {
    const whole = parseInt(colour.slice(1), 16);
    return `rgba(${whole >> 16}, ${(whole >> 8) & 255}, ${whole & 255}, ${opacity})`;
  }

  /** The area between two columns, one polygon for each stretch without a gap. */
  function band(step, low, high, colour, opacity) {
    const x = [];
    const y = [];
    let start = 0;
    for (let row = 0; row <= step.length; row++) {
      if (row < step.length && low[row] !== null && high[row] !== null) continue;
      for (let at = start; at < row; at++) { x.push(step[at]); y.push(low[at]); }
      for (let at = row - 1; at >= start; at--) { x.push(step[at]); y.push(high[at]); }
      if (row > start) { x.push(null); y.push(null); }
      start = row + 1;
    }
    return {
      x, y, type: "scatter", mode: "lines", fill: "toself", fillcolor: faded(colour, opacity), line: { width: 0 },
      hoverinfo: "skip", showlegend: false,
    };
  }

  /** The columns around a series: the spread of the runs taken together, or the ones that the plot names. */
  function edgesOf(run, plot, series) {
    const members = run.members > 1 && columnOf(run, plot, series, series.column + ".low");
    const [lowName, highName] = members ? [series.column + ".low", series.column + ".high"] : [series.low, series.high];
    const low = lowName && columnOf(run, plot, series, lowName);
    const high = highName && columnOf(run, plot, series, highName);
    return low && high ? { low, high } : null;
  }

  function bandOf(run, plot, series, style, context) {
    const edges = edgesOf(run, plot, series);
    if (!edges) return [];
    const step = curvesOf(run, plot, series).step;
    const rows = evenly(step.length, context.width);
    const x = pick(step, rows);
    const [low, high] = [edges.low, edges.high].map((values) => onAxis(pick(values, rows), context.log));
    const dotted = (y) => ({
      x, y, type: "scatter", mode: "lines", hoverinfo: "skip", line: { color: style.colour, width: 1, dash: "dot" }, opacity: 0.7,
    });
    if (several && !series.column) return [dotted(low), dotted(high)];
    const area = band(x, low, high, style.colour, several ? 0.13 : series.column ? 0.22 : 0.12);
    return series.column ? [area] : [area, bandHover(x, high, style, rows.map((row) => between(edges, row)))];
  }

  /** A band without a line has its numbers at its upper edge. */
  function bandHover(x, y, style, text) {
    return { x, y, type: "scatter", mode: "lines", line: { width: 0, color: style.colour }, name: plain(style.name), text, hovertemplate: "%{text}" };
  }

  const between = (edges, row) => `${number(edges.low[row])} to ${number(edges.high[row])}`;

  /** Points without a neighbour would not show as a line. */
  function markerSizes(values, size) {
    return values.map((value, row) => {
      const alone = (values[row - 1] ?? null) === null && (values[row + 1] ?? null) === null;
      return value !== null && alone ? Math.max(size, 5) : size;
    });
  }

  function hoverTexts(values, raw, rows, unit, edges) {
    return rows.map((row) => {
      const shown = withUnit(values[row], unit) + (edges ? ` (${between(edges, row)})` : "");
      return values === raw || several ? shown : `${shown} (raw ${number(raw[row])})`;
    });
  }

  /** One line, its band below it, and the raw one behind it if it is smoothed. */
  function lineOf(run, plot, series, style, context) {
    const traces = bandOf(run, plot, series, style, context);
    const raw = series.column && columnOf(run, plot, series, series.column);
    if (!raw) return traces;
    const step = curvesOf(run, plot, series).step;
    const heldOut = plot.across !== "" || (series.table || plot.table) === "evaluations"; // few places, each a number of its own
    const window = heldOut ? null : SMOOTH[context.smoothing];
    const values = window ? smooth(raw, window) : raw;
    const base = { type: "scatter", connectgaps: heldOut };
    if (window) {
      const rows = thinned(raw, context.width);
      traces.push({
        ...base, x: pick(step, rows), y: onAxis(pick(raw, rows), context.log), mode: "lines", hoverinfo: "skip",
        line: { color: faded(style.colour, 0.3), width: 1 },
      });
    }
    const rows = thinned(values, context.width);
    const y = onAxis(pick(values, rows), context.log);
    const sizes = markerSizes(y, heldOut && rows.length <= 60 ? 5 : 0);
    traces.push({
      ...base, x: pick(step, rows), y, name: plain(style.name), mode: sizes.some(Boolean) ? "lines+markers" : "lines",
      line: { color: style.colour, width: 1.8, dash: series.dash },
      marker: { color: style.colour, size: sizes, opacity: 1, line: { width: 0 } },
      text: hoverTexts(values, raw, rows, plot.unit, edgesOf(run, plot, series)), hovertemplate: "%{text}",
    });
    return traces;
  }

  /** An area of a stack. */
  function areaOf(run, plot, series, style, context) {
    const values = columnOf(run, plot, series, series.column);
    if (!values) return [];
    const rows = evenly(values.length, context.width);
    return [{
      type: "scatter", mode: rows.length > 1 ? "lines" : "lines+markers", stackgroup: "all", x: pick(curvesOf(run, plot, series).step, rows),
      y: pick(values, rows), name: plain(style.name), line: { color: style.colour, width: 0.8 }, fillcolor: faded(style.colour, 0.55),
      text: hoverTexts(values, values, rows, plot.unit, null), hovertemplate: "%{text}",
    }];
  }

  function pointsOf(run, plot, style) {
    const [across, up] = plot.series;
    const x = columnOf(run, plot, across, across.column);
    const y = columnOf(run, plot, up, up.column);
    if (!x || !y) return [];
    return [{
      type: "scatter", mode: "markers", x, y, name: plain(style.name), marker: { color: faded(style.colour, 0.35), size: 5, line: { width: 0 } },
      text: x.map((value, row) => `${plain(across.name)} ${number(value)}, ${plain(up.name)} ${number(y[row])}`), hovertemplate: "%{text}<extra></extra>",
    }];
  }

  /** All areas of a stack as one column: several runs cannot be stacked on each other. */
  function summed(run, plot) {
    const columns = plot.series.map((series) => columnOf(run, plot, series, series.column)).filter(Boolean);
    const step = run[plot.table].step;
    return step.map((_, row) => columns.reduce((sum, column) => sum + (column[row] || 0), 0));
  }

  function totalOf(run, plot, style, context) {
    const series = { name: "total", column: "total", dash: "solid", low: "", high: "", table: "" };
    const table = { step: run[plot.table].step, columns: { total: summed(run, plot) } };
    return lineOf({ ...run, [plot.table]: table }, plot, series, style, context);
  }

  /** How each series of a run is drawn: by colour of the series, or of the run if there are several. */
  function styles(plot, palette, run, runIndex) {
    let index = 0;
    return plot.series.map((series) => {
      const own = palette[index % palette.length];
      if (series.column) index += 1;
      if (!several) return { colour: own, name: series.name };
      const name = plot.series.length > 1 ? `${run.label}: ${series.name}` : run.label;
      return { colour: palette[runIndex % palette.length], name };
    });
  }

  const asTotal = (plot) => several && plot.kind === "stack" && plot.series.length > MOST_LINES;

  /** Everything of one plot. context: palette, width, smoothing, log, hiddenRuns, hiddenSeries. */
  function tracesOf(plot, runs, context) {
    const all = runs.flatMap((run, runIndex) => {
      if (context.hiddenRuns.has(run.id)) return [];
      const found = styles(plot, context.palette, run, runIndex);
      if (plot.kind === "points") return pointsOf(run, plot, { ...found[0], name: run.label });
      if (asTotal(plot)) return totalOf(run, plot, { ...found[0], name: run.label }, context);
      const draw = plot.kind === "stack" && !several ? areaOf : lineOf;
      return plot.series.flatMap((series, index) =>
        context.hiddenSeries.has(index) ? [] : draw(run, plot, series, found[index], context));
    });
    const isBand = (trace) => trace.fill === "toself";
    return [...all.filter(isBand), ...all.filter((trace) => !isBand(trace))]; // no band above a line
  }

  /** Lowest and highest of the vertical axis: the limits, or what is drawn with the marks and what is shown at least. */
  function extent(plot, drawn, log) {
    const ends = [Infinity, -Infinity];
    const take = (value) => {
      if (value === null || value === undefined || (log && value <= 0)) return;
      ends[0] = Math.min(ends[0], value);
      ends[1] = Math.max(ends[1], value);
    };
    for (const trace of drawn) if (!trace.stackgroup) trace.y.forEach(take);
    heights(drawn.filter((trace) => trace.stackgroup)).forEach(take);
    plot.marks.forEach((mark) => take(mark.at));
    plot.reach.forEach(take);
    const [low, high] = ends[0] <= ends[1] ? apart(ends, log) : [0, 1];
    if (log) return [Math.log10(low), Math.log10(high)];
    return [plot.limits[0] ?? low, plot.limits[1] ?? high];
  }

  /** The upper edge of a stack's areas, and 0, their lower one. */
  function heights(areas) {
    return areas.length ? [0, ...areas[0].y.map((_, row) => areas.reduce((sum, area) => sum + (area.y[row] || 0), 0))] : [];
  }

  /** A line that never moves still has an axis around it. */
  function apart([low, high], log) {
    if (low < high) return [low, high];
    if (log) return [low / 10, high * 10];
    return low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  }

  /** Whether a logarithmic axis has anything to show. */
  function hasPositive(plot, runs) {
    return runs.some((run) => plot.series.some((series) =>
      (columnOf(run, plot, series, series.column) || []).some((value) => value > 0)));
  }

  window.groupwise.traces = { tracesOf, styles, lastOf, valueAt, withUnit, plain, hasPositive, asTotal, extent };
})();
