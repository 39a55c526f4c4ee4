"""Decoding: tokens a second of the local engine, beside the time in which the memory could be read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from gpu_parts.measuring import Context, peak_gib, require_close, seconds, start_of_peak
from gpu_parts.sizes import Amounts, Size
from groupwise.core.engine import Request, Sampling
from groupwise.core.records import Completion
from groupwise.engines.local.engine import LocalEngine
from operations import layer_parameters

#: Log-probabilities of the engine may lie as far from the plain forward as this, nats, or as so many times what the
#: plain forward itself loses by its precision.
EXACT, OWN_ROUNDING = 1e-4, 4.0


def measure(context: Context) -> None:
    """Every size with its layers as they are; then, because compiling takes a while, some with compiled ones."""
    amounts = context.amounts
    for layers, sizes in (("as they are", amounts.sizes), ("compiled", amounts.compiled)):
        for size in sizes:
            wanted = [{"model": size.name, "rows": rows, "layers": layers} for rows in amounts.rows]
            if all(key in context.have for key in wanted):
                continue
            model = size.model(context.device, torch.bfloat16)
            for key in wanted:
                context.measure(key, partial(decoded, context, size, model, key["rows"], layers == "compiled"))


def decoded(context: Context, size: Size, model: Any, rows: int, compiled: bool) -> dict[str, Any]:
    """Tokens a second with `rows` completions side by side, in groups; compared with the plain forward before.

    In slots on a CPU too, which a GPU takes by itself.
    """
    amounts, begun = context.amounts, time.perf_counter()
    engine = LocalEngine(model, frozenset(), pad=0, max_rows=rows, slots=True, compiled=compiled)
    made = time.perf_counter() - begun
    difference, limit = beside_plain(model, engine, amounts)
    require_close("log-probabilities of the engine", difference, limit)
    # Of the whole length, so that every graph is recorded.
    first = seconds(
        context.device,
        partial(engine.generate, requests(rows, amounts, size), Sampling(max_new_tokens=amounts.new)),
    )
    start_of_peak(context.device)
    took = seconds(
        context.device,
        partial(engine.generate, requests(rows, amounts, size), Sampling(max_new_tokens=amounts.new)),
    )
    least = bytes_of_a_step(model.config, rows, amounts) / context.ceilings["copy"] if context.ceilings else None
    return {
        "tokens_per_second": rows * amounts.new / took,
        "ms_per_token": 1000 * took / amounts.new,
        "least_ms_per_token": None if least is None else 1000 * least,
        "share_of_bandwidth": None if least is None else least * amounts.new / took,
        "prompt": amounts.prompt,
        "new": amounts.new,
        "group": amounts.group,
        "how": engine.how,
        "seconds_made": made,
        "seconds_first": first,
        "difference": difference,
        "limit": limit,
        "peak_gib": peak_gib(context.device),
    }


def requests(rows: int, amounts: Amounts, size: Size) -> list[Request]:
    """Groups of prompts of random ids, `rows` completions together."""
    ids = torch.randint(
        2, size.numbers["vocab_size"], (rows // amounts.group, amounts.prompt), generator=torch.manual_seed(1)
    )
    return [Request(tuple(row), amounts.group, seed) for seed, row in enumerate(ids.tolist())]


@torch.no_grad()
def beside_plain(model: Any, engine: LocalEngine, amounts: Amounts) -> tuple[float, float]:
    """The largest difference of a few completions' log-probabilities from the model's own forward, and its limit."""
    asked = [Request(tuple(range(2, 2 + amounts.prompt)), 4, 0)]
    (group,) = engine.generate(asked, Sampling(max_new_tokens=16))
    prompt, own = asked[0].tokens, torch.tensor([c.logp_engine for c in group])
    plain = plain_logprobs(model, prompt, group)
    exact = plain_logprobs(model.float(), prompt, group)  # in place, and back: a copy would take as much again
    model.to(torch.bfloat16)
    rounding = float((plain - exact).abs().max())
    return float((own - plain).abs().max()), max(EXACT, OWN_ROUNDING * rounding)


def plain_logprobs(model: Any, prompt: Sequence[int], group: Sequence[Completion]) -> torch.Tensor:
    """[completions, tokens] nats by the model's own forward over whole rows."""
    ids = torch.tensor([[*prompt, *c.tokens] for c in group], device=model.device)
    logits = model(ids).logits[:, len(prompt) - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, ids[:, len(prompt) :, None])[..., 0].cpu()


def bytes_of_a_step(config: Any, rows: int, amounts: Amounts) -> float:
    """The fewest bytes that a step in the middle reads: each weight once, a group's prompt once, each row's own tokens.

    A tied embedding is the head, and read whole.
    """
    told: Mapping[str, Any] = config.to_dict()
    heads = told.get("head_dim") or told["hidden_size"] // told["num_attention_heads"]
    a_token = 2 * told["num_hidden_layers"] * told["num_key_value_heads"] * heads * 2
    keys_and_values = a_token * (rows // amounts.group * amounts.prompt + rows * amounts.new / 2)
    return 2 * weights_read(told) + keys_and_values


def weights_read(config: Mapping[str, Any]) -> int:
    """Numbers of the layers' matrices and of the head."""
    return layer_parameters(config) + config["hidden_size"] * config["vocab_size"]
