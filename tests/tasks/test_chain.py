"""Laws of the chain task: splits that never meet, right demonstrations, and a length that is the policy's choice."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
from statistics import fmean

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstrates
from groupwise.tasks.chain import OPERANDS, Chain, applied, steps
from groupwise.tasks.make import task as made

SMALL = Chain(operations=(2, 3), problems=400, heldout_share=0.2)
TASKS = [Chain(), SMALL, Chain(operations=(5, 9), problems=800, seed=5)]


def by_hand(prompt: str) -> int:
    """The answer as Python computes it: `4a+9b*3=` is (4+9)*3 modulo 10."""
    text = re.sub(r"[a-z]", ")", prompt.rstrip("="))
    return eval("(" * text.count(")") + text) % 10


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_no_problem_is_in_both_splits_or_twice_in_one(task: Chain) -> None:
    keys = [sample.key for split in ("train", "heldout") for sample in task.samples(split)]
    assert len(keys) == len(set(keys)) <= task.problems


def test_another_seed_draws_other_problems_and_moves_none_across() -> None:
    first, second = (Chain(operations=(2, 2), problems=2000, seed=seed) for seed in (0, 1))
    assert first.samples("train") != second.samples("train")
    for one, other in ((first, second), (second, first)):
        assert not {s.key for s in one.samples("train")} & {s.key for s in other.samples("heldout")}


def test_the_default_has_enough_heldout_problems_of_every_length() -> None:
    heldout = Chain().samples("heldout")
    fewest, most = Chain().operations
    assert len(heldout) >= 512
    assert {len(steps(s.prompt)) for s in heldout} == set(range(fewest, most + 1))


def test_samples_are_the_same_in_another_process() -> None:
    code = "from groupwise.tasks.chain import Chain as C; print([s.key for s in C(problems=400).samples('heldout')])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == str([s.key for s in Chain(problems=400).samples("heldout")])


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_answers_are_what_python_computes(task: Chain) -> None:
    for sample in [*task.samples("train")[:200], *task.samples("heldout")[:50]]:
        assert int(sample.answer) == by_hand(sample.prompt)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_gold_scores_1_and_writes_every_step_out(task: Chain) -> None:
    for sample in task.samples("heldout")[:100]:
        text = task.gold(sample)
        assert task.score(sample, text) == 1.0
        assert len(text) == 5 * len(steps(sample.prompt))


def test_steps_look_as_the_documentation_says() -> None:
    done = steps("4a+9b*3c-7=")
    assert "".join(step.written for step in done) == "a+9=3b*3=9c-7=2"
    assert "".join(step.brief for step in done) == "a3b9c2"


@pytest.mark.parametrize(("sign", "operands"), OPERANDS.items())
def test_a_wrong_digit_never_becomes_right_again(sign: str, operands: range) -> None:
    for operand in operands:
        assert {applied(value, sign, operand) for value in range(10)} == set(range(10))


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("a+9=3b*3=9c-7=2", 1.0),
        ("2", 1.0),
        ("a3b9c2zz=", 1.0),
        ("a3b9c2=3", 0.0),
        ("a3b9c1", 0.0),
        ("92", 1.0),
        ("", 0.0),
        ("=+-=a", 0.0),
        ("2 ٣", 1.0),
        ("2³", 1.0),
        ("1" * 10_000 + "2", 1.0),
    ],
)
def test_the_last_digit_is_what_is_scored(completion: str, score: float) -> None:
    assert SMALL.score(Sample(key="k", prompt="4a+9b*3c-7=", answer="2"), completion) == score


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_every_demonstration_is_right_and_of_a_training_problem(task: Chain) -> None:
    train = {sample.prompt: sample for sample in task.samples("train")}
    assert {task.score(train[d.prompt], d.completion) for d in task.demonstrations(400, seed=1)} == {1.0}


def shares(task: Chain) -> list[float]:
    """Of each demonstration, the share of its steps that are written out."""
    shown = [re.findall(r"[a-z](.)", d.completion) for d in task.demonstrations(600, seed=2)]
    return [fmean(mark in "+-*" for mark in marks) for marks in shown]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_the_written_share_is_that_of_the_mean_and_each_demonstration_has_its_own(share: float) -> None:
    seen = shares(Chain(problems=400, written_share=share))
    assert abs(fmean(seen) - share) < 0.04
    reach = min(share, 1 - share)
    assert (max(seen) - min(seen) > reach) == (reach > 0)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6])
def test_a_step_is_said_again_as_often_as_the_key_says(share: float) -> None:
    task = Chain(problems=400, again_share=share)
    letters = "".join(re.findall("[a-z]", "".join(d.completion for d in task.demonstrations(300, seed=3))))
    again = sum(one == other for one, other in itertools.pairwise(letters))
    assert abs(again / len(letters) - share) < 0.03


def test_what_is_said_again_is_the_same_word_for_word() -> None:
    for d in Chain(problems=400, again_share=0.5).demonstrations(50, seed=4):
        said = re.findall(r"[a-z](?:[+*-][0-9]=)?[0-9]", d.completion)
        assert "".join(said) == d.completion
        assert len(set(said)) == len({step[0] for step in said})


def test_answers_are_of_a_hundred_tokens_and_their_length_is_free() -> None:
    lengths = [len(d.completion) for d in Chain().demonstrations(400, seed=5)]
    assert fmean(lengths) > 95
    assert min(lengths) < 65 < 140 < max(lengths)


def test_demonstrations_depend_on_the_seed_alone() -> None:
    random.seed(1)
    first = SMALL.demonstrations(50, seed=1)
    random.seed(2)
    assert first == SMALL.demonstrations(50, seed=1) != SMALL.demonstrations(50, seed=2)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_the_alphabet_covers_every_prompt_and_completion(task: Chain) -> None:
    used = {c for d in task.demonstrations(300, seed=0) for c in d.prompt + d.completion}
    assert used <= set(task.alphabet)
    assert isinstance(task, Demonstrates)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"operations": [1, 3]}, "task.operations must be"),
        ({"operations": [4, 3]}, "task.operations must be"),
        ({"operations": [4, 27]}, "task.operations must be"),
        ({"operations": [4]}, "task.operations = "),
        ({"operations": "many"}, "task.operations = 'many': must be a list of 2 whole numbers"),
        ({"written_share": 1.5}, "task.written_share must be from 0 to 1, not 1.5"),
        ({"again_share": 0.95}, "task.again_share must be from 0 to 0.9, not 0.95"),
        ({"again_share": float("nan")}, "task.again_share"),
        ({"heldout_share": 0.0}, "task.heldout_share must lie between 0 and 1"),
        ({"problems": 1}, "task.problems must be at least 2"),
        ({"problems": 2, "heldout_share": 1e-9}, "leaves a split empty"),
        ({"modulus": 10}, "task.modulus: chain has no such key"),
    ],
)
def test_an_impossible_task_is_refused_in_one_line_that_names_the_key(settings: dict, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as refusal:
        made("chain", settings)
    assert "\n" not in str(refusal.value)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UsageError, match="chain has the splits train and heldout, not 'test'"):
        SMALL.samples("test")
