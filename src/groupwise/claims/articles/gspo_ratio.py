"""GSPO's ratio: what a mean of log-ratios over a sequence is, and what it makes of the tokens' weights."""

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.aggregate import count
from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Figure, lines_of, matrix
from groupwise.claims.experiments import computed
from groupwise.claims.measurements import above, below, both
from groupwise.claims.toys import Markov, ascent, sequences

GSPO, GSPO_TOKEN = algorithm("gspo"), algorithm("gspo-token")
VOCABULARY, LENGTHS = 3, (1, 2, 4, 6, 8)


@computed("perplexity-ratio", seeds=10)
def perplexity(seed: int) -> dict[str, float]:
    """Compare s_i with perplexities over every sequence of two policies nearby; and as a weight, E_old[s] and
    E_old[s reward] with E_new[reward], beside the product of the ratios, which is the unbiased weight.
    """
    seen: dict[str, float] = {}
    old = Markov.drawn(2 * seed, VOCABULARY)
    new = old.moved(2 * seed + 1, size=0.5)
    for length in LENGTHS:
        tokens = sequences(VOCABULARY, length)
        live, before = new.logprobs(tokens), old.logprobs(tokens)
        advantage = torch.ones(len(tokens), dtype=live.dtype)
        s = GSPO.loss(live, before, advantage, torch.ones_like(live).bool()).log_ratio[:, 0].exp()
        ratio = torch.exp(-before.mean(1)) / torch.exp(-live.mean(1))
        chance, reward = before.sum(1).exp(), (tokens == 0).double().mean(1)
        product = (live - before).sum(1).exp()
        truth = float((live.sum(1).exp() * reward).sum())
        seen |= {
            f"apart_{length}": float((s - ratio).abs().max()),
            f"effect_{length}": abs(truth - float((chance * reward).sum())),
            f"mean_s_{length}": float((chance * s).sum()),
            f"mean_product_{length}": float((chance * product).sum()),
            f"bias_s_{length}": abs(float((chance * s * reward).sum()) - truth),
            f"bias_product_{length}": abs(float((chance * product * reward).sum()) - truth),
        }
    return seen


PERPLEXITY_RATIO = Claim(
    name="perplexity-ratio",
    title="GSPO's sequence ratio s_i is the old policy's perplexity over the new one's.",
    source="S3, whose perplexity lacks the logarithm; GSPO 2507.18071 eq 7",
    argument="s_i = exp(mean_t log r_t), and a perplexity is exp(-mean_t log p).",
    expected="Holds to rounding.",
    of=perplexity,
    numbers=matrix("largest difference", "apart_{}", "{} tokens", (1, 8)),
    rule="Both are equal for every sequence, to rounding.",
    judge=lambda seen: seen.equal({f"apart_{length}": 0.0 for length in LENGTHS}, 1e-12, "s_i and PPL_old / PPL_new"),
)

SEQUENCE_WEIGHT = Claim(
    name="sequence-weight",
    title="GSPO's sequence ratio s_i, exponentiated, stays an unbiased importance weight.",
    source="S0, on exponentiation",
    argument="The unbiased weight is the product of the ratios, s_i to the power of the length. The longer the "
    "sequence, the less s_i corrects.",
    expected="Does not hold.",
    of=perplexity,
    numbers=matrix("E_old[s] (unbiased: 1)", "mean_s_{}", "{} tokens", (1, 8))
    | {
        "difference to correct, E_new[reward] - E_old[reward], 8 tokens": "effect_8",
        "bias left by s_i, 8 tokens": "bias_s_8",
        "bias left by the product, 8 tokens": "bias_product_8",
    },
    rule="The product of the ratios is unbiased, to rounding. s_i corrects at least half of the difference between"
    " the policies.",
    judge=lambda seen: both(
        seen.equal({"bias_product_8": 0.0}, 1e-12, "E_old[product of ratios x reward] and E_new[reward]"),
        below(
            seen.combined(lambda bias, effect: bias - effect / 2, "bias_s_8", "effect_8"),
            0.0,
            "bias left by s_i minus half of the difference:",
        ),
    ),
    figure=Figure(
        title="Bias that a weight leaves",
        axes=("tokens", "reward units"),
        lines=lines_of(
            perplexity, LENGTHS, {"without a weight": "effect", "with s": "bias_s", "with the product": "bias_product"}
        ),
        hint="At one token s is the ratio itself. With every further token it corrects less.",
    ),
)

LOG_LENGTHS = (32, 256, 2048)
LOG_SIGMA = 0.02
CLIPS = {"papers": GSPO, "wide": algorithm("gspo", {"trust.epsilon_low": 0.2, "trust.epsilon_high": 0.2})}


