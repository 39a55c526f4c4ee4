"""Laws of the chain task: splits that never meet, demonstrations as its keys say, and a length that is free."""

from __future__ import annotations

import re
from statistics import fmean
from typing import NamedTuple

import pytest

from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration
from recipes.chain import Chain, steps

SMALL = Chain(operations=(2, 3), heldout_share=0.2)
TASKS = [Chain(), SMALL, Chain(operations=(5, 9), seed=5)]
SAID = re.compile(r"([a-z])((?::[0-9][+-][0-9])*)(=?)([0-9])")


class Said(NamedTuple):
    """A step as a demonstration has it: its letter, its sums, its digit, and what the digit should be."""

    letter: str
    sums: list[str]
    digit: int
    right: int


def read(demonstration: Demonstration) -> list[Said]:
    """The steps of a demonstration, each against the two digits before it; it holds nothing else but a guess."""
    given = re.fullmatch(r"[a-z]:([0-9])([+-])([0-9])=([0-9])", demonstration.prompt)
    assert given
    digits, found = [int(given[3]), int(given[4])], []
    worked = demonstration.completion.split("?")[0]
    for letter, sums, equals, digit in SAID.findall(worked):
        assert bool(sums) == bool(equals)
        right = digits[-2] + digits[-1] if given[2] == "+" else digits[-2] - digits[-1]
        found.append(Said(letter, sums.split(":")[1:], int(digit), right % 10))
        assert set(found[-1].sums) <= {f"{digits[-2]}{given[2]}{digits[-1]}"}
        digits.append(int(digit))
    assert SAID.sub("", worked) == ""
    return found


def by_hand(prompt: str) -> int:
    """The answer without the task's own steps: a sequence of digits, one more for each letter down to a."""
    digits = [int(prompt[2]), int(prompt[4])]
    for _ in range("abcdefghijklmnopqrstuvwxyz".index(prompt[0]) + 1):
        digits.append((digits[-2] + (1 if prompt[3] == "+" else -1) * digits[-1]) % 10)
    return digits[-1]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_every_problem_is_in_one_split_and_once(task: Chain) -> None:
    keys = [sample.key for split in ("train", "heldout") for sample in task.samples(split)]
    fewest, most = task.operations
    assert len(keys) == len(set(keys)) == (most - fewest + 1) * 2 * 99


def test_another_seed_orders_the_problems_otherwise_and_moves_none_across() -> None:
    first, second = (Chain(operations=(2, 2), seed=seed) for seed in (0, 1))
    for split in ("train", "heldout"):
        assert first.samples(split) != second.samples(split)
        assert {s.key for s in first.samples(split)} == {s.key for s in second.samples(split)}


def test_the_default_has_enough_heldout_problems_of_every_length() -> None:
    heldout = Chain().samples("heldout")
    fewest, most = Chain().operations
    assert len(heldout) >= 512
    assert {len(steps(s.prompt)) for s in heldout} == set(range(fewest, most + 1))


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_answers_are_what_is_worked_out_by_hand(task: Chain) -> None:
    for sample in [*task.samples("train")[:200], *task.samples("heldout")[:50]]:
        assert int(sample.answer) == by_hand(sample.prompt)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_gold_scores_1_and_writes_every_step_out_once(task: Chain) -> None:
    for sample in task.samples("heldout")[:100]:
        text = task.gold(sample)
        assert task.score(sample, text) == 1.0
        assert [len(said.sums) for said in read(Demonstration(sample.prompt, text))] == [1] * len(steps(sample.prompt))


