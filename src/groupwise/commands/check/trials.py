"""Completions whose worth is known beforehand: right ones, and wrong ones derived from them. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from groupwise.core.samples import Sample
from groupwise.core.task import KnowsGold, Task

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
class Trial:
    """A sample with the completions that it is scored on."""

    sample: Sample
    completions: Mapping[Kind, str]


def gold_of(task: Task, sample: Sample) -> str:
    """A completion that should score 1.0, "" where none is known."""
    return task.gold(sample) if isinstance(task, KnowsGold) else sample.answer


def trials(task: Task, samples: Sequence[Sample]) -> list[Trial]:
    """The samples whose gold completion is known, each with right and wrong ones."""
    golds = [(sample, gold) for sample in samples if (gold := gold_of(task, sample))]
    return [
        Trial(sample, _completions(sample, gold, [*golds[place + 1 :], *golds[:place]]))
        for place, (sample, gold) in enumerate(golds)
    ]


def _completions(sample: Sample, gold: str, others: Sequence[tuple[Sample, str]]) -> dict[Kind, str]:
    bare = sample.answer.strip()
    different = (text for s, text in others if s.answer != sample.answer and s.source == sample.source)
    completions = {
        Kind.GOLD: gold,
        Kind.BARE: bare if bare != gold.strip() else "",
        Kind.OTHER: next(different, ""),
        Kind.MORE: off_by(gold, bare, 1),
        Kind.LESS: off_by(gold, bare, -1),
    }
    return {**{kind: text for kind, text in completions.items() if text}, Kind.EMPTY: ""}


def off_by(completion: str, answer: str, step: int) -> str:
    """The completion with another number where its answer stands last, "" where the answer is no single number.

    >>> off_by("24+48 = 72\\n#### 1,072", "1,072", 1), off_by("so it is x", "x", 1)
    ('24+48 = 72\\n#### 1,073', '')
    """
    wrong = shifted(answer, step)
    before, answered, after = completion.rpartition(answer) if wrong else ("", "", "")
    return before + wrong + after if answered else wrong


def shifted(answer: str, step: int) -> str:
    """A number as it is written, with `step` added; "" where there is no one number.

    >>> shifted("$1,999", 1), shifted("18.50", -1), shifted("-1", 1), shifted("3/4", 1)
    ('$2,000', '17.50', '0', '')
    """
    match = _NUMBER.fullmatch(answer)
    if match is None:
        return ""
    before, number, after = match.groups()
    value = Decimal(number.replace(",", "")) + step
    return f"{before}{value:{',' if ',' in number else ''}f}{after}"
