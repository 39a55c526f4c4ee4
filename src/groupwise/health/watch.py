"""What a run's metrics mean, in words: every finding has a threshold with a reason, and says what one would try.

Reads rows of metrics.jsonl and a recipe's table; nothing here knows torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from groupwise.health.symptoms import policy, progress, signal, updates
from groupwise.health.symptoms.base import (
    BAD,
    GOOD,
    NEUTRAL,
    RECENT,
    WARN,
    Finding,
    History,
    Row,
    Watcher,
)

__all__ = ["BAD", "GOOD", "NEUTRAL", "WARN", "WATCHERS", "Finding", "Watch", "findings", "table"]

WATCHERS: tuple[Watcher, ...] = (*policy.WATCHERS, *updates.WATCHERS, *signal.WATCHERS, *progress.WATCHERS)

#: Steps that a run keeps in mind while it goes on: a fall is seen against the best ten of them.
KEPT = 5 * RECENT
#: Steps from which on a run is warned of more than what is wrong outright: one odd step is no trend.
FIRST = 3
#: Earlier moments that a report looks back at, spread evenly over the run.
MOST_MOMENTS = 40
#: The worst first.
ORDER = (BAD, WARN, NEUTRAL, GOOD)


def findings(rows: Sequence[Row], recipe: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
    """What there is to say of a run, the worst first. `rows` are those of metrics.jsonl, evaluations among them or not.

    A warning that has passed is told as one: "Earlier, at step 40: ...". No step rows give no findings.

    >>> rows = [{"step": s, "truncated_share": 0.4} for s in range(1, 6)]
    >>> print(findings(rows, {"sampling": {"max_new_tokens": 32}})[0].advice)
    sampling.max_new_tokens = 64
    """
    history = _history(rows, recipe)
    if not history.rows:
        return ()
    now = _seen(history, WATCHERS)
    known = {found.name for found in now}
    earlier = [found for found in _earlier(history) if found.name not in known]
    return tuple(sorted((*now, *earlier), key=lambda found: ORDER.index(found.tone)))


@dataclass
class Watch:
    """A run's own look at its rows, one by one: each warning once, when it first becomes true.

    It keeps the last KEPT rows and what it has said, so a step costs the same whatever came before.
    """

    recipe: Mapping[str, Any] = field(default_factory=dict)
    _rows: deque[Row] = field(default_factory=lambda: deque(maxlen=KEPT))
    _told: set[str] = field(default_factory=set)

    def __call__(self, row: Row) -> tuple[Finding, ...]:
        """The warnings that this step's row makes true for the first time."""
        self._rows.append(row)
        silent = [w for w in WATCHERS if w.live and w.name not in self._told]
        tones = (WARN, BAD) if len(self._rows) >= FIRST else (BAD,)
        new = tuple(f for f in _seen(History(list(self._rows), (), self.recipe), silent) if f.tone in tones)
        self._told |= {found.name for found in new}
        return new


def table() -> str:
    """Every finding with its threshold and the reason for it, as Markdown; docs/reading_a_report.md has it."""
    lines = [f"| {w.name} | {w.limit} | {w.why} | {'yes' if w.live else 'no'} |" for w in WATCHERS]
    return "\n".join(["| finding | when | why there | told while the run goes on |", "|---|---|---|---|", *lines])


def _seen(history: History, watchers: Sequence[Watcher]) -> list[Finding]:
    told = ((watcher, watcher.look(history)) for watcher in watchers)
    return [Finding(watcher.name, *seen) for watcher, seen in told if seen]


def _earlier(history: History) -> list[Finding]:
    """Warnings that were true at an earlier moment, each at its last one."""
    moments = range(len(history.rows) - RECENT, 0, -RECENT)
    told: dict[str, Finding] = {}
    for end in moments[:: -(-len(moments) // MOST_MOMENTS) or 1]:
        then = History(history.rows[max(0, end - KEPT) : end], (), history.recipe)
        for found in _seen(then, [w for w in WATCHERS if w.live and w.name not in told]):
            if found.tone in (WARN, BAD):
                words = f"Earlier, at step {then.step}: {found.words[:1].lower()}{found.words[1:]}"
                told[found.name] = Finding(found.name, NEUTRAL, words, found.advice)
    return list(told.values())


def _history(rows: Sequence[Row], recipe: Mapping[str, Any] | None) -> History:
    evaluations = [row for row in rows if isinstance(row.get("evaluation"), Mapping)]
    steps = [row for row in rows if "evaluation" not in row]
    return History(steps, evaluations, recipe or {})
