"""The run folder: what was asked, what happened at each step, every rollout, and how it ended."""

from __future__ import annotations

import fcntl
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.errors import RunError, UsageError
from groupwise.records import Batch, Completion, Group
from groupwise.rollout import Harvest

METRICS, ROLLOUTS, LOG, RECIPE, SUMMARY = "metrics.jsonl", "rollouts.jsonl", "log.txt", "recipe.toml", "summary.json"


class Journal:
    """Appends to a run folder, one line an event; a line is on its way to disk before the next step starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = (folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise UsageError(f"{folder}: another process is writing this run; wait for it or stop it first") from None

    def close(self) -> None:
        """Let another process write here."""
        self._lock.close()

    def discard(self) -> None:
        """Take back a run folder in which nothing happened yet."""
        self.close()
        shutil.rmtree(self.folder)

    @classmethod
    def create(cls, folder: Path, recipe: str) -> Journal:
        """A new run folder. Raises UsageError where it exists: nothing there is touched."""
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(
                f"{folder} exists already; choose another --set name=..., or go on with it: "
                f"groupwise train --resume {folder}"
            ) from None
        except OSError as error:
            raise UsageError(f"{folder}: the run folder cannot be made: {error.strerror}") from None
        (folder / RECIPE).write_text(recipe)
        return cls(folder)

    @classmethod
    def reopen(cls, folder: Path, step: int) -> Journal:
        """An existing run, with every line after `step` taken out: they will be written again, the same."""
        journal = cls(folder)
        for name in (METRICS, ROLLOUTS):
            path = folder / name
            if path.exists():
                lines = [line for line in complete_lines(path) if json.loads(line)["step"] <= (step if step else -1)]
                _replace(path, "".join(line + "\n" for line in lines))
        return journal

    def metrics(self, row: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl; a number that is not finite becomes null."""
        self._append(METRICS, [row])

    def rollouts(self, step: int, harvest: Harvest, batch: Batch) -> None:
        """One line of rollouts.jsonl per completion that the step generated or trains."""
        self._append(ROLLOUTS, rollout_rows(step, harvest, batch))

    def log(self, line: str) -> None:
        """One line of log.txt."""
        self._write(LOG, line + "\n")

    def summary(self, summary: Mapping[str, Any]) -> None:
        """summary.json, whole or not at all."""
        _replace(self.folder / SUMMARY, json.dumps(_clean(summary), indent=2) + "\n")

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._write(name, "".join(json.dumps(_clean(row), ensure_ascii=False) + "\n" for row in rows))

    def _write(self, name: str, text: str) -> None:
        try:
            with (self.folder / name).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise RunError(
                f"{self.folder / name}: cannot be written: {error.strerror}; free space, then resume"
            ) from None


def rollout_rows(step: int, harvest: Harvest, batch: Batch) -> list[dict[str, Any]]:
    """What rollouts.jsonl says of each completion: those of the batch, in its order, then those that do not train.

    fate is "trained", "dropped" (by the filter) or "surplus" (trains in a later step); fresh says whether it was
    generated in this step.
    """
    fresh = {id(g) for g in harvest.generated}
    trained, waiting = {id(g) for g in harvest.groups}, {id(g) for g in harvest.surplus}
    reward = (batch.need("reward") * batch.mask).sum(-1).tolist()
    advantage = (batch.need("advantage").double().sum(-1) / batch.mask.sum(-1).clamp(min=1)).tolist()
    credit = iter(zip(reward, advantage, strict=True))
    rows = []
    for number, group in enumerate([*harvest.groups, *(g for g in harvest.generated if id(g) not in trained)]):
        fate = "trained" if id(group) in trained else "surplus" if id(group) in waiting else "dropped"
        for completion in group.completions:
            r, a = next(credit) if fate == "trained" else (None, None)
            told = {
                "step": step,
                "group": number,
                "fate": fate,
                "fresh": id(group) in fresh,
                "reward": r,
                "advantage": a,
            }
            rows.append({**told, **_describe(group, completion)})
    return rows


def _describe(group: Group, completion: Completion) -> dict[str, Any]:
    sample = group.prompt.sample
    return {
        "key": sample.key,
        **({"source": sample.source} if sample.source else {}),
        "prompt": sample.prompt,
        "answer": sample.answer,
        "completion": completion.text,
        "tokens": len(completion.tokens),
        "finish": completion.finish,
        "score": completion.score,
        **({} if completion.learned is None else {"learned": completion.learned}),
        **({"parts": dict(completion.parts)} if completion.parts else {}),
        **({"fault": completion.fault} if completion.fault else {}),
        "logp_engine": math.fsum(completion.logp_engine),
        "version": completion.version,
        **({"steps": completion.steps} if completion.steps else {}),
    }


def complete_lines(path: Path) -> list[str]:
    """The lines of a JSONL file that are whole: a run killed in the middle of a line leaves half of one."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    good = []
    for line in lines:
        try:
            json.loads(line)
        except ValueError:
            continue
        good.append(line)
    return good


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl."""
    path = folder / METRICS
    return [json.loads(line) for line in complete_lines(path)] if path.exists() else []


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".partial")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from None


def _clean(value: Any) -> Any:
    """JSON has no NaN: null says that there is no number."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {k: _clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(v) for v in value]
    return value
