"""Commands that train, and those that look at a recipe before it does."""

from pathlib import Path
from typing import Annotated

import typer

from groupwise.cli.app import RecipeName, Settings, assigned, command, settled
from groupwise.config.answers import require_known_keys
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import from_here, location
from groupwise.core.machine.terminal import Terminal


@command("Train")
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="Name (groupwise recipes lists them) or path of a recipe.")
    ] = None,
    set: Settings = None,
    resume: Annotated[
        Path | None, typer.Option(parser=location, help="Resume this run from its last checkpoint.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: HOST:PORT, auto or local. Sets placement.ray."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the whole plan and every check.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per line: steps, evaluations, checks, result.")
    ] = False,
) -> None:
    """Train a policy with a recipe, or resume a run.

    Example: groupwise train quickstart --set algorithm.name=dapo --set steps=20
    """
    if (recipe is None) == (resume is None):
        raise UsageError("train takes a recipe or --resume RUN, one of them")
    if quiet + verbose + json > 1:
        raise UsageError("--quiet, --verbose and --json exclude each other; give one of them")
    chosen = assigned(set) if recipe is None else settled(recipe, set)
    if ray is not None:
        chosen["placement.ray"] = ray
    if resume is not None:
        from groupwise.journal.kept import whole_recipe

        whole_recipe(resume)
    from groupwise.commands.train import train as run  # torch takes seconds to import: not for an answer
    from groupwise.commands.train.ending import say_end
    from groupwise.commands.train.torchrun import follows
    from groupwise.journal.lines import Shown

    if follows(recipe, resume, chosen):
        return
    ways = {Shown.RESULT: quiet, Shown.WHOLE: verbose, Shown.JSON: json}
    shown = next((way for way, asked in ways.items() if asked), Shown.BRIEF)
    if resume is not None:
        done = run.resume(resume, chosen, shown=shown)
    else:
        done = run.train(str(recipe), chosen, shown=shown)
    say_end(done.summary, from_here(done.folder), shown, Terminal())
    if not done.finished:
        raise typer.Exit(128 + done.stopped_by)


@command("Train")
def sweep(
    recipe: RecipeName,
    over: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE,...", help="Values of a key, one run each; repeat it for a grid of keys."),
    ],
    at_once: Annotated[int, typer.Option(min=1, max=1024, help="Number of runs at the same time.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(parser=location, help="Folder of the sweep; default: NAME-sweep in the recipe's runs folder."),
    ] = None,
    set: Settings = None,
    yes: Annotated[bool, typer.Option("--yes", help="Allow more than 100 runs.")] = False,
) -> None:
    """Train a recipe with each combination of values and compare the runs; repeat the command to resume.

    Example: groupwise sweep quickstart --over seed=0,1,2 --over algorithm.name=grpo,dapo --at-once 2
    """
    chosen = settled(recipe, set)
    from groupwise.commands.sweep.grid import read_over

    values = read_over(over, chosen, many=yes)
    require_known_keys(recipe, {**chosen, **{key: first for key, (first, *_) in values.items()}})
    from groupwise.commands.sweep.sweep import sweep as run  # torch takes seconds to import: not for an answer

    done = run(recipe, values, chosen, Terminal(stderr=True).print, out, at_once)
    for line in done.lines:
        Terminal().print(line)
    if done.stopped_by:
        raise typer.Exit(128 + done.stopped_by)
    if done.failed:
        raise typer.Exit(1)


@command("Train")
def check(
    recipe: RecipeName,
    set: Settings = None,
    rows: Annotated[int, typer.Option(min=0, max=1000, help="Number of problems to show as the model sees them.")] = 3,
    model: Annotated[bool, typer.Option("--model/--no-model", help="Load the model as the last check.")] = True,
) -> None:
    """Validate a recipe before training: problems, rewards, lengths, model; exit code 1 for a fault.

    Example: groupwise check my_recipe.toml --rows 5
    """
    chosen = settled(recipe, set)
    from groupwise.commands.check.check import check_sections
    from groupwise.commands.check.findings import print_sections

    sections = check_sections(recipe, chosen, rows=rows, model=model)
    if print_sections(sections, Terminal()):
        raise typer.Exit(1)


@command("Train")
def plan(
    recipe: RecipeName,
    set: Settings = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Number of processes that share the policy; default: learner.ranks."),
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="Device of each rank: a100, h100, h200, b200, cpu (this machine) or a file NAME.toml."),
    ] = "cpu",
    cards: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Number of devices for ranks and engines; default: one per rank."),
    ] = None,
) -> None:
    """Estimate the memory and time of a recipe on N devices without running it.

    Example: groupwise plan gsm8k --device h100 --ranks 8
    """
    chosen = settled(recipe, set)
    from groupwise.commands.plan import in_words, scale_plan

    Terminal().print(in_words(scale_plan(recipe, chosen, ranks, device, cards)))


@command("Train")
def init(
    folder: Annotated[Path, typer.Argument(parser=location, help="New or empty folder.")],
) -> None:
    """Create a project: a commented recipe, a reward and ten rows of data, ready to train.

    Example: groupwise init mine
    """
    from groupwise.commands.init import write_project

    made = write_project(folder)
    say = Terminal().print
    say(f"{made.folder} holds {', '.join(made.files)}")
    say(f"next: groupwise check {made.recipe}, then groupwise train {made.recipe}")
