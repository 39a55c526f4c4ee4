"""Options of verl 0.9.1 that make the objective: estimator, policy loss, KL term, filter and corrections."""

from collections.abc import Mapping
from typing import Any

from groupwise.config.bridge.rules import Keys, Manual, NotHere, Rule, Whole, chosen, not_here, number, only, same

ACTOR, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.model."

ESTIMATORS: Mapping[str, Keys] = {
    "gae": {"algorithm.name": "ppo"},
    "grpo": {"algorithm.name": "grpo"},
    "grpo_vectorized": {"algorithm.name": "grpo"},
    "gdpo": {"algorithm.name": "gdpo"},
    "opo": {"algorithm.name": "opo"},
    "rloo": {"algorithm.name": "grpo", "algorithm.advantage.kind": "leave-one-out"},
    "rloo_vectorized": {"algorithm.name": "grpo", "algorithm.advantage.kind": "leave-one-out"},
    "reinforce_plus_plus": {"algorithm.name": "reinforce++"},
    "reinforce_plus_plus_baseline": {"algorithm.name": "reinforce++-baseline"},
}

DISCOUNTED = ("gae", "reinforce_plus_plus")

#: Weight 1 whatever the ratio: the log-likelihood's own gradient.
LIKELIHOOD = {
    "algorithm.trust.kind": "tapered",
    **{f"algorithm.trust.{side}_{sign}": 1.0 for side in ("low", "high") for sign in ("positive", "negative")},
}

LOSSES: Mapping[str, Keys] = {
    "vanilla": {"algorithm.trust.kind": "clip"},
    "gspo": {"algorithm.trust.kind": "clip", "algorithm.ratio.level": "sequence-token"},
    "sapo": {"algorithm.trust.kind": "soft", "algorithm.aggregate.kind": "sequence-mean"},
    "cispo": {},
    "dppo_tv": {"algorithm.trust.kind": "total-variation"},
    "dppo_kl": {"algorithm.trust.kind": "binary-kl"},
    "dro": LIKELIHOOD,
    "gpg": LIKELIHOOD,
    "geo_mean": {"algorithm.trust.kind": "geometric", "algorithm.aggregate.kind": "sequence-mean"},
    "bypass_mode": {"algorithm.trust.kind": "clip", "logp_old": "engine"},
}

#: Losses that are means over completions whatever loss_agg_mode says, and those without a bound on the ratio.
BY_COMPLETION, FREE, DIVERGENCE = ("geo_mean", "sapo"), ("sapo", "dro", "gpg"), ("dppo_tv", "dppo_kl")

PENALTIES = {
    "kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3",
}  # fmt: skip

AGGREGATES = {
    "token-mean": "token-mean",
    "seq-mean-token-mean": "sequence-mean",
    "seq-mean-token-sum-norm": "constant",
}

WEIGHTS = {"token": "tis", "sequence": "sequence-tis"}

REJECTIONS = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}


def _estimator(value: Any, whole: Whole) -> Keys:
    if value not in ESTIMATORS:
        raise NotHere("no such advantage; docs/howto/adding-an-algorithm.md shows how a part joins it")
    return {**ESTIMATORS[value], **_kl(None, whole)}


def _kl(value: Any, whole: Whole) -> Keys:
    """Make the KL term of its four options: in the loss, in the reward, or none; of the loss dro its own."""
    in_reward = whole["algorithm.use_kl_in_reward"] is True
    if whole[f"{ACTOR}policy_loss.loss_mode"] == "dro":
        beta = whole.get(f"{ACTOR}policy_loss.dro_beta") or 0.0
        return {"algorithm.kl.beta": beta, "algorithm.kl.place": "loss", "algorithm.kl.estimator": "k2",
                "algorithm.kl.against": "old"}  # fmt: skip
    if not whole[f"{ACTOR}use_kl_loss"] and not in_reward:
        return {"algorithm.kl.beta": 0.0}
    kinds = whole["algorithm.kl_penalty" if in_reward else f"{ACTOR}kl_loss_type"]
    beta = whole["algorithm.kl_ctrl.kl_coef" if in_reward else f"{ACTOR}kl_loss_coef"]
    named = chosen("algorithm.kl.estimator", PENALTIES, f"no estimator {kinds}; k1, k2, k3 are")(kinds, whole)
    return {"algorithm.kl.beta": beta, "algorithm.kl.place": "reward" if in_reward else "loss", **named}


def _in_loss(value: Any, whole: Whole) -> Keys:
    if whole["algorithm.use_kl_in_reward"] is True and whole[f"{ACTOR}use_kl_loss"] is True:
        raise NotHere("one KL term: algorithm.use_kl_in_reward is taken, and the one in the loss left out")
    return _beside(value, whole) if whole[f"{ACTOR}use_kl_loss"] is True else {}


def _in_reward(value: Any, whole: Whole) -> Keys:
    return _beside(value, whole) if whole["algorithm.use_kl_in_reward"] is True else {}