@computed("log-difference", seeds=5)
def logs(seed: int) -> dict[str, float]:
    """Compare GSPO's gradient with that of the same objective with 1 + log s in the place of s, at GSPO's widths and at
    0.2; and the deviation of log s over sequences of one length with that of s.
    """
    numbers = torch.Generator().manual_seed(seed)
    seen: dict[str, float] = {}
    for length in LOG_LENGTHS:
        live = LOG_SIGMA * torch.randn(256, length, generator=numbers, dtype=torch.float64)
        advantage = torch.randn(256, generator=numbers, dtype=torch.float64)
        for name, algo in CLIPS.items():
            size = 1.0 if name == "papers" else 0.15 / LOG_SIGMA * length**0.5  # with sequences out to the clip at 0.2
            whole = ascent(algo, size * live, advantage)
            apart = whole - _ascent_of_logs(algo, size * live, advantage)
            seen[f"{name}_{length}"] = float(apart.norm() / whole.norm())
        log_s = live.mean(1)
        seen[f"spread_{length}"] = float(log_s.std() / log_s.exp().std())
    return seen


def _ascent_of_logs(algo: Algorithm, live: Tensor, advantage: Tensor) -> Tensor:
    """Differentiate weight min((1 + log s) A, clip(1 + log s) A) [N,T]."""
    live, mask = live.clone().requires_grad_(), torch.ones_like(live, dtype=torch.bool)
    ratio, per_token = 1 + algo.ratio(live, torch.zeros_like(live), mask), advantage[:, None]
    low: float = algo.trust.epsilon_low  # type: ignore[attr-defined]
    high: float = algo.trust.epsilon_high  # type: ignore[attr-defined]
    surrogate = torch.minimum(ratio * per_token, ratio.clamp(1 - low, 1 + high) * per_token)
    return torch.autograd.grad((algo.aggregate(mask, count(mask)) * surrogate).sum(), live)[0]


LOG_DIFFERENCE = Claim(
    name="log-difference",
    title="GSPO's mean log-ratio must be exponentiated: in log space it would depend on length, need other clips, "
    "and train something else.",
    source="S0, on exponentiation",
    argument="Near 1, s and 1 + log s have nearly the same gradient. The mean removes the length before the "
    "exponential.",
    expected="Does not hold. At a width of 0.2 the gradients would differ by a tenth or more.",
    of=logs,
    numbers=matrix(
        "relative change of the gradient, {}",
        "{}_{}",
        "{} tokens",
        {"papers": "GSPO's widths", "wide": "0.2"},
        (32, 2048),
    ),
    rule="At GSPO's widths, the gradient and the spread each change by 1 % or more.",
    judge=lambda seen: both(
        above(seen.interval("papers_2048"), 0.01, "relative change of the gradient:"),
        above(
            seen.combined(lambda value: abs(value - 1), "spread_32"),
            0.01,
            "relative change of the spread:",
        ),
    ),
)

SPREAD_LENGTHS = (16, 64, 256, 1024, 4096)
#: Deviation of a token's log-ratio, nats.
SPREAD_SIGMA = 0.05
#: Without the trust region: a token beyond it has no weight at all.
UNCLIPPED = {name: algorithm(name, {"trust.kind": "none", "kl.beta": 0.0}) for name in ("grpo", "gspo")}


@computed("token-weights", seeds=5)
def spread(seed: int) -> dict[str, float]:
    """Find what each token's log-probability is multiplied with in the gradient, with independent log-ratios of one
    deviation: as a deviation over tokens, relative to the mean, and as the largest over the smallest.
    """
    numbers = torch.Generator().manual_seed(seed)
    seen: dict[str, float] = {}
    for length in SPREAD_LENGTHS:
        live = SPREAD_SIGMA * torch.randn(64, length, generator=numbers, dtype=torch.float64)
        for name, algo in UNCLIPPED.items():
            weight = ascent(algo, live, -torch.ones(len(live), dtype=live.dtype))
            relative = weight / weight.mean(1, keepdim=True)
            seen[f"{name}_deviation_{length}"] = float(relative.std(1).mean())
            seen[f"{name}_range_{length}"] = float((relative.amax(1) / relative.amin(1)).mean())
    return seen


