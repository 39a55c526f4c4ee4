"""The first example of every page runs, or a line here says how far it is tried, and why no further."""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from groupwise.cli.__main__ import main
from groupwise.config import recipe
from groupwise.config.recipe_files import assignment
from groupwise.config.rewards import read_reward_weights
from tests.docs.pages import PAGES, ROOT, Block, first_example

#: Page -> "check": its commands are read and its recipes checked, nothing trains; or "shown": what it names is there.
#: And why. A page that is not here is run.
NOT_RUN = {
    "README.md": ("shown", "it installs, and then trains for a minute"),
    "benchmarks_trl.md": ("shown", "it takes hours, and another environment"),
    "check.md": ("check", "the model's folder and the rows are the reader's"),
    "checks.md": ("shown", "the recipe and the run are the reader's"),
    "collapse.md": ("shown", "it takes hours"),
    "data.md": ("shown", "the rows are the reader's; tests/tasks/test_data_task.py has such rows"),
    "engines.md": ("check", "a child takes its time; tests/runs/test_child_run.py has such runs"),
    "evidence.md": ("shown", "it trains ten times"),
    "gae.md": ("shown", "tests/docs/test_docs.py runs every example of the page"),
    "gpu.md": ("check", "it says the same as other pages that run it; what differs needs a GPU"),
    "hostile_input.md": ("shown", "it takes a quarter of an hour"),
    "ladder.md": ("check", "it trains for hours"),
    "models.md": ("shown", "it takes a minute a model"),
    "own_loop.md": ("shown", "tests/docs/test_docs.py runs docs/howto/own_loop.py, which these lines are from"),
    "parity.md": ("shown", "its peers live in an environment of their own"),
    "performance.md": ("shown", "it takes minutes, and says how fast"),
    "python.md": ("shown", "tests/docs/test_python_page.py runs every block of the page"),
    "real_models.md": ("shown", "it fetches a model of 93 MB"),
    "precision.md": ("shown", "a warm start of no steps leaves a loss near 0 in bfloat16; test_guides.py trains it"),
    "judge.md": ("shown", "a reward model of few pairs is none; test_guides.py runs the judge"),
    "gpu_gsm8k.md": ("shown", "test_guides.py makes the rows first, and runs it"),
    "own_reward.md": ("shown", "test_guides.py makes the rows first, and runs it"),
    "real_model.md": ("shown", "it makes a model of 542 MB"),
    "recipe.md": ("shown", "test_docs.py makes the rows and the part first, and runs every command of the page"),
    "from_trl.md": ("shown", "tests/docs/test_from_trl.py runs it"),
    "sweep.md": ("shown", "tests/commands/test_sweep.py runs sweeps"),
    "runs.md": ("check", "the run is the reader's"),
    "scale.md": ("check", "a second process takes its time; tests/training/ranks has such runs"),
    "which.md": ("shown", "it takes hours; tests/benchmarks/test_stress.py has a board of planted rows"),
    "tools.md": ("shown", "it measures, with TRL in an environment of its own"),
}
#: What makes a run one of seconds, where a command does not say otherwise.
BRIEF = {
    "steps": "1", "prompts_per_step": "4", "samples_per_prompt": "2", "warm_start.steps": "0", "threads": "1",
    "evaluation.problems": "4", "evaluation.samples": "1", "journal.report": "false",
}  # fmt: skip
#: The pages of the claims are generated; tests/claims/test_command.py holds their commands.
GENERATED = ROOT / "docs" / "findings" / "claims"
WITH_EXAMPLE = {
    path: found for path in PAGES if path.parent != GENERATED and (found := first_example(path.read_text()))
}


