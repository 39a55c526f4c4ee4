"use strict";

// The tokens of a completion on the page: their colours, the legend, and the panel with a token's numbers.
(function ({ browser, element: make }) {
  const { heat } = browser;
  const SPECIAL = /^(<\|[^<>]*\|>|<\/?s>|<(eos|bos|pad|unk|end)>|\[(EOS|BOS|SEP|PAD|CLS|UNK)\])$/i;

  const NARROW = "(max-width: 560px)";

  /** Drawn list of tokens -> its row, and the place of the row. */
  const shown = new WeakMap();

  function isSpecial(row, index) {
    return SPECIAL.test(row.pieces[index]) || (row.finish === "stop" && !row.stop && index === row.tokens - 1);
  }

  /** Tells whether an environment wrote the token. */
  function isAnswer(row, index) {
    return row.answers.some(([start, stop]) => start <= index && index < stop);
  }

  function tokenOf(row, index) {
    const kind = isSpecial(row, index) ? " special" : "";
    const anew = row.anew.includes(index) ? " anew" : "";
    const name = `token${kind}${isAnswer(row, index) ? " answer" : ""}${anew}`;
    const attributes = { class: name, "data-index": index, tabindex: index ? -1 : 0 };
    return make("span", attributes, heat.visiblePiece(row.pieces[index]));
  }

  /** A row's tokens as elements, still without colours. place: {step, group, row}. */
  function draw(row, place) {
    const label = `Tokens of completion ${place.row + 1}; arrow keys move, Escape closes the numbers`;
    const list = make("div", { class: "tokens", role: "group", "aria-label": label });
    list.append(...row.pieces.map((_, index) => tokenOf(row, index)));
    shown.set(list, { row, place });
    return list;
  }

  function sideOf(scale, level) {
    if (level === 0) return "none";
    if (scale.kind !== "diverging") return "one-way";
    return level < 0 ? "below" : "above";
  }

  function colour(token, scale, value) {
    const level = scale === null || value === null ? 0 : scale.level(value);
    token.dataset.side = value === null ? "missing" : sideOf(scale, level);
    token.style.setProperty("--level", Math.abs(level).toFixed(4));
  }

  /** Colours drawn tokens by a column's numbers on a scale. */
  function recolour(list, values, scale) {
    [...list.children].forEach((token, index) => colour(token, scale, values[index]));
  }

  function end(number, words, name) {
    return make("span", { class: "end", [`data-${name}`]: true }, make("b", {}, heat.brief(number)), ` ${words}`);
  }

  /** The colours of a scale with its two ends in numbers. */
  function legend(column, scale) {
    if (scale === null) return make("div", { class: "heat-legend" }, "no token has a number here");
    if (scale.flat) {
      return make("div", { class: "heat-legend" }, `every token has ${heat.brief(scale.ends[1])}: nothing to colour`);
    }
    const bar = make("span", { class: "bar", "data-kind": scale.kind, "aria-hidden": "true" });
    const [low, high] = column.words;
    return make("div", { class: "heat-legend" }, end(scale.ends[0], low, "low"), bar, end(scale.ends[1], high, "high"));
  }

  function line(name, label, text) {
    return [make("dt", {}, label), make("dd", { "data-column": name }, text)];
  }

  function panelOf(token) {
    const { row, place } = shown.get(token.parentElement);
    const index = Number(token.dataset.index);
    const numbers = heat.numbersOf(row, index).flatMap(([column, value]) =>
      line(column.name, column.label.replace(/ \(.*\)$/, ""), heat.exact(value)),
    );
    const where = `token ${index + 1} of ${row.pieces.length}, completion ${place.row + 1}`;
    const words = isAnswer(row, index) ? "the environment's" : isSpecial(row, index) ? "special" : "";
    const kind = words ? make("span", { class: "chip" }, words) : null;
    const text = make("code", { "data-column": "token" }, heat.visiblePiece(row.pieces[index]).trimEnd() || "␠");
    const head = make("div", { class: "head" }, text, kind, make("span", { class: "where" }, where));
    return { place: { ...place, index }, content: [head, make("dl", {}, ...numbers)] };
  }

  function put(panel, token) {
    const box = token.getClientRects()[0];
    if (!box) return;
    const { offsetWidth: width, offsetHeight: height } = panel;
    const below = box.bottom + 6 + height <= window.innerHeight;
    // A narrow page has it at an edge (heat.css); the upper one if it would hide the token at the lower.
    panel.dataset.at = box.bottom + height + 16 > window.innerHeight ? "top" : "bottom";
    if (window.matchMedia(NARROW).matches) return panel.removeAttribute("style");
    panel.style.left = `${Math.max(8, Math.min(box.left, window.innerWidth - width - 8))}px`;
    panel.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - height - 6)}px`;
  }

  function show(panel, token) {
    const { place, content } = panelOf(token);
    panel.replaceChildren(...content);
    for (const [name, value] of Object.entries(place)) panel.dataset[name] = value;
    panel.hidden = false;
    put(panel, token);
  }

  function tokenAt(event) {
    return event.target instanceof Element ? event.target.closest(".tokens > .token") : null;
  }

  /** The token in focus, if one is. */
  function focused(container) {
    const token = document.activeElement && document.activeElement.closest(".tokens > .token");
    return token && container.contains(token) ? token : null;
  }

  function settle(container, panel) {
    const token = focused(container);
    if (token) show(panel, token);
    else panel.hidden = true;
  }

  function lineBeside(token, direction) {
    const side = direction < 0 ? "previousElementSibling" : "nextElementSibling";
    const top = token.getClientRects()[0].top;
    let next = token[side];
    while (next && Math.abs(next.getClientRects()[0].top - top) < 4) next = next[side];
    if (!next) return null;
    return nearestOnLine(next, token.getClientRects()[0].left, side);
  }

  function nearestOnLine(first, left, side) {
    const distance = (token) => Math.abs(token.getClientRects()[0].left - left);
    const top = first.getClientRects()[0].top;
    let best = first;
    for (let next = first; next && Math.abs(next.getClientRects()[0].top - top) < 4; next = next[side]) {
      if (distance(next) < distance(best)) best = next;
    }
    return best;
  }

  const MOVES = {
    ArrowRight: (token) => token.nextElementSibling,
    ArrowLeft: (token) => token.previousElementSibling,
    ArrowDown: (token) => lineBeside(token, 1),
    ArrowUp: (token) => lineBeside(token, -1),
    Home: (token) => token.parentElement.firstElementChild,
    End: (token) => token.parentElement.lastElementChild,
  };

  function onKey(event) {
    const token = tokenAt(event);
    if (!token || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") token.blur();
    if (!(event.key in MOVES)) return;
    event.preventDefault();
    const next = MOVES[event.key](token);
    if (next) next.focus();
  }

  function onFocus(panel, event) {
    const token = tokenAt(event);
    if (!token) return;
    for (const other of token.parentElement.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    token.tabIndex = 0;
    token.setAttribute("aria-describedby", panel.id);
    show(panel, token);
  }

  function onLeave(container, panel, event) {
    const token = tokenAt(event);
    const next = event.relatedTarget instanceof Element ? event.relatedTarget.closest(".tokens > .token") : null;
    if (!token || next) return;
    settle(container, panel);
  }

  function onBlur(panel, event) {
    const token = tokenAt(event);
    if (!token) return;
    token.removeAttribute("aria-describedby");
    panel.hidden = true;
  }

  /** Shows the numbers of the token that is pointed at, tapped or in focus. */
  function watch(container) {
    const panel = make("div", { class: "rollouts-numbers", id: "rollouts-numbers", role: "tooltip", hidden: true });
    container.append(panel);
    container.addEventListener("pointerover", (event) => {
      const token = tokenAt(event);
      if (token) show(panel, token);
    });
    container.addEventListener("pointerout", (event) => onLeave(container, panel, event));
    container.addEventListener("focusin", (event) => onFocus(panel, event));
    container.addEventListener("focusout", (event) => onBlur(panel, event));
    container.addEventListener("keydown", onKey);
    document.addEventListener("scroll", () => settle(container, panel), { capture: true, passive: true });
  }

  browser.tokens = { draw, recolour, legend, watch };
})(window.groupwise);
