"""What completions are judged by: the filter's metric, pass marks, rewards that do not vote, what rewards log."""

from __future__ import annotations

import dataclasses
import math
from statistics import fmean, stdev
from typing import Any

import pytest

import groupwise
from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.filters import DropUniform, Signal, signal
from groupwise.core.collate import collate
from groupwise.core.environment import Ended
from groupwise.core.numbers.measure import CORRECTNESS, REWARD, Measure, metric_value
from groupwise.core.records import Batch, Completion, Group, Prompt
from groupwise.core.samples import Sample, ScoreResult
from groupwise.core.stream import Cohort
from groupwise.diagnostics.groups import group_metrics, in_words
from groupwise.rewards.functions.adapters import LONGEST_TEXT, MOST_NAMES, bound
from groupwise.rewards.functions.form import finisher
from groupwise.rollout.scoring import RewardWeights, Scorer, ScoringRound
from tests.rollout.made import ARITHMETIC, NAN, completion, evaluated, group

MIXED_BY_SCORE = group(completion(1.0, mine=0.5), completion(0.0, mine=0.5))
MIXED_BY_REWARD = group(completion(0.0, mine=0.5, other=0.0), completion(0.0, mine=0.5, other=0.1))


@pytest.mark.parametrize(
    ("one", "metric", "expected"),
    [
        (MIXED_BY_SCORE, CORRECTNESS, Signal.MIXED),
        (MIXED_BY_SCORE, REWARD, Signal.EQUAL),
        (MIXED_BY_SCORE, "mine", Signal.EQUAL),
        (MIXED_BY_SCORE, "task", Signal.MIXED),
        (MIXED_BY_REWARD, CORRECTNESS, Signal.ALL_WRONG),
        (MIXED_BY_REWARD, REWARD, Signal.MIXED),
        (MIXED_BY_REWARD, "mine", Signal.EQUAL),
        (MIXED_BY_REWARD, "other", Signal.MIXED),
        (MIXED_BY_REWARD, "third", Signal.UNSCORED),
        (group(completion(0.0, mine=0.5), completion(0.0, mine=NAN)), REWARD, Signal.EQUAL),
        (group(0.2, 0.4), CORRECTNESS, Signal.ALL_WRONG),
        (group(0.2, 0.4), REWARD, Signal.MIXED),
        (group(0.2, 0.2 + 1e-9), REWARD, Signal.EQUAL),
        (group(1, NAN), CORRECTNESS, Signal.ALL_RIGHT),
        (group(NAN, NAN), CORRECTNESS, Signal.UNSCORED),
    ],
)
def test_a_filter_goes_by_its_metric_and_by_nothing_else(one: Group, metric: str, expected: Signal) -> None:
    assert signal(one, metric) is expected
    assert DropUniform(metric=metric)(one) == (expected is Signal.MIXED, expected)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (-7.0, 1.0), (3.0, 100.0)])
def test_by_a_reward_the_filter_knows_neither_zero_nor_one(shift: float, scale: float) -> None:
    """Unlike correctness: moving or stretching a reward changes no verdict."""
    for rewards, kept in (((0.0, 0.3, 0.3), True), ((0.3, 0.3, 0.3), False), ((0.0, 0.0, NAN), False)):
        moved = group(*(completion(0.0, mine=scale * reward + shift) for reward in rewards))
        assert DropUniform(metric=REWARD)(moved).keep is kept


def credited(groups: list[Group], name: str = "grpo", **changes: Any) -> tuple[Batch, Algorithm]:
    """The batch of these groups, with the advantages that an algorithm gives them."""
    one = dataclasses.replace(groupwise.algorithm(name), **changes)
    return one.credit(collate(groups, pad=0)), one


def test_words_are_of_what_trains() -> None:
    """Right and wrong where the task's score is all that trains; else of rewards; silence where there is signal."""
    tied, wrong = group(completion(0.0, mine=0.5), completion(0.0, mine=0.5)), group(0.0, 0.0)
    batch = credited([wrong])
    assert in_words([wrong], True, *batch) == (
        "every completion is wrong, there is no right one to prefer: advantages are 0, only the KL term trains"
    )
    assert "same reward: advantages are 0" in in_words([tied, tied], False, *credited([tied, tied]))
    assert "wrong" not in in_words([tied], False, *credited([tied]))
    nothing = [group(NAN, NAN)]
    assert in_words(nothing, False, *credited(nothing)) == "no completion has a score: nothing trains"
    parts = [group(0.2, 0.4)]
    assert in_words(parts, True, *credited(parts)) == "", "a part of a score is a signal"


@pytest.mark.parametrize(
    ("name", "changes", "end"),
    [
        ("dr-grpo", {}, "nothing trains"),
        ("dr-grpo", {"entropy_coefficient": 0.01}, "only the entropy bonus trains"),
        ("grpo", {"entropy_coefficient": 0.01}, "only the KL term and the entropy bonus train"),
        ("reinforce", {}, "nothing trains"),
    ],
)
def test_what_trains_where_advantages_are_0_is_what_the_loss_has_beside_them(
    name: str, changes: dict[str, Any], end: str
) -> None:
    wrong = [group(0.0, 0.0)]
    assert in_words(wrong, True, *credited(wrong, name, **changes)).endswith(f"advantages are 0, {end}")


