"""`groupwise plan` beside runs at two ranks on this machine: memory of each rank, and seconds of a step.

python benchmarks/scale_plan.py [--only WORDS] [FOLDER]

FOLDER is a real model's (groupwise model smollm2 FOLDER), which is measured too where it is given. Completions run to
their limit, and prompts have one length, so that the run is of the very shape that the plan takes it to be. Each run is
in a process of its own; only the standard library is imported here, so that a process begins small.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

RANKS = 2
#: What every run has: the seconds are the median of all steps but the first, of two the larger.
COMMON: dict[str, Any] = {
    "warm_start.steps": 0,
    "steps": 3,
    "evaluation.problems": 4,
    "evaluation.samples": 1,
    "evaluation.every": 0,
    "checkpoint.every": 1,
    "journal.report": False,
    "learner.ranks": RANKS,
    "learner.learning_rate": 1e-5,
    "threads": 1,
}
#: A reward that differs within a group. By the task's own every completion of a policy that knows nothing is as wrong,
#: and ppo's rows have no gradient then.
VARIED = "def varied(sample, completion):\n    return sum(map(ord, completion)) % 7 / 7\n"
#: The phases that a plan estimates and a run's metrics have.
PHASES = ("generate", "score", "annotate", "update", "load weights")


def fixed(tokens: int) -> dict[str, Any]:
    """Completions of that many tokens each."""
    return {"sampling.max_new_tokens": tokens, "sampling.min_new_tokens": tokens - 1}


def shapes(folder: Path, real: str | None) -> dict[str, dict[str, Any]]:
    """What is laid over quickstart, by a name."""
    short = {"task": {"name": "data", "path": str(folder / "short.jsonl")}}
    tiny = {**short, **fixed(32), "model": str(folder / "tiny"), "updates_per_batch": 2}
    middle = {**short, **fixed(32), "prompts_per_step": 16, "model": str(folder / "middle")}
    every = {
        "2 layers of 64, 64 x 8": {**tiny, "prompts_per_step": 64},
        "4 layers of 64, 8 experts": {
            **tiny,
            "model": str(folder / "experts"),
            "prompts_per_step": 64,
            "routing": {"replay": "engine", "load_balance": 0.01},
        },
        "8 layers of 512, 16 x 8": {**middle, "learner.tokens_per_microbatch": 1024},
        "8 layers of 512, ppo": {
            **middle,
            "learner.tokens_per_microbatch": 1024,
            "critic": {"tokens_per_microbatch": 1024},
            "algorithm": {"name": "ppo"},
            "passes_per_batch": 1,
            "rewards.varied": {"use": f"{folder / 'varied.py'}:varied"},
        },
        "8 layers of 512, reward model": {
            **middle,
            "learner.tokens_per_microbatch": 1024,
            "preference": {"model": str(folder / "reward")},
        },
        "8 layers of 512, adapters": {**middle, "learner.tokens_per_microbatch": 1024, "adapter.rank": 16},
    }
    if real:
        long = {"task": {"name": "data", "path": str(folder / "words.jsonl")}, "model": real, **fixed(32)}
        cuts = {"prompts_per_step": 8, "learner.tokens_per_microbatch": 1024, "updates_per_batch": 1}
        every["SmolLM2-135M, 8 x 8"] = {**long, **cuts}
        every["SmolLM2-135M, recompute"] = {**long, **cuts, "learner.recompute": True}
    return every


def make_models(folder: Path) -> None:
    """Tiny policies and one of 34 million weights, with a character a token, a reward model of it, and problems of one
    length.
    """
    from groupwise.models.load import load_policy, save_policy
    from groupwise.models.scalar_heads import reward_model_of
    from groupwise.models.tiny import MoeSpec, TinySpec

    letters = "".join(map(chr, range(32, 127)))
    TinySpec(initializer_range=0.02).build(letters, folder / "tiny", 0)
    MoeSpec(initializer_range=0.02).build(letters, folder / "experts", 0)
    sizes = {"layers": 8, "width": 512, "mlp_width": 2048, "heads": 8, "kv_heads": 8, "head_dim": 64}
    TinySpec(**sizes, initializer_range=0.02).build(letters, folder / "middle", 0)
    reward = reward_model_of(load_policy(folder / "middle"))
    save_policy(reward.model, reward.tokenizer, folder / "reward")
    (folder / "varied.py").write_text(VARIED)
    sums = [{"prompt": f"{i:03d}+{i + 1:03d}=", "answer": str(2 * i + 1)} for i in range(100, 300)]
    (folder / "short.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums))
    words = [{"prompt": f"What is {i} times {i % 9 + 1}?", "answer": str(i * (i % 9 + 1))} for i in range(10, 100)]
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in words))


def planned(settings: dict[str, Any]) -> None:
    """Print what the plan says."""
    from groupwise.commands.plan import scale_plan

    plan = scale_plan("quickstart", settings, RANKS, "cpu")
    print("RESULT", json.dumps({phase.name: phase.seconds for phase in plan.phases}))


def run(folder: str, settings: dict[str, Any]) -> None:
    """Train, and print what was planned of memory, and what was measured."""
    import groupwise
    from groupwise.commands.build import build
    from groupwise.commands.build.learner import MODULE

    plans, others = [], []

    def remembered(memory: Any, words: Any = build.in_words) -> str:
        plans.append(memory)
        return words(memory)

    def looked_at(record: Any) -> None:
        others[:] = [peak(pid) for pid in children(MODULE)]

    build.in_words = remembered
    done = groupwise.train("quickstart", {**settings, "runs": folder}, callbacks=[looked_at])
    memory, metrics = plans[0], done.metrics()
    follower = memory.follower
    own = {phase: memory.own_bytes(phase) for phase in memory.phases}
    result = {
        "rank 0": [max(own.values()), peak("self")],
        "rank 1": [max(follower.bytes_of(phase) for phase in follower.phases), max(others)],
        "phase": max(own, key=lambda phase: own[phase]),
        "phase of rank 1": follower.phase,
        "parts": memory.parts,
        "seconds": {name: column(metrics.get(f"seconds.{name}", [])) for name in PHASES},
    }
    print("RESULT", json.dumps(result))


def column(values: list[float | None]) -> float:
    """The median of all steps but the first."""
    known = sorted(value for value in values[2:] if value is not None)
    return known[len(known) // 2] if known else 0.0


def children(words: str) -> list[int]:
    """The processes of this one that have these words in their command line."""
    import os

    own = []
    for entry in Path("/proc").iterdir():
        try:
            mine = f"PPid:\t{os.getpid()}\n" in (entry / "status").read_text()
            own += [int(entry.name)] if mine and words in (entry / "cmdline").read_text() else []
        except (OSError, ValueError):
            continue
    return own


def peak(process: int | str) -> int:
    """The most that a process has held so far."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def result_of(*words: str) -> dict[str, Any] | None:
    """What a process of its own printed; None, with its words said, where it failed."""
    ended = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"failed: {ended.stderr[-3000:]}")
        return None
    return json.loads(lines[0].removeprefix("RESULT "))


