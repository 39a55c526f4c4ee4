"""The algorithms by name, each a row of parts with its paper's constants."""

import dataclasses
from collections.abc import Mapping

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.dialect import Dialect
from groupwise.algorithms.distillation import OPD
from groupwise.algorithms.parts.advantage import (
    GroupMean,
    GroupZScore,
    LeaveOneOut,
    LengthWeightedMean,
    ProcessZScore,
    RelativeMean,
    RewardZScore,
)
from groupwise.algorithms.parts.aggregate import Constant, SequenceMean, TokenMean
from groupwise.algorithms.parts.divergence import BinaryKL, Quadratic, TotalVariation
from groupwise.algorithms.parts.filters import DropUniform
from groupwise.algorithms.parts.gae import GAE, Return
from groupwise.algorithms.parts.kl import K1, K2, K3, KL, K3Ratio
from groupwise.algorithms.parts.off_policy import Centered, FutureKL, GammaWeight, OffPolicyMask, Tapered
from groupwise.algorithms.parts.ratio import SequenceRatio, SequenceSum, SequenceTokenRatio, TokenRatio
from groupwise.algorithms.parts.shaping import OutcomeReward, Steps
from groupwise.algorithms.parts.trust import Cispo, Clip, Geometric, NoTrust, SoftGate

#: Keys that dialects share.
DECOUPLED, UNCAPPED = ("advantage.kind", "gae-decoupled"), ("trust.cap", 0.0)
VAPO = (
    *(DECOUPLED, ("advantage.alpha", 0.05), ("trust.epsilon_high", 0.28), ("kl.beta", 0.0)),
    ("likelihood_coefficient", 0.1),
)
CENTERED_TIS = ("trust.kind", "centered-tis")
WIDE = (("trust.delta_low", 0.2), ("trust.delta_high", 0.2))

PPO = Algorithm(
    name="ppo",
    summary="PPO: a critic's advantages whitened over the batch, one clip, the KL in each token's reward, four passes.",
    watch="explained_variance: above 0 and rising, or the critic is worse than none; kl_reward_mean; "
    "share_passed of the later passes",
    paper="Proximal Policy Optimization Algorithms, 1707.06347",
    shaping=OutcomeReward(step_scale=1.0),
    advantage=GAE(gamma=1.0, lam=0.95, whiten=True),
    ratio=TokenRatio(),
    trust=Clip(epsilon_low=0.2, epsilon_high=0.2),
    kl=KL(beta=0.05, estimator=K1(), place="reward"),
    aggregate=TokenMean(),
    passes=4,
    dialects=(
        Dialect("VC-PPO", (DECOUPLED,), "critic.warmup_steps trains the critic alone first"),
        Dialect("VAPO", VAPO, "right completions are those with a score above 0"),
    ),
)

REINFORCE = Algorithm(
    name="reinforce",
    summary="REINFORCE: the return itself, without a baseline, a trust region or a KL term.",
    watch="gradient_norm: nothing reduces the variance, and with scores of 0 and 1 only right completions push",
    paper="Simple statistical gradient-following algorithms (Williams, 1992), no arXiv id",
    advantage=Return(gamma=1.0, whiten=False),
    ratio=TokenRatio(),
    trust=NoTrust(),
    aggregate=TokenMean(),
)

RLOO = Algorithm(
    name="rloo",
    summary="RLOO: the mean of the others as baseline, the whole completion one action, the KL in its reward.",
    watch="ratio_max and log_ratio_abs_max: the ratio is a product over tokens and has no trust region; kl_reward_mean",
    paper="Back to Basics, 2402.14740",
    advantage=LeaveOneOut(),
    ratio=SequenceSum(),
    trust=NoTrust(),
    kl=KL(beta=0.05, estimator=K1(), place="reward"),
    aggregate=SequenceMean(),
)

REINFORCE_PP = Algorithm(
    name="reinforce++",
    summary="REINFORCE++: the return-to-go with the KL in it, whitened over the batch instead of a critic; one clip.",
    watch="advantage_abs_mean: whitening mixes easy and hard prompts; kl_reward_mean",
    paper="REINFORCE++, 2501.03262",
    advantage=Return(gamma=1.0, whiten=True),
    ratio=TokenRatio(),
    trust=Clip(epsilon_low=0.2, epsilon_high=0.2),
    kl=KL(beta=0.01, estimator=K1(), place="reward"),
    aggregate=TokenMean(),
)

REINFORCE_PP_BASELINE = dataclasses.replace(
    REINFORCE_PP,
    name="reinforce++-baseline",
    summary="REINFORCE++-baseline: the group's mean as baseline, then whitened over the batch; k2 in the loss.",
    watch="groups_signal_share: tied groups give 0; kl_mean",
    advantage=GroupMean(whiten=True),
    kl=KL(beta=0.001, estimator=K2(), place="loss"),
)

