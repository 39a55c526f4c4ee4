/* What every script of the page shares: the data, an element helper, numbers as text, and the theme. */
"use strict";

(function () {
  const page = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const SVG = "http://www.w3.org/2000/svg";
  const THEMES = ["auto", "dark", "light"];
  const themeListeners = [];
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");

  /** An element: attributes by name (a function is a listener: onclick), then children: nodes, text, or lists of them. */
  function element(tag, attributes, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  function drawing(tag, attributes, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    append(node, children);
    return node;
  }

  function append(node, children) {
    for (const child of children) {
      if (Array.isArray(child)) append(node, child);
      else if (child !== null && child !== undefined && child !== false) node.append(child);
    }
  }

  /** A number as a person reads it: 3 significant digits, whole numbers in full, thousands separated. */
  function number(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en-US");
    if (size >= 1e15 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    if (size >= 1000) return Math.round(value).toLocaleString("en-US");
    return value.toPrecision(3);
  }

  /** Kept between visits if the browser allows it, else for this page only. */
  function remembered(name, otherwise) {
    try {
      return window.localStorage.getItem("groupwise." + name) || otherwise;
    } catch {
      return otherwise;
    }
  }

  function remember(name, value) {
    try {
      window.localStorage.setItem("groupwise." + name, value);
    } catch {
      /* not allowed: then not remembered */
    }
  }

  let choice = THEMES.includes(remembered("theme", "auto")) ? remembered("theme", "auto") : "auto";

  function theme() {
    return choice;
  }

  function setTheme(name) {
    choice = name;
    remember("theme", name);
    showTheme(choice);
  }

  /** Sets the colours of the whole page; `name` may differ from the reader's choice for as long as it prints. */
  function showTheme(name) {
    const shown = name === "auto" ? (systemDark.matches ? "dark" : "light") : name;
    if (root.dataset.theme === shown) return;
    root.dataset.theme = shown;
    for (const listener of themeListeners) listener(shown);
  }

  function onTheme(listener) {
    themeListeners.push(listener);
  }

  /** The theme's colours as they are now, for what is not drawn by CSS. */
  function colours() {
    const style = window.getComputedStyle(root);
    const read = (name) => style.getPropertyValue("--" + name).trim();
    const named = ["text", "muted", "surface", "background", "line", "accent", "good", "warn", "bad"];
    const found = Object.fromEntries(named.map((name) => [name, read(name)]));
    found.series = [1, 2, 3, 4, 5, 6, 7, 8].map((index) => read("series-" + index));
    found.font = window.getComputedStyle(document.body).fontFamily;
    return found;
  }

  systemDark.addEventListener("change", () => showTheme(choice));
  showTheme(choice);

  window.groupwise = {
    page, element, drawing, number, colours, onTheme, theme, setTheme, showTheme, THEMES, remembered, remember,
    several: page.runs.length > 1,
  };
})();
