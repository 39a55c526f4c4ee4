"""Every claim about runs says what planted results of both kinds say: those that show it, and those that refute it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from groupwise.claims import experiments as runs
from groupwise.claims.articles import CLAIMS, chosen, silence
from groupwise.claims.articles.experts import run as moe
from groupwise.claims.claim import Claim
from groupwise.claims.experiments import Effort
from groupwise.claims.measurements import Measurements, Outcome, Row
from groupwise.claims.page import report
from groupwise.config.recipe import Recipe

SEEDS = 3
#: Numbers by name, by the name of their experiment.
Planted = Mapping[str, Mapping[str, Any]]


class Case(NamedTuple):
    """A claim by its name, results that show it, and results that refute it: by experiment, number by name."""

    name: str
    shown: Planted
    refuted: Planted

    @property
    def claim(self) -> Claim:
        return chosen([self.name])[0]


def each(name: str, values: Mapping[str, float]) -> Planted:
    return {experiment: {name: value} for experiment, value in values.items()}


def rates(*values: float) -> Planted:
    """Held-out pass rates of the ladder's rungs, from the first."""
    return each("heldout_mean", dict(zip((run.name for run in runs.LADDER), values, strict=True)))


def curve(tokens: float, *heldout: float) -> dict[str, Any]:
    """A run of ten steps between two evaluations, with so many generated tokens in each."""
    steps = 10 * (len(heldout) - 1)
    return {
        "curves": {"generated_tokens": [tokens] * steps},
        "heldout": [[10 * place, rate] for place, rate in enumerate(heldout)],
    }


def silent(mixed: float) -> Planted:
    return {runs.GRPO.name: {"curves": {"pass_rate": [0.5] * 4, "groups_mixed_share": [mixed] * 4}}}


def moe_ends(plain: float, replayed: float, names: tuple[str, ...]) -> Planted:
    ends = {
        moe(name + kind, rate).name: end
        for name in names
        for rate in (1.5e-3, 1e-3)
        for kind, end in ends_of(plain, replayed)
    }
    return each("heldout_end", ends)


def ends_of(plain: float, replayed: float) -> tuple[tuple[str, float], ...]:
    return ("", plain), ("-r2", replayed)


def ppo(rate: float, seconds: float, memory: float) -> Planted:
    return {
        runs.GRPO.name: {"heldout_mean": 0.7, "seconds_training": 100.0},
        runs.PPO.name: {"heldout_mean": rate, "seconds_training": seconds},
        runs.GRPO_LARGE.name: {"memory_peak_mib": 500.0},
        runs.PPO_LARGE.name: {"memory_peak_mib": memory},
    }


def kl(rate: float, distance: float) -> Planted:
    return {
        runs.KL_LOSS.name: {"heldout_mean": 0.7, "reference_k3": 0.1},
        runs.KL_REWARD.name: {"heldout_mean": rate, "reference_k3": distance},
    }


LENGTH, STOPPED = "length_wrong_mean.end", "probability_stopped_positive"
CASES = (
    Case(
        "wrong-length",
        each(LENGTH, {runs.GRPO.name: 150, runs.TOKEN_MEAN.name: 120, runs.CONSTANT.name: 110}),
        each(LENGTH, {runs.GRPO.name: 120, runs.TOKEN_MEAN.name: 110, runs.CONSTANT.name: 150}),
    ),
    Case(
        "entropy-in-training",
        each("entropy_mean.end", {runs.GRPO.name: 0.1, runs.CLIP_HIGHER.name: 0.2}),
        each("entropy_mean.end", {runs.GRPO.name: 0.2, runs.CLIP_HIGHER.name: 0.1}),
    ),
    Case(
        "rare-tokens-in-training",
        each(STOPPED, {runs.GRPO.name: 0.1, runs.CLIP_HIGHER.name: 0.1}),
        each(STOPPED, {runs.GRPO.name: 0.1, runs.CLIP_HIGHER.name: 0.6}),
    ),
    Case("silent-groups-in-training", silent(0.99), silent(0.7)),
    Case(
        "dynamic-sampling",
        each("heldout_mean", {runs.GRPO.name: 0.5, runs.DYNAMIC_SAMPLING.name: 0.6}),
        each("heldout_mean", {runs.GRPO.name: 0.6, runs.DYNAMIC_SAMPLING.name: 0.5}),
    ),
    Case(
        "equal-generation",  # twice the generation: its rate after ten steps against the other's after twenty
        {runs.GRPO.name: curve(100, 0.2, 0.4, 0.6), runs.DYNAMIC_SAMPLING.name: curve(200, 0.2, 0.8, 0.9)},
        {runs.GRPO.name: curve(100, 0.2, 0.4, 0.6), runs.DYNAMIC_SAMPLING.name: curve(200, 0.2, 0.5, 0.9)},
    ),
    Case(
        "overlong",
        each("heldout_mean", {runs.NAIVE.name: 0.5, runs.FILTERING.name: 0.6, runs.SOFT_ALONE.name: 0.7}),
        each("heldout_mean", {runs.NAIVE.name: 0.5, runs.FILTERING.name: 0.4, runs.SOFT_ALONE.name: 0.7}),
    ),
    Case(
        "clipped-share-in-training",
        each("stopped_tokens", {runs.GRPO.name: 0.005, runs.GSPO.name: 0.5}),
        each("stopped_tokens", {runs.GRPO.name: 0.05, runs.GSPO.name: 0.5}),
    ),
    Case(
        "matched-clips",
        each("heldout_mean", {runs.GRPO.name: 0.5, runs.GSPO.name: 0.5, runs.GSPO_MATCHED.name: 0.6}),
        each("heldout_mean", {runs.GRPO.name: 0.5, runs.GSPO.name: 0.9, runs.GSPO_MATCHED.name: 0.4}),
    ),
    Case(
        "gate-assumptions",
        {runs.SAPO.name: {"variance_above": 0.2, "ratio_far": 0.03}, runs.GRPO.name: {"variance_above": 0.9}},
        {runs.SAPO.name: {"variance_above": 0.8, "ratio_far": 0.03}, runs.GRPO.name: {"variance_above": 0.1}},
    ),
    Case(
        "gate-temperatures",
        each("heldout_end", {runs.SAPO_BELOW.name: 0.5, runs.SAPO_EQUAL.name: 0.6, runs.SAPO.name: 0.7}),
        each("heldout_end", {runs.SAPO_BELOW.name: 0.5, runs.SAPO_EQUAL.name: 0.7, runs.SAPO.name: 0.6}),
    ),
    Case(
        "engine-precision",
        each("heldout_mean", {runs.GSPO.name: 0.7, runs.GSPO_ENGINE.name: 0.69}),
        each("heldout_mean", {runs.GSPO.name: 0.7, runs.GSPO_ENGINE.name: 0.5}),
    ),
    Case(
        "clipped-quality-in-training",
        {runs.GSPO.name: {"score_kept": 0.7, "score_stopped": 0.4}},
        {runs.GSPO.name: {"score_kept": 0.4, "score_stopped": 0.5}},
    ),
    Case("replay-mends", moe_ends(0.5, 0.7, ("grpo",)), moe_ends(0.7, 0.5, ("grpo",))),
    Case("replay-unneeded", moe_ends(0.7, 0.7, ("gspo", "sapo")), moe_ends(0.5, 0.7, ("gspo", "sapo"))),
    Case("ablation-ladder", rates(0.3, 0.36, 0.4, 0.44, 0.5, 0.6), rates(0.3, 0.2, 0.4, 0.44, 0.5, 0.6)),
    Case("ladder-order", rates(0, 0, 0, 0.41, 0.42, 0.5), rates(0, 0, 0, 0.44, 0.5, 0.52)),
    Case("without-critic", ppo(0.6, 150.0, 700.0), ppo(0.9, 150.0, 700.0)),
    Case("kl-place", kl(0.69, 0.12), kl(0.69, 0.4)),
)


