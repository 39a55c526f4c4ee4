"""Every claim about runs says what planted results of both kinds say: those that show it, and those that refute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
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


def of_runs(number: str, conditions: str, shown: Sequence[float], refuted: Sequence[float]) -> tuple[Planted, Planted]:
    """One number of several conditions, in their order: as the claim has it, and otherwise."""
    names = [getattr(runs, condition).name for condition in conditions.split()]
    first, second = ({n: {number: x} for n, x in zip(names, each, strict=True)} for each in (shown, refuted))
    return first, second


def rates(*values: float) -> Planted:
    """Held-out pass rates of the ladder's rungs, from the first."""
    return {run.name: {"heldout_mean": value} for run, value in zip(runs.LADDER, values, strict=True)}


def generation(*heldout: float) -> Planted:
    """Runs of ten steps between two evaluations, of which the second generates twice the tokens in each."""
    pairs = ((runs.GRPO, 100, (0.2, 0.4, 0.6)), (runs.DYNAMIC_SAMPLING, 200, heldout))
    return {
        run.name: {
            "curves": {"generated_tokens": [tokens] * 10 * (len(rates) - 1)},
            "heldout": [[10 * place, rate] for place, rate in enumerate(rates)],
        }
        for run, tokens, rates in pairs
    }


def silent(mixed: float) -> Planted:
    return {runs.GRPO.name: {"curves": {"pass_rate": [0.5] * 4, "groups_mixed_share": [mixed] * 4}}}


def moe_ends(plain: float, replayed: float, names: tuple[str, ...]) -> Planted:
    ends = (("", plain), ("-r2", replayed))
    rates = (1.5e-3, 1e-3)
    return {moe(n + kind, rate).name: {"heldout_end": end} for n in names for rate in rates for kind, end in ends}


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


def assumptions(above: float, grpo: float) -> Planted:
    return {runs.SAPO.name: {"variance_above": above, "ratio_far": 0.03}, runs.GRPO.name: {"variance_above": grpo}}


def kept(score: float, stopped: float) -> Planted:
    return {runs.GSPO.name: {"score_kept": score, "score_stopped": stopped}}


LENGTH, STOPPED, MEAN = "length_wrong_mean.end", "probability_stopped_positive", "heldout_mean"
#: Of one number of several conditions: the claim, the number, the conditions, values that show it and that refute it.
COMPARED = (
    ("wrong-length", LENGTH, "GRPO TOKEN_MEAN CONSTANT", (150, 120, 110), (120, 110, 150)),
    ("entropy-in-training", "entropy_mean.end", "GRPO CLIP_HIGHER", (0.1, 0.2), (0.2, 0.1)),
    ("rare-tokens-in-training", STOPPED, "GRPO CLIP_HIGHER", (0.1, 0.1), (0.1, 0.6)),
    ("dynamic-sampling", MEAN, "GRPO DYNAMIC_SAMPLING", (0.5, 0.6), (0.6, 0.5)),
    ("overlong", MEAN, "NAIVE FILTERING SOFT_ALONE", (0.5, 0.6, 0.7), (0.5, 0.4, 0.7)),
    ("clipped-share-in-training", "stopped_tokens", "GRPO GSPO", (0.005, 0.5), (0.05, 0.5)),
    ("matched-clips", MEAN, "GRPO GSPO GSPO_MATCHED", (0.5, 0.5, 0.6), (0.5, 0.9, 0.4)),
    ("gate-temperatures", "heldout_end", "SAPO_BELOW SAPO_EQUAL SAPO", (0.5, 0.6, 0.7), (0.5, 0.7, 0.6)),
    ("engine-precision", MEAN, "GSPO GSPO_ENGINE", (0.7, 0.69), (0.7, 0.5)),
)
CASES = (
    *(Case(name, *of_runs(*values)) for name, *values in COMPARED),
    Case("silent-groups-in-training", silent(0.99), silent(0.7)),
    Case("equal-generation", generation(0.2, 0.8, 0.9), generation(0.2, 0.5, 0.9)),
    Case("gate-assumptions", assumptions(0.2, 0.9), assumptions(0.8, 0.1)),
    Case("clipped-quality-in-training", kept(0.7, 0.4), kept(0.4, 0.5)),
    Case("replay-mends", moe_ends(0.5, 0.7, ("grpo",)), moe_ends(0.7, 0.5, ("grpo",))),
    Case("replay-unneeded", moe_ends(0.7, 0.7, ("gspo", "sapo")), moe_ends(0.5, 0.7, ("gspo", "sapo"))),
    Case("ablation-ladder", rates(0.3, 0.36, 0.4, 0.44, 0.5, 0.6), rates(0.3, 0.2, 0.4, 0.44, 0.5, 0.6)),
    Case("ladder-order", rates(0, 0, 0, 0.41, 0.42, 0.5), rates(0, 0, 0, 0.44, 0.5, 0.52)),
    Case("without-critic", ppo(0.6, 150.0, 700.0), ppo(0.9, 150.0, 700.0)),
    Case("kl-place", kl(0.69, 0.12), kl(0.69, 0.4)),
)


def measurements(claim: Claim, planted: Planted) -> Measurements:
    """A row for each seed, with what is planted, and the seed's own thousandth on every number."""
    rows: list[Row] = []
    for e, seed in product(claim.experiments, range(SEEDS)):
        numbers = {name: with_noise(value, seed) for name, value in planted.get(e.name, {}).items()}
        rows.append(Row(e.name, seed, e.fingerprint, numbers))
    return Measurements(rows)


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
    pairs = {(e.name, e.fingerprint) for case in CASES for e in case.claim.experiments}
    assert len(pairs) == len({name for name, _ in pairs}) == len({fingerprint for _, fingerprint in pairs})
