"""KL: what the estimators estimate, whose gradient they have, and whether its place matters."""

from collections.abc import Callable
from math import log2

import torch
from torch import Tensor

from groupwise.algorithms.parts.kl import K1, K2, K3, Estimator, K3Ratio
from groupwise.claims.claim import Claim, grid, matrix, quantities
from groupwise.claims.experiments import GRPO, KL_LOSS, KL_REWARD, computed
from groupwise.claims.measurements import above, below, both, every
from groupwise.claims.readings import in_words

VOCABULARY = 12
ESTIMATORS: dict[str, Estimator] = {"k1": K1(), "k2": K2(), "k3": K3(), "k3-ratio": K3Ratio()}


@computed("kl-estimators", seeds=10)
def estimators(seed: int) -> dict[str, float]:
    """Compute over every outcome of one token the expectation of each estimator, over KL(live || reference), and the
    relative error of its gradient inside the loss; with samples of the policy itself, and of an older one. Then k1 in
    the reward.
    """
    numbers = torch.Generator().manual_seed(seed)
    live, apart, reference = (torch.randn(VOCABULARY, generator=numbers, dtype=torch.float64) for _ in range(3))
    ref, old = reference.log_softmax(0), (live + 0.5 * apart).log_softmax(0)
    truth, slope = _with_slope(live, lambda logp: (logp.exp() * (logp - ref)).sum())
    seen: dict[str, float] = {"kl": truth}
    for place, sampled in (("on", live.log_softmax(0)), ("off", old)):
        for name, estimator in ESTIMATORS.items():
            value, gradient = _with_slope(
                live, lambda logp, e=estimator, s=sampled: (s.exp() * e(logp, ref, logp - s)).sum()
            )
            seen[f"value_{name}_{place}"] = value / truth
            seen[f"gradient_{name}_{place}"] = float((gradient - slope).norm() / slope.norm())
    logp = live.log_softmax(0)
    reward = logp.exp() * ESTIMATORS["k1"](logp, ref, torch.zeros_like(logp))
    _, gradient = _with_slope(live, lambda logp: (reward * logp).sum())
    return {**seen, "gradient_reward": float((gradient - slope).norm() / slope.norm())}


def _with_slope(logits: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
    """Compute a function of log-probabilities, and its gradient by the logits."""
    logits = logits.clone().requires_grad_()
    value = function(logits.log_softmax(0))
    return float(value.detach()), torch.autograd.grad(value, logits)[0]


KL_VALUE = Claim(
    name="kl-value",
    title="k3, as GRPO has it in its loss, is an unbiased estimate of the KL to the reference.",
    source="DeepSeekMath 2402.03300 eq 4; S0, S1, S3; DeepSeek-V3.2 corrects it",
    argument="From the second update on a batch, the samples come from an older policy, and only an estimator with an "
    "importance ratio is right (k3-ratio here).",
    expected="Holds on policy, does not hold off policy.",
    of=estimators,
    numbers=matrix("expectation over KL, {}", "value_{}_{}", "{} policy", ("k3", "k3-ratio"), ("on", "off")),
    rule="k3's expectation is the KL on policy, to rounding, and within 1 % of it off policy.",
    judge=lambda seen: both(
        seen.equal({"value_k3_on": 1.0}, 1e-9, "on policy, k3's expectation over the KL and 1"),
        below(
            seen.combined(lambda value: abs(value - 1), "value_k3_off"),
            0.01,
            "off policy, relative error of k3:",
        ),
    ),
)
KL_GRADIENT = Claim(
    name="kl-gradient",
    title="k3 in the loss penalizes KL(live || reference): its gradient is that of this KL.",
    source="S0, S1, S3; DeepSeekMath 2402.03300 eq 3 and 4",
    argument="Differentiating the estimator ignores that the samples depend on the policy. k3 then has the gradient of"
    " KL(reference || live), k2 that of KL(live || reference), and k1 none.",
    expected="Does not hold.",
    of=estimators,
    numbers=grid(
        "relative error of the gradient, {} in the loss",
        "gradient_{}_on",
        tuple(ESTIMATORS),
    )
    | {"relative error of the gradient, k1 in the reward": "gradient_reward"},
    rule="On policy, its best case, k3's gradient is within 1 % of that of KL(live || reference).",
    judge=lambda seen: below(seen.interval("gradient_k3_on"), 0.01, "on policy, relative error of k3's gradient:"),
)

#: Pass rates that differ by less are the same for this question, and distances within a factor of two.
SAME, PLACES = 0.05, (KL_LOSS.name, KL_REWARD.name)
KL_PLACE = Claim(
    name="kl-place",
    title="It makes no difference whether the KL is in the loss or in the reward.",
    source="S0, S1, S3; DeepSeekMath 2402.03300 section 4.1.1 and eq 2",
    argument="In the loss, beta pulls each token back. In the reward, the group's deviation divides the KL: it weighs "
    "little where scores differ, and is the only signal where all are right.",
    expected="Pass rates: holds. Distance: does not hold.",
    of={"in the loss (k3)": KL_LOSS, "in the reward (k1)": KL_REWARD},
    numbers=in_words("heldout_mean", "reference_k3"),
    beside=quantities(GRPO, {"mean held-out pass rate, no KL": "heldout_mean"}),
    rule="Pass rates differ by less than 0.05, and distances from the reference by less than a factor of two.",
    judge=lambda measured: every(
        verdict
        for apart, bound, words in (
            (
                measured.difference(*PLACES, "heldout_mean"),
                SAME,
                "pass rate, reward minus loss:",
            ),
            (
                measured.across(lambda loss, reward: log2(reward / loss), "reference_k3", *PLACES),
                1.0,
                "log2 of the distance, reward over loss:",
            ),
        )
        for verdict in (above(apart, -bound, words), below(apart, bound, words))
    ),
)
CLAIMS = (KL_VALUE, KL_GRADIENT, KL_PLACE)