GRPO = Algorithm(
    name="grpo",
    summary="GRPO: z-scores within the group, token ratios, one clip, k3 in the loss, a mean over sequences.",
    watch="length_wrong_mean: a mean per sequence punishes a long wrong completion less per token; "
    "groups_signal_share; kl_mean",
    paper="DeepSeekMath, 2402.03300",
    advantage=GroupZScore(),
    ratio=TokenRatio(),
    trust=Clip(epsilon_low=0.2, epsilon_high=0.2),
    kl=KL(beta=0.04, estimator=K3(), place="loss"),
    aggregate=SequenceMean(),
)

GRPO_PROCESS = dataclasses.replace(
    GRPO,
    name="grpo-process",
    summary="GRPO with process supervision: z-scores of all steps of the group, a token gets those of the steps "
    "to come.",
    watch="length_mean: centred over all steps of the group, a usual step is worth nothing, so the gradient is biased "
    "where the policy decides when to stop (docs/concepts/credit.md; turn-to-go is not); a token collects every later "
    "step, so steps should be scored so that padding earns nothing",
    shaping=Steps(),
    advantage=ProcessZScore(),
)

DR_GRPO = dataclasses.replace(
    GRPO,
    name="dr-grpo",
    summary="Dr. GRPO: no deviation and no length in any normaliser; the limit is the generation budget, "
    "3000 in the paper.",
    watch="gradient_norm: the limit scales the gradient, so a longer limit is a smaller step; length_wrong_mean",
    paper="Understanding R1-Zero-Like Training, 2503.20783",
    advantage=GroupMean(),
    kl=KL(beta=0.0),
    aggregate=Constant(limit=3000),
)

DAPO = Algorithm(
    name="dapo",
    summary="DAPO: a higher upper clip, uniform groups replaced, every token equal, long answers penalised, no KL.",
    watch="rounds and groups_dropped: what the refill costs in generation; entropy_mean; truncated_share",
    paper="DAPO, 2503.14476",
    shaping=OutcomeReward(scale=2.0, offset=-1.0, overlong_cache=0.2),
    filter=DropUniform(max_rounds=10),
    advantage=GroupZScore(),
    ratio=TokenRatio(),
    trust=Clip(epsilon_low=0.2, epsilon_high=0.28),
    aggregate=TokenMean(),
)

GSPO = Algorithm(
    name="gspo",
    summary="GSPO: one ratio per completion, its length taken out, and a clip a thousandth as wide; no KL.",
    watch="share_passed: epsilons this small fit long completions; a short one's mean log-ratio varies "
    "more, and most of it is stopped",
    paper="Group Sequence Policy Optimization, 2507.18071",
    advantage=GroupZScore(),
    ratio=SequenceRatio(),
    trust=Clip(epsilon_low=3e-4, epsilon_high=4e-4),
    aggregate=SequenceMean(),
)

GSPO_TOKEN = dataclasses.replace(
    GSPO,
    name="gspo-token",
    summary="GSPO-token: GSPO's ratio in value, with the own token's gradient, so that advantages may vary inside.",
    watch="share_passed, as for gspo: the two differ only where the advantages inside a completion do",
    ratio=SequenceTokenRatio(),
)

SAPO = dataclasses.replace(
    GSPO,
    name="sapo",
    summary="SAPO: a gate per token that closes smoothly, sooner where the advantage is negative; no KL.",
    watch="share_passed: the gate is wide (0.9 at |r - 1| = 0.65), so ratio_max may grow far before it closes",
    paper="Soft Adaptive Policy Optimization, 2511.20347",
    ratio=TokenRatio(),
    trust=SoftGate(tau_positive=1.0, tau_negative=1.05),
)

CISPO = dataclasses.replace(
    DAPO,
    name="cispo",
    summary="CISPO: REINFORCE under a capped ratio, so that no token loses its gradient; groups and lengths as in "
    "DAPO.",
    watch="ratio_max against the cap: no token is ever stopped, so nothing but the cap holds the policy; rounds",
    paper="MiniMax-M1, 2506.13585",
    trust=Cispo(cap=5.0),
)

GMPO = dataclasses.replace(
    GSPO,
    name="gmpo",
    summary="GMPO: the geometric mean of token ratios that are clipped one by one, in log space; no KL.",
    watch="share_passed and ratio_max: tokens are clipped in log space, far wider than a clip at 0.2",
    paper="Geometric-Mean Policy Optimization, 2507.20673",
    ratio=TokenRatio(),
    trust=Geometric(epsilon_low=0.4, epsilon_high=0.4),
)