def test_nothing_is_said_of_advantages_that_are_not_0() -> None:
    """An algorithm that does not compare within a group has some where all are right; so has a batch of other groups
    than the step generated.
    """
    right = [group(1.0, 1.0)]
    assert "every completion is right" in in_words(right, True, *credited(right))
    assert in_words(right, True, *credited(right, "reinforce")) == ""
    assert in_words(right, True, *credited([group(0.0, 1.0)])) == ""


def test_what_a_fault_of_its_environment_ended_trains_nothing_whatever_scores_it() -> None:
    one = completion(1.0, mine=0.5)
    assert one.trains_on == 0.5
    ended = dataclasses.replace(one, ended=Ended.FAULT)
    assert math.isnan(ended.trains_on)
    assert not collate([group(ended)], pad=0).mask.any()


def test_pass_rates_follow_the_pass_mark_and_a_measure_without_one_has_none() -> None:
    groups = [group(*(completion(0.0, mine=reward) for reward in (-1.0, 0.0, 2.0, NAN)))]
    read = {mark: group_metrics(groups, Measure(REWARD, mark)) for mark in (-2.0, 0.0, 3.0)}
    assert [metrics["pass_rate"].read() for metrics in read.values()] == [1.0, 2 / 3, 0.0]
    assert [metrics["groups_mixed_share"].read() for metrics in read.values()] == [0.0, 1.0, 0.0]
    without = group_metrics(groups, Measure(REWARD, None))
    assert without["measured_mean"].read() == pytest.approx(1 / 3)
    assert "pass_rate" not in without
    assert "groups_all_wrong_share" not in without
    assert group_metrics(groups)["pass_rate"].read() == 0.0, "by the task's score"


class Length:
    """A reward of the run's own process: the characters of a completion, None for a prompt that has a minus."""

    quick = True

    def __call__(self, attempts):
        return [None if "-" in a.sample.prompt else float(len(a.completion)) for a in attempts]


class Silent(Length):
    def __call__(self, attempts):
        return [None] * len(attempts)


class Broken(Length):
    def __call__(self, attempts):
        return [NAN] * len(attempts)


def scored(rewards: RewardWeights, prompts: tuple[str, ...] = ("1+1=", "3-1=")) -> tuple[list[Completion], Scorer]:
    scorer = Scorer(ARITHMETIC, lambda tokens: "=" * len(tokens), rewards)
    given = [Prompt(Sample(prompt, prompt, "2"), (3,)) for prompt in prompts]
    ran = tuple((Completion.of_one_turn((1, 2), (-0.1, -0.1), "stop", 0),) for _ in prompts)
    return [
        group[0] for group in ScoringRound(scorer, given).scored(Cohort(tuple(given), (0,) * len(given), ran))
    ], scorer


def test_a_reward_that_returns_none_does_not_vote_and_is_no_fault() -> None:
    (plus, minus), scorer = scored(RewardWeights({"length": 1.0}, {"length": Length()}))
    assert (plus.trains_on, plus.reward_scores) == (2.0, (("length", 2.0),))
    assert math.isnan(minus.trains_on)
    assert (minus.reward_scores, minus.fault) == ((), "")
    assert scorer.take_unshown() == ["no vote: length gave no score (None) on 3-1=, so it trains nothing"]


def test_others_decide_where_one_does_not_vote() -> None:
    (plus, minus), scorer = scored(RewardWeights({"task": 1.0, "length": 3.0}, {"length": Length()}))
    assert plus.trains_on == plus.score + 6.0
    assert minus.trains_on == minus.score
    assert scorer.take_unshown() == []


def test_a_reward_that_never_votes_is_as_if_it_were_not_there() -> None:
    with_it, _ = scored(RewardWeights({"length": 1.0, "silent": 5.0}, {"length": Length(), "silent": Silent()}))
    without, _ = scored(RewardWeights({"length": 1.0}, {"length": Length()}))
    assert repr(with_it) == repr(without)


@pytest.mark.parametrize("watcher", [Length(), Silent(), Broken()])
def test_a_reward_of_weight_0_watches_and_changes_nothing_else(watcher: Length) -> None:
    with_it, scorer = scored(RewardWeights({"length": 1.0, "gold": 0.0}, {"length": Length(), "gold": watcher}))
    without, alone = scored(RewardWeights({"length": 1.0}, {"length": Length()}))
    for watched, one in zip(with_it, without, strict=True):
        parts = tuple(part for part in watched.reward_scores if part[0] != "gold")
        assert repr(dataclasses.replace(watched, reward_scores=parts)) == repr(one)
    known = alone.take_unshown()
    told = [line for line in scorer.take_unshown() if line not in known]
    assert told == ["nan in gold: returned nan"] * isinstance(watcher, Broken), "its first fault is said all the same"


