"""Claim: it does not matter whether the KL stands in the loss or in the reward."""

from math import log2

from groupwise.claims.chain_runs import GRPO, KL_LOSS, KL_REWARD
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above, below, every

RUNS = {"in the loss (k3)": KL_LOSS, "in the reward (k1)": KL_REWARD}
#: Pass rates that differ by less are the same for this question, and distances within a factor of two.
SAME = 0.05


def judge(measured: Measurements) -> Verdict:
    """Pass rates differ by less than 0.05, and the distances from the reference by less than a factor of two."""
    rate = measured.difference(KL_LOSS.name, KL_REWARD.name, "heldout_mean")
    one, other = (measured.numbers(run.name, "reference_k3") for run in RUNS.values())
    both = (seed for seed in one.keys() & other.keys() if other[seed])
    farther = measured.interval_of({seed: log2(other[seed] / one[seed]) for seed in both})
    return every(
        [
            above(rate, -SAME, "pass rate with the KL in the reward, less that in the loss:"),
            below(rate, SAME, "pass rate with the KL in the reward, less that in the loss:"),
            above(farther, -1.0, "log2 of the distance with the KL in the reward, over that in the loss:"),
            below(farther, 1.0, "log2 of the distance with the KL in the reward, over that in the loss:"),
        ]
    )


CLAIM = Claim(
    name="kl-place",
    title="Whether the KL stands in the loss or in the reward makes no difference for the result.",
    source="S0, S1, S3 (three places, one coefficient); DeepSeekMath 2402.03300 section 4.1.1 and eq 2",
    argument="In the loss each token is drawn back with beta. In the reward the sum over an answer is part of what the "
    "group compares, and the group's deviation divides it: where scores differ much it weighs little, where "
    "all are right it is the only signal there is.",
    expected="Pass rates: holds. Distance: does not hold.",
    experiments=(*RUNS.values(), GRPO),
    quantities=(
        *(
            Quantity(f"{what}, {words}", run.name, name)
            for what, name in (
                ("held-out pass rate, mean over evaluations", "heldout_mean"),
                ("held-out pass rate at the end", "heldout_end"),
                ("distance from the reference (k3), nats a token, last quarter", "reference_k3"),
            )
            for words, run in RUNS.items()
        ),
        Quantity("held-out pass rate at the end, without a KL term", GRPO.name, "heldout_end"),
    ),
    judge=judge,
    optional=frozenset({GRPO.name}),
)