def _beside(value: Any, whole: Whole) -> Keys:
    dro = whole[f"{ACTOR}policy_loss.loss_mode"] == "dro"
    return not_here("one KL term: that of the loss dro, against the old policy, is taken") if dro else _kl(value, whole)


def _dro_beta(value: Any, whole: Whole) -> Keys:
    return _kl(value, whole) if whole[f"{ACTOR}policy_loss.loss_mode"] == "dro" else not_here("of the loss dro alone")


def betas(section: str) -> Rule:
    def rule(value: Any, whole: Whole) -> Keys:
        if not isinstance(value, list) or len(value) != 2:
            raise Manual("these are not two numbers")
        return {f"{section}.beta1": value[0], f"{section}.beta2": value[1]}

    return rule


def _clip(value: Any, whole: Whole) -> Keys:
    """Make the bounds of `clip_ratio_low` and `clip_ratio_high`, which each loss reads as its own."""
    loss = whole[f"{ACTOR}policy_loss.loss_mode"]
    if loss in FREE:
        raise NotHere(f"the loss {loss} does not clip by it")
    low, high = (whole[f"{ACTOR}clip_ratio_{side}"] for side in ("low", "high"))
    if loss == "cispo":
        return _cispo(number(low), number(high))
    bound = "delta" if loss in DIVERGENCE else "epsilon"
    return {f"algorithm.trust.{bound}_low": low, f"algorithm.trust.{bound}_high": high}


def _cispo(low: float, high: float) -> Keys:
    """Cap ratios above, as the paper does, where 1 - low bounds nothing; else hold them on both sides."""
    if low >= 1:
        return {"algorithm.trust.kind": "cispo", "algorithm.trust.cap": 0.0, "algorithm.trust.epsilon_high": high}
    bounds = {"low": 1 - low, "high": 1 + high}
    held = {f"algorithm.trust.{side}_{sign}": bounds[side] for side in bounds for sign in ("positive", "negative")}
    return {"algorithm.trust.kind": "tapered", **held}


def _middle(value: Any, whole: Whole) -> Keys:
    if value in (whole[f"{ACTOR}clip_ratio_low"], whole[f"{ACTOR}clip_ratio_high"]):
        return _clip(value, whole)
    return {} if value == 0.2 else not_here("verl reads clip_ratio_low and clip_ratio_high, which are 0.2 unless set")


def _dual_clip(value: Any, whole: Whole) -> Keys:
    loss = whole[f"{ACTOR}policy_loss.loss_mode"]
    if loss in DIVERGENCE:
        return {"algorithm.trust.cap": value}
    if loss not in ("vanilla", "bypass_mode"):
        raise NotHere("of the losses vanilla, dppo_tv and dppo_kl alone")
    return {"algorithm.trust.dual_clip": value}


def _loss(value: Any, whole: Whole) -> Keys:
    if value not in LOSSES:
        raise NotHere("this loss is not in the catalog; docs/howto/adding-an-algorithm.md shows how a part joins it")
    if value == "dro" and not whole.get(f"{ACTOR}policy_loss.dro_beta"):
        raise Manual("policy_loss.dro_beta is not set, which verl refuses; it is algorithm.kl.beta")
    gate = {
        "algorithm.trust.tau_positive": whole[f"{ACTOR}tau_pos"],
        "algorithm.trust.tau_negative": whole[f"{ACTOR}tau_neg"],
    }
    return {**LOSSES[value], **(gate if value == "sapo" else {})}


def _tau(value: Any, whole: Whole) -> Keys:
    return (
        _loss("sapo", whole) if whole[f"{ACTOR}policy_loss.loss_mode"] == "sapo" else not_here("of the loss sapo alone")
    )


def _aggregate(value: Any, whole: Whole) -> Keys:
    if (loss := whole[f"{ACTOR}policy_loss.loss_mode"]) in BY_COMPLETION:
        raise NotHere(f"the loss {loss} is a mean over completions, whatever this says")
    named = chosen("algorithm.aggregate.kind", AGGREGATES, "no such mean")(value, whole)
    longest = {"algorithm.aggregate.limit": whole.get(f"{ACTOR}loss_scale_factor") or whole["data.max_response_length"]}
    return {**named, **(longest if "constant" in named.values() else {})}


def _scale_factor(value: Any, whole: Whole) -> Keys:
    return _aggregate(whole[f"{ACTOR}loss_agg_mode"], whole)


def _deviation(value: Any, whole: Whole) -> Keys:
    if whole["algorithm.adv_estimator"] != "grpo":
        raise NotHere("of the estimator grpo alone")
    return {"algorithm.advantage.kind": "group-zscore" if value else "group-mean"}


def of_critic(rule: Rule) -> Rule:
    words = "no critic: algorithm.adv_estimator is not gae"
    return lambda value, whole: rule(value, whole) if whole["algorithm.adv_estimator"] == "gae" else not_here(words)


def _lam(value: Any, whole: Whole) -> Keys:
    return of_critic(same("algorithm.advantage.lam"))(value, whole)


