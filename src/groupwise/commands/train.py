"""Start, resume, evaluate: what the commands and the Python surface call."""

from __future__ import annotations

import json
import math
import re
import signal
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from groupwise import loop
from groupwise.commands.build import build, pool_of
from groupwise.config import about, recipe
from groupwise.config.plan import REWARD_MODEL, Blueprint
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.core.clock import START, Clock
from groupwise.core.errors import GroupwiseError, UsageError
from groupwise.core.records import Evaluation
from groupwise.engines.local.engine import LocalEngine
from groupwise.journal import journal
from groupwise.journal.journal import Journal
from groupwise.journal.terminal import LiveView, PlainView, View
from groupwise.journal.trackers import Sender, tracker
from groupwise.models.chat import Chat
from groupwise.models.load import load_policy
from groupwise.models.reward import load_reward_model
from groupwise.report.make import make
from groupwise.rollout.collect import evaluate
from groupwise.rollout.scoring import Scorer
from groupwise.rollout.selection import select
from groupwise.training import checkpoint
from groupwise.training.reward_model import REPORT, read_report
from groupwise.training.state import restore


@dataclass(frozen=True)
class Run:
    """A run that ended. `summary` is also summary.json in the folder; empty where a signal stopped the run early."""

    folder: Path
    summary: dict[str, Any]
    stopped_by: int = 0

    @property
    def finished(self) -> bool:
        return not self.stopped_by


def train(name: str, overrides: Mapping[str, object] | None = None) -> Run:
    """Run a recipe, by name or path, with dotted keys laid over it. A name that exists is counted up unless it was set.

    groupwise.train("quickstart", {"algorithm.name": "dapo"}).summary["heldout_after"]
    """
    chosen = dict(overrides or {})
    loaded = recipe.load(name, chosen)
    if "name" not in chosen:
        loaded = loaded.model_copy(update={"name": _free_name(Path(loaded.runs), loaded.name)})
    plan = resolve(loaded)
    told = tracker(plan.journal.tracker)
    text = recipe.dump(resolved_recipe(plan), f"Everything this run was started with, from {name}.")
    book = Journal.create(plan.folder, text)
    book.about(about.about(plan, time.time()))
    return _go(plan, book, None, Sender(told, book.log), fresh=True)


def resume(folder: Path) -> Run:
    """Go on with a run from its newest good checkpoint; without one, from the start."""
    path = folder / journal.RECIPE
    if not path.is_file():
        raise UsageError(f"{folder}: not a run folder (no {journal.RECIPE})")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}") from None
    # The folder is the run, wherever it was moved or started from.
    table |= {"runs": str(folder.resolve().parent), "name": folder.resolve().name}
    plan = resolve(recipe.parse(table, str(path)))
    sent_to = tracker(plan.journal.tracker)
    newest, told = checkpoint.newest_good(folder / "checkpoints")
    step = checkpoint.read_state(newest)["step"] if newest else 0
    book = Journal.reopen(folder, step)
    before = journal.read_about(folder) or about.about(plan, path.stat().st_mtime)
    book.about(about.resumed(before, step, time.time(), plan.device))
    for line in told:
        book.log(line)
        Console(stderr=True, soft_wrap=True).print(line, markup=False)
    return _go(plan, book, newest, Sender(sent_to, book.log), fresh=False)


def evaluate_folder(name: str, overrides: Mapping[str, object], model: str | None) -> Evaluation:
    """Sampled results of a policy on the recipe's held-out problems: a run's last checkpoint, or any model folder."""
    plan = resolve(_of_run_or_recipe(name, overrides))
    folder = Path(model) if model else _last_policy(Path(name))
    policy = load_policy(folder, device=plan.device)
    engine = LocalEngine(policy.model, eos=policy.eos, pad=policy.pad, max_rows=plan.max_rows)
    chat = Chat(policy.tokenizer, plan.chat)
    found = select(plan.task, chat.encode, plan.max_prompt_tokens, plan.evaluation_problems)
    with pool_of(plan) or nullcontext() as pool:
        scorer = Scorer(plan.task, policy.decode, pool=pool)
        judge = load_reward_model(Path(name) / REWARD_MODEL, device=plan.device).scores if scorer.judged else None
        asked = (found.heldout, chat.encode, plan.evaluation_samples, plan.evaluation, plan.seed, judge)
        return evaluate(engine, scorer, *asked)


def summarise(plan: Blueprint, run: loop.Run) -> dict[str, Any]:
    """summary.json, from the rows of metrics.jsonl, so that a resumed run says the same."""
    found = [r for r in journal.read_metrics(plan.folder) if "evaluation" in r]
    before, after = found[0]["evaluation"], found[-1]["evaluation"]
    judged = run.rollout.scorer.judged
    return {
        "name": plan.name,
        "algorithm": plan.algorithm.name,
        "seed": plan.seed,
        "steps": run.step,
        "heldout_measure": "learned score" if judged else "pass rate",
        "heldout_before": before["learned_mean" if judged else "avg_at_k"],
        "heldout_after": after["learned_mean" if judged else "avg_at_k"],
        "length_before": before["length_mean"],
        "length_after": after["length_mean"],
        **_by_source(before, after),
        "heldout_problems": after["problems"],
        "heldout_samples": after["samples"],
        **_reward_model_in_short(plan.folder / REWARD_MODEL / REPORT),
        "checks": worst_checks(plan.folder),
        "seconds_total": round(run.seconds_before + run.clock.total, 3),
        "seconds_after": round(math.fsum(run.clock.lap().values()), 3),
        "seconds_training": round(run.seconds_training, 3),
        "policy": str(checkpoint.folder_of(plan.folder / "checkpoints", run.step) / checkpoint.POLICY),
        **about.where(plan.device),
    }


