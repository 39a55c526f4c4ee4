"""Length: what a token weighs in a long answer, which normaliser leaves the gradient unbiased, and overlong answers."""

import math
from itertools import product

import torch
from torch import Tensor

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Figure, gains, grid, lines_of
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
    title="GRPO dilutes the tokens of a long answer (1/400 each of 200, beside 1/20 each of 10); DAPO's mean over "
    "tokens weighs all alike (1/210).",
    source="S0 and S1, token-level loss; DAPO 2503.14476 section 3.3",
    argument="A mean inside each answer and then over answers gives every answer the same total, so that each token of "
    "a long one has less. One mean over all tokens, or a constant in the place of the length, gives every token the "
    "same.",
    expected="Holds.",
    of=weights,
    numbers=grid(
        f"{{}}, 200 tokens beside {SHORT}: {{}}",
        "{}_{}_200",
        {"sequence": "mean per sequence", "token": "mean over tokens", "constant": "constant of 500"},
        {"long": "a long token", "short": "a short one", "total": "the long answer's share"},
    ),
    rule="S0's example: tokens of 200 and of 10 weigh 1/400 and 1/20 in a mean per sequence, 1/210 in one over tokens.",
    judge=lambda seen: seen.equal(
        {
            "sequence_long_200": 1 / 400,
            "sequence_short_200": 1 / 20,
            "token_long_200": 1 / 210,
            "token_short_200": 1 / 210,
        },
        1e-12,
        "the weights of 200 tokens and of 10, and 1/400, 1/20, 1/210 and 1/210",
    ),
    figure=Figure(
        title="What a token weighs",
        axes=("tokens of the answer, beside one of 10", "weight"),
        lines=lines_of(
            weights,
            LONG,
            {"mean per sequence": "sequence_long", "mean over tokens": "token_long", "constant": "constant_long"},
        ),
        hint="A mean per sequence falls with the answer's own length, a mean over tokens with everybody's, a constant "
        "not.",
        log=(True, True),
    ),
)

LONG_ANSWERS = Claim(
    name="long-answers",
    title="DAPO weights tokens so that longer sequences have less influence per token.",
    source="S2, token-level loss weighting",
    argument="It is GRPO that does so. Under DAPO's mean over tokens all weigh alike, and a long answer as a whole has "
    "more weight, in proportion to its length.",
    expected="Does not hold: the statement is the reverse of the paper's section 3.3.",
    of=weights,
    numbers={
        "DAPO: weight of a token of 200": "token_long_200",
        "DAPO: weight of a token of 10": "token_short_200",
        "DAPO: share of the answer of 200": "token_total_200",
        "GRPO: weight of a token of 200": "sequence_long_200",
        "GRPO: weight of a token of 10": "sequence_short_200",
    },
    rule="A token of 200 weighs less than nine tenths of a token of 10.",
    judge=lambda seen: below(
        seen.mean("token_long_200") / seen.mean("token_short_200"),
        0.9,
        "under DAPO a token of 200 weighs, in units of a token of 10,",
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
    title="Only a constant in the place of the length leaves the policy gradient unbiased; DAPO's mean over tokens "
    "does not.",
    source="Dr. GRPO 2503.20783, against S0 and S1, who have the token mean as the cure",
    argument="A sum over tokens is the policy gradient; a constant only scales it. The number of tokens of a batch "
    "depends on what was sampled, and so does a weight that divides by it: batches of short answers weigh more.",
    expected="Holds; the token mean is off by less than the mean per sequence.",
    of=bias,
    numbers=grid(
        "{}: {}",
        "{1}_{0}",
        {"constant": "constant", "token-mean": "mean over tokens", "sequence-mean": "mean per sequence"},
        {"off": "share of the gradient across the true one", "degrees": "degrees between them"},
    ),
    rule="The constant's gradient has the direction of the pass rate's, to rounding; the others' are off by 2 % or "
    "more.",
    judge=lambda seen: both(
        seen.equal({"off_constant": 0.0}, 1e-7, "a constant's gradient and the pass rate's, in direction,"),
        *(
            above(seen.mean(f"off_{kind}-mean"), 0.02, f"under a {kind} mean the gradient is off by a share of")
            for kind in ("sequence", "token")
        ),
    ),
)

MEANS = {"sequence mean": GRPO, "token mean": TOKEN_MEAN, "constant": CONSTANT}
WRONG = "length_wrong_mean.end"
WRONG_LENGTH = Claim(
    name="wrong-length",
    title="GRPO's mean over each sequence makes wrong answers grow in training; a token mean or a constant does not.",
    source="S0, S1, S3; Dr. GRPO 2503.20783 section 3, DAPO 2503.14476 section 3.3",
    argument="Divided by its own length, a long wrong answer is punished less for each of its tokens than a short one. "
    "Under a token mean and under a constant every token is punished alike.",
    expected="The sign holds; whether it can be told from the seeds over sixty steps is open, for most of a wrong "
    "answer's length comes from writing steps out, which pays.",
    of=MEANS,
    numbers=in_words("length_wrong_mean.start", "length_wrong_mean.end", "length_right_mean.end", "heldout_end"),
    rule="Wrong answers of the last ten steps are longer under the sequence mean than under each of the other two.",
    judge=gains(
        WRONG, {f"tokens longer than under a {words}:": (MEANS[words], GRPO) for words in ("token mean", "constant")}
    ),
)

OVERLONG = Claim(
    name="overlong",
    title="Under a tight limit, filtering overlong answers and punishing them softly both raise the score.",
    source="S0, S1, S3; DAPO 2503.14476 section 3.4, table 1 (30 to 36, and 38 to 41)",
    argument="An answer that is cut off scores 0 though its steps may be right, which is noise; filtering takes the "
    "noise out. But here it is also what tells the policy to be brief enough, and filtered answers tell it nothing.",
    expected="Soft punishment: holds. Filtering: does not hold under a limit that is tight for most answers.",
    of={"neither": NAIVE, "filtering": FILTERING, "soft punishment": SOFT_ALONE},
    numbers=in_words("heldout_mean", "heldout_end", "truncated_share.end", "length_mean.end"),
    rule="The held-out pass rate under the limit, mean over evaluations, is higher with each than with neither.",
    judge=gains(
        "heldout_mean",
        {"with filtering higher by": (NAIVE, FILTERING), "with soft punishment higher by": (NAIVE, SOFT_ALONE)},
    ),
)
CLAIMS = (LENGTH_WEIGHTS, LONG_ANSWERS, LENGTH_BIAS, WRONG_LENGTH, OVERLONG)
