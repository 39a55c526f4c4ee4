"""Sums of two sources, for runs with several teachers."""

from dataclasses import dataclass, replace

from groupwise.core.samples import Sample
from tests.runs.task_of_a_run import Sums


@dataclass(frozen=True)
class TwoSources(Sums):
    """Sums of even and of odd numbers of the problem; `answers` may leave the answers out."""

    verdict: str = "length"
    answers: bool = True

    def samples(self, split: str) -> list[Sample]:
        every = enumerate(super().samples(split))
        return [replace(s, source=("even", "odd")[n % 2], answer=s.answer * self.answers) for n, s in every]
