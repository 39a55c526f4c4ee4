"""Commands that look at runs and use what they trained."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from groupwise.cli.app import RunFolder, Settings, assigned, command, settled
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import location
from groupwise.core.machine.terminal import Terminal


@command("Runs")
def runs(
    folder: Annotated[Path | None, typer.Argument(parser=location, help="Folder of runs; default: runs.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List runs, newest first: state, step, held-out result, algorithm, age.

    Example: groupwise runs
    """
    from groupwise.commands.runs import listing

    terminal = Terminal()
    terminal.print(listing(folder, json, terminal.console.width))


@command("Runs")
def watch(
    run: Annotated[
        Path | None, typer.Argument(parser=location, help="Run folder; default: list the runs in ./runs.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 0,
) -> None:
    """Serve the live report of a run, or a list of runs, to a browser on this machine until Ctrl-C.

    Example: groupwise watch runs/quickstart
    """
    from groupwise.reports.make import watched

    what = "the runs of ./runs" if run is None else str(run)
    say = Terminal().print
    watched(run, port, lambda url: say(f"{url} shows {what} and stays fresh; Ctrl-C ends"))


@command("Runs")
def report(
    runs: Annotated[list[Path], typer.Argument(parser=location, help="Run folder, or several to compare.")],
    out: Annotated[
        Path | None,
        typer.Option(parser=location, help="File to write; default: RUN/report.html or comparison.html."),
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Print the report of one run in the terminal; write no file.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the numbers of every chart as CSV.")] = False,
) -> None:
    """Write the report of a run, or a comparison of several, as one offline page.

    Example: groupwise report runs/quickstart runs/quickstart-2
    """
    from groupwise.reports import make

    terminal = Terminal()
    if text or csv:
        make.require_alone(runs, out, text, csv)
        for line in make.in_text(runs[0], terminal.console.width, terminal.console.encoding) if text else ():
            terminal.print(*line)
        if csv:
            typer.echo(make.as_csv(runs), nl=False)
        return
    page = make.make(runs, out)
    terminal.print(f"{page.path} ({page.size / 1e6:.1f} MB, {page.seconds:.1f} s)")


@command("Runs", "eval")
def evaluate(
    policies: Annotated[
        list[str],
        typer.Argument(metavar="POLICY...", help="Policies: run, RUN:STEP, model folder or hub id."),
    ],
    recipe: Annotated[
        str | None, typer.Option(help="Recipe or run that has the task; default: the first policy's run.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint; default: the newest.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=location, help="New folder for results and completions; default: evaluations/NAME."),
    ] = None,
    set: Settings = None,
) -> None:
    """Evaluate policies on the same held-out problems (pass@k, avg@k), and compare them.

    Example: groupwise eval runs/quickstart runs/quickstart-2
    """
    from groupwise.journal.run_policy import evaluated_run, is_run

    if recipe is None and step is None:
        evaluated_run(policies[0])
    chosen = assigned(set) if recipe is None or is_run(recipe) else settled(recipe, set)
    from groupwise.commands.evaluate import evaluate as evaluate_policies  # torch takes seconds to import
    from groupwise.commands.evaluate import require_place_for, write_results

    require_place_for(out)
    results = evaluate_policies(*policies, recipe=recipe, overrides=chosen, step=step)
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
        typer.Option(metavar="OWNER/NAME", help="Push the folder to this hub repository; a new one is private."),
    ] = "",
) -> None:
    """Export a run's policy as a Hugging Face model folder, with merged adapters and a model card.

    Example: groupwise export runs/quickstart my-model
    """
    from groupwise.journal.kept import whole_recipe

    whole_recipe(run)
    from groupwise.commands.export import export as export_policy  # torch takes seconds to import

    done = export_policy(run, folder, step, Terminal(stderr=True).print, push=push)
    Terminal().print(f"{folder} holds the policy after step {done}: from_pretrained loads it")


@command("Runs")
def chat(
    policy: Annotated[str, typer.Argument(help="Policy: run, RUN:STEP, model folder or hub id.")],
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Answer this prompt and exit.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1024, help="Number of answers per prompt.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="Sampling temperature; 0: likeliest token; default: the run's, or 1."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, max=2**24, help="Most tokens in an answer; default: the run's, or 256.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Seed of the answers; equal seeds give equal answers.")
    ] = 0,
) -> None:
    """Chat with a policy; with -p, answer one prompt; from a pipe, answer each line.

    Example: groupwise chat runs/quickstart -p "3+4=" -n 4
    """
    import sys

    piped = prompt is None and not sys.stdin.isatty()
    if count > 1 and prompt is None and not piped:
        raise UsageError(f"-n {count}: a conversation has one answer a turn; give a prompt with -p")
    if prompt is not None and not prompt.strip():
        raise UsageError("-p: the prompt is empty; write at least one character")
    from groupwise.commands import chat as run  # torch takes seconds to import

    options, note, show = run.ChatOptions(temperature, max_tokens, seed), Terminal(stderr=True).print, Terminal().write
    if prompt is not None:
        run.answer(policy, [prompt], count, options, show, note)
    elif piped:
        run.answer(policy, run.prompts_of(sys.stdin.buffer), count, options, show, note)
    else:
        with suppress(ImportError):
            import readline  # noqa: F401  # the arrow keys edit a line and go through those before
        run.talk(policy, options, input, show, note)
