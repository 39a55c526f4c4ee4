"""Claim: clip-higher keeps entropy, in training runs."""

from groupwise.claims.chain_runs import CLIP_HIGHER, GRPO
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.figure import Figure, LineOverSteps
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above

RUNS = {"0.2": GRPO, "0.28": CLIP_HIGHER}
ENTROPY = "entropy_mean.end"


def judge(measured: Measurements) -> Verdict:
    """The entropy of the last ten steps is larger with the higher clip."""
    return above(measured.difference(GRPO.name, CLIP_HIGHER.name, ENTROPY), 0.0, "nats a token more:")


CLAIM = Claim(
    name="entropy-in-training",
    title="In training, clip-higher (0.28 for 0.2) keeps the policy's entropy from collapsing.",
    source="S0, S1, S2, S3; DAPO 2503.14476 section 3.1, figure 2",
    argument="A token whose ratio has passed 1.2 with a positive advantage gets no more gradient. With 1.28 it has "
    "some way further to go, which matters for unlikely tokens, so that the policy may stay wider.",
    expected="Cannot be told: one token in a hundred is stopped here, and few of those lie between 1.2 and 1.28.",
    experiments=tuple(RUNS.values()),
    quantities=tuple(
        Quantity(f"{what}, upper clip {words}", run.name, name)
        for what, name in (
            ("entropy, nats a token, first three steps", "entropy_mean.start"),
            ("entropy, nats a token, last ten steps", ENTROPY),
            ("share of tokens stopped", "stopped_tokens"),
            ("held-out pass rate at the end", "heldout_end"),
        )
        for words, run in RUNS.items()
    ),
    judge=judge,
    figure=Figure(
        title="Entropy over training under either upper clip",
        across="step",
        up="nats a token",
        at=(),
        lines=tuple(LineOverSteps(f"upper clip {words}", run.name, "entropy_mean") for words, run in RUNS.items()),
        hint="The claim would have the line of 0.28 above the other at the end.",
    ),
)
