r"""Numbers as people and models write them, with units, read exactly: `1,000`, `$18`, `\frac{3}{4}`, `18 dollars`.

Nothing is evaluated: a number is recognised as text and becomes a Fraction, so `10^10^10` costs nothing. A unit is read
as so many of the first of its kind, so that 1 m is 100 cm and never 1 km.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from groupwise.rewards.verifiers.spelling import RAISED, TYPESETTING, VULGAR, rewriter


class Unit(NamedTuple):
    """A unit: what it measures ("length^1 time^-1"), and how many of that kind's first unit it is."""

    measures: str
    size: Fraction


_PREFIXES = {
    "k": "1000", "M": "1e6", "G": "1e9", "c": "1/100", "d": "1/10", "m": "1/1000", "u": "1e-6", "μ": "1e-6",
    "n": "1e-9",
    "kilo": "1000", "mega": "1e6", "giga": "1e9", "centi": "1/100", "milli": "1/1000", "micro": "1e-6", "nano": "1e-9",
}  # fmt: skip
#: A quantity -> its metric units, symbols and words, which take prefixes.
_METRIC = {
    "length": "m meter metre", "mass": "g gram", "time": "s second", "volume": "l L liter litre", "energy": "J joule",
    "force": "N newton", "power": "W watt", "voltage": "V volt", "current": "A ampere", "frequency": "Hz hertz",
    "amount": "mol mole", "pressure": "Pa pascal", "resistance": "Ω ohm", "charge": "C coulomb", "bytes": "B byte",
}  # fmt: skip
#: The others, with their sizes.
_OTHER = {
    "length": "in inch inches=127/5000 ft foot feet=381/1250 yd yard=1143/1250 mi mile=201168/125",
    "mass": "oz ounce=45359237/1600000 lb pound=45359237/100000 ton tonne=1000000",
    "time": "sec=1 min minute=60 h hr hour=3600 day=86400 week=604800", "months": "month=1 yr year=12",
    "gallons": "gal gallon=1", "cups": "cup=1", "quarts": "qt quart=1", "pints": "pt pint=1",
    "calories": "cal calorie=1",
    "dollars": "$ dollar USD=1 ¢ cent=1/100", "euros": "€ euro EUR=1", "sterling": "£ GBP=1", "yen": "¥ yen JPY=1",
    "rupees": "₹ rupee INR=1", "angle": "° degree deg=1", "radians": "rad radian=1", "percent": "% percent=1",
    "kelvin": "K kelvin=1", "celsius": "°C=1", "fahrenheit": "°F=1", "bits": "bit=1",
    "amps": "amp=1",
}  # fmt: skip
_CELSIUS = re.compile(r"(?:degrees?|°)\s(celsius|fahrenheit)", re.IGNORECASE)
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISED = str.maketrans("¹²³⁻", "123-")
_PART = re.compile(
    r"\s*([/×·]|\\cdot\b)?\s*(?:(square|sq|cubic|cu)\.?\s)?([A-Za-zΩμ]+|°[CF]?|[%€£¥₹$¢])\.?"
    r"(?:\s?\^\s?\{?(-?[123])\}?|([⁻]?[¹²³])|([23])(?!\d))?"
)


def _units() -> dict[str, Unit]:
    units = {}
    for measures, words in _METRIC.items():
        for word in words.split():
            for prefix, size in {"": "1", **_PREFIXES}.items():
                if not prefix or (len(prefix) > 2) == (len(word) > 2):
                    units[prefix + word] = Unit(measures, Fraction(size))
    for measures, groups in _OTHER.items():
        for words, size in re.findall(r"([^=]+)=(\S+)\s?", groups):
            units |= {word: Unit(measures, Fraction(size)) for word in words.split()}
    plural = [*(word for word in units if len(word) > 2), "lb", "hr", "yr"]
    return units | {word + "s": units[word] for word in plural}


UNITS = _units()


