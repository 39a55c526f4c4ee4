"""What an engine in a child costs: python benchmarks/child.py [FOLDER OF A MODEL]...

The quickstart's tiny policy, random, and each model that is named. Both engines get the same requests: 8 prompts of 16
tokens, 8 completions each of at most 32. They take turns; medians of ROUNDS, in milliseconds, and the ratio of the
medians. The completions are compared to the bit. A start is the child's: interpreter, libraries, model, first answer.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from groupwise.core.engine import Engine, Request, Sampling
from groupwise.core.terminal import Terminal
from groupwise.engines.make import make_engine
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy, load_policy
from groupwise.models.tiny import TinySpec

ROUNDS = 9
SAMPLING = Sampling(max_new_tokens=32)


def milliseconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def requests(policy: Policy) -> list[Request]:
    size = policy.model.config.vocab_size
    noise = torch.Generator().manual_seed(0)
    prompts = torch.randint(size // 2, size, (8, 16), generator=noise).tolist()
    return [Request(tuple(prompt), samples=8, seed=seed) for seed, prompt in enumerate(prompts)]


def bits(engine: Engine, asked: list[Request]) -> list[Any]:
    return [(c.tokens, c.logp_engine, c.finish) for group in engine.generate(asked, SAMPLING) for c in group]


def compare(name: str, policy: Policy) -> list[str]:
    """The rows of one policy."""
    asked = requests(policy)
    engines: dict[str, Engine] = {"inside": make_engine(policy=policy, settings=EngineSettings())}
    expected = bits(engines["inside"], asked)
    began = time.perf_counter()
    engines["child"] = make_engine(policy=policy, settings=EngineSettings(process="child"))
    same = "yes" if bits(engines["child"], asked) == expected else "NO"
    start = time.perf_counter() - began
    times: dict[tuple[str, str], list[float]] = {}
    weights = list(policy.model.named_parameters())
    for version in range(1, ROUNDS + 1):
        for process, engine in engines.items():
            load = milliseconds(lambda: engine.load_weights(weights, version))  # noqa: B023
            times.setdefault(("load_weights", process), []).append(load)
            generate = milliseconds(lambda: engine.generate(asked, SAMPLING))  # noqa: B023
            times.setdefault(("generate", process), []).append(generate)
    for engine in engines.values():
        engine.close()
    rows = []
    for what in ("load_weights", "generate"):
        inside, child = (statistics.median(times[what, process]) for process in ("inside", "child"))
        figures = (f"{inside:,.1f}", f"{child:,.1f}", f"{child - inside:+,.1f}", f"{child / inside:.2f}")
        rows.append(f"| {name} | {what} | {' | '.join(figures)} |")
    return [*rows, f"| {name} | start, once | | {1000 * start:,.0f} | | same bits: {same} |"]


def main() -> None:
    say = Terminal().print
    with tempfile.TemporaryDirectory() as place:
        tiny = Path(place) / "tiny"
        TinySpec().build("0123456789+-=", tiny, seed=0)
        say("| model | call | inside, ms | in a child, ms | more | ratio |")
        say("|---|---|---|---|---|---|")
        for folder in (tiny, *map(Path, sys.argv[1:])):
            for row in compare(folder.name, load_policy(folder)):
                say(row)


if __name__ == "__main__":
    main()
