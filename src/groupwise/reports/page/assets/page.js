/* Puts the page together, and takes in what a watched run brings. */
"use strict";

(function () {
  const groupwise = window.groupwise;
  const { page, element, several, words, plots, marks, csv } = groupwise;
  const narrow = window.matchMedia("(max-width: 760px)");
  const SMOOTHING = [["off", "Off"], ["light", "Light"], ["strong", "Strong"]];
  const places = {}; // the parts that a watched run replaces
  const sections = new Map(); // id -> {node, grid, extra, spec}

  function start() {
    document.getElementById("header").prepend(...words.header().filter(Boolean));
    const main = document.getElementById("main");
    for (const name of ["answers", "tables", "findings", "notes"]) places[name] = element("div", { class: `place-${name}` });
    main.append(places.answers, places.tables, places.findings, places.notes);
    for (const spec of page.sections) main.append(section(spec));
    if (page.tables.length) places.tables.append(element("div", { class: "tables" }, page.tables.map((one) => words.table(one))));
    bar();
    say();
    places.glossary = element("div");
    fillPlots();
    explain();
    rollouts();
    for (const run of page.runs) if (sections.has("ran")) sections.get("ran").extra.append(...words.facts(run));
    (sections.has("ran") ? sections.get("ran").extra : main).append(places.glossary);
    shown();
    document.getElementById("footer").append("This page is one file: it holds its data and asks nothing of the network.");
    if (page.live) document.getElementById("footer").textContent = "This page is being watched: it asks the run's own server for what is new.";
    window.addEventListener("hashchange", jump);
    document.addEventListener("click", again);
    window.addEventListener("beforeprint", () => document.querySelectorAll("section > details").forEach((part) => { part.open = true; }));
    if (window.location.hash) jump();
  }

  /** A link to the place that the address names already brings its reader there again. */
  function again(event) {
    const link = event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === window.location.hash) jump();
  }

  /** A part of the page, folded on a phone but for the first. */
  function section(spec) {
    const made = { spec, grid: element("div", { class: "plots" }), still: element("div"), extra: element("div", { class: spec.id === "ran" ? "tables" : "extra" }) };
    made.top = element("div");
    made.sums = element("div", { class: "tables" });
    if (spec.id === "writes") made.extra.id = "rollouts";
    const open = !narrow.matches || spec === page.sections[0];
    made.node = element("section", { id: spec.id, "aria-labelledby": `title-${spec.id}` },
      element("details", { open }, element("summary", {}, element("h2", { id: `title-${spec.id}` }, spec.title)),
        spec.lead ? element("p", { class: "lead" }, spec.lead) : null, made.top, made.grid, made.still, made.sums, made.extra));
    sections.set(spec.id, made);
    return made.node;
  }

  /** The browser of rollouts is another script's. */
  function rollouts() {
    const [run] = page.runs;
    if (several || !run || !groupwise.rollouts || !sections.has("writes")) return;
    if (run.rollouts) groupwise.rollouts(sections.get("writes").extra, page);
    const first = words.contrasts(run.rollouts);
    if (first) sections.get("writes").top.append(first);
  }

  function fillPlots() {
    for (const [id, made] of sections) replace(made.grid, page.plots.filter((plot) => plot.section === id), (list) => list.map(plots.card));
    plots.keep(new Set(page.plots.map((plot) => plot.id)));
    for (const [id, made] of sections) replace(made.still, page.unchanged[id] || [], (list) => [words.unchanged(list)]);
  }

  /** What the marks on the charts are, and what the keys at them are. */
  function explain() {
    const first = page.sections.find((spec) => page.plots.some((plot) => plot.section === spec.id && marks.overSteps(plot)));
    if (first && !several) replace(sections.get(first.id).top, page.runs[0].events, () => [marks.legend()]);
    replace(places.glossary, page.plots.map((plot) => plot.keys), () => [words.glossary(page.plots)]);
  }

  /** Everything in words, as it is now. */
  function say() {
    replace(places.answers, several || !page.runs.length ? [] : page.runs[0].answers, (list) => (list.length ? [element("ul", { class: "answers" }, words.answers(list))] : []));
    replace(places.findings, page.runs.map((run) => run.findings), () => [words.findings(page.runs)]);
    replace(places.notes, page.runs.map((run) => run.notes), () => [words.notes(page.runs)]);
    if (several || !page.runs.length) return;
    replace(document.getElementById("status"), page.runs[0].status, () => [words.statusOf(page.runs[0])]);
    if (sections.has("healthy")) {
      replace(sections.get("healthy").extra, page.runs[0].checks, (list) => [words.checks(list)]);
    }
    for (const [id, made] of sections) {
      const own = id === "ran" ? [] : page.runs[0].tables.filter((one) => one.section === id);
      replace(made.sums, own, (list) => list.map((one) => words.table(one)));
    }
  }

  /** Makes the content of a place anew if what it is made from has changed. */
  function replace(place, from, make) {
    const now = JSON.stringify(from);
    if (place.made === now) return;
    place.made = now;
    place.replaceChildren(...make(from).filter(Boolean));
  }

  /** Sections without content are left out, also of the contents. */
  function shown() {
    const links = [];
    for (const [id, made] of sections) {
      made.node.hidden = ![made.top, made.grid, made.still, made.sums, made.extra].some((part) => part.childElementCount);
      if (!made.node.hidden) links.push(element("a", { href: `#${id}`, "data-place": id }, made.spec.short || made.spec.title));
    }
    places.contents.replaceChildren(...links);
    places.empty.hidden = page.plots.length > 0;
  }

  /** Buttons of which one is pressed. */
  function choice(title, options, chosen, onchoose) {
    const buttons = options.map(([name, said]) => element("button", {
      type: "button", "aria-pressed": String(name === chosen), "data-choice": name, onclick: () => {
        for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.choice === name));
        onchoose(name);
      },
    }, said));
    return element("div", { class: "choice", role: "group", "aria-label": title, "data-control": title.toLowerCase() }, element("span", {}, title), element("span", { class: "options" }, buttons));
  }

  function bar() {
    places.contents = element("div", { class: "places" });
    places.empty = element("p", { class: "empty" }, "No numbers yet: the plots come with the first step.");
    places.notes.after(places.empty);
    const themes = groupwise.THEMES.map((name) => [name, name[0].toUpperCase() + name.slice(1)]);
    const tools = element("div", { class: "tools" },
      overSteps() ? choice("Smoothing", SMOOTHING, "off", plots.setSmoothing) : "", choice("Theme", themes, groupwise.theme(), groupwise.setTheme),
      element("button", { type: "button", class: "csv", title: "Save the numbers of every chart as a table", onclick: csv.save }, "CSV"));
    const menu = element("details", { class: "menu", open: !narrow.matches }, element("summary", {}, "Menu"), element("div", { class: "inside" }, places.contents, tools));
    narrow.addEventListener("change", () => { menu.open = !narrow.matches; });
    places.contents.addEventListener("click", () => { if (narrow.matches) menu.open = false; });
    document.getElementById("bar").append(element("div", { class: "inner" }, menu, several ? runs() : null));
    const watcher = new IntersectionObserver(mark, { rootMargin: "-15% 0px -75% 0px" });
    for (const made of sections.values()) watcher.observe(made.node);
    roomForBar();
    window.addEventListener("resize", roomForBar);
  }

  /** Whether there is, or may come, a plot over steps: others are not smoothed. */
  function overSteps() {
    return !page.plots.length || page.plots.some((plot) => !plot.across);
  }

  /** What is jumped to comes to stand below the bar, if the bar stays on screen. */
  function roomForBar() {
    const node = document.getElementById("bar");
    const covered = window.getComputedStyle(node).position === "sticky" ? node.offsetHeight : 0;
    document.documentElement.style.scrollPaddingTop = `${covered + 14}px`;
  }

  function mark(entries) {
    for (const entry of entries) {
      const link = places.contents.querySelector(`[data-place="${entry.target.id}"]`);
      if (link) link.setAttribute("aria-current", String(entry.isIntersecting));
    }
  }

  /** The legend of the runs: each can be hidden. */
  function runs() {
    return element("div", { class: "runs", role: "group", "aria-label": "Runs" }, page.runs.map((run, index) => {
      const dot = element("span", { class: "dot", style: `background: var(--series-${(index % 8) + 1})` });
      const button = element("button", { type: "button", "aria-pressed": "true", "data-run": run.id, onclick: () => {
        const visible = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(visible));
        plots.showRun(run.id, visible);
      } }, dot, element("span", {}, run.label));
      return button;
    }));
  }

  /** Goes to the place in the address, which may be folded; sections are made after the browser looked for it. */
  function jump() {
    const name = decodeURIComponent(window.location.hash.slice(1));
    const place = document.getElementById(name.startsWith("rollout-") ? "writes" : name);
    if (!place) return;
    for (let node = place; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    const own = place.querySelector(":scope > details");
    if (own) own.open = true;
    if (!name.startsWith("rollout-")) place.scrollIntoView();
  }

  /** Takes in how a watched page is now; what its rollouts bring is for their own script. */
  groupwise.apply = (fresh) => {
    const [run] = page.runs;
    Object.assign(run, fresh.runs[0], { rollouts: run.rollouts });
    page.plots = fresh.plots;
    page.unchanged = fresh.unchanged;
    fillPlots();
    explain();
    say();
    shown();
    groupwise.redraw();
  };
  document.addEventListener("DOMContentLoaded", start);
})();
