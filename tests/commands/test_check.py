"""Laws of a check: golds are right, what is made wrong is wrong, and only real faults are faults."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from groupwise.commands.check import problems, trials
from groupwise.commands.check.findings import CheckSection, Level, Remark, ShownProblem, fault, note, print_sections
from groupwise.commands.check.problems import counts, duplicates
from groupwise.commands.check.trials import (
    Kind,
    Trial,
    TrialScores,
    off_by,
    opening_findings,
    own_reward_findings,
    score_trials,
    shifted,
    task_findings,
    ungraded_findings,
    unscored_findings,
)
from groupwise.core.machine.terminal import Terminal
from groupwise.core.samples import Cause, Reward, Sample, ScoreResult
from groupwise.core.task import Task
from groupwise.rewards.functions.form import FORMS, Format, Tags
from groupwise.rollout.scoring import RewardWeights, Scorer
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.tasks.make import task

ARITHMETIC = Arithmetic()

TASKS = {
    "arithmetic": {},
    "products": {},
    "code": {"problems": 200},
    "reasoning_gym": {
        "generators": {"chain_sum": {}, "spell_backward": {}, "gcd": {}},
        "problems": 60,
        "question": "short",
        "answer_after": "=",
    },
}


@pytest.mark.parametrize("name", TASKS)
def test_golds_score_1_and_what_is_made_wrong_does_not(name: str) -> None:
    named = task(name, TASKS[name])
    known = trials.trials(named, named.samples("heldout")[:12])
    assert len(known) == 12
    for trial in known:
        assert named.score(trial.sample, trial.completions[Kind.GOLD]) == 1.0
        for kind in set(trials.WRONG) & trial.completions.keys():
            assert named.score(trial.sample, trial.completions[kind]) < 1.0, (kind, trial)
        assert Kind.OTHER in trial.completions


def test_tags_are_in_a_gyms_golds() -> None:
    gym = task("reasoning_gym", {"generator": "chain_sum", "problems": 40, "tags": True})
    (trial,) = trials.trials(gym, gym.samples("train")[:1])
    assert trial.completions[Kind.GOLD].endswith(f"<answer>{trial.sample.answer}</answer>")
    assert trial.completions[Kind.MORE].endswith(f"<answer>{int(trial.sample.answer) + 1}</answer>")
    assert gym.score(trial.sample, trial.completions[Kind.MORE]) < 1


def data(folder: Path, rows: list[dict[str, str]], **settings: object) -> Task:
    """A task of these rows."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return task("data", {"path": str(path), **settings})


def test_a_data_tasks_gold_is_its_solution_else_its_answer(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}?", "answer": "2", "solution": "1 + 1 = <<1+1=2>>2"} for i in range(30)]
    bare = data(tmp_path, rows, check="numeric")
    worked = data(tmp_path, rows, check="numeric", solution="solution", solution_without="<<.*>>")
    assert [trials.gold_of(t, t.samples("train")[0]) for t in (bare, worked)] == ["2", "1 + 1 = 2"]


@pytest.mark.parametrize(
    ("answer", "more", "less"),
    [
        ("72", "73", "71"),
        ("1,999", "2,000", "1,998"),
        ("$18.50", "$19.50", "$17.50"),
        ("-1", "0", "-2"),
        ("0", "1", "-1"),
        ("9 apples", "10 apples", "8 apples"),
        ("3/4", "", ""),
        ("2, 3", "", ""),
        ("x", "", ""),
        ("return x+1", "", ""),
        ("", "", ""),
    ],
)
def test_a_number_keeps_its_written_form(answer: str, more: str, less: str) -> None:
    assert (shifted(answer, 1), shifted(answer, -1)) == (more, less)


def test_the_last_place_of_the_answer_is_the_one_that_changes() -> None:
    assert off_by("2 and 2 is 4\n#### 2", "2", 1) == "2 and 2 is 4\n#### 3"
    assert off_by("two", "2", 1) == "3"


def given(reward: Callable[[float, Kind, int], float], count: int = 100) -> TrialScores:
    """A reward of (noise, kind, number of the problem), on `count` problems."""
    rng = random.Random(0)
    kinds = [kind for kind in Kind if kind not in (Kind.BARE, Kind.PROMPT)]
    return TrialScores("mine", [{k: ScoreResult(reward(rng.random(), k, i)) for k in kinds} for i in range(count)])


