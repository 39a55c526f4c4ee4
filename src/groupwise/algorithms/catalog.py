"""The algorithms by name, each a row of parts with its paper's constants."""

import dataclasses
from collections.abc import Callable, Mapping

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.advantage import (
    GAE,
    GroupMean,
    GroupZScore,
    LeaveOneOut,
    ProcessZScore,
    Return,
)
from groupwise.algorithms.parts.aggregate import Constant, SequenceMean, TokenMean
from groupwise.algorithms.parts.filters import DropUniform
from groupwise.algorithms.parts.kl import K1, K2, K3, KL, Place
from groupwise.algorithms.parts.ratio import SequenceRatio, SequenceSum, SequenceTokenRatio, TokenRatio
from groupwise.algorithms.parts.shaping import Outcome, Steps
from groupwise.algorithms.parts.soft import Cispo, SoftGate
from groupwise.algorithms.parts.trust import Clip, Geometric, NoTrust


def ppo() -> Algorithm:
    """PPO: a critic's advantages whitened over the batch, one clip, the KL in each token's reward, four passes."""
    return Algorithm(
        name="ppo",
        watch="explained_variance: above 0 and rising, or the critic is worse than none; kl_reward_mean; "
        "share_passed of the later passes",
        paper="Proximal Policy Optimization Algorithms, 1707.06347",
        shaping=Outcome(step_scale=1.0),
        advantage=GAE(gamma=1.0, lam=0.95, whiten=True),
        ratio=TokenRatio(),
        trust=Clip(epsilon_low=0.2, epsilon_high=0.2),
        kl=KL(beta=0.05, estimator=K1(), place=Place.REWARD),
        aggregate=TokenMean(),
        passes=4,
    )


def reinforce() -> Algorithm:
    """REINFORCE: the return itself, without a baseline, a trust region or a KL term."""
    return Algorithm(
        name="reinforce",
        watch="gradient_norm: nothing reduces the variance, and with scores of 0 and 1 only right completions push",
        paper="Simple statistical gradient-following algorithms (Williams, 1992), no arXiv id",
        advantage=Return(gamma=1.0, whiten=False),
        ratio=TokenRatio(),
        trust=NoTrust(),
        aggregate=TokenMean(),
    )


def rloo() -> Algorithm:
    """RLOO: the mean of the others as baseline, the whole completion one action, the KL in its reward."""
    return Algorithm(
        name="rloo",
        watch="ratio_max and log_ratio_abs_max: the ratio is a product over tokens and has no trust region; "
        "kl_reward_mean",
        paper="Back to Basics, 2402.14740",
        advantage=LeaveOneOut(),
        ratio=SequenceSum(),
        trust=NoTrust(),
        kl=KL(beta=0.05, estimator=K1(), place=Place.REWARD),
        aggregate=SequenceMean(),
    )


def reinforce_pp() -> Algorithm:
    """REINFORCE++: the return-to-go with the KL in it, whitened over the batch instead of a critic; one clip."""
    return Algorithm(
        name="reinforce++",
        watch="advantage_abs_mean: whitening mixes easy and hard prompts; kl_reward_mean",
        paper="REINFORCE++, 2501.03262",
        advantage=Return(gamma=1.0, whiten=True),
        ratio=TokenRatio(),
        trust=Clip(epsilon_low=0.2, epsilon_high=0.2),
        kl=KL(beta=0.01, estimator=K1(), place=Place.REWARD),
        aggregate=TokenMean(),
    )


def reinforce_pp_baseline() -> Algorithm:
    """REINFORCE++-baseline: the group's mean as baseline, then whitened over the batch; k2 in the loss."""
    return dataclasses.replace(
        reinforce_pp(),
        name="reinforce++-baseline",
        watch="groups_mixed_share: tied groups give 0; kl_mean",
        advantage=GroupMean(whiten=True),
        kl=KL(beta=0.001, estimator=K2(), place=Place.LOSS),
    )


def grpo() -> Algorithm:
    """GRPO: z-scores within the group, token ratios, one clip, k3 in the loss, a mean over sequences."""
    return Algorithm(
        name="grpo",
        watch="length_wrong_mean: a mean per sequence punishes a long wrong completion less per token; "
        "groups_mixed_share; kl_mean",
        paper="DeepSeekMath, 2402.03300",
        advantage=GroupZScore(),
        ratio=TokenRatio(),
        trust=Clip(epsilon_low=0.2, epsilon_high=0.2),
        kl=KL(beta=0.04, estimator=K3(), place=Place.LOSS),
        aggregate=SequenceMean(),
    )


