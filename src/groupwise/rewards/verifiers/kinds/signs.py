"""Answers that are told by a sign of their own: the letter of an option, a time, a residue, a number in a base."""

import re

from groupwise.rewards.verifiers import formula
from groupwise.rewards.verifiers.kinds.answer import Answer, Kind, Read
from groupwise.rewards.verifiers.kinds.values import is_closed, name_of

_LETTER = re.compile(r"\(([A-Z])\)|([A-Z])(?=[.):]\s?\S)[.):]|([A-Z])")

_JOINS = re.compile(r"[-+*/^=<>_!'(,|]|\\(?!text|frac|sqrt|pi|\$|infty)[A-Za-z]|[a-z]\b")


def letter(text: str, read: Read) -> Answer | None:
    """`B`, `(B)`, `(B) 12`, `B. 12`: the letter of an option, and what stands behind it."""
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
    return Answer(Kind.LETTER, "", parts=(read(value),), mark=letter)


_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s?(?:o'clock)?\s?(a\.?m\.?|p\.?m\.?)?", re.IGNORECASE)


def time_of_day(text: str, read: Read) -> Answer | None:
    """Hour, minute and half of the day, written on the clock of 24 hours where the half is known."""
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
    """A day and its month, in either order, with its year or without: words, the month first.

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
    r"""A residue and its modulus: `x \equiv 3 \pmod 5`, `3 \pmod{5}`, `3 mod 5`."""
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
    return Answer(Kind.CONGRUENCE, "", left, (values,), mark)


_WORDS_FOR_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "sixteen": 16,
}  # fmt: skip
_BASE = re.compile(r"(-?)\(?([0-9A-F][0-9A-F ]*)\)?_\{?\(?(?:base)?([a-z]+|\d{1,2})\)?\}?")


def in_a_base(text: str, read: Read) -> Answer | None:
    """Digits and the base that they are written in."""
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
