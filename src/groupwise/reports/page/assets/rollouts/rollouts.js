"use strict";

// The browser of rollouts: groups that answer to the filters, a page of them at a time.
(function (groupwise) {
  const { group: drawing, filters } = groupwise.browser;
  const { watch } = groupwise.browser.tokens;
  const make = groupwise.element;

  const PER_PAGE = 25;
  const MOST_GROUPS = 400;
  const HASH = /^#rollout-((?:heldout-)?(\d+)-(\d+))$/;

  function plural(count, word) {
    return `${count.toLocaleString("en-US")} ${word}${count === 1 ? "" : "s"}`;
  }

  function pager() {
    const button = (name, label) => make("button", { type: "button", "data-page": name }, label);
    const where = make("span", { class: "where" });
    const parts = [button("back", "← back"), where, button("on", "on →")];
    return make("nav", { class: "pager", "aria-label": "pages of groups" }, ...parts);
  }

  /** An empty browser inside the container. */
  function build(container, first) {
    const parts = {
      shown: make("p", { class: "shown" }),
      controls: filters.draw(),
      count: make("p", { class: "count", role: "status" }),
      list: make("div", { class: "groups" }),
      pager: pager(),
    };
    const root = make("div", { class: "rollouts" }, ...Object.values(parts));
    container.replaceChildren(root);
    watch(root);
    return { ...parts, root, first, entries: [], hits: [], page: 0, came: 0, dropped: 0, taste: { column: "", own: false } };
  }

  function hasTokens(browser) {
    return browser.entries.some(({ group }) => group.completions.some((row) => row.pieces.length));
  }

  function elementOf(browser, entry) {
    if (entry.element === null) {
      entry.element = drawing.draw(entry.group, {
        taste: browser.taste,
        told: () => hasTokens(browser),
        onOpen: (element) => drawing.dim(element, entry.matches),
      });
    }
    drawing.dim(entry.element, entry.matches);
    return entry.element;
  }

  /** Makes the list's children these elements; one that stands where it should is not touched and keeps its focus. */
  function place(list, elements) {
    const wanted = new Set(elements);
    for (const child of [...list.children]) if (!wanted.has(child)) child.remove();
    elements.forEach((element, index) => {
      if (list.children[index] !== element) list.insertBefore(element, list.children[index] || null);
    });
  }

  function pageOf(browser) {
    return browser.hits.slice(browser.page * PER_PAGE, (browser.page + 1) * PER_PAGE);
  }

  function showPager({ hits, page, pager: element }) {
    const pages = Math.ceil(hits.length / PER_PAGE);
    const first = page * PER_PAGE;
    element.hidden = pages < 2;
    const words = `groups ${first + 1} to ${Math.min(first + PER_PAGE, hits.length)} of ${hits.length}`;
    element.querySelector(".where").textContent = words;
    element.querySelector('[data-page="back"]').disabled = page === 0;
    element.querySelector('[data-page="on"]').disabled = page >= pages - 1;
  }

  function tellCount({ hits, dropped, count }) {
    const completions = hits.reduce((sum, entry) => sum + entry.matches.filter(Boolean).length, 0);
    const older = dropped ? `; ${plural(dropped, "older group")} left out of this page` : "";
    const verb = completions === 1 && hits.length === 1 ? "matches" : "match";
    count.textContent = `${plural(hits.length, "group")}, ${plural(completions, "completion")} ${verb}${older}`;
    count.dataset.groups = hits.length;
    count.dataset.completions = completions;
  }

  /** Draws what the filters ask for now. */
  function refresh(browser) {
    const wanted = filters.read(browser.controls);
    for (const entry of browser.entries) entry.matches = filters.matchesOf(entry, wanted);
    browser.hits = browser.entries.filter((entry) => entry.matches.includes(true)).sort(filters.orderOf(wanted.sort));
    browser.page = Math.max(0, Math.min(browser.page, Math.ceil(browser.hits.length / PER_PAGE) - 1));
    filters.tell(browser.controls, wanted);
    tellCount(browser);
    showPage(browser);
  }

  function showPage(browser) {
    showPager(browser);
    place(browser.list, pageOf(browser).map((entry) => elementOf(browser, entry)));
  }

  function refilter(browser) {
    browser.page = 0;
    refresh(browser);
  }

  function turn(browser, event) {
    const button = event.target.closest("[data-page]");
    if (!button) return;
    browser.page += button.dataset.page === "on" ? 1 : -1;
    showPage(browser);
    browser.count.scrollIntoView({ block: "start" });
  }

  function listen(browser) {
    browser.controls.addEventListener("input", () => refilter(browser));
    browser.controls.addEventListener("click", (event) => {
      if (event.target.closest('[data-filter="reset"]') === null) return;
      filters.reset(browser.controls);
      refilter(browser);
    });
    browser.pager.addEventListener("click", (event) => turn(browser, event));
    window.addEventListener("hashchange", () => openNamed(browser));
  }

  function reach(browser, entry) {
    if (!browser.hits.includes(entry)) {
      filters.reset(browser.controls);
      refresh(browser);
    }
    browser.page = Math.floor(browser.hits.indexOf(entry) / PER_PAGE);
    showPage(browser);
  }

  /** Opens the group that the address names, as in #rollout-12-3. */
  function openNamed(browser) {
    const named = HASH.exec(window.location.hash);
    if (named === null) return;
    const entry = browser.entries.find(({ id }) => id === named[1]);
    if (entry === undefined) {
      browser.count.textContent += `; group ${named[3]} of step ${named[2]} is not among those that this page holds`;
      return;
    }
    reach(browser, entry);
    const show = () => entry.element.scrollIntoView({ block: "start" });
    // What is behind the line is made once the group has opened: only then is the page long enough to scroll there.
    if (entry.element.open) return show();
    entry.element.addEventListener("toggle", show, { once: true });
    entry.element.open = true;
  }

  function isOpen(entry) {
    return entry.element !== null && entry.element.open;
  }

  /** Entries in the run's order, the oldest folded ones left out if there are too many. */
  function newest(entries) {
    const ordered = [...entries].sort(filters.orderOf("first"));
    const folded = ordered.filter((entry) => !isOpen(entry));
    const gone = new Set(folded.slice(0, Math.max(0, ordered.length - MOST_GROUPS)));
    return ordered.filter((entry) => !gone.has(entry));
  }

  /** What the page was made of, and what came to it since. */
  function tellShown({ shown, first, came }) {
    const made = first.groups.length || !came ? [first.words || "no completion has been written yet"] : [];
    const since = came ? [`${plural(came, "group")} more since this page was opened`] : [];
    shown.textContent = [...made, ...since].join("; ");
  }

  /** Adds groups to those that the browser holds -> how many were new. */
  function take(browser, rollouts) {
    const there = new Set(browser.entries.map(({ id }) => id));
    const fresh = rollouts.groups.map(filters.entryOf).filter(({ id }) => !there.has(id));
    const all = [...browser.entries, ...fresh];
    browser.entries = newest(all);
    browser.dropped += all.length - browser.entries.length;
    filters.offer(browser.controls, browser.entries);
    refresh(browser);
    return fresh.length;
  }

  function more(browser, rollouts) {
    browser.came += take(browser, rollouts);
    tellShown(browser);
  }

  /** Draws the browser of the page's first run into the container. */
  groupwise.rollouts = function (container, page) {
    const browser = build(container, page.runs[0].rollouts || { words: "", groups: [] });
    listen(browser);
    take(browser, browser.first);
    tellShown(browser);
    openNamed(browser);
    groupwise.moreRollouts = (rollouts) => rollouts && more(browser, rollouts);
  };

  /** Adds the groups that a watched run brought since; without a browser on the page there is nothing to add to. */
  groupwise.moreRollouts = () => {};
})(window.groupwise);