def levels(findings: list[Remark]) -> list[Level]:
    return [finding.level for finding in findings]


RIGHT = (Kind.GOLD, Kind.BARE)
JUDGED: dict[str, tuple[Callable[[float, Kind, int], float], list[Level]]] = {
    "right": (lambda noise, kind, i: float(kind in RIGHT), [Level.OK]),
    "noisy but right": (lambda noise, kind, i: float(kind in RIGHT) + noise, [Level.OK]),
    "part of a point when close": (lambda noise, kind, i: {Kind.GOLD: 1, Kind.MORE: 0.5}.get(kind, 0), [Level.OK]),
    "form": (lambda noise, kind, i: float(kind is not Kind.EMPTY), [Level.NOTE]),
    "constant": (lambda noise, kind, i: 0.3, [Level.NOTE]),
    "noise": (lambda noise, kind, i: noise, [Level.NOTE]),
    "prefers short": (lambda noise, kind, i: 10.0 * (kind is Kind.EMPTY) - (kind is Kind.MORE) * 0.01, [Level.NOTE]),
    "prefers long": (lambda noise, kind, i: -10.0 * (kind is Kind.EMPTY) + (kind is Kind.MORE) * 0.01, [Level.NOTE]),
    "off by one": (lambda noise, kind, i: float(kind in (*RIGHT, Kind.MORE)), [Level.OK, Level.FAULT]),
    "off by one now and then": (
        lambda noise, kind, i: float(kind in RIGHT or (kind is Kind.LESS and i % 5 == 0)),
        [Level.OK, Level.FAULT],
    ),
    "off by one, and much else": (
        lambda noise, kind, i: 5.0 * (kind in (*RIGHT, *trials.OFF_BY_ONE)),
        [Level.OK, Level.FAULT],
    ),
    "upside down": (lambda noise, kind, i: float(kind is Kind.MORE), [Level.OK, Level.FAULT]),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_reward_is_judged_by_differences(name: str) -> None:
    reward, expected = JUDGED[name]
    assert levels(own_reward_findings(given(reward))) == expected


@pytest.mark.parametrize(
    ("reward", "level", "words"),
    [
        (lambda kind: ScoreResult(float(kind is Kind.EMPTY)), Level.OK, "mean 1.000 on empty completions, 0.000 on pr"),
        (lambda kind: ScoreResult(2.0), Level.NOTE, "2.000 on prompts in the place of completions; all the same"),
        (lambda kind: ScoreResult(), Level.NOTE, "mine: returns None for all 40 completions tried, so it has no vote"),
        (lambda kind: ScoreResult(cause=Cause.EXCEPTION, detail="KeyError: 'x'"), Level.FAULT, "40 exception; KeyErr"),
        (
            lambda kind: ScoreResult(float(kind is Kind.PROMPT) if kind is Kind.PROMPT else math.nan),
            Level.NOTE,
            "it has a vote on 20 of 40, and returns None for the others; all the same",
        ),
    ],
)
def test_a_reward_without_right_answers_is_tried_on_what_any_data_has(
    reward: Callable[[Kind], ScoreResult], level: Level, words: str
) -> None:
    known = trials.ungraded_trials([Sample(f"{i}", f"Say {i}", "") for i in range(20)])
    scores = TrialScores("mine", [{kind: reward(kind) for kind in trial.completions} for trial in known])
    (finding,) = [*ungraded_findings(scores), *unscored_findings(scores, 0.05)]
    assert finding.level is level
    assert words in finding.what


def test_noise_on_few_problems_is_no_correctness() -> None:
    noisy = given(lambda noise, kind, i: -noise, count=6)
    gaps = [gold - other for gold, other in noisy.together(Kind.GOLD, Kind.OTHER)]
    assert sum(gaps) / len(gaps) > 0.05
    assert levels(own_reward_findings(noisy)) == [Level.NOTE]


@pytest.mark.parametrize(("wrong", "level"), [(0, Level.OK), (5, Level.NOTE), (6, Level.FAULT), (100, Level.FAULT)])
def test_a_task_that_solves_wrong_answers_is_a_fault_above_one_in_twenty(wrong: int, level: Level) -> None:
    lenient = given(lambda noise, kind, i: float(kind in RIGHT or (kind is Kind.MORE and i < wrong)))
    (finding,) = [finding for finding in task_findings(lenient, []) if "+ 1" in finding.what]
    assert finding.level is level
    assert ("it scores 1 on answers that are off by one" in finding.what) == (level is Level.FAULT)


@pytest.mark.parametrize(("missed", "level"), [(5, Level.OK), (6, Level.FAULT)])
def test_a_task_that_does_not_know_its_own_answers_names_them(missed: int, level: Level) -> None:
    strict = given(lambda noise, kind, i: float(kind in RIGHT and i >= missed))
    known = [Trial(Sample(f"row {i}", "?", f"{i}"), {Kind.GOLD: f"it is {i}"}) for i in range(100)]
    first = next(task_findings(strict, known))
    assert first.level is level
    named = "row 0 scores 0 for 'it is 0', answer '0', row 1 scores 0 for 'it is 1', answer '1', row 2"
    assert (named in first.what) == (level is Level.FAULT)
    assert "row 3" not in first.what


def test_missing_scores_are_counted_by_cause() -> None:
    def mark(kind: Kind, i: int) -> ScoreResult:
        cause = Cause.NAN if i % 2 else Cause.EXCEPTION
        return ScoreResult(cause=cause, detail="a\nlast") if i < 4 else ScoreResult(1.0)

    mine = TrialScores("mine", [{kind: mark(kind, i) for kind in (Kind.GOLD, Kind.EMPTY)} for i in range(10)])
    assert unscored_findings(mine, 0.4) == [
        note("mine: 8 of 20 completions could not be scored: 4 exception, 4 nan; last")
    ]
    assert unscored_findings(mine, 0.39)[0].level is Level.FAULT


def test_a_quick_reward_is_scored_here_and_learns_the_ids() -> None:
    known = trials.trials(ARITHMETIC, ARITHMETIC.samples("heldout")[:40])
    form = FORMS["format"](pattern="[0-9]+")
    seen = []
    encode = lambda text: seen.append(text) or (1, 2)  # noqa: E731
    both = score_trials(Scorer(ARITHMETIC, str, RewardWeights({"form": 1.0}, {"form": form})), known, encode)
    assert [reward.name for reward in both] == ["task", "form"]
    assert len(both[0].results) == len(both[1].results) == 40
    assert both[0].values(Kind.GOLD) == [1.0] * 40
    assert set(seen) == {text for trial in known for text in trial.completions.values()}


def test_a_slow_reward_is_left_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "SECONDS", 0.0)
    known = trials.trials(ARITHMETIC, ARITHMETIC.samples("heldout")[:40])
    (slow,) = score_trials(Scorer(ARITHMETIC, str), known, lambda text: ())
    assert len(slow.results) == 1