DPPO_TV = dataclasses.replace(
    GRPO,
    name="dppo-tv",
    summary="DPPO-TV: a token is stopped where its probability, not its ratio, has moved too far; no KL.",
    watch="share_passed: rare tokens are no longer stopped for a large ratio, certain ones are for a small one",
    paper="Divergence PPO, 2602.04879",
    trust=TotalVariation(delta_low=0.15, delta_high=0.15, cap=20.0),
    kl=KL(beta=0.0),
    aggregate=TokenMean(),
    dialects=(
        Dialect("verl, example", (("trust.cap", 10000.0),)),
        Dialect("verl, defaults", (*WIDE, ("trust.cap", 3.0))),
        Dialect(
            "prime-rl",
            (*WIDE, UNCAPPED, ("kl.estimator", "k2"), ("kl.against", "old"), ("kl.beta", 2e-3)),
            "1e-3 (log r)^2 on every token, which is 2e-3 k2; old is the engine's, without a pass of the learner",
        ),
        Dialect("SkyRL", (*WIDE, UNCAPPED), "the gradient goes through the ratio, which is the same gradient"),
    ),
)

DPPO_KL = dataclasses.replace(
    DPPO_TV,
    name="dppo-kl",
    summary="DPPO-KL: as dppo-tv, with the KL of this token against all others as the distance.",
    trust=BinaryKL(delta_low=0.05, delta_high=0.05, cap=20.0),
    dialects=(Dialect("SkyRL", (UNCAPPED,)),),
)

DRPO = dataclasses.replace(
    DPPO_TV,
    name="drpo",
    summary="DRPO: a quadratic bound on the move of each token's probability, smooth where DPPO's mask is hard.",
    watch="ratio_max and share_passed: at the source's epsilon of 12.5 weights stay within 0.92 to 1.08, hardly a "
    "trust region; 0.15 to 0.2 makes it the smooth DPPO",
    paper="DRPO, 2606.09821",
    trust=Quadratic(epsilon=12.5),
    dialects=(Dialect("as smooth DPPO", (("trust.epsilon", 0.2),), "the width of DPPO's mask"),),
)

MAXRL = dataclasses.replace(
    DPPO_TV,
    name="maxrl",
    summary="MaxRL: the group's mean in the denominator, so that hard prompts weigh as in maximum likelihood.",
    watch="gradient_norm: one right completion of G has an advantage of G - 1; groups_signal_share",
    paper="Maximum Likelihood RL, 2602.02710",
    advantage=RelativeMean(),
    trust=Clip(epsilon_low=0.2, epsilon_high=0.2),
    dialects=(Dialect("official code", (), "leaves out 1/N: learner.learning_rate times the group's size"),),
)

DEEPSEEK_V32 = dataclasses.replace(
    GRPO,
    name="deepseek-v3.2",
    summary="DeepSeek-V3.2: GRPO without the deviation, an unbiased KL, completions masked that the policy has left.",
    watch="share_passed: a stopped completion stops whole; kl_mean",
    paper="DeepSeek-V3.2, 2512.02556",
    advantage=GroupMean(),
    trust=OffPolicyMask(epsilon_low=0.2, epsilon_high=0.2, delta=0.5),
    kl=KL(beta=0.001, estimator=K3Ratio(), place="loss"),
    dialects=(
        Dialect("slime", (("trust.delta", 1e-4),), "against the old policy; TRL's 0.5 is against the engine"),
        Dialect("Trinity", (("trust.delta", 0.1),), "recommends 0.05 to 0.2"),
    ),
)

GDPO = dataclasses.replace(
    GRPO,
    name="gdpo",
    summary="GDPO: each of several rewards has z-scores of its own in the group; their weighted sum is whitened.",
    watch="advantage_abs_mean, and each reward's mean: one of small spread counts as much as one of large",
    paper="GDPO, 2601.05242",
    advantage=RewardZScore(),
    kl=KL(beta=0.0),
    aggregate=TokenMean(),
    dialects=(Dialect("TRL, normalize_then_sum", (), "whitens over completions instead of tokens"),),
)

VESPO = dataclasses.replace(
    DPPO_TV,
    name="vespo",
    summary="VESPO: completions weigh by a gamma-shaped function of their whole probability ratio.",
    watch="share_passed and ratio_max: the ratio is a product over tokens; the weight falls to 0 on either side",
    paper="VESPO, 2602.10693",
    ratio=SequenceSum(),
    trust=GammaWeight(),
    dialects=(),
)

