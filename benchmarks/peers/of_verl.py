"""verl's side: `verl.trainer.ppo.core_algos`, its estimators, policy losses, KL penalty and aggregation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.config import AlgoConfig  # pyright: ignore
from verl.trainer.ppo import core_algos as verl  # pyright: ignore
from verl.workers.config import ActorConfig  # pyright: ignore
from verl.workers.config.actor import PolicyLossConfig  # pyright: ignore

from peers.comparing import Case, Draw, Kind, Side

DISTRIBUTION = "verl"
#: A ratio that no batch reaches: verl's second clip cannot be turned off.
OFF = 1e9
MEAN, ALL_TOKENS, NORM = "seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"
#: What verl does unless a file says otherwise, as our settings.
DUAL = {"trust.dual_clip": 3.0}
DEFAULTS = {**DUAL, "kl.beta": 0.0, "aggregate.kind": "token-mean"}
OWN = "verl's defaults"

Estimate = Callable[[Draw], Tensor]


def group_based(name: str, **more: Any) -> Estimate:
    """Make the estimator of outcome rewards that verl has under a name."""
    estimate = verl.get_adv_estimator_fn(name)

    def advantages(batch: Draw) -> Tensor:
        index = batch.group.numpy().astype(object)
        return estimate(
            token_level_rewards=batch.rewards.clone(), response_mask=batch.m, index=np.array(index), **more
        )[0]

    return advantages


def returns(batch: Draw) -> Tensor:
    """Reward to go, without a baseline: remax with baselines of 0."""
    return verl.compute_remax_outcome_advantage(batch.rewards, torch.zeros_like(batch.score), batch.m)[0]


def to_go(beta: float) -> Estimate:
    """Whitened reward to go, of rewards with the KL in them."""

    def advantages(batch: Draw) -> Tensor:
        rewards = verl.compute_rewards(batch.rewards, batch.old, batch.ref, beta)
        return verl.compute_reinforce_plus_plus_outcome_advantage(rewards, batch.m, AlgoConfig(gamma=1.0))[0]

    return advantages


def gae(beta: float, lam: float) -> Estimate:
    def advantages(batch: Draw) -> Tensor:
        rewards = verl.compute_rewards(batch.rewards, batch.old, batch.ref, beta)
        return verl.compute_gae_advantage_return(rewards, batch.values, batch.m, 1.0, lam)[0] * batch.m

    return advantages


def by_reward(batch: Draw) -> Tensor:
    """GDPO of several rewards, each under a key of its own; verl places each at the last token by the mask."""
    keys = [f"reward_{k}" for k in range(batch.scores.shape[1])]
    config = AlgoConfig(gdpo_reward_keys=keys, gdpo_reward_weights=batch.weights.tolist())
    prompts = torch.zeros(len(batch.group), 1, dtype=torch.long)
    attention = torch.cat([torch.ones_like(prompts), batch.mask.long()], 1)
    return verl.compute_gdpo_outcome_advantage(
        batch.rewards, batch.m, np.array(batch.group.numpy().astype(object)), config=config,
        non_tensor_batch={key: batch.scores[:, k].numpy() for k, key in enumerate(keys)},
        batch={"prompts": prompts, "attention_mask": attention},
    )[0]  # fmt: skip


def side(
    estimate: Estimate,
    loss: str | None = "vanilla",
    low: float = 0.2,
    high: float = 0.2,
    dual: float = OFF,
    mean: str = ALL_TOKENS,
    beta: float = 0.0,
    kl: str = "low_var_kl",
    **policy: Any,
) -> Side:
    """Make verl's side: an estimator, a policy loss by its name and a KL term in the loss."""
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=low, clip_ratio_low=low,
        clip_ratio_high=high, clip_ratio_c=dual, loss_agg_mode=mean, policy_loss=PolicyLossConfig(**policy),
    )  # fmt: skip

    def run(batch: Draw, live: Tensor) -> tuple[Tensor, Tensor | None]:
        advantage = estimate(batch)
        if loss is None:
            return advantage, None
        value, _ = verl.get_policy_loss_fn(loss)(batch.old, live, advantage, batch.m, mean, config)
        if beta:
            penalty = verl.kl_penalty(live, batch.ref, kl)
            value = value + beta * verl.agg_loss(penalty, batch.m, mean)
        return advantage, value

    return run


