"""Mixtures of experts: who needs routing replay. The runs are those of docs/howto/moe.md, at its two learning rates."""

from functools import cache

from groupwise.claims.claim import Claim, gains
from groupwise.claims.experiments import SEEDS, Experiment, trained
from groupwise.claims.measurements import below, every
from groupwise.claims.readings import in_words

#: The recipes' own learning rate, and the lower one that was added.
RATES = (1.5e-3, 1e-3)
#: What replay may gain at most where it is not needed: held-out pass rate.
UNNEEDED = 0.05


@cache
def run(recipe: str, rate: float) -> Experiment:
    """Make the experiment of a recipe of the folder moe-stability, such as "grpo-r2", at a learning rate."""
    return trained(f"moe/{recipe}@{rate:g}", f"moe-stability/{recipe}", {"learner.learning_rate": rate}, SEEDS)


REPLAY_MENDS = Claim(
    name="replay-mends",
    title="On a mixture of experts GRPO's token ratios break as experts change, and routing replay fixes this.",
    source="S0, S1, S3, S4; GSPO 2507.18071 section 5.3, figure 3",
    argument="After an update some tokens pass through other experts, which moves their ratios.",
    expected="Written after the runs of docs/howto/moe.md, whose rows these are: does not hold, or cannot be told.",
    of={
        f"{words}, learning rate {rate:g}": run(name, rate)
        for rate in RATES
        for name, words in (("grpo", "without replay"), ("grpo-r2", "with replay"))
    },
    numbers=in_words("heldout_end", "heldout_best", "log_ratio_variance.mean"),
    rule="At each of two learning rates, GRPO with replay ends with a higher held-out pass rate than without.",
    judge=gains(
        "heldout_end", {f"pass rate gained at {rate:g}:": (run("grpo", rate), run("grpo-r2", rate)) for rate in RATES}
    ),
)
REPLAY_UNNEEDED = Claim(
    name="replay-unneeded",
    title="GSPO and SAPO train mixtures of experts without routing replay.",
    source="S0, S1, S3, S4; GSPO 2507.18071 section 5.3, SAPO 2511.20347 section 5",
    argument="A mean over a sequence, or a soft gate, should tolerate single tokens that passed through other experts.",
    expected="Written after the runs of docs/howto/moe.md, whose rows these are: holds, or cannot be told.",
    of={
        f"{base.upper()} {words}, learning rate {rate:g}": run(base + replay, rate)
        for rate in RATES
        for base in ("gspo", "sapo")
        for replay, words in (("", "without replay"), ("-r2", "with replay"))
    },
    numbers=in_words("heldout_end", "heldout_best"),
    rule="At each of two learning rates, replay gains less than 0.05 of the final held-out pass rate, for both.",
    judge=lambda measured: every(
        below(
            measured.difference(run(base, rate).name, run(f"{base}-r2", rate).name, "heldout_end"),
            UNNEEDED,
            f"{base.upper()} at {rate:g} gains",
        )
        for base in ("gspo", "sapo")
        for rate in RATES
    ),
)
CLAIMS = (REPLAY_MENDS, REPLAY_UNNEEDED)
