"""Commands that say what there is: recipes, keys, algorithms, and what articles claim of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from groupwise.cli.app import AlgorithmKeys, PartFields, assigned, command
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import location
from groupwise.core.machine.terminal import Terminal


@command("Learn")
def recipes() -> None:
    """List the recipes of groupwise: what each trains, its model and what it needs.

    Example: groupwise recipes
    """
    from groupwise.config.recipe_files import listing

    for line in listing():
        Terminal().print(line)


@command("Learn")
def keys(
    section: Annotated[
        str | None,
        typer.Argument(help="Section or key, such as learner, task.data or learner.schedule; default: all."),
    ] = None,
) -> None:
    """Show the keys that a recipe can set: default, type, bounds and meaning.

    Example: groupwise keys learner
    """
    from groupwise.config.answers import sections
    from groupwise.config.described import chosen, text

    Terminal().print(text(chosen(sections(), section)))


@command("Learn")
def explain(
    algorithm: Annotated[
        str | None,
        typer.Argument(help="Algorithm, such as gspo, or a run folder; default: a list of all."),
    ] = None,
    against: Annotated[str | None, typer.Option(help="Show the differences from this algorithm.")] = None,
    atlas: Annotated[bool, typer.Option("--atlas", help="Show the gradient weights of all algorithms.")] = False,
    set: AlgorithmKeys = None,
) -> None:
    """Explain an algorithm: objective, parts and their values, paper, what to watch.

    Example: groupwise explain grpo --against gspo
    """
    if atlas:
        if algorithm is not None or against is not None or set:
            raise UsageError("--atlas shows all algorithms with their defaults; leave out the others")
        from groupwise.algorithms.atlas import table

        Terminal().print(table())
        return
    if algorithm is None and (against is not None or set):
        raise UsageError("--against and --set go with an algorithm: groupwise explain grpo --against gspo")
    if against is not None and set:
        raise UsageError("--against compares two algorithms with their defaults; leave out --set")
    Terminal().print(_explained(algorithm, against, assigned(set)))


def _explained(algorithm: str | None, against: str | None, given: Mapping[str, object]) -> str:
    from groupwise.config.answers import explained, family

    if algorithm is None:
        return family()
    known = [explained(name) for name in (algorithm, *([against] if against else []))]
    if against is None and not given and known[0]:
        return known[0]
    from groupwise.algorithms.explain import compare  # torch takes seconds to import
    from groupwise.commands.algorithm import explain as in_words

    if against is not None:
        return compare(algorithm, against)
    chosen = {key.removeprefix("algorithm."): value for key, value in given.items()}
    return in_words(algorithm, chosen, Terminal(stderr=True).print)


@command("Learn")
def laws(
    part: Annotated[str, typer.Argument(help="Your part: my_parts.py:StaleClip, or package.module:Name.")],
    set: PartFields = None,
) -> None:
    """Test your own part against the properties that all parts of its slot have; exit code 1 if one fails.

    Example: groupwise laws my_parts.py:StaleClip
    """
    from groupwise.commands.algorithm import laws as tried

    trial = tried(part, assigned(set))
    say = Terminal().print
    say(f"{trial.part}, a part of the slot {trial.slot}")
    for words, seen in trial.laws:
        say(f"broken  {words}: {seen}" if seen else f"holds   {words}")
    say(f"{len(trial.laws) - trial.broken} of {len(trial.laws)} laws hold")
    if trial.broken:
        raise typer.Exit(1)


def _rows_place(text: str) -> Path:
    return location(text, "--rows")


@command("Learn")
def claims(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Test this claim only; can be repeated.")
    ] = None,
    list: Annotated[
        bool, typer.Option("--list", help="List the claims and their recorded verdicts; measure nothing.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Use mathematics and toy models; minutes.")] = False,
    standard: Annotated[bool, typer.Option("--standard", help="Also train with three seeds; about an hour.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Train as many runs as each answer needs.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**31 - 1, help="Use this seed only, even if its result is recorded."),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(metavar="PATH", parser=_rows_place, help="File of recorded results; default: claims/rows.jsonl."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(parser=location, help="Folder for claims.md and claims.html; default: claims.")
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Training runs at the same time, one thread each; default: 1.")
    ] = None,
) -> None:
    """Test what papers claim about these algorithms: it holds, does not hold, or cannot be told.

    Example: groupwise claims --quick
    """
    from groupwise.claims import command

    names, say = only or [], Terminal().print
    if list:
        if quick or standard or full or any(each is not None for each in (seed, out, at_once)):
            raise UsageError("claims --list measures and writes nothing; it goes with --only and --rows alone")
        for line in command.listing(names, rows or command.ROWS):
            say(line)
        return
    effort = command.effort_of(quick, standard, full)
    note = Terminal(stderr=True).print
    done = command.run(names, effort, note, seed, rows or command.ROWS, out or command.FOLDER, at_once or 1)
    for line in done.lines:
        say(line)
    if done.failed:
        raise typer.Exit(1)


def _recipe_place(text: str) -> Path:
    return location(text, "--out")


@command("Learn", "import")
def import_(
    file: Annotated[str, typer.Argument(help="TRL or verl options: YAML, JSON, Python or a shell script.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", parser=_recipe_place, help="New file for the recipe; default: print it."),
    ] = None,
) -> None:
    """Convert TRL or verl options to a recipe, with an answer to each; the file is never executed.

    Example: groupwise import grpo_config.yaml --out recipe.toml
    """
    from groupwise.config.bridge.given import read

    given = read(file)
    if out is not None and (out.exists() or out.suffix != ".toml"):
        what = "it exists already, and is not written over" if out.exists() else "a recipe's name ends with .toml"
        raise UsageError(f"--out {out}: {what}; name another file")
    from groupwise.config.bridge.recipe import imported, write  # the settings import torch, which takes seconds

    recipe = imported(given)
    answers = Terminal(stderr=out is None)
    for line in recipe.lines():
        answers.print(line)
    if out is None:
        Terminal().print(recipe.text())
        return
    write(recipe, out)
    answers.print(f"wrote {out}; next: groupwise check {out}")
