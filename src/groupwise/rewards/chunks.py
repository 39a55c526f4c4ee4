"""How much of the queue one worker is given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile

from groupwise.rewards.slot import Entry

#: The most attempts a worker is given at once: for one call, and one by one.
MANY, FEW = 32, 8


def first_chunk(queue: Sequence[Entry], limit: int) -> int:
    """How many entries at the front of the queue, `limit` at most, one worker can be given together.

    >>> first_chunk([Entry(0, "a", None), Entry(1, "a", None)], 8)
    1
    """
    head = queue[0]
    if _by_itself(head):
        return 1
    alike = takewhile(lambda entry: entry.name == head.name and not _by_itself(entry), queue)
    return sum(1 for _ in islice(alike, max(limit, 1)))


def _by_itself(entry: Entry) -> bool:
    return entry.attempt is None or entry.alone or entry.fresh


def whole_groups(queue: Sequence[Entry], count: int) -> int:
    """`count`, or as many entries as make it end with a group: with the one before where there is one, else with this.

    >>> from groupwise.samples import Attempt, Sample
    >>> entries = [Entry(i, "mine", Attempt(Sample(key, "", ""), "")) for i, key in enumerate("aabbb")]
    >>> whole_groups(entries, 4), whole_groups(entries[2:], 2)
    (2, 3)
    """
    near = list(islice(queue, MANY + 1))
    groups = [entry.attempt.sample.key if entry.attempt and not _by_itself(entry) else None for entry in near]
    if count >= len(groups) or groups[count] is None or groups[count] != groups[count - 1]:
        return count
    same = [i for i, group in enumerate(groups) if group == groups[count] and near[i].name == near[0].name]
    return same[0] or min(same[-1] + 1, MANY)
