"""Answers with a relation between their sides: equations, named values, inequalities."""

import re
from dataclasses import replace

from groupwise.rewards.verifiers.kinds.answer import INFINITE, Answer, Kind, Read
from groupwise.rewards.verifiers.kinds.many import split
from groupwise.rewards.verifiers.kinds.sets import all_but, as_interval
from groupwise.rewards.verifiers.kinds.values import is_closed, is_constant, name_of, part_of

_TURNED = {"<": ">", ">": "<", "\\leq": "\\geq", "\\geq": "\\leq"}

_RELATION = re.compile(
    r"<|>|=|\\(?:leq|geq|neq|in|approx|equiv|to|notin|sim|subset|subseteq|cong|mapsto|implies|iff|Rightarrow|perp|parallel|propto)(?![A-Za-z])"
)


def relation(text: str, read: Read) -> Answer | None:
    """Sides and the signs between them."""
    sides = split(text, _RELATION)
    if sides is None or len(sides) < 2 or not all(side for side, _ in sides):
        return None
    signs = [sign for _, sign in sides[:-1]]
    texts = [side for side, _ in sides]
    if set(signs) <= {"="} or (len(sides) == 2 and signs == ["\\approx"] and name_of(texts[0])):
        return _equation(texts, read)
    if signs[-1] == "\\approx" and set(signs[:-1]) <= {"="}:
        exact = _equation(texts[:-1], read) if len(texts) > 2 else read(texts[0])
        return replace(exact, parts=(read(texts[-1]),)) if exact and exact.one_value else None
    if signs == ["\\neq"]:
        return _not_equal(texts, read)
    if signs in (["\\in"], ["\\to"]) and name_of(texts[0]):
        values = read(texts[1])
        named = values.kind in (Kind.INTERVAL, Kind.UNION, Kind.SET) or as_interval(values) is not None
        return replace(as_interval(values) or values, name=name_of(texts[0])) if named and signs == ["\\in"] else None
    if set(signs) <= {"<", "\\leq"} or set(signs) <= {">", "\\geq"}:
        return _chain(texts, signs, read)
    return None


def _equation(sides: list[str], read: Read) -> Answer | None:
    """`name = value`, a calculation, or an equation of two sides."""
    left, right = sides[0], sides[-1]
    if len(sides) == 2 and not name_of(left) and name_of(right) and is_closed(left):
        left, right = right, left
    name = name_of(left)
    between = sides[1:-1]
    if (name or (is_closed(left) and is_closed(right))) and not any(name_of(side) for side in between):
        value = part_of(right, read)
        plain = [part.number for part in map(read, sides) if part.number is not None and not part.name]
        if not name and len(plain) == len(sides) and len(set(plain)) > 1:
            return None
        derived = re.match(r"\\frac \{ d (?:\^ \{ \d \} )?([a-z])", name)
        if derived and derived.group(1) in value.letters.split():
            return None
        if name in ("x", "y", "z") and _curve(name, value):
            return Answer(Kind.EQUATION, "", name, (read(left), value), "=")
        if value.kind in (Kind.EQUATION, Kind.INEQUALITY):
            return None
        return replace(value, name=name)
    if len(sides) > 2:
        return None
    parts = part_of(left, read), part_of(right, read)
    return Answer(Kind.EQUATION, "", "", parts, "=") if all(part.one_value for part in parts) else None


def _curve(name: str, value: Answer) -> bool:
    """Whether `y = 2x + 1` relates the coordinates x, y, z: then it is an equation, and no value with a name."""
    return value.one_value and not ({"x", "y", "z"} - {name}).isdisjoint(value.letters.split())


def _chain(sides: list[str], signs: list[str], read: Read) -> Answer | None:
    """An inequality; of one symbol between bounds it is an interval."""
    if signs[0] in (">", "\\geq"):
        sides, signs = sides[::-1], [_TURNED[sign] for sign in signs[::-1]]
    parts = [part_of(side, read) for side in sides]
    if not all(part.one_value or part.infinite for part in parts):
        return None
    symbols = [place for place, side in enumerate(sides) if name_of(side) and not is_constant(parts[place])]
    bounds = [side for place, side in enumerate(sides) if place not in symbols]
    if len(symbols) == 1 and (symbols == [1] if len(sides) == 3 else len(sides) == 2 and is_closed(bounds[0])):
        at = symbols[0]
        low = parts[at - 1] if at else INFINITE[0]
        high = parts[at + 1] if at + 1 < len(sides) else INFINITE[1]
        opened = "[" if at and signs[at - 1] == "\\leq" else "("
        closed = "]" if at + 1 < len(sides) and signs[at] == "\\leq" else ")"
        return Answer(Kind.INTERVAL, "", name_of(sides[at]), (low, high), opened + closed)
    return Answer(Kind.INEQUALITY, "", "", tuple(parts), " ".join(signs)) if len(sides) == 2 else None


def _not_equal(sides: list[str], read: Read) -> Answer | None:
    r"""`x \\neq 3`: all numbers but one."""
    for name, number in (sides, sides[::-1]):
        if name_of(name) and not is_constant(read(name)) and read(number).number is not None:
            return replace(all_but([read(number)]), name=name_of(name))
    return None
