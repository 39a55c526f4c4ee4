"""Memory of rank 0 until its learner is there, of a policy that stays in its files and of one that is read whole.

python benchmarks/rank_start.py [RANKS]

A random policy of 75 million weights, an engine in a child, on a processor. What the process grew by at most is its own
memory, mapped files among it; what it shares with the engine, the weights on their way there, is apart. Linux alone.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SIZES = {"layers": 8, "width": 768, "mlp_width": 3072, "heads": 12, "kv_heads": 12, "head_dim": 64}
WAYS = ("whole", "in files")
RUNS = {
    "no reference": {"algorithm.name": "grpo"},
    "reference and critic": {"algorithm.name": "ppo", "algorithm.kl.beta": 0.1},
}


def held() -> dict[str, float]:
    """MiB of this process: its own, files that it has mapped among them, and what it shares with another one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kinds = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith("Rss")}
    return {"own": kinds["RssAnon"] + kinds["RssFile"], "shared": kinds["RssShmem"]}


class Most:
    """The most that the process held of each kind while it is watched, above what it held before."""

    def __init__(self) -> None:
        self.before, self.grown, self._ended = held(), dict[str, float](), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            for kind, size in held().items():
                self.grown[kind] = max(self.grown.get(kind, 0.0), size - self.before[kind])

    def end(self) -> dict[str, float]:
        """Stop to watch -> what it grew by."""
        self._ended.set()
        self._thread.join()
        return self.grown


def run(way: str, name: str, ranks: int, folder: Path) -> None:
    """Build a run, train one small step, and print what rank 0 grew by until its learner was there."""
    import groupwise
    from groupwise.commands.build import build
    from groupwise.training.settings import RunSettings

    if way == "whole":
        setattr(RunSettings, "in_files", property(lambda _: frozenset()))  # noqa: B010  it has no setter
    base_policy, over_ranks, watching = build.base_policy, build.over_ranks, list[Most]()

    def watched(*given: Any) -> Any:
        watching.append(Most())
        return base_policy(*given)

    def until(*given: Any) -> Any:
        made = over_ranks(*given)
        grown = watching.pop().end()
        print(f"{way:10}{name:22}{grown['own']:8.0f}{grown['shared']:8.0f}", flush=True)
        return made

    build.base_policy, build.over_ranks = watched, until
    settings = {"model": str(folder / "model"), "runs": str(folder), "name": f"{way}-{name}".replace(" ", "-")}
    small = {"steps": 1, "warm_start.steps": 0, "prompts_per_step": 2, "samples_per_prompt": 2}
    small |= {"evaluation.samples": 1, "sampling.max_new_tokens": 4, "updates_per_batch": 1, "evaluation.problems": 1}
    over = {"learner.ranks": ranks, "engine.process": "child", "threads": 1, "journal.report": False}
    groupwise.train("quickstart", {**settings, **small, **over, **RUNS[name]}, quiet=True)


def main() -> None:
    ranks = sys.argv[1] if len(sys.argv) > 1 else "2"
    with TemporaryDirectory() as place:
        made = f"from groupwise.models.tiny import TinySpec; from pathlib import Path; TinySpec(**{SIZES}, "
        made += f"initializer_range=0.02, max_length=64).build('0123456789+-=', Path({place!r}) / 'model', 0)"
        subprocess.run([sys.executable, "-c", made], check=True)
        size = (Path(place) / "model/model.safetensors").stat().st_size / 2**20
        print(f"weights {size:.0f} MiB, {ranks} ranks; MiB that rank 0 grew by: own, and shared with the engine")
        for name in RUNS:
            for way in WAYS:
                subprocess.run([sys.executable, __file__, way, name, ranks, place], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in WAYS:
        run(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
