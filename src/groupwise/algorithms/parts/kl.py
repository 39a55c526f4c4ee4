"""Estimators of KL(live || ref) from sampled tokens, and where the penalty is put. x = logp_ref - logp_live below.

`value` says whose expectation is right for samples of the live policy; `gradient` what differentiating the estimator
gives there, on policy. Off policy a ratio is needed in front for either to hold, which only k3-ratio has.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from groupwise.algorithms.calls import call
from groupwise.algorithms.parts import Part
from groupwise.algorithms.parts.ratio import bounded


class Estimator(Part, Protocol):
    """(logp_live, logp_ref, token_log_ratio), each [N,T] nats -> kl [N,T] nats."""

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class K1(Estimator):
    """k1 = -x. value: unbiased, can be negative. gradient: 0 in expectation, so it is useless inside a loss."""

    equation = "KL = -x,  x = log pi_ref - log pi_live"

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor:
        return bounded(logp_live - logp_ref)


@dataclass(frozen=True)
class K2(Estimator):
    """k2 = x^2 / 2. value: biased, never negative. gradient: the gradient of KL(live || ref), on policy."""

    equation = "KL = x^2 / 2,  x = log pi_ref - log pi_live"

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor:
        return bounded(logp_live - logp_ref) ** 2 / 2


@dataclass(frozen=True)
class K3(Estimator):
    """k3 = exp(x) - x - 1. value: unbiased, never negative. gradient: that of KL(ref || live), on policy.

    Source: DeepSeekMath (2402.03300) eq 4.
    """

    equation = "KL = exp(x) - x - 1,  x = log pi_ref - log pi_live"

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor:
        x = bounded(logp_ref - logp_live)
        return x.exp() - x - 1


@dataclass(frozen=True)
class K3Ratio(Estimator):
    """r k3, r = pi_live / pi_old token by token: value and gradient are KL(live || ref)'s, off policy too.

    Source: DeepSeek-V3.2's unbiased estimate.
    """

    equation = "KL = r_t (exp(x) - x - 1),  x = log pi_ref - log pi_live"

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor:
        return token_log_ratio.exp() * K3()(logp_live, logp_ref, token_log_ratio)


#: Where the penalty acts: inside the loss beside the surrogate, or subtracted from the reward of each token.
Place = Literal["loss", "reward"]
#: The policy that the penalty holds the live one to: the reference model, or the one that sampled.
Against = Literal["reference", "old"]


@dataclass(frozen=True)
class KL(Part):
    """beta times an estimator, in the loss or in the reward.

    beta       weight of the penalty, at least 0; 0 needs no reference
    estimator  k1, k2, k3 or k3-ratio
    place      "loss" or "reward"
    against    "reference", or "old": pi_old in place of pi_ref, which needs no reference model; in the loss only
    """

    beta: float = 0.0
    estimator: Estimator = K3()
    place: Place = "loss"
    against: Against = "reference"

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ValueError(f"beta = {self.beta}: must not be negative")
        if self.against == "old" and self.place == "reward":
            raise ValueError('place = "reward": with against = "old" that is 0 everywhere; take place = "loss"')

    @property
    def equation(self) -> str:
        """The penalty and where it acts."""
        if not self.beta:
            return "no penalty"
        acts = "" if self.place == "loss" else ";  r_t = r_t - beta KL_t, with pi_old for pi_live"
        equation = self.estimator.equation
        return (equation.replace("pi_ref", "pi_old") if self.against == "old" else equation) + acts

    @property
    def reads_reference(self) -> bool:
        return self.beta > 0 and self.against == "reference"

    @property
    def in_loss(self) -> bool:
        return self.beta > 0 and self.place == "loss"

    @property
    def in_reward(self) -> bool:
        return self.beta > 0 and self.place == "reward"

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor:
        return call("kl", self.estimator, logp_live, logp_ref, token_log_ratio)
