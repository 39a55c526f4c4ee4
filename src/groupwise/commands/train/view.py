"""View of a run while it trains: the head or the plan, then lines, a panel, JSON or nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path

from groupwise.config.plan import Plan
from groupwise.core.errors import counted
from groupwise.core.files.paths import from_here
from groupwise.core.machine.terminal import Terminal
from groupwise.health.symptoms.base import measured
from groupwise.journal.journal import Journal
from groupwise.journal.lines import Shown
from groupwise.journal.live import LiveView, NotebookView
from groupwise.journal.terminal import JsonView, QuietView, View


def named(folder: Path) -> Path:
    """Name the folder of a run that is resumed as one that begins names its own: from here, if it lies below."""
    short = from_here(folder)
    return short if short.name else folder


def say_to(shown: Shown, stderr: bool = False) -> Callable[[str], None]:
    says = shown in (Shown.BRIEF, Shown.WHOLE)
    return Terminal(stderr=stderr).print if says else lambda line: None


def view_of(plan: Plan, book: Journal, notes: Sequence[str], shown: Shown) -> View:
    """Make what a person sees of the run, with its head or its plan, and `notes`, on it."""
    terminal, kind = Terminal(), View
    if shown is Shown.JSON:
        kind = JsonView
    elif shown in (Shown.RESULT, Shown.NOTHING):
        kind = QuietView
    elif terminal.in_notebook:
        kind = NotebookView
    elif terminal.has_panels:
        kind = LiveView
    view = kind(
        plan.recipe.steps,
        terminal,
        measured(plan.recipe.measure.metric, plan.recipe.measure.pass_at is not None),
        plan.algorithm.advantage.compares_within_group,
        name=plan.folder.name,
        log=book.log,
        whole=shown is Shown.WHOLE,
    )
    view.head(_head(plan))
    view.plan(plan.describe())
    for text in notes:
        book.log(text)
        view.note(text)
    return view


def _head(plan: Plan) -> dict[str, str]:
    """Say in short what is trained, on what, by which algorithm, and how much."""
    recipe = plan.recipe
    updates = counted(recipe.updates_per_step, "update")
    sizes = [counted(recipe.prompts_per_step, "prompt") + " x " + counted(recipe.samples_per_prompt, "sample")]
    sizes *= not recipe.supervised_alone
    if recipe.supervised is not None:
        sizes.append(counted(recipe.supervised.rows_per_step, "supervised row"))
    return {
        "run": f"{plan.folder}: {recipe.origin}, seed {recipe.seed}, {recipe.device}",
        "task": recipe.task.get("name") or type(plan.task).__name__,
        "algorithm": f"{plan.method}, learning rate {recipe.learner.learning_rate:g}",
        "size": f"{counted(recipe.steps, 'step')} of {' and '.join(sizes)}, {updates} a step",
    }
