"""Options of verl 0.9.1's ppo_trainer as keys of a recipe."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from groupwise.config.bridge.objective import ACTOR, OBJECTIVE, betas, of_critic
from groupwise.config.bridge.rules import (
    Keys,
    Manual,
    NotHere,
    Rule,
    Whole,
    above_zero,
    chosen,
    not_here,
    number,
    only,
    parts,
    same,
    whole_number,
)
from groupwise.journal.trackers import TRACKERS

ROLLOUT, MODEL = "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
#: What verl does without a word, as far as groupwise does something else or a rule reads it.
DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "algorithm.lam": 1.0,
    "algorithm.gamma": 1.0,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.filter_groups.enable": False,
    "algorithm.filter_groups.metric": "reward",
    "algorithm.filter_groups.max_num_gen_batches": 0,
    "algorithm.rollout_correction.rollout_is_threshold": 2.0,
    f"{ACTOR}use_kl_loss": False,
    f"{ACTOR}kl_loss_coef": 0.001,
    f"{ACTOR}kl_loss_type": "low_var_kl",
    f"{ACTOR}ppo_mini_batch_size": 256,
    f"{ACTOR}ppo_epochs": 1,
    f"{ACTOR}clip_ratio": 0.2,
    f"{ACTOR}clip_ratio_low": 0.2,
    f"{ACTOR}clip_ratio_high": 0.2,
    f"{ACTOR}clip_ratio_c": 3.0,
    f"{ACTOR}loss_agg_mode": "token-mean",
    f"{ACTOR}policy_loss.loss_mode": "vanilla",
    f"{ACTOR}tau_pos": 1.0,
    f"{ACTOR}tau_neg": 1.05,
    f"{ACTOR}optim.weight_decay": 0.01,
    f"{ACTOR}optim.lr_warmup_steps": -1,
    f"{ACTOR}fsdp_config.dtype": "bfloat16",
    f"{ROLLOUT}n": 1,
    f"{ROLLOUT}val_kwargs.temperature": 0,
    f"{ROLLOUT}val_kwargs.do_sample": False,
    f"{MODEL}enable_gradient_checkpointing": True,
    f"{MODEL}lora_rank": 0,
    f"{MODEL}lora_alpha": 16,
    f"{MODEL}target_modules": "all-linear",
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.filter_overlong_prompts": False,
    "data.truncation": "error",
    "critic.optim.lr": 1e-5,
    "critic.optim.weight_decay": 0.01,
    "critic.cliprange_value": 0.5,
    "trainer.total_training_steps": None,
    "trainer.total_epochs": 30,
}

IN_PLACE: Mapping[str, str] = {f"{ACTOR}clip_ratio_{side}": f"{ACTOR}clip_ratio" for side in ("low", "high")}

#: Those that are written to a recipe although the file does not name them.
WRITTEN = (
    "algorithm.adv_estimator", "algorithm.lam", "algorithm.use_kl_in_reward", "data.train_batch_size",
    "data.max_prompt_length", "data.max_response_length", "trainer.total_epochs", f"{ACTOR}ppo_epochs", f"{ROLLOUT}n",
    f"{ACTOR}clip_ratio_low", f"{ACTOR}clip_ratio_c", f"{ACTOR}loss_agg_mode", f"{ACTOR}optim.weight_decay",
    f"{ACTOR}fsdp_config.dtype", f"{ROLLOUT}val_kwargs.temperature", f"{MODEL}enable_gradient_checkpointing",
    f"{ACTOR}policy_loss.loss_mode", "critic.optim.lr", "critic.optim.weight_decay", "critic.cliprange_value",
)  # fmt: skip

BASE: Keys = {"task.name": "verl"}

OVERLONG = ("reward_model.overlong_buffer.", "reward.reward_kwargs.overlong_buffer_cfg.")


def _batches(value: Any, whole: Whole) -> Keys:
    prompts, part = whole_number(whole["data.train_batch_size"]), whole_number(whole[f"{ACTOR}ppo_mini_batch_size"])
    if prompts <= part:
        return {"prompts_per_step": prompts, "updates_per_batch": 1}
    words = f"minibatches of {part} do not share {prompts} prompts evenly; set updates_per_batch"
    return {"prompts_per_step": prompts, "updates_per_batch": parts(prompts, part, words)}


def _prompts(value: Any, whole: Whole) -> Keys:
    longest = {"max_prompt_tokens": whole_number(whole["data.max_prompt_length"])}
    return {**longest, "prompt_truncation": "left"} if whole["data.truncation"] == "left" else longest


def _truncation(value: Any, whole: Whole) -> Keys:
    if value not in ("left", "error"):
        raise NotHere('"left", or longer prompts are left out')
    return _prompts(value, whole)


def _steps(value: Any, whole: Whole) -> Keys:
    if not whole["trainer.total_training_steps"]:
        raise Manual("steps = epochs times problems / prompts_per_step; the file does not have the number of problems")
    return {"steps": whole_number(whole["trainer.total_training_steps"])}


def _epochs(value: Any, whole: Whole) -> Keys:
    return (
        not_here("trainer.total_training_steps is set")
        if whole["trainer.total_training_steps"]
        else _steps(value, whole)
    )


def _warmup(value: Any, whole: Whole) -> Keys:
    if number(value) <= 0:
        return {}
    if value >= 1:
        return {"learner.warmup_updates": whole_number(value)}
    if number(whole[f"{ACTOR}optim.lr_warmup_steps"]) > 0:
        raise NotHere("lr_warmup_steps is set, and verl reads that alone")
    if not whole["trainer.total_training_steps"]:
        raise Manual("a share of a number of updates that the file does not have; set learner.warmup_updates")
    updates = _batches(None, whole)["updates_per_batch"] * whole[f"{ACTOR}ppo_epochs"]
    return {"learner.warmup_updates": round(value * whole["trainer.total_training_steps"] * updates)}


def _lora(value: Any, whole: Whole) -> Keys:
    rank = whole.get(f"{MODEL}lora.rank") or whole[f"{MODEL}lora_rank"]
    if not rank:
        return {}
    targets, alpha = whole[f"{MODEL}target_modules"], whole.get(f"{MODEL}lora.alpha") or whole[f"{MODEL}lora_alpha"]
    named = {} if targets == "all-linear" else {"adapter.targets": [targets] if isinstance(targets, str) else targets}
    return {"adapter.rank": rank, "adapter.alpha": float(number(alpha)), "adapter.rate_factor": 1.0, **named}


def _path(value: Any, whole: Whole) -> Keys:
    paths = value if isinstance(value, list) else [value]
    if len(paths) != 1:
        raise Manual("task.path is a file or a folder: put these files into one folder")
    return {"task.path": paths[0]}


def _heldout(value: Any, whole: Whole) -> Keys:
    paths = value if isinstance(value, list) else [value]
    if len(paths) == 1:
        return {"task.heldout": paths[0]}
    return {f"task.heldout_sets.{_label(str(path))}": path for path in paths}


def _label(path: str) -> str:
    inside = PurePath(path)
    return "-".join((*inside.parts[-2:-1], inside.stem)).replace(".", "-").replace("/", "")


def _evaluated_at(value: Any, whole: Whole) -> Keys:
    sampled = whole[f"{ROLLOUT}val_kwargs.do_sample"] is True
    return {"evaluation.temperature": whole[f"{ROLLOUT}val_kwargs.temperature"] if sampled else 0.0}


def _evaluated_with(key: str) -> Rule:
    def rule(value: Any, whole: Whole) -> Keys:
        greedy = _evaluated_at(None, whole)["evaluation.temperature"] == 0
        return {} if greedy else {key: max(0, value) if key.endswith("top_k") else value}

    return rule


def _reward(prefix: str) -> Rule:
    def rule(value: Any, whole: Whole) -> Keys:
        path, name = whole.get(f"{prefix}path"), whole.get(f"{prefix}name") or "compute_score"
        return {"rewards.custom.use": f"{path}:{name}"} if path else {}

    return rule


def _overlong(prefix: str) -> Rule:
    def rule(value: Any, whole: Whole) -> Keys:
        if not whole.get(f"{prefix}enable"):
            return {}
        limit = whole.get("reward.reward_kwargs.max_resp_len") or whole["data.max_response_length"]
        cache = number(whole.get(f"{prefix}len") or 0) / number(limit)
        return {"algorithm.shaping.overlong_cache": cache, "algorithm.shaping.limit": limit}

    return rule


def _of_overlong(prefix: str) -> Mapping[str, Rule]:
    penalty = only(1.0, "the penalty falls to -1: divide the rewards' weights by the factor instead")
    rule = _overlong(prefix)
    factor: Rule = lambda value, whole: penalty(float(number(value)), whole)  # noqa: E731
    return {f"{prefix}enable": rule, f"{prefix}len": rule, f"{prefix}penalty_factor": factor}


def _logger(value: Any, whole: Whole) -> Keys:
    names = [value] if isinstance(value, str) else list(value or [])
    known = [name for name in names if name in TRACKERS]
    if others := [name for name in names if name not in ("console", *known)]:
        raise NotHere(f"no tracker {others[0]}; there are {', '.join(TRACKERS)}")
    return {"journal.tracker": known[0] if len(known) == 1 else known or "none"}


def _engine(value: Any, whole: Whole) -> Keys:
    if value == "vllm":
        raise Manual('engine.name = "vllm" where vLLM is installed; without it groupwise\'s own engine samples')
    return not_here("groupwise's own engine or vLLM")


def _dtype(value: Any, whole: Whole) -> Keys:
    kinds = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
    return chosen("engine.precision", kinds, "no such type")(value, whole)


def _trained_in(value: Any, whole: Whole) -> Keys:
    kinds = {"bfloat16": "bf16", "float32": "fp32"}
    return chosen("learner.precision", kinds, '"bf16" or "fp32", over float32 master weights')(value, whole)


SCHEDULES = chosen(
    "learner.schedule",
    {"constant": "constant", "cosine": "cosine", "linear": "linear"},
    '"constant", "linear" or "cosine" to 0',
)

KEPT = above_zero("checkpoint.keep", "checkpoint.keep has a number, 2 by default")

_DATA: Mapping[str, Rule] = {
    "data.train_files": _path,
    "data.val_files": _heldout,
    "data.train_batch_size": _batches,
    "data.train_max_samples": above_zero("task.limit", "all rows, as without task.limit"),
    "data.val_max_samples": above_zero("evaluation.problems", "512 problems unless evaluation.problems is set"),
    "data.max_prompt_length": _prompts,
    f"{ROLLOUT}prompt_length": lambda value, whole: {"max_prompt_tokens": value},
    "data.truncation": _truncation,
    "data.filter_overlong_prompts": only(True, "longer prompts are left out, unless prompt_truncation is \"left\""),
    "data.max_response_length": same("sampling.max_new_tokens"),
    f"{ROLLOUT}response_length": same("sampling.max_new_tokens"),
    "data.prompt_key": same("task.prompt"),
    "data.reward_fn_key": same("task.source"),
    "data.seed": same("task.seed"),
    "data.shuffle": only(True, "problems are always shuffled; the order is a function of the seed"),
    "data.apply_chat_template_kwargs.enable_thinking": lambda value, whole: {"chat.thinking": "on" if value else "off"},
    **dict.fromkeys(("custom_reward_function.path", "custom_reward_function.name"), _reward("custom_reward_function.")),
    **dict.fromkeys(("reward.custom_reward_function.path", "reward.custom_reward_function.name"),
                    _reward("reward.custom_reward_function.")),
    **_of_overlong(OVERLONG[0]),
    **_of_overlong(OVERLONG[1]),
    "reward.reward_kwargs.max_resp_len": _overlong(OVERLONG[1]),
}  # fmt: skip

_POLICY: Mapping[str, Rule] = {
    f"{MODEL}path": same("model"),
    **dict.fromkeys((f"{MODEL}lora_rank", f"{MODEL}lora_alpha", f"{MODEL}target_modules", f"{MODEL}lora.rank",
                     f"{MODEL}lora.alpha"), _lora),
    f"{MODEL}enable_gradient_checkpointing": same("learner.recompute"),
    f"{MODEL}use_remove_padding": only(True, "rows always run without padding"),
    f"{ACTOR}optim.lr": same("learner.learning_rate"),
    f"{ACTOR}optim.weight_decay": same("learner.weight_decay"),
    f"{ACTOR}optim.lr_warmup_steps": _warmup,
    f"{ACTOR}optim.lr_warmup_steps_ratio": _warmup,
    f"{ACTOR}optim.betas": betas("learner"),
    f"{ACTOR}optim.clip_grad": same("learner.clip_norm"),
    f"{ACTOR}grad_clip": same("learner.clip_norm"),
    f"{ACTOR}optim.lr_scheduler_type": SCHEDULES,
    f"{ACTOR}optim.warmup_style": SCHEDULES,
    f"{ACTOR}optim.min_lr_ratio": only(0.0, "linear and cosine end at 0"),
    f"{ACTOR}fsdp_config.dtype": _trained_in,
    f"{ACTOR}fsdp_config.param_offload": only(False, "the policy stays on its device"),
    f"{ACTOR}fsdp_config.optimizer_offload": only(False, 'learner.moments = "host", on one GPU'),
    f"{ACTOR}ppo_mini_batch_size": _batches,
    f"{ACTOR}ppo_epochs": same("passes_per_batch"),
    f"{ACTOR}use_torch_compile": only(False, "of entropy and log-probabilities, which are one function here"),
    f"{ROLLOUT}n": same("samples_per_prompt"),
    f"{ROLLOUT}temperature": same("sampling.temperature"),
    f"{ROLLOUT}top_p": same("sampling.top_p"),
    f"{ROLLOUT}top_k": lambda value, whole: {"sampling.top_k": max(0, whole_number(value))},
    f"{ROLLOUT}name": _engine,
    f"{ROLLOUT}dtype": _dtype,
    f"{ROLLOUT}max_num_seqs": same("engine.max_rows"),
    f"{ROLLOUT}do_sample": only(True, "training refuses greedy completions, which are equal"),
    f"{ROLLOUT}ignore_eos": only(False, "a completion ends where the model ends it"),
    f"{ROLLOUT}val_kwargs.temperature": _evaluated_at,
    f"{ROLLOUT}val_kwargs.do_sample": _evaluated_at,
    f"{ROLLOUT}val_kwargs.top_p": _evaluated_with("evaluation.top_p"),
    f"{ROLLOUT}val_kwargs.top_k": _evaluated_with("evaluation.top_k"),
    f"{ROLLOUT}val_kwargs.n": same("evaluation.samples"),
}  # fmt: skip

_TRAINER: Mapping[str, Rule] = {
    "trainer.total_epochs": _epochs,
    "trainer.total_training_steps": _steps,
    "trainer.project_name": same("runs"),
    "trainer.experiment_name": same("name"),
    "trainer.logger": _logger,
    "trainer.save_freq": above_zero("checkpoint.every", "checkpoint.every is 50; the last step has one"),
    "trainer.test_freq": lambda value, whole: {"evaluation.every": max(0, whole_number(value))},
    "trainer.val_before_train": only(True, "every run that evaluates does so before its first step"),
    "trainer.critic_warmup": of_critic(same("critic.warmup_steps")),
    "trainer.max_actor_ckpt_to_keep": KEPT,
    "trainer.device": chosen("device", {"cuda": "auto", "cpu": "cpu"}, 'device is "cpu", "cuda" or "auto"'),
    "trainer.nnodes": only(1, 'placement.ray is a Ray of several machines, "HOST:PORT"'),
    "trainer.n_gpus_per_node": only(1, "learner.ranks train and engine.count sample; not yet run on several GPUs"),
    "trainer.val_only": only(False, "groupwise eval MODEL --recipe RECIPE"),
}

RULES: Mapping[str, Rule] = {**_DATA, **_POLICY, **OBJECTIVE, **_TRAINER}
