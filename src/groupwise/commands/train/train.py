"""Start and end of runs, new or resumed: what the commands and the Python surface call."""

import gc
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from groupwise import loop
from groupwise.actors.place import RayPlace
from groupwise.algorithms.algorithm import Algorithm
from groupwise.commands.build.build import build
from groupwise.commands.build.machine import plan_of, threads, with_threads
from groupwise.commands.build.policy import pinned
from groupwise.commands.train.callbacks import Callback, Callbacks, require_callbacks
from groupwise.commands.train.ending import result, stopped, way_on
from groupwise.commands.train.resume import continuation, made_again, missing_rows, record_changes, resumed
from groupwise.commands.train.run import Run, evaluations_of, summary_of
from groupwise.commands.train.torchrun import with_given_ranks
from groupwise.commands.train.view import named, say_to, view_of
from groupwise.config import recipe as recipes
from groupwise.config import recipe_files
from groupwise.config.given import RecipeLike, RewardsLike, given
from groupwise.config.plan import Plan, about
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.config.usual import unusual
from groupwise.core.code.unexpected import save_traceback
from groupwise.core.errors import GroupwiseError, ProcessLost, RunError, UsageError
from groupwise.core.files.paths import location
from groupwise.core.machine.cards import failure_of
from groupwise.core.machine.clock import LOST, START, Clock
from groupwise.core.machine.free_memory import freed_stays
from groupwise.core.processes.place import HERE
from groupwise.core.processes.stop import Stop, Stopped
from groupwise.journal import journal, kept
from groupwise.journal.journal import Journal, sound_metrics
from groupwise.journal.kept import whole_recipe
from groupwise.journal.lines import Shown
from groupwise.journal.sender import Senders
from groupwise.journal.terminal import View
from groupwise.journal.trackers import Tracked, Tracker, made_trackers
from groupwise.reports.make import make
from groupwise.training import checkpoint
from groupwise.training.run import Training


def train(
    recipe: RecipeLike,
    overrides: Mapping[str, object] | None = None,
    *,
    algorithm: Algorithm | None = None,
    rewards: RewardsLike | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    shown: Shown = Shown.BRIEF,
) -> Run:
    """Run a recipe. A folder that exists has its name counted up, unless `overrides` say the name.

    groupwise.train("quickstart", {"algorithm.name": "dapo"}).summary["heldout_after"]

    recipe     a name, a path, a dictionary with the keys of a recipe, nested or dotted, or a groupwise.Recipe
    overrides  dotted keys, laid over it
    algorithm  what groupwise.algorithm(...) makes, in the place of the recipe's
    rewards    functions [f, g], or by name {"f": f, "g": {"use": g, "weight": 0.5}}, beside the recipe's own
    callbacks  each called after each step with a StepRecord; one that returns True asks the run to stop, as Ctrl-C does
    quiet      print nothing; what is said of the run is in its log.txt, and errors are raised as ever
    shown      how much is printed, if not quiet: what the options of the command choose
    Raises UsageError, before anything is started, if something is off; RunError if the run has to stop.
    """
    require_callbacks(callbacks)
    shown = Shown.NOTHING if quiet else shown
    given_recipe = given(recipe, overrides, algorithm, rewards)
    loaded = pinned(with_given_ranks(given_recipe.recipe), say_to(shown, stderr=True))
    if "name" not in (overrides or {}):
        loaded = loaded.replace(name=_free_name(Path(loaded.runs), loaded.name))
    plan, notes = plan_of(given_recipe, loaded)
    plan.recipe.engine.require_place()
    plan.recipe.engine.require_device(plan.recipe.device)
    trackers = made_trackers(plan.recipe.journal.trackers)
    text = recipe_files.dump(resolved_recipe(plan), given_recipe.origin)
    book = Journal.create(plan.folder, text, kept.written(plan.code))
    notes += [f"question     {question}" for question in unusual(resolved_recipe(plan))]

    def first() -> Run:
        with threads(plan.recipe), freed_stays(large=not plan.recipe.learner.recompute):
            row = about(plan, time.time())
            return _go(plan, book, row, None, trackers, notes, callbacks, shown, fresh=True)

    return with_restarts(plan.folder, first, partial(_resumed, plan.folder, {}, callbacks, shown))


def resume(
    run: str | os.PathLike[str],
    overrides: Mapping[str, object] | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    shown: Shown = Shown.BRIEF,
) -> Run:
    """Resume a run from its newest good checkpoint; from the start if it was ended before it had one.

    run        a Run, or its folder
    overrides  keys that may change in a run that is resumed: {"steps": 200, "learner.learning_rate": 1e-5}
    callbacks  as for train
    quiet, shown  as for train
    Raises UsageError if the folder is no run, it has lost its checkpoints, or a key may not change; RunError if the
    run has to stop.
    """
    require_callbacks(callbacks)
    shown = Shown.NOTHING if quiet else shown
    folder = named(location(run, "run"))
    first = partial(_resumed, folder, {} if overrides is None else overrides, callbacks, shown)
    return with_restarts(folder, first, partial(_resumed, folder, {}, callbacks, shown))