UNIFORM_WEIGHTS = Claim(
    name="uniform-weights",
    title="Within a sequence all tokens have the same weight in GSPO's gradient, and each its own in GRPO's.",
    source="S0, S2, S4; GSPO 2507.18071 eq 10 and 12",
    argument="GSPO's gradient has one factor s_i per sequence. GRPO's has the token's own ratio.",
    expected="Holds.",
    of=spread,
    numbers=matrix(
        "relative deviation of weights, {}",
        "{}_deviation_{}",
        "{} tokens",
        {"gspo": "GSPO", "grpo": "GRPO"},
        (16, 4096),
    ),
    rule="Within a sequence, weights are constant for GSPO, to rounding, and vary for GRPO.",
    judge=lambda seen: both(
        seen.equal(
            {f"gspo_deviation_{length}": 0.0 for length in SPREAD_LENGTHS}, 1e-12, "GSPO's weights within a sequence"
        ),
        above(seen.interval("grpo_deviation_4096"), 0.01, "relative deviation of GRPO's weights:"),
    ),
)

WEIGHT_SPREAD = Claim(
    name="weight-spread",
    title="The token weights of GRPO's gradient vary more the longer the sequence is.",
    source="S0, S1, S4",
    argument="The deviation over tokens is that of single ratios, whatever their number. Only the range grows, slowly.",
    expected="Does not hold for independent ratios. The range grows by a tenth or two for four times the tokens.",
    of=spread,
    numbers=matrix(
        "{}",
        "grpo_{}_{}",
        "{} tokens",
        {"deviation": "relative deviation of weights", "range": "largest weight over smallest"},
        (16, 4096),
    ),
    rule="The deviation at 4096 tokens exceeds that at 16 by a tenth or more.",
    judge=lambda seen: above(
        seen.combined(lambda short, long: long / short, "grpo_deviation_16", "grpo_deviation_4096"),
        1.1,
        "deviation at 4096 tokens over that at 16:",
    ),
    figure=Figure(
        title="Spread of GRPO's token weights",
        axes=("tokens", "relative to their mean"),
        lines=lines_of(spread, SPREAD_LENGTHS, {"deviation": "grpo_deviation", "largest over smallest": "grpo_range"}),
        hint="The claim predicts a deviation that rises with the length. Only the range does.",
        log=(True, False),
    ),
)


@computed("gspo-token", seeds=5)
def per_token(seed: int) -> dict[str, float]:
    """Compare values, clips and gradients of both on one batch of rows of unlike length, some of them beyond the clip:
    with one advantage a row, and with one a token.
    """
    rows, length = 32, 40
    numbers = torch.Generator().manual_seed(seed)
    mask = torch.arange(length) < torch.randint(1, length, (rows, 1), generator=numbers)
    old = -torch.rand(rows, length, generator=numbers, dtype=torch.float64)
    live = old + 2e-3 * torch.randn(rows, length, generator=numbers, dtype=torch.float64)
    seen: dict[str, float] = {}
    for kind, columns in (("equal", 1), ("varied", length)):
        advantage = torch.randn(rows, columns, generator=numbers, dtype=torch.float64).expand(rows, length)
        one, other = (algo.loss(live, old, advantage, mask) for algo in (GSPO, GSPO_TOKEN))
        first, second = (ascent(algo, live, advantage, old, mask) for algo in (GSPO, GSPO_TOKEN))
        seen |= {
            f"value_{kind}": float((one.value - other.value).abs()),
            f"share_{kind}": float((one.share - other.share).abs().max()),
            f"gradient_{kind}": float((first - second).norm() / first.norm()),
        }
        if kind == "equal":
            seen["stopped"] = float(1 - one.share[mask].mean())
    return seen


PER_TOKEN = Claim(
    name="gspo-token",
    title="GSPO-token equals GSPO in value, clipping, and gradient if a completion has one advantage, and differs "
    "if its tokens have their own.",
    source="S4; GSPO 2507.18071 eq 13 to 17",
    argument="s_t = sg[s] p_t / sg[p_t] has the value of s and the gradient of log p_t, which sums to the gradient of "
    "s.",
    expected="Holds. (S4 writes the token's ratio instead of p_t / sg[p_t], which would not be equal.)",
    of=per_token,
    numbers={"share of tokens that are clipped": "stopped"}
    | matrix(
        "relative difference of gradients",
        "gradient_{}",
        "{}",
        {"equal": "one advantage", "varied": "advantages per token"},
    ),
    rule="Equal to rounding with one advantage per completion, and another gradient with one per token.",
    judge=lambda seen: both(
        *(
            seen.equal({f"{key}_equal": 0.0}, 1e-12, f"{words} with one advantage")
            for key, words in (("value", "values"), ("share", "clips"), ("gradient", "gradients"))
        ),
        above(seen.interval("gradient_varied"), 0.01, "relative difference of gradients with advantages per token:"),
    ),
)
CLAIMS = (PERPLEXITY_RATIO, SEQUENCE_WEIGHT, LOG_DIFFERENCE, UNIFORM_WEIGHTS, WEIGHT_SPREAD, PER_TOKEN)
