"""Rules of the bridge: what the value of another project's option is in a recipe."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

#: Every option that counts, by its name: the file's over the project's own defaults.
Whole = Mapping[str, Any]
#: Keys of a recipe with their values, dotted; none if the value is what a recipe does anyway.
Keys = Mapping[str, Any]
#: (value, whole) -> Keys. Raises NotHere or Manual.
Rule = Callable[[Any, Whole], Keys]


class NotHere(Exception):
    """The value has nothing in a recipe that does the same; the message is why."""


class Manual(Exception):
    """A person has to choose what the value is in a recipe; the message is what there is."""


def not_here(words: str) -> NoReturn:
    """Raise NotHere, in an expression."""
    raise NotHere(words)


def same(*keys: str) -> Rule:
    """Make the rule of an option whose value is that of the recipe's keys."""
    return lambda value, whole: dict.fromkeys(keys, value)


def chosen(key: str, values: Mapping[Any, Any], words: str) -> Rule:
    """Make the rule of an option whose values have other names in a recipe; `words` are of those that have none.

    >>> chosen("learner.schedule", {"cosine": "cosine"}, "no such schedule")("cosine", {})
    {'learner.schedule': 'cosine'}
    """

    def rule(value: Any, whole: Whole) -> Keys:
        name = value.lower() if isinstance(value, str) else value
        if isinstance(name, (str, bool, int)) and name in values:
            return {key: values[name]}
        return not_here(words)

    return rule


def only(value: Any, words: str) -> Rule:
    """Make the rule of an option that a recipe always has at one value; `words` are of any other."""
    return lambda given, whole: (
        {} if given == value and isinstance(given, bool) is isinstance(value, bool) else not_here(words)
    )


def above_zero(key: str, words: str) -> Rule:
    """Make the rule of a count that is off at 0 and below; `words` say what off is here."""

    def rule(value: Any, whole: Whole) -> Keys:
        return {key: whole_number(value)} if number(value) > 0 else not_here(words)

    return rule


def number(value: Any) -> float:
    """Return a value that is a number. Raises Manual if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Manual("this is no number")
    return value


def whole_number(value: Any) -> int:
    """Return a value that is a whole number. Raises Manual if it is none."""
    if number(value) != int(value):
        raise Manual("this is no whole number")
    return int(value)


def parts(whole: int, part: int, words: str) -> int:
    """Divide without a remainder. Raises NotHere, with `words`, if there is one.

    >>> parts(64, 8, "...")
    8
    """
    if part < 1 or whole % part:
        raise NotHere(words)
    return whole // part
