"""Every verdict rule, with planted results: one that holds, those that do not, and those that cannot be told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from groupwise.claims.articles import CLAIMS, chosen, group, gspo_clip, gspo_ratio, silence, trust
from groupwise.claims.claim import Claim
from groupwise.claims.experiments import Effort
from groupwise.claims.measurements import Measurements, Outcome, Row, Verdict
from groupwise.core.errors import UsageError

HOLDS, FAILS, UNDECIDED = Outcome.HOLDS, Outcome.FAILS, Outcome.UNDECIDED
#: Names of measured numbers; several numbers are those of several seeds.
Numbers = Mapping[str, float | Sequence[float]]
EVERY_SIZE = [f"{size}_{chance}" for size in group.SIZES for chance in group.CHANCES]
EVERY_GROUP = [f"{size}_{chance}" for size in silence.SIZES for chance in silence.CHANCES]


def share_of(at: str) -> float:
    size, chance = at.split("_")
    return float(chance) ** int(size) + (1 - float(chance)) ** int(size)


#: Results under which each claim holds.
HOLDING: dict[str, Numbers] = {
    "group-baseline": {f"mean_{at}": (int(at.split("_")[0]) - 1) / int(at.split("_")[0]) for at in EVERY_SIZE},
    "group-deviation": {
        "deviation_16_0.05": 3.0,
        "deviation_16_0.95": 3.0,
        "deviation_16_0.5": 2.0,
        **{f"deviation_256_{p}": 1 / math.sqrt(p * (1 - p)) for p in (0.1, 0.2, 0.5, 0.8, 0.9)},
    },
    "group-size": {
        **{f"{name}_bias_{size}": 0.0 for name in group.PROMPTS for size in group.NOISE_SIZES},
        "spread_64": 0.2,
        "spread_8": 0.3,
    },
    "silent-groups": {f"{key}_{at}": share_of(at) for at in EVERY_GROUP for key in ("dropped", "silent", "equation")},
    "rollout-efficiency": {
        **{f"dropped_16_{chance}": 0.1 for chance in silence.CHANCES},
        **{f"silent_16_{chance}": 0.4 for chance in silence.CHANCES},
    },
    "clip-product": {
        "passed": 1.0,
        f"grpo_{trust.LENGTHS[-1]}": trust.LENGTHS[-1] * math.log(1.2),
        f"gspo_wide_{trust.LENGTHS[-1]}": 10.0,
    },
    "clip-confines": {"misplaced": 0.0, "ratio_0.01": 1.21},
    "clip-quadrants": {
        f"{name}_{quadrant}": share
        for name in ("grpo", "gspo")
        for quadrant, share in trust.passed_by_equation().items()
    },
    "rare-tokens": {
        "share_freed": (0.5, 0.6, 0.5),
        "freed_mean": (0.10, 0.11, 0.10),
        "better_mean": (0.4, 0.41, 0.4),
        "most_probable": 0.8,
    },
    "common-tokens": {"freed_common": (0.60, 0.62, 0.61)},
    "toy-entropy": {"apart": 1e-15, "gained": (0.1, 0.11, 0.12)},
    "length-weights": {
        "sequence_long_200": 1 / 400,
        "sequence_short_200": 1 / 20,
        "token_long_200": 1 / 210,
        "token_short_200": 1 / 210,
    },
    "long-answers": {"token_long_200": 1 / 400, "token_short_200": 1 / 20},
    "length-bias": {"off_constant": 1e-12, "off_token-mean": 0.05, "off_sequence-mean": 0.2},
    "perplexity-ratio": {f"apart_{length}": 1e-15 for length in gspo_ratio.LENGTHS},
    "sequence-weight": {"bias_product_8": 1e-16, "bias_s_8": (0.01, 0.01, 0.02), "effect_8": (0.1, 0.1, 0.1)},
    "log-difference": {"papers_2048": (0.1, 0.11, 0.1), "spread_32": (0.8, 0.81, 0.8)},
    "uniform-weights": {
        **{f"gspo_deviation_{length}": 0.0 for length in gspo_ratio.SPREAD_LENGTHS},
        "grpo_deviation_4096": (0.05, 0.051, 0.05),
    },
    "weight-spread": {"grpo_deviation_16": 0.05, "grpo_deviation_4096": (0.1, 0.11, 0.12)},
    "clipped-share": {f"factor_{length}": (2.0, 2.1, 2.2) for length in gspo_clip.LENGTHS},
    "clip-ranges": {"gspo_wide_2048": (0.2, 0.21, 0.22), "grpo_2048": 1e-3},
    "clipped-quality": {"gained": (0.1, 0.11, 0.1), "wrong_stopped": (0.8, 0.81, 0.8)},
    "gspo-token": {
        "value_equal": 0.0,
        "share_equal": 0.0,
        "gradient_equal": 1e-16,
        "gradient_varied": (0.5, 0.6, 0.5),
    },
    "soft-gate": {
        **{f"of_bound_{sigma}": 0.9 for sigma in trust.SIGMAS},
        "computed_0.14": (0.004, 0.005, 0.004),
    },
    "kl-value": {"value_k3_on": 1.0, "value_k3_off": (1.001, 1.002, 0.999)},
    "kl-gradient": {"gradient_k3_on": (0.001, 0.002, 0.001)},
    "process-supervision": {
        **{f"loo_go_on_{chance}": 1.0 for chance in group.GO_ON},
        "process_0.6": 0.0,
        "trajectory_0.6": 0.9,
    },
}

#: What is laid over these, and what the verdict then is.
OTHERS: list[tuple[str, Outcome, Numbers]] = [
    ("group-baseline", FAILS, {"mean_16_0.5": 1.0}),
    ("group-baseline", FAILS, {"mean_2_0.98": 0.501}),
    ("group-deviation", FAILS, {"deviation_16_0.95": 2.0}),
    ("group-deviation", FAILS, {"deviation_16_0.05": 1.0}),
    ("group-deviation", FAILS, {"deviation_256_0.2": 1.0}),
    ("group-size", FAILS, {"spread_64": 0.4}),
    ("group-size", FAILS, {"alike_bias_2": -0.5}),
    ("silent-groups", FAILS, {"dropped_16_0.1": 0.0}),
    ("silent-groups", FAILS, {"silent_2_0.5": 1.0}),
    ("rollout-efficiency", FAILS, {f"silent_16_{chance}": 0.1 for chance in silence.CHANCES}),
    ("clip-product", FAILS, {"passed": 0.0}),
    ("clip-product", FAILS, {f"grpo_{trust.LENGTHS[-1]}": 1.2}),
    ("clip-product", FAILS, {f"gspo_wide_{trust.LENGTHS[-1]}": trust.LENGTHS[-1] * math.log(1.2)}),
    ("clip-confines", FAILS, {"ratio_0.01": 20.0}),
    ("clip-confines", FAILS, {"misplaced": 1.0}),
    ("clip-quadrants", FAILS, {"grpo_better_fell": 0.5}),
    ("clip-quadrants", FAILS, {"gspo_worse_fell": 1.0}),
    ("rare-tokens", FAILS, {"freed_mean": (0.5, 0.51, 0.5)}),
    ("rare-tokens", FAILS, {"share_freed": 0.0}),
    ("rare-tokens", FAILS, {"most_probable": 0.9}),
    ("rare-tokens", UNDECIDED, {"freed_mean": (0.1, 0.6, 0.2)}),
    ("common-tokens", FAILS, {"freed_common": (0.01, 0.02, 0.01)}),
    ("common-tokens", UNDECIDED, {"freed_common": (0.4, 0.6, 0.5)}),
    ("toy-entropy", FAILS, {"gained": (-0.1, -0.11, -0.12)}),
    ("toy-entropy", UNDECIDED, {"gained": (-0.1, 0.1, 0.05)}),
    ("toy-entropy", Outcome.NOT_MEASURED, {"apart": 0.1}),
    ("length-weights", FAILS, {"token_short_200": 1 / 20}),
    ("length-weights", FAILS, {"sequence_long_200": 1 / 20}),
    ("long-answers", FAILS, {"token_short_200": 1 / 400}),
    ("length-bias", FAILS, {"off_constant": 0.01}),
    ("length-bias", FAILS, {"off_token-mean": 1e-9}),
    ("length-bias", FAILS, {"off_sequence-mean": 1e-9}),
    ("perplexity-ratio", FAILS, {"apart_4": (0.0, 0.1)}),
    ("sequence-weight", FAILS, {"bias_s_8": (0.08, 0.08, 0.09)}),
    ("sequence-weight", FAILS, {"bias_product_8": 0.01}),
    ("sequence-weight", UNDECIDED, {"bias_s_8": (0.01, 0.09, 0.05)}),
    ("log-difference", FAILS, {"papers_2048": (4e-4, 4e-4, 3e-4)}),
    ("log-difference", FAILS, {"spread_32": (1.0, 1.001, 1.0)}),
    ("log-difference", UNDECIDED, {"papers_2048": (0.001, 0.02, 0.015)}),
    ("uniform-weights", FAILS, {"gspo_deviation_64": 0.01}),
    ("uniform-weights", FAILS, {"grpo_deviation_4096": (0.001, 0.001, 0.002)}),
    ("uniform-weights", UNDECIDED, {"grpo_deviation_4096": (0.001, 0.02, 0.015)}),
    ("weight-spread", FAILS, {"grpo_deviation_4096": (0.05, 0.051, 0.05)}),
    ("weight-spread", UNDECIDED, {"grpo_deviation_4096": (0.05, 0.07, 0.06)}),
    ("clipped-share", FAILS, {f"factor_{length}": (200.0, 210.0) for length in gspo_clip.LENGTHS}),
    ("clipped-share", UNDECIDED, {f"factor_{length}": (2.0, 20.0) for length in gspo_clip.LENGTHS}),
    ("clip-ranges", FAILS, {"gspo_wide_2048": 0.0}),
    ("clip-ranges", UNDECIDED, {"gspo_wide_2048": (0.001, 0.02, 0.012)}),
    ("clipped-quality", FAILS, {"gained": (-0.1, -0.11, -0.1)}),
    ("clipped-quality", FAILS, {"wrong_stopped": (0.2, 0.21, 0.2)}),
    ("clipped-quality", UNDECIDED, {"gained": (-0.1, 0.1, 0.05)}),
    ("gspo-token", FAILS, {"gradient_equal": 1e-3}),
    ("gspo-token", FAILS, {"share_equal": 1.0}),
    ("gspo-token", FAILS, {"gradient_varied": 0.0}),
    ("gspo-token", UNDECIDED, {"gradient_varied": (0.0, 0.1, 0.05)}),
    ("soft-gate", FAILS, {"of_bound_0.3": 1.2}),
    ("soft-gate", FAILS, {"computed_0.14": (0.02, 0.021, 0.02)}),
    ("soft-gate", UNDECIDED, {"computed_0.14": (0.002, 0.021, 0.01)}),
    ("kl-value", FAILS, {"value_k3_off": (1.2, 1.3, 1.25)}),
    ("kl-value", FAILS, {"value_k3_on": 1.1}),
    ("kl-value", UNDECIDED, {"value_k3_off": (1.0, 1.03, 1.01)}),
    ("kl-gradient", FAILS, {"gradient_k3_on": (0.5, 0.6, 0.5)}),
    ("kl-gradient", UNDECIDED, {"gradient_k3_on": (0.0, 0.03, 0.01)}),
    ("process-supervision", FAILS, {"loo_go_on_0.2": 0.5}),
    ("process-supervision", FAILS, {"process_0.6": 1.0}),
    ("process-supervision", FAILS, {"trajectory_0.6": 0.1}),
]
#: Claims of mathematics alone: there is nothing to be unsure of.
EXACT = {claim.name for claim in CLAIMS if all(max(e.seeds.values()) == 1 for e in claim.experiments)} | {
    "perplexity-ratio"
}
QUICK = [claim.name for claim in CLAIMS if claim.effort is Effort.QUICK]


def only(name: str) -> Claim:
    return chosen([name])[0]


def planted(name: str, numbers: Numbers) -> Measurements:
    """Rows of a claim's experiment with these numbers, of as many seeds as any has, and of three at least."""
    (experiment,) = only(name).experiments
    seeds = max([3, *(len(value) for value in numbers.values() if isinstance(value, Sequence))])

    def of(value: float | Sequence[float], seed: int) -> float:
        return value[seed % len(value)] if isinstance(value, Sequence) else value

    rows = [{key: of(value, seed) for key, value in numbers.items()} for seed in range(seeds)]
    return Measurements(Row(experiment.name, seed, experiment.fingerprint, row) for seed, row in enumerate(rows))


