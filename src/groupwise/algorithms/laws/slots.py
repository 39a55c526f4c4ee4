"""Every slot's laws, and a part tried by them."""

from collections.abc import Iterator, Mapping
from typing import Any

from groupwise.algorithms.laws import advantage, aggregate, filters, kl, ratio, shaping, trust
from groupwise.algorithms.laws.law import Law
from groupwise.algorithms.own_parts import slot_of

LAWS: Mapping[str, tuple[Law, ...]] = {
    "shaping": shaping.LAWS,
    "filter": filters.LAWS,
    "advantage": advantage.LAWS,
    "ratio": ratio.RATIO_LAWS,
    "trust": trust.LAWS,
    "mismatch": ratio.MISMATCH_LAWS,
    "rejection": ratio.REJECTION_LAWS,
    "kl": kl.LAWS,
    "aggregate": aggregate.LAWS,
}


def tried(part: Any) -> Iterator[tuple[Law, str]]:
    """Each law of the part's slot, and what was seen that breaks it: "" where it holds."""
    return ((law, law.broken(part)) for law in LAWS[slot_of(type(part))])
