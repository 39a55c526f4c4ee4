"""What an engine in another process costs: python benchmarks/outside.py [--ray] [FOLDER OF A MODEL]...

The quickstart's tiny policy, random, and each model that is named; an engine inside, one in a child, and one at an
address, whose server listens on this machine. All get the same requests: 8 prompts of 16 tokens, 8 completions each of
at most 32. They take turns; medians of ROUNDS, in milliseconds. The completions are compared to the bit. A start is a
process, its libraries, the model, and the first answer. With --ray there is one more, in an actor of a Ray that is
started for it; what that start takes is said first.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from groupwise.actors.place import RayPlace
from groupwise.core.engine import Engine, Request, Sampling
from groupwise.core.machine.terminal import Terminal
from groupwise.core.processes.network import Address
from groupwise.core.processes.place import HERE, LOCAL, Place, PlacementSettings, Role
from groupwise.engines.make import make_engine
from groupwise.engines.outside.serving import EngineServer
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


def compare(name: str, policy: Policy, server: EngineServer, ray: Place | None) -> list[str]:
    """The rows of one policy."""
    asked = requests(policy)
    child = EngineSettings(process="child")
    places: dict[str, tuple[EngineSettings, Place]] = {"child": (child, HERE)}
    places["address"] = EngineSettings(address=str(server.address)), HERE
    if ray is not None:
        places["actor"] = child, ray
    engines: dict[str, Engine] = {"inside": make_engine(policy=policy, settings=EngineSettings())}
    expected = bits(engines["inside"], asked)
    starts = []
    for place, (settings, where) in places.items():
        began = time.perf_counter()
        engines[place] = make_engine(policy=policy, settings=settings, place=where)
        same = "the same bits" if bits(engines[place], asked) == expected else "OTHER BITS"
        starts.append(f"{1000 * (time.perf_counter() - began):,.0f}, {same}")
    times: dict[tuple[str, str], list[float]] = {}
    weights = list(policy.model.named_parameters())
    for version in range(1, ROUNDS + 1):
        for place, engine in engines.items():
            load = milliseconds(lambda: engine.load_weights(weights, version))  # noqa: B023
            times.setdefault(("load_weights", place), []).append(load)
            generate = milliseconds(lambda: engine.generate(asked, SAMPLING))  # noqa: B023
            times.setdefault(("generate", place), []).append(generate)
    for engine in engines.values():
        engine.close()
    rows = [
        f"| {name} | {what} | {' | '.join(f'{statistics.median(times[what, place]):,.1f}' for place in engines)} |"
        for what in ("load_weights", "generate")
    ]
    return [*rows, f"| {name} | start, once | | {' | '.join(starts)} |"]


def own_ray(say: Callable[[str], None]) -> RayPlace:
    began = time.perf_counter()
    place = RayPlace(PlacementSettings(ray=LOCAL, engine_cpus=0.1), {Role.ENGINE: 1}, say)
    say(f"a Ray of its own has started after {time.perf_counter() - began:.1f} s")
    return place


def main() -> None:
    say = Terminal().print
    folders = [word for word in sys.argv[1:] if word != "--ray"]
    ray = own_ray(say) if "--ray" in sys.argv else None
    server = EngineServer(Address.of("0"), None, "cpu", torch.get_num_threads(), lambda line: None)
    threading.Thread(target=server.serve).start()
    with closing(server), closing(ray or HERE), tempfile.TemporaryDirectory() as place:
        tiny = Path(place) / "tiny"
        TinySpec().build("0123456789+-=", tiny, seed=0)
        say(f"| model | call | inside, ms | in a child, ms | at an address, ms |{' in an actor, ms |' if ray else ''}")
        say(f"|---|---|---|---|---|{'---|' if ray else ''}")
        for folder in (tiny, *map(Path, folders)):
            for row in compare(folder.name, load_policy(folder), server, ray):
                say(row)


if __name__ == "__main__":
    main()