def compare(name: str, plan: dict[str, float], seen: dict[str, Any]) -> None:
    """A shape's lines."""
    print(f"{name}", flush=True)
    for rank, phase in (("rank 0", "phase"), ("rank 1", "phase of rank 1")):
        own, measured = (size / 2**20 for size in seen[rank])
        off = f"{own / measured - 1:+.1%}; while {seen[phase]}"
        print(f"  {rank}   planned {own:,.0f} MiB, measured {measured:,.0f}, {off}")
    parts = {part: size / 2**20 for part, size in seen["parts"].items() if size >= 2**20}
    print("          " + ", ".join(f"{part} {size:.0f}" for part, size in parts.items()))
    rows = {phase: (plan.get(phase, 0.0), seen["seconds"][phase]) for phase in PHASES}
    rows["all of them"] = (sum(own for own, _ in rows.values()), sum(measured for _, measured in rows.values()))
    for phase, (own, measured) in rows.items():
        factor = f"{own / measured:.2f}" if measured else "-"
        print(f"  {phase:<14} planned {own:.3f} s, measured {measured:.3f}, factor {factor}", flush=True)


def main(real: str | None, only: str) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([sys.executable, __file__, "--models", place], check=True)
        for number, (name, settings) in enumerate(shapes(folder, real).items()):
            if only not in name:
                continue
            given = json.dumps({**COMMON, **settings, "name": f"measured-{number}"})
            plan, seen = result_of("--planned", given), result_of("--run", str(folder / "runs"), given)
            if plan and seen:
                compare(name, plan, seen)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], json.loads(sys.argv[3]))
    elif sys.argv[1:2] == ["--models"]:
        make_models(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["--planned"]:
        planned(json.loads(sys.argv[2]))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("folder", nargs="?")
        parser.add_argument("--only", default="")
        chosen = parser.parse_args()
        main(chosen.folder, chosen.only)
