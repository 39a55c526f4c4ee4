r"""Units of measure: what each is in the first of its kind, so that 1 m is 100 cm and never 1 km."""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple


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
