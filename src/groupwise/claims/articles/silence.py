"""Groups without signal: how many there are, and what it brings to sample others in their place."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, product
from statistics import fmean

import numpy as np
import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Figure, LineOverSteps, gains, grid, lines_of, matrix
from groupwise.claims.experiments import DYNAMIC_SAMPLING, GRPO, computed, recipe_file
from groupwise.claims.measurements import Measurements, above, below, every
from groupwise.claims.readings import in_words
from groupwise.claims.toys import chances_of
from groupwise.config.recipe_files import read_table
from groupwise.core.records import Completion, Group, Prompt
from groupwise.core.samples import Sample

SIZES = (2, 4, 8, 16, 64)
CHANCES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
PLACES = [f"{size}_{chance}" for size, chance in product(SIZES, CHANCES)]
PLAIN, DAPO = algorithm("grpo"), algorithm("dapo")


@computed("silent-groups", seeds=1)
def groups(seed: int) -> dict[str, float]:
    """Sum over the number of right completions in a group: the chance that DAPO's filter drops it, the chance that GRPO
    gives each completion an advantage of 0, and the equation.
    """
    seen: dict[str, float] = {}
    for size in SIZES:
        rewards = [[float(number < right) for number in range(size)] for right in range(size + 1)]
        dropped = [not DAPO.filter(_group(each)).keep for each in rewards]
        silent = [not PLAIN.advantages(torch.tensor(each).double(), torch.zeros(size).long()).any() for each in rewards]
        for chance in CHANCES:
            binomial = chances_of(size, chance)
            seen[f"dropped_{size}_{chance}"] = sum(p for p, out in zip(binomial, dropped, strict=True) if out)
            seen[f"silent_{size}_{chance}"] = sum(p for p, out in zip(binomial, silent, strict=True) if out)
            seen[f"equation_{size}_{chance}"] = chance**size + (1 - chance) ** size
    return seen


def _group(scores: Sequence[float]) -> Group:
    completions = (Completion.of_one_turn((1,), (0.0,), "stop", version=0, score=score) for score in scores)
    return Group(Prompt(Sample(key="", prompt="", answer=""), tokens=(0,)), tuple(completions))


SILENT_GROUPS = Claim(
    name="silent-groups",
    title="Groups that are all right or all wrong train nothing. Their share is p^G + (1 - p)^G, and DAPO drops "
    "exactly these.",
    source="S0, S1, S3; DAPO 2503.14476 section 3.2",
    argument="Equal rewards do not deviate from their mean.",
    expected="Holds.",
    of=groups,
    numbers=matrix("groups without signal, G = {}", "silent_{}_{}", "p = {}", (8, 16), (0.05, 0.2, 0.5)),
    rule="The share dropped and the share without advantages both equal the formula at every G and p.",
    judge=lambda seen: every(
        seen.equal(
            {f"{key}_{at}": seen.mean(f"equation_{at}") for at in PLACES},
            1e-9,
            f"the share {words} and the formula",
        )
        for key, words in (("dropped", "that DAPO drops"), ("silent", "without advantages"))
    ),
    figure=Figure(
        title="Groups without signal",
        axes=("pass rate of the prompt", "share"),
        lines=lines_of(groups, CHANCES, grid("G = {}", "silent_{}", SIZES)),
        hint="The more certain a prompt's outcome and the smaller its group, the more groups train nothing.",
    ),
)

#: Completions of a group in the runs.
GROUP: int = read_table(recipe_file("chain"))["samples_per_prompt"]
#: Shares that differ by less say the same for a plan.
NEAR = 0.05


def _gap(rates: Sequence[float | None], mixed: Sequence[float | None]) -> float | None:
    """Average over steps the share seen less what the step's pass rate predicts, in size; None without any step."""
    steps = [(p, share) for p, share in zip(rates, mixed, strict=True) if p is not None and share is not None]
    return abs(fmean(1 - share - (p**GROUP + (1 - p) ** GROUP) for p, share in steps)) if steps else None