@lru_cache(maxsize=2048)
def unit(text: str) -> Unit | None:
    """Return the unit that a text is; None if it has a word that is none.

    >>> unit("cm").size, unit("km/h") == unit("kilometers per hour"), unit("square feet") == unit("ft^2"), unit("eggs")
    (Fraction(1, 100), True, True, None)
    >>> unit("m/s^2") == unit("m s^{-2}"), unit("MJ") == unit("kJ")
    (True, False)
    """
    measures: dict[str, int] = {}
    text = _CELSIUS.sub(
        lambda degrees: "°" + degrees.group(1)[0].upper(), text.replace("per cent", "percent").replace("mph", "mi/h")
    )
    text, size, place = re.sub(r"\s+per\s+|(?<=[a-z])\s+an?\s+", "/", text.strip()), Fraction(1), 0
    while match := _PART.match(text, place):
        word = UNITS.get(match.group(3)) or (UNITS.get(match.group(3).lower()) if len(match.group(3)) > 2 else None)
        symbols = len(match.group(3)) <= 3 and match.group(3) != "in"
        if word is None or (place and not match.group(1) and not symbols):
            return None
        power = int((match.group(4) or match.group(5) or match.group(6) or "1").translate(_RAISED))
        power *= _POWERS.get(match.group(2) or "", 1) * (-1 if match.group(1) == "/" else 1)
        measures[word.measures] = measures.get(word.measures, 0) + power
        size, place = size * word.size**power, match.end()
    if not measures or place < len(text):
        return None
    return Unit(" ".join(f"{name}^{power}" for name, power in sorted(measures.items())), size)


#: No single answer is longer; more digits than this are not a number.
LONGEST = 100

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?![\d])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
#: Alone, a number may also have its groups of digits apart by blanks, as in India, or repeat its last decimals.
_ALONE = (
    r"(?:\d{1,3}(?: \d{3})+(?!\d)(?:\.\d+)?|\d{1,2}(?:,\d{2})+,\d{3}(?!\d)(?:\.\d+)?|\d*\.\d*\(\d{1,40}\)|"
    + _DECIMAL[3:]
)
_CURRENCY = r"(?P<currency>US\$|[$€£¥₹]|(?:USD|EUR|GBP|Rs\.?)(?=[\s\d]))"
_POWER = r"(?:[eE](?P<e>[+-]?\d{1,3})(?!\d)|\s?[×x*]\s?10\s?\^\s?\{?(?P<p>[+-]?\d{1,3})(?!\d)\}?)"


def _number(decimal: str) -> str:
    return (
        rf"(?P<sign>(?:(?<![\w)+-])[+-]\s?)?(?:{_CURRENCY}\s?)?(?:[+-])?)"
        rf"(?:(?:(?P<whole>\d{{1,9}})\s)?(?P<top>{_DECIMAL})\s?/\s?(?P<bottom>{_DECIMAL})"
        rf"|(?P<decimal>{decimal}){_POWER}?)"
    )


# A unit cannot change the value: no operator word, no part or remainder, no other half of an answer.
_NO_UNIT = frozenset(
    re.findall(
        r"\w+",
        "or and to of out plus minus times over mod not but is so if point pi sqrt sin cos tan log ln exp dot either "
        "maybe perhaps possibly half halves third thirds tenths hundredths thousandths k less fewer than greater "
        "except without squared cubed factorial remainder base am pm noon midnight yes no true false neither nor both "
        "infinity with i e bc bce modulo most least below above zero under beyond past fourths fifths sixths sevenths "
        "eighths ninths was were",
    )
)
#: A word for a size is a factor.
SIZES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip
_SIZE = re.compile(rf"\s?({'|'.join(SIZES)})s?\b(?:\s+of\b)?")
_UNIT = re.compile(
    r"(?P<sign>\s?(?:[%€£¥₹$¢]|°(?:\s?[CF]\b)?))?"
    r"(?P<words>(?:(?:\s|\s?/\s?|\s?×\s?|-)?[A-Za-zΩμ][A-Za-z']{0,19}\.?(?:\^\s?\{?-?[123]\}?|[²³23](?!\d)|[⁻][¹²³])?){0,5})"
)
_SAYS_NOTHING = frozenset(
    re.findall(r"\w+", "in of total a an the all each long wide tall high deep old per time altogether unit")
)
_WORD = re.compile(r"[A-Za-z][A-Za-z']*")
#: Letters that can be a word: two consonants behind a number are variables, unless they are a known unit.
_SAID = re.compile(r"(?=[A-Za-z']*[aeiouyAEIOU])[A-Za-z][A-Za-z']{2,}")
_READ = re.compile(_number(_ALONE))
_SCAN = re.compile(rf"(?<![\w.\\]){_number(_DECIMAL)}(?!(?:st|nd|rd|th)\b|\.?\d)")
#: The text before the equals sign of a number: a symbol, a function's value, an angle, or words.
_NAME = re.compile(
    r"(?:[A-Za-z]|\\(?!frac|sqrt|sin|cos|tan|ln|log|exp)[A-Za-z]+)(?:_\{[^{}=<>]{1,30}\}|_\w)?'{0,2}"
    r"(?:\s?\((?:[^()=<>]|\([^()]*\)){1,30}\))?"
    r"|m?\s?\\?(?:angle|triangle)\s?[A-Z]{1,3}|[A-Z]{2,4}|\|[A-Z]{2}\|"
    r"|(?=[^=]*[A-Za-z]{4}|[^=]*[A-Za-z]{3}\s|[^=]*\s[A-Za-z]{3}\b)(?:[A-Za-z][A-Za-z']*[\s:]+)*[A-Za-z]{2}[A-Za-z']*(?:[\s:]+[A-Za-z][A-Za-z']*)*:?"
)
_OPERATES = re.compile(
    r"\b(?:plus|minus|times|over|divided|squared|cubed|not|mod|sin|cos|tan|log|ln|exp|sqrt|max|min)\b", re.IGNORECASE
)

