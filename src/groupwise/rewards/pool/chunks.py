"""How much of the queue one worker is given."""

from __future__ import annotations

from collections.abc import Sequence

from groupwise.rewards.pool.slot import Entry

#: The most attempts a worker is given at once: for one call, and one by one.
MANY, FEW = 32, 8


def alike(queue: Sequence[Entry]) -> list[Entry]:
    """The entries that can go to a worker together with the first, it included: those of its reward, in their order.

    Entries of several rewards come interleaved, as each completion is handed over when it ends.

    >>> from groupwise.core.samples import Attempt, Sample
    >>> some = Attempt(Sample("k", "", ""), "")
    >>> [entry.ticket for entry in alike([Entry(i, name, some) for i, name in enumerate("abba")])]
    [0, 3]
    """
    head = queue[0]
    if _by_itself(head):
        return [head]
    return [entry for entry in queue if entry.name == head.name and not _by_itself(entry)]


def _by_itself(entry: Entry) -> bool:
    return entry.attempt is None or entry.alone or entry.fresh


def whole_groups(entries: Sequence[Entry], count: int) -> int:
    """`count`, or as many entries of one reward as make it end with a group: with the one before, else with this.

    >>> from groupwise.core.samples import Attempt, Sample
    >>> entries = [Entry(i, "mine", Attempt(Sample(key, "", ""), "")) for i, key in enumerate("aabbb")]
    >>> whole_groups(entries, 4), whole_groups(entries[2:], 2)
    (2, 3)
    """
    groups = [entry.attempt.sample.key if entry.attempt else None for entry in entries[: MANY + 1]]
    if count >= len(groups) or groups[count] is None or groups[count] != groups[count - 1]:
        return count
    same = [i for i, group in enumerate(groups) if group == groups[count]]
    return same[0] or min(same[-1] + 1, MANY)