def groupwise(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command, run in this process."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["groupwise", *words])
        with pytest.raises(SystemExit) as leaving:
            main()
    return int(leaving.value.code or 0)


def brief(command: str) -> list[str]:
    """The words of a command; a run is made one of seconds."""
    words = shlex.split(command, comments=True)[1:]
    if words[0] == "train":
        given = {word.partition("=")[0] for word in words}
        words += [part for key, value in BRIEF.items() if key not in given for part in ("--set", f"{key}={value}")]
    return words


def run(example: list[Block], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files of an example, then do what it does."""
    for block in example:
        if block.name:
            (folder / block.name).write_text(block.text)
    last = example[-1]
    if last.kind == "commands":
        ours = [command for command in last.commands if command.startswith("groupwise ")]
        assert ours, "only groupwise's own commands are run here"
        assert groupwise(brief(ours[0]), monkeypatch) == 0
    elif last.kind == "toml":
        read_rewards(recipe_of(last.text), folder)
    elif not last.name:
        if ">>> " in last.text:
            parsed = doctest.DocTestParser().get_doctest(last.text, {}, "example", None, 0)
            assert doctest.DocTestRunner().run(parsed).failed == 0
        else:
            exec(last.text, {"__name__": "__main__"})


def recipe_of(text: str) -> recipe.Recipe:
    """A recipe, or a part of one in a recipe that needs nothing else."""
    rest = {"name": "part", "steps": 1, "task": {"name": "arithmetic"}, "algorithm": {"name": "grpo"}}
    return recipe.parse({**rest, **tomllib.loads(text)}, "the page")


def read_rewards(page: recipe.Recipe, folder: Path) -> None:
    """Read the tables of rewards, which a recipe nests as they are; the reader's own functions are stood in for."""
    for table in (page.rewards or {}).values():
        file, _, name = str(table.get("use", "")).partition(".py:")
        if name:
            (folder / f"{file}.py").write_text(f"def {name}(sample, completion):\n    return 0.0\n")
    read_reward_weights(page.rewards, each=False)


def check(example: list[Block]) -> None:
    """Read the commands as `groupwise` reads them, keys and recipes included."""
    for command in example[-1].commands:
        words = shlex.split(command, comments=True)[1:]
        settings = dict(assignment(words[at + 1]) for at, word in enumerate(words) if word == "--set")
        if len(words) > 1 and words[0] in ("train", "check", "plan") and not words[1].startswith("--"):
            recipe.load(words[1], settings)


def shown(example: list[Block]) -> None:
    """What the commands name is in the repository."""
    for command in example[-1].commands:
        program, *words = shlex.split(command, comments=True)
        if program == "make":
            assert re.search(rf"^{words[0]}: ", (ROOT / "Makefile").read_text(), re.MULTILINE), command
        elif program == "python":
            assert (ROOT / words[0]).is_file(), command


@pytest.mark.parametrize("page", WITH_EXAMPLE, ids=lambda path: path.name)
def test_the_first_example_of_a_page_does_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = WITH_EXAMPLE[page]
    how, _ = NOT_RUN.get(page.name, ("run", ""))
    if how == "run":
        run(example, tmp_path, monkeypatch)
    elif how == "check":
        check(example)
    else:
        shown(example)


def test_every_reason_is_of_a_page_that_has_an_example() -> None:
    assert sorted(NOT_RUN.keys() - {page.name for page in WITH_EXAMPLE}) == []
    assert {how for how, _ in NOT_RUN.values()} == {"check", "shown"}


@pytest.mark.parametrize(
    "page",
    [
        "# A\n\n    groupwise check quickstart --no-modell\n",
        "# A\n\n    groupwise train quickstart --set step=1\n",
        "```python\n# mine.py\nx = 1\n```\n\n```toml\n# mine.toml\nsteps = 1\n```\n\n    groupwise check mine.toml\n",
        "# A\n\n    [sampling]\n    temprature = 1.0\n",
        '# A\n\n    [rewards.mine]\n    usee = "mine.py:exact"\n',
        "```python\nimport groupwise.nothing\n```\n",
    ],
    ids=["option", "key", "recipe", "section", "reward", "code"],
)
def test_a_wrong_example_is_seen(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=r"."):
        run(first_example(page), tmp_path, monkeypatch)
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
