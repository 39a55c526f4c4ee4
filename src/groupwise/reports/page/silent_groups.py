"""Why some groups do not train, by what tells their completions apart: being right, or their rewards."""

from groupwise.health.measure import CORRECTNESS
from groupwise.health.symptoms.base import NEUTRAL, WARN, History, percent
from groupwise.health.symptoms.signal import FEW_MIXED, dropped_share, what_ties_train


def groups_in_words(h: History) -> tuple[str, str]:
    """What became of the groups of the last steps, and why; (words, tone)."""
    shares = tuple(h.mean(f"groups_{kind}_share") for kind in ("mixed", "all_right", "all_wrong"))
    by_reward = h.setting("algorithm.filter.metric", CORRECTNESS) != CORRECTNESS or not h.by_score
    if (by_reward or None in shares) and h.mean("groups_signal_share") is not None:
        return _groups_by_reward(h)
    mixed, right, wrong = shares
    if mixed is None or right is None or wrong is None:
        return "Not known yet: no group has been logged.", NEUTRAL
    if mixed + right + wrong == 0:
        return "No right answer is known; every group with different scores trains.", NEUTRAL
    shown = f"{percent(mixed)} mixed right and wrong, {percent(right)} were all right and {percent(wrong)} all wrong"
    of = f"Of the groups generated in {h.over}, {shown}"
    if h.drops:
        return _dropped(h, of, "mixed")
    if h.compares_within_group is None:
        return f"{of}.", NEUTRAL
    if not h.compares_within_group:
        return f"{_all_train(h)} {of}.", NEUTRAL
    if not h.tied_train_nothing:
        return f"{of}. Other rewards or penalties than being right can still tell their completions apart.", NEUTRAL
    return (
        f"{of}{_of_ties(h, 'all are equally right')}.",
        WARN if mixed < FEW_MIXED and not h.solved else NEUTRAL,
    )


def _groups_by_reward(h: History) -> tuple[str, str]:
    """Of a run whose groups are told apart by rewards."""
    signal = h.mean("groups_signal_share") or 0.0
    of = (
        f"In {percent(signal)} of the groups generated in {h.over} rewards differ, in {percent(1 - signal)} they do not"
    )
    if h.drops:
        return _dropped(h, of, "differing")
    if not h.compares_within_group:
        return (f"{of}." if h.compares_within_group is None else f"{_all_train(h)} {of}."), NEUTRAL
    return f"{of}{_of_ties(h, 'all completions earn the same')}.", WARN if signal < FEW_MIXED else NEUTRAL


def _all_train(h: History) -> str:
    """Of an algorithm that does not compare within a group: what trains."""
    name, silent = h.setting("algorithm.name", "this algorithm"), h.mean("zero_advantage_share")
    if silent:
        return f"{name} does not compare within a group, and {what_ties_train(h)}."
    return f"All of them train: {name} does not compare within a group."


def _of_ties(h: History, tied: str) -> str:
    """What tied groups train, behind a sentence on how many there are."""
    words = what_ties_train(h)
    return f": where {tied} {words}" if words.startswith(("their ", "only ")) else f"; {words}"


def _dropped(h: History, of: str, kind: str) -> tuple[str, str]:
    """What a filter did to the groups without signal."""
    cost = dropped_share(h, h.recent)
    spent = "" if cost is None else f", which took {percent(cost)} of the generation"
    filled = h.total("groups_fallback", h.recent)
    fell = f" The budget ran out, so {filled:.0f} of them trained all the same." if filled else ""
    return (
        f"{of}: only {kind} ones train, and new prompts take the place of the others{spent}.{fell}",
        WARN if filled else NEUTRAL,
    )
