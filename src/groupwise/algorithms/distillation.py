"""On-policy distillation: the row whose reward is a teacher's, with the constants of others."""

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.dialect import Dialect
from groupwise.algorithms.parts.aggregate import TokenMean
from groupwise.algorithms.parts.divergence import TotalVariation
from groupwise.algorithms.parts.gae import Return
from groupwise.algorithms.parts.kl import K1, KL
from groupwise.algorithms.parts.ratio import TokenRatio
from groupwise.algorithms.parts.shaping import NoReward

#: Keys that dialects share.
TOP = (("kl.place", "loss"), ("kl.estimator", "top-k"))

OPD = Algorithm(
    name="opd",
    summary="On-policy distillation: each sampled token gets log pi_teacher - log pi_old; the teacher is "
    "reference.model, and scores only measure.",
    watch="kl_reward_mean: nats between policy and teacher, falling to 0; the held-out rate rises to the teacher's",
    paper="On-policy distillation as in verl and prime-rl, no arXiv id",
    shaping=NoReward(),
    advantage=Return(gamma=0.0, whiten=False),
    ratio=TokenRatio(),
    trust=TotalVariation(delta_low=0.2, delta_high=0.2, cap=0.0),
    kl=KL(beta=1.0, estimator=K1(), place="reward"),
    aggregate=TokenMean(),
    dialects=(
        Dialect(
            "prime-rl",
            (("trust.delta_high", 1.0),),
            "stops a token that became less likely by 0.2 whatever its advantage, and adds 1e-3 (log r)^2",
        ),
        Dialect(
            "TRL, GKD",
            (("kl.place", "loss"), ("kl.estimator", "full"), ("kl.mixture", 1.0)),
            "mixture is its beta, 1.0 in its trainer and 0.5 in its function",
        ),
        Dialect(
            "TRL, SDFT",
            (*TOP, ("kl.k", 100), ("kl.mixture", 0.5), ("kl.tail", False)),
            "with a local teacher the ids are the policy's most likely ones",
        ),
        Dialect(
            "verl, forward_kl_topk",
            (*TOP, ("kl.k", 128), ("kl.mixture", 0.0)),
            "leaves the tail out without renormalising, and holds log-probabilities above -10 and the loss below 10",
        ),
        Dialect("MiniLLM-like", (("advantage.gamma", 1.0),), "the KL to go, of the whole rest of a completion"),
    ),
)
