"""The rewards of a run, tried on completions whose worth is known. Scored exactly as a run would score them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from groupwise.commands.check.golds import Kind, Probe
from groupwise.core.reward import Cause, Mark
from groupwise.core.samples import Attempt
from groupwise.rollout.scoring import TASK, Scorer

#: Probes that are scored together, and seconds after which no more are begun.
TOGETHER, SECONDS = 32, 20.0

#: A completion's text -> its ids, for rewards that read them.
Encode = Callable[[str], tuple[int, ...]]
#: The marks of a probe's completions, by kind.
Told = Mapping[Kind, Mark]


@dataclass(frozen=True)
class Tried:
    """What one reward gave: of each probe, its marks. A reward that did not come back in time is not tried further."""

    name: str
    told: Sequence[Told]

    def marks(self, *kinds: Kind) -> list[Mark]:
        """All marks of these kinds."""
        return [told[kind] for told in self.told for kind in kinds if kind in told]

    def values(self, *kinds: Kind) -> list[float]:
        """The scores of these kinds, those that are missing left out."""
        return [mark.value for mark in self.marks(*kinds) if mark.cause is None]

    def pairs(self, kind: Kind) -> list[tuple[float, float]]:
        """(gold's score, this kind's score) of every probe that has both."""
        both = [(told[Kind.GOLD], told[kind]) for told in self.told if kind in told]
        return [(gold.value, other.value) for gold, other in both if gold.cause is None and other.cause is None]


def mean(values: Sequence[float]) -> float:
    """NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def tried(scorer: Scorer, probes: Sequence[Probe], encode: Encode) -> list[Tried]:
    """Every reward on every probe, the task's own score first, as far as time allows."""
    names = [TASK, *scorer.mix.own]
    return [Tried(name, list(_all(scorer, name, probes, encode))) for name in names]


def _all(scorer: Scorer, name: str, probes: Sequence[Probe], encode: Encode) -> Iterator[Told]:
    started = time.perf_counter()
    # The first alone: where a reward hangs on it, nothing else is waited for.
    for chunk in (probes[:1], *(probes[at : at + TOGETHER] for at in range(1, len(probes), TOGETHER))):
        places = [(probe, kind) for probe in chunk for kind in probe.texts]
        given = _score(scorer, name, [_attempt(probe, kind, encode) for probe, kind in places])
        by_place = {(id(probe), kind): mark for (probe, kind), mark in zip(places, given, strict=True)}
        yield from ({kind: by_place[id(probe), kind] for kind in probe.texts} for probe in chunk)
        late = any(mark.cause is Cause.TIMEOUT for mark in given)
        if late or time.perf_counter() - started > SECONDS:
            return


def _attempt(probe: Probe, kind: Kind, encode: Encode) -> Attempt:
    text = probe.texts[kind]
    return Attempt(probe.sample, text, "stop", encode(text))


def _score(scorer: Scorer, name: str, attempts: Sequence[Attempt]) -> list[Mark]:
    if name in scorer.slow:
        assert scorer.pool is not None
        return scorer.pool.wait(scorer.pool.submit(name, attempts))
    return scorer.quick_marks(attempts)[name]
