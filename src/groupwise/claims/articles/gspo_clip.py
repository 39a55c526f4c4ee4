"""GSPO's clip: how many tokens it stops, which completions, and whether it bears an engine of other precision."""

from math import log10

import torch
from torch import Tensor

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Figure, gains, lines_of, matrix
from groupwise.claims.experiments import GRPO, GRPO_ENGINE, GSPO, GSPO_ENGINE, GSPO_MATCHED, SAPO, SAPO_ENGINE, computed
from groupwise.claims.measurements import above, below, both
from groupwise.claims.readings import in_words
from groupwise.claims.toys import ToyRun, passed

LENGTHS = (32, 256, 2048, 8192)
#: Deviation of a token's log-ratio, nats: what four minibatches of a small learning rate give.
SIGMA = 0.02
#: GRPO's widths as GSPO's paper tuned it, beside GSPO's own.
WIDE = {"trust.epsilon_low": 0.2, "trust.epsilon_high": 0.27}
CLIPS = {
    "grpo": algorithm("grpo", {**WIDE, "kl.beta": 0.0}),
    "gspo": algorithm("gspo"),
    "gspo_wide": algorithm("gspo", WIDE),
}


@computed("clipped-share", seeds=5)
def share(seed: int) -> dict[str, float]:
    """Clip a null model: independent log-ratios from Student's t with 3 degrees, advantages of random sign, nothing
    learned. The share of tokens that are stopped; GSPO's over GRPO's; the width at which GSPO would stop as many.
    """
    numbers = torch.Generator().manual_seed(seed)
    seen: dict[str, float] = {}
    for length in LENGTHS:
        log_ratio = _heavy_tails(numbers, max(256, 131_072 // length), length)
        sign = torch.randint(0, 2, (len(log_ratio),), generator=numbers).double() * 2 - 1
        seen |= {f"{name}_{length}": 1 - float(passed(clip, log_ratio, sign).mean()) for name, clip in CLIPS.items()}
        seen[f"factor_{length}"] = seen[f"gspo_{length}"] / max(seen[f"grpo_{length}"], 1e-6)
        toward = (sign * log_ratio.mean(1)).sort(descending=True).values
        seen[f"matched_{length}"] = float(toward[round(seen[f"grpo_{length}"] * len(toward))])
    return seen


def _heavy_tails(numbers: torch.Generator, rows: int, length: int) -> Tensor:
    """Draw from Student's t with 3 degrees of freedom, scaled [N,T]."""
    normal = torch.randn(rows, length, generator=numbers, dtype=torch.float64)
    squares = torch.randn(3, rows, length, generator=numbers, dtype=torch.float64).square().mean(0)
    return SIGMA / 3**0.5 * normal / squares.sqrt()


SHARE = Claim(
    name="clipped-share",
    title="GSPO clips two orders of magnitude more tokens than GRPO and learns more, which shows that most of "
    "GRPO's gradient is noise.",
    source="S0, S1, S4; GSPO 2507.18071 section 5.2, figure 2",
    argument="The clips apply to quantities of different size: a mean over L tokens has a deviation of sigma/sqrt(L). "
    "A factor that also appears on pure noise says nothing about the gradient.",
    expected="Does not hold: the factor also appears where nothing is learned.",
    of=share,
    numbers=matrix(
        "{}",
        "{}_{}",
        "{} tokens",
        {
            "grpo": "share clipped, GRPO (0.2, 0.27)",
            "gspo": "share clipped, GSPO (3e-4, 4e-4)",
            "factor": "GSPO over GRPO",
        },
        (32, 8192),
    ),
    rule="On pure noise, the factor is below 10.",
    judge=lambda seen: below(
        seen.combined(lambda *factors: min(factors), *(f"factor_{length}" for length in LENGTHS)),
        10.0,
        "factor on pure noise, the smallest over lengths:",
    ),
    figure=Figure(
        title="Share of tokens clipped where nothing is learned",
        axes=("tokens of a sequence", "share"),
        lines=lines_of(share, LENGTHS, {"GSPO (3e-4, 4e-4)": "gspo", "GRPO (0.2, 0.27)": "grpo"}),
        hint="The gap of the papers' figure appears with ratios that are pure noise.",
        log=(True, True),
    ),
)

#: Where not a single token is stopped, its share counts as this.
NONE = 1e-9

SHARE_IN_TRAINING = Claim(
    name="clipped-share-in-training",
    title="In training with the papers' widths, GSPO clips two orders of magnitude more tokens than GRPO.",
    source="S0, S1, S4; GSPO 2507.18071 section 5.2, figure 2",
    argument="GSPO's width is 1/700 of GRPO's, and a mean of log-ratios over a hundred tokens varies a tenth as much "
    "as one of them.",
    expected="Holds, nearly: GRPO clips about one in a hundred here, GSPO about half.",
    of={"GRPO": GRPO, "GSPO": GSPO},
    numbers=in_words("stopped_tokens"),
    rule="The shares of clipped tokens differ by more than one and a half orders of magnitude.",
    judge=lambda measured: above(
        measured.across(
            lambda one, other: log10(max(other, NONE) / max(one, NONE)), "stopped_tokens", GRPO.name, GSPO.name
        ),
        1.5,
        "orders of magnitude that GSPO clips more:",
    ),
)

RANGES = Claim(
    name="clip-ranges",
    title="Adjusting the clipping ranges does not change how much more GSPO clips than GRPO.",
    source="GSPO 2507.18071 section 5.2",
    argument="A mean of thousands of log-ratios almost never leaves 0.2, so GSPO clips nothing at GRPO's ranges.",
    expected="Does not hold.",
    of=share,
    numbers=matrix(
        "{}",
        "{}_{}",
        "{} tokens",
        {
            "grpo": "share clipped, GRPO (0.2, 0.27)",
            "gspo_wide": "share clipped, GSPO at the same ranges",
            "matched": "width at which GSPO clips as much",
        },
        (32, 2048),
    ),
    rule="At GRPO's ranges, GSPO still clips ten times as many tokens as GRPO.",
    judge=lambda seen: above(
        seen.combined(lambda wide, grpo: wide - 10 * grpo, "gspo_wide_2048", "grpo_2048"),
        0.0,
        "GSPO's share minus ten times GRPO's, 2048 tokens:",
    ),
)
MATCHED = Claim(
    name="matched-clips",
    title="A ratio per sequence is the better unit: GSPO learns better than GRPO, and not because it clips more.",
    source="S0, S1, S4; GSPO 2507.18071 sections 4.2 and 5.1",
    argument="With the papers' widths, unit and clipped share differ at once. To separate them, both clips must pass "
    "the same share.",
    expected="Cannot be told.",
    of={"GRPO": GRPO, "GSPO": GSPO, "GSPO, width matched by share": GSPO_MATCHED},
    numbers=in_words("heldout_mean", "heldout_end", "share_passed.mean"),
    rule="With a clip that passes what GRPO's passes, GSPO has a higher mean held-out pass rate.",
    judge=gains("heldout_mean", {"pass rate, matched GSPO minus GRPO:": (GRPO, GSPO_MATCHED)}),
)


@computed("clipped-quality", seeds=10)
def quality(seed: int) -> dict[str, float]:
    """Make a toy run with four minibatches a step as in GSPO's paper, and 10 to 15 % stopped as in its figure: how
    often the completions are right that the clip keeps, and those that it stops; what share of the wrong ones it stops;
    and how many of the stopped had gone against their advantage.
    """
    run = ToyRun(CLIPS["gspo"], seed, learning_rate=0.15, updates=4)
    updates = [update for _ in range(8) for update in list(run.step())[1:]]  # before the first one every ratio is 1
    stopped = torch.cat([update.out.share[:, 0] for update in updates]) == 0
    against = torch.cat([update.advantage * (update.live - update.old).mean(1) < 0 for update in updates])
    reward = torch.cat([update.reward for update in updates])
    right_kept, right_stopped = float(reward[~stopped].mean()), float(reward[stopped].mean())
    return {
        "stopped": float(stopped.double().mean()),
        "right_kept": right_kept,
        "right_stopped": right_stopped,
        "gained": right_kept - right_stopped,
        "wrong_stopped": float(stopped[reward == 0].double().mean()),
        "against": float(against[stopped].double().mean()),
    }


QUALITY = Claim(
    name="clipped-quality",
    title="GSPO filters completions and keeps only those of high quality.",
    source="S0, S4",
    argument="The clip stops a completion that already followed its advantage, right or wrong. A mean log-ratio is "
    "below 0 on average and the lower width is narrower, so it clips wrong ones somewhat more often.",
    expected="Does not hold: most wrong completions are kept.",
    of=quality,
    numbers={
        "share of completions clipped": "stopped",
        "right among the kept": "right_kept",
        "right among the clipped": "right_stopped",
        "share of wrong completions clipped": "wrong_stopped",
    },
    rule="Kept completions are right more often than clipped ones, and more than half of the wrong ones are clipped.",
    judge=lambda seen: both(
        above(seen.interval("gained"), 0.0, "right among the kept minus right among the clipped:"),
        above(seen.interval("wrong_stopped"), 0.5, "share of wrong completions clipped:"),
    ),
)

QUALITY_IN_TRAINING = Claim(
    name="clipped-quality-in-training",
    title="In training, GSPO's clip excludes completions of low quality and keeps those of high quality.",
    source="S0, S4; GSPO 2507.18071 section 5.2 says off-policy samples",
    argument="The clip never uses the score. It stops a right answer that became likelier and a wrong one that became "
    "less likely.",
    expected="Does not hold.",
    of=GSPO,
    numbers=matrix("mean score of completions", "score_{}", "{}", {"kept": "kept", "stopped": "clipped"}),
    rule="Kept completions have a higher mean score than clipped ones.",
    judge=lambda seen: above(
        seen.combined(lambda kept, stopped: kept - stopped, "score_kept", "score_stopped"),
        0.0,
        "mean score, kept minus clipped:",
    ),
)

#: With the learner's own log-probabilities, and with those of a bf16 engine.
ENGINES = {"GSPO": (GSPO, GSPO_ENGINE), "GRPO": (GRPO, GRPO_ENGINE), "SAPO": (SAPO, SAPO_ENGINE)}
#: A loss of this much would not be called tolerated.
TOLERATED = 0.05
PRECISION = Claim(
    name="engine-precision",
    title="GSPO tolerates an engine of another precision: its log-probabilities need not be recomputed.",
    source="S0, S1, S4; GSPO 2507.18071 section 5.4 (an expectation, without an experiment)",
    argument="A mean over a sequence averages token errors, but GSPO's clip is so narrow that small errors of the mean"
    " decide what is clipped.",
    expected="Holds here, and for GRPO and SAPO, whose clips are far wider than bf16's error.",
    of={
        f"{words}, {whose}": run
        for words, pair in ENGINES.items()
        for whose, run in zip(("learner's log-probabilities", "bf16 engine's"), pair, strict=True)
    },
    numbers=in_words("heldout_mean", "share_passed.mean"),
    rule="With a bf16 engine's own log-probabilities, GSPO loses less than 0.05 of its mean held-out pass rate.",
    judge=lambda measured: below(
        measured.difference(GSPO_ENGINE.name, GSPO.name, "heldout_mean"), TOLERATED, "pass rate that GSPO loses:"
    ),
)
CLAIMS = (SHARE, SHARE_IN_TRAINING, RANGES, MATCHED, QUALITY, QUALITY_IN_TRAINING, PRECISION)
