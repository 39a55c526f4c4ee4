"use strict";

// What the tokens of a completion can be coloured by, and the numbers behind the colours. Touches no element.
(function (groupwise) {
  // from    the run's columns that this one is computed of; without it the column is the run's own
  // centre  the value that has no colour, on a scale that goes both ways; left out: 0 if a number is negative
  // ends    a fixed scale, coloured from its high end down: what is low is what one looks for
  // words   what the two ends of the scale mean
  const COLUMNS = [
    { name: "log_ratio", label: "log-ratio", centre: 0, words: ["less likely now", "more likely now"] },
    { name: "advantage", label: "advantage", centre: 0, words: ["pushed down", "pushed up"] },
    { name: "share", label: "share passed", ends: [0, 1], words: ["clipped", "passes"] },
    { name: "entropy", label: "entropy", words: ["sure", "unsure"] },
    {
      name: "surprise",
      label: "surprise (-logp_old)",
      from: ["logp_old"],
      of: (old) => -old,
      words: ["expected", "surprising"],
    },
    {
      name: "engine_gap",
      label: "engine gap (logp_old - logp_engine)",
      from: ["logp_old", "logp_engine"],
      of: (old, engine) => old - engine,
      centre: 0,
      words: ["engine higher", "learner higher"],
    },
    {
      name: "reference_gap",
      label: "reference gap (logp_old - logp_ref)",
      from: ["logp_old", "logp_ref"],
      of: (old, reference) => old - reference,
      centre: 0,
      words: ["reference higher", "policy higher"],
    },
    { name: "value", label: "value", centre: 0, words: ["low", "high"] },
    { name: "returns", label: "returns", centre: 0, words: ["low", "high"] },
    { name: "kl", label: "KL (to the reference)", words: ["near", "far"] },
    { name: "correction", label: "correction", centre: 1, words: ["weighs less", "weighs more"] },
    { name: "step_score", label: "score of the step", centre: 0, words: ["low", "high"] },
  ];

  // Told of a token, but not coloured by: surprise and the gaps say the same more plainly.
  const TOLD = [
    { name: "ratio", label: "ratio", from: ["log_ratio"], of: Math.exp },
    { name: "logp_old", label: "logp_old" },
    { name: "logp_engine", label: "logp_engine" },
    { name: "logp_ref", label: "logp_ref" },
    { name: "logp_live", label: "logp_live" },
  ];

  const TOLD_IN_ORDER = [
    "log_ratio", "ratio", "advantage", "share", "entropy", "surprise", "logp_old", "logp_engine", "engine_gap",
    "logp_ref", "reference_gap", "logp_live", "value", "returns", "kl", "correction", "step_score",
  ];

  const KNOWN = new Map([...COLUMNS, ...TOLD].map((column) => [column.name, column]));

  function columnOf(name) {
    return KNOWN.get(name) || { name, label: name.replaceAll("_", " "), words: ["low", "high"] };
  }

  function has(row, column) {
    return (column.from || [column.name]).every((name) => name in row.columns);
  }

  function valueAt(row, column, index) {
    const inputs = (column.from || [column.name]).map((name) => row.columns[name][index] ?? null);
    if (inputs.includes(null)) return null;
    return column.of ? column.of(...inputs) : inputs[0];
  }

  /** The column's number for each token of a row; null is a gap. */
  function valuesOf(row, column) {
    if (!has(row, column)) return row.pieces.map(() => null);
    return row.pieces.map((_, index) => valueAt(row, column, index));
  }

  function othersIn(rows) {
    const names = new Set(rows.flatMap((row) => Object.keys(row.columns)));
    return [...names].filter((name) => !KNOWN.has(name)).map(columnOf);
  }

  /** The columns that tokens of these rows can be coloured by. */
  function columnsOf(rows) {
    const told = rows.filter((row) => row.pieces.length);
    return [...COLUMNS, ...othersIn(told)].filter((column) => told.some((row) => has(row, column)));
  }

  /** All numbers of one token, in the order of the panel: [column, number or null]. */
  function numbersOf(row, index) {
    const columns = [...TOLD_IN_ORDER.map(columnOf), ...othersIn([row])].filter((column) => has(row, column));
    return columns.map((column) => [column, valueAt(row, column, index)]);
  }

  function extremes(lists) {
    let low = Infinity;
    let high = -Infinity;
    for (const list of lists) {
      for (const value of list) {
        if (value === null) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    return low > high ? null : [low, high];
  }

  /** How numbers become colours: kind, its two ends, and level(number) in [-1, 1]. Null: there are no numbers. */
  function scaleOf(column, lists) {
    const found = extremes(lists);
    if (!found) return null;
    if (column.ends) return fallingScale(column.ends);
    const centre = column.centre ?? (found[0] < 0 ? 0 : null);
    return centre === null ? risingScale(found[1]) : divergingScale(centre, found);
  }

  function fallingScale([low, high]) {
    const level = (value) => bounded((high - value) / (high - low));
    return { kind: "falling", ends: [low, high], flat: false, level };
  }

  function risingScale(high) {
    return { kind: "rising", ends: [0, high], flat: !high, level: (value) => (high ? bounded(value / high) : 0) };
  }

  function divergingScale(centre, [low, high]) {
    const reach = Math.max(high - centre, centre - low);
    const level = (value) => (reach ? bounded((value - centre) / reach) : 0);
    return { kind: "diverging", ends: [centre - reach, centre + reach], flat: !reach, level };
  }

  function bounded(level) {
    return Math.min(1, Math.max(-1, level));
  }

  /** The first column in which something is to be seen; the first of all if none has it. */
  function preferred(columns, rows, wanted) {
    const drawn = (column) => {
      const scale = scaleOf(column, rows.map((row) => valuesOf(row, column)));
      return scale !== null && !scale.flat;
    };
    return columns.find((column) => column.name === wanted) || columns.find(drawn) || columns[0];
  }

  /** A number with the digits that a float32 has. */
  function exact(value) {
    return value === null ? "no number" : String(Number(value.toPrecision(7)));
  }

  /** A number to read at a glance. */
  function brief(value, digits = 4) {
    return value === null ? "none" : String(Number(value.toPrecision(digits)));
  }

  const PICTURED = /[\u0000-\u0008\u000b-\u001f\u007f]/g;
  const NAMED = /[\u0080-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]/g;

  function picture(character) {
    const code = character.charCodeAt(0);
    return String.fromCharCode(code === 0x7f ? 0x2421 : 0x2400 + code);
  }

  function named(character) {
    return `⟨U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  }

  /** A text in which what would be invisible, or would turn the line around, is seen. Newlines and tabs stay. */
  function visible(text) {
    return text.replace(PICTURED, picture).replace(NAMED, named);
  }

  /** A token's text: also its newlines and tabs are seen, and newlines still break the line. */
  function visiblePiece(piece) {
    return piece === "" ? "⟨empty⟩" : visible(piece).replaceAll("\t", "␉").replaceAll("\n", "↵\n");
  }

  groupwise.browser = {
    heat: { columnOf, columnsOf, valuesOf, numbersOf, scaleOf, preferred, exact, brief, visible, visiblePiece },
  };
})(window.groupwise);
