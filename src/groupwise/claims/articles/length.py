"""Length: what a token weighs in a long answer, which normaliser leaves the gradient unbiased, and overlong answers."""

import math
from itertools import product

import torch
from torch import Tensor

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Figure, gains, lines_of, matrix
from groupwise.claims.experiments import CONSTANT, FILTERING, GRPO, NAIVE, SOFT_ALONE, TOKEN_MEAN, computed
from groupwise.claims.measurements import above, below, both
from groupwise.claims.readings import in_words
from groupwise.claims.toys import ascent

#: Tokens of the short answer, and of the long one beside it.
SHORT, LONG = 10, (10, 20, 50, 100, 200, 400)
#: With a constant that is a generation budget of 500.
WEIGHTS = {
    "sequence": algorithm("grpo", {"kl.beta": 0.0}),
    "token": algorithm("dapo"),
    "constant": algorithm("dr-grpo", {"aggregate.limit": 500}),
}


@computed("length-weights", seeds=1)
def weights(seed: int) -> dict[str, float]:
    """Find what a token of each weighs in the gradient of two answers of advantage 1, on policy."""
    seen: dict[str, float] = {}
    for length, (name, algo) in product(LONG, WEIGHTS.items()):
        mask = torch.arange(max(LONG)) < torch.tensor([[length], [SHORT]])
        weight = ascent(algo, torch.zeros(mask.shape).double(), torch.ones(2).double(), mask=mask)
        seen[f"{name}_long_{length}"], seen[f"{name}_short_{length}"] = weight[:, 0].tolist()
        seen[f"{name}_total_{length}"] = float(weight[0].sum() / weight.sum())
    return seen


LENGTH_WEIGHTS = Claim(
    name="length-weights",
    title="GRPO dilutes the tokens of a long answer (1/400 each in 200 tokens, 1/20 each in 10). DAPO's token mean "
    "weighs all alike (1/210).",
    source="S0, S1, token-level loss; DAPO 2503.14476 section 3.3",
    argument="A mean per answer gives every answer the same total. A mean over all tokens, or a constant divisor, "
    "weighs every token the same.",
    expected="Holds.",
    of=weights,
    numbers=matrix(
        "{}",
        "{}_{}_200",
        "{}",
        {"sequence": "mean per sequence", "token": "token mean", "constant": "constant"},
        {"long": "long answer's token", "short": "short answer's token", "total": "whole long answer"},
    ),
    rule="In S0's example, tokens weigh 1/400 and 1/20 with a mean per sequence, and 1/210 with a token mean.",
    judge=lambda seen: seen.equal(
        {
            "sequence_long_200": 1 / 400,
            "sequence_short_200": 1 / 20,
            "token_long_200": 1 / 210,
            "token_short_200": 1 / 210,
        },
        1e-12,
        "weights and 1/400, 1/20, 1/210, 1/210",
    ),
    figure=Figure(
        title="Weight of a token",
        axes=("tokens of the answer, beside one of 10", "weight"),
        lines=lines_of(
            weights,
            LONG,
            {"mean per sequence": "sequence_long", "token mean": "token_long", "constant": "constant_long"},
        ),
        hint="With a mean per sequence the weight falls with the answer's length, with a token mean with the batch's; "
        "with a constant it does not.",
        log=(True, True),
    ),
)

LONG_ANSWERS = Claim(
    name="long-answers",
    title="DAPO weights tokens so that longer sequences have less influence per token.",
    source="S2, token-level loss weighting",
    argument="GRPO does this. DAPO's token mean weighs all tokens alike.",
    expected="Does not hold: DAPO's section 3.3 says the reverse.",
    of=weights,
    numbers=matrix(
        "weight of a token, {}",
        "{}_{}_200",
        "{}",
        {"token": "DAPO", "sequence": "GRPO"},
        {"long": "of 200", "short": "of 10"},
    ),
    rule="A token of a 200-token answer weighs less than 0.9 of a token of a 10-token answer.",
    judge=lambda seen: below(
        seen.mean("token_long_200") / seen.mean("token_short_200"),
        0.9,
        "DAPO's weight of a token of 200 over a token of 10:",
    ),
)

#: The chance to take another step after each of the first ones, and that an answer of so many steps is right.
GO_ON, RIGHT = (0.5, 0.6, 0.7), (0.2, 0.35, 0.5, 0.65)
STEPS, GROUP = len(RIGHT), 2
NORMALISERS = {kind: algorithm("dr-grpo", {"aggregate.kind": kind}) for kind in ("sequence-mean", "token-mean")} | {
    "constant": algorithm("dr-grpo", {"aggregate.limit": STEPS})
}