def measurements(claim: Claim, planted: Planted) -> Measurements:
    """A row for each seed, with what is planted, and the seed's own thousandth on every number."""
    return Measurements(
        Row(
            e.name,
            seed,
            e.fingerprint,
            {name: with_noise(value, seed) for name, value in planted.get(e.name, {}).items()},
        )
        for e in claim.experiments
        for seed in range(SEEDS)
    )


def with_noise(value: Any, seed: int) -> Any:
    return value * (1 + seed / 1000) if isinstance(value, (int, float)) else value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_planted_results_decide(case: Case) -> None:
    assert case.claim.verdict(measurements(case.claim, case.shown)).outcome is Outcome.HOLDS
    assert case.claim.verdict(measurements(case.claim, case.refuted)).outcome is Outcome.FAILS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_runs_are_of_three_seeds_and_none_is_quick(case: Case) -> None:
    assert all(experiment.seeds_of(Effort.STANDARD) == range(3) for experiment in case.claim.experiments)
    assert not any(list(experiment.seeds_of(Effort.QUICK)) for experiment in case.claim.experiments)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_runs_that_lack_a_number_are_no_result(case: Case) -> None:
    """What a run did not do has no number, such as the mean score of completions that it never stopped."""
    lacking = {e: {name: without_numbers(value) for name, value in row.items()} for e, row in case.shown.items()}
    assert case.claim.verdict(measurements(case.claim, lacking)).outcome in (Outcome.UNDECIDED, Outcome.NOT_MEASURED)


def without_numbers(value: Any) -> Any:
    """None for a number; curves and pass rates of evaluations stay as they are, of runs that nothing was learned in."""
    if isinstance(value, Mapping):
        return {name: [None] * len(curve) for name, curve in value.items()}
    return [[step, 0.5] for step, _ in value] if isinstance(value, list) else None


def test_every_claim_about_runs_has_its_case() -> None:
    runs = {claim.name for claim in CLAIMS if claim.effort is not Effort.QUICK}
    assert {case.name for case in CASES} == runs


def test_the_group_of_the_equation_is_that_of_the_recipe() -> None:
    assert Recipe.load("chain").samples_per_prompt == silence.GROUP


@pytest.mark.parametrize("case", [case for case in CASES if case.claim.figure], ids=lambda case: case.name)
def test_a_figure_of_runs_has_a_mean_and_an_interval_at_each_place(case: Case) -> None:
    assert case.claim.figure
    curves = {name: [0.1, 0.2, 0.3] for name in ("entropy_mean", "pass_rate", "groups_mixed_share")}
    row = {"curves": curves, "heldout_mean": 0.5, "heldout_end": 0.6}
    known = measurements(case.claim, {e.name: row for e in case.claim.experiments})
    drawn = report([case.claim], known, "rows.jsonl").runs[0].points[case.claim.name]
    assert drawn.step == (list(case.claim.figure.at) or [1, 2, 3])
    for line in case.claim.figure.lines:
        for column in (line.words, f"{line.words}.low", f"{line.words}.high"):
            assert len(drawn.columns[column]) == len(drawn.step)
            assert None not in drawn.columns[column]
    assert case.claim.name not in report([case.claim], Measurements(()), "rows.jsonl").runs[0].points


def test_runs_of_one_name_are_one_condition() -> None:
    experiments = [e for case in CASES for e in case.claim.experiments]
    assert (
        len({e.name for e in experiments})
        == len({e.fingerprint for e in experiments})
        == len({(e.name, e.fingerprint) for e in experiments})
    )
