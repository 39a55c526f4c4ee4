"""Commands that look at runs and use what they trained."""

from pathlib import Path
from typing import Annotated

import typer

from groupwise.cli.app import RunFolder, Settings, assigned, command
from groupwise.core.files.paths import location
from groupwise.core.machine.terminal import Terminal


@command("Runs")
def watch(
    run: RunFolder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
) -> None:
    """Serve the live report of a run to this machine's browser until Ctrl-C.

    Example: groupwise watch runs/quickstart
    """
    from groupwise.reports.make import watched

    say = Terminal().print
    watched(run, port, lambda url: say(f"{url} shows {run} and stays fresh; Ctrl-C ends"))


@command("Runs")
def report(
    runs: Annotated[list[Path], typer.Argument(parser=location, help="A run folder, or several to compare.")],
    out: Annotated[
        Path | None,
        typer.Option(parser=location, help="File to write; default: RUN/report.html or comparison.html."),
    ] = None,
) -> None:
    """Write the report of a run as one offline page; of several runs, a comparison.

    Example: groupwise report runs/quickstart runs/quickstart-2
    """
    from groupwise.reports.make import make

    page = make(runs, out)
    Terminal().print(f"{page.path} ({page.size / 1e6:.1f} MB, {page.seconds:.1f} s)")


@command("Runs", "eval")
def evaluate(
    policies: Annotated[
        list[str],
        typer.Argument(metavar="POLICY...", help="A run, RUN:STEP, a model folder or a hub id; one or several."),
    ],
    recipe: Annotated[
        str | None, typer.Option(help="Recipe or run whose task is used; default: the first policy's own run.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint; default: the newest.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=location, help="New folder for results and completions; default: evaluations/NAME."),
    ] = None,
    set: Settings = None,
) -> None:
    """Evaluate policies on held-out problems: pass@k, avg@k; of several, their differences on the same problems.

    Example: groupwise eval runs/quickstart runs/quickstart:20
    """
    from groupwise.commands.evaluate import evaluate as evaluate_policies
    from groupwise.commands.evaluate import require_place_for, write_results

    require_place_for(out)
    results = evaluate_policies(*policies, recipe=recipe, overrides=assigned(set), step=step)
    say = Terminal().print
    say(str(results))
    say(f"results.json and completions.jsonl are in {write_results(results, out)}")


@command("Runs")
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(parser=location, help="New folder to write.")],
    step: Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint; default: the newest.")] = None,
    push: Annotated[
        str,
        typer.Option(metavar="OWNER/NAME", help="Send the folder to this repository of a hub; new ones are private."),
    ] = "",
) -> None:
    """Write a run's policy as a Hugging Face model folder with a model card, with adapters merged.

    Example: groupwise export runs/quickstart my-model
    """
    from groupwise.commands.export import export as export_policy

    done = export_policy(run, folder, step, Terminal(stderr=True).print, push=push)
    Terminal().print(f"{folder} holds the policy after step {done}: from_pretrained loads it")
