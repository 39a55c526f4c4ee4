"""Options of TRL 1.16 that make the objective: loss, ratio, trust region, KL term, advantages and corrections."""

from collections.abc import Mapping
from typing import Any

from groupwise.config.bridge.rules import Keys, Manual, NotHere, Rule, Whole, chosen, not_here, number, only, same

TRUNCATED = {
    "token_truncate": "tis",
    "token_mask": "mis",
    "sequence_truncate": "sequence-tis",
    "sequence_mask": "sequence-mis",
}

AGGREGATES: Mapping[str, Keys] = {
    "grpo": {"algorithm.aggregate.kind": "sequence-mean"},
    "dapo": {"algorithm.aggregate.kind": "token-mean"},
    "bnpo": {"algorithm.aggregate.kind": "token-mean"},
    "dr_grpo": {"algorithm.aggregate.kind": "constant"},
    "cispo": {"algorithm.aggregate.kind": "token-mean", "algorithm.trust.kind": "cispo"},
    "sapo": {"algorithm.aggregate.kind": "sequence-mean", "algorithm.trust.kind": "soft"},
    "luspo": {"algorithm.name": "luspo"},
    "vespo": {"algorithm.name": "vespo"},
}

#: Keeps TRL's quotients by a deviation finite.
EPSILON = 1e-4
#: Losses without a clip, whose epsilons are other numbers or none.
UNCLIPPED = ("cispo", "sapo", "vespo")

#: Options of one loss: the loss, and the key of each.
OF_LOSS = {
    "sapo": {"sapo_temperature_pos": "tau_positive", "sapo_temperature_neg": "tau_negative"},
    "vespo": {
        f"vespo_{name}_{short}": f"{name}_{sign}"
        for name in ("k", "lambda")
        for short, sign in (("pos", "positive"), ("neg", "negative"))
    },
}


def _loss(value: Any, whole: Whole) -> Keys:
    if value not in AGGREGATES:
        raise NotHere("this loss is not in the catalog; docs/howto/adding-an-algorithm.md shows how a part joins it")
    limit = {"algorithm.aggregate.limit": whole["max_completion_length"]} if value == "dr_grpo" else {}
    own = {f"algorithm.trust.{key}": whole[name] for name, key in OF_LOSS.get(value, {}).items() if name in whole}
    return {**AGGREGATES[value], **limit, **own, **_level(whole["importance_sampling_level"], whole)}


def _of_loss(loss: str) -> Rule:
    return lambda value, whole: _loss(loss, whole) if whole["loss_type"] == loss else not_here(f"of the loss {loss}")


def _level(value: Any, whole: Whole) -> Keys:
    if whole["loss_type"] == "vespo":
        return {}
    return chosen("algorithm.ratio.level", {"token": "token", "sequence": "sequence"}, "no such level")(value, whole)


def _off_policy(value: Any, whole: Whole) -> Keys:
    """Make the mask of completions that the policy has left."""
    if whole["loss_type"] in UNCLIPPED:
        raise NotHere(f"the mask goes with PPO's clip, which the loss {whole['loss_type']} has not")
    if whole["use_vllm"]:
        words = "counts from the learner's old policy, while TRL does from the engine"
        raise Manual(f'algorithm.trust.kind = "off-policy-mask", algorithm.trust.delta = {value}, {words}')
    return {"algorithm.trust.kind": "off-policy-mask", "algorithm.trust.delta": value}


def _several(value: Any, whole: Whole) -> Keys:
    """Make GDPO's advantages, which TRL whitens over completions."""
    by_reward = {"algorithm.advantage.kind": "reward-zscore", "algorithm.advantage.epsilon": EPSILON}
    kinds = {"sum_then_normalize": {}, "normalize_then_sum": by_reward}
    return kinds[value] if value in kinds else not_here("no such way")


