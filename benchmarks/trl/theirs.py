"""One case by TRL, in its own environment: .venv-trl/bin/python benchmarks/trl/theirs.py CASE MODELS OUT ROWS [short]

ROWS completions go through its learner at once, and gradients add up to one update a batch; `short` is a run of few
steps. Everything that is timed is TRL's own code; the methods below only look at the clock around it.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from cases import CASES, Case
from groupwise.rewards.functions.form import Repetition
from groupwise.rewards.verifiers.answers import Numeric
from process import finish, mean, peak_mib
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore  # of another environment


class Timed(GRPOTrainer):
    """GRPOTrainer with a clock: `seconds` of the step that goes on, by phase, and the tokens of what was sampled."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds: dict[str, float] = {}
        self.prompt_tokens: list[int] = []
        self.completion_tokens: list[int] = []
        super().__init__(*args, **kwargs)

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        with self.clock("generate"):
            completions, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self.prompt_tokens += map(len, prompt_ids)
        self.completion_tokens += map(len, completions)
        return completions, logprobs

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock("score"):
            return super()._calculate_rewards(*args, **kwargs)

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock("rollout"):
            return super()._generate_and_score_completions(*args, **kwargs)


class Steps(TrainerCallback):
    """Seconds of each step, from the end of the one before it to its own end."""

    def __init__(self) -> None:
        self.trainer: Timed | None = None
        self.rows: list[dict[str, float]] = []
        self.since = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.since = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.trainer is not None
        now, parts = time.perf_counter(), self.trainer.seconds
        whole, rollout = now - self.since, parts.pop("rollout")
        parts["annotate"] = rollout - sum(parts.values())
        row = {"step": whole, **parts, "update": whole - rollout}
        self.rows.append({name: round(value, 4) for name, value in row.items()})
        self.trainer.seconds, self.since = {}, now


def main(case: Case, models: Path, out: Path, rows: int) -> None:
    steps = Steps()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Timed(
            model=AutoModelForCausalLM.from_pretrained(models / case.model_name, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(models / case.model_name, padding_side="left"),
            reward_funcs=correct if case.model is None else repetition,
            args=configuration(case, rows, folder),
            train_dataset=problems(models / f"{case.name}.jsonl", chat=case.model is None),
            callbacks=[steps],
        )
        steps.trainer = trainer
        trainer.train()
    peak = peak_mib()
    timed = case.timed * case.completions
    finish(
        out,
        steps.rows[case.warmup :],
        **peak,
        prompt_tokens=mean(trainer.prompt_tokens[-timed:]),
        completion_tokens=mean(trainer.completion_tokens[-timed:]),
        rows_at_once=rows,
    )


def configuration(case: Case, rows: int, folder: str) -> GRPOConfig:
    """The same step as recipe.toml's, and what is fastest here: no recomputation, nothing logged, nothing saved."""
    return GRPOConfig(
        max_steps=case.steps,
        num_generations=case.samples,
        max_completion_length=case.limit,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=case.completions // rows,
        learning_rate=1e-6,
        **same_method(folder),
    )


def same_method(folder: str) -> dict[str, Any]:
    """groupwise's grpo with beta = 0 in TRL's words, in float32 on a CPU."""
    return {
        "output_dir": folder,
        "beta": 0.0,
        "loss_type": "grpo",
        "temperature": 1.0,
        "optim": "adamw_torch_fused",
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def problems(path: Path, chat: bool) -> Dataset:
    """The case's prompts, as turns of a user where the model has a template."""
    rows = Dataset.from_json(str(path), cache_dir=str(path.parent / ".cache"))
    return rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]}) if chat else rows


def repetition(completions: list[Any], **columns: Any) -> list[float]:
    """recipe.toml's reward, by the same code."""
    return [Repetition(n=1).worth(text.lower().split()) for text in completions]


def correct(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """1 for the number that is the answer, by the code of the task's check."""
    return [Numeric()(turns[0]["content"], gold) for turns, gold in zip(completions, answer, strict=True)]


if __name__ == "__main__":
    chosen = CASES[sys.argv[1]].short if sys.argv[5:] == ["short"] else CASES[sys.argv[1]]
    main(chosen, Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
