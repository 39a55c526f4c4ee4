"""A run's planned memory against what it held at most, each shape in a process of its own; and a run that cannot fit.

python benchmarks/memory_plan.py [FOLDER]

FOLDER is a real model's (groupwise model smollm2 FOLDER), which is measured too where it is given. On a GPU what is
measured is the most that torch's allocator held, elsewhere the process. Only the standard library is imported here: a
process begins with the size of the one that it is started from.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

#: What every run has: two steps, so that the second update meets the moments of the first.
SHORT: dict[str, Any] = {
    "steps": 2,
    "evaluation.problems": 16,
    "evaluation.samples": 1,
    "journal.report": False,
}
UNTAUGHT = {"warm_start.steps": 0, "sampling.max_new_tokens": 32, "learner.learning_rate": 1e-5}


def shapes(folder: Path, real: str | None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Recipe and settings of each shape; models that are made lie in `folder`."""
    small = {"prompts_per_step": 16, "samples_per_prompt": 8, "updates_per_batch": 1, **UNTAUGHT}
    tiny = {"warm_start.steps": 0, "sampling.max_new_tokens": 32}
    every = {
        "2 layers of 64, 64 x 8": ("quickstart", {**tiny, "model": str(folder / "tiny")}),
        "4 layers, 8 experts, 64 x 8": ("quickstart-moe", {**tiny, "model": str(folder / "experts")}),
        "4 x 128, vocabulary 151,936": ("quickstart", {**small, "model": str(folder / "wide")}),
        "4 x 128, prompts 512, 16 each": (
            "quickstart",
            {**small, "model": str(folder / "long"), "task": {"name": "data", "path": str(folder / "long.jsonl")}}
            | {"prompts_per_step": 8, "samples_per_prompt": 16},
        ),
        "2 layers of 64, ppo, a critic": (
            "quickstart",
            {**tiny, "model": str(folder / "tiny"), "algorithm": {"name": "ppo"}, "passes_per_batch": 1},
        ),
    }
    if real:
        every["SmolLM2-135M, 64 x 32"] = ("quickstart", {**small, "model": real, "prompts_per_step": 8})
        every["SmolLM2-135M, recompute"] = (
            "quickstart",
            {**small, "model": real, "prompts_per_step": 8, "learner.recompute": True},
        )
    return every


def make_models(folder: Path) -> None:
    """Models with a character a token: one of a large vocabulary, one of many positions with its problems."""
    from groupwise.models.tiny import MoeSpec, TinySpec

    sizes: dict[str, Any] = {"layers": 4, "width": 128, "mlp_width": 512, "heads": 4, "kv_heads": 4, "head_dim": 32}
    # Ids are many, so that a random policy seldom draws the one that ends an answer: lengths are those of the plan.
    letters = "".join(map(chr, [*range(32, 127), *range(0x3400, 0xD000), *range(0x10000, 0x10000 + 151_936)]))
    TinySpec(**sizes, initializer_range=0.02).build(letters[: 151_936 - 2], folder / "wide", 0)
    TinySpec(**sizes, initializer_range=0.02, max_length=1024).build(letters[:4000], folder / "long", 0)
    TinySpec(initializer_range=0.02).build(letters[:4000], folder / "tiny", 0)
    MoeSpec(initializer_range=0.02).build(letters[:4000], folder / "experts", 0)
    rows = [{"prompt": f"{i:05d} ".ljust(511, "x") + "=", "answer": str(i)} for i in range(200)]
    (folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(folder: str, recipe: str, settings: dict[str, Any]) -> None:
    """Train, and print planned and measured bytes, the phase and its parts."""
    import torch

    import groupwise
    from groupwise.commands.build import build

    plans: list[Any] = []

    def remembered(memory: Any, words: Any = build.in_words) -> str:
        plans.append(memory)
        return words(memory)

    build.in_words = remembered
    groupwise.train(recipe, {**settings, "runs": folder})
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory, process = plans[0], int(status["VmHWM"].split()[0]) * 1024
    allocated = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
    parts = {part: memory.parts[part] for part in memory.phases[memory.phase]}
    seen = {"planned": memory.peak, "held": memory.held, "measured": allocated or process}
    print("RESULT", json.dumps({**seen, "phase": memory.phase, "parts": parts, "torch": torch.__version__}))


def refused(folder: Path) -> str:
    """What is said of a model of 70 billion parameters: its files are as large as theirs, and hold nothing."""
    from transformers import LlamaConfig

    from groupwise.models.tiny import TinySpec

    place = folder / "large"
    TinySpec().build("".join(map(chr, range(32, 127))), place, 0)
    LlamaConfig(
        vocab_size=128_256,
        hidden_size=8192,
        intermediate_size=28_672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        eos_token_id=1,
    ).save_pretrained(place)
    with (place / "model.safetensors").open("wb") as file:
        file.truncate(141 << 30)  # a hole: it takes no disk
    command = [sys.executable, "-m", "groupwise.cli", "train", "quickstart", "--set", f"model={place}"]
    command += ["--set", f"runs={folder / 'runs'}", "--set", "warm_start.steps=0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"exit {ended.returncode}: {' '.join(ended.stderr.split())}"


def in_a_process(folder: Path, recipe: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What `run` printed of a short run in a process of its own. Raises RuntimeError where it printed nothing."""
    command = [sys.executable, __file__, "--run", str(folder), recipe, json.dumps({**SHORT, **settings})]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(ended.stderr[-2000:])
    return json.loads(lines[0].removeprefix("RESULT "))


def main(real: str | None) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, __file__, "--models", name], check=True)
        print(f"{'shape':<32}{'planned':>9}{'measured':>10}{'off':>7}   MiB; phase, and what it holds")
        for number, (shape, (recipe, settings)) in enumerate(shapes(folder, real).items()):
            try:
                row = in_a_process(folder / "runs", recipe, {**settings, "name": f"measured-{number}"})
            except RuntimeError as error:
                print(f"{shape:<32} failed: {error}")
                continue
            planned, measured = (row[key] / 2**20 for key in ("planned", "measured"))
            parts = ", ".join(f"{part} {size / 2**20:.0f}" for part, size in row["parts"].items() if size >= 2**20)
            off = planned / measured - 1
            print(f"{shape:<32}{planned:>9.0f}{measured:>10.0f}{off:>+7.1%}   {row['phase']}: {parts}", flush=True)
        print("\na model of 70 billion parameters:", flush=True)
        subprocess.run([sys.executable, __file__, "--refused", name], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
    elif sys.argv[1:2] == ["--models"]:
        make_models(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["--refused"]:
        print(refused(Path(sys.argv[2])))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else None)