class Fixed:
    """A task of given prompts."""

    alphabet = ""
    quick = True

    def __init__(self, train: list[str], heldout: list[str]) -> None:
        self.prompts = {"train": train, "heldout": heldout}

    def samples(self, split: str) -> list[Sample]:
        return [Sample(f"{split} {i}", text, "a") for i, text in enumerate(self.prompts[split])]

    def score(self, sample: Sample, completion: str) -> float:
        return 0.0


def test_duplicates_by_white_space_and_by_capitals() -> None:
    def findings(train: list[str], heldout: list[str]) -> list[Remark]:
        fixed: Task = Fixed(train, heldout)
        return duplicates(fixed)

    assert levels(findings(["a", "b"], ["c"])) == [Level.OK]
    assert findings(["a b", "c"], ["x", " a\nb "]) == [
        fault("1 held-out problem is a training problem too, but for white space (heldout 1 is train 0)")
    ]
    assert findings(["Abc"], ["aBC", "abc"]) == [
        note(
            "2 held-out problems are training problems too, but for capital letters (heldout 0 is train 0, heldout 1 "
            "is train 0)"
        )
    ]
    assert findings(["a", "a ", "b"], ["c", "c"]) == [
        note("1 of 3 training problems come again in their split"),
        note("1 of 2 held-out problems come again in their split"),
    ]