@computed("length-bias", seeds=1)
def bias(seed: int) -> dict[str, float]:
    """Compare the expected gradient over all groups, each a batch of its own, with that of the pass rate, for a policy
    that decides after each step whether it stops, and is right the more often the longer it goes on.
    """
    slope, chance = _slopes(), _chances()
    reward = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(STEPS)
    mask = torch.arange(STEPS) < torch.arange(1, STEPS + 1).repeat_interleave(2)[:, None]
    truth = (chance * reward) @ slope.sum(1)
    seen: dict[str, float] = {}
    for name, algo in NORMALISERS.items():
        expected = torch.zeros(len(GO_ON), dtype=torch.float64)
        for group in map(list, product(range(len(chance)), repeat=GROUP)):
            advantage = algo.advantages(reward[group], torch.zeros(GROUP, dtype=torch.long))
            weight = ascent(algo, torch.zeros(GROUP, STEPS).double(), advantage, mask=mask[group])
            expected += chance[group].prod() * torch.einsum("nt,ntk->k", weight, slope[group])
        along = (expected @ truth / truth.norm() ** 2) * truth
        off = float((expected - along).norm() / expected.norm())
        seen |= {f"off_{name}": off, f"degrees_{name}": math.degrees(math.asin(min(1.0, off)))}
    return seen


def _slopes() -> Tensor:
    """Differentiate log p of each token by the logit of each decision [2 x steps, T, K]; twice, for wrong and right."""
    slope = torch.zeros(STEPS, STEPS, len(GO_ON), dtype=torch.float64)
    for row in range(STEPS):
        for place, chance in enumerate(GO_ON[: row + 1]):
            slope[row, place, place] = 1 - chance if place < row else -chance
    return slope.repeat_interleave(2, 0)


def _chances() -> Tensor:
    """Compute the chance of every outcome [2 x steps]: so many steps, wrong and right."""
    lengths = [math.prod(GO_ON[:n]) * (1 - GO_ON[n] if n < len(GO_ON) else 1.0) for n in range(STEPS)]
    both = [chance * share for chance, right in zip(lengths, RIGHT, strict=True) for share in (1 - right, right)]
    return torch.tensor(both, dtype=torch.float64)


LENGTH_BIAS = Claim(
    name="length-bias",
    title="Only a constant divisor leaves the policy gradient unbiased. DAPO's token mean does not.",
    source="Dr. GRPO 2503.20783, against S0 and S1",
    argument="The number of tokens in a batch depends on the samples, so dividing by it gives batches of short answers"
    " more weight.",
    expected="Holds. The token mean is closer than the mean per sequence.",
    of=bias,
    numbers=matrix(
        "degrees off the true gradient",
        "degrees_{}",
        "{}",
        {"constant": "constant", "token-mean": "token mean", "sequence-mean": "mean per sequence"},
    ),
    rule="The constant's gradient has the direction of the pass rate's, to rounding. The others are off by 2 % or "
    "more.",
    judge=lambda seen: both(
        seen.equal({"off_constant": 0.0}, 1e-7, "directions of the constant's gradient and the true one"),
        *(
            above(seen.mean(f"off_{kind}-mean"), 0.02, f"share of the gradient that is off, {kind} mean:")
            for kind in ("sequence", "token")
        ),
    ),
)

MEANS = {"sequence mean": GRPO, "token mean": TOKEN_MEAN, "constant": CONSTANT}
WRONG = "length_wrong_mean.end"
WRONG_LENGTH = Claim(
    name="wrong-length",
    title="GRPO's mean per sequence makes wrong answers longer during training. A token mean or a constant does not.",
    source="S0, S1, S3; Dr. GRPO 2503.20783 section 3; DAPO 2503.14476 section 3.3",
    argument="Divided by its own length, a long wrong answer is punished less per token than a short one.",
    expected="The sign holds, but sixty steps may not show it.",
    of=MEANS,
    numbers=in_words("length_wrong_mean.start", "length_wrong_mean.end", "length_right_mean.end"),
    rule="In the last ten steps, wrong answers are longer with the mean per sequence than with each of the other two.",
    judge=gains(
        WRONG, {f"tokens longer than with a {words}:": (MEANS[words], GRPO) for words in ("token mean", "constant")}
    ),
)

OVERLONG = Claim(
    name="overlong",
    title="Under a tight limit, filtering overlong answers and punishing them softly both raise the score.",
    source="S0, S1, S3; DAPO 2503.14476 section 3.4, table 1",
    argument="A truncated answer scores 0 even if its steps are right; filtering removes that noise. But truncation "
    "also teaches the policy to be brief, and filtered answers teach nothing.",
    expected="Soft punishment: holds. Filtering: does not hold under a limit that is tight for most answers.",
    of={"neither": NAIVE, "filtering": FILTERING, "soft punishment": SOFT_ALONE},
    numbers=in_words("heldout_mean", "truncated_share.end", "length_mean.end"),
    rule="The mean held-out pass rate under the limit is higher with each than with neither.",
    judge=gains(
        "heldout_mean",
        {
            "pass rate gained with filtering:": (NAIVE, FILTERING),
            "pass rate gained with soft punishment:": (NAIVE, SOFT_ALONE),
        },
    ),
)
CLAIMS = (LENGTH_WEIGHTS, LONG_ANSWERS, LENGTH_BIAS, WRONG_LENGTH, OVERLONG)
