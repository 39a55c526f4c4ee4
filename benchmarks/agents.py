"""Agents of other libraries, unchanged, each trained for a few steps: docs/evidence/agents.jsonl.

    python benchmarks/agents.py docs/evidence/agents.jsonl                        # those that have no row yet
    python benchmarks/agents.py docs/evidence/agents.jsonl --only openai,curl --steps 2

Agents on openai, anthropic and LangGraph have two tools, and train SmolLM2; a game of textarena too, and Claude Code
and Codex as npm installs them, if they are on PATH (npm install @anthropic-ai/claude-code @openai/codex). A taskset of
verifiers, an environment of OpenEnv behind its own server and the shell train a random policy of bytes. two-questions
is its recipe as it is, over three seeds; from its start a guess scores 0.5, and two-questions-unlearned begins below
that, after a warm start of 4 steps. A row has the mean score of held-out problems before and after, the checks of all
steps, requests a session and faults. What lacks an interpreter or the model is left out with a line that says so.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from groupwise.commands.train.apart import train_apart
from groupwise.core.files import jsonl
from groupwise.journal.journal import read_metrics

OWN = Path(__file__).parent / "agents"
#: Where the environment of OpenEnv is served.
PORT = 8765
#: Calls that stand before every question.
WORKED = (("times", "multiply", 31, 12, 372), ("plus", "add", 702, 45, 747))
#: What NLTK's list of words has here: textarena asks for that list, which no package index has.
WORDS = ("cat", "dog", "sun", "hat", "pen", "cup", "box", "key", "map", "bus", "car", "fox", "jar", "leg", "net", "owl")
SHORT: dict[str, Any] = {
    "warm_start.steps": 0, "prompts_per_step": 2, "samples_per_prompt": 4, "evaluation.problems": 4,
    "evaluation.samples": 1, "checkpoint.every": 1, "checkpoint.keep": 1, "journal.report": False, "sampling.stop": [],
}  # fmt: skip
SMOL: dict[str, Any] = {
    "learner.learning_rate": 2e-5, "learner.tokens_per_microbatch": 1024, "adapter.rank": 16,
    "adapter.rate_factor": 20.0, "sampling.max_new_tokens": 700,
}  # fmt: skip
BYTES: dict[str, Any] = {"model": "tiny-chat", "sampling.max_new_tokens": 120}


class Case(NamedTuple):
    """An agent: what it lays over the recipe two-questions, its steps, its seeds, and programs that must be on PATH."""

    changes: dict[str, Any]
    steps: int
    seeds: Sequence[int] = (0,)
    needs: Sequence[str] = ()


def cases(place: Path, model: Path, verifiers: str, langgraph: str) -> dict[str, Case]:
    """List the agents by name; `place` is a folder for their problems."""
    smol = {**SHORT, **SMOL, "model": str(model)}
    sums, lines = str(place / "sums.jsonl"), str(place / "lines.jsonl")
    tools = {"name": "agent", "path": sums, "messages": "messages", "turn_tokens": 48, "sessions": 4, "patience": 30.0}
    player = {"name": "verifiers", "python": verifiers, "sessions": 4, "heldout": 4, "patience": 30.0}
    letters = {**player, "problems": 16, "turn_tokens": 8, "env": {"taskset": {"id": str(OWN / "letters.py")}}}
    game = {"taskset": {"id": "textarena", "game": "Hangman-v0"}, "player": {"max_turns": 4}}
    hangman = {**player, "problems": 16, "turn_tokens": 24, "env": game}
    resets = [{"seed": seed} for seed in range(20)]
    asked = {"taskset": {"id": "openenv", "base_url": f"http://127.0.0.1:{PORT}", "resets": resets}}
    openenv = {**player, "problems": 16, "turn_tokens": 8, "env": asked}
    shell = {"name": "agent", "command": ["sh", str(OWN / "on_curl.sh")], "path": lines, "sessions": 4}

    programs = {**tools, "path": str(place / "small.jsonl"), "messages": "", "answer": "answer", "seconds": 900.0}

    def program(name: str, file: str) -> Case:
        task = {**programs, "command": [sys.executable, str(OWN / file)]}
        return Case({**smol, "sampling.max_new_tokens": 3000, "task": task}, 2, needs=(name,))

    def of(python: str, file: str) -> Case:
        return Case({**smol, "task": {**tools, "command": [python, str(OWN / file)]}}, 2)

    return {
        "verifiers": Case({**SHORT, **BYTES, "task": letters}, 10),
        "textarena": Case({**smol, "task": hangman}, 2),
        "openenv": Case({**SHORT, **BYTES, "sampling.max_new_tokens": 2000, "task": openenv}, 4),
        "openai": of(sys.executable, "on_openai.py"),
        "anthropic": of(sys.executable, "on_anthropic.py"),
        "langgraph": of(langgraph, "on_langgraph.py"),
        "claude-code": program("claude", "on_claude_code.py"),
        "codex": program("codex", "on_codex.py"),
        "curl": Case({**SHORT, **BYTES, "task": shell}, 10),
        "two-questions": Case({}, 20, (0, 1, 2)),
        "two-questions-unlearned": Case({"warm_start.steps": 4}, 20, (0, 1, 2)),
    }


@contextmanager
def environment(name: str, python: str) -> Iterator[None]:
    """Serve the environment of OpenEnv while its agent is trained."""
    if name != "openenv":
        yield
        return
    with subprocess.Popen([python, str(OWN / "openenv_letters.py"), str(PORT)]) as server:
        try:
            for _ in range(240):
                with suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=1.0):
                    break
                time.sleep(0.25)
            yield
        finally:
            server.terminate()


def write_problems(place: Path) -> None:
    """Write sums and products with a call worked through before each, lines to say, and the words of the game."""
    draw, rows = random.Random(0), list[dict[str, Any]]()
    for _ in range(80):
        word, a, b = draw.choice(("times", "plus")), draw.randint(13, 999), draw.randint(13, 999)
        question = {"role": "user", "content": f"What is {a} {word} {b}?"}
        rows.append({"messages": [*worked(), question], "answer": str(a * b if word == "times" else a + b)})
    place.mkdir(parents=True, exist_ok=True)
    (place / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [(draw.randint(2, 49), draw.randint(2, 49)) for _ in range(80)]
    small = [{"prompt": f"What is {a} plus {b}?", "answer": str(a + b)} for a, b in pairs]
    (place / "small.jsonl").write_text("".join(json.dumps(row) + "\n" for row in small))
    (place / "lines.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(100)))
    words = place / "nltk_data" / "corpora" / "words"
    words.mkdir(parents=True, exist_ok=True)
    for name in ("README", "en", "en-basic"):
        (words / name).write_text("\n".join(WORDS) + "\n")


def worked() -> list[dict[str, str]]:
    """Return the calls, their results and the answers that stand before a question."""
    shown = list[dict[str, str]]()
    for word, name, a, b, result in WORKED:
        call = f'<tool_call>{{"name": "{name}", "arguments": {{"a": {a}, "b": {b}}}}}</tool_call>'
        said = (f"What is {a} {word} {b}?", call, str(result), str(result))
        shown += [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, said, strict=True)]
    return shown


def tried(name: str, case: Case, seed: int, steps: int, runs: Path) -> dict[str, Any]:
    """Train an agent, or go on with it -> its row."""
    folder = runs / f"{name}-{seed}-{steps}"
    own = {"seed": seed, "steps": steps, "name": folder.name, "runs": str(runs)}
    train_apart("two-questions", {**case.changes, **own}, folder, threads=1)
    summary = json.loads((folder / "summary.json").read_text())
    rollouts = list(jsonl.rows(folder / "rollouts.jsonl"))
    before, after = (scores(folder, step) for step in (0, summary["steps"]))
    verdicts = [check["verdict"] for row in read_metrics(folder) for check in row.get("checks", {}).values()]
    return {
        "agent": name,
        "seed": seed,
        "steps": summary["steps"],
        "seconds": round(summary["seconds_total"], 1),
        "checks_held": verdicts.count("pass"),
        "checks_not": len(verdicts) - verdicts.count("pass") - verdicts.count("not measured"),
        "before": sum(before) / len(before),
        "after": sum(after) / len(after),
        "passed_before": sum(score >= 1 for score in before) / len(before),
        "passed_after": sum(score >= 1 for score in after) / len(after),
        "sessions": len(rollouts),
        "calls": sum(len(row["turns"]) for row in rollouts) / len(rollouts),
        "faults": sum(row["ended"] == "fault" for row in rollouts),
    }


def scores(run: Path, step: int) -> list[float]:
    """List the scores of what was held out, after a step; what has none counts as 0."""
    return [row["score"] or 0.0 for row in jsonl.rows(run / "heldout.jsonl") if row["step"] == step]


def main(
    file: Path,
    only: Annotated[str, typer.Option(help="Names, with a , between them.")] = "",
    steps: Annotated[int, typer.Option(help="Of each; 0: its own.")] = 0,
    model: Annotated[Path, typer.Option(help="Folder of SmolLM2.")] = Path("models/smollm2"),
    verifiers: Annotated[
        str, typer.Option(help="Interpreter with verifiers[ta,openenv].")
    ] = ".venv-verifiers/bin/python",
    langgraph: Annotated[str, typer.Option(help="... with langgraph.")] = ".venv-langgraph/bin/python",
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/agents"),
) -> None:
    """Append a row for each agent and seed that has none."""
    place = runs.absolute()
    write_problems(place)
    os.environ.setdefault("NLTK_DATA", str(place / "nltk_data"))  # where textarena looks for its words
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    chosen = cases(place, model.absolute(), str(Path(verifiers).absolute()), str(Path(langgraph).absolute()))
    if unknown := [name for name in only.split(",") if name and name not in chosen]:
        raise typer.BadParameter(f"{', '.join(unknown)}: not known; there are {', '.join(chosen)}")
    for name, case in chosen.items():
        needs = [case.changes.get("model", ""), case.changes.get("task", {}).get("python", "")]
        needs += case.changes.get("task", {}).get("command", ())[:1]
        missing = [each for each in needs if "/" in each and not Path(each).exists() and not shutil.which(each)]
        missing += [each for each in case.needs if not shutil.which(each)]
        if only and name not in only.split(","):
            continue
        if missing:
            print(f"{name}: left out, as there is no {missing[0]}")
        for seed in () if missing else case.seeds:
            wanted = (name, seed, steps or case.steps)
            rows = jsonl.rows(file) if file.exists() else ()
            if wanted in [(row["agent"], row["seed"], row["steps"]) for row in rows]:
                continue
            with environment(name, verifiers):
                row = {**tried(name, case, seed, steps or case.steps, place), "commit": commit.stdout.strip()}
            with file.open("a") as out:
                out.write(json.dumps({**row, "torch": torch.__version__}) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    typer.run(main)
