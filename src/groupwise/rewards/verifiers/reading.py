"""Reader of answers: a text's kind and parts.

    text -> `spelled` -> `read` -> Answer(kind, parts) -> `same.Judge` -> right or wrong

Each reader knows one kind; the first that reads a text has it. A text that none reads is a formula: it is compared
letter by letter, so that nothing in it is overlooked.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from groupwise.rewards.verifiers import formula, kinds, several
from groupwise.rewards.verifiers.kinds import INFINITE, Answer, Kind, Read, is_closed, is_constant, name_of, part_of
from groupwise.rewards.verifiers.numerals import measure
from groupwise.rewards.verifiers.several import all_but, as_interval, split
from groupwise.rewards.verifiers.spelling import outer, spelled


@lru_cache(maxsize=8192)
def read(text: str) -> Answer:
    r"""Read the answer that a text is.

    >>> [str(read(text).kind) for text in ("1,000", "x+1", "x + y = 5", "x < 3", r"\{1, 2\}", "(1, 2)", "1, 2")]
    ['number', 'expression', 'equation', 'interval', 'set', 'tuple', 'list']
    >>> [str(read(text).kind) for text in ("11:30 a.m.", r"3 \pmod 5", "2516_8", "(B) 12", "Evelyn", "f'(x)")]
    ['time of day', 'congruence', 'number in a base', 'letter of an option', 'words', 'formula']
    """
    if said := date(text):
        return said
    measured = measure(text)
    if measured is not None:
        name = kinds.name_of(spelled(outer(text)).rpartition("=")[0]) if measured.name else ""
        letters = (
            str(measured.value)
            if measured.unit is None and not measured.words
            else " ".join(formula.tokens(spelled(text)))
        )
        if name or not measured.name:
            return Answer(Kind.NUMBER, letters, name, number=measured.value, unit=measured.unit, words=measured.words)
    text = spelled(text)
    letters = " ".join(formula.tokens(text))
    if "\\not" in text.replace("\\notin", ""):
        return Answer(Kind.FORMULA, letters)
    for reader in _READERS:
        if answer := reader(text, read):
            return replace(answer, letters=answer.letters or letters)
    return Answer(Kind.FORMULA, letters)


_LETTER = re.compile(r"\(([A-Z])\)|([A-Z])(?=[.):]\s?\S)[.):]|([A-Z])")

_JOINS = re.compile(r"[-+*/^=<>_!'(,|]|\\(?!text|frac|sqrt|pi|\$|infty)[A-Za-z]|[a-z]\b")


def letter(text: str, read: Read) -> Answer | None:
    """Read `B`, `(B)`, `(B) 12`, `B. 12`: the letter of an option, and what stands behind it."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip()
    match = _LETTER.match(plain)
    if match is None:
        return None
    behind = plain[match.end() :].strip()
    letter = match.group(1) or match.group(2) or match.group(3)
    if not behind:
        return Answer(Kind.LETTER, letter, mark=letter)
    if match.group(3) or _JOINS.match(behind):
        return None
    value = re.sub(rf"^(?:\\text\{{)?\s*\(?{letter}[.):]*\s*(?:\}})?\s*", "", text)
    value = value if value.count("{") == value.count("}") else behind
    return Answer(Kind.LETTER, parts=(read(value),), mark=letter)


