"""Claim: GSPO's clip keeps the completions of high quality, in training runs."""

from groupwise.claims.chain_runs import GSPO
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above


def judge(measured: Measurements) -> Verdict:
    """The mean score of completions that the clip kept is above that of those it stopped."""
    passed, stopped = measured.numbers(GSPO.name, "score_kept"), measured.numbers(GSPO.name, "score_stopped")
    apart = {seed: passed[seed] - stopped[seed] for seed in passed.keys() & stopped.keys()}
    return above(measured.interval_of(apart), 0.0, "mean score of kept less that of stopped completions:")


CLAIM = Claim(
    name="clipped-quality-in-training",
    title="In training, GSPO's clip excludes completions of low quality and keeps those of high quality.",
    source="S0, S4; GSPO 2507.18071 section 5.2 says off-policy samples",
    argument="The clip looks at the ratio and at the sign of the advantage, never at the score: it stops a right "
    "answer that has become likelier, and a wrong one that has become less likely. Both are what learning "
    "does.",
    expected="Does not hold.",
    experiments=(GSPO,),
    quantities=(
        Quantity("mean score of kept completions", GSPO.name, "score_kept"),
        Quantity("mean score of stopped completions", GSPO.name, "score_stopped"),
        *(
            Quantity(f"{words}, {sign} advantage, ratio {way}", GSPO.name, f"{key}_{sign}_{way}")
            for key, words in (("completions", "completions"), ("passed", "share of the gradient that passes"))
            for sign in ("positive", "negative")
            for way in ("up", "down")
        ),
    ),
    judge=judge,
)
