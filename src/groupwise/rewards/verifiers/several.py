r"""Answers of several parts: sets, intervals, tuples, matrices, lists, quantities of two units, ratios."""

import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from groupwise.rewards.verifiers import formula
from groupwise.rewards.verifiers.kinds import INFINITE, Answer, Kind, Read, name_of, part_of, words_of
from groupwise.rewards.verifiers.numerals import Unit


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


_OPENS = re.compile(r"\\\{|\\l(?:angle|floor|ceil)(?![A-Za-z])|\\begin(?![A-Za-z])|[({\[]")
_CLOSES = re.compile(r"\\\}|\\r(?:angle|floor|ceil)(?![A-Za-z])|\\end(?![A-Za-z])|[)}\]]")
COMMA = re.compile(
    r"[,;]|\\text\{\s*(?:,|,?\s*(?:and|or)\s*,?)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
    r"|\\(?:lor|land)(?![A-Za-z])|\\\\|&"
)
_NEVER = re.compile(r"(?!)")


def split(text: str, at: re.Pattern[str]) -> list[tuple[str, str]] | None:
    r"""Split a text -> (part, what stands behind it) for each part between matches outside of brackets; None if those
    do not fit.

    >>> split("(1, 2), 3", COMMA)
    [('(1, 2)', ','), ('3', '')]
    """
    parts, depth, begin, place = [], 0, 0, 0
    while place < len(text):
        if opened := _OPENS.match(text, place):
            depth, place = depth + 1, opened.end()
        elif closed := _CLOSES.match(text, place):
            depth, place = depth - 1, closed.end()
            if depth < 0:
                return None
        elif depth == 0 and (found := at.match(text, place)):
            parts.append((text[begin:place].strip(), found.group()))
            begin = place = found.end()
        else:
            command = re.compile(r"\\[A-Za-z]+|\\.|[A-Za-z]+|.", re.DOTALL).match(text, place)
            place = command.end() if command else place + 1
    return None if depth else [*parts, (text[begin:].strip(), "")]


def inside_of(text: str, opening: str, ending: str) -> str | None:
    """Return what one pair of brackets around all of a text holds; None if they are not one pair, or not there."""
    inside = text[len(opening) : -len(ending)]
    if not (text.startswith(opening) and text.endswith(ending) and len(text) >= len(opening) + len(ending)):
        return None
    return inside.strip() if split(inside, _NEVER) is not None else None


def entries_in(text: str) -> list[tuple[str, str]] | None:
    """List the entries of a list; if blanks stand behind the commas between them, others are of thousands."""
    if re.search(r"[,;]\s", text):
        text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    entries = split(text, COMMA)
    if entries is None:
        return None
    return [(part, sign) for part, sign in entries if part]


def entries_of(text: str, read: Read) -> Answer | None:
    r"""Read entries between commas, `and`, `or`; also those of `\pm`."""
    if len(re.findall(r"\\(?:pm|mp)(?![A-Za-z])", text)) == 1 and not re.search(r"[,;]|\\text", text):
        return _both_signs(text, read)
    text = re.sub(r"&\s*(?==)", "", text) if "cases" in text or "aligned" in text else text
    text = re.sub(
        r"^\\begin\{(?:cases|aligned|array)\}(?:\{[lcr|]*\})?(.*)\\end\{(?:cases|aligned|array)\}$", r"\1", text
    )
    worded = re.fullmatch(r"\\text\{([^{}]*)\}", text)
    entries = entries_in(worded.group(1) if worded else text)
    if entries is None or len(entries) < 2:
        return None
    joined = {sign for _, sign in entries if sign}
    if "&" in joined:
        return None
    parts = _one_name([one for part, _ in entries for one in _signed(part, read)])
    if any(sign.startswith("\\l") for sign in joined) and not all(part.name or _related(part) for part in parts):
        # Between statements these are operators, whose order does not count where all are the same.
        ordered = f" {min(joined)} ".join(sorted(part.letters for part in parts))
        return Answer(Kind.FORMULA, ordered if len(joined) == 1 else "")
    if both := _both_bounds(parts, joined):
        return both
    names = {part.name for part in parts}
    if all("or" in sign for sign in joined) and all(map(_related, parts)):
        if len(names) > 1 or any(part.kind is not Kind.INTERVAL for part in parts):
            return Answer(Kind.FORMULA)
        return Answer(Kind.UNION, name=parts[0].name, parts=_unnamed(parts))
    if measures := _measures(parts):
        return measures
    if ranged := _with_range(parts, entries[-1][0]):
        return ranged
    words = [part for part in parts if part.kind is Kind.TEXT]
    if words and (len(words) < len(parts) or any(re.search(r"\d", part.letters) for part in words)):
        return words_of(text) or Answer(Kind.FORMULA)
    if any(part.kind is Kind.FORMULA and re.search(r"[A-Za-z] [A-Za-z] [A-Za-z]", part.letters) for part in parts):
        return Answer(Kind.FORMULA)
    name = names.pop() if len(names) == 1 else ""
    either = "or" in " ".join(joined)
    mark = "" if name or not all(part.name for part in parts) else "either" if either else "named"
    if any(map(_related, parts)):
        mark = "?" if either else "all of"
    return Answer(Kind.LIST, name=name, parts=_unnamed(parts) if name else tuple(parts), mark=mark)