def verdict(name: str, numbers: Numbers) -> Verdict:
    return only(name).verdict(planted(name, numbers))


@pytest.mark.parametrize("name", QUICK)
def test_planted_results_that_hold(name: str) -> None:
    assert verdict(name, HOLDING[name]).outcome is HOLDS


@pytest.mark.parametrize(
    ("name", "outcome", "numbers"), OTHERS, ids=[f"{name}: {', '.join(list(over)[:2])}" for name, _, over in OTHERS]
)
def test_planted_results_that_do_not(name: str, outcome: Outcome, numbers: Numbers) -> None:
    assert set(numbers) <= set(HOLDING[name])
    assert verdict(name, {**HOLDING[name], **numbers}).outcome is outcome


@pytest.mark.parametrize("name", QUICK)
def test_results_of_each_kind_are_planted(name: str) -> None:
    kinds = {outcome for planted_in, outcome, _ in OTHERS if planted_in == name}
    assert FAILS in kinds
    assert (UNDECIDED in kinds) is (name not in EXACT)


@pytest.mark.parametrize("name", QUICK)
def test_a_number_that_is_none_or_0_where_it_divides_is_no_result(name: str) -> None:
    for key in HOLDING[name]:
        with pytest.raises(UsageError, match="which is no number"):
            verdict(name, {**HOLDING[name], key: math.nan})
        assert verdict(name, {**HOLDING[name], key: 0.0}).because


