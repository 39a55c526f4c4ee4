"""Tokens per second of the local engine against `model.generate`: python benchmarks/engine.py

Random weights; 256 completions; end ids off, so that both sides sample exactly the requested lengths. Two cases: all
lengths equal, and lengths whose mean is a quarter of the longest. `generate` gets one call with every row, no padding
in the prompts, sdpa attention (the faster of its two on a CPU here), and a stopping criterion that ends each row at its
own length, so that it may stop when the longest row has. Only requested tokens are counted. The two sides take turns; a
ratio is the median over pairs of neighbouring runs, so that what else the machine does in a while falls on both.

`python benchmarks/engine.py experts` makes the table of a mixture of experts instead: the engine against itself without
a recorded step, with routes asked for, against its dense twin (as many parameters at work for a token), and against
`generate`, at equal lengths, all in turns; in brackets, how many times as fast the first column is.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor
from transformers import (
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
)

from groupwise.core.engine import Request, Sampling
from groupwise.engines.local.engine import LocalEngine

PROMPT = 16
ROWS = 256


@dataclass(frozen=True)
class Case:
    """One line of the table: `prompts` distinct prompts, ROWS completions of them, and each one's length."""

    model: str
    prompts: int
    kind: str
    lengths: tuple[int, ...]
    runs: int = 15


class PerRow(StoppingCriteria):
    """Ends row i after lengths[i] new tokens."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.ends = torch.tensor(lengths) + PROMPT

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:
        return input_ids.shape[1] >= self.ends


def main() -> None:
    """Print the table asked for."""
    print(f"{platform.machine()}, {torch.get_num_threads()} threads; Python {platform.python_version()}, ", end="")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}; prompts of {PROMPT} tokens")
    print(f"command: python {' '.join(sys.argv)}")
    if sys.argv[1:] == ["experts"]:
        experts_table()
    else:
        dense_table()


def dense_table() -> None:
    """The engine against `generate`, dense models."""
    models = {
        "2 layers, width 64, vocabulary 20": build(layers=2, width=64, heads=4, vocabulary=20, mlp=192),
        "4 layers, width 256, vocabulary 4096": build(layers=4, width=256, heads=8, vocabulary=4096, mlp=768),
    }
    tiny, larger = models
    cases = [
        Case(tiny, 32, "equal", (48,) * ROWS),
        Case(tiny, 256, "equal", (48,) * ROWS),
        Case(tiny, 32, "mean = longest/4", skewed(192), runs=5),
        Case(tiny, 256, "mean = longest/4", skewed(192), runs=5),
        Case(larger, 32, "equal", (48,) * ROWS, runs=5),
        Case(larger, 32, "mean = longest/4", skewed(48), runs=5),
    ]
    print("| model | rows | lengths | ours, tok/s | generate, tok/s | ratio (quartiles) |\n|---|---|---|---|---|---|")
    for case in cases:
        ours, theirs, ratios = compare(models[case.model], case)
        low, middle, high = statistics.quantiles(ratios, n=4)
        mean, longest = statistics.mean(case.lengths), max(case.lengths)
        rows = f"{case.prompts} prompts x {ROWS // case.prompts}"
        lengths = f"{case.kind} (mean {mean:.0f}, longest {longest})"
        found = f"{ours:,.0f} | {theirs:,.0f} | {middle:.2f} ({low:.2f} to {high:.2f})"
        print(f"| {case.model} | {rows} | {lengths} | {found} |", flush=True)


def experts_table(runs: int = 7) -> None:
    """A mixture of experts, groups of eight: tokens per second of each side, and what the engine is of each."""
    dense, mixture = build(layers=4, width=64, heads=4, vocabulary=20, mlp=128), build_mixture()
    print("| rows | ours, tok/s | and routes | plain forward | dense twin | generate |")
    print("|---|---|---|---|---|---|")
    for rows in (8, 64, 256):
        lengths = (48,) * rows
        prompts = torch.randint(1, 20, (rows // 8, PROMPT), generator=torch.manual_seed(1))
        sides = [
            engine_side(mixture, prompts, lengths),
            engine_side(mixture, prompts, lengths, routes=True),
            unrecorded(engine_side(mixture, prompts, lengths)),
            engine_side(dense, prompts, lengths),
            generate_side(mixture, prompts, lengths),
        ]
        seconds = [[timed(side) for side in sides] for _ in range(runs + 1)][1:]  # the first round warms up
        speeds = [sum(lengths) / statistics.median(each) for each in zip(*seconds, strict=True)]
        ratios = [statistics.median(one[i] / one[0] for one in seconds) for i in range(len(sides))]
        told = [f"{speed:,.0f} ({ratio:.2f})" for speed, ratio in zip(speeds, ratios, strict=True)]
        print(f"| {rows} | {speeds[0]:,.0f} | {' | '.join(told[1:])} |", flush=True)


def unrecorded(call: Callable[[], object]) -> Callable[[], object]:
    """The same call, once run where nothing can be recorded, so that every later step is the plain forward."""
    with mock.patch("torch._C._create_graph_by_tracing", side_effect=RuntimeError):
        call()
    return call


def compare(model: Any, case: Case) -> tuple[float, float, list[float]]:
    """Tokens per second, ours and generate's (medians), and the ratio of each pair of neighbouring runs."""
    prompts = torch.randint(1, model.config.vocab_size, (case.prompts, PROMPT), generator=torch.manual_seed(1))
    ours, theirs = engine_side(model, prompts, case.lengths), generate_side(model, prompts, case.lengths)
    pairs = [(timed(ours), timed(theirs)) for _ in range(case.runs + 1)][1:]  # the first pair warms up
    tokens, ratios = sum(case.lengths), [b / a for a, b in pairs]
    return tokens / statistics.median(a for a, _ in pairs), tokens / statistics.median(b for _, b in pairs), ratios


