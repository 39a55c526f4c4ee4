"""Parts that the catalog does not have: a user's own from a file, and those that installed packages offer by name.

A package offers a part as an entry point of the group `groupwise.parts` whose name is its slot, a dot, and its kind:

    [project.entry-points."groupwise.parts"]
    "trust.stale-clip" = "my_package.parts:StaleClip"
"""

from collections.abc import Mapping
from typing import Any

from groupwise.algorithms.parts.advantage import Advantage
from groupwise.algorithms.parts.aggregate import Aggregate
from groupwise.algorithms.parts.filters import Filter
from groupwise.algorithms.parts.kl import Estimator
from groupwise.algorithms.parts.mismatch import Mismatch
from groupwise.algorithms.parts.ratio import Ratio
from groupwise.algorithms.parts.rejection import Rejection
from groupwise.algorithms.parts.shaping import Shaping
from groupwise.algorithms.parts.trust import Trust
from groupwise.core.code.user_code import Files, entry, load, offered, require_frozen_dataclass
from groupwise.core.errors import UsageError, brief

GROUP = "groupwise.parts"
#: What a part of each slot is a subclass of, also one of a user's own.
BASES: Mapping[str, Any] = {
    "shaping": Shaping,
    "filter": Filter,
    "advantage": Advantage,
    "ratio": Ratio,
    "trust": Trust,
    "rejection": Rejection,  # before the class that it is a kind of
    "mismatch": Mismatch,
    "kl": Estimator,
    "aggregate": Aggregate,
}


def own_part(slot: str, use: object, files: Files) -> type:
    """Load the class that `algorithm.SLOT.use` names. Raises UsageError if it is not a part of the slot."""
    what = f"algorithm.{slot}.use = {brief(use)}"
    if not isinstance(use, str):
        raise UsageError(f'{what}: must be text, such as "my_parts.py:Name"')
    kind = load(use, what, files)
    require_part(kind, what)
    if (own := slot_of(kind)) != slot:
        remedy = f"set algorithm.{own}.use, or make it a subclass of groupwise.{BASES[slot].__name__}"
        raise UsageError(f"{what}: {kind.__name__} is a part of the slot {own}; {remedy}")
    return kind


def offered_kinds(slot: str) -> list[str]:
    """List the kinds that installed packages offer for a slot."""
    return [name.removeprefix(f"{slot}.") for name in offered(GROUP) if name.startswith(f"{slot}.")]


def offered_part(slot: str, name: str) -> type:
    """Load a kind that a package offers. Raises UsageError if the package fails, or the kind is no part of the slot."""
    what = f"algorithm.{slot} {name!r}"
    kind = entry(GROUP, f"{slot}.{name}", what)
    require_part(kind, what)
    return kind


def slot_of(kind: type) -> str:
    """Return the slot that a part's class belongs to; "" if it is a part of none."""
    return next((slot for slot, base in BASES.items() if base in kind.__mro__), "")


def require_part(kind: Any, what: str) -> None:
    """Raise UsageError, `what` first, if something is not the class of a part: a frozen dataclass of one slot."""
    require_frozen_dataclass(kind, what)
    if not slot_of(kind):
        bases = ", ".join(f"groupwise.{base.__name__}" for base in BASES.values())
        raise UsageError(f"{what}: {kind.__name__} is a part of no slot; make it a subclass of one of: {bases}")
    defined = {name for parent in kind.__mro__ if parent not in BASES.values() for name in vars(parent)}
    if "__call__" not in defined:
        raise UsageError(f"{what}: {kind.__name__} has no __call__; that is what it computes")
    if "equation" not in defined:
        raise UsageError(f'{what}: {kind.__name__} does not say its equation; add a line: equation = "S = r A"')
