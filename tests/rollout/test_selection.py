"""Which problems a run uses: those whose prompts fit; the longest is found wherever it stands."""

from __future__ import annotations

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.rollout.selection import LOOKED_AT, select


class Words:
    """Prompts of one token a character."""

    alphabet = ""
    quick = True

    def __init__(self, train: list[int], heldout: list[int]) -> None:
        self.lengths = {"train": train, "heldout": heldout}

    def samples(self, split: str):
        return [Sample(f"{split}{i}", "x" * n, "") for i, n in enumerate(self.lengths[split])]

    def score(self, sample: Sample, completion: str) -> float:
        return 0.0


class Dealt(Words):
    """Makes its training problems as they are asked for."""

    sources = ("a",)

    def draw(self, index, seed, levels):
        return Sample(str(index), "x" * (3 + index % 5), "", source="a")

    def moved(self, levels, rates):
        return levels


def ask(sample: Sample) -> tuple[int, ...]:
    return tuple(map(ord, sample.prompt))


def test_without_a_limit_everything_is_used_and_nothing_is_told():
    found = select(Words([3, 9, 4], [5, 2]), ask, 0, 1)
    assert [len(s.prompt) for s in found.train] == [3, 9, 4]
    assert [len(s.prompt) for s in found.heldout] == [5]
    assert (found.longest, found.notes) == (9, ())


def test_longer_prompts_are_left_out_of_both_splits_and_counted():
    found = select(Words([3, 9, 4, 8], [7, 5, 2]), ask, 5, 2)
    assert [len(s.prompt) for s in found.train] == [3, 4]
    assert [len(s.prompt) for s in found.heldout] == [5, 2]
    assert found.longest == 5
    assert [note.split(" problems")[0] for note in found.notes] == ["1 of 3 held-out", "2 of 4 training"]


@pytest.mark.parametrize("where", [0, 500, 999])
def test_the_longest_prompt_is_found_among_many(where):
    lengths = [1] * 1000
    lengths[where] = 7
    assert select(Words(lengths, [2] * (2 * LOOKED_AT)), ask, 0, LOOKED_AT).longest == 7
    assert select(Words([2] * 1000, lengths), ask, 0, 1000).longest == 7


def test_a_stream_is_used_as_it_is():
    task = Dealt([], [4, 4])
    found = select(task, ask, 0, 2)
    assert found.train is task
    assert found.longest == 7


@pytest.mark.parametrize(
    ("limit", "evaluated", "told"),
    [
        (2, 1, "max_prompt_tokens = 2: every held-out prompt is longer"),
        (3, 1, "max_prompt_tokens = 3: every training prompt is longer"),
        (5, 3, "evaluation.problems = 3: max_prompt_tokens = 5 leaves only 2"),
        (0, 4, "evaluation.problems = 4: the task holds out only 3"),
    ],
)
def test_a_limit_that_leaves_too_little_is_refused(limit, evaluated, told):
    with pytest.raises(UsageError) as error:
        select(Words([4, 9], [7, 5, 3]), ask, limit, evaluated)
    assert told in str(error.value)
