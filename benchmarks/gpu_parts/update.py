"""The learner: tokens a second of an update in bf16 over float32 masters, its share of the product, its memory."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any, Literal

import torch

import groupwise
from gpu_parts.measuring import Context, peak_gib, require_close, seconds, start_of_peak
from gpu_parts.sizes import Size
from groupwise.core.collate import collate
from groupwise.core.machine.free_memory import free_memory
from groupwise.core.records import Batch, Completion, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.planning.activations import without_memory
from groupwise.planning.memory import MemoryPlan, plan
from groupwise.planning.parts import planned_run
from groupwise.planning.run_shape import RunShape
from groupwise.training.learner import Learner, LearnerSettings
from operations import Sampled, by_phase

ALGORITHM = groupwise.algorithm("grpo", {"kl.beta": 0.0})
#: What an update holds of a plan's parts, without a reference and an engine beside it.
HELD = ("process", "weights", "moments", "gradients", "activations")
#: The distance of a gradient from the plain path's, as a share of that one's length: the same arithmetic in another
#: order, and bfloat16's.
EXACT, BF16 = 1e-3, 0.1
UPDATES = 2


def measure(context: Context) -> None:
    for size in context.amounts.trained:
        for rows, tokens in context.amounts.completions:
            key = {"model": size.name, "completions": rows, "tokens": tokens}
            context.measure(key, partial(updated, context, size, rows, tokens))
    size, (rows, tokens) = context.amounts.trained[0], context.amounts.completions[0]
    key = {"model": size.name, "completions": rows, "tokens": tokens, "beside": "its other ways"}
    context.measure(key, partial(other_ways, context, size, rows, tokens))


def updated(context: Context, size: Size, rows: int, tokens: int) -> dict[str, Any]:
    """Seconds of an update of `rows` completions of `tokens`, the median of a few after one that warms up."""
    amounts, device = context.amounts, context.device
    memory = planned(context, size, rows, tokens)
    learner = learner_of(size.model(device, torch.float32), memory)
    attention = attention_of(learner)
    differences = beside_plain(context, size, attention)
    minibatch = batch(size.numbers["vocab_size"], rows, amounts.group, amounts.prompt, tokens)
    learner.update(minibatch, ALGORITHM)
    start_of_peak(device)
    took = timed(device, learner, minibatch)
    sampled = Sampled(rows // amounts.group, amounts.prompt, rows, tokens)
    work = by_phase(size.configuration().to_dict(), sampled)["update"]
    ceiling = context.ceilings.get("bf16 product")
    return {
        "seconds": took,
        "tokens_per_second": rows * tokens / took,
        "share_of_product": None if ceiling is None else work / took / ceiling,
        "attention": attention,
        "tokens_per_microbatch": memory.cuts.learner,
        "peak_gib": peak_gib(device),
        "planned_gib": round(sum(memory.parts[part] for part in HELD) / 2**30, 3),
        **differences,
    }


def other_ways(context: Context, size: Size, rows: int, tokens: int) -> dict[str, Any]:
    """Seconds of an update as it is, with sums in the order in which they arrive, and with attention in blocks."""
    amounts, device = context.amounts, context.device
    learner = learner_of(size.model(device, torch.float32), planned(context, size, rows, tokens))
    minibatch = batch(size.numbers["vocab_size"], rows, amounts.group, amounts.prompt, tokens)
    found: dict[str, Any] = {"attention": attention_of(learner)}
    windows = learner.windows
    for name, deterministic, own in (
        ("seconds", True, windows),
        ("seconds_not_deterministic", False, windows),
        ("seconds_in_blocks", True, None),
    ):
        learner.deterministic, learner.windows = deterministic, own
        learner.update(minibatch, ALGORITHM)
        found[name] = timed(device, learner, minibatch)
    return found


def timed(device: str, learner: Learner, minibatch: Batch) -> float:
    """Seconds of an update, the median of a few."""
    return statistics.median(seconds(device, partial(learner.update, minibatch, ALGORITHM)) for _ in range(UPDATES))


def attention_of(learner: Learner) -> Literal["flex", "blocks"]:
    """How its lines attend."""
    return "blocks" if learner.windows is None else "flex"


def planned(context: Context, size: Size, rows: int, tokens: int) -> MemoryPlan:
    """The plan of an update alone: it says how many tokens go through the model at once."""
    amounts = context.amounts
    shape = RunShape(
        prompts=rows // amounts.group,
        samples=amounts.group,
        minibatches=1,
        prompt=amounts.prompt,
        completion=tokens,
        rows=rows,
        truncates=False,
        adjusts=False,
        engine=0,
        reference=0,
        reward_model=False,
    )
    model, free = without_memory(size.configuration()), free_memory(context.device)
    run = planned_run(model, shape, LearnerSettings(precision="bf16"), None, AdapterSettings(), context.device)
    return plan(run, 0, free)


def learner_of(model: Any, memory: MemoryPlan) -> Learner:
    cuts = memory.cuts
    settings = LearnerSettings(
        precision="bf16",
        learning_rate=1e-6,
        tokens_per_microbatch=cuts.learner,
        chunk_logits=cuts.chunk_logits,
        held_logits=cuts.held_logits,
    )
    return Learner(model, None, settings, temperature=1.0, total_updates=3 * (UPDATES + 1))


def batch(vocabulary: int, rows: int, group: int, prompt: int, tokens: int) -> Batch:
    """Groups of random ids with random scores, credited and weighted."""
    draw = torch.manual_seed(2)
    groups = []
    for _ in range(rows // group):
        asked, *answers = torch.randint(2, vocabulary, (group + 1, max(prompt, tokens)), generator=draw).tolist()
        scores = torch.rand(group, generator=draw).tolist()
        completions = [
            Completion.of_one_turn(tuple(answer[:tokens]), (0.0,) * tokens, "length", version=0, score=score)
            for answer, score in zip(answers, scores, strict=True)
        ]
        groups.append(Group(Prompt(Sample("", "", ""), tuple(asked[:prompt])), tuple(completions)))
    return ALGORITHM.weigh(ALGORITHM.credit(collate(groups, pad=0)))


def beside_plain(context: Context, size: Size, attention: Literal["flex", "blocks"]) -> dict[str, float]:
    """Distances of gradients of the model's first two layers, in the attention that is timed, from those of padded rows
    in float32.

    Raises NotEqual where one is too far.
    """
    amounts, model = context.amounts, size.model(context.device, torch.float32, layers=2)
    minibatch = batch(size.numbers["vocab_size"], 2 * amounts.group, amounts.group, amounts.prompt, 32)
    plain = gradient(model, minibatch, LearnerSettings(shared_prefixes=False))
    found = {}
    for name, settings, limit in (
        ("gradient_fp32", LearnerSettings(attention="blocks"), EXACT),
        ("gradient_bf16", LearnerSettings(precision="bf16", attention=attention), BF16),
    ):
        found[name] = float((gradient(model, minibatch, settings) - plain).norm() / plain.norm())
        require_close(name, found[name], limit)
    return found


def gradient(model: Any, minibatch: Batch, settings: LearnerSettings) -> torch.Tensor:
    """The gradient of every weight as one vector."""
    model.zero_grad(set_to_none=True)
    Learner(model, None, settings, temperature=1.0, total_updates=1).gradients(minibatch, ALGORITHM)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
