"""Which planted faults a run finds, at which precision, check and step: the tables of docs/concepts/checks.md.

    python benchmarks/planted_faults.py docs/evidence/planted-faults.jsonl
    python benchmarks/planted_faults.py docs/evidence/planted-faults.jsonl --model FOLDER --name smollm2 --steps 4

Each fault is in the run from its start. A run without one is "clean": a check that fails there is a false alarm. A run
that has its row is not run again, and a clean run that was cut off goes on after its last checkpoint, so that the
experiment can be stopped and gone on with at any time. Then the tables are printed.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import torch
import typer

from groupwise.commands.build.engine import TOLERANCE
from groupwise.commands.train.train import resume, train
from groupwise.core.errors import CheckFailed
from groupwise.diagnostics.checks import Check, CheckVerdict
from groupwise.engines.local.cache import RowCache
from groupwise.engines.local.engine import LocalEngine
from groupwise.health.checks import of_limit
from groupwise.journal.journal import sound_metrics
from groupwise.training import checkpoint
from groupwise.training import run as training_run
from sweep import finished

Row = dict[str, Any]
Fault = Callable[[], AbstractContextManager[Any]]

CLEAN = "clean"
#: Learner and engine.
PRECISIONS = {"fp32": ("fp32", "same"), "bf16 learner": ("bf16", "same"), "bf16 both": ("bf16", "bf16")}
#: What every run of a model has: small batches, so that a fault must show on few tokens.
COMMON: Mapping[str, object] = {
    "algorithm.name": "grpo",
    "updates_per_batch": 2,
    "evaluation.problems": 1,
    "evaluation.samples": 1,
    "evaluation.every": 0,
    "checkpoint.keep": 1,
    "checkpoint.every": 50,
    "journal.report": False,
    "journal.token_budget": 0,
}
TINY: Mapping[str, object] = {
    "prompts_per_step": 16,
    "samples_per_prompt": 8,
    "sampling.max_new_tokens": 32,
    "learner.learning_rate": 1e-4,
    "warm_start.steps": 300,
}
CHAT: Mapping[str, object] = {
    "prompts_per_step": 4,
    "samples_per_prompt": 4,
    "sampling.max_new_tokens": 24,
    "algorithm.kl.beta": 0.04,
    "learner.learning_rate": 2e-5,
    "checkpoint.every": 10,
}


def temperature_off() -> AbstractContextManager[Any]:
    """The engine divides logits by 0.1 less than the recipe says, and its log-probabilities are of that."""
    real = LocalEngine.generate

    def cooler(self: Any, requests: Any, sampling: Any, *listener: Any) -> Any:
        return real(self, requests, sampling.replace(temperature=sampling.temperature - 0.1), *listener)

    return mock.patch.object(LocalEngine, "generate", cooler)


def top_p_untold() -> AbstractContextManager[Any]:
    """The engine samples under top-p 0.9, and nobody hears of it."""
    real = LocalEngine.generate

    def truncated(self: Any, requests: Any, sampling: Any, *listener: Any) -> Any:
        answers = real(self, requests, sampling.replace(top_p=0.9), *listener)
        return [tuple(dataclasses.replace(c, support=None) for c in group) for group in answers]

    return mock.patch.object(LocalEngine, "generate", truncated)


def another_template() -> AbstractContextManager[Any]:
    """The engine's prompts lack what the template puts before the last turn; plain ones lack their first token."""
    real = LocalEngine.generate

    def other(tokens: tuple[int, ...]) -> tuple[int, ...]:
        turns = [i for i, token in enumerate(tokens) if token == tokens[0]]
        return tokens[turns[1] if len(turns) > 1 else 1 :]

    def templated(self: Any, requests: Any, *rest: Any) -> Any:
        return real(self, [dataclasses.replace(r, tokens=other(r.tokens)) for r in requests], *rest)

    return mock.patch.object(LocalEngine, "generate", templated)


def wrong_position() -> AbstractContextManager[Any]:
    """The engine leaves out a position between prompt and completion."""
    real = RowCache.prepare

    def prepare(self: Any, ahead: int, last: int) -> Any:
        positions, mask = real(self, ahead, last)
        return (positions + 1).clamp(max=last), mask

    return mock.patch.object(RowCache, "prepare", prepare)


def weights_one_update_old() -> AbstractContextManager[Any]:
    """Each load brings the weights of the load before."""
    real, before = LocalEngine.load_weights, {}

    def load_weights(self: Any, weights: Any, version: int) -> None:
        now = {name: tensor.detach().clone() for name, tensor in weights}
        older = before.get(id(self)) or {name: tensor.clone() for name, tensor in self._model.named_parameters()}
        before[id(self)] = now
        real(self, older.items(), version)

    return mock.patch.object(LocalEngine, "load_weights", load_weights)


def one_layer_not_loaded() -> AbstractContextManager[Any]:
    """The layer in the middle keeps the weights that the run began with."""
    real = LocalEngine.load_weights

    def load_weights(self: Any, weights: Any, version: int) -> None:
        own = dict(self._model.named_parameters())
        middle = f"layers.{self._model.config.num_hidden_layers // 2}."
        real(self, [(name, own[name] if middle in name else tensor) for name, tensor in weights], version)

    return mock.patch.object(LocalEngine, "load_weights", load_weights)


