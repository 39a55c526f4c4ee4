"""Claim: GRPO does without a critic what PPO does with one, for less."""

from collections.abc import Mapping

from groupwise.claims.chain_runs import GRPO, GRPO_LARGE, PPO, PPO_LARGE
from groupwise.claims.claim import Claim, Experiment, quantities_of
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above, every

RUNS = {"GRPO": GRPO, "PPO": PPO}
#: Of a policy of 34 million parameters: the peak of the tiny one is of the libraries, a critic is 2 MiB of it.
LARGE = {"GRPO": GRPO_LARGE, "PPO": PPO_LARGE}
#: A score that is lower by less counts as as good.
TOLERATED = 0.03


def ratio(measured: Measurements, runs: Mapping[str, Experiment], name: str) -> dict[object, float]:
    """PPO's number over GRPO's, on the seeds that both have."""
    one, other = (measured.numbers(runs[which].name, name) for which in ("GRPO", "PPO"))
    return {seed: other[seed] / one[seed] for seed in one.keys() & other.keys()}


def judge(measured: Measurements) -> Verdict:
    """GRPO's held-out pass rate, mean over evaluations, is at most 0.03 below PPO's; PPO takes more time, and more
    memory with a policy of 34 million parameters.
    """
    return every(
        [
            above(measured.difference(PPO.name, GRPO.name, "heldout_mean"), -TOLERATED, "held-out pass rate higher by"),
            above(measured.interval_of(ratio(measured, RUNS, "seconds_training")), 1.0, "seconds, PPO's over GRPO's,"),
            above(measured.interval_of(ratio(measured, LARGE, "memory_peak_mib")), 1.0, "memory, PPO's over GRPO's,"),
        ]
    )


CLAIM = Claim(
    name="without-critic",
    title="Without a critic GRPO is as good as PPO at equal generation, and takes less time and memory.",
    source="S0, S1, S2; DeepSeekMath 2402.03300 section 4.1",
    argument="The group's mean stands for the value of the prompt. A critic as large as the policy doubles what is "
    "held and trained; its estimate inside an answer could tell which step went wrong, if it learned that in "
    "time.",
    expected="Holds.",
    experiments=(*RUNS.values(), *LARGE.values()),
    quantities=quantities_of(
        RUNS,
        {
            "held-out pass rate, mean over evaluations": "heldout_mean",
            "held-out pass rate at the end": "heldout_end",
            "tokens generated": "generated_tokens",
            "seconds of training": "seconds_training",
            "seconds of updates": "seconds_update",
        },
    )
    + quantities_of(
        {f"34 million parameters, {words}": run for words, run in LARGE.items()},
        {"most memory, MiB": "memory_peak_mib", "seconds of updates": "seconds_update"},
    ),
    judge=judge,
)
