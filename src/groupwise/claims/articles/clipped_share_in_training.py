"""Claim: GSPO stops two orders of magnitude more tokens than GRPO, in training runs."""

from math import log10

from groupwise.claims.chain_runs import GRPO, GSPO
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above

RUNS = {"GRPO": GRPO, "GSPO": GSPO}
STOPPED = "stopped_tokens"
#: Where not a single token is stopped, its share counts as this.
NONE = 1e-9


def judge(measured: Measurements) -> Verdict:
    """The shares of stopped tokens are apart by more than one and a half orders of magnitude."""
    one, other = measured.numbers(GRPO.name, STOPPED), measured.numbers(GSPO.name, STOPPED)
    orders = {seed: log10(max(other[seed], NONE) / max(one[seed], NONE)) for seed in one.keys() & other.keys()}
    return above(measured.interval_of(orders), 1.5, "GSPO stops more by orders of magnitude:")


CLAIM = Claim(
    name="clipped-share-in-training",
    title="In training with the papers' widths, GSPO stops two orders of magnitude more tokens than GRPO.",
    source="S0, S1, S4; GSPO 2507.18071 section 5.2, figure 2",
    argument="GSPO's width is a seven-hundredth of GRPO's, and a mean of log-ratios over a hundred tokens varies a "
    "tenth as much as one of them.",
    expected="Holds, nearly: GRPO stops about one in a hundred here, GSPO about half.",
    experiments=tuple(RUNS.values()),
    quantities=tuple(Quantity(f"share of tokens stopped, {words}", run.name, STOPPED) for words, run in RUNS.items()),
    judge=judge,
)