def grpo_process() -> Algorithm:
    """GRPO with process supervision: z-scores of all steps of the group, a token gets those of the steps to come."""
    return dataclasses.replace(
        grpo(),
        name="grpo-process",
        watch="length_mean: a token collects every later step, so many right steps pay; steps should be scored so that "
        "padding earns nothing",
        shaping=Steps(),
        advantage=ProcessZScore(),
    )


def dr_grpo() -> Algorithm:
    """Dr. GRPO: no deviation and no length in any normaliser; the limit is the generation budget, 3000 in the paper."""
    return dataclasses.replace(
        grpo(),
        name="dr-grpo",
        watch="gradient_norm: the limit scales the gradient, so a longer limit is a smaller step; length_wrong_mean",
        paper="Understanding R1-Zero-Like Training, 2503.20783",
        advantage=GroupMean(),
        kl=KL(beta=0.0),
        aggregate=Constant(limit=3000),
    )


def dapo() -> Algorithm:
    """DAPO: a higher upper clip, uniform groups replaced, every token equal, long answers penalised, no KL."""
    return Algorithm(
        name="dapo",
        watch="rounds and groups_dropped: what the refill costs in generation; entropy_mean; truncated_share",
        paper="DAPO, 2503.14476",
        shaping=Outcome(scale=2.0, offset=-1.0, overlong_cache=0.2),
        filter=DropUniform(max_rounds=10),
        advantage=GroupZScore(),
        ratio=TokenRatio(),
        trust=Clip(epsilon_low=0.2, epsilon_high=0.28),
        aggregate=TokenMean(),
    )


def gspo() -> Algorithm:
    """GSPO: one ratio per completion, its length taken out, and a clip a thousandth as wide; no KL."""
    return Algorithm(
        name="gspo",
        watch="share_passed: epsilons this small fit long completions; a short one's mean log-ratio varies "
        "more, and most of it is stopped",
        paper="Group Sequence Policy Optimization, 2507.18071",
        advantage=GroupZScore(),
        ratio=SequenceRatio(),
        trust=Clip(epsilon_low=3e-4, epsilon_high=4e-4),
        aggregate=SequenceMean(),
    )


def gspo_token() -> Algorithm:
    """GSPO-token: GSPO's ratio in value, with the own token's gradient, so that advantages may vary inside."""
    return dataclasses.replace(
        gspo(),
        name="gspo-token",
        watch="share_passed, as for gspo: the two differ only where the advantages inside a completion do",
        ratio=SequenceTokenRatio(),
    )


def sapo() -> Algorithm:
    """SAPO: a gate per token that closes smoothly, sooner where the advantage is negative; no KL."""
    return dataclasses.replace(
        gspo(),
        name="sapo",
        watch="share_passed: the gate is wide (0.9 at |r - 1| = 0.65), so ratio_max may grow far before it closes",
        paper="Soft Adaptive Policy Optimization, 2511.20347",
        ratio=TokenRatio(),
        trust=SoftGate(tau_positive=1.0, tau_negative=1.05),
    )


def cispo() -> Algorithm:
    """CISPO: REINFORCE under a capped ratio, so that no token loses its gradient; groups and lengths as in DAPO."""
    return dataclasses.replace(
        dapo(),
        name="cispo",
        watch="ratio_max against the cap: no token is ever stopped, so nothing but the cap holds the policy; rounds",
        paper="MiniMax-M1, 2506.13585",
        trust=Cispo(cap=5.0),
    )


def gmpo() -> Algorithm:
    """GMPO: the geometric mean of token ratios that are clipped one by one, in log space; no KL."""
    return dataclasses.replace(
        gspo(),
        name="gmpo",
        watch="share_passed and ratio_max: tokens are clipped in log space, far wider than a clip at 0.2",
        paper="Geometric-Mean Policy Optimization, 2507.20673",
        ratio=TokenRatio(),
        trust=Geometric(epsilon_low=0.4, epsilon_high=0.4),
    )


ROWS = (
    ppo,
    reinforce,
    rloo,
    reinforce_pp,
    reinforce_pp_baseline,
    grpo,
    grpo_process,
    dr_grpo,
    dapo,
    gspo,
    gspo_token,
    sapo,
    cispo,
    gmpo,
)
CATALOG: Mapping[str, Callable[[], Algorithm]] = {row().name: row for row in ROWS}
