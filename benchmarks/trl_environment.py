"""An environment of TRL's documentation, unchanged, trains SmolLM2: python benchmarks/trl_environment.py [SEED]

`IncrementEnv` of tests/environments/trl_examples.py: its `reset` draws a target and asks for it, its method `increment`
is a tool, its `get_reward` compares. What is written here for it is a file of prompts, each with two problems worked
through before it: the model was trained on no tools, some of its own calls are right, and from these it learns.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import groupwise

ROOT = Path(__file__).parents[1]
#: Amounts whose calls stand before every problem.
WORKED = (9, 12)
REQUEST = "Do it with the tool. "


def worked(amount: int) -> list[dict[str, str]]:
    """An episode that is right, as messages."""
    call = f'<tool_call>{{"name": "increment", "arguments": {{"step": {amount}}}}}</tool_call>'
    return [
        {"role": "user", "content": f"{REQUEST}Increment the counter by {amount}."},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": str(amount)},
        {"role": "assistant", "content": "Done."},
    ]


def write_problems(path: Path, numbers: Sequence[int]) -> None:
    """A line for each problem; the environment writes its target behind the request."""
    before = [message for amount in WORKED for message in worked(amount)]
    rows = [{"prompt": [*before, {"role": "user", "content": REQUEST}], "number": number} for number in numbers]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def recipe(folder: Path, seed: int) -> dict[str, Any]:
    """The recipe of the calculator, with this environment's problems."""
    numbers = random.Random(0).sample(range(10_000), 288)
    write_problems(folder / "train.jsonl", numbers[:256])
    write_problems(folder / "heldout.jsonl", numbers[256:])
    whole = tomllib.loads((ROOT / "recipes" / "calculator.toml").read_text(encoding="utf-8"))
    task = {
        "name": "environment",
        "use": f"{ROOT / 'tests' / 'environments' / 'trl_examples.py'}:IncrementEnv",
        "path": str(folder / "train.jsonl"),
        "heldout": str(folder / "heldout.jsonl"),
        "answer": "",
        "check": "none",
        "max_turns": 4,
    }
    return {**whole, "name": f"increment-{seed}", "seed": seed, "task": task}


def main(seed: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        run = groupwise.train(recipe(Path(place), seed))
    print(f"seed {seed}: {run.summary['heldout_before']:.3f} -> {run.summary['heldout_after']:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
