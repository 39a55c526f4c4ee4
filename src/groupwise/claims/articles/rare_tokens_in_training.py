"""Claim: the tokens that the upper clip stops are rare ones, in training runs."""

from groupwise.claims.chain_runs import CLIP_HIGHER, GRPO
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, below, every

RUNS = {"0.2": GRPO, "0.28": CLIP_HIGHER}
STOPPED = "probability_stopped_positive"
#: DAPO's figure 3a: the mean probability of such tokens stays below this.
RARE = 0.2


def judge(measured: Measurements) -> Verdict:
    """The mean probability that the old policy gave them is below 0.2, with either clip."""
    return every(
        below(measured.interval_of(measured.numbers(run.name, STOPPED)), RARE, f"stopped at {words}, probability")
        for words, run in RUNS.items()
    )


CLAIM = Claim(
    name="rare-tokens-in-training",
    title="In training, the tokens that the upper clip stops are rare ones: their mean old probability is below 0.2.",
    source="DAPO 2503.14476 section 3.1, figure 3a; S2 says that they are the likely ones",
    argument="A token of probability 0.9 cannot pass a ratio of 1.2 at all, while one of 0.01 needs only to reach "
    "0.012.",
    expected="Holds.",
    experiments=tuple(RUNS.values()),
    quantities=tuple(
        Quantity(f"{what}, upper clip {words}", run.name, name)
        for what, name in (
            ("mean old probability of tokens stopped from above", STOPPED),
            ("mean old probability of tokens stopped from below", "probability_stopped_negative"),
            ("mean old probability of all tokens", "probability"),
        )
        for words, run in RUNS.items()
    ),
    judge=judge,
)
