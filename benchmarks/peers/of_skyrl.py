"""SkyRL's side: `ppo_utils`, its estimators, and policy losses under advantages scaled for the mean."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import typing_extensions
from torch import Tensor

typing.TypedDict = typing_extensions.TypedDict  # SkyRL is for Python 3.12, where pydantic takes either

from skyrl.backends.skyrl_train.utils import ppo_utils as sky  # pyright: ignore  # noqa: E402
from skyrl.train.config import AlgorithmConfig  # pyright: ignore  # noqa: E402
from skyrl.train.config.config import CISPOConfig, DPPOConfig  # pyright: ignore  # noqa: E402

from peers.comparing import WIDTH, Case, Draw, Kind, Side  # noqa: E402

DISTRIBUTION = "skyrl"
OWN = "SkyRL's defaults"
Estimate = Callable[[Draw], Tensor]


def estimator(name: str, **more: Any) -> Estimate:
    """Make the estimator of that name, of outcome rewards and, where it takes them, values."""
    estimate = sky.AdvantageEstimatorRegistry.get(name)

    def advantages(batch: Draw) -> Tensor:
        columns = {"values": batch.values * batch.m} if name == "gae" else {}
        index = np.array(batch.group.numpy().astype(object))
        made = estimate(
            token_level_rewards=batch.rewards.clone(), response_mask=batch.m, index=index, **columns, **more
        )
        return made[0] * batch.m

    return advantages


def side(estimate: Estimate, loss: str = "regular", mean: str = "token_mean", low: float = 0.2, high: float = 0.2,
         **options: Any) -> Side:  # fmt: skip
    config = AlgorithmConfig(
        policy_loss_type=loss, loss_reduction=mean, eps_clip_low=low, eps_clip_high=high, **options
    )
    policy_loss = sky.PolicyLossRegistry.get(loss)

    def run(batch: Draw, live: Tensor) -> tuple[Tensor, Tensor]:
        advantage = estimate(batch)
        scaled = sky.apply_loss_reduction_to_advantages_minibatch(advantage, batch.m, mean, len(batch.group), WIDTH)
        value, _ = policy_loss(live, batch.old, scaled, config, batch.m, None)
        return advantage, value

    return run


def far(kind: str, delta: float) -> dict[str, Any]:
    return {"dppo": DPPOConfig(dppo_type=kind, delta_low=delta, delta_high=delta)}


def capped(low: float, high: float) -> dict[str, Any]:
    return {"cispo": CISPOConfig(cispo_eps_clip_low=low, cispo_eps_clip_high=high)}


ZSCORE, MEAN, NORM = estimator("grpo"), "sequence_mean", "seq_mean_token_sum_norm"
CONTIGUOUS, NO_KL = Kind(holes=False), {"kl.beta": 0.0}
PLAIN = {"shaping.scale": 1.0, "shaping.offset": 0.0}
NO_CAP, GRADIENT = {"trust.cap": 0.0}, "the same gradient; the value is r A in place of sg[r] A log pi"
HELD = {f"trust.{side}_{sign}": bound for side, bound in (("low", 1.0), ("high", 6.0))
        for sign in ("positive", "negative")}  # fmt: skip

CASES = (
    Case("ppo", "gae, regular", side(estimator("gae", gamma=1.0, lambd=0.95)), NO_KL, kind=CONTIGUOUS),
    Case("ppo", "gae, dual_clip", side(estimator("gae", gamma=1.0, lambd=0.95), "dual_clip"),
         {**NO_KL, "trust.dual_clip": 3.0}, "dual_clip", CONTIGUOUS),
    Case("reinforce++", "reinforce++, regular", side(estimator("reinforce++", gamma=1.0)), NO_KL, kind=CONTIGUOUS),
    Case("grpo", "grpo, regular", side(ZSCORE, mean=MEAN), NO_KL),
    Case("dr-grpo", "grpo, regular", side(estimator("grpo", grpo_norm_by_std=False), mean=NORM),
         {"aggregate.limit": WIDTH}),
    Case("dapo", "grpo, regular", side(ZSCORE, high=0.28), PLAIN),
    Case("gspo", "grpo, gspo", side(ZSCORE, "gspo", MEAN, 3e-4, 4e-4)),
    Case("gspo-token", "grpo, gspo", side(ZSCORE, "gspo", MEAN, 3e-4, 4e-4)),
    Case("sapo", "grpo, sapo", side(ZSCORE, "sapo", MEAN)),
    Case("cispo", "grpo, cispo", side(ZSCORE, "cispo", **capped(1.0, 4.0)), PLAIN),
    Case("cispo", "grpo, cispo", side(ZSCORE, "cispo"), {**PLAIN, "trust.kind": "tapered", **HELD}, OWN,
         words="its offsets of 0 and 5 hold the weight between 1 and 6: a ratio below 1 is raised to 1"),
    Case("dppo-tv", "grpo, dppo", side(ZSCORE, "dppo", **far("binary_tv", 0.2)),
         {**NO_CAP, "trust.delta_low": 0.2, "trust.delta_high": 0.2}, OWN, value=False, words=GRADIENT),
    Case("dppo-kl", "grpo, dppo", side(ZSCORE, "dppo", **far("binary_kl", 0.05)), NO_CAP, value=False, words=GRADIENT),
)  # fmt: skip

EDGES = (
    Case("maxrl", "maxrl, regular", side(estimator("maxrl")), {}, "the catalog's", Kind(binary=True),
         words="SkyRL adds 1e-6 to the group's mean; the paper divides by the mean, as we do"),
    Case("reinforce++", "reinforce++, regular", side(estimator("reinforce++", gamma=1.0)), NO_KL,
         "tokens inside that are not trained", words="SkyRL forgets the reward to come at each of them: nothing "
         "before an environment's turn is rewarded; verl carries it over, as we do"),
    Case("ppo", "gae, regular", side(estimator("gae", gamma=1.0, lambd=0.95)), NO_KL,
         "tokens inside that are not trained", words="SkyRL takes them for steps with values of their own; verl leaves "
         "them out, as we do"),
)  # fmt: skip

WITHOUT = {
    "rloo": "advantages as verl's, trained with token ratios",
    "opd": "advantages made inside its trainer",
}