def _by_source(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Mean score before and after of each source, where the task mixes several."""
    told = {
        source: {"before": before["by_source"][source]["score_mean"], "after": row["score_mean"]}
        for source, row in after["by_source"].items()
    }
    return {"heldout_by_source": told} if told else {}


def _reward_model_in_short(path: Path) -> dict[str, Any]:
    """What summary.json says of the run's reward model, where it made one."""
    if not path.is_file():
        return {}
    report = read_report(path).as_json()
    names = ("accuracy", "accuracy_true", "ceiling", "share_of_ceiling", "calibration_error")
    return {"reward_model": {name: report[name] for name in names}}


def worst_checks(folder: Path) -> dict[str, dict[str, Any]]:
    """Of each check over the whole run: how many steps measured it, and its largest value beside the limit."""
    worst: dict[str, dict[str, Any]] = {}
    for row in journal.read_metrics(folder):
        for name, check in row.get("checks", {}).items():
            known = worst.setdefault(name, {"steps": 0, "largest": 0.0, "limit": check["limit"]})
            if check["value"] is not None:
                known["steps"] += 1
                known["largest"], known["limit"] = max(known["largest"], check["value"]), check["limit"]
    return worst


def _go(plan: Blueprint, book: Journal, newest: Path | None, send: Sender, fresh: bool) -> Run:
    console = Console(highlight=False, soft_wrap=True)
    view = LiveView(plan.steps, plan.name, console) if console.is_terminal else PlainView(plan.steps, console)
    view.plan(plan.plan())
    asked: list[int] = []
    scorers: list[Scorer] = []
    summary: dict[str, Any] | None = None
    try:
        with _signals(asked, view):
            clock = Clock(START)
            run = _build_or_discard(plan, book, view, lambda: bool(asked), fresh)
            scorers.append(run.rollout.scorer)
            run.clock = clock
            if newest is not None:
                restore(run, newest)
                view.note(f"going on after step {run.step}")
            book.listen(send.metrics)
            send.start(plan.folder, plan.name, resolved_recipe(plan).model_dump(exclude_none=True), after=run.step)
            finished = loop.train(run)
        if finished:
            summary = summarise(plan, run)
            book.summary(summary)
    except GroupwiseError as error:
        if plan.folder.is_dir():
            book.log(f"error: {error}")
        raise
    finally:
        for scorer in scorers:
            scorer.close()
        view.close()
        send.close(summary)
        book.close()
    if summary is not None:
        _leave_report(plan, view)
        return Run(plan.folder, summary)
    view.say(f"stopped after step {run.step}, saved; go on with: groupwise train --resume {plan.folder}")
    return Run(plan.folder, {}, stopped_by=asked[0])


def _leave_report(plan: Blueprint, view: View) -> None:
    """The page of a finished run. A run that ended well stays so, whatever its page runs into."""
    if not plan.journal.report:
        return
    try:
        make([plan.folder])
    except Exception as error:  # nothing of the run is lost, and `groupwise report` shows the same again
        words = str(error) if isinstance(error, GroupwiseError) else f"{type(error).__name__}: {error}"
        view.note(f"no report was made ({words}); the run is whole. Try: groupwise report {plan.folder}")


def _build_or_discard(plan: Blueprint, book: Journal, view: View, stop: Callable[[], bool], fresh: bool) -> loop.Run:
    """The run, built; what turns out to be impossible only with the model at hand leaves no empty run folder."""
    try:
        return build(plan, book, view, stop)
    except UsageError:
        if fresh:
            book.discard()
        raise


@contextmanager
def _signals(asked: list[int], view: View) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask to stop at the next step boundary; a second Ctrl-C stops at once."""

    def ask(number: int, frame: object) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not asked:
            view.note("stopping after this step, with everything saved; Ctrl-C again stops at once")
        asked.append(number)

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever owns it decides about signals
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_name(runs: Path, name: str) -> str:
    """name, name-2, name-3, ...: the first that does not exist."""
    taken = {p.name for p in runs.iterdir()} if runs.is_dir() else set()
    used = [int(m[1] or 1) for t in taken if (m := re.fullmatch(re.escape(name) + r"(?:-(\d+))?", t))]
    return name if name not in taken else f"{name}-{max(used) + 1}"


def _of_run_or_recipe(name: str, overrides: Mapping[str, object]) -> recipe.Recipe:
    path = Path(name) / journal.RECIPE
    return recipe.load(str(path) if path.is_file() else name, overrides)


def _last_policy(folder: Path) -> Path:
    newest, _ = checkpoint.newest_good(folder / "checkpoints")
    if newest is None:
        raise UsageError(f"{folder}: no checkpoint to evaluate; name a run folder, or a model with --model PATH")
    return newest / checkpoint.POLICY


def summary_of(folder: Path) -> dict[str, Any]:
    """A finished run's summary.json."""
    return json.loads((folder / journal.SUMMARY).read_text())
