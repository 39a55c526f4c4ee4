"""Laws of the arithmetic task: splits that never meet, scores that read the last integer, demonstrations that hold."""

from __future__ import annotations

import itertools

import pytest

from groupwise.core.samples import Sample
from groupwise.core.task import ScoresSteps
from groupwise.tasks.arithmetic import Arithmetic, worked

SMALL = Arithmetic(operands=(2, 3), largest=3)
TASKS = [Arithmetic(), SMALL, Arithmetic(operands=(4, 6), largest=12, problems=3000, seed=5)]


def test_another_seed_draws_another_order_but_moves_no_problem_across() -> None:
    first, second = (Arithmetic(operands=(4, 4), largest=9, problems=4000, seed=seed) for seed in (0, 1))
    assert first.samples("train") != second.samples("train")
    for one, other in ((first, second), (second, first)):
        assert not {s.key for s in one.samples("train")} & {s.key for s in other.samples("heldout")}


def test_the_default_has_enough_heldout_problems_of_every_length() -> None:
    heldout = Arithmetic().samples("heldout")
    assert len(heldout) >= 512
    fewest, most = Arithmetic().operands
    counted = {len(s.prompt) for s in heldout[:512]}
    assert counted == {2 * n for n in range(fewest, most + 1)}


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_answers_are_what_python_computes(task: Arithmetic) -> None:
    for sample in [*task.samples("train")[:200], *task.samples("heldout")[:50]]:
        assert int(sample.answer) == eval(sample.prompt.rstrip("="))


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_every_step_of_a_worked_answer_has_the_same_value(task: Arithmetic) -> None:
    for sample in task.samples("train")[:200]:
        steps = worked(sample.prompt).split("=")
        assert {eval(step) for step in steps} == {int(sample.answer)}
        assert len(steps) == len(sample.prompt.replace("=", "").replace("-", "+").split("+")) - 1


def test_worked_looks_as_the_documentation_says() -> None:
    assert worked("3+1-4+2=") == "4-4+2=0+2=2"
    assert worked("0-4-4+1=") == "-4-4+1=-8+1=-7"


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("-3", 1.0),
        ("1-4=-3", 1.0),
        ("so it is -3.", 1.0),
        ("-03", 1.0),
        ("3", 0.0),
        ("-3=5", 0.0),
        ("-3 4", 0.0),
        ("0-3", 0.0),  # an operator, not a sign: the last integer is 3
        ("--3", 1.0),
        ("-33", 0.0),
        ("", 0.0),
        ("-", 0.0),
        ("=+-=", 0.0),
        ("9" * 10_000, 0.0),
        ("9" * 10_000 + "=-3", 1.0),
        ("-³", 0.0),
        ("junk -٣", 0.0),
    ],
)
def test_the_last_integer_is_what_is_scored(completion: str, score: float) -> None:
    assert SMALL.score(Sample(key="k", prompt="1-4=", answer="-3"), completion) == score


def steps(completion: str, prompt: str = "3+1-4+2=", answer: str = "2") -> list[tuple[int, float]]:
    return SMALL.steps(Sample(key="k", prompt=prompt, answer=answer), completion)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_every_step_of_a_worked_answer_earns(task: Arithmetic) -> None:
    assert isinstance(task, ScoresSteps)
    for sample in task.samples("train")[:200]:
        text = worked(sample.prompt)
        found = task.steps(sample, text)
        assert [score for _, score in found] == [1.0] * (text.count("=") + 1)
        ends = [-1, *(end for end, _ in found)]
        assert [text[a + 1 : b] for a, b in itertools.pairwise(ends)] == text.split("=")


@pytest.mark.parametrize(
    ("completion", "scores"),
    [
        ("2", [1]),  # right at once: one step
        ("4-4+2=2", [1, 1]),
        ("4-4+2=4-4+2=0+2=0+2=2", [1, 0, 1, 0, 1]),  # repeating earns nothing
        ("3+1-4+2=4-4+2=2", [0, 1, 1]),  # copying the problem earns nothing
        ("3+1-4+2+0=0+0+0+0+2", [0, 0]),  # padding neither
        ("2=2=02=+2=2+0", [1, 0, 0, 0, 0]),  # nothing is left to earn after one term
        ("0+2=9+9+9=0+2=2", [1, 0, 0, 1]),  # nor does a detour open the door again
        ("5=2", [0, 1]),
        ("4-4+3=3", [0, 0]),
        ("0002", [1]),
        ("", [0]),
        ("=2=", [0, 1, 0]),
        ("--2=2-=+=2 =a=2.0=２=", [0] * 8),
        ("0+" + "9" * 10_000 + "=2", [0, 1]),
        ("0" * 10_000 + "2", [0]),
        ("1" + "+0" * 10_000 + "+1", [0]),
    ],
)
def test_a_step_earns_only_where_it_brings_the_problem_closer(completion: str, scores: list[int]) -> None:
    assert [score for _, score in steps(completion)] == scores


def test_steps_end_where_their_text_ends() -> None:
    assert [end for end, _ in steps("=12==3")] == [0, 3, 4, 6]
    assert [end for end, _ in steps("")] == [0]


def test_no_text_earns_more_than_the_worked_answer() -> None:
    """All texts of up to six characters over a small alphabet."""
    most = max(
        sum(score for _, score in steps("".join(text), prompt="1+1-0=", answer="2"))
        for length in range(7)
        for text in itertools.product("12+=", repeat=length)
    )
    assert most == len(worked("1+1-0=").split("=")) == 2


def test_demonstrations_show_training_problems_only() -> None:
    task = Arithmetic()
    train = {sample.prompt for sample in task.samples("train")}
    assert all(d.prompt in train for d in task.demonstrations(3000, seed=1))


def test_worked_demonstrations_are_right_and_guesses_mostly_wrong() -> None:
    task = Arithmetic()
    answers = {sample.prompt: sample for sample in task.samples("train")}
    shown = [(d, task.score(answers[d.prompt], d.completion)) for d in task.demonstrations(4000, seed=2)]
    steps = [score for d, score in shown if d.completion == worked(d.prompt)]
    guesses = [score for d, score in shown if d.completion != worked(d.prompt)]
    assert set(steps) == {1.0}
    assert abs(len(steps) / len(shown) - task.worked_share) < 0.04
    assert sum(guesses) / len(guesses) < 0.2


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_worked_share_is_obeyed_at_its_ends(share: float) -> None:
    shown = Arithmetic(worked_share=share).demonstrations(300, seed=0)
    assert {d.completion == worked(d.prompt) for d in shown} == {bool(share)}


def test_a_recipe_may_write_operands_as_a_list() -> None:
    assert Arithmetic(operands=[2, 3], largest=3) == SMALL  # type: ignore[arg-type]