@pytest.mark.parametrize("name", QUICK)
def test_without_rows_or_with_one_that_failed_it_is_not_measured(name: str) -> None:
    claim = only(name)
    (experiment,) = claim.experiments
    assert claim.verdict(Measurements([])).outcome is Outcome.NOT_MEASURED
    good = list(planted(name, HOLDING[name]).rows.values())
    failed = Row(experiment.name, len(good), experiment.fingerprint, {}, error="the disk is full")
    result = claim.verdict(Measurements([*good, failed]))
    assert result.outcome is Outcome.NOT_MEASURED
    assert "the disk is full" in result.because
    again = Row(experiment.name, len(good), experiment.fingerprint, good[0].measured)
    assert claim.verdict(Measurements([*good, failed, again])).outcome is HOLDS
    assert claim.verdict(Measurements([*good, failed, again, failed])).outcome is HOLDS, "it was measured before"


def test_one_seed_is_no_interval() -> None:
    row = next(iter(planted("weight-spread", HOLDING["weight-spread"]).rows.values()))
    result = only("weight-spread").verdict(Measurements([row]))
    assert result.outcome is UNDECIDED
    assert "fewer than two seeds" in result.because


def test_the_parts_that_decide_say_why() -> None:
    result = verdict("kl-value", {**HOLDING["kl-value"], "value_k3_off": (1.2, 1.3, 1.25)})
    assert [part.outcome for part in result.parts] == [HOLDS, FAILS]
    assert result.because == result.parts[1].because
