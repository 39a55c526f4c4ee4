"""The way of an update's weights to the engine: in the run's process, and to a process of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gpu_parts.measuring import Context, median_seconds
from gpu_parts.sizes import Size
from groupwise.core.engine import Request, Sampling
from groupwise.engines.make import make_engine
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import load_policy
from groupwise.training.learner import Learner, LearnerSettings

PLACES = ("inside", "child")
RUNS = 3


def measure(context: Context) -> None:
    for size in context.amounts.trained:
        for place in PLACES:
            key = {"model": size.name, "engine": place}
            context.measure(key, partial(loaded, context, size, place))


def loaded(context: Context, size: Size, place: Any) -> dict[str, Any]:
    """Seconds until an engine in bfloat16 has the weights of a learner in float32."""
    notes: list[str] = []  # why weights leave the card, if they do
    policy = load_policy(size.folder(context.models, context.device), device=context.device)
    learner = Learner(policy.model, None, LearnerSettings(precision="bf16"), temperature=1.0, total_updates=1)
    engine = make_engine(policy=policy, settings=EngineSettings(process=place, precision="bf16"), note=notes.append)
    try:
        took = median_seconds(context.device, lambda: engine.load_weights(learner.weights(), version=1), RUNS)
        before = greedy(engine)
        with torch.no_grad():
            for weight in policy.model.parameters():
                weight.mul_(0.5)
        engine.load_weights(learner.weights(), version=2)
        if greedy(engine) == before:
            raise RuntimeError("the engine answers as before with other weights")
    finally:
        engine.close()
    return {"seconds": took, "notes": notes, "gib": 2 * sum(p.numel() for p in policy.model.parameters()) / 2**30}


def greedy(engine: Any) -> tuple[float, ...]:
    """Log-probabilities of a few tokens, which depend on the weights."""
    ((completion,),) = engine.generate([Request((2, 3, 4), 1, 0)], Sampling(max_new_tokens=4))
    return completion.logp_engine
