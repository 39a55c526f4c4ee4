"""What ranks hold while a model goes into shards, its weights go to an engine, and a checkpoint comes back.

Run as `python -m tests.training.shard_acts RANK PORT FOLDER --size N`, one process a rank. Rank 0 alone has weights;
the others make their models of a description. tests/training/test_shards.py says what has to hold.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from groupwise.core.engine import WeightStream
from groupwise.core.errors import RunError
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.outside.shared_weights import SharedWeights
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.load import description, load_policy, model_like, save_policy
from groupwise.models.precision import cast_weights
from groupwise.models.scalar_heads import from_policy
from groupwise.models.shards import own_part, set_unsharded, unsharded
from groupwise.models.tiny import TinySpec
from groupwise.planning.activations import LiveBytes
from groupwise.training.critic import Critic, CriticSettings
from groupwise.training.learner import AdaptedLearner, Learner, LearnerSettings
from groupwise.training.mesh import Mesh, connect, rendezvous
from groupwise.training.ranks.arrival import read_own_rows
from tests.tiny_models import causal

Measured = dict[str, Any]
#: Seconds in which a thread of gloo's lets go of what it has sent.
SETTLES = 2.0
SIZES = {"hidden_size": 64, "num_hidden_layers": 8, "vocab_size": 33, "num_attention_heads": 4, "head_dim": 16}
DENSE = {**SIZES, "intermediate_size": 96, "num_key_value_heads": 2}
EXPERTS = {**SIZES, "moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2, "num_key_value_heads": 2}


def whole(architecture: str = "qwen3", seed: int = 0, **changes: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return causal(architecture, **(DENSE if architecture == "qwen3" else EXPERTS), **changes)


@contextmanager
def seen(model: nn.Module) -> Iterator[Callable[[], Measured]]:
    """Shares of the whole model: of the tensors that are there at once inside, and of its largest parameter."""
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    with LiveBytes() as live:
        yield lambda: {"peak": live.peak / sum(sizes), "largest": max(sizes) / sum(sizes)}


def received(own: Any, kind: Any, mesh: Mesh) -> Any:
    """The model on rank 0, and on another what a description makes of it."""
    return own if mesh.leads else model_like(kind, description(own), "meta")


def same(model: nn.Module, own: nn.Module) -> bool:
    """Whether every entry of a model in shards is what the whole one has, to the bit."""
    state, right = model.state_dict(keep_vars=True), own.state_dict()
    buffers = zip(model.named_buffers(), own.named_buffers(), strict=True)
    return (
        state.keys() == right.keys()
        and all(torch.equal(unsharded(x), right[name]) for name, x in state.items())
        and all(n == m and torch.equal(a, b) for (n, a), (m, b) in buffers)
    )


def share(model: nn.Module) -> float:
    return sum(own_part(p).numel() for p in model.parameters()) / sum(p.numel() for p in model.parameters())


def learner(model: Any, mesh: Mesh, reference: Any = None) -> Learner:
    return Learner(model, reference, LearnerSettings(), 0.8, 4, mesh=mesh)


def arrives(mesh: Mesh, architecture: str, tied: bool) -> Measured:
    """A policy and a reference of other weights, of which rank 0 alone has any."""
    own, other = (whole(architecture, seed, tie_word_embeddings=tied) for seed in (0, 1))
    model, reference = (received(each, AutoModelForCausalLM, mesh) for each in (own, other))
    own, other = (whole(architecture, seed, tie_word_embeddings=tied) for seed in (0, 1))
    with seen(own) as measured:
        made = learner(model, mesh, reference)
    assert made.reference is not None
    head = model.get_output_embeddings().weight
    right = {"same": same(model, own), "same_reference": same(made.reference, other), "packs": made.packs}
    return {**measured(), **right, "share": share(model), "tied": head is model.get_input_embeddings().weight}


def of_files(mesh: Mesh, folder: Path) -> Measured:
    """A policy, a reference in float16 and a critic, of whose weights rank 0 has none either: they are in files."""

    def own() -> list[Any]:
        policy = whole()
        return [policy, cast_weights(whole(seed=1), "fp16"), from_policy(policy)]

    kinds = (AutoModelForCausalLM, AutoModelForCausalLM, AutoModelForTokenClassification)
    models: list[Any] = [None] * 3
    if mesh.leads:
        for name, seed in (("policy", 0), ("reference", 1)):
            save_policy(whole(seed=seed), TinySpec().tokenizer("0123456789+-="), folder / name)
        policy, other = (load_policy(folder / name, in_files=True).model for name in ("policy", "reference"))
        models = [policy, cast_weights(other, "fp16"), from_policy(policy)]
    described = mesh.plain([description(model) for model in models] if mesh.leads else None)
    if not mesh.leads:
        models = [model_like(kind, one, "meta") for kind, one in zip(kinds, described, strict=True)]
    with seen(whole()) as measured:
        made = learner(models[0], mesh, models[1])
        Critic(models[2], CriticSettings(), 4, mesh=mesh)
    right = all(same(model, one) for model, one in zip(models, own(), strict=True))
    return {**measured(), "same": right, "packs": made.packs, "share": sum(map(share, models)) / 3}


def refuses_to_renew(mesh: Mesh) -> Measured:
    """A reference in float16, and a policy one of whose weights is beyond it, on the last rank's rows."""
    model, reference = whole(), whole(seed=1).half()
    made = learner(model, mesh, reference)
    weight = model.base_model.layers[-1].mlp.down_proj.weight
    set_unsharded(weight, unsharded(weight).index_fill(0, torch.tensor([len(weight) - 1]), 7e4))
    try:
        made.renew_reference()
        words = ""
    except RunError as error:
        words = str(error)
    return {"words": words, "same": same(reference, whole(seed=1).half())}