def with_restarts(folder: Path, first: Callable[[], Run], again: Callable[[str], Run]) -> Run:
    """Return what `first` does; if it loses a process, what `again` does, which resumes the run and is told why.

    A loss counts as one more in a row if the run has not come further than at the loss before it.
    Raises ProcessLost, or RunError after restarts, if the run is not to go on by itself again.
    """
    go, in_a_row, farthest = first, 0, -1
    while True:
        try:
            return go()
        except ProcessLost as lost:
            if lost.final or not folder.is_dir():
                raise
            path = whole_recipe(folder)
            most = recipes.parse(recipe_files.read_table(path), str(path)).placement.restarts
            step = max((row["step"] for row in sound_metrics(folder)), default=-1)
            in_a_row, farthest = (1, step) if step > farthest else (in_a_row + 1, farthest)
            if not most:
                raise
            if in_a_row > most:
                times = f"{in_a_row} times in a row, the last of them"
                raise RunError(f"a process was lost {times}: {lost.loss}; {lost.remedy}") from None
            go = partial(again, f"{lost.loss}; restart {in_a_row} of {most} in a row")
        gc.collect()  # the models of the process that has ended go before others are loaded


def _resumed(
    folder: Path, overrides: Mapping[str, object], callbacks: Sequence[Callback], shown: Shown, lost: str = ""
) -> Run:
    """Run the rest of a run; `lost` is the process after whose loss it is resumed by itself, "" if a person asked."""
    path = whole_recipe(folder)
    newest, damaged = checkpoint.newest_good(folder / checkpoint.CHECKPOINTS)
    state: dict[str, Any] = checkpoint.read_state(newest) if newest else {"step": 0}
    step = state["step"]
    then = continuation(folder, overrides, step)
    if newest is None:
        damaged += made_again(folder, then.before.checkpoint.every, damaged)
    # The folder is the run, wherever it was moved and whatever it is called.
    loaded, notes = with_threads(with_given_ranks(then.recipe))
    plan = resolve(loaded, place=named(Path(os.path.realpath(folder))))
    plan.recipe.engine.require_place()
    plan.recipe.engine.require_device(plan.recipe.device)
    trackers = made_trackers(plan.recipe.journal.trackers)
    book = Journal.reopen(folder, step)
    before = journal.read_about(folder) or about(plan, path.stat().st_mtime)
    damaged += missing_rows(folder, step)
    if step and plan.evaluated and 0 not in evaluations_of(folder):
        damaged.append(f"{folder / journal.METRICS} has no evaluation before step 1: the summary will lack it")
    for line in [*([lost] if lost else []), *damaged, *kept.differences(folder)]:
        book.log(line)
        say_to(shown, stderr=True)(line)
    for line in record_changes(then, plan, book, state):
        say_to(shown)(line)
    with threads(plan.recipe), freed_stays(large=not plan.recipe.learner.recompute):
        returns = state.get("rollbacks", ())
        row = resumed(before, step, time.time(), plan.recipe.device, then.changes, returns, lost)
        return _go(plan, book, row, newest, trackers, notes, callbacks, shown, fresh=False)


def _go(
    plan: Plan,
    book: Journal,
    about_row: Mapping[str, Any],
    newest: Path | None,
    trackers: Sequence[Tracker],
    notes: Sequence[str],
    callbacks: Sequence[Callback],
    shown: Shown,
    fresh: bool,
) -> Run:
    """Build the run and train to its end; `notes` are said under the plan."""
    view, stop = _seen(plan, book, notes, shown), Stop()

    def say(line: str) -> None:
        book.log(line)
        view.note(line)

    send = Senders(trackers, say)
    called = Callbacks(callbacks, plan.recipe.steps, plan.folder, say, book.log)
    opened = ExitStack()
    summary: dict[str, Any] | None = None

    def after(done: int) -> None:
        called.after(done)
        stop.asked = stop.asked or called.stop

    try:
        with suppress(Stopped), _logged(plan.folder, book, stop), stop.listening(view.note):
            clock = Clock(START)
            with stop.leaving():
                run = _begun(plan, book, about_row, view, stop, fresh, opened, say)
                run.clock = clock
                if newest is not None:
                    _restore(run, newest, sound_metrics(plan.folder))
                    if run.progress.owes_evaluation:
                        book.cut_heldout(run.progress.step - 1)
                    view.note(f"going on after step {run.progress.step}")
            book.listen(send.metrics)
            book.listen_to_cuts(send.cut_back)
            if plan.recipe.journal.completions:
                book.listen_to_rollouts(send.completions, plan.recipe.journal.completions)
            if callbacks:
                book.listen(called.hear)
                run.after_step = after
            send.start(_tracked(plan, after=run.progress.step))
            if loop.train(run):
                summary = _finished(plan, run, book)
        for line in [stopped(plan.folder)] if summary is None else result(summary, plan.folder):
            book.log(line)
    finally:
        opened.close()
        view.close()
        send.close(summary)
        book.close()
    if summary is not None:
        _leave_report(plan, view)
        return Run(plan.folder, summary)
    view.note(stopped(plan.folder))
    return Run(plan.folder, {}, stopped_by=stop.number)