def _unnamed(parts: list[Answer]) -> tuple[Answer, ...]:
    return tuple(replace(part, name="") for part in parts)


def _related(part: Answer) -> bool:
    """Tell whether an entry is an inequality, or an interval, which one may be."""
    return part.kind in (Kind.INTERVAL, Kind.INEQUALITY)


def _with_range(parts: list[Answer], last: str) -> Answer | None:
    r"""Read `\pi + 2k\pi, k \in \mathbb{Z}`: a value, and which values a letter in it takes."""
    ranged = re.fullmatch(r"([A-Za-z])\s?(?:\\in\s?\\mathbb\{[A-Z]\}|(?:\\text\{)?\s?is an integer\}?)", last)
    first = parts[0]
    said = " ".join(part.letters for part in (first, *first.parts)).split()
    if len(parts) != 2 or ranged is None or first.name == ranged.group(1) or ranged.group(1) not in said:
        return None
    return replace(first, mark=first.mark or last.replace(" ", ""))


def _one_name(parts: list[Answer]) -> list[Answer]:
    """Name entries: `x = 1, 2` names both; `x_1 = 1, x_2 = 2` numbers the solutions of one unknown."""
    if parts[0].name and all(not part.name and part.kind is parts[0].kind for part in parts[1:]):
        return [replace(part, name=parts[0].name) for part in parts]
    bare = {re.sub(r" _ \{ \d \}$", "", part.name) for part in parts}
    if len(bare) == 1 and all(re.search(r" _ \{ \d \}$", part.name) for part in parts):
        return [replace(part, name=next(iter(bare))) for part in parts]
    return parts


def _both_bounds(parts: list[Answer], joined: set[str]) -> Answer | None:
    """Read `x > 2 and x < 7`, which is the interval between."""
    if len(parts) != 2 or any("or" in sign for sign in joined) or parts[0].name != parts[1].name:
        return None
    if any(part.kind is not Kind.INTERVAL for part in parts):
        return None
    below, above = parts if parts[0].parts[1].infinite else parts[::-1]
    if not (below.parts[1].infinite and above.parts[0].infinite) or below.parts[0].infinite or above.parts[1].infinite:
        return None
    ends = (below.parts[0], above.parts[1])
    return Answer(Kind.INTERVAL, name=below.name, parts=ends, mark=below.mark[0] + above.mark[1])


def _signed(entry: str, read: Read) -> tuple[Answer, ...]:
    """Read an entry, or the two that one with a double sign stands for."""
    if len(re.findall(r"\\(?:pm|mp)(?![A-Za-z])", entry)) == 1 and (both := _both_signs(entry, read)).name == "":
        return both.parts
    return (part_of(entry, read),)


def _both_signs(text: str, read: Read) -> Answer:
    sign = r"\\(pm|mp)(?![A-Za-z])"
    plus, minus = (
        re.sub(rf"^{sign}|(?<=[=(]){sign}|{sign}", lambda match, put=put: put[match.group().endswith("mp")], text)
        for put in ("+-", "-+")
    )
    parts = [read(re.sub(r"(^|[=(]\s*)\+", r"\1", one.strip())) for one in (plus, minus)]
    return Answer(Kind.LIST, name=parts[0].name, parts=_unnamed(parts))


def _measures(parts: list[Answer]) -> Answer | None:
    """Add hours and minutes, feet and inches, degrees and minutes: several units of one kind are one quantity."""
    units = [part.unit for part in parts if part.number is not None and part.unit is not None]
    if len(units) < 2 or len(units) < len(parts) or len({one.measures for one in units}) > 1:
        return None
    if len({one.size for one in units}) < len(units):
        return None
    total = sum((part.number or 0) * one.size for part, one in zip(parts, units, strict=True))
    return Answer(Kind.MEASURES, number=Fraction(total), unit=Unit(units[0].measures, Fraction(1)))


_TWO_MEASURES = re.compile(r"(\d+(?:\.\d+)?\s?(?:\\text\{[^\d{}]+\}|[A-Za-z]+\.?))\s*(?=\d)")


def side_by_side(text: str, read: Read) -> Answer | None:
    """Read several units without a word between: 5 feet 6 inches."""
    parts = [part for part in _TWO_MEASURES.split(text) if part.strip()]
    return _measures([read(part) for part in parts]) if len(parts) > 1 else None


def ratio(text: str, read: Read) -> Answer | None:
    parts = split(text, re.compile(r":|\{:\}|\\colon|\\text\{to\}|(?<![A-Za-z])to(?![A-Za-z])")) or []
    if len(parts) < 2:
        return None
    values = tuple(read(part) for part, _ in parts)
    return Answer(Kind.RATIO, parts=values) if all(value.one_value for value in values) else None
