"""Laws of every part, whatever its slot: it is a value that can be printed, compared and sent."""

import dataclasses
from typing import Any

from groupwise.algorithms.laws.draws import Draw
from groupwise.algorithms.laws.law import Law
from groupwise.core.processes import codec


def prints_itself(part: Any, batch: Draw) -> str:
    """Its name and every field are in its text."""
    text, names = repr(part), [type(part).__name__, *(f"{f.name}=" for f in dataclasses.fields(part))]
    return next((f"{text} does not name {name.rstrip('=')}" for name in names if name not in text), "")


def says_its_equation(part: Any, batch: Draw) -> str:
    """Demand a line of text."""
    equation = part.equation
    good = isinstance(equation, str) and equation.strip() and len(equation.splitlines()) == 1
    return "" if good else f"its equation is {equation!r}"


def is_a_value(part: Any, batch: Draw) -> str:
    """Frozen, hashable, and equal to one of the same fields."""
    for field in dataclasses.fields(part):
        try:
            setattr(part, field.name, getattr(part, field.name))
        except dataclasses.FrozenInstanceError:
            continue
        return f"{field.name} can be changed"
    hash(part)
    return "" if dataclasses.replace(part) == part else "one of the same fields is not equal to it"


def travels(part: Any, batch: Draw) -> str:
    """Sent to another process and back it is the same."""
    again = codec.unpack(codec.pack(part))
    return "" if again == part and repr(again) == repr(part) else f"it comes back as {again!r}"


LAWS = (
    Law("it prints itself", prints_itself, "Leave its __repr__ to @dataclass(frozen=True)."),
    Law("it says its equation in one line", says_its_equation, 'Add a line such as: equation = "S = r A"'),
    Law(
        "it is a frozen value, equal to one of the same fields",
        is_a_value,
        "Write @dataclass(frozen=True), without __eq__ or __hash__; what it computes is not kept in it.",
    ),
    Law(
        "another process can have it",
        travels,
        "Define its class at the top of the file; fields are bool, int, float or str.",
    ),
)
