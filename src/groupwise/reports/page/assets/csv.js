/* The numbers of every chart as one table: a row a step, a column a metric, by its key. */
"use strict";

(function () {
  const { page, several } = window.groupwise;
  const HELD_OUT = "evaluation.";

  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };

  /** step -> key -> number of a run. */
  function rowsOf(run) {
    const rows = new Map();
    for (const [curves, before] of [[run.steps, ""], [run.evaluations, HELD_OUT]]) {
      curves.step.forEach((step, row) => {
        if (!rows.has(step)) rows.set(step, new Map());
        for (const [name, values] of Object.entries(curves.columns)) if (values[row] !== null) rows.get(step).set(before + name, values[row]);
      });
    }
    return new Map([...rows].sort(([one], [other]) => one - other));
  }

  function text() {
    const names = new Set();
    for (const run of page.runs) {
      for (const name of Object.keys(run.steps.columns)) names.add(name);
    }
    for (const run of page.runs) {
      for (const name of Object.keys(run.evaluations.columns)) names.add(HELD_OUT + name);
    }
    const lines = [[...(several ? ["run"] : []), "step", ...names]];
    for (const run of page.runs) {
      for (const [step, row] of rowsOf(run)) lines.push([...(several ? [run.label] : []), step, ...[...names].map((name) => row.get(name))]);
    }
    return lines.map((line) => line.map(cell).join(",") + "\n").join("");
  }

  function save() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text()], { type: "text/csv" }));
    link.download = `${page.title.replace(/[^\w.-]+/g, "-")}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  window.groupwise.csv = { text, save };
})();
