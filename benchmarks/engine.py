"""Tokens per second of the local engine against `model.generate`: python benchmarks/engine.py

Random weights; 256 completions; end ids off, so that both sides sample exactly the requested lengths. Two cases: all
lengths equal, and lengths whose mean is a quarter of the longest. `generate` gets one call with every row, no padding
in the prompts, sdpa attention (the faster of its two on a CPU here), and a stopping criterion that ends each row at its
own length, so that it may stop when the longest row has. Only requested tokens are counted. The two sides take turns; a
ratio is the median over pairs of neighbouring runs, so that what else the machine does in a while falls on both.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM, StoppingCriteria, StoppingCriteriaList

from groupwise.engines.base import Request, Sampling
from groupwise.engines.local import LocalEngine

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
    """Print the table."""
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
    print(f"{platform.machine()}, {torch.get_num_threads()} threads; Python {platform.python_version()}, ", end="")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}; prompts of {PROMPT} tokens")
    print(f"command: python {' '.join(sys.argv)}")
    print("| model | rows | lengths | ours, tok/s | generate, tok/s | ratio (quartiles) |\n|---|---|---|---|---|---|")
    for case in cases:
        ours, theirs, ratios = compare(models[case.model], case)
        low, middle, high = statistics.quantiles(ratios, n=4)
        mean, longest = statistics.mean(case.lengths), max(case.lengths)
        rows = f"{case.prompts} prompts x {ROWS // case.prompts}"
        lengths = f"{case.kind} (mean {mean:.0f}, longest {longest})"
        found = f"{ours:,.0f} | {theirs:,.0f} | {middle:.2f} ({low:.2f} to {high:.2f})"
        print(f"| {case.model} | {rows} | {lengths} | {found} |", flush=True)


def compare(model: Any, case: Case) -> tuple[float, float, list[float]]:
    """Tokens per second, ours and generate's (medians), and the ratio of each pair of neighbouring runs."""
    prompts = torch.randint(1, model.config.vocab_size, (case.prompts, PROMPT), generator=torch.manual_seed(1))
    ours, theirs = engine_side(model, prompts, case.lengths), generate_side(model, prompts, case.lengths)
    pairs = [(timed(ours), timed(theirs)) for _ in range(case.runs + 1)][1:]  # the first pair warms up
    tokens, ratios = sum(case.lengths), [b / a for a, b in pairs]
    return tokens / statistics.median(a for a, _ in pairs), tokens / statistics.median(b for _, b in pairs), ratios


def engine_side(model: Any, prompts: Tensor, lengths: tuple[int, ...]) -> Callable[[], object]:
    """The engine's call. Completions of one prompt may differ in length: then each is a request with its own limit."""
    engine = LocalEngine(model, frozenset(), pad=0)
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


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
