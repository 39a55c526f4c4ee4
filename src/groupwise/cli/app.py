"""The application, and arguments that several commands take."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from groupwise.core import VERSION
from groupwise.core.files.paths import location
from groupwise.core.machine.terminal import Terminal
from groupwise.core.processes.stop import StoppedAtOnce


class Commands(TyperGroup):
    """The commands. An interrupt is said in a line, where typer would end in silence, and as by Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupted:
            raise StoppedAtOnce(interrupted) from None


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    help="Reinforcement learning for language models. Begin with: groupwise train quickstart",
    pretty_exceptions_enable=False,
)


def command(group: str, name: str | None = None) -> Callable[[Any], Any]:
    """Register a command under the heading of a group in `groupwise --help`."""
    return app.command(name, rich_help_panel=group)


def _show_version(wanted: bool) -> None:
    if wanted:
        Terminal().print(f"groupwise {VERSION}")
        raise typer.Exit


@app.callback()
def groupwise(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Reinforcement learning for language models. Begin with: groupwise train quickstart"""


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the recipe, such as steps=20; can be repeated."),
]
AlgorithmKeys = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the algorithm, such as kl.beta=0; can be repeated."),
]
PartFields = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the part; can be repeated."),
]
RecipeName = Annotated[str, typer.Argument(help="Name (groupwise recipes lists them) or path of a recipe.")]
RunFolder = Annotated[Path, typer.Argument(parser=location, help="Run folder, such as runs/quickstart.")]


def assigned(settings: list[str] | None) -> dict[str, object]:
    """Read what --set gives: a value for each dotted key."""
    from groupwise.config.recipe_files import assignment

    return dict(map(assignment, settings or []))


def settled(recipe: str, settings: list[str] | None) -> dict[str, object]:
    """Read what --set gives, and refuse a key that does not exist before torch is imported, which takes seconds."""
    from groupwise.config.answers import require_known_keys

    chosen = assigned(settings)
    require_known_keys(recipe, chosen)
    return chosen