IN_TRAINING = Claim(
    name="silent-groups-in-training",
    title="In training, the share of groups without signal is p^G + (1 - p)^G at the pass rate p.",
    source="S0, S1; DAPO 2503.14476 section 3.2, figure 3b",
    argument="The formula describes one prompt. It is convex, so the mean pass rate of different prompts predicts too "
    "few groups without signal.",
    expected="Does not hold: more groups than predicted have no signal.",
    of=GRPO,
    numbers=in_words("groups_mixed_share.start", "groups_mixed_share.end", "pass_rate.start", "pass_rate.end"),
    rule="Measured and predicted shares differ by less than 0.05 on average.",
    judge=lambda seen: below(
        Measurements.combined(_gap, *seen.curves("pass_rate", "groups_mixed_share")),
        NEAR,
        "difference of measured and predicted share:",
    ),
    figure=Figure(
        title="Pass rate, and groups with signal",
        axes=("step", "share"),
        lines=(
            LineOverSteps("pass rate", GRPO.name, "pass_rate"),
            LineOverSteps("groups with signal", GRPO.name, "groups_mixed_share"),
        ),
        hint=f"With groups of {GROUP}, the formula gives nearly every group a signal until the pass rate is near 1.",
    ),
)

ROLLOUT_EFFICIENCY = Claim(
    name="rollout-efficiency",
    title="Dropping groups that are all right or all wrong makes sampling more efficient.",
    source="S0, S3; DAPO 2503.14476 section 3.2",
    argument="A group is generated before it can be dropped, and its replacement needs more generation. The filter "
    "saves updates, not generation.",
    expected="Does not hold. Training runs must show whether full batches are worth the extra generation.",
    of=groups,
    numbers=matrix("groups dropped, G = 16", "dropped_16_{}", "p = {}", (0.05, 0.2, 0.5, 0.95)),
    rule="With the filter, at least 1.1 times as many of the generated groups have signal.",
    judge=lambda seen: above(
        fmean(1 - seen.mean(f"dropped_16_{chance}") for chance in CHANCES)
        / fmean(1 - seen.mean(f"silent_16_{chance}") for chance in CHANCES),
        1.1,
        "groups with signal per generated group, with the filter over without:",
    ),
)

RUNS = {"every group trains": GRPO, "dynamic sampling": DYNAMIC_SAMPLING}
DYNAMIC = Claim(
    name="dynamic-sampling",
    title="Dynamic sampling reaches a higher score after the same number of updates.",
    source="S0, S1, S3; DAPO 2503.14476 section 3.2, figure 6, table 1",
    argument="Every update contains only groups with signal, so its gradient is less noisy.",
    expected="Holds, with a small gain while few groups lack signal.",
    of=RUNS,
    numbers=in_words("heldout_mean", "heldout_end", "generated_tokens"),
    rule="The mean held-out pass rate is higher with dynamic sampling.",
    judge=gains("heldout_mean", {"held-out pass rate higher by": (GRPO, DYNAMIC_SAMPLING)}),
)


def _learning(measured: Measurements, experiment: str) -> Mapping[object, np.ndarray]:
    """List by seed, for each evaluation, the tokens that were generated before it and the held-out pass rate [2,E]."""
    generated = measured.curves(experiment, "generated_tokens")
    totals = {seed: [0.0, *accumulate(tokens or 0.0 for tokens in curve)] for seed, curve in generated.items()}
    heldout = measured.heldout(experiment).items()
    return {seed: np.array([(totals[seed][step], rate) for step, rate in rates]).T for seed, rates in heldout}


def _gain(plain: np.ndarray, dynamic: np.ndarray) -> float:
    """Subtract the pass rates after as many generated tokens, between two evaluations on the line."""
    tokens = min(plain[0, -1], dynamic[0, -1])
    return float(np.interp(tokens, *dynamic) - np.interp(tokens, *plain))


EQUAL_GENERATION = Claim(
    name="equal-generation",
    title="Dynamic sampling makes training more efficient: after equal generation the score is higher.",
    source="S3; DAPO 2503.14476 section 3.2",
    argument="Dropped groups are generated too, so a step needs 1/(1 - share dropped) times the generation. A full "
    "batch must be worth that.",
    expected="Cannot be told, or does not hold.",
    of=RUNS,
    numbers=in_words("generated_tokens", "rounds.mean"),
    rule="After equal generated tokens, the held-out pass rate is higher with dynamic sampling.",
    judge=lambda measured: above(
        measured.combined(_gain, *(_learning(measured, run.name) for run in RUNS.values())),
        0.0,
        "held-out pass rate higher by",
    ),
)
CLAIMS = (SILENT_GROUPS, IN_TRAINING, ROLLOUT_EFFICIENCY, DYNAMIC, EQUAL_GENERATION)
