"""The runs that claims share: recipe `chain` under one condition each. The same condition is the same rows."""

from collections.abc import Mapping

from groupwise.claims.experiments import Effort, Experiment, trained

#: What an answer needs at least, and what is measured without a limit of time.
SEEDS: Mapping[Effort, int] = {Effort.STANDARD: 3, Effort.FULL: 5}
#: Of what hardly differs between seeds.
FEW: Mapping[Effort, int] = {Effort.STANDARD: 3}
#: At the recipe's own rate a clip of 0.2 stops one token in four thousand, at this one in two hundred (docs/log.md).
RATE: Mapping[str, object] = {"learner.learning_rate": 1e-3}
#: Without a KL term, as DAPO, GSPO and SAPO are: what is compared should differ in one thing.
PLAIN: Mapping[str, object] = {"algorithm.name": "grpo", "algorithm.kl.beta": 0.0}
#: A limit that a fifth of the first completions do not keep to, and most of those that write every step out.
TIGHT: Mapping[str, object] = {"sampling.max_new_tokens": 144}
#: Soft punishment, as DAPO's row has it: +1 and -1, and the last fifth of the limit.
SOFT: Mapping[str, object] = {
    "algorithm.shaping.scale": 2.0,
    "algorithm.shaping.offset": -1.0,
    "algorithm.shaping.overlong_cache": 0.2,
}
FILTERED: Mapping[str, object] = {"algorithm.filter.mask_truncated": True}
HIGHER: Mapping[str, object] = {"algorithm.trust.epsilon_high": 0.28}
TOKENS: Mapping[str, object] = {"algorithm.aggregate.kind": "token-mean"}
#: Rounds of generation a step at most, where DAPO's row has ten: once most groups are all right, those cost minutes.
ROUNDS: Mapping[str, object] = {"algorithm.filter.max_rounds": 4}
DYNAMIC: Mapping[str, object] = {"algorithm.filter.kind": "drop-uniform", **ROUNDS}
#: A bf16 engine whose log-probabilities the ratio starts from; the learner computes in float32.
OTHER_ENGINE: Mapping[str, object] = {"engine.precision": "bf16", "logp_old": "engine"}


def condition(name: str, *keys: Mapping[str, object], seeds: Mapping[Effort, int] = SEEDS) -> Experiment:
    """Make an experiment: the recipe at `RATE` with these keys laid over it, later ones over earlier ones."""
    laid = {key: value for table in (RATE, *keys) for key, value in table.items()}
    return trained(f"chain/{name}", "chain", laid, seeds)


GRPO = condition("grpo", PLAIN)
TOKEN_MEAN = condition("token-mean", PLAIN, TOKENS)
#: The limit is about the first length, so that the gradient is of the same size.
CONSTANT = condition("constant", PLAIN, {"algorithm.aggregate.kind": "constant", "algorithm.aggregate.limit": 110})
CLIP_HIGHER = condition("clip-higher", PLAIN, HIGHER)
DYNAMIC_SAMPLING = condition("dynamic-sampling", PLAIN, DYNAMIC)

GSPO = condition("gspo", {"algorithm.name": "gspo"})
#: Widths that would have stopped as large a share of the tokens of a GRPO run as its own 0.2 did.
GSPO_MATCHED = condition(
    "gspo-matched",
    {"algorithm.name": "gspo", "algorithm.trust.epsilon_low": 0.016, "algorithm.trust.epsilon_high": 0.021},
)
SAPO = condition("sapo", {"algorithm.name": "sapo"})
SAPO_EQUAL = condition("sapo-equal", {"algorithm.name": "sapo", "algorithm.trust.tau_negative": 1.0})
SAPO_BELOW = condition("sapo-below", {"algorithm.name": "sapo", "algorithm.trust.tau_negative": 0.95})

GRPO_ENGINE = condition("grpo-engine", PLAIN, OTHER_ENGINE)
GSPO_ENGINE = condition("gspo-engine", {"algorithm.name": "gspo"}, OTHER_ENGINE)
SAPO_ENGINE = condition("sapo-engine", {"algorithm.name": "sapo"}, OTHER_ENGINE)

#: The recipe has no KL term, and a recipe's own beta stands whatever the algorithm's row says.
WITH_KL: Mapping[str, object] = {"algorithm.name": "grpo", "algorithm.kl.beta": 0.04}
KL_LOSS = condition("kl-loss", WITH_KL)
KL_REWARD = condition("kl-reward", WITH_KL, {"algorithm.kl.place": "reward", "algorithm.kl.estimator": "k1"})
#: As many updates as the others, and returns as they are: one score at the end has no use for a shorter look ahead.
CRITIC: Mapping[str, object] = {
    "algorithm.name": "ppo",
    "algorithm.kl.beta": 0.0,
    "algorithm.advantage.lam": 1.0,
    "passes_per_batch": 1,
    "critic.learning_rate": 1e-3,
}
PPO = condition("ppo", CRITIC)
#: Two steps of a policy whose weights take more than the libraries do, with nothing learned before; what is asked of it
#: is memory. A limit of 48 tokens is enough for that.
LARGE: Mapping[str, object] = {
    "model": "small-dense",
    "warm_start.steps": 0,
    "steps": 2,
    "sampling.max_new_tokens": 48,
    "evaluation.problems": 1,
}
GRPO_LARGE = condition("grpo-small-dense", PLAIN, LARGE, seeds=FEW)
PPO_LARGE = condition("ppo-small-dense", CRITIC, LARGE, seeds=FEW)

#: The ablation ladder under a tight limit, each rung with what the one before has. The soft punishment takes the place
#: of filtering, for with both nothing would ever train a completion at the limit; the last rung is DAPO's row.
NAIVE = condition("tight", PLAIN, TIGHT)
FILTERING = condition("tight+filtering", PLAIN, TIGHT, FILTERED)
LADDER = (
    NAIVE,
    FILTERING,
    condition("tight+filtering+higher", PLAIN, TIGHT, FILTERED, HIGHER),
    condition("tight+higher+soft", PLAIN, TIGHT, HIGHER, SOFT),
    condition("tight+higher+soft+tokens", PLAIN, TIGHT, HIGHER, SOFT, TOKENS),
    condition("tight+dapo", {"algorithm.name": "dapo"}, TIGHT, ROUNDS),
)
SOFT_ALONE = condition("tight+soft", PLAIN, TIGHT, SOFT)