_SPELLED = str.maketrans({sign: f" {'/'.join(parts)}" for sign, parts in VULGAR.items()} | {
    "\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2248": "=", "⁄": "/", "’": "'",
    "℃": "°C", "℉": "°F",
})  # fmt: skip


_rewrite = rewriter(
    *TYPESETTING,
    (r"\\dot\s?\{?(\d)\}?(\d*)\\dot\s?\{?(\d)\}?", r"(\1\2\3)"),
    (r"10([⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda power: "10^" + power.group(1).translate(RAISED)),
    # A period that was seen often enough before the dots: once three times, two, three or six digits twice.
    (
        r"(?<![\d.])(\d*\.\d{0,20}?)(?:(\d)\2\2+|(\d{2,3}|\d{6})\3+)\s?(?:\.\.\.|…|\\[lc]?dots(?![A-Za-z]))",
        lambda match: f"{match.group(1)}({match.group(2) or match.group(3)})",
    ),
    (
        r"(?<![\d'_])\d{1,3}(?:'\d{3})+(?![\d'])|(?<![\w'])\d{1,3}(?:_\d{3})+(?!\w)",
        lambda match: re.sub("['_]", "", match[0]),
    ),
    (
        r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?(?![\d.,])",
        lambda match: match.group().replace(".", "").replace(",", "."),
    ),
    (
        r"\\(?:overline|bar|dot)\s?\{?(\d+)\}?(?:\.\.\.)?|((?:\d\u0305)+|\d\u0307)",
        lambda digits: f"({digits.group(1) or re.sub('[^0-9]', '', digits.group(2))})",
    ),
    (r"(?<=\d)(?:\{,\}|\\,|\\ |\\!,|\\thinspace\s?)(?=\d{3})", ","),
    (r"\\[,;: ]|~", " "),
    (r"\\([$%{}])", r"\1"),
    (r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|boldsymbol)\s?\{((?:[^{}]|\{[^{}]{0,9}\}){0,60})\}", r" \1"),
    (r"\\Omega(?![A-Za-z])|\\ohm(?![A-Za-z])", "Ω"),
    (r"\\mu(?![A-Za-z])\s?(?=[A-Za-z])", "μ"),
    (r"\\frac\s*\{\s*([A-Za-z]+)\s*\}\s*\{\s*([A-Za-z]+(?:\^?\d)?)\s*\}", r" \1/\2"),
    (r"\^\s?\{?\s?\\circ\s?\}?|\\degree\b|(?<=\d)\^\s?\{?\s*o\s*\}?(?![A-Za-z])|º", "°"),
    (r"\\(?:times|cdot)(?![A-Za-z])", "×"),
    (r"\\approx(?![A-Za-z])", "="),
    (r"(?<=\d)\s?\\[dt]?frac", r" \\frac"),
    (r"\\[dt]?frac\s?(\d)\s?(\d)(?!\d)", r"\1/\2"),
    (r"\\[dt]?frac\s?\{\s?(-?\d+)\s?\}\s?\{\s?(\d+)\s?\}", r"\1/\2"),
    (r"\\[()\[\]]|\*\*|__|`", " "),
    (r"[ \t]{2,}", " "),
)
#: The calculator's notes of GSM8K, and a sign that something is to be rewritten: most texts have none.
_NOTES = re.compile(r"<<[^<>\n]*>>")
_LATEX = re.compile(
    r"[\\{}^~`º⁰¹²³⁴-⁹⁺⁻\u0305\u0307*_\t'.…]"  # one set of signs, which is found fast; then what each needs around it
    r"(?:(?<=[^*_\t'.…])|(?<=\*)\*|(?<=_)_|(?<=\t)[ \t]|(?<=[ \t]\t)"
    r"|(?<=\d['_])\d|(?<=\d…)|(?<=\d\.)(?:\.\.|\d{3}\.\d))"
)
#: One sign at the end of a sentence; of several dots none is one.
_END = re.compile(r"[.,;:](?<![.,;:].)$")
_ORDINAL = re.compile(r"^\^?\{?\s?(?:st|nd|rd|th)\}?$")
#: Words directly before a number that are its sign, or say nothing; and a share in words.
_SAID_BEFORE = re.compile(r"^(?:(minus|negative)|exactly|just|only|a total of)\s+(?=[\d.$])", re.IGNORECASE)
_SHARE = re.compile(r"^(\d+) out of (\d+)$")


class Number(NamedTuple):
    """A number in a text: where it stands, and its value (None where it is too long or divides by zero)."""

    start: int
    end: int
    value: Fraction | None


def clean(text: str) -> str:
    r"""Spell digits, signs and units plainly that LaTeX and Unicode write in their own ways.

    >>> clean(r"\$1{,}000 \text{ dollars}"), clean(r"\dfrac{3}{4}"), clean("48/2 = <<48/2=24>>24")
    ('$1,000  dollars', '3/4', '48/2 = 24')
    """
    text = text.translate(_SPELLED)
    if "<<" in text:
        text = _NOTES.sub("", text)
    return _rewrite(text) if "  " in text or _LATEX.search(text) else text


class Measure(NamedTuple):
    """A number that is all of a text.

    value  what it is, its unit apart
    unit   None where it has none, or one that is not known
    words  what stands behind it and is no known unit: what is counted, or what becomes of it
    name   what stands before its equals sign
    """

    value: Fraction
    unit: Unit | None
    words: frozenset[str]
    name: str


def read(text: str) -> Fraction | None:
    r"""Read the number that is all of the text, a unit and a `name =` before it apart; None if it is anything else.

    The percent sign, currency signs and degrees are units: `10\%` is 10. A word for a size is a factor.

    >>> [str(read(text)) for text in ("1,000", "$18", "18.00", r"\frac{3}{4}", "x = -5 cm", "1.5e3", "2 1/2")]
    ['1000', '18', '18', '3/4', '-5', '1500', '5/2']
    >>> [str(read(text)) for text in ("1 234 567", "1,00,000", r"0.1\overline{6}", "0.(3)", "2 million", "10km")]
    ['1234567', '100000', '1/6', '1/3', '2000000', '10']
    >>> [read(text) for text in ("16, 17", "2x", "2ab", "2^5", "18 or 19", "5!", "x + y = 5", "")]
    [None, None, None, None, None, None, None, None]
    """
    measured = measure(text)
    return None if measured is None else measured.value


def measure(text: str) -> Measure | None:
    """Read the number that is all of the text, with its unit and its name; None if it is anything else.

    >>> measure("distance = 3 km").unit.size, measure("x + y = 3"), measure("3xy")
    (Fraction(1000, 1), None, None)
    """
    if len(text) > 2 * LONGEST:
        return None
    if text.startswith("{") and text.endswith("}") and "{" not in text[1:]:
        text = text[1:-1]
    text = _END.sub("", clean(text).strip()).lstrip("= ").strip()
    for sign in ("$$", "$", '"', "'"):
        if len(text) > 2 * len(sign) and text.startswith(sign) and text.endswith(sign):
            text = text[len(sign) : -len(sign)].strip()
    if said := _SAID_BEFORE.match(text):
        text = ("-" if said.group(1) else "") + text[said.end() :]
    if share := _SHARE.match(text):
        text = "/".join(share.groups())
    name, equals, rest = text.rpartition("=")
    if equals and not is_name(name):
        return None
    rest = rest.strip().removesuffix("$")
    match = _READ.match(rest)
    value = _value(match) if match else None
    if match is None or value is None:
        return None
    behind = rest[match.end() :]
    if ordinal := _ORDINAL.match(behind):
        behind = behind[ordinal.end() :]
    if size := _SIZE.match(behind):
        value, behind = value * SIZES[size.group(1)], behind[size.end() :]
    if behind and not is_unit(behind):
        return None
    currency = match.group("currency")
    found, words = _unit_and_words(behind)
    paid = unit(currency[-1]) if currency else None
    if paid and found and found.measures != paid.measures and not re.match(r"\s?/|\sper\b|\san?\b", behind):
        return None  # `$5%`
    return Measure(value, paid or found, words, name.strip())


@lru_cache(maxsize=2048)
def _unit_and_words(text: str) -> tuple[Unit | None, frozenset[str]]:
    """Find the known unit at the beginning of what stands behind a number, and the words that say more.

    >>> _unit_and_words(" dollars in total"), _unit_and_words(" red eggs")[1] == {"red", "egg"}
    ((Unit(measures='dollars^1', size=Fraction(1, 1)), frozenset()), True)
    """
    if (found := unit(text)) is not None:
        return found, frozenset()
    words = text.split()
    known = next((place for place in range(len(words), 0, -1) if unit(" ".join(words[:place])) is not None), 0)
    said = {word.lower().strip(".").removesuffix("s") for word in words[known:]}
    return unit(" ".join(words[:known])) if known else None, frozenset(said - _SAYS_NOTHING)


def is_name(text: str) -> bool:
    r"""Tell whether what stands before an equals sign only names what stands behind it.

    >>> [is_name(text) for text in ("x", "f(2)", "P(A)", r"\angle ABC", "Total cost", "a_1")]
    [True, True, True, True, True, True]
    >>> [is_name(text) for text in ("x + y", "2x", "|x|", r"\sin x", "xy", "x^2")]
    [False, False, False, False, False, False]
    """
    return len(text) <= LONGEST and _NAME.fullmatch(text.strip()) is not None and not _OPERATES.search(text)


def is_unit(text: str) -> bool:
    """Tell whether a text behind a number is a unit: it cannot change the value, and is not a product of variables.

    >>> [is_unit(text) for text in (" dollars", "km", "%", " cm^2", " miles per hour", "ab", "x", "-ab", " or 19")]
    [True, True, True, True, True, False, False, False, False]
    """
    match = _UNIT.fullmatch(text)
    if match is None:
        return False
    words = _WORD.findall(match.group("words"))
    if any(word.lower() in _NO_UNIT or word.lower() in SIZES for word in words):
        return False
    if unit(re.sub("^-", " ", text)) is not None:
        # One letter directly behind a number is a variable, as in 2m.
        return not (re.fullmatch(r"[A-Za-z](?:\^?\{?\d\}?)?", text) or re.match(r"[A-Za-z]\^?\{?\d\}?[A-Za-z]", text))
    if not words:
        return True
    joined = match.group("words")[:1].isalpha() or "/" in text or re.match(r"-[A-Za-z]{1,3}\b", text) is not None
    said = [word for word in words if _SAID.fullmatch(word)]
    return bool(said) and not joined and all(len(word) > 1 or word == "a" for word in words)


def scan(text: str) -> list[Number]:
    """Find every number of a cleaned text, in order. A minus directly after a digit, letter or bracket is an operator.

    >>> [str(number.value) for number in scan("48-24 = 24, the 2nd is -3")]
    ['48', '24', '24', '-3']
    """
    return [Number(match.start(), match.end(), _value(match)) for match in _SCAN.finditer(text)]


def close(value: Fraction, gold: Fraction, tolerance: float) -> bool:
    """Tell whether the two are equal, or within `tolerance` times the gold answer where it is above 0."""
    return value == gold if tolerance == 0 else abs(value - gold) <= Fraction(tolerance) * abs(gold)


def _value(match: re.Match[str]) -> Fraction | None:
    if match.end() - match.start() > LONGEST:
        return None
    part = match.groupdict()
    if part["bottom"]:
        bottom = _decimal(part["bottom"])
        if bottom == 0:
            return None
        size = Fraction(part["whole"] or 0) + _decimal(part["top"]) / bottom
    else:
        size, exponent = _decimal(part["decimal"]), part["e"] or part["p"]
        size = size * Fraction(10) ** int(exponent) if exponent else size
    return -size if part["sign"].count("-") == 1 else size


def _decimal(text: str) -> Fraction:
    r"""Read digits: `0.1(6)` is 0.1666... without end.

    >>> _decimal("0.1(6)"), _decimal("1 234.5")
    (Fraction(1, 6), Fraction(2469, 2))
    """
    plain, _, repeated = text.replace(",", "").replace(" ", "").rstrip(")").partition("(")
    if plain.isdecimal() and not repeated:  # most are; a Fraction reads a text ten times as slowly
        return Fraction(int(plain))
    value = Fraction(plain if plain[-1] != "." else plain + "0" if plain != "." else "0")
    if repeated:
        places = len(plain.partition(".")[2])
        value += Fraction(int(repeated), (10 ** len(repeated) - 1) * 10**places)
    return value