def _seen(plan: Plan, book: Journal, notes: Sequence[str], shown: Shown) -> View:
    """Make what a person sees of the run; the journal is closed if its log.txt takes no line."""
    try:
        return view_of(plan, book, notes, shown)
    except BaseException:
        book.close()
        raise


def _tracked(plan: Plan, after: int) -> Tracked:
    """Make what trackers hear of a run at its start."""
    own = plan.recipe.journal
    return Tracked(plan.folder, plan.folder.name, resolved_recipe(plan), after, own.project, own.group, own.tags)


def _finished(plan: Plan, run: Training, book: Journal) -> dict[str, Any]:
    if run.progress.step not in evaluations_of(plan.folder):  # its row was damaged since
        book.cut_heldout(run.progress.step - 1)
        loop.evaluate(run)
        run.stop.look()
    summary = summary_of(plan, run)
    book.replace(journal.SUMMARY, summary)
    return summary


@contextmanager
def _logged(folder: Path, book: Journal, stop: Stop) -> Iterator[None]:
    """Log whatever ends a run. After a loss it says how it is gone on with; it is not resumed by itself if a person
    wanted it to stop.
    """
    try:
        yield
    except GroupwiseError as raised:
        error = _with_command(raised, folder) if isinstance(raised, ProcessLost) else raised
        for line in (f"error: {error}", *getattr(error, "__notes__", ())) if folder.is_dir() else ():
            book.log(line)
        if isinstance(error, ProcessLost):
            error.final = stop.asked
        raise error from None
    except Exception as error:
        save_traceback(error, folder / journal.LOG)
        if failed := failure_of(error):
            raise RunError(f"rank 0's GPU failed: {failed}; {way_on(folder)}") from None
        raise


def _with_command(lost: ProcessLost, folder: Path) -> ProcessLost:
    """Return the loss with the command that goes on after it, once."""
    command = f"groupwise train --resume {shlex.quote(str(folder))}"
    if lost.remedy.endswith(command):
        return lost
    whole = ProcessLost(lost.loss, f"{lost.remedy}: {command}").with_traceback(lost.__traceback__)
    whole.__notes__ = getattr(lost, "__notes__", [])
    return whole


def _restore(run: Training, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put a built run where a checkpoint left it, bit for bit; `rows` are those of metrics.jsonl up to there."""
    run.put_back(folder)
    run.output.know(rows)
    in_rows = math.fsum(value for row in rows for value in row.get("seconds", {}).values())
    run.clock.add(LOST, max(0.0, run.progress.seconds_before - in_rows))


def _leave_report(plan: Plan, view: View) -> None:
    """Make the page of a finished run. A run that ended well stays so, whatever its page runs into."""
    if not plan.recipe.journal.report:
        return
    try:
        make([plan.folder])
    except Exception as error:  # nothing of the run is lost, and `groupwise report` shows the same again
        words = str(error) if isinstance(error, GroupwiseError) else f"{type(error).__name__}: {error}"
        view.note(f"no report was made ({words}); the run is whole. Try: groupwise report {plan.folder}")


def _begun(
    plan: Plan,
    book: Journal,
    about_row: Mapping[str, Any],
    view: View,
    stop: Stop,
    fresh: bool,
    opened: ExitStack,
    say: Callable[[str], None],
) -> Training:
    """Build the run. If that fails, a folder in which nothing happened goes, and the name is free; a run that was asked
    to stop keeps its folder, to be resumed.

    opened  gets what is to be closed in the end
    """
    try:
        book.replace(journal.ABOUT, about_row)
        settings = plan.recipe.placement
        place = RayPlace(settings, plan.processes, say) if settings.ray else HERE
        opened.callback(place.close)
        run = build(plan, book, view, stop, place)
        parts = run.components
        for each in (
            parts.learner.mesh,
            parts.batches,
            parts.engine,
            parts.rollout,
        ):  # the last is closed first
            opened.callback(each.close)
        if parts.teaching is not None:
            opened.callback(parts.teaching.close)
        return run
    except BaseException as error:
        discarded = fresh and not stop.asked
        if discarded:
            book.discard()
        if discarded and isinstance(error, ProcessLost):
            raise RunError(f"{error.loss}; nothing was trained yet, so that no run is left to go on with") from None
        raise


def _free_name(runs: Path, name: str) -> str:
    """Return the first free of name, name-2, name-3, ... Raises UsageError if the folder cannot be read."""
    try:
        taken = set(os.listdir(runs)) if os.path.isdir(runs) else set()
    except OSError as error:
        raise UsageError(f"runs = {str(runs)!r}: cannot be read: {error.strerror}") from None
    used = [int(m[1] or 1) for t in taken if (m := re.fullmatch(re.escape(name) + r"(?:-(\d+))?", t))]
    return name if name not in taken else f"{name}-{max(used) + 1}"
