"""What a turn of an episode costs the local engine: python benchmarks/turns.py [FOLDER OF A MODEL]...

The quickstart's tiny policy, random, with 64 episodes, and each model that is named, with 4. Eight turns: a prompt of
64 tokens, then 16 sampled and 16 observed tokens a turn, no end ids. One side holds keys and values between the turns,
the other sends everything again. The sides take turns; seconds are the least of the rounds, for what else the machine
does only adds to them. The ids sampled are compared.
"""

from __future__ import annotations

import dataclasses
import platform
import sys
import tempfile
import time
from pathlib import Path

import torch

from groupwise.core.engine import Request, Sampling
from groupwise.core.machine.terminal import Terminal
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.load import Policy, load_policy
from groupwise.models.tiny import TinySpec

TURNS, PROMPT, SAMPLED, OBSERVED = 8, 64, 16, 16


def play(engine: LocalEngine, episodes: list[tuple[int, ...]], observed: tuple[int, ...], holds: bool) -> list[float]:
    """The seconds of each turn. The episodes get longer in place."""
    seconds = []
    for turn in range(TURNS):
        held = len(episodes[0]) - OBSERVED if turn and holds else 0
        requests = [
            Request(tokens, 1, seed, first=turn, hold=holds and turn < TURNS - 1, held=held)
            for seed, tokens in enumerate(episodes)
        ]
        began = time.perf_counter()
        groups = engine.generate(requests, Sampling(max_new_tokens=SAMPLED))
        seconds.append(time.perf_counter() - began)
        episodes[:] = [tokens + done.tokens + observed for tokens, (done,) in zip(episodes, groups, strict=True)]
    return seconds


def compare(name: str, policy: Policy, count: int, rounds: int) -> list[str]:
    """The rows of one policy: tokens and seconds of all turns and of the last, and how many times as fast."""
    size = policy.model.config.vocab_size
    noise = torch.Generator().manual_seed(0)
    prompts = [tuple(row) for row in torch.randint(size // 2, size, (count, PROMPT), generator=noise).tolist()]
    observed = tuple(torch.randint(size // 2, size, (OBSERVED,), generator=noise).tolist())
    engine = LocalEngine(policy.model, frozenset(), policy.pad)
    seconds: dict[bool, list[list[float]]] = {True: [], False: []}
    tokens, episodes = {}, {}
    for _ in range(rounds + 1):
        for holds in seconds:
            before, episodes[holds] = engine.tokens_run, list(prompts)
            seconds[holds].append(play(engine, episodes[holds], observed, holds))
            tokens[holds] = engine.tokens_run - before
    same = sum(one == other for one, other in zip(episodes[True], episodes[False], strict=True))
    # The first round warms up.
    least = {holds: (min(map(sum, all_[1:])), min(turns[-1] for turns in all_[1:])) for holds, all_ in seconds.items()}
    rows = []
    for holds, what in ((False, "sent again"), (True, "held")):
        (whole, last), (whole_again, last_again) = least[holds], least[False]
        times = f"{whole:.2f} ({whole_again / whole:.2f}) | {last:.3f} ({last_again / last:.2f})"
        rows.append(f"| {name} | {count} | {what} | {tokens[holds]:,} | {times} | {same} of {count} |")
    return rows


def main() -> None:
    say = Terminal().print
    with tempfile.TemporaryDirectory() as place:
        tiny = Path(place) / "tiny"
        longest = PROMPT + TURNS * (SAMPLED + OBSERVED)
        dataclasses.replace(TinySpec(), max_length=longest).build("0123456789+-=", tiny, seed=0)
        say(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
        say("| model | episodes | earlier turns | tokens run | seconds, all turns | the last turn | the same ids |")
        say("|---|---|---|---|---|---|---|")
        for folder, count, rounds in ((tiny, 64, 4), *((Path(name), 4, 1) for name in sys.argv[1:])):
            for row in compare(folder.name, load_policy(folder), count, rounds):
                say(row)


if __name__ == "__main__":
    main()