def weighted_by_ratio(estimate: Estimate) -> Side:
    """REINFORCE of verl's bypass mode: log-likelihoods weighted by the detached ratio."""
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)

    def run(batch: Draw, live: Tensor) -> tuple[Tensor, Tensor]:
        advantage, ratio = estimate(batch), (live.detach() - batch.old).exp()
        value, _ = verl.compute_policy_loss_reinforce(
            batch.old, live, advantage, batch.m, ALL_TOKENS, config, rollout_is_weights=ratio
        )
        return advantage, value

    return run


def distilled(batch: Draw) -> Tensor:
    """What distillation by policy gradient gives a token: minus k1 of the policy to the teacher."""
    return -verl.kl_penalty(batch.live, batch.ref, "k1").detach() * batch.m


ZSCORE, MEAN_ONLY = group_based("grpo"), group_based("grpo", norm_adv_by_std_in_grpo=False)
PLAIN = {"shaping.scale": 1.0, "shaping.offset": 0.0}
SHAPING = "from shaped scores on"
OF_LIKELIHOOD = "the same gradient; the value is A log pi in place of r A"

CASES = (
    Case("ppo", "gae, vanilla, compute_rewards", side(gae(0.05, 0.95))),
    Case("ppo", "gae, vanilla", side(gae(0.0, 1.0), dual=3.0), {**DUAL, "kl.beta": 0.0, "advantage.lam": 1.0}, OWN),
    Case("reinforce", "remax (baseline 0), compute_policy_loss_reinforce", weighted_by_ratio(returns), value=False,
         words=OF_LIKELIHOOD),
    Case("rloo", "rloo", side(group_based("rloo"), None), {"kl.beta": 0.0},
         words="advantages alone: its RLOO has token ratios"),
    Case("rloo", "rloo_vectorized", side(group_based("rloo_vectorized"), None), {"kl.beta": 0.0},
         words="advantages alone"),
    Case("reinforce++", "reinforce_plus_plus, vanilla, compute_rewards", side(to_go(0.01))),
    Case("reinforce++", "reinforce_plus_plus, vanilla", side(to_go(0.0), dual=3.0), DEFAULTS, OWN),
    Case("reinforce++-baseline", "reinforce_plus_plus_baseline, vanilla, kl_penalty",
         side(group_based("reinforce_plus_plus_baseline"), beta=0.001, kl="k2")),
    Case("grpo", "grpo, vanilla, kl_penalty", side(ZSCORE, mean=MEAN, beta=0.04)),
    Case("grpo", "grpo, vanilla", side(ZSCORE, dual=3.0), DEFAULTS, OWN),
    Case("grpo", "grpo_vectorized, vanilla", side(group_based("grpo_vectorized"), dual=3.0), DEFAULTS, OWN),
    Case("dr-grpo", "grpo, vanilla", side(MEAN_ONLY, mean=NORM), {"aggregate.limit": 12}),
    Case("dapo", "grpo, vanilla", side(ZSCORE, high=0.28), PLAIN, words=SHAPING),
    Case("gspo", "grpo, gspo", side(ZSCORE, "gspo", 3e-4, 4e-4, mean=MEAN)),
    Case("gspo", "grpo, gspo", side(ZSCORE, "gspo"), {"aggregate.kind": "token-mean", "ratio.level": "sequence-token",
         "trust.epsilon_low": 0.2, "trust.epsilon_high": 0.2}, OWN),
    Case("gspo-token", "grpo, gspo", side(ZSCORE, "gspo", 3e-4, 4e-4, mean=MEAN)),
    Case("sapo", "grpo, sapo", side(ZSCORE, "sapo")),
    Case("cispo", "grpo, cispo", side(ZSCORE, "cispo", 1.0, 4.0), PLAIN),
    Case("cispo", "grpo, cispo", side(ZSCORE, "cispo"), {**PLAIN, "trust.kind": "tapered", **{
        f"trust.{side}_{sign}": bound for side, bound in (("low", 0.8), ("high", 1.2))
        for sign in ("positive", "negative")}}, OWN),
    Case("gmpo", "grpo, geo_mean", side(ZSCORE, "geo_mean", 0.4, 0.4)),
    Case("dppo-tv", "grpo, dppo_tv", side(ZSCORE, "dppo_tv", 0.15, 0.15, 20.0)),
    Case("dppo-tv", "grpo, dppo_tv", side(ZSCORE, "dppo_tv", dual=3.0),
         {"trust.delta_low": 0.2, "trust.delta_high": 0.2, "trust.cap": 3.0}, OWN),
    Case("dppo-kl", "grpo, dppo_kl", side(ZSCORE, "dppo_kl", 0.05, 0.05, 20.0)),
    Case("gdpo", "gdpo, vanilla", side(by_reward), kind=Kind(rewards=3, holes=False)),
    Case("dro", "grpo, dro", side(MEAN_ONLY, "dro", dro_beta=0.05)),
    Case("opo", "opo, gpg", side(group_based("opo"), "gpg"), spreads=(0.0,), value=False, words=OF_LIKELIHOOD
         + "; on policy, where OPO is"),
    Case("reinforce-rej", "remax (baseline 0), vanilla", side(returns, mean=MEAN), PLAIN, words=SHAPING),
    Case("opd", "kl_penalty k1, dppo_tv", side(distilled, "dppo_tv", 0.2, 0.2, OFF), spreads=(0.0,),
         words="on the first update: later ones take k1 of the live policy, ours that of the old one"),
)  # fmt: skip

