"""Claim: k3 in the loss is the unbiased and stable way to hold a policy to its reference."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Effort, Experiment, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, agree, below, every

NAME = "kl-estimators"
ESTIMATORS = ("k1", "k2", "k3", "k3-ratio")
VOCABULARY = 12


def measure(seed: int, work: Path) -> dict[str, float]:
    """One token, every outcome: the expectation of each estimator, and of its gradient inside the loss, over what it
    estimates, KL(live || reference); on policy, and with samples of an older policy.
    """
    numbers = torch.Generator().manual_seed(seed)
    live, old, reference = (torch.randn(VOCABULARY, generator=numbers, dtype=torch.float64) for _ in range(3))
    old = live + 0.5 * old
    logits = live.clone().requires_grad_()
    logp, ref = logits.log_softmax(0), reference.log_softmax(0)
    truth = (logp.exp() * (logp - ref)).sum()
    (slope,) = torch.autograd.grad(truth, logits)
    seen = {"kl": float(truth.detach())}
    for place, samples in (("on", live), ("off", old)):
        chance = samples.log_softmax(0)
        for name in ESTIMATORS:
            value, gradient = _expected(name, live, chance, ref)
            seen[f"value_{name}_{place}"] = value / float(truth.detach())
            seen[f"gradient_{name}_{place}"] = float((gradient - slope).norm() / slope.norm())
    return seen


def _expected(name: str, live: torch.Tensor, sampled: torch.Tensor, ref: torch.Tensor) -> tuple[float, torch.Tensor]:
    """E_sampled of the estimator, and its gradient with respect to the logits."""
    estimator = algorithm("grpo", {"kl.estimator": name}).kl
    logits = live.clone().requires_grad_()
    logp = logits.log_softmax(0)
    value = (sampled.exp() * estimator(logp, ref, logp - sampled)).sum()
    return float(value.detach()), torch.autograd.grad(value, logits)[0]


def judge(measured: Measurements) -> Verdict:
    """k3's value is right on policy; its gradient there, and value and gradient off policy, should be within 1 %."""
    value = agree(
        max(abs(v - 1) for v in measured.values(NAME, "value_k3_on").values()), 0.0, 1e-9, "k3's value and KL"
    )
    gradient = below(measured.interval(NAME, "gradient_k3_on"), 0.01, "k3's gradient is off by a share of")
    late = below(
        measured.interval_of({s: abs(v - 1) for s, v in measured.values(NAME, "value_k3_off").items()}),
        0.01,
        "off policy k3's value is off by a share of",
    )
    return every([value, gradient, late])


CLAIM = Claim(
    name=NAME,
    title="k3 in the loss, as GRPO has it, is an unbiased estimate of the KL to the reference, and so is its gradient.",
    source="S0, S1, S3 repeat DeepSeekMath 2402.03300 eq 4; DeepSeek-V3.2 corrects it",
    argument="Its value is right for samples of the policy itself. Its gradient is that of KL(ref || live), since the "
    "samples' own dependence is left out; k2's is that of KL(live || ref). After the first update on a batch the "
    "samples are an older policy's, and only an estimator with a ratio in front is right.",
    expected="The value on policy: holds. Gradient, and off policy: does not hold.",
    experiments=(Experiment(NAME, measure, "1", {Effort.QUICK: 10}),),
    quantities=tuple(
        Quantity(f"{words} {name}, {place} policy", NAME, f"{key}_{name}_{place}")
        for place in ("on", "off")
        for key, words in (("value", "value over KL,"), ("gradient", "relative error of the gradient,"))
        for name in ESTIMATORS
    ),
    judge=judge,
)