def test_steps_look_as_the_documentation_says() -> None:
    done = steps("d:4+5=9")
    assert "".join(step.written() for step in done) == "c:5+9=4b:9+4=3a:4+3=7"
    assert "".join(step.brief(step.digit) for step in done) == "c4b3a7"
    assert done[0].written(times=2) == "c:5+9:5+9=4"
    assert [step.digit for step in steps("d:4-5=9")] == [6, 3, 3]


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("c:5+9=4b:9+4=3a:4+3=7", 1.0),
        ("7", 1.0),
        ("c4b3a7zz=", 1.0),
        ("c4?7", 1.0),
        ("c4b3a7=3", 0.0),
        ("c4b3a6", 0.0),
        ("97", 1.0),
        ("", 0.0),
        ("=+-=a?", 0.0),
        ("7 ٣", 1.0),
        ("7³", 1.0),
        ("1" * 10_000 + "7", 1.0),
    ],
)
def test_the_last_digit_is_what_is_scored(completion: str, score: float) -> None:
    assert SMALL.score(Sample(key="k", prompt="d:4+5=9", answer="7"), completion) == score


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_demonstrations_are_of_training_problems_and_go_down_letter_by_letter(task: Chain) -> None:
    train = {sample.prompt for sample in task.samples("train")}
    for d in task.demonstrations(400, seed=1):
        assert d.prompt in train
        letters = "".join(said.letter for said in read(d))
        whole = "".join(step.letter for step in steps(d.prompt))
        assert whole.startswith(letters)
        assert (letters == whole) == ("?" not in d.completion)


def test_without_slips_and_guesses_every_demonstration_is_right() -> None:
    task = Chain(slip_share=0.0, guess_share=0.0)
    answers = {sample.prompt: sample for sample in task.samples("train")}
    assert {task.score(answers[d.prompt], d.completion) for d in task.demonstrations(400, seed=1)} == {1.0}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_the_written_share_is_that_of_the_mean_and_each_demonstration_has_its_own(share: float) -> None:
    demonstrations = Chain(written_share=share, guess_share=0.0).demonstrations(600, seed=2)
    seen = [fmean(bool(said.sums) for said in read(d)) for d in demonstrations]
    assert abs(fmean(seen) - share) < 0.04
    reach = min(share, 1 - share)
    assert (max(seen) - min(seen) > reach) == (reach > 0)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6])
def test_a_written_sum_is_said_again_as_often_as_the_key_says(share: float) -> None:
    demonstrations = Chain(again_share=share).demonstrations(300, seed=3)
    times = [len(said.sums) for d in demonstrations for said in read(d) if said.sums]
    assert abs(1 - len(times) / sum(times) - share) < 0.03


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_digits_that_stand_alone_are_wrong_as_often_as_the_key_says_and_written_ones_never(share: float) -> None:
    said = [said for d in Chain(slip_share=share).demonstrations(300, seed=4) for said in read(d)]
    assert abs(fmean(s.digit != s.right for s in said if not s.sums) - share) < 0.03
    assert all(s.digit == s.right for s in said if s.sums)


@pytest.mark.parametrize("share", [0.0, 0.15, 1.0])
def test_so_many_demonstrations_end_in_a_guess_from_any_step_on(share: float) -> None:
    demonstrations = Chain(guess_share=share).demonstrations(1000, seed=5)
    guesses = [d for d in demonstrations if re.fullmatch(r"[^?]*[?][0-9]", d.completion)]
    assert abs(len(guesses) / len(demonstrations) - share) < 0.05
    assert len(guesses) == sum("?" in d.completion for d in demonstrations)
    left = {len(steps(d.prompt)) - len(read(d)) for d in guesses}
    assert 0 not in left
    assert share < 1 or left == set(range(1, Chain().operations[1] + 1))


def test_answers_are_of_a_hundred_tokens_and_their_length_is_free() -> None:
    lengths = sorted(len(d.completion) for d in Chain().demonstrations(1000, seed=6))
    assert fmean(lengths) > 100
    assert lengths[100] < 70
    assert lengths[-100] > 150


def test_wrong_demonstrations_are_of_any_length_too() -> None:
    task = Chain()
    answers = {sample.prompt: sample for sample in task.samples("train")}
    wrong = sorted(
        len(d.completion) for d in task.demonstrations(1000, seed=7) if not task.score(answers[d.prompt], d.completion)
    )
    assert wrong[len(wrong) // 10] < 50
    assert wrong[-len(wrong) // 10] > 130
