"""Answers in brackets: sets, tuples, intervals, unions of them, matrices."""

import re
from dataclasses import replace
from itertools import pairwise

from groupwise.rewards.verifiers import formula
from groupwise.rewards.verifiers.kinds.answer import INFINITE, Answer, Kind, Read
from groupwise.rewards.verifiers.kinds.many import COMMA, entries_in, inside_of, split
from groupwise.rewards.verifiers.kinds.values import name_of, part_of


def set_of(text: str, read: Read) -> Answer | None:
    r"""Read `\{1, 2\}`, which with a bar or colon is a condition: that of an interval, or a formula."""
    if text == "\\emptyset":
        return Answer(Kind.SET)
    plain = re.search(r",|\\in(?![A-Za-z]).*[|:]", text) is not None
    inside = inside_of(text, "\\{", "\\}") or (inside_of(text, "{", "}") if plain else None)
    if inside is None:
        return None
    conditions = split(inside, re.compile(r"[|:]")) or []
    if len(conditions) == 2:
        element, _, among = conditions[0][0].partition("\\in")
        name, holds = name_of(element), read(conditions[1][0])
        if (
            among.strip() in ("", "\\mathbb{R}")
            and holds.kind in (Kind.INTERVAL, Kind.UNION, Kind.INEQUALITY)
            and name
            and holds.name == name
        ):
            return replace(holds, letters="")
    if len(conditions) > 1:
        return Answer(Kind.FORMULA, " ".join(formula.tokens(text.replace(":", "|"))))
    entries = entries_in(inside)
    return None if entries is None else Answer(Kind.SET, parts=tuple(part_of(entry, read) for entry, _ in entries))


def tuple_of(text: str, read: Read) -> Answer | None:
    """Read `(1, 2)`, `[0, 1)`, `(5)`; two entries in other than round brackets, or one of them infinite, are an
    interval.
    """
    point = re.fullmatch(r"([A-Z])\s?(\([^()]*,[^()]*\))", text)
    if point and (entries := tuple_of(point.group(2), read)):
        return replace(entries, name=point.group(1), letters="") if entries.kind is Kind.TUPLE else None
    turned = re.fullmatch(r"\]([^\[\]]+)\[", text)
    if turned:
        text = f"({turned.group(1)})"
    angles = inside_of(text, "\\langle", "\\rangle")
    if angles is not None:
        text = f"({angles})"
    match = re.fullmatch(r"([(\[])(.*)([)\]])", text)
    if match is None or split(match.group(2), COMMA) is None:
        return None
    opened, inside, closed = match.groups()
    entries = split(inside, re.compile("[,;]")) or []
    parts = tuple(part_of(entry, read) for entry, _ in entries)
    if not all(entry for entry, _ in entries):
        return None
    if len(parts) == 1:
        return parts[0] if opened + closed == "()" else None
    ends = len(parts) == 2 and all(part.one_value or part.infinite for part in parts)
    if ends and (opened + closed != "()" or any(part.infinite for part in parts)):
        return Answer(Kind.INTERVAL, parts=parts, mark=opened + closed)
    return Answer(Kind.TUPLE, parts=parts, mark=opened + closed)


def as_interval(answer: Answer) -> Answer | None:
    """Turn a pair in round brackets into the open interval that it may be; an interval stays as it is."""
    if answer.kind is Kind.TUPLE and len(answer.parts) == 2 and answer.mark == "()":
        return replace(answer, kind=Kind.INTERVAL)
    return answer if answer.kind in (Kind.INTERVAL, Kind.UNION) else None


def union(text: str, read: Read) -> Answer | None:
    r"""Read intervals and sets with \cup between them; the real numbers are one interval."""
    if re.fullmatch(
        r"\\mathbb\{R\}|(?:\\text\{)?(?:all |the )?real numbers\}?|(?:\\text\{)?all reals\}?", text, re.IGNORECASE
    ):
        return Answer(Kind.INTERVAL, parts=INFINITE, mark="()")
    removed = re.fullmatch(r"\\mathbb\{R\}\s?(?:\\setminus|-|\\backslash)\s?(\\\{.*\\\})", text)
    if (
        removed
        and (numbers := set_of(removed.group(1), read))
        and all(part.number is not None for part in numbers.parts)
    ):
        return all_but(list(numbers.parts))
    operands = split(text, re.compile(r"\\c[ua]p(?![A-Za-z])")) or []
    if len(operands) == 2 and all(re.fullmatch("[A-Z]", part) for part, _ in operands):
        return Answer(Kind.FORMULA, operands[0][1].join(sorted(part for part, _ in operands)))
    parts = split(text, re.compile(r"\\cup(?![A-Za-z])"))
    if parts is None or len(parts) < 2 or not all(re.match(r"[(\[\]]|\\\{", part) for part, _ in parts):
        return None
    answers = [read(part) for part, _ in parts]
    intervals = [as_interval(one) or (one if one.kind is Kind.SET else None) for one in answers]
    if any(one is None for one in intervals):
        return None
    return Answer(Kind.UNION, parts=tuple(one for one in intervals if one))


def all_but(numbers: list[Answer]) -> Answer:
    """Make the real numbers without some: the intervals between them."""
    ends = [INFINITE[0], *sorted(numbers, key=lambda one: one.number or 0), INFINITE[1]]
    return Answer(Kind.UNION, parts=tuple(Answer(Kind.INTERVAL, parts=pair, mark="()") for pair in pairwise(ends)))


_MATRIX = re.compile(r"\\begin\{([bpBvV]?(?:small)?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)


def matrix(text: str, read: Read) -> Answer | None:
    """Read rows of entries; what stands between single or double bars is a determinant or a norm."""
    bare = re.sub(r"^[(\[]\s*(\\begin\{(?:array|matrix|smallmatrix)\}.*)[)\]]$", r"\1", text)
    match = _MATRIX.fullmatch(bare)
    if match is None or "\\begin" in match.group(2):
        return None
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", match.group(2)) if row.strip()]
    parts = [Answer(Kind.TUPLE, parts=tuple(part_of(entry.strip(), read) for entry in row.split("&"))) for row in rows]
    return Answer(Kind.MATRIX, parts=tuple(parts), mark=match.group(1)[0] if match.group(1)[0] in "vV" else "")