def engine_side(model: Any, prompts: Tensor, lengths: tuple[int, ...], routes: bool = False) -> Callable[[], object]:
    """The engine's call. Completions of one prompt may differ in length: then each is a request with its own limit."""
    engine = LocalEngine(model, frozenset(), pad=0, routes=routes)
    samples = len(lengths) // len(prompts)
    rows = [tuple(p) for p in prompts.tolist()]
    if len(set(lengths)) == 1:
        requests = [Request(row, samples, seed, lengths[0]) for seed, row in enumerate(rows)]
    else:
        requests = [Request(rows[i // samples], 1, i, length) for i, length in enumerate(lengths)]

    def call() -> None:
        done = engine.generate(requests, Sampling())
        assert [len(c.tokens) for group in done for c in group] == list(lengths)

    return call


def generate_side(model: Any, prompts: Tensor, lengths: tuple[int, ...]) -> Callable[[], object]:
    """The call of `model.generate`."""
    ids = prompts.repeat_interleave(len(lengths) // len(prompts), 0)
    stop = StoppingCriteriaList([PerRow(lengths)])

    def call() -> None:
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(lengths),
            stopping_criteria=stop,
            use_cache=True,
            pad_token_id=0,
        )
        assert out.shape[1] == PROMPT + max(lengths)

    return call


def skewed(longest: int) -> tuple[int, ...]:
    """ROWS lengths, exponential-like, of mean longest/4, in mixed order."""
    quantiles = (torch.arange(ROWS, dtype=torch.float64) + 0.5) / ROWS
    # Cut at `longest`, an exponential of mean longest/4 loses 2%; 0.2552 puts the mean back.
    lengths = (-torch.log1p(-quantiles) * 0.2552 * longest).round().clamp(1, longest).long()
    lengths[-1] = longest
    return tuple(lengths[torch.randperm(ROWS, generator=torch.manual_seed(2))].tolist())


def build(layers: int, width: int, heads: int, vocabulary: int, mlp: int) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights, half as many key-value heads as heads, and no end id."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=width // heads,
        intermediate_size=mlp,
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def build_mixture() -> Qwen3MoeForCausalLM:
    """A Qwen3-MoE of 4 layers, width 64, with 8 experts of width 64, two of them for a token."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=20,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        initializer_range=0.1,
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3MoeForCausalLM(config).eval()


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