def _epsilon(value: Any, whole: Whole) -> Keys:
    if whole["loss_type"] in UNCLIPPED:
        raise NotHere(f"the loss {whole['loss_type']} does not clip by it")
    upper = whole.get("epsilon_high")
    return {"algorithm.trust.epsilon_low": value, "algorithm.trust.epsilon_high": value if upper is None else upper}


def _epsilon_high(value: Any, whole: Whole) -> Keys:
    if whole["loss_type"] == "cispo":
        return {"algorithm.trust.cap": value}
    return _epsilon(whole["epsilon"], whole)


def _delta(value: Any, whole: Whole) -> Keys:
    return (
        not_here("this loss does not clip") if whole["loss_type"] in UNCLIPPED else {"algorithm.trust.dual_clip": value}
    )


def _beta(value: Any, whole: Whole) -> Keys:
    if not number(value) or not whole["loss_type"]:
        return {"algorithm.kl.beta": value}
    return {
        "algorithm.kl.beta": value,
        "algorithm.kl.estimator": "k3-ratio" if whole["use_bias_correction_kl"] else "k3",
    }


def _bias_correction(value: Any, whole: Whole) -> Keys:
    return _beta(whole["beta"], whole) if whole["beta"] else {}


def _scale(value: Any, whole: Whole) -> Keys:
    kinds = {
        "group": "group-zscore",
        True: "group-zscore",
        "none": "group-mean",
        False: "group-mean",
        "batch": "group-mean",
    }
    if whole["multi_objective_aggregation"] == "normalize_then_sum":
        raise NotHere("multi_objective_aggregation is normalize_then_sum, so that TRL does not read it")
    keys = chosen("algorithm.advantage.kind", kinds, "no such scaling")(value, whole)
    if kinds[value] == "group-zscore":
        return {**keys, "algorithm.advantage.epsilon": EPSILON}
    return {**keys, "algorithm.advantage.whiten": True} if value == "batch" else keys


def _correction(value: Any, whole: Whole) -> Keys:
    if not whole["use_vllm"]:
        raise NotHere("use_vllm is not set: one engine of the run's own needs no correction")
    if whole["loss_type"] == "vespo":
        raise NotHere("TRL puts it into the weight of the loss vespo; algorithm.mismatch multiplies the loss")
    if not whole["vllm_importance_sampling_correction"]:
        return {"algorithm.mismatch.kind": "none"}
    kind = chosen("algorithm.mismatch.kind", TRUNCATED, "no such mode")(whole["vllm_importance_sampling_mode"], whole)
    highest, lowest = whole["vllm_importance_sampling_clip_max"], whole.get("vllm_importance_sampling_clip_min")
    floor = (
        {"algorithm.mismatch.floor": lowest} if lowest and str(kind["algorithm.mismatch.kind"]).endswith("mis") else {}
    )
    return {**kind, **({"algorithm.mismatch.cap": highest} if highest else {}), **floor}


OBJECTIVE: Mapping[str, Rule] = {
    "beta": _beta,
    "use_bias_correction_kl": _bias_correction,
    "epsilon": _epsilon,
    "epsilon_high": _epsilon_high,
    "delta": _delta,
    "loss_type": _loss,
    **{name: _of_loss(loss) for loss, names in OF_LOSS.items() for name in names},
    "importance_sampling_level": _level,
    "off_policy_mask_threshold": _off_policy,
    "scale_rewards": _scale,
    "multi_objective_aggregation": _several,
    "mask_truncated_completions": same("algorithm.filter.mask_truncated"),
    "entropy_coef": same("algorithm.entropy_coefficient"),
    "use_adaptive_entropy": only(False, "the coefficient is fixed for a run"),
    "top_entropy_quantile": only(1.0, "every trained token counts; no part chooses tokens by their entropy"),
    **dict.fromkeys(
        (
            "vllm_importance_sampling_correction",
            "vllm_importance_sampling_mode",
            "vllm_importance_sampling_clip_max",
            "vllm_importance_sampling_clip_min",
            "vllm_importance_sampling_cap",
        ),
        _correction,
    ),
    "normalize_advantages": only(False, "leave-one-out is not whitened"),
}
