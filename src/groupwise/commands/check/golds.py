"""Completions whose score is known beforehand: right ones, and the same ones made wrong. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from groupwise.core.samples import Sample
from groupwise.core.task import ShowsGold, Task

_NUMBER = re.compile(r"([^\w-]{0,4})(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)([^\d]*)")


class Kind(StrEnum):
    """What a completion is."""

    GOLD = "gold completions"
    BARE = "gold answers alone"
    OTHER = "gold completions of another problem"
    MORE = "gold answers + 1"
    LESS = "gold answers - 1"
    EMPTY = "empty completions"


#: Those that are wrong, and of them those that are off by one.
WRONG = (Kind.OTHER, Kind.MORE, Kind.LESS, Kind.EMPTY)
OFF_BY_ONE = (Kind.MORE, Kind.LESS)


@dataclass(frozen=True)
class Probe:
    """A sample with the completions that it is scored on."""

    sample: Sample
    texts: Mapping[Kind, str]


def gold_of(task: Task, sample: Sample) -> str:
    """A completion that should score 1.0, "" where none is known."""
    return task.gold(sample) if isinstance(task, ShowsGold) else sample.answer


def probes(task: Task, samples: Sequence[Sample]) -> list[Probe]:
    """The samples whose gold completion is known, each with right and wrong ones."""
    known = [(sample, text) for sample in samples if (text := gold_of(task, sample))]
    found = []
    for place, (sample, text) in enumerate(known):
        others = [*known[place + 1 :], *known[:place]]
        different = (t for s, t in others if s.answer != sample.answer and s.source == sample.source)
        found.append(Probe(sample, _texts(sample, text, next(different, ""))))
    return found


def _texts(sample: Sample, gold: str, other: str) -> dict[Kind, str]:
    bare = sample.answer.strip()
    made = {
        Kind.GOLD: gold,
        Kind.BARE: bare if bare != gold.strip() else "",
        Kind.OTHER: other,
        Kind.MORE: off_by(gold, bare, 1),
        Kind.LESS: off_by(gold, bare, -1),
    }
    return {**{kind: text for kind, text in made.items() if text}, Kind.EMPTY: ""}


def off_by(completion: str, answer: str, step: int) -> str:
    """The completion with another number where its answer stands last, "" where the answer is no single number.

    >>> off_by("24+48 = 72\\n#### 1,072", "1,072", 1), off_by("so it is x", "x", 1)
    ('24+48 = 72\\n#### 1,073', '')
    """
    wrong = shifted(answer, step)
    if not wrong:
        return ""
    before, there, after = completion.rpartition(answer)
    return before + wrong + after if there else wrong


def shifted(answer: str, step: int) -> str:
    """A number as it is written, with `step` added; "" where there is no one number.

    >>> shifted("$1,999", 1), shifted("18.50", -1), shifted("-1", 1), shifted("3/4", 1)
    ('$2,000', '17.50', '0', '')
    """
    found = _NUMBER.fullmatch(answer)
    if found is None:
        return ""
    before, number, after = found.groups()
    value = Decimal(number.replace(",", "")) + step
    return f"{before}{value:{',' if ',' in number else ''}f}{after}"
