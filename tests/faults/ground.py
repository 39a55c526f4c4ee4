"""The ground: a box with everything sound that mutants are made of, and what the commands give on it undamaged."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

#: A run of a third of a second: the smallest policy, one step.
RECIPE: dict[str, Any] = {
    "seed": 1,
    "steps": 1,
    "model": "model",
    "prompts_per_step": 2,
    "samples_per_prompt": 16,
    "task": {"name": "arithmetic", "operands": [2, 2], "largest": 2, "heldout_share": 0.3},
    "algorithm": {"name": "grpo"},
    "sampling": {"max_new_tokens": 4},
    "learner": {"learning_rate": 0.1},
    "evaluation": {"problems": 3, "samples": 16, "every": 0},
    "checkpoint": {"every": 1, "keep": 3},
    "journal": {"report": False},
}
#: What the rows of data files say.
ROWS = [
    {"question": f"{a}+{b}=", "answer": str(a + b), "solution": f"so {a + b}", "level": a, "kind": "sum"}
    for a in range(4)
    for b in range(3)
]
DATA = {
    "name": "data",
    "path": "data.jsonl",
    "prompt": "question",
    "answer": "answer",
    "check": "exact",
    "heldout_share": 0.3,
}
#: Options of TRL, for `import`.
OPTIONS = "learning_rate: 1.0e-6\nnum_generations: 8\nbeta: 0.0\nmax_completion_length: 64\n"
#: Nothing of the product's: it must look the same after every command.
KEEP = {"keep/page.html": "<p>mine</p>", "keep/notes.txt": "mine\n", "keep/weights.bin": "mine"}
#: What a box holds for a kind of mutant.
NEEDS = {
    "recipe": ("model", "keep", "data.jsonl"),
    "line": ("recipe.toml", "model", "keep", "runs", "data.jsonl", "options.yaml"),
    "data": ("model", "keep"),
    "run": ("model", "keep", "runs"),
    **dict.fromkeys(("model", "tokenizer", "index"), ("recipe.toml", "model", "keep")),
    "parquet": ("model", "keep"),
    **dict.fromkeys(("answer", "frame"), ("recipe.toml", "model", "keep")),
}


@dataclass(frozen=True)
class Ground:
    """A box, and what the commands say of it.

    evaluations  what eval prints of a checkpoint, by its step; of the model alone, by 0
    policy       the bytes of the weights that runs/half ends with when it goes on
    """

    box: Path
    evaluations: dict[int, str]
    policy: bytes

    def copy(self, kind: str, to: Path) -> None:
        (to / "tmp").mkdir(parents=True)
        (to / "home").mkdir()
        for name in NEEDS[kind]:
            whole = self.box / name
            (shutil.copytree if whole.is_dir() else shutil.copy2)(whole, to / name, **_links(whole))

    def files(self, folder: str) -> dict[str, bytes]:
        root = self.box / folder
        return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def _links(whole: Path) -> dict[str, Any]:
    return {"symlinks": True} if whole.is_dir() else {}


def toml(table: dict[str, Any]) -> bytes:
    return tomli_w.dumps(table).encode()


def final_policy(run_folder: Path) -> bytes:
    return sorted(run_folder.glob("checkpoints/step-??????/policy/model.safetensors"))[-1].read_bytes()


def ground(box: Path) -> Ground:
    """Build it in this process, with every command: what is slow the first time is then done, and forks have it."""
    import pyarrow.parquet  # noqa: F401  imported alone: reading with it would start threads, which no fork has

    from groupwise.models.tiny import TinySpec

    box.mkdir(parents=True)
    spec = TinySpec(layers=1, width=8, mlp_width=16, heads=2, kv_heads=2, head_dim=4, max_length=64)
    spec.build("0123456789+-=", box / "model", seed=0)
    (box / "recipe.toml").write_bytes(toml(RECIPE))
    for name, content in KEEP.items():
        (box / name).parent.mkdir(exist_ok=True)
        (box / name).write_text(content)
    (box / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (box / "options.yaml").write_text(OPTIONS)
    with contextlib.chdir(box):
        _call("train", "recipe.toml", "--set", "name=done", "--set", "steps=3")
        shutil.copytree("runs/done", "runs/half")
        shutil.rmtree("runs/half/checkpoints/step-000003")
        Path("runs/half/summary.json").unlink()
        shutil.copytree("runs/half", "runs/older")
        shutil.rmtree("runs/older/checkpoints/step-000002")
        runs = ((3, "done"), (2, "half"), (1, "older"))
        evaluations = {step: without_place(_call("eval", f"runs/{run}")) for step, run in runs}
        evaluations[0] = without_place(_call("eval", "model", "--recipe", "recipe.toml"))
        _call("train", "--resume", "runs/older")
        policy = final_policy(box / "runs/older")
        _call("train", "recipe.toml", "--set", "algorithm.name=ppo", "--set", "name=ppo", "--set", "steps=1")
        _call("report", "runs/done", "--out", "page.html")
        _call("report", "runs/done", "runs/half", "--out", "page.html")
        _call("explain", "ppo", "--against", "grpo")
        _call("check", "recipe.toml")
        _call("chat", "runs/done", "-p", "1+1=")
        _call("runs")
        _call("import", "options.yaml")
        _call("init", "made")
        _call("export", "runs/done", "exported")
    for left in ("runs/older", "runs/ppo", "evaluations", "made", "exported"):
        shutil.rmtree(box / left)
    (box / "page.html").unlink()
    assert len(set(evaluations.values())) == len(evaluations), "evaluations that cannot be told apart"
    # Arrow's allocator has a thread of its own, and knows what a fork is.
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert [name.startswith("jemalloc") for name in threads[1:]] in ([], [True]), f"a fork has one of {threads}"
    return Ground(box, evaluations, policy)


def without_place(evaluation: str) -> str:
    """What eval prints, but for the folder that it says it wrote."""
    return re.sub(r"^results\.json and completions\.jsonl are in .*\n", "", evaluation, flags=re.M | re.S)


def _call(*words: str) -> str:
    from groupwise.cli.__main__ import app

    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = app(list(words), standalone_mode=False)
    assert not code, f"{words} fails on undamaged files"
    return out.getvalue()