FAULTS: Mapping[str, Fault] = {
    "temperature off by 0.1": temperature_off,
    "top-p not told": top_p_untold,
    "weights one update old": weights_one_update_old,
    "another template": another_template,
    "a wrong position": wrong_position,
    "one layer's weights not loaded": one_layer_not_loaded,
    CLEAN: nullcontext,
}


@contextmanager
def failed_checks() -> Iterator[list[Check]]:
    """The checks that end a run, as they are required to have passed."""
    real, failed = training_run.require_passed, []

    def require_passed(checks: Sequence[Check], step: int) -> None:
        failed.extend(check for check in checks if check.verdict is CheckVerdict.FAIL)
        real(checks, step)

    with mock.patch.object(training_run, "require_passed", require_passed):
        yield failed


def one(key: Row, recipe: str, overrides: Mapping[str, object], runs: Path) -> Row:
    """One run, begun or gone on with -> its row."""
    folder = runs / "-".join(str(value).replace(" ", "_").replace("'", "") for value in key.values())
    begun, found, text = time.monotonic(), 0, ""
    with FAULTS[key["fault"]](), failed_checks() as failed:
        try:
            if key["fault"] == CLEAN and checkpoint.newest_good(folder / checkpoint.CHECKPOINTS)[0]:
                run = resume(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
                run = train(recipe, {**overrides, "name": folder.name, "runs": str(runs)})
            if not run.finished:  # a person stopped it
                raise typer.Exit(1)
        except CheckFailed as error:
            text = str(error)
            found = int(text.partition("step ")[2].partition(":")[0])
    rows = [row for row in sound_metrics(folder) if "checks" in row]
    tolerance = folder / TOLERANCE
    row = {
        **key,
        "found_at": found,
        "by": [check.name for check in failed],
        "values": {check.name: [short(check.value), short(check.limit)] for check in failed},
        "nearest": nearest(rows),
        "tolerance": json.loads(tolerance.read_text()) if tolerance.exists() else None,
        "seconds": round(time.monotonic() - begun, 1),
        "commit": commit(),
        "torch": torch.__version__,
    }
    shutil.rmtree(folder)
    return row


def nearest(rows: Sequence[Row]) -> dict[str, float]:
    """Of each check over the steps that passed: the largest share of its limit."""
    shares: dict[str, float] = {}
    for name, check in ((name, check) for row in rows for name, check in row["checks"].items()):
        if check["value"] is not None:
            shares[name] = max(shares.get(name, 0.0), short(of_limit(check["value"], check["limit"])))
    return shares


def short(value: float) -> float:
    return float(f"{value:.3g}")


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """For each model: a line for each fault, and what each precision makes of it."""
    for model in dict.fromkeys(row["model"] for row in rows):
        yield f"\n| {model} | {' | '.join(PRECISIONS)} |"
        yield "|---" * (len(PRECISIONS) + 1) + "|"
        for fault in FAULTS:
            cells = [
                cell([r for r in rows if (r["model"], r["fault"], r["precision"]) == (model, fault, precision)])
                for precision in PRECISIONS
            ]
            yield f"| {fault} | {' | '.join(cells)} |"


def cell(rows: Sequence[Row]) -> str:
    """What the longest of these runs says."""
    if not rows:
        return ""
    row = max(rows, key=lambda row: row["steps"])
    if row["found_at"]:
        return f"step {row['found_at']}: {', '.join(row['by'])}"
    return f"no false alarm in {row['steps']} steps" if row["fault"] == CLEAN else f"not in {row['steps']} steps"


def main(
    file: Path,
    model: Annotated[str, typer.Option(help="A chat model's folder, or tiny-dense.")] = "tiny-dense",
    name: Annotated[str, typer.Option(help="Of the model, in the rows.")] = "tiny",
    steps: Annotated[int, typer.Option(min=1, help="Of a run with a fault.")] = 20,
    clean: Annotated[int, typer.Option(min=0, help="Of a run without one; 0 leaves it out.")] = 200,
    precisions: Annotated[str, typer.Option(help="Such as 'fp32,bf16 both'.")] = ",".join(PRECISIONS),
    faults: Annotated[str, typer.Option(help="Such as 'top-p not told,clean'.")] = ",".join(FAULTS),
    seed: int = 0,
    runs: Path = Path("runs/planted-faults"),
) -> None:
    """Run what has no row yet; then print the tables."""
    recipe, own = ("quickstart", TINY) if model == "tiny-dense" else ("times-tables", CHAT)
    for fault, precision in ((f, p) for f in faults.split(",") for p in precisions.split(",")):
        length = clean if fault == CLEAN else steps
        key = {"model": name, "precision": precision, "fault": fault, "steps": length, "seed": seed}
        if not length or any(all(row[k] == key[k] for k in key) for row in finished(file)):
            continue
        learner, engine = PRECISIONS[precision]
        given = {"model": model, "seed": seed, "steps": length}
        row = one(
            key, recipe, {**COMMON, **own, **given, "learner.precision": learner, "engine.precision": engine}, runs
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"{name}, {precision}, {fault}: {cell([row])} ({row['seconds']} s)", flush=True)
    print("\n".join(tables(finished(file))))


if __name__ == "__main__":
    typer.run(main)