_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s?(?:o'clock)?\s?(a\.?m\.?|p\.?m\.?)?", re.IGNORECASE)


def time_of_day(text: str, read: Read) -> Answer | None:
    """Read hour, minute and half of the day, written on the clock of 24 hours if the half is known."""
    plain = re.sub(r"\\text\{([^{}]*)\}|\{:\}", lambda match: match.group(1) or ":", text)
    plain = re.sub(r"\s+", " ", re.sub(r"\s*:\s*", ":", plain)).strip()
    match = _TIME.fullmatch(plain)
    if match is None or not (match.group(2) or match.group(4) or "clock" in plain.lower()):
        return None
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    half = (match.group(4) or "").lower().replace(".", "")
    if hour > (12 if half else 24) or minute > 59 or second > 59 or (half and hour == 0):
        return None
    if half:
        hour = hour % 12 + 12 * (half == "pm")
    parts = tuple(read(part) for part in match.groups()[:3] if part)
    known = "half" if half or hour > 12 or hour == 0 else ""
    return Answer(Kind.TIME, f"{hour:02} : {minute:02} : {second:02}", parts=parts, mark=known)


#: The months, which are known by three letters.
_MONTHS = re.findall(r"\w+", "january february march april may june july august september october november december")
#: With a capital letter: `12 march` counts.
_MONTH = "|".join(rf"{month[:3].title()}(?:{month[3:]})?" for month in _MONTHS)
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_DATE = re.compile(rf"(?:the\s)?(?:{_DAY}\s(?:of\s)?({_MONTH})|({_MONTH})\.?\s(?:the\s)?{_DAY})\.?(?:,?\s(\d{{4}}))?")


def date(text: str) -> Answer | None:
    """Read a day and its month, in either order, with its year or without: words, the month first.

    >>> [date(text).letters for text in ("4 July", "July 4th", "the 4th of July, 1776")], date("14 eggs")
    (['july 4', 'july 4', 'july 4 1776'], None)
    """
    match = _DATE.fullmatch(" ".join(re.sub(r"\\text\{([^{}]*)\}|[$~]|\\ ", r" \1 ", text).split()))
    if match is None:
        return None
    day, month = match[1] or match[4], (match[2] or match[3])[:3].lower()
    whole = next(name for name in _MONTHS if name.startswith(month))
    return Answer(Kind.TEXT, " ".join(filter(None, (whole, day.lstrip("0"), match[5]))))


_MODULUS = re.compile(
    r"(.+?)\s*(?:\(\s*\\?(?:text\{)?(?:bmod|mod)\}?\s*(.+?)\)|\\[pb]?mod\s*(?:\{(.+)\}|(.+))|(?:\\text\{)?\(?mod\}?\s*([^)]+)\)?)"
)


def congruence(text: str, read: Read) -> Answer | None:
    r"""Read a residue and its modulus: `x \equiv 3 \pmod 5`, `3 \pmod{5}`, `3 mod 5`."""
    text = re.sub(r"\\text\{\s*\(?\s*mod\s*\}", "mod ", re.sub(r"\\text\{(\(?mod \w+\)?)\}", r"\1", text))
    match = _MODULUS.fullmatch(text)
    modulus = next((group for group in match.groups()[1:] if group), "").strip(" ()") if match else ""
    if match is None or not re.fullmatch(r"[\w+*^ -]+", modulus):
        return None
    name, sign, residue = match.group(1).strip().rpartition("\\equiv")
    if not sign:
        name, _, residue = match.group(1).rpartition("=")
    if not name and "\\bmod" in text and residue.strip().isdigit() and modulus.isdigit() and int(modulus):
        residue = str(int(residue) % int(modulus))  # the operator has a value
    values, mark, left = read(residue), " ".join(formula.tokens(modulus)), " ".join(formula.tokens(name))
    if name and not name_of(name) and not is_closed(name):  # a condition for letters in it, and no residue
        return Answer(Kind.FORMULA, f"{left} \\equiv {values.letters} \\pmod {mark}")
    return Answer(Kind.CONGRUENCE, name=left, parts=(values,), mark=mark)


_WORDS_FOR_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "sixteen": 16,
}  # fmt: skip
_BASE = re.compile(r"(-?)\(?([0-9A-F][0-9A-F ]*)\)?_\{?\(?(?:base)?([a-z]+|\d{1,2})\)?\}?")


def in_a_base(text: str, read: Read) -> Answer | None:
    """Read digits and the base that they are written in."""
    text = re.sub(r"(\w+) (?:\\text\{)?(?:in |\()*base\}? ?(\w+)\)?\}?", r"\1_{\2}", text)
    match = _BASE.fullmatch(re.sub(r"\\text\{([^{}]*)\}|\s+", r"\1", text))
    if match is None:
        return None
    base = _WORDS_FOR_BASES.get(match.group(3)) or (int(match.group(3)) if match.group(3).isdigit() else 0)
    digits = match.group(2).replace(" ", "")
    alone = len(digits) == 1 and not digits.isdigit()
    if not 2 <= base <= 36 or alone or any(int(digit, 36) >= base for digit in digits):
        return None
    number = match.group(1) + digits
    return Answer(Kind.BASE, f"{number} _ {base}", mark=str(base), parts=(read(number),))


_TURNED = {"<": ">", ">": "<", "\\leq": "\\geq", "\\geq": "\\leq"}

_RELATION = re.compile(
    r"<|>|=|\\(?:leq|geq|neq|in|approx|equiv|to|notin|sim|subset|subseteq|cong|mapsto|implies|iff|Rightarrow|perp|parallel|propto)(?![A-Za-z])"
)


def relation(text: str, read: Read) -> Answer | None:
    """Read sides and the signs between them."""
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
    """Read `name = value`, a calculation, or an equation of two sides."""
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
        coordinates = {"x", "y", "z"}
        others = (coordinates - {name}) & set(value.letters.split())
        if name in coordinates and value.one_value and others:  # `y = 2x + 1` is an equation, no value with a name
            return Answer(Kind.EQUATION, name=name, parts=(read(left), value), mark="=")
        if value.kind in (Kind.EQUATION, Kind.INEQUALITY):
            return None
        return replace(value, name=name)
    if len(sides) > 2:
        return None
    parts = part_of(left, read), part_of(right, read)
    return Answer(Kind.EQUATION, parts=parts, mark="=") if all(part.one_value for part in parts) else None


def _chain(sides: list[str], signs: list[str], read: Read) -> Answer | None:
    """Read an inequality, which of one symbol between bounds is an interval."""
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
        return Answer(Kind.INTERVAL, name=name_of(sides[at]), parts=(low, high), mark=opened + closed)
    return Answer(Kind.INEQUALITY, parts=tuple(parts), mark=" ".join(signs)) if len(sides) == 2 else None


def _not_equal(sides: list[str], read: Read) -> Answer | None:
    r"""Read `x \\neq 3`: all numbers but one."""
    for name, number in (sides, sides[::-1]):
        if name_of(name) and not is_constant(read(name)) and read(number).number is not None:
            return replace(all_but([read(number)]), name=name_of(name))
    return None


_READERS: tuple[Callable[[str, Read], Answer | None], ...] = (
    letter,
    time_of_day,
    congruence,
    in_a_base,
    several.set_of,
    several.matrix,
    several.side_by_side,
    several.union,
    several.entries_of,
    relation,
    several.tuple_of,
    several.ratio,
    kinds.expression,
    kinds.words_of,
)
