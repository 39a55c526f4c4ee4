"""Seatings of slots; run as a program, how far the kernels lie from plain torch on them, as JSON."""

from __future__ import annotations

import json

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from groupwise.core.engine import Request, Sampling
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.local.slots.attention import Seating, attend_plainly
from tests.engines.local.made import EOS, SIZES

#: slots, key-value heads, query heads of each, size, columns, places, seats of each, columns of prompts
SEATINGS = [
    (4, 2, 2, 16, 64, 2, 4, 16),
    (8, 1, 7, 64, 128, 4, 4, 128),
    (20, 1, 7, 16, 64, 2, 32, 16),
    (5, 1, 1, 32, 640, 1, 8, 200),
    (9, 1, 80, 16, 64, 4, 4, 64),
]


def seated(sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Seating]:
    """Queries and a seating, some of whose seats are empty; memory has more slots and columns than are looked at."""
    slots, heads, shared, size, columns, places, seats, prompt = sizes
    numbers = torch.Generator().manual_seed(sum(sizes))

    def memory(rows: int, width: int) -> list[Tensor]:
        shape = (rows + 2, heads, width + 5, size)
        return [torch.randn(shape, generator=numbers).to(dtype)[:rows, :, :width] for _ in range(4)]

    table, seat = torch.full((places, seats), -1), torch.randperm(places * seats, generator=numbers)[:slots]
    table.view(-1)[seat] = torch.arange(slots)
    column, length = (torch.randint(most, (n,), generator=numbers) for most, n in ((columns, slots), (prompt, places)))
    seating = Seating(column, length + 1, table, seat, memory(slots, columns), memory(places, prompt), attend_plainly)
    return torch.randn(slots, heads * shared, size, generator=numbers).to(dtype), seating


def differences() -> dict[str, float]:
    """The largest difference of each case, and of the log-probabilities of a model that is sampled by the kernels."""
    from groupwise.engines.local.slots.kernel import attend_by_kernels

    off: dict[str, float] = {}
    for sizes in SEATINGS:
        for dtype in (torch.float32, torch.float16):
            query, seating = seated(sizes, dtype)
            for sinks in (None, torch.linspace(-2, 3, query.shape[1])):
                one, other = (attend(query, 1, seating, 0.3, sinks) for attend in (attend_plainly, attend_by_kernels))
                off[f"{sizes} {dtype} {sinks is not None}"] = float((one - other.float()).abs().max())
    torch.manual_seed(4)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, "hidden_size": 64})).eval()
    engines = [LocalEngine(model, EOS, 0, slots=slots) for slots in (False, True)]
    assert engines[1]._slots is not None
    engines[1]._slots.step._attend = attend_by_kernels
    asked = [Request(tuple(range(4, 6 + i)), 1 + i, seed=i) for i in range(3)]
    by_rows, by_kernels = (engine.generate(asked, Sampling(max_new_tokens=5)) for engine in engines)
    pairs = [pair for groups in zip(by_rows, by_kernels, strict=True) for pair in zip(*groups, strict=True)]
    assert all(one.tokens == other.tokens for one, other in pairs)
    logps = [torch.tensor([x for c in side for x in c.logp_engine]) for side in zip(*pairs, strict=True)]
    off["a model"] = float((logps[0] - logps[1]).abs().max())
    return off


if __name__ == "__main__":
    print(json.dumps(differences()))
