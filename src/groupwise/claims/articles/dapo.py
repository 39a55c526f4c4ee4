"""DAPO as a whole: its techniques one upon the other."""

from collections.abc import Mapping
from itertools import pairwise

from groupwise.claims.chain_runs import LADDER
from groupwise.claims.claim import Claim, Figure, Line, gains
from groupwise.claims.experiments import Experiment
from groupwise.claims.readings import in_words
from groupwise.claims.verdict import above

#: What each rung adds to the one before, in the order of the published table.
ADDED = (
    "naive GRPO",
    "overlong filtering",
    "clip-higher",
    "soft overlong punishment",
    "token mean",
    "dynamic sampling (DAPO)",
)
RUNGS: Mapping[str, Experiment] = dict(zip(ADDED, LADDER, strict=True))
ABLATION_LADDER = Claim(
    name="ablation-ladder",
    title="Each of DAPO's techniques raises the score: 30, 36, 38, 41, 42 and 50 in the published table.",
    source="S0, S1, S3; DAPO 2503.14476 table 1; another order in verl's rerun (52, without dynamic sampling 50, "
    "without the token mean too 44)",
    argument="Published are single runs, one rung upon the other, so that a gain depends on the order and on the seed. "
    "The soft punishment takes the place of filtering here, and the last rung is DAPO's row.",
    expected="Some rungs cannot be told; overlong filtering does not hold under a limit that is tight for most "
    "answers.",
    of=RUNGS,
    numbers=in_words("heldout_mean", "heldout_end", "truncated_share.end", "entropy_mean.end", "generated_tokens"),
    rule="The held-out pass rate, mean over evaluations, rises with each of the five rungs.",
    judge=gains(
        "heldout_mean",
        {f"with {words} higher by": pair for words, pair in zip(ADDED[1:], pairwise(LADDER), strict=True)},
    ),
    figure=Figure(
        title="DAPO's techniques, one upon the other",
        axes=("rung of the ladder", "held-out pass rate"),
        lines=[
            Line(words, {rung: (run.name, name) for rung, run in enumerate(LADDER, 1)})
            for words, name in (("mean over evaluations", "heldout_mean"), ("at the end", "heldout_end"))
        ],
        hint=f"Rungs 1 to {len(LADDER)}: {', '.join(ADDED)}; the published table has 30, 36, 38, 41, 42 and 50 points.",
    ),
)

LADDER_ORDER = Claim(
    name="ladder-order",
    title="Of DAPO's techniques dynamic sampling brings most (+8), and the token mean least (+1).",
    source="S1 (the bottleneck), S0, S3; DAPO 2503.14476 table 1; verl's rerun has +2 and +6",
    argument="Both are the last rungs of one ladder of single runs, and the rerun of another group turns them around.",
    expected="Dynamic sampling gains more here, for it is paid for with more generation.",
    of={words: RUNGS[words] for words in ADDED[-3:]},
    numbers=in_words("heldout_mean"),
    rule="Dynamic sampling gains more than the token mean, in the held-out pass rate, mean over evaluations.",
    judge=lambda measured: above(
        measured.across(
            lambda before, tokens, dapo: (dapo - tokens) - (tokens - before),
            "heldout_mean",
            *(run.name for run in LADDER[-3:]),
        ),
        0.0,
        "dynamic sampling gains more than the token mean by",
    ),
)
CLAIMS = (ABLATION_LADDER, LADDER_ORDER)
