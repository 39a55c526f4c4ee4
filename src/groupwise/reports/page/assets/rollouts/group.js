"use strict";

// One group of the browser: a line to read at a glance, and what is behind it when it is opened.
(function ({ browser, element: make }) {
  const { heat } = browser;

  const KIND_SIGNS = {
    mixed: "◐",
    "all right": "●",
    "all wrong": "○",
    "rewards differ": "◐",
    "rewards equal": "=",
    unscored: "?",
  };
  const DROPPED = {
    "all right": "dropped by the filter: all right, nothing to compare",
    "all wrong": "dropped by the filter: all wrong, nothing to compare",
    "rewards equal": "dropped by the filter: every completion earned the same",
    unscored: "dropped by the filter: nothing in it has a score",
  };
  const FINISHES = { stop: "stop: ended by itself", length: "length: cut at the limit" };
  const HALF = /[\ud800-\udbff]$/;
  const MARK_WORDS = { right: "right", partly: "partly right", wrong: "wrong", none: "without a score" };
  const NO_ADVANTAGE = 1e-6;

  function hasNoScore(row) {
    return row.score === null && row.learned === null && row.measured === null;
  }

  function hasNoAdvantage(row) {
    const list = row.columns.advantage || [row.advantage];
    return list.every((value) => value === null || Math.abs(value) < NO_ADVANTAGE);
  }

  function rewardsDiffer(group) {
    return new Set(group.completions.map((row) => row.reward).filter((reward) => reward !== null)).size > 1;
  }

  /** Tells what became of a group and, if it does not train, why. */
  function fateOf(group) {
    if (group.fate === "heldout") return `held out: ${group.kind}`;
    if (group.fate === "surplus") return "surplus: trains next step";
    if (group.fate === "dropped") return DROPPED[group.kind] || "dropped by the filter";
    if (group.completions.every(hasNoScore)) return "does not train: nothing in it has a score";
    if (group.completions.every(hasNoAdvantage)) return `${group.kind}: every advantage is 0`;
    const words = group.fresh ? "trains" : "trains, generated in an earlier step";
    const byScore = group.kind === "all right" || group.kind === "all wrong" || group.kind === "unscored";
    return byScore && rewardsDiffer(group) ? `${words}: ${group.kind}, but rewards differ` : words;
  }

  function kindChip(kind) {
    const sign = make("span", { "aria-hidden": "true" }, `${KIND_SIGNS[kind] || "·"} `);
    return make("span", { class: "chip", "data-kind": kind }, sign, kind);
  }

  function markKind(share) {
    if (share === null) return "none";
    return share >= 1 - 1e-6 ? "right" : share <= 0 ? "wrong" : "partly";
  }

  /** Tells whether the run goes by rewards and not by what is right. */
  function byReward(group) {
    return group.completions.some((row) => row.measured !== null);
  }

  /** How full each completion's mark is: its score, or its reward between the group's lowest and highest. */
  function shares(group) {
    if (!byReward(group)) return group.completions.map((row) => row.score);
    const values = group.completions.map((row) => row.measured);
    const known = values.filter((value) => value !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    return values.map((value) => (value === null ? null : high > low ? (value - low) / (high - low) : 0.5));
  }

  function mark(row, share) {
    const found = make("span", { class: "mark", "data-score": markKind(share), title: scoreWords(row) });
    found.style.setProperty("--fill", Math.min(1, Math.max(0, share ?? 0)).toFixed(3));
    return found;
  }

  function scoreWords(row) {
    if (row.measured !== null) return `reward ${heat.brief(row.measured)}`;
    return row.score === null ? "no score" : `score ${heat.brief(row.score)}`;
  }

  function marksInWords(group, kinds) {
    if (byReward(group)) return group.completions.map(scoreWords).join(", ");
    const count = (kind) => kinds.filter((found) => found === kind).length;
    const there = Object.keys(MARK_WORDS).filter(count);
    return there.map((kind) => `${count(kind)} ${MARK_WORDS[kind]}`).join(", ");
  }

  function marks(group) {
    const full = shares(group);
    const label = marksInWords(group, full.map(markKind));
    const many = full.length > 16 ? "marks crowded" : "marks";
    const drawn = group.completions.map((row, index) => mark(row, full[index]));
    return make("span", { class: many, role: "img", "aria-label": label }, ...drawn);
  }

  function oneLine(text, most) {
    const whole = text.length <= most;
    const short = whole ? text : `${text.slice(0, most).replace(HALF, "")}…`;
    return heat.visible(short.replaceAll("\n", "↵ ").replaceAll("\t", " "));
  }

  function summaryOf(group) {
    const answer = group.answer === "" ? null : make("span", { class: "answer" }, `→ ${oneLine(group.answer, 60)}`);
    return make(
      "summary",
      {},
      make("span", { class: "step" }, `step ${group.step}`),
      make("span", { class: "prompt" }, oneLine(group.prompt, 240)),
      answer,
      kindChip(group.kind),
      marks(group),
      make("span", { class: "fate", "data-fate": group.fate }, fateOf(group)),
    );
  }

  function textBlock(title, name, text) {
    const content = make("pre", { class: "text", "data-text": name, tabindex: 0 }, heat.visible(text));
    return make("div", { class: "block" }, make("h4", {}, title), content);
  }

  function fact(label, name, text, full) {
    const value = make("dd", { "data-field": name, title: full }, text);
    return make("div", {}, make("dt", {}, label), value);
  }

  function numberFact(label, name, value) {
    return fact(label, name, heat.brief(value, 6), value === null ? "there was no number" : String(value));
  }

  function loggedFact(name, value) {
    if (typeof value !== "string") return numberFact(name, `logged.${name}`, value);
    return fact(name, `logged.${name}`, oneLine(value, 60), heat.visible(value));
  }

  function spanOf(group, span) {
    return `tokens ${span.start} to ${span.stop - 1} ${ageOf(group, { version: span.version })}`;
  }

  function ageOf(group, row) {
    if (row.spans.length) return row.spans.map((span) => spanOf(group, span)).join("; ");
    const age = group.step - 1 - row.version;
    if (age <= 0) return `of step ${row.version}, the newest`;
    return `of step ${row.version}, ${age} step${age === 1 ? "" : "s"} old`;
  }

  function finishOf(row) {
    if (row.stop) return `stop: completed ${JSON.stringify(row.stop)}`;
    return FINISHES[row.finish] || row.finish;
  }

  const ENDS = {
    done: "the environment or agent ended it", turns: "no turn was left", tokens: "its tokens were used up",
    seconds: "the environment's seconds were used up", fault: "the environment or agent failed",
  };

  /** What a turn of an episode brought, in words. */
  function turnOf(turn, index) {
    const advantage = turn.advantage === null ? "" : `, advantage ${heat.brief(turn.advantage, 3)}`;
    const state = turn.state ? `, in state ${oneLine(turn.state, 40)}` : "";
    const fault = turn.fault ? `, ⚠ ${turn.fault}` : "";
    const calls = turn.calls ? `, called ${oneLine(turn.calls, 120)}` : "";
    return `${index + 1}: reward ${heat.brief(turn.reward, 3)}${advantage}${state}${calls}${fault}`;
  }

  /** The answers of an agent's session that has several rows, row by row. */
  function sessionOf(row) {
    if (!row.turns.some((turn) => turn.row > 1)) return null;
    const rows = new Set(row.turns.map((turn) => turn.row));
    const words = (turn, index) => `${turnOf(turn, index)}, ${turn.tokens} tokens`;
    const answers = row.turns.map((turn, index) => ({ row: turn.row, item: make("li", {}, words(turn, index)) }));
    const items = [...rows].map((number) => {
      const own = answers.filter((answer) => answer.row === number).map((answer) => answer.item);
      const title = number === 1 ? "row 1" : `row ${number}: read anew (a fork, a sub-agent or an edit)`;
      return make("li", {}, title, make("ul", {}, own));
    });
    return make("ul", { class: "session", "data-field": "session" }, items);
  }

  function factsOf(group, row) {
    return make(
      "dl",
      { class: "facts" },
      byReward(group) && row.score === null ? null : numberFact("score", "score", row.score),
      byReward(group) ? numberFact("measured reward", "measured", row.measured) : null,
      Object.entries(row.parts).map(([name, value]) => numberFact(name, `parts.${name}`, value)),
      Object.entries(row.logged).map(([name, value]) => loggedFact(name, value)),
      row.learned === null ? null : numberFact("learned score", "learned", row.learned),
      numberFact("reward", "reward", row.reward),
      numberFact("advantage", "advantage", row.advantage),
      fact("finish", "finish", finishOf(row)),
      fact("tokens", "tokens", String(row.tokens)),
      fact("weights", "version", ageOf(group, row)),
      row.turns.length && row.turns.every((turn) => turn.row === 1) ? fact("turns", "turns", row.turns.map(turnOf).join("; ")) : null,
      row.turns.length ? fact("ended", "ended", ENDS[row.ended] || row.ended) : null,
      row.fault ? fact("fault", "fault", `⚠ ${row.fault}`) : null,
    );
  }

  function shareCounts(row) {
    const values = heat.valuesOf(row, heat.columnOf("share")).filter((value) => value !== null);
    const clipped = values.filter((value) => value === 0).length;
    const partly = values.filter((value) => value > 0 && value < 1).length;
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return { all: values.length, clipped, partly, mean };
  }

  function shareWords({ all, clipped, partly, mean }) {
    const words = clipped ? `${clipped} of ${all} tokens clipped` : `no token of ${all} clipped`;
    return partly ? `${words}, ${partly} let through in part (mean share ${heat.brief(mean, 3)})` : words;
  }

  function shareBar(row) {
    const counts = shareCounts(row);
    if (!counts.all) return null;
    const bar = make("span", { class: "share-bar", "aria-hidden": "true" });
    bar.style.setProperty("--clipped", (counts.clipped / counts.all).toFixed(4));
    bar.style.setProperty("--partly", (counts.partly / counts.all).toFixed(4));
    return make("div", { class: "share" }, bar, make("span", { "data-field": "clipped" }, shareWords(counts)));
  }

  function whyNoTokens(group, row, told) {
    if (group.fate !== "trained") return "Tokens are written only of completions that train.";
    if (hasNoScore(row)) return "It has no score and does not train, so its tokens were not written.";
    if (told) return "Its tokens are not shown: beyond the step's journal.token_budget, or too many for this page.";
    return "This run did not write tokens (journal.token_budget); this is the text as it is.";
  }

  function plainText(row, reason) {
    const text = make("pre", { class: "text", "data-text": "completion", tabindex: 0 }, heat.visible(row.text));
    return [reason === "" ? null : make("p", { class: "note" }, reason), text];
  }

  function completionOf(group, row, index, told) {
    const title = make("h4", {}, mark(row, shares(group)[index]), ` Completion ${index + 1}`);
    const body = make("div", { class: "body" }, row.pieces.length ? null : plainText(row, whyNoTokens(group, row, told)));
    const legend = make("div", { class: "own-legend", hidden: true });
    return make("article", { class: "completion", "data-row": index }, title, factsOf(group, row), sessionOf(row), shareBar(row), legend, body);
  }

  function heatControls(columns) {
    const choices = [...columns, { name: "", label: "plain text" }].map(({ name, label }) => make("option", { value: name }, label));
    const select = make("select", { "data-heat": "column" }, choices);
    const own = make("input", { type: "checkbox", "data-heat": "own-scale" });
    const legend = make("div", { class: "legend-place" });
    const labels = [make("label", {}, "colour by ", select), make("label", {}, own, " a scale for each completion")];
    return { element: make("div", { class: "heat" }, ...labels, legend), select, own, legend };
  }

  function tokensIn(article, group, row) {
    const place = { step: group.step, group: group.group, row: Number(article.dataset.row) };
    const found = article.querySelector(".tokens");
    if (found) return found;
    const list = browser.tokens.draw(row, place);
    article.querySelector(".body").replaceChildren(list);
    return list;
  }

  function showTexts(told) {
    for (const { article, row } of told) {
      article.querySelector(".own-legend").hidden = true;
      article.querySelector(".body").replaceChildren(...plainText(row, "").filter(Boolean));
    }
  }

  /** Colours all completions of an opened group by the chosen column, on one scale or on a scale for each. */
  function paint(group, told, controls) {
    controls.legend.replaceChildren();
    controls.own.disabled = controls.select.value === "";
    if (controls.select.value === "") return showTexts(told);
    const column = heat.columnOf(controls.select.value);
    const values = told.map(({ row }) => heat.valuesOf(row, column));
    const shared = heat.scaleOf(column, values);
    if (!controls.own.checked) controls.legend.append(browser.tokens.legend(column, shared));
    told.forEach(({ article, row }, index) => {
      const scale = controls.own.checked ? heat.scaleOf(column, [values[index]]) : shared;
      const legend = article.querySelector(".own-legend");
      legend.hidden = !controls.own.checked;
      legend.replaceChildren(...(controls.own.checked ? [browser.tokens.legend(column, scale)] : []));
      browser.tokens.recolour(tokensIn(article, group, row), values[index], scale);
    });
  }

  function linkTo(group) {
    const name = `rollout-${browser.filters.nameOf(group)}`;
    return make("a", { class: "to-group", href: `#${name}` }, `link to this group: #${name}`);
  }

  function headOf(group) {
    const told = [
      `step ${group.step}, group ${group.group}`,
      group.key === "" ? "" : `key ${oneLine(group.key, 120)}`,
      group.source === "" ? "" : `source ${oneLine(group.source, 60)}`,
    ];
    return make("p", { class: "note where" }, told.filter(Boolean).join(" · "), " · ", linkTo(group));
  }

  function heatOf(group, articles, taste) {
    const told = group.completions.map((row, index) => ({ row, article: articles[index] }));
    const drawn = told.filter(({ row }) => row.pieces.length);
    if (!drawn.length) return null;
    const rows = drawn.map(({ row }) => row);
    const columns = heat.columnsOf(rows);
    const controls = heatControls(columns);
    controls.select.value = columns.length ? heat.preferred(columns, rows, taste.column).name : "";
    controls.own.checked = taste.own;
    controls.element.addEventListener("change", () => {
      Object.assign(taste, { column: controls.select.value || taste.column, own: controls.own.checked });
      paint(group, drawn, controls);
    });
    paint(group, drawn, controls);
    return controls.element;
  }

  function bodyOf(group, taste, told) {
    const articles = group.completions.map((row, index) => completionOf(group, row, index, told));
    const answer = group.answer === "" ? null : textBlock("Answer", "answer", group.answer);
    const texts = [headOf(group), textBlock("Prompt", "prompt", group.prompt), answer];
    return make("div", { class: "opened" }, ...texts, heatOf(group, articles, taste), ...articles);
  }

  /** A folded group; its body is made when it is first opened.
   *
   * taste   {column, own}, what was chosen last
   * told    () -> whether any completion of the page came with its tokens
   * onOpen  (element), called after it was opened or folded
   */
  function draw(group, { taste, told, onOpen }) {
    const place = { "data-step": group.step, "data-group": group.group, id: `rollout-${browser.filters.nameOf(group)}` };
    const element = make("details", { class: "group", ...place }, summaryOf(group));
    element.addEventListener("toggle", () => {
      if (element.open && !element.querySelector(":scope > .opened")) element.append(bodyOf(group, taste, told()));
      onOpen(element);
    });
    return element;
  }

  /** Dims the completions that do not match; none is dimmed if no filter is set. */
  function dim(element, matches) {
    for (const found of ["summary .mark", ":scope > .opened > article"]) {
      const all = element.querySelectorAll(found);
      all.forEach((one, index) => one.classList.toggle("dimmed", !matches[index]));
    }
  }

  browser.group = { draw, dim, fateOf };
})(window.groupwise);