LUSPO = dataclasses.replace(
    GSPO,
    name="luspo",
    summary="LUSPO: GSPO with each completion's loss times its length, which takes the bias against long ones out.",
    watch="length_mean: long completions count more; share_passed",
    paper="LUSPO, 2602.05261",
    trust=Clip(epsilon_low=2e-3, epsilon_high=2.5e-3),
    aggregate=Constant(limit=1),
)

TOPR = dataclasses.replace(
    REINFORCE,
    name="topr",
    summary="TOPR: better completions weigh 1 however old they are, worse ones their ratio, at most 1.",
    watch="ratio_max: nothing holds better completions back",
    paper="Tapered Off-Policy REINFORCE, 2503.14286",
    advantage=GroupMean(),
    ratio=SequenceSum(),
    trust=Tapered(),
    aggregate=SequenceMean(),
    dialects=(Dialect("ROLL", (("ratio.level", "token"),), "rewards of a critic, whitened"),),
)

FIPO = dataclasses.replace(
    GRPO,
    name="fipo",
    summary="FIPO: a token weighs more where the policy has made likelier what followed it.",
    watch="share_passed; ratio_max: beyond far, worse tokens are pushed less",
    paper="Future-KL Influenced Policy Optimization, 2603.19835",
    trust=FutureKL(),
    kl=KL(beta=0.0),
    aggregate=TokenMean(),
)

DRO = dataclasses.replace(
    DPPO_TV,
    name="dro",
    summary="DRO: the log-likelihood times the advantage, held to the old policy by a square of the log-ratio.",
    watch="log_ratio_abs_max and the held-out rate: there is no ratio and no clip, beta alone holds the policy",
    paper="Direct Reward Optimisation, 2405.19107",
    advantage=GroupMean(),
    trust=Tapered(low_positive=1.0, high_positive=1.0, low_negative=1.0, high_negative=1.0),
    kl=KL(beta=0.05, estimator=K2(), place="loss", against="old"),
    dialects=(Dialect("verl, tinker", (), "have no default: beta must be given"),),
)

OPO = dataclasses.replace(
    GRPO,
    name="opo",
    summary="OPO: exactly on policy, with the group's length-weighted mean as baseline; no clip, no KL.",
    watch="length_mean; with more than one update a batch nothing holds the policy",
    paper="On-Policy RL with Optimal Reward Baseline, 2505.23585",
    advantage=LengthWeightedMean(),
    trust=NoTrust(),
    kl=KL(beta=0.0),
    aggregate=TokenMean(),
)

REINFORCE_REJ = dataclasses.replace(
    REINFORCE,
    name="reinforce-rej",
    summary="Reinforce-Rej: REINFORCE on prompts with both right and wrong completions, scores as -1 and 1; one clip.",
    watch="groups_dropped: what is left of a batch; entropy_mean",
    paper="A Minimalist Approach to LLM Reasoning, 2504.11343",
    shaping=OutcomeReward(scale=2.0, offset=-1.0),
    filter=DropUniform(max_rounds=1),
    trust=Clip(epsilon_low=0.2, epsilon_high=0.2),
    aggregate=SequenceMean(),
)

SCORE_CENTERING = dataclasses.replace(
    OPO,
    name="score-centering",
    summary="Score centering: what the sampler would pull the policy to is subtracted from each log-likelihood.",
    watch="engine_gap_mean: what the sampler pulls by; nothing bounds a step, so gradient_norm and ratio_max",
    paper="Score Centering Stabilizes Off-policy Reinforcement Learning, 2609.20807",
    advantage=GroupMean(),
    trust=Centered(k=128),
    dialects=(
        Dialect("miles, tis; verl, vime", (CENTERED_TIS,), "the ratio to the sampler as weight, at most 2"),
        Dialect("miles, mis", (("trust.kind", "centered-mis"), ("trust.cap", 5.0)), "tokens beyond the bounds weigh 0"),
        Dialect("tunix, FrozenLake", (("trust.k", 32),)),
        Dialect("NeMo-RL, SkyRL", (), "subtract the term beside a clip, which is then not centered itself"),
        Dialect("prime-rl", (), "over the ids that top-p and top-k leave, exactly, with the weight of its own mask"),
    ),
)

ROWS = (
    PPO, REINFORCE, RLOO, REINFORCE_PP, REINFORCE_PP_BASELINE, GRPO, GRPO_PROCESS, DR_GRPO, DAPO, GSPO,
    GSPO_TOKEN, SAPO, CISPO, GMPO, DPPO_TV, DPPO_KL, DRPO, MAXRL, DEEPSEEK_V32, GDPO, VESPO, LUSPO, TOPR, FIPO,
    DRO, OPO, REINFORCE_REJ, SCORE_CENTERING, OPD,
)  # fmt: skip
CATALOG: Mapping[str, Algorithm] = {row.name: row for row in ROWS}
