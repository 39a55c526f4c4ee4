"use strict";

// What the browser's controls ask for, and which completions answer to it.
(function ({ browser, element: make }) {

  const CHOICES = [
    { name: "kind", offered: [] },
    { name: "fate", offered: ["trained", "dropped", "surplus", "heldout"] },
    { name: "finish", offered: ["stop", "length"] },
    { name: "source", offered: [] },
  ];

  /** Choices that are shown in other words. */
  const LABELS = { heldout: "held out" };

  const RANGES = [
    { name: "score", label: "score", of: (group, row) => row.score },
    { name: "measured", label: "measured reward", of: (group, row) => row.measured },
    { name: "reward", label: "reward", of: (group, row) => row.reward },
    { name: "learned", label: "learned score", of: (group, row) => row.learned },
    { name: "length", label: "tokens", of: (group, row) => row.tokens },
    { name: "step", label: "step", of: (group) => group.step },
  ];

  const SORTS = [
    { name: "first", label: "step, first to last", by: () => 0 },
    { name: "last", label: "step, last to first", by: (a, b) => b.group.step - a.group.step },
    { name: "spread", label: "widest spread", by: (a, b) => b.spread - a.spread },
    { name: "length", label: "longest completion", by: (a, b) => b.longest - a.longest },
    { name: "advantage", label: "largest |advantage|", by: (a, b) => b.strongest - a.strongest },
  ];

  function largest(values) {
    return values.reduce((most, value) => Math.max(most, value ?? 0), 0);
  }

  /** The sample deviation of what is measured: the scores, or the rewards, that are there. */
  function spreadOf(rows) {
    const scores = rows.map((row) => row.measured ?? row.score).filter((score) => score !== null);
    if (scores.length < 2) return 0;
    const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
    return Math.sqrt(scores.reduce((sum, score) => sum + (score - mean) ** 2, 0) / (scores.length - 1));
  }

  /** What tells a group from every other: those of evaluations have numbers of their own. */
  function nameOf(group) {
    return `${group.fate === "heldout" ? "heldout-" : ""}${group.step}-${group.group}`;
  }

  /** A group with what is asked of it again and again. */
  function entryOf(group) {
    const rows = group.completions;
    return {
      id: nameOf(group),
      group,
      words: `${group.prompt}\n${group.answer}\n${group.key}`.toLowerCase(),
      texts: rows.map((row) => row.text.toLowerCase()),
      spread: spreadOf(rows),
      longest: largest(rows.map((row) => row.tokens)),
      strongest: largest(rows.map((row) => Math.abs(row.advantage ?? 0))),
      matches: rows.map(() => true),
      element: null,
    };
  }

  function isWithin(value, [low, high]) {
    if (low === null && high === null) return true;
    return value !== null && (low === null || value >= low) && (high === null || value <= high);
  }

  function isChosen(value, wanted) {
    return wanted === "" || value === wanted;
  }

  function rowMatches(entry, index, wanted, found) {
    const row = entry.group.completions[index];
    if (!isChosen(row.finish, wanted.finish) || (wanted.fault && !row.fault)) return false;
    if (!wanted.ranges.every((range) => isWithin(range.of(entry.group, row), range.ends))) return false;
    return found || entry.texts[index].includes(wanted.search);
  }

  /** Which completions of a group answer to what is wanted. */
  function matchesOf(entry, wanted) {
    const { kind, fate, source, completions } = entry.group;
    const fits = isChosen(kind, wanted.kind) && isChosen(fate, wanted.fate) && isChosen(source, wanted.source);
    const found = wanted.search === "" || entry.words.includes(wanted.search);
    return completions.map((_, index) => fits && rowMatches(entry, index, wanted, found));
  }

  /** The order of two entries: by what is asked for, then by where they stand in the run. */
  function orderOf(name) {
    const { by } = SORTS.find((sort) => sort.name === name);
    return (a, b) => by(a, b) || a.group.step - b.group.step || a.group.group - b.group.group;
  }

  function field(label, control, name) {
    return make("label", { class: "field", "data-field-of": name }, make("span", {}, label), control);
  }

  function selectOf(name, options) {
    return make("select", { "data-filter": name }, options.map(([value, label]) => make("option", { value }, label)));
  }

  function choiceField(choice) {
    const offered = [["", "any"], ...choice.offered.map((value) => [value, LABELS[value] || value])];
    return field(choice.name, selectOf(choice.name, offered), choice.name);
  }

  function bound(range, end) {
    const name = { "data-filter": `${range.name}-${end}`, "aria-label": `${range.label} ${end}` };
    return make("input", { type: "number", step: "any", inputmode: "decimal", ...name });
  }

  function rangeField(range) {
    const legend = make("legend", {}, range.label);
    const ends = [bound(range, "from"), make("span", { "aria-hidden": "true" }, "to"), bound(range, "to")];
    return make("fieldset", { class: "field range", "data-field-of": range.name }, legend, ...ends);
  }

  /** All controls, folded if the page is narrow. */
  function draw() {
    const hint = "prompt, completion, answer, key";
    const search = make("input", { type: "search", "data-filter": "search", placeholder: hint });
    const sort = selectOf("sort", SORTS.map(({ name, label }) => [name, label]));
    const reset = make("button", { type: "button", "data-filter": "reset" }, "reset");
    const box = make("input", { type: "checkbox", "data-filter": "fault" });
    const fault = make("label", { class: "field check", "data-field-of": "fault" }, box, make("span", {}, "only with a fault"));
    const fields = [...CHOICES.map(choiceField), ...RANGES.map(rangeField), fault];
    const title = make("summary", {}, "Filters", make("span", { class: "set" }));
    const wide = window.matchMedia("(min-width: 720px)").matches;
    const more = make("details", { class: "more", open: wide }, title, make("div", { class: "fields" }, ...fields));
    const always = [field("search", search, "search"), field("sort by", sort, "sort"), reset];
    const first = make("div", { class: "first" }, ...always);
    return make("div", { class: "controls", role: "search", "aria-label": "rollouts" }, first, more);
  }

  function control(element, name) {
    return element.querySelector(`[data-filter="${name}"]`);
  }

  function numberIn(element, name) {
    const number = control(element, name).valueAsNumber;
    return Number.isNaN(number) ? null : number;
  }

  /** What the controls ask for now. */
  function read(element) {
    const chosen = Object.fromEntries(CHOICES.map(({ name }) => [name, control(element, name).value]));
    const asked = RANGES.map((range) => ({ ...range, ends: ["from", "to"].map((end) => numberIn(element, `${range.name}-${end}`)) }));
    const ranges = asked.filter(({ ends }) => ends.some((value) => value !== null));
    const search = control(element, "search").value.trim().toLowerCase();
    const fault = control(element, "fault").checked;
    const set = Object.values(chosen).filter(Boolean).length + ranges.length + Number(fault);
    return { ...chosen, ranges, fault, search, set, sort: control(element, "sort").value };
  }

  /** Says how many filters are set, also while they are folded away. */
  function tell(element, wanted) {
    element.querySelector(".more > summary .set").textContent = wanted.set ? ` (${wanted.set} set)` : "";
  }

  /** Takes every filter back; the order stays. */
  function reset(element) {
    for (const found of element.querySelectorAll("[data-filter]")) {
      if (found.type === "checkbox") found.checked = false;
      else if (found.dataset.filter !== "sort") found.value = "";
    }
  }

  function extremes(entries, range) {
    const values = entries.flatMap(({ group }) => group.completions.map((row) => range.of(group, row)));
    const numbers = values.filter((value) => value !== null);
    const least = numbers.reduce((a, b) => Math.min(a, b), Infinity);
    return numbers.length ? [least, numbers.reduce((a, b) => Math.max(a, b), -Infinity)] : null;
  }

  function offerRange(element, entries, range) {
    const found = extremes(entries, range);
    element.querySelector(`[data-field-of="${range.name}"]`).hidden = found === null;
    if (found === null) return;
    control(element, `${range.name}-from`).placeholder = browser.heat.brief(found[0]);
    control(element, `${range.name}-to`).placeholder = browser.heat.brief(found[1]);
  }

  /** What the groups hold of a property becomes its choices. */
  function offerChoices(element, entries, name) {
    const select = control(element, name);
    const there = new Set([...select.options].map((found) => found.value));
    const values = [...new Set(entries.map(({ group }) => group[name]))].filter(Boolean).sort();
    select.append(...values.filter((value) => !there.has(value)).map((value) => make("option", { value }, value)));
    return select;
  }

  /** Shows only controls that these groups give something to choose. */
  function offer(element, entries) {
    for (const range of RANGES) offerRange(element, entries, range);
    offerChoices(element, entries, "kind");
    element.querySelector('[data-field-of="source"]').hidden = offerChoices(element, entries, "source").options.length < 3;
    const faulty = entries.some(({ group }) => group.completions.some((row) => row.fault));
    element.querySelector('[data-field-of="fault"]').hidden = !faulty;
  }

  browser.filters = { nameOf, entryOf, matchesOf, orderOf, draw, read, tell, reset, offer };
})(window.groupwise);
