"""Options of TRL 1.16's GRPOConfig and RLOOConfig as keys of a recipe."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from groupwise.config.bridge.named_rewards import REWARDS
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
from groupwise.config.bridge.trl_objective import OBJECTIVE
from groupwise.journal.trackers import TRACKERS

#: What TRL does without a word, as far as groupwise does something else or a rule reads it.
DEFAULTS: Mapping[str, Any] = {
    "loss_type": "dapo",
    "beta": 0.0,
    "epsilon": 0.2,
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_iterations": 1,
    "num_processes": 1,
    "max_completion_length": 512,
    "num_train_epochs": 3,
    "max_steps": -1,
    "save_steps": 500,
    "eval_strategy": "no",
    "lr_scheduler_type": "linear",
    "bf16": True,
    "gradient_checkpointing": True,
    "use_bias_correction_kl": True,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "lora_r": 16,
    "lora_alpha": 32,
    "ref_model_sync_steps": 512,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "importance_sampling_level": "token",
    "multi_objective_aggregation": "sum_then_normalize",
    "scale_rewards": "group",
}

#: Those that are written to a recipe although the file does not name them.
WRITTEN = (
    "loss_type", "beta", "num_generations", "per_device_train_batch_size", "num_iterations", "max_completion_length",
    "lr_scheduler_type", "bf16", "gradient_checkpointing", "save_steps", "max_steps", "epsilon",
    "vllm_importance_sampling_mode", "scale_rewards",
)  # fmt: skip

RLOO_DEFAULTS: Mapping[str, Any] = {**DEFAULTS, "beta": 0.05, "num_generations": 2, "loss_type": None}

BASE: Keys = {"task.name": "trl", "algorithm.name": "grpo"}

RLOO_BASE: Keys = {"task.name": "trl", "algorithm.name": "rloo", "algorithm.trust.kind": "clip"}


def updates_per_step(whole: Whole) -> int:
    """Count the optimizer updates of a step: those of a pass times the passes."""
    return _batches(whole)[1] * whole_number(whole["num_iterations"])


def _batches(whole: Whole) -> tuple[int, int]:
    """Compute prompts of a step and updates of a pass, as GRPOConfig computes generation batches."""
    side = whole_number(whole["per_device_train_batch_size"]) * whole_number(whole["num_processes"])
    gathered, group = whole_number(whole["gradient_accumulation_steps"]), whole_number(whole["num_generations"])
    if generated := whole.get("generation_batch_size"):
        side_steps = parts(whole_number(generated), side, f"{generated} is no multiple of the {side} of a batch")
    else:
        side_steps = whole_number(whole.get("steps_per_generation") or gathered)
    updates = 1 if gathered % side_steps == 0 else parts(
        side_steps, gathered, "updates that take unequal shares of a generation; set prompts_per_step"
    )  # fmt: skip
    completions = side * max(side_steps, gathered)
    words = f"{completions} completions of a step are no whole groups of {group}; set prompts_per_step"
    return parts(completions, group, words), updates


def _sizes(value: Any, whole: Whole) -> Keys:
    prompts, updates = _batches(whole)
    return {"prompts_per_step": prompts, "updates_per_batch": updates}


def _generations(value: Any, whole: Whole) -> Keys:
    return {"samples_per_prompt": whole_number(value), **_sizes(value, whole)}


def _max_steps(value: Any, whole: Whole) -> Keys:
    if number(value) < 1:
        raise Manual("steps = epochs times problems / prompts_per_step; the file does not have the number of problems")
    return {"steps": -(-whole_number(value) // updates_per_step(whole))}


def _epochs(value: Any, whole: Whole) -> Keys:
    if number(whole["max_steps"]) > 0:
        raise NotHere("max_steps is set, and TRL reads that alone")
    return _max_steps(-1, whole)


def _every(key: str, words: str = "a share of the run, or off; a recipe has a number of steps") -> Rule:
    def rule(value: Any, whole: Whole) -> Keys:
        if number(value) < 1:
            raise NotHere(words)
        return {key: max(1, round(value / updates_per_step(whole)))}

    return rule


def _eval_steps(value: Any, whole: Whole) -> Keys:
    if whole["eval_strategy"] != "steps":
        raise NotHere(f"eval_strategy is {whole['eval_strategy']!r}, so that TRL does not read it")
    return _every("evaluation.every")(value, whole)


def _eval_strategy(value: Any, whole: Whole) -> Keys:
    if value in ("no", False):
        return {"evaluation.problems": 0}
    return {} if value == "steps" else not_here("evaluation.every counts steps, not epochs")


def _warmup(value: Any, whole: Whole) -> Keys:
    if number(value) >= 1 or value == 0:
        return {"learner.warmup_updates": whole_number(value)}
    if number(whole["max_steps"]) < 1:
        raise Manual("a share of a number of updates that the file does not have; set learner.warmup_updates")
    return {"learner.warmup_updates": round(value * whole["max_steps"])}


def _peft(value: Any, whole: Whole) -> Keys:
    if not value:
        return {}
    targets = whole.get("lora_target_modules") or []
    named = [] if "all-linear" in targets else [targets] if isinstance(targets, str) else list(targets)
    own = {"adapter.rank": whole["lora_r"], "adapter.alpha": float(number(whole["lora_alpha"]))}
    return {**own, "adapter.rate_factor": 1.0, **({"adapter.targets": named} if named else {})}


def _of_peft(value: Any, whole: Whole) -> Keys:
    return _peft(True, whole) if whole.get("use_peft") else not_here("use_peft is not set: TRL does not read it")


def _reference(value: Any, whole: Whole) -> Keys:
    every = _every("reference.every")(whole["ref_model_sync_steps"], whole)
    return every if whole.get("sync_ref_model") else {}


def _report(value: Any, whole: Whole) -> Keys:
    names = [value] if isinstance(value, str) else list(value or [])
    known = [name for name in names if name in TRACKERS]
    if not names or names == ["none"]:
        return {"journal.tracker": "none"}
    if not known:
        return not_here(f"the trackers are {', '.join(TRACKERS)}")
    return {"journal.tracker": known[0] if len(known) == 1 else known}


def _dtype(value: Any, whole: Whole) -> Keys:
    keys = {"bfloat16": "bf16", "torch.bfloat16": "bf16", "float32": "fp32", "torch.float32": "fp32", "auto": "same"}
    return chosen("engine.precision", keys, "master weights are float32")(value, whole)


def _data(value: Any, whole: Whole) -> Keys:
    config = whole.get("dataset_config")
    return {"task.path": f"{value}:{config}" if config else value}


def _split(name: str) -> Rule:
    return only(name, f"a data set's split is read by its name, {name}; write another into a file")


def _optim(value: Any, whole: Whole) -> Keys:
    if "8bit" in str(value) and "adam" in str(value):
        raise Manual('learner.moments = "8bit", on a GPU')
    plain = str(value).rpartition(".")[2].lower()
    return {} if plain.startswith("adamw") else not_here("policies are trained by AdamW")


def _output(value: Any, whole: Whole) -> Keys:
    place = PurePath(str(value))
    return {"runs": str(place.parent), "name": place.name} if len(place.parts) > 1 else {"runs": str(place)}


def _vllm(value: Any, whole: Whole) -> Keys:
    if not value:
        return {}
    raise Manual('engine.name = "vllm" where vLLM is installed; without it groupwise\'s own engine samples')


def _thinking(value: Any, whole: Whole) -> Keys:
    return {"chat.thinking": "on" if value else "off"}


RULES: Mapping[str, Rule] = {
    "model_name_or_path": same("model"),
    "model": same("model"),
    "dtype": _dtype,
    "torch_dtype": _dtype,
    "model_init_kwargs.dtype": _dtype,
    "model_init_kwargs.torch_dtype": _dtype,
    "use_peft": _peft,
    **dict.fromkeys(("lora_r", "lora_alpha", "lora_target_modules"), _of_peft),
    "load_in_4bit": lambda value, whole: {"adapter.base": "nf4"} if value else {},
    "load_in_8bit": only(False, '4 bits (adapter.base = "nf4") or none'),
    "dataset_name": _data,
    "dataset_config": lambda value, whole: _data(whole.get("dataset_name"), whole),
    "dataset_train_split": _split("train"),
    "dataset_test_split": _split("test"),
    **REWARDS,
    "chat_template_kwargs.enable_thinking": _thinking,
    "num_generations": _generations,
    "num_generations_eval": same("evaluation.samples"),
    **dict.fromkeys(
        ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size",
         "num_processes"), _sizes
    ),
    "num_iterations": same("passes_per_batch"),
    **OBJECTIVE,
    "max_steps": _max_steps,
    "num_train_epochs": _epochs,
    "max_completion_length": same("sampling.max_new_tokens"),
    "max_prompt_length": lambda value, whole: {"max_prompt_tokens": value, "prompt_truncation": "left"},
    "temperature": same("sampling.temperature", "evaluation.temperature"),
    "top_p": same("sampling.top_p", "evaluation.top_p"),
    "top_k": lambda value, whole: dict.fromkeys(("sampling.top_k", "evaluation.top_k"), max(0, whole_number(value))),
    "min_p": same("sampling.min_p", "evaluation.min_p"),
    "generation_kwargs.stop": lambda value, whole: {"sampling.stop": [value] if isinstance(value, str) else value},
    "push_to_hub": only(False, "a run uploads nothing; groupwise export RUN FOLDER --push OWNER/NAME does"),
    "repetition_penalty": only(1.0, "refused for training; rewards.repetition penalises repetition in the reward"),
    "sync_ref_model": _reference,
    "ref_model_sync_steps": _reference,
    "use_vllm": _vllm,
    "learning_rate": same("learner.learning_rate"),
    "lr_scheduler_type": chosen(
        "learner.schedule",
        {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"},
        '"constant", "linear" or "cosine" to 0',
    ),
    "warmup_steps": _warmup,
    "warmup_ratio": _warmup,
    "max_grad_norm": same("learner.clip_norm"),
    "weight_decay": same("learner.weight_decay"),
    "adam_beta1": same("learner.beta1"),
    "adam_beta2": same("learner.beta2"),
    "adam_epsilon": same("learner.epsilon"),
    "optim": _optim,
    "bf16": lambda value, whole: {"learner.precision": "bf16" if value else "fp32"},
    "fp16": only(False, "the learner's bfloat16 needs no loss scaling"),
    "gradient_checkpointing": same("learner.recompute"),
    "torch_compile": same("learner.compile"),
    "use_cpu": lambda value, whole: {"device": "cpu"} if value else {},
    "shuffle_dataset": only(True, "problems are always shuffled; the order is a function of the seed"),
    "disable_dropout": only(True, "dropout is always off: with it the first update's ratio is not 1"),
    "eval_strategy": _eval_strategy,
    "eval_steps": _eval_steps,
    "eval_on_start": only(True, "every run that evaluates does so before its first step"),
    "save_steps": _every("checkpoint.every"),
    "save_strategy": only("steps", "checkpoint.every counts steps, and a run always has a checkpoint after its last"),
    "save_total_limit": above_zero("checkpoint.keep", "checkpoint.keep has a number, 2 by default"),
    "report_to": _report,
    "run_name": same("name"),
    "output_dir": _output,
    "seed": same("seed"),
    "data_seed": same("task.seed"),
}  # fmt: skip