EDGES = (
    Case("grpo", "grpo, vanilla", side(ZSCORE, mean=MEAN), {"kl.beta": 0.0}, "a group with equal scores of 0.3",
         Kind(tied=True), words="verl divides what rounding leaves of 0 by 1e-6; ours are exactly 0"),
    Case("grpo", "grpo, vanilla", side(ZSCORE, mean=MEAN), {"kl.beta": 0.0}, "a prompt with one completion",
         Kind(alone=True), words="verl lets it keep its score as advantage; without others there is no baseline: 0"),
    Case("rloo", "rloo", side(group_based("rloo"), None), {"kl.beta": 0.0}, "a prompt with one completion",
         Kind(alone=True), words="verl keeps the score, and its rloo_vectorized gives 0, as we do"),
    Case("rloo", "rloo_vectorized", side(group_based("rloo_vectorized"), None), {"kl.beta": 0.0},
         "a prompt with one completion", Kind(alone=True)),
    Case("gdpo", "gdpo, vanilla", side(by_reward), {}, "a group whose rewards are all equal",
         Kind(rewards=3, holes=False, tied=True), words="the mean over tokens is not 0, and verl takes it from "
         "tied groups too; a mean over completions is 0 and leaves them at 0, as we do"),
    Case("reinforce++-baseline", "reinforce_plus_plus_baseline",
         side(group_based("reinforce_plus_plus_baseline"), None), {"kl.beta": 0.0}, "a group with equal scores",
         Kind(tied=True), words="as gdpo: a tied group gets minus the mean over tokens from verl, 0 from us"),
    Case("sapo", "grpo, sapo", side(ZSCORE, "sapo"), {"aggregate.kind": "token-mean"}, "loss_agg_mode token-mean",
         words="verl's sapo takes the mean over completions whatever loss_agg_mode says; `groupwise import` knows"),
)  # fmt: skip

#: Rows that it has not, where that is not all there is to say.
WITHOUT = {"deepseek-v3.2": "masks completions by rollout correction alone, whatever their advantage"}
