"""Which problems a run uses: those whose prompts fit; the longest is found wherever it stands."""

from __future__ import annotations

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.rollout.collect import EvaluationSettings
from groupwise.rollout.selection import LOOKED_AT, PromptLimit, select


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
    found = select(Words([3, 9, 4], [5, 2]), ask, PromptLimit(), EvaluationSettings(problems=1))
    assert [len(s.prompt) for s in found.train] == [3, 9, 4]
    assert [len(s.prompt) for s in found.heldout] == [5]
    assert (found.longest, found.notes) == (9, ())


def test_longer_prompts_are_left_out_of_both_splits_and_counted():
    found = select(Words([3, 9, 4, 8], [7, 5, 2]), ask, PromptLimit(5), EvaluationSettings(problems=2))
    assert [len(s.prompt) for s in found.train] == [3, 4]
    assert [len(s.prompt) for s in found.heldout] == [5, 2]
    assert found.longest == 5
    assert [note.split(" problems")[0] for note in found.notes] == ["1 of 3 held-out", "2 of 4 training"]


@pytest.mark.parametrize("where", [0, 500, 999])
def test_the_longest_prompt_is_found_among_many(where):
    lengths = [1] * 1000
    lengths[where] = 7
    evaluation = EvaluationSettings(problems=LOOKED_AT)
    assert select(Words(lengths, [2] * (2 * LOOKED_AT)), ask, PromptLimit(), evaluation).longest == 7
    evaluation = EvaluationSettings(problems=1000)
    assert select(Words([2] * 1000, lengths), ask, PromptLimit(), evaluation).longest == 7


def test_a_stream_is_used_as_it_is():
    task = Dealt([], [4, 4])
    found = select(task, ask, PromptLimit(), EvaluationSettings(problems=2))
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
        select(Words([4, 9], [7, 5, 3]), ask, PromptLimit(limit), EvaluationSettings(problems=evaluated))
    assert told in str(error.value)


def test_truncated_prompts_stay_and_keep_their_head_and_their_end():
    def marked(sample: Sample) -> tuple[int, ...]:
        return (0, *range(1, len(sample.prompt) + 1))

    selection = select(
        Words([3, 9, 4], [7, 2]), marked, PromptLimit(5, truncates=True, head=1), EvaluationSettings(problems=2)
    )
    prompts = [selection.encode(sample) for sample in [*selection.train, *selection.heldout]]
    assert prompts == [(0, 1, 2, 3), (0, 6, 7, 8, 9), (0, 1, 2, 3, 4), (0, 4, 5, 6, 7), (0, 1, 2)]
    assert selection.longest == 5
    assert [note.split(" problems")[0] for note in selection.notes] == ["1 of 2 held-out", "1 of 3 training"]


@pytest.mark.parametrize(("problems", "chosen"), [(None, 3), (0, 0), (2, 2)])
def test_without_a_number_all_that_is_held_out_is_evaluated(problems, chosen):
    selection = select(Words([1], [1, 2, 3]), ask, PromptLimit(), EvaluationSettings(problems=problems))
    assert len(selection.heldout) == chosen
