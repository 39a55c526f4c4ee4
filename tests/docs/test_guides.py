"""Tutorials, how-tos and concepts: the first example of each page runs, and its tables are those of the code."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import runpy
import shlex
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import groupwise
from groupwise.cli.__main__ import main
from groupwise.config import recipe
from groupwise.config.recipe_files import assignment
from groupwise.config.usual import USUAL

DOCS = Path(__file__).parents[2] / "docs"
TRAINED = (
    "concepts/on_off_policy",
    "concepts/precision",
    "concepts/rl_in_15_minutes",
    "howto/compare_runs",
    "howto/install",
    "howto/stopped",
    "tutorials/quickstart",
)
RUN = (
    "concepts/glossary",
    "howto/choose_algorithm",
    "howto/choose_numbers",
    "howto/cost",
    "howto/out_of_memory",
    "tutorials/environment",
    "tutorials/gpu_gsm8k",
    "tutorials/own_reward",
)
#: Pages whose first example is not run here, with what is looked at in its place.
SHOWN = {
    "howto/judge": "rlhf trains a reward model first, tests/runs has it: its recipe is read, and the judge is run",
    "tutorials/real_model": "it needs a model of 542 MB: its target and its recipe are read",
}
FILE = re.compile(r"```(?:python|toml)\n# (\S+)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^    (?:\.venv/bin/)?groupwise (.+)$", re.MULTILINE)


def page(name: str) -> str:
    """Read a page."""
    return (DOCS / f"{name}.md").read_text()


def first_command(text: str) -> list[str]:
    """Split the first command of a page into words, a line that goes on included."""
    found = COMMAND.search(text.replace("\\\n", ""))
    assert found
    return shlex.split(found[1])


def sets(words: list[str]) -> dict[str, Any]:
    """Read what --set gives."""
    return dict(assignment(value) for word, value in pairwise(words) if word == "--set")


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Give a command in this process -> its exit code."""
    monkeypatch.setattr("sys.argv", ["groupwise", *words])
    with pytest.raises(SystemExit) as leaving:
        main()
    return int(leaving.value.code or 0)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the files of a page where commands are given, and run those that make data."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> None:
        for name, content in FILE.findall(text):
            (tmp_path / name).write_text(content)
            if name.startswith("make_"):
                runpy.run_path(str(tmp_path / name))

    return write


@pytest.mark.parametrize("name", TRAINED)
def test_the_first_example_trains(name: str, small: Callable[..., dict[str, Any]]) -> None:
    verb, what, *rest = first_command(page(name))
    assert verb == "train"
    theirs = {**sets(rest), "steps": 1}
    assert groupwise.train(what, {**small(evaluation__problems=2), **theirs}, quiet=True).summary["steps"] == 1


@pytest.mark.parametrize("name", RUN)
def test_the_first_example_runs(
    name: str, there: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there(page(name))
    assert run(first_command(page(name)), monkeypatch) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", ["tutorials/own_reward", "tutorials/environment"])
def test_the_recipe_of_a_tutorial_trains(
    name: str, there: Callable[[str], None], small: Callable[..., dict[str, Any]]
) -> None:
    there(page(name))
    (path,) = (file for file, _ in FILE.findall(page(name)) if file.endswith(".toml"))
    changes = {
        "steps": 1,
        "warm_start.steps": 2,
        "prompts_per_step": 2,
        "samples_per_prompt": 2,
        "evaluation.samples": 1,
    }
    assert groupwise.train(path, {"runs": small()["runs"], **changes}, quiet=True).summary["steps"] == 1


def test_each_page_is_run_or_has_a_reason() -> None:
    mine = {*TRAINED, *RUN, *SHOWN}
    assert all((DOCS / f"{name}.md").exists() for name in mine)
    tutorials = {f"tutorials/{path.stem}" for path in (DOCS / "tutorials").glob("*.md")}
    assert tutorials <= mine
    assert first_command(page("howto/judge")) == ["train", "rlhf"]
    assert recipe.load("rlhf", {}).preference
    assert "    make real\n" in page("tutorials/real_model")
    assert recipe.load("times-tables", {}).adapter.rank == 16


def test_the_table_of_usual_ranges_is_the_codes() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (\S+) to (\S+) \|", page("howto/choose_numbers"), re.MULTILINE)
    asked = {usual.key: (usual.low, usual.high) for usual in USUAL}
    found = {key: (float(low), float(high)) for key, low, high in rows if key in asked}
    assert len(found) == len(rows) > 10
    assert found == {key: asked[key] for key in found}
    assert asked.keys() - found.keys() == {"learner.beta1", "learner.beta2"}


@contextlib.contextmanager
def chat_server(words: str) -> Iterator[str]:
    """Serve an endpoint that answers every question alike -> its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"choices": [{"message": {"content": words}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("words", "score"), [("7", 0.7), (" 12\n", 1.0), ("good", None)])
def test_the_judge_scores_what_its_model_says(tmp_path: Path, words: str, score: float | None) -> None:
    ((_, text),) = (found for found in FILE.findall(page("howto/judge")) if found[0] == "my_judge.py")
    (tmp_path / "my_judge.py").write_text(text)
    spec = importlib.util.spec_from_file_location("my_judge", tmp_path / "my_judge.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    attempt = SimpleNamespace(sample=SimpleNamespace(prompt="2+2?"), completion="4")
    with chat_server(words) as url:
        judge = module.Judge(url=url)
        assert module.asyncio.run(judge([attempt, attempt])) == [score, score]
    assert module.asyncio.run(judge([attempt])) == [None]  # the server is gone
