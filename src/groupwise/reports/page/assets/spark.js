/* The curve of the first answer: what is measured, held out and in training, small and without a tool. */
"use strict";

(function () {
  const { page, element, drawing, number } = window.groupwise;
  const MEASURES = [["avg_at_k", "pass_rate"], ["measured_mean", "measured_mean"]];
  const HEIGHT = 108;
  const EDGE = { left: 34, right: 118, top: 8, bottom: 18 };

  const pairs = (curves, name) => (curves.columns[name] || []).map((value, row) => [curves.step[row], value]).filter(([, value]) => value !== null);

  /** Held out and training of the first measure that has two numbers or more; null if none has. */
  function chosen(run) {
    for (const [held, trained] of MEASURES) {
      const found = { held: pairs(run.evaluations, held), trained: pairs(run.steps, trained), share: held === "avg_at_k" };
      if (found.held.length > 1 || found.trained.length > 1) return { ...found, low: pairs(run.evaluations, "low"), high: pairs(run.evaluations, "high") };
    }
    return null;
  }

  function ends(found) {
    const every = [...found.held, ...found.trained, ...found.low, ...found.high];
    const steps = every.map(([step]) => step);
    const values = every.map(([, value]) => value);
    const [low, high] = found.share ? [0, 1] : [Math.min(...values), Math.max(...values)];
    return { first: Math.min(...steps), last: Math.max(...steps), low, high: high > low ? high : low + 1 };
  }

  /** Means of as many stretches as there is room for: a sketch, the chart below has every step. */
  function sketched(points, most) {
    if (points.length <= most) return points;
    return Array.from({ length: most }, (_, index) => {
      const part = points.slice(Math.floor((index * points.length) / most), Math.floor(((index + 1) * points.length) / most));
      return [0, 1].map((place) => part.reduce((sum, point) => sum + point[place], 0) / part.length);
    });
  }

  function draw(node, found) {
    const width = Math.max(240, node.clientWidth);
    const range = ends(found);
    const x = (step) => EDGE.left + ((width - EDGE.left - EDGE.right) * (step - range.first)) / Math.max(1, range.last - range.first);
    const y = (value) => EDGE.top + (HEIGHT - EDGE.top - EDGE.bottom) * (1 - (value - range.low) / (range.high - range.low));
    const path = (points) => points.map(([step, value], index) => `${index ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const area = found.low.length > 1 && found.low.length === found.high.length ? `${path(found.low)}${path([...found.high].reverse()).replace("M", "L")}Z` : "";
    const text = (at, up, words, anchor, colour) => drawing("text", { x: at, y: up, "text-anchor": anchor, fill: colour || "var(--muted)" }, words);
    const lines = [["held-out", found.held, "var(--series-1)"], ["training", found.trained, "var(--series-2)"]].filter(([, points]) => points.length);
    node.replaceChildren(drawing("svg", { width, height: HEIGHT, role: "img", "aria-label": said(lines) },
      [range.low, range.high].map((value) => [
        drawing("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value), stroke: "var(--line)" }),
        text(EDGE.left - 6, y(value) + 4, number(value), "end"),
      ]),
      text(EDGE.left, HEIGHT - 3, `step ${number(range.first)}`, "start"), text(width - EDGE.right, HEIGHT - 3, number(range.last), "end"),
      area ? drawing("path", { d: area, fill: "var(--series-1)", opacity: 0.16 }) : null,
      [...lines].reverse().map(([name, points, colour]) => drawing("path", {
        d: path(name === "held-out" ? points : sketched(points, 60)), fill: "none", stroke: colour, "stroke-width": name === "held-out" ? 2.2 : 1.4, "stroke-linejoin": "round",
      })),
      found.held.length <= 30 ? found.held.map(([step, value]) => drawing("circle", { cx: x(step), cy: y(value), r: 2.8, fill: "var(--series-1)" })) : null,
      labels(lines, y).map(([name, value, up, colour]) => text(width - EDGE.right + 8, up + 4, `${name} ${number(value)}`, "start", colour))));
  }

  /** Where the name of each line stands: at its end, apart from the other's. */
  function labels(lines, y) {
    const made = lines.map(([name, points, colour]) => [name, points[points.length - 1][1], y(points[points.length - 1][1]), colour]);
    if (made.length === 2 && Math.abs(made[0][2] - made[1][2]) < 15) {
      const [upper, lower] = made[0][2] <= made[1][2] ? made : [made[1], made[0]];
      const middle = Math.min(Math.max((upper[2] + lower[2]) / 2, EDGE.top + 6), HEIGHT - EDGE.bottom - 6);
      [upper[2], lower[2]] = [middle - 8, middle + 8];
    }
    return made;
  }

  function said(lines) {
    return lines.map(([name, points]) => `${name} from ${number(points[0][1])} to ${number(points[points.length - 1][1])}`).join("; ");
  }

  /** The curve of a run, null if there is none to draw. */
  function curve(run) {
    const found = run && chosen(run);
    if (!found) return null;
    const node = element("div", { class: "spark" });
    new ResizeObserver(() => draw(node, found)).observe(node);
    return node;
  }

  window.groupwise.spark = { curve, chosen };
})();
