/* What the page says in words: header, answers, findings, notes, checks, tables and texts. All of it as text, never as markup. */
"use strict";

(function () {
  const { page, element, drawing, number, several, spark } = window.groupwise;
  const TONE_WORDS = { good: "Good", warn: "Look here", bad: "Trouble", neutral: "" };
  const TONE_PATHS = {
    good: "M4.5 8.5l2.5 2.5 4.5-5.5",
    warn: "M8 4.2v4.6M8 11.2v.6",
    bad: "M5 5l6 6M11 5l-6 6",
    neutral: "M4.8 8h6.4",
  };
  const STATES = { finished: "good", going: "neutral", stopped: "warn", failed: "bad", empty: "neutral" };
  const VERDICTS = { pass: ["good", "pass"], fail: ["bad", "fail"], "not measured": ["neutral", "not measured"] };

  function icon(tone) {
    return drawing("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" },
      drawing("circle", { cx: 8, cy: 8, r: 7, fill: "none", stroke: "currentColor", "stroke-width": 1.4 }),
      drawing("path", { d: TONE_PATHS[tone], fill: "none", stroke: "currentColor", "stroke-width": 1.7, "stroke-linecap": "round", "stroke-linejoin": "round" }));
  }

  /** A tone by icon, word and colour. */
  function tone(name, words) {
    const known = name in TONE_PATHS ? name : "neutral";
    const said = words === undefined ? TONE_WORDS[known] : words;
    return said ? element("span", { class: `tone ${known}` }, icon(known), element("span", {}, said)) : null;
  }

  function statusOf(run) {
    const found = STATES[run.status.state] || "neutral";
    return element("span", { class: `tone status ${found}`, "data-state": run.status.state }, icon(found), element("span", {}, run.status.words));
  }

  function header() {
    const [run] = page.runs;
    const name = !several && run && run.label !== page.title ? element("span", { class: "name" }, run.label) : null;
    return [
      element("h1", {}, page.title), name,
      element("div", { id: "status" }, several ? [] : page.runs.map(statusOf)),
      element("p", { class: "made" }, page.written),
    ];
  }

  function answers(list) {
    return list.map((one, index) => element("li", { class: one.tone, "data-tone": one.tone },
      element("div", { class: "head" }, element("h2", {}, one.question), tone(one.tone)),
      element("p", {}, one.answer), index ? null : spark.curve(page.runs[0])));
  }

  /** A titled box, null if there is nothing to put in it; folded if it holds nothing to look at. */
  function panel(title, children, name, folded) {
    if (!children.length) return null;
    const list = element("ul", { class: name }, children);
    const counted = `${title}: ${children.length} note${children.length === 1 ? "" : "s"}`;
    return folded ? element("details", { class: `panel ${name}-panel` }, element("summary", {}, counted), list) : element("div", { class: `panel ${name}-panel` }, element("h2", {}, title), list);
  }

  const named = (run, words) => (several ? `${run.label}: ${words}` : words);

  function findings(runs) {
    const quiet = runs.every((run) => run.findings.every((one) => one.tone !== "warn" && one.tone !== "bad"));
    return panel("What stands out", runs.flatMap((run) => run.findings.map((one) => element("li", { "data-finding": one.name },
      element("div", {}, tone(one.tone, TONE_WORDS[one.tone] || "Note")),
      element("div", {},
        element("p", { class: "name" }, named(run, one.name)),
        element("p", {}, one.words),
        one.advice ? element("p", { class: "advice" }, "→ " + one.advice) : null)))), "findings", quiet);
  }

  function notes(runs) {
    return panel("Notes", runs.flatMap((run) => run.notes.map((words) => element("li", {}, named(run, words)))), "notes");
  }

  function verdict(name) {
    const [found, words] = VERDICTS[name] || ["neutral", name];
    return tone(found, words);
  }

  function checks(list) {
    if (!list.length) return null;
    const head = ["Check", "Verdict", "What it says", "Steps", "Largest", "Limit"];
    const rows = list.map((one) => [one.name, verdict(one.verdict), one.words, number(one.steps), number(one.largest), number(one.limit)]);
    return element("div", { class: "panel checks-panel" }, element("h2", {}, "Checks that the run makes of itself"), grid(head, rows, [3, 4, 5]));
  }

  /** Head and rows as a table that scrolls by itself; `numbers` are flush right. */
  function grid(head, rows, numbers) {
    const right = (index) => (numbers.includes(index) ? "number" : null);
    return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${head.join(", ")}` }, element("table", {},
      element("thead", {}, element("tr", {}, head.map((words, index) => element("th", { scope: "col", class: right(index) }, words)))),
      element("tbody", {}, rows.map((row) => element("tr", {}, row.map((cell, index) => element("td", { class: right(index) }, cell)))))));
  }

  function table(one, inside) {
    return element("div", { class: inside ? "plain" : "panel", "data-table": one.title },
      element("h2", {}, one.title), grid(one.head, one.rows, one.numbers), one.words ? element("p", { class: "words" }, one.words) : null);
  }

  function text(one) {
    return element("details", { class: "panel", "data-text": one.title },
      element("summary", {}, one.title), element("pre", { tabindex: 0 }, one.text));
  }

  /** Tables and texts of one run; folded under its name if there are several. */
  function facts(run) {
    const shown = run.tables.filter((one) => several || one.section === "ran");
    const found = [...shown.map((one) => table(one, several)), ...run.texts.map(text)];
    if (!several) return found;
    const own = [run.members > 1 ? null : element("p", {}, statusOf(run)), checks(run.checks), ...found].filter(Boolean);
    return own.length ? [element("details", { class: "panel", "data-run": run.id }, element("summary", {}, run.label), element("div", { class: "tables" }, own))] : [];
  }

  /** What never moves, in a line. */
  function unchanged(list) {
    return list && list.length ? element("p", { class: "unchanged" }, element("b", {}, "Unchanged: "), list.join("; "), ".") : null;
  }

  /** What each metric is that a chart is drawn from; the keys at the charts lead here. */
  function glossary(plots) {
    const keys = new Map(plots.flatMap((plot) => plot.keys).filter((key) => key.meaning).map((key) => [key.name, key.meaning]));
    if (!keys.size) return null;
    const entries = [...keys].sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, meaning]) =>
      element("div", { id: `key-${name}` }, element("dt", {}, name), element("dd", {}, meaning)));
    return element("details", { class: "panel", id: "keys" }, element("summary", {}, "What each metric is"), element("dl", {}, entries));
  }

  /** How the policy answered at first, and how it does now. */
  function contrasts(rollouts) {
    if (!rollouts || !rollouts.contrasts.length) return null;
    const said = (one, title, prompt) => element("div", { class: "said" },
      element("p", { class: "when" }, `${title}, step ${one.step}`, one.score === null ? null : element("span", { class: "chip" }, `score ${number(one.score)}`)),
      prompt ? element("p", { class: "prompt" }, prompt) : null, element("pre", {}, one.text || "(nothing)"));
    return element("div", { class: "panel contrasts" }, element("h2", {}, "First and last"), element("p", { class: "words" }, rollouts.contrast_words),
      rollouts.contrasts.map((one) => element("div", { class: "contrast" },
        element("p", { class: "prompt" }, one.prompt, one.answer ? element("span", { class: "answer" }, `answer: ${one.answer}`) : null),
        element("div", { class: "pair" }, said(one.first, "First"), said(one.last, "Last", one.last_prompt)))));
  }

  window.groupwise.words = { unchanged, glossary, contrasts, header, statusOf, answers, findings, notes, checks, table, facts };
})();