def _gamma(value: Any, whole: Whole) -> Keys:
    if whole["algorithm.adv_estimator"] in DISCOUNTED:
        return {"algorithm.advantage.gamma": value}
    return only(1.0, "these advantages have no discount")(float(number(value)), whole)


def _filter(value: Any, whole: Whole) -> Keys:
    if not whole["algorithm.filter_groups.enable"]:
        return {}
    metric, rounds = whole["algorithm.filter_groups.metric"], whole["algorithm.filter_groups.max_num_gen_batches"]
    mine = any(whole.get(f"{section}custom_reward_function.path") for section in ("", "reward."))
    own = "correctness" if metric == "acc" and not mine else "reward"
    most = {"algorithm.filter.max_rounds": rounds} if number(rounds) > 0 else {}
    return {"algorithm.filter.kind": "drop-uniform", "algorithm.filter.metric": own, **most}


def _correction(value: Any, whole: Whole) -> Keys:
    kind = whole.get("algorithm.rollout_correction.rollout_is")
    if not kind:
        return {}
    named = chosen("algorithm.mismatch.kind", {"token": "tis", "sequence": "sequence-tis"}, "no such weight")(
        kind, whole
    )
    limit = whole["algorithm.rollout_correction.rollout_is_threshold"]
    if isinstance(limit, str):
        raise Manual('two ends, which are "mis" or "icepop" with algorithm.mismatch.floor and algorithm.mismatch.cap')
    return {**named, "algorithm.mismatch.cap": limit}


def _rejection(value: Any, whole: Whole) -> Keys:
    kind = whole.get("algorithm.rollout_correction.rollout_rs")
    if not kind:
        return {}
    named = chosen("algorithm.rejection.kind", REJECTIONS, "a bound by k2 or k3, or several")(kind, whole)
    low, _, high = str(whole.get("algorithm.rollout_correction.rollout_rs_threshold") or "").partition("_")
    try:
        return {**named, "algorithm.rejection.floor": float(low), "algorithm.rejection.cap": float(high)}
    except ValueError:
        raise Manual("two ends, LOWER_UPPER, as algorithm.rejection.floor and algorithm.rejection.cap") from None


_ALGORITHM: Mapping[str, Rule] = {
    "algorithm.adv_estimator": _estimator,
    "algorithm.gamma": _gamma,
    "algorithm.lam": _lam,
    "algorithm.norm_adv_by_std_in_grpo": _deviation,
    **dict.fromkeys(("algorithm.use_kl_in_reward", "algorithm.kl_penalty", "algorithm.kl_ctrl.kl_coef"), _in_reward),
    "algorithm.kl_ctrl.type": only("fixed", "the coefficient is fixed for a run"),
    "algorithm.use_pf_ppo": only(False, "completions are not drawn again by their reward"),
    **dict.fromkeys(("algorithm.filter_groups.enable", "algorithm.filter_groups.metric",
                     "algorithm.filter_groups.max_num_gen_batches"), _filter),
    **dict.fromkeys(("algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.rollout_is_threshold"),
                    _correction),
    **dict.fromkeys(("algorithm.rollout_correction.rollout_rs", "algorithm.rollout_correction.rollout_rs_threshold"),
                    _rejection),
    "algorithm.rollout_correction.bypass_mode": lambda value, whole: {"logp_old": "engine"} if value else {},
    "critic.optim.lr": of_critic(same("critic.learning_rate")),
    "critic.optim.weight_decay": of_critic(same("critic.weight_decay")),
    "critic.optim.betas": of_critic(betas("critic")),
    "critic.optim.clip_grad": of_critic(same("critic.clip_norm")),
    "critic.grad_clip": of_critic(same("critic.clip_norm")),
    "critic.cliprange_value": of_critic(same("critic.clip")),
    "critic.model.path": of_critic(
        lambda value, whole: {"critic.start": "policy" if value == whole.get(f"{MODEL}path") else value}
    ),
}  # fmt: skip

OBJECTIVE: Mapping[str, Rule] = {
    **_ALGORITHM,
    f"{ACTOR}clip_ratio": _middle,
    f"{ACTOR}clip_ratio_low": _clip,
    f"{ACTOR}clip_ratio_high": _clip,
    f"{ACTOR}clip_ratio_c": _dual_clip,
    f"{ACTOR}policy_loss.loss_mode": _loss,
    f"{ACTOR}policy_loss.dro_beta": _dro_beta,
    f"{ACTOR}tau_pos": _tau,
    f"{ACTOR}tau_neg": _tau,
    f"{ACTOR}loss_agg_mode": _aggregate,
    f"{ACTOR}loss_scale_factor": _scale_factor,
    f"{ACTOR}entropy_coeff": same("algorithm.entropy_coefficient"),
    **dict.fromkeys((f"{ACTOR}use_kl_loss", f"{ACTOR}kl_loss_coef", f"{ACTOR}kl_loss_type"), _in_loss),
}
