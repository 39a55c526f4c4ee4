"""The answers of a report's first lines: what is known, by how much, and what is not known yet."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from groupwise.health.checks import INVARIANTS, Invariant
from groupwise.health.symptoms.base import BAD, GOOD, NEUTRAL, WARN, Finding, History
from groupwise.health.watch import findings
from groupwise.reports.page.answers import QUESTIONS, Known, answers, check_lines
from groupwise.reports.records import CheckLine, RolloutGroup
from tests.health.health_rows import (
    DAPO,
    JUDGED,
    RECIPE,
    WITH_FORMAT,
    Rows,
    checks,
    dropping,
    evaluation,
    everywhere,
    healthy,
    planted,
    rates,
)


def a_run(rows: Rows | None = None, ended: bool = True, **changes: Any) -> Known:
    """What is told of a finished run that learned, with changes."""
    rows = healthy() if rows is None else rows
    evaluations = changes.pop("evaluations", [evaluation(0, 0.479), evaluation(40, 0.973, standard_error=0.0033)])
    table, within_group = changes.pop("recipe", RECIPE), changes.pop("compares_within_group", True)
    history = History(rows, evaluations, table, within_group)
    seen = findings(dataclasses.replace(history, compares_within_group=None))
    return Known(**{"history": history, "finished": ended, "findings": seen, **changes})


def one(question: str, run: Known) -> tuple[str, str]:
    found = {a.question: a for a in answers(run)}
    return found[question].answer, found[question].tone


def sentences(text: str) -> int:
    return len(re.findall(r"[a-z%)\d\"]\.(?= [A-Z]|$)", text))


def group(prompt: str = "3+4+1=", answer: str = "8") -> RolloutGroup:
    return RolloutGroup(1, 0, "k", "", prompt, answer, "mixed", "trained", True, [])


RUNS: Mapping[str, Callable[[], Known]] = {
    "finished": a_run,
    "going": lambda: a_run(healthy(12), ended=False, evaluations=[evaluation(0, 0.479)]),
    "crashed before its first step": lambda: a_run([], ended=False, evaluations=[evaluation(0, 0.479)]),
    "empty": lambda: Known(History(())),
    "no recipe": lambda: a_run(recipe={}),
    "no evaluation": lambda: a_run(evaluations=[]),
    "one step": lambda: a_run(healthy(1), ended=False),
    "reward model": lambda: a_run(
        everywhere(
            pass_rate=None,
            score_mean=None,
            learned_mean=lambda i: i / 40,
            groups_mixed_share=0.0,
            groups_all_right_share=0.0,
            groups_all_wrong_share=0.0,
        ),
        recipe=JUDGED,
        evaluations=[evaluation(0, None, measured_mean=0.1), evaluation(40, None, measured_mean=1.2)],
    ),
    "dapo": lambda: a_run(dropping(generated_tokens_dropped=3600, groups_fallback=2), recipe=DAPO),
    "troubled": lambda: a_run(planted(engine_probability_error=1.2, truncated_share=0.5)),
    "failed check": lambda: a_run(
        planted(1, checks=checks(**{"learner = engine": {"verdict": "fail", "value": 0.5, "limit": 1e-4}}))
    ),
    "with an example": lambda: a_run(groups=[group("  <b>3+4</b>\n " * 50)]),
}


@pytest.mark.parametrize("run", RUNS)
def test_the_five_questions_have_answers_of_two_sentences(run: str) -> None:
    found = answers(RUNS[run]())
    assert tuple(a.question for a in found) == QUESTIONS
    for answer in found:
        assert 1 <= sentences(answer.answer) <= 2, answer.answer
        assert "None" not in answer.answer
        assert "nan" not in answer.answer
        assert "\n" not in answer.answer
        assert answer.tone in (NEUTRAL, GOOD, WARN, BAD)


def test_a_run_that_learned_says_by_how_much() -> None:
    words, tone = one("Did it learn?", a_run())
    assert words == (
        "Yes: the held-out pass rate rose from 0.479 to 0.973 in 40 steps on 512 problems x 4 samples, by 0.494 "
        "(95 % 0.450 to 0.538, not paired, over 512 problems); completions grew from 6.7 to 10.7 tokens."
    )
    assert tone == GOOD


@pytest.mark.parametrize(
    ("before", "after", "words", "tone"),
    [
        (0.40, 0.60, "Yes", GOOD),
        (0.40, 0.45, "Yes", GOOD),
        (0.40, 0.415, "A little", GOOD),
        (0.40, 0.408, "A little", GOOD),
        (0.40, 0.403, "It cannot be told, at 40,000 problems (+0.003, 95 % -0.004 to 0.010); about 440,000", WARN),
        (0.40, 0.40, "It cannot be told", WARN),
        (0.40, 0.397, "It cannot be told", WARN),
        (0.40, 0.30, "No, it lost", BAD),
    ],
)
def test_learned_is_said_by_the_intervals(before: float, after: float, words: str, tone: str) -> None:
    many = {"problems": 40_000, "samples": 1, "standard_error": 0.0025}  # 95 % of +- 0.0048
    run = a_run(evaluations=[evaluation(s, x, **many) for s, x in ((0, before), (40, after))])
    answer, found = one("Did it learn?", run)
    assert answer.startswith(words)
    assert found == tone


def test_what_is_not_known_yet_is_said_so() -> None:
    going, _ = one("Did it learn?", RUNS["going"]())
    assert going.startswith("Not measured yet: in training the pass rate went from")
    assert "pass rate 0.479" in going
    assert one("Did it learn?", Known(History(())))[0] == "Not measured yet."
    assert "so far" in one("Did it learn?", a_run(ended=False))[0]
    assert "so far" in one("Is it healthy?", a_run(ended=False))[0]
    judged, _ = one("Did it learn?", RUNS["reward model"]())
    assert "learned" not in judged.split(":")[0]
    assert "from 0.1 to 1.2" in judged


def test_the_other_answers_hold_the_numbers() -> None:
    assert one("On what?", a_run(groups=[group()]))[0].endswith('For example: "3+4+1=", whose answer is "8".')
    assert "the rewards task (weight 1), format (weight 0.2)" in one("On what?", a_run(recipe=WITH_FORMAT))[0]
    assert one("Is it healthy?", a_run()) == (
        "Yes: all 2 checks that were measured held at every step, and nothing in the metrics of the last 10 steps "
        "warns.",
        GOOD,
    )
    words, tone = one("Is it healthy?", RUNS["troubled"]())
    assert words.startswith("No, though all 2 checks")
    assert "engine gap (1 more below)" in words
    assert tone == BAD
    words, tone = one("Is it healthy?", RUNS["failed check"]())
    assert words.startswith("No: the check 'learner = engine' failed at step 40.")
    words, _ = one("Why are some groups not training?", a_run())
    assert "5 % all wrong" in words
    assert "their advantages are 0, so they train only the KL term" in words
    words, tone = one("Why are some groups not training?", RUNS["dapo"]())
    assert "took 90 % of the generation" in words
    assert tone == WARN
    assert one("What would I try next?", a_run())[0].startswith("steps = 80.")


def test_learned_compares_the_first_evaluation_with_the_last() -> None:
    run = a_run(evaluations=[evaluation(0, 0.4), evaluation(20, 0.2), evaluation(40, 0.6)])
    words, _ = one("Did it learn?", run)
    assert words.startswith("Yes: the held-out pass rate rose from 0.400 to 0.600 in 40 steps")
    twice = a_run(evaluations=[evaluation(40, 0.4), evaluation(40, 0.4)])
    assert one("Did it learn?", twice)[0].startswith("Not measured:")


@pytest.mark.parametrize(
    ("before", "after", "start", "tone"), [(0.1, 1.2, "Yes:", GOOD), (1.2, 0.1, "No, it lost", BAD)]
)
def test_a_learned_score_rises_or_does_not(before: float, after: float, start: str, tone: str) -> None:
    judged = [
        evaluation(0, None, measured_mean=before, standard_error=0.1),
        evaluation(40, None, measured_mean=after, standard_error=0.1),
    ]
    words, found = one("Did it learn?", a_run(recipe=JUDGED, evaluations=judged))
    assert words.startswith(start)
    assert f"from {before:g} to {after:g}" in words
    assert found == tone


def test_training_is_told_from_then_to_now() -> None:
    words, _ = one("Did it learn?", a_run(rates((10, 0.3), (10, 0.6)), evaluations=[]))
    assert words == "Not measured: in training the pass rate went from 0.3 to 0.6 over 20 steps."


def test_healthy_without_a_check_is_no_praise_and_keeps_what_has_passed() -> None:
    words, tone = one("Is it healthy?", a_run(everywhere(checks={})))
    assert "no check was measured" in words
    assert tone == NEUTRAL
    rows = healthy()
    for row in rows[12:20]:
        row["effective_sample_share"] = 0.3
    run = a_run(rows, evaluations=[])
    assert one("Is it healthy?", run)[0].endswith("Earlier there was a warning: few effective samples.")
    assert one("What would I try next?", run)[0] == "steps = 80."  # nothing for what has passed


def test_advice_that_another_holds_already_is_not_said_twice() -> None:
    advice = ("easier problems and sampling.max_new_tokens = 64", "sampling.max_new_tokens = 64", "seed = 1")
    seen = [Finding(name, WARN, "", each) for name, each in zip("abc", advice, strict=True)]
    words, _ = one("What would I try next?", a_run(findings=seen))
    assert words == "Easier problems and sampling.max_new_tokens = 64. Then: seed = 1."


def test_few_groups_that_train_are_a_warning_until_the_task_is_solved() -> None:
    question = "Why are some groups not training?"
    few = {"groups_mixed_share": 0.1, "groups_all_right_share": 0.45, "groups_all_wrong_share": 0.45}
    assert one(question, a_run(planted(**few)))[1] == WARN
    assert one(question, a_run(planted(**few, pass_rate=0.97)))[1] == NEUTRAL


def test_where_nothing_is_wrong_another_algorithm_is_named() -> None:
    for table, other in ((RECIPE, "dapo"), (DAPO, "grpo")):
        words, _ = one("What would I try next?", a_run(recipe=table, findings=()))
        assert f'algorithm.name = "{other}"' in words


def test_a_check_that_failed_twice_says_when_first() -> None:
    rows = healthy(9)
    for row in (rows[2], rows[7]):
        row["checks"] = checks(**{"learner = engine": {"verdict": "fail", "value": 0.5, "limit": 1e-4}})
    failed = {line.name: line for line in check_lines(rows)}["learner = engine"]
    assert "at 2 steps, first at step 3." in failed.words


def test_whether_groups_are_compared_comes_from_the_run_and_is_not_guessed() -> None:
    question = "Why are some groups not training?"
    assert one(question, a_run(compares_within_group=False))[0].startswith("All of them train: grpo does not compare")
    words, tone = one(question, a_run(compares_within_group=None))
    assert words.startswith("Of the groups generated in the last 10 steps")
    assert "train" not in words
    assert tone == NEUTRAL


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda invariant: invariant.name)
def test_a_check_is_said_in_its_own_words(invariant: Invariant) -> None:
    def line(*verdicts: str) -> CheckLine:
        rows = [{"step": i, "checks": {invariant.name: {"verdict": v}}} for i, v in enumerate(verdicts, 1)]
        (one_line,) = check_lines(rows)
        return one_line

    cause, why = (text[1:] + "." for text in (invariant.cause, invariant.unmeasured))  # the page says it as a sentence
    assert line("pass", "pass").words == invariant.held
    assert line("pass", "not measured").words == f"{invariant.held} Measured once."
    assert line("pass", "fail").words.startswith("It failed at step 2. ")
    assert line("pass", "fail").words.endswith(cause)
    assert line("not measured").words.endswith(why)


def test_a_check_that_this_version_does_not_know_has_a_verdict_and_no_meaning() -> None:
    (unknown,) = check_lines([{"step": 1, "checks": {"of tomorrow": {"verdict": "fail"}}}])
    assert unknown.words == "It failed at step 1. It does not hold."


def test_what_the_witness_read_is_a_check_once_in_a_step_whichever_file_has_it() -> None:
    name = "witness: credit is by its definition"
    held, failed = ({"verdict": verdict, "value": v, "limit": 1e-4} for verdict, v in (("pass", 1e-9), ("fail", 0.5)))
    steps: list[dict[str, Any]] = [{"step": 1, "checks": {}}, {"step": 2, "checks": {name: failed}}]
    machine: list[dict[str, Any]] = [
        {"step": 1, "witness": {name: held}},
        {"step": 2, "witness": {name: failed}},
        {"step": 3},
    ]
    (line,) = check_lines(steps, machine)
    assert (line.verdict, line.steps) == ("fail", 2)
    assert line.words.startswith("It failed at step 2. ")
    (held_line,) = check_lines(steps[:1], machine[:1])
    assert held_line.verdict == "pass"


def test_check_lines_speak_of_all_steps() -> None:
    rows = healthy(5)
    name = "learner = engine"
    rows[0]["checks"] = checks(
        **{"KL to the reference is 0 at step 0": {"verdict": "pass", "value": 0.0, "limit": 1e-5}}
    )
    rows[3]["checks"] = checks(**{name: {"verdict": "pass", "value": 8e-5, "limit": 1e-4}})
    lines = {line.name: line for line in check_lines(rows)}
    assert (lines[name].verdict, lines[name].steps, lines[name].largest, lines[name].limit) == ("pass", 5, 8e-5, 1e-4)
    once = lines["KL to the reference is 0 at step 0"]
    assert (once.verdict, once.steps, once.largest) == ("pass", 1, 0.0)
    rows[2]["checks"] = checks(**{name: {"verdict": "fail", "value": None, "limit": 1e-4}})
    failed = {line.name: line for line in check_lines(rows)}[name]
    assert failed.verdict == "fail"
    assert "at step 3" in failed.words
    assert check_lines([]) == ()
    assert check_lines([{"step": 1, "checks": None}, {"step": 2}]) == ()
    never = {line.name: line for line in check_lines(healthy(3))}["KL to the reference is 0 at step 0"]
    assert (never.verdict, never.steps, never.largest, never.limit) == ("not measured", 0, None, None)