def adapters(mesh: Mesh) -> Measured:
    settings = LearnerSettings()
    model, own = received(whole(), AutoModelForCausalLM, mesh), whole()
    make = (model, AdapterSettings(rank=2), 0, settings, 0.8, 4)
    made = AdaptedLearner(*make, mesh=mesh)
    given = {name: unsharded(x) for name, x in made.adapters.matrices.items()}
    alone = AdaptedLearner(own, *make[1:])
    right = alone.adapters.matrices
    return {
        "same": all(torch.equal(given[name], x) for name, x in right.items()) and given.keys() == right.keys(),
        "same_base": all(torch.equal(a, b) for (_, a), (_, b) in zip(made.weights(), alone.weights(), strict=True)),
        "digest": made.adapters.base_digest == alone.adapters.base_digest,
        "frozen": sum(p.requires_grad for p in model.parameters()) == len(right),
    }


def critic(mesh: Mesh) -> Measured:
    def make() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return from_policy(whole())

    model = received(make(), AutoModelForTokenClassification, mesh)
    Critic(model, CriticSettings(), 4, mesh=mesh)
    return {"same": same(model, make())}


def streams(mesh: Mesh) -> Measured:
    """The weights on their way to an engine here, and to the memory that one in a child reads."""
    made, kept = learner(whole(), mesh), SharedWeights()
    engine = LocalEngine(whole(seed=1), frozenset({1}), 0)
    kept.write(whole(seed=1).named_parameters(), version=0)
    out: Measured = {}
    for name, load in (("inside", engine.load_weights), ("shared", kept.write)):
        between: list[int] = []
        with seen(whole()) as measured, LiveBytes() as live:
            load(watched(made.weights(), live, between), 1)
        out[name] = {**measured(), "between": max(between), "count": len(between)}
    kept.close()
    return out


def watched(weights: WeightStream, live: LiveBytes, between: list[int]) -> WeightStream:
    """The same weights; the bytes that are still there behind each, before the next one is gathered."""

    def whole() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            yield name, tensor
            del tensor
            until = time.monotonic() + (0.0 if any(between) else SETTLES)
            while live.now and time.monotonic() < until:
                time.sleep(0.001)
            between.append(live.now)

    return WeightStream(weights.like, whole)


def comes_back(mesh: Mesh, architecture: str, folder: Path) -> Measured:
    """A policy from a checkpoint's folder, in the place of another."""
    saved, made = whole(architecture, seed=1), learner(whole(architecture), mesh)
    if mesh.leads:
        save_policy(saved, TinySpec().tokenizer("0123456789+-="), folder)
    mesh.all_agree(True)
    with seen(saved) as measured:
        read = read_own_rows(made.model, folder, mesh)
    held = measured()
    if not read:
        made._read_policy(folder)
    return {**held, "read": read, "same": same(made.model, saved)}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("rank", int), ("port", int), ("folder", Path)):
        parser.add_argument(name, type=kind)
    parser.add_argument("--size", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = rendezvous("127.0.0.1", options.port, options.size, leads=False, seconds=60)
    mesh = connect(store, options.rank, options.size, seconds=30)
    cases = {
        "dense": arrives(mesh, "qwen3", tied=False),
        "tied": arrives(mesh, "qwen3", tied=True),
        "experts": arrives(mesh, "qwen3_moe", tied=False),
        "of files": of_files(mesh, options.folder / "files"),
        "not renewed": refuses_to_renew(mesh),
        "adapters": adapters(mesh),
        "critic": critic(mesh),
        "streams": streams(mesh),
        "back": comes_back(mesh, "qwen3", options.folder / "dense"),
        "experts back": comes_back(mesh, "qwen3_moe", options.folder / "experts"),
    }
    (options.folder / f"rank-{options.rank}.json").write_text(json.dumps(cases))
    mesh.close()


if __name__ == "__main__":
    main()