def test_a_fault_is_still_a_fault_whoever_else_votes() -> None:
    rewards = RewardWeights({"task": 1.0, "mine": 1.0})
    assert math.isnan(rewards.combine({"task": 1.0, "mine": NAN}) or 0.0)
    assert rewards.combine({"task": 1.0}) == 1.0


def test_an_evaluation_measures_what_it_is_told_to_by_hand(policy) -> None:
    problems = ARITHMETIC.samples("heldout")[:6]
    scorer = Scorer(ARITHMETIC, policy.decode, RewardWeights({"length": 1.0}, {"length": Length()}))
    mean, mark, by_score = (
        evaluated(policy, scorer, problems, 3, measure)
        for measure in (Measure(REWARD, None), Measure(REWARD, 4.0), Measure())
    )
    silent = sum("-" in sample.prompt for sample in problems)
    assert 0 < silent < 6, "some problems have no vote"
    assert mean.unscored == mark.unscored == 3 * silent
    assert math.isnan(mean.avg_at_k)
    assert mean.pass_at_k == {}
    assert mean.measured_mean == mean.rewards["length"] == mark.measured_mean
    assert mark.pass_at_k[1] == pytest.approx(mark.avg_at_k) != 0
    assert mark.avg_at_k <= 1 - silent / 6, "what has no vote does not pass"
    assert by_score.rewards == mean.rewards, "all rewards run, whatever counts"
    assert by_score.score_mean == mean.score_mean
    alone = evaluated(policy, Scorer(ARITHMETIC, policy.decode), problems, 3, Measure())
    assert (alone.avg_at_k, alone.standard_error) == (by_score.avg_at_k, by_score.standard_error)
    means = list(mean.by_problem.values())
    assert len(means) == 6 - silent
    assert mean.measured_mean == pytest.approx(fmean(means))
    assert mean.standard_error == pytest.approx(stdev(means) / math.sqrt(len(means)))
    assert mean.standard_error > 0


def test_a_metric_by_name_is_that_reward() -> None:
    one = dataclasses.replace(completion(1.0, mine=0.5), learned=-2.0)
    values = {metric: metric_value(one, metric) for metric in (CORRECTNESS, REWARD, "mine", "task", "learned")}
    assert values == {CORRECTNESS: 1.0, REWARD: 0.5, "mine": 0.5, "task": 1.0, "learned": -2.0}


def results(function, count: int = 2) -> list[ScoreResult]:
    """What a worker gets of a function for many completions."""
    import asyncio

    from groupwise.core.samples import Attempt

    attempts = [Attempt(Sample("k", "p", "a"), "x" * i) for i in range(count)]
    with asyncio.Runner() as runner:
        return [one for part in bound(function, "mine", {}).score(attempts, finisher(runner)) for one in part]


def test_all_numbers_of_one_name_that_a_call_logs_add_up() -> None:
    def reward(completions, log_metric, **kwargs):
        for cost in (0.25, 0.5):
            log_metric("cost", cost)
        return [1.0] * len(completions)

    scorer = Scorer(ARITHMETIC, str)
    for result in results(reward, 3):
        scorer.note(Sample("k", "p", "a"), {"mine": result}, completion(1.0))
    logged = scorer.take_logged()
    assert logged.totals["mine.cost"].read() == 0.75
    assert logged.means["mine.cost"].read() == 0.375


def test_what_a_function_logs_stands_with_its_completions() -> None:
    def reward(completions, log_extra, log_metric, **kwargs):
        log_extra("length", [len(text) for text in completions])
        log_extra(column="text", values=["a" * 10_000, "\ud800"])
        log_metric(name="share", value=0.25)
        log_metric("share", 0.5)  # the one does not take the place of the other
        return [1.0, None]

    first, second = results(reward)
    assert first.columns == {"length": 0.0, "text": "a" * LONGEST_TEXT}
    assert second.columns == {"length": 1.0, "text": "\ufffd"}
    assert first.metrics == second.metrics == {"share": (0.25, 0.5)}
    assert first.of_call == second.of_call == 2
    assert (first.votes, second.votes) == (True, False)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (lambda extra, metric: extra("x", [1]), r"log_extra\('x'\): 1 values for 2 completions"),
        (lambda extra, metric: metric("x", math.nan), r"log_metric\('x'\): nan is no finite number"),
        (lambda extra, metric: metric("x", "much"), r"log_metric\('x'\): 'much' is no finite number"),
        (lambda extra, metric: metric("x", None), r"log_metric\('x'\): None is no finite number"),
        (lambda extra, metric: [metric(str(i), i) for i in range(MOST_NAMES + 1)], "64 names are logged already"),
    ],
)
def test_what_cannot_be_logged_is_the_functions_fault_in_words(log, words: str) -> None:
    def reward(completions, log_extra, log_metric, **kwargs):
        log(log_extra, log_metric)
        return [1.0] * len(completions)

    with pytest.raises(ValueError, match=words):
        results(reward)


def test_a_dictionary_of_verl_is_a_score_and_columns() -> None:
    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        return {"score": 0.5, "acc": True, "pred": None, "pair": (1, 2)}

    assert results(compute_score, 1) == [ScoreResult(0.5, columns={"acc": 1.0, "pred": None, "pair": "(1, 2)"})]
