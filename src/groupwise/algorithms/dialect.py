"""Constants of frameworks that set an algorithm of the catalog otherwise."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """The constants that a framework has for an algorithm, where they are not the catalog's.

    of        the framework
    settings  dotted keys under [algorithm] and their values
    words     what to know of them
    """

    of: str
    settings: tuple[tuple[str, object], ...] = ()
    words: str = ""