def test_a_problem_with_two_answers_is_a_fault_and_said_once(tmp_path: Path) -> None:
    rows = [*({"prompt": f"{i}?", "answer": str(i)} for i in range(30)), {"prompt": " 3?", "answer": "7"}]
    named = data(tmp_path, rows, check="numeric")
    (told,) = [finding for finding in duplicates(named) if finding.level is Level.FAULT]
    assert told.what.startswith("1 problem has different gold answers (rows.jsonl:4: '3', rows.jsonl:31: '7')")
    assert not [finding for finding in counts(named) if "different gold answers" in finding.what]


@pytest.mark.parametrize(
    ("prompt", "reward", "words"),
    [
        ("<user>? <assistant>\n<think>\n", Tags(), "end with <think> and the right form scores 0.375; set"),
        ("<user>? <assistant>", Tags(opened=True), "do not end with <think> and the right form scores"),
        ("? <reason>", Tags(("reason", "answer")), "set rewards.mine.opened = true"),
        ("? <think>", Format(r"^\s*<think>.*</think>.*"), "which its pattern wants of the completion again"),
        ("? <think>", Tags(opened=True), ""),
        ("? <think>", Format(r".*</think>.*"), ""),
        ("?", Tags(), ""),
        ("? <b>", Tags(), ""),
    ],
)
def test_a_tag_that_the_prompt_opens_is_not_wanted_of_the_completion(prompt: str, reward: Reward, words: str) -> None:
    found = list(opening_findings(prompt, {"mine": reward}))
    assert [finding.level for finding in found] == [Level.FAULT] * bool(words)
    assert all(words in finding.what for finding in found)


def test_what_is_trained_is_green_on_a_terminal_and_marked_elsewhere() -> None:
    section = CheckSection(
        "rows", [fault("it [bold]leaks")], problems=[ShownProblem("key", "asked [x]", "answered", 3, 2)]
    )

    def shown(terminal: bool) -> tuple[int, str]:
        out = io.StringIO()
        shown_on = Terminal(file=out, force_terminal=terminal, color_system="standard" if terminal else None)
        return print_sections([section], shown_on), out.getvalue()

    count, plain = shown(False)
    assert count == 1
    assert "  key: 3 prompt tokens, 2 trained tokens\nasked [x]«answered»\n" in plain
    assert plain.endswith("1 fault\n  rows: it [bold]leaks\n")
    _, coloured = shown(True)
    assert "«" not in coloured
    assert "\x1b[2masked [x]\x1b[0m\x1b[1;32manswered\x1b[0m" in coloured


def test_the_kinds_of_gold_answers_are_counted_and_those_that_no_verdict_is_safe_for_are_named(tmp_path: Path) -> None:
    answers = ["5", "x+1", "f'(x)", r"\{1, 2\}", "7", r"\int_0^1 f"]
    rows = [{"prompt": f"q{n}", "answer": answer} for n, answer in enumerate(answers)]
    named = data(tmp_path, rows, heldout_share=0.0)
    counted, unsafe = problems.kinds(named, named.samples("train")[:10])
    words = counted.what.removeprefix("kinds of gold answers: ").split(", ")
    assert sorted(words) == ["1 expression", "1 set", "2 formula", "2 number"]
    assert unsafe.level is Level.NOTE
    assert "2 of 6 gold answers are compared letter by letter" in unsafe.what
    assert "rows.jsonl:3" in unsafe.what
    numeric = data(tmp_path, rows, heldout_share=0.0, check="numeric", unreadable_limit=0.9)
    assert list(problems.kinds(numeric, numeric.samples("train")[:10])) == []


def test_the_letters_of_options_are_counted_and_the_setting_that_takes_no_others_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}", "answer": answer} for n, answer in enumerate("ADBDA")]
    named = data(tmp_path, rows, heldout_share=0.0, check="choice")
    counted, open_ended = problems.kinds(named, named.samples("train")[:10])
    assert (counted.level, counted.what) == (Level.OK, "gold letters: 2 A, 1 B, 2 D")
    assert open_ended.level is Level.NOTE
    assert "letters = 'ABCD' under [task]" in open_ended.what
    named = data(tmp_path, rows, heldout_share=0.0, check="choice", letters="ABCDE")
    assert [found.level for found in problems.kinds(named, named.samples("train")[:10])] == [Level.OK]
