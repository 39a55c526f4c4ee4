"""Claim: in training a mean over each sequence makes wrong answers longer; a token mean and a constant do not."""

from groupwise.claims.chain_runs import CONSTANT, GRPO, TOKEN_MEAN
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above, every

RUNS = {"sequence mean": GRPO, "token mean": TOKEN_MEAN, "constant": CONSTANT}
LENGTH = "length_wrong_mean.end"


def judge(measured: Measurements) -> Verdict:
    """Wrong answers of the last ten steps are longer under the sequence mean than under each of the other two."""
    apart = {words: measured.difference(run.name, GRPO.name, LENGTH) for words, run in RUNS.items() if run is not GRPO}
    return every(above(each, 0.0, f"tokens longer than under a {words}:") for words, each in apart.items())


CLAIM = Claim(
    name="wrong-length",
    title="GRPO's mean over each sequence makes wrong answers grow in training; a token mean or a constant does not.",
    source="S0, S1, S3; Dr. GRPO 2503.20783 section 3, DAPO 2503.14476 section 3.3",
    argument="Divided by its own length, a long wrong answer is punished less for each of its tokens than a short one. "
    "Under a token mean and under a constant every token is punished alike.",
    expected="The sign holds; whether it can be told from the seeds over sixty steps is open, for most of a wrong "
    "answer's length comes from writing steps out, which pays.",
    experiments=tuple(RUNS.values()),
    quantities=tuple(
        Quantity(f"{what}, {words}", run.name, name)
        for what, name in (
            ("tokens of wrong answers, first three steps", "length_wrong_mean.start"),
            ("tokens of wrong answers, last ten steps", LENGTH),
            ("tokens of right answers, last ten steps", "length_right_mean.end"),
            ("held-out pass rate at the end", "heldout_end"),
        )
        for words, run in RUNS.items()
    ),
    judge=judge,
)
