"""Claim: k3 estimates the KL to the reference without bias."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, agree, below, every

NAME = "kl-estimators"
VOCABULARY = 12
ESTIMATORS = {name: algorithm("grpo", {"kl.estimator": name}).kl.estimator for name in ("k1", "k2", "k3", "k3-ratio")}


def measure(seed: int, work: Path) -> dict[str, float]:
    """One token, every outcome: the expectation of each estimator, over KL(live || reference), and the relative error
    of its gradient inside the loss; with samples of the policy itself, and of an older one. Then k1 in the reward.
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
    _, gradient = _with_slope(live, lambda logp: (logp.detach().exp() * _k1(logp.detach(), ref) * logp).sum())
    return {**seen, "gradient_reward": float((gradient - slope).norm() / slope.norm())}


def _k1(logp: Tensor, ref: Tensor) -> Tensor:
    return ESTIMATORS["k1"](logp, ref, torch.zeros_like(logp))


def _with_slope(logits: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
    """A function of log-probabilities, and its gradient by the logits."""
    logits = logits.clone().requires_grad_()
    value = function(logits.log_softmax(0))
    return float(value.detach()), torch.autograd.grad(value, logits)[0]


EXPERIMENT = computed(NAME, measure, seeds=10)


def judge(measured: Measurements) -> Verdict:
    """On samples of the policy k3's expectation is the KL, to rounding; on those of an older one within 1 %."""
    values = measured.values(NAME, "value_k3_on").values()
    on = agree(max(abs(value - 1) for value in values), 0.0, 1e-9, "on policy k3's expectation over the KL, and 1,")
    off = {seed: abs(value - 1) for seed, value in measured.values(NAME, "value_k3_off").items()}
    return every(
        [on, below(measured.interval_of(off), 0.01, "after a step away from the samples' policy k3 is off by")]
    )


CLAIM = Claim(
    name="kl-value",
    title="k3, as GRPO has it in its loss, is an unbiased estimate of the KL to the reference.",
    source="DeepSeekMath 2402.03300 eq 4; S0, S1 and S3 take the term over; DeepSeek-V3.2 corrects it",
    argument="The expectation is right for samples of the policy itself. From the second update on a batch on, the "
    "samples are an older policy's, and only an estimator with a ratio in front is right (k3-ratio here).",
    expected="On policy it holds, off policy it does not.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(f"expectation over KL, {name}, {place} policy", NAME, f"value_{name}_{place}")
        for place in ("on", "off")
        for name in ESTIMATORS
    ),
    judge=judge,
)
