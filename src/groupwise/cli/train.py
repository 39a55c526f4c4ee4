"""Commands that train, and those that look at a recipe before it does."""

from pathlib import Path
from typing import Annotated

import typer

from groupwise.cli.app import RecipeName, Settings, assigned, command, settled
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import from_here, location
from groupwise.core.machine.terminal import Terminal


@command("Train")
def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe's name or its path.")] = None,
    set: Settings = None,
    resume: Annotated[
        Path | None, typer.Option(parser=location, help="Go on with this run from its last checkpoint.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: HOST:PORT, auto or local. Sets placement.ray."),
    ] = None,
) -> None:
    """Train a policy by a recipe, or go on with a run that stopped.

    Example: groupwise train quickstart --set algorithm.name=dapo --set steps=20
    """
    if (recipe is None) == (resume is None):
        raise UsageError("train takes a recipe or --resume RUN, one of them")
    chosen = assigned(set) if recipe is None else settled(recipe, set)
    if ray is not None:
        chosen["placement.ray"] = ray
    from groupwise.commands.train import train as run  # torch takes seconds to import: not for an answer
    from groupwise.commands.train.run import in_words
    from groupwise.commands.train.torchrun import follows

    if follows(recipe, resume, chosen):
        return
    done = run.resume(resume, chosen) if resume is not None else run.train(str(recipe), chosen)
    if not done.finished:
        raise typer.Exit(128 + done.stopped_by)
    for line in in_words(done.summary, from_here(done.folder)):
        Terminal().print(line)


@command("Train")
def check(
    recipe: RecipeName,
    set: Settings = None,
    rows: Annotated[int, typer.Option(min=0, max=1000, help="Problems to show as the model sees them.")] = 3,
    model: Annotated[bool, typer.Option("--model/--no-model", help="Load the model too, as the last check.")] = True,
) -> None:
    """Validate a recipe before training: problems, rewards, lengths, model. Exit code 1 if there is a fault.

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
        typer.Option(min=1, max=1024, help="Processes that share the policy; default: learner.ranks."),
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="Device of each rank: a100, h100, h200, b200, cpu (this machine) or a file NAME.toml."),
    ] = "cpu",
    cards: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Number of devices for ranks and engines; default: one a rank.")
    ] = None,
) -> None:
    """Estimate memory and time of a recipe on N devices, without running it.

    Example: groupwise plan gsm8k --device h100 --ranks 8
    """
    chosen = settled(recipe, set)
    from groupwise.commands.plan import in_words, scale_plan

    Terminal().print(in_words(scale_plan(recipe, chosen, ranks, device, cards)))
