"""What one of the ranks does, and what it sees beside one process: run as `python -m tests.laws.rank_cases ...`.

Each case makes a learner by itself and one over both ranks, of the same weights, gives both the same batches, and
writes down how far they lie apart. tests/laws/test_ranks.py starts both ranks once, and says what has to hold.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import groupwise
from groupwise.algorithms.settings import CATALOG
from groupwise.core.engine import Sampling
from groupwise.core.records import Batch, Group, Prompt, Support
from groupwise.core.samples import Sample
from groupwise.core.updates import UpdateRecord
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.load import Policy
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings, routers_to_record
from groupwise.models.scalar_heads import RewardModel, from_policy, reward_model_of
from groupwise.models.shards import own_part, set_unsharded, set_unsharded_state, unsharded
from groupwise.models.tiny import TinySpec
from groupwise.training.checkpoint import OPTIMIZER
from groupwise.training.critic import Critic, CriticSettings
from groupwise.training.learner import AdaptedLearner, Learner, LearnerSettings
from groupwise.training.mesh import ALONE, Mesh, connect, rendezvous
from groupwise.training.microbatch import Pass
from groupwise.training.numerical_noise import Precisions, float32_logprobs, measured_tolerance, sampled_completions
from groupwise.training.ranks.parts import sha256_of, stored
from groupwise.training.ranks.sharded import RewardScorer
from tests.laws import moe_models
from tests.laws.test_split import make_batch
from tests.tiny_models import causal

#: No multiple of the number of ranks: of a tied head and embedding the last rank has a row less.
VOCABULARY = 15
#: Rows whose columns are, between them, those of all rows.
FLOAT32 = ("ppo", "grpo", "gspo")
#: Rows of the catalog of which each has a critic, a ratio, a trust region or a total that the others do not have, and
#: the rest.
DIFFERENT = ("ppo", "dapo", "gspo-token", "sapo")
ALIKE = tuple(name for name in CATALOG if name not in DIFFERENT)
#: A case that is run if it is asked for.
LONG = "the rest of the catalog"
#: Tokens of a microbatch, of which the batch is then an odd number.
BUDGET = 70

Measured = dict[str, Any]


def policy(dtype: torch.dtype = torch.float64, tied: bool = True) -> Any:
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 6}
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 20, "intermediate_size": 27, "initializer_range": 0.3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = causal("qwen3", tie_word_embeddings=tied, **sizes, **heads)
    return model.to(dtype)


def bare_batch(rows: int = 32) -> Batch:
    """What annotate is given: with columns that some rows of the catalog read, and without a pass of the learner."""
    batch = make_batch()
    numbers = torch.Generator().manual_seed(5)
    value = torch.rand(batch.mask.shape, generator=numbers, dtype=torch.float64)
    ends = batch.mask & (torch.rand(batch.mask.shape, generator=numbers) < 0.2)
    whole_batch = dataclasses.replace(
        batch, logp_old=None, logp_ref=None, value=value, step_end=ends, step_score=value.round() * ends
    )
    return whole_batch.rows(torch.arange(rows))


def learners(
    make: Callable[[Any, Mesh], Any], model: Any, mesh: Mesh, dtype: torch.dtype | None = None
) -> tuple[Any, Any]:
    """The same by itself, and over the ranks, on their device; in another type where one is given."""
    return make(copy.deepcopy(model), ALONE), make(copy.deepcopy(model).to(mesh.device, dtype), mesh)


def learner_of(reference: Any = None, routing: RoutingSettings = RoutingSettings(), **settings: Any) -> Any:
    """What makes a learner of a model and a mesh, with a reference where one is given."""

    def make(model: Any, mesh: Mesh) -> Learner:
        own = {"tokens_per_microbatch": BUDGET, "learning_rate": 0.01, **settings}
        routers = routers_to_record(model.base_model, routing)
        frozen = None if reference is None else copy.deepcopy(reference).to(mesh.device)
        return Learner(model, frozen, LearnerSettings(**own), 0.8, 4, routing, routers, mesh=mesh)

    return make


def annotated(alone: Learner, over: Learner, algo: Any, batch: Batch) -> tuple[Batch, Measured]:
    columns, same = columns_of(alone, over, batch)
    return algo.weigh(algo.credit(columns)), same


def columns_of(alone: Learner, over: Learner, batch: Batch) -> tuple[Batch, Measured]:
    """The batch with its columns, and whether both gave the same bits."""
    own, shared = (x.annotate(batch, old=True, ref=x.reference is not None) for x in (alone, over))
    same = same_columns(own, shared)
    if own.routes is not None:
        columns = ((own.routes, shared.routes), (own.routes_own, shared.routes_own))
        same["same_routes"] = all(a is b is None or all(map(torch.equal, a, b)) for a, b in columns)
    return shared, same


def same_columns(own: Batch, shared: Batch) -> Measured:
    """Whether log-probabilities have the same bits, and how far they lie apart, nats."""
    pairs = [(getattr(own, name), getattr(shared, name)) for name in ("logp_old", "logp_ref")]
    off = [float((a - b)[own.mask].abs().max()) for a, b in pairs if a is not None]
    return {"same_columns": all(same_bits(a, b) for a, b in pairs), "columns": max(off, default=0.0)}


def compared(alone: Learner, over: Learner, algo: Any, minibatch: Batch) -> Measured:
    """How far loss and gradient lie apart, how large they are, and whether the update saw the same to the bit."""
    own_loss, own_seen = cleared(alone).gradients(minibatch, algo)
    loss, seen = cleared(over).gradients(minibatch, algo)
    routing = own_seen.routing is None or all(map(torch.equal, own_seen.routing.used, seen.routing.used))
    return {
        "loss": abs(loss - own_loss),
        "own_loss": own_loss,
        "gradient": apart(gradient(alone.model), gradient(over.model)),
        "norm": float(gradient(alone.model).norm()),
        "same_seen": same_seen(own_seen, seen) and routing,
    }


def cleared(learner: Any) -> Any:
    learner.model.zero_grad(set_to_none=True)
    return learner


def gradient(model: Any) -> Tensor:
    return torch.cat([unsharded(p.grad).flatten().cpu() for p in model.parameters() if p.grad is not None])


def weights(model: Any) -> Tensor:
    return torch.cat([unsharded(p).flatten().cpu() for p in model.parameters()])


def apart(own: Tensor, shared: Tensor) -> float:
    return float((own - shared).norm() / own.norm())


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.equal(one.cpu().view(torch.uint8), other.cpu().view(torch.uint8))


def same_seen(one: UpdateRecord, other: UpdateRecord) -> bool:
    return all(same_bits(getattr(one, n), getattr(other, n)) for n in ("logp_live", "share", "entropy", "log_ratio"))


def moved(*models: Any, size: float = 0.02) -> None:
    """Other weights of both models, so that live is not old."""
    for model in models:
        numbers = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in model.parameters():
                other = unsharded(parameter)
                noise = size * torch.randn(other.shape, generator=numbers, dtype=torch.float64)
                set_unsharded(parameter, other + noise.to(other.device, other.dtype))


def catalog(mesh: Mesh, dtype: torch.dtype, names: Iterable[str]) -> Measured:
    """Rows of the catalog, over a tied head with an uneven vocabulary."""
    model = policy(dtype)
    alone, over = learners(learner_of(reference=model), model, mesh)
    moved(alone.model, over.model, size=0.005)
    columns, same = columns_of(alone, over, bare_batch())  # which no algorithm has a part in
    measured = {}
    for name in names:
        algo = groupwise.algorithm(name)
        minibatch = algo.weigh(algo.credit(columns))
        minibatch = dataclasses.replace(minibatch, logp_old=minibatch.need("logp_old") + 0.05 * minibatch.mask)
        measured[name] = {**same, **compared(alone, over, algo, minibatch)}
    return measured


def updates(mesh: Mesh, tied: bool) -> Measured:
    algo = groupwise.algorithm("dapo")
    alone, over = learners(learner_of(clip_norm=0.1), policy(tied=tied), mesh)
    before = unsharded(over.model.get_output_embeddings().weight).clone()
    minibatch, _ = annotated(alone, over, algo, bare_batch())
    results = [[x.update(minibatch, algo) for x in (alone, over)] for _ in range(3)]
    after = unsharded(over.model.get_output_embeddings().weight)
    return {
        "weights": apart(weights(alone.model), weights(over.model)),
        "norms": max(abs(a.gradient_norm - b.gradient_norm) / a.gradient_norm for a, b in results),
        "clipped": min(a.gradient_norm for a, _ in results),
        "least_moved_row": float((after - before).abs().amax(1).min()),
        "engine": all(
            n == m and same_bits(a, unsharded(b))
            for (n, a), (m, b) in zip(over.weights(), over.model.named_parameters(), strict=True)
        ),
    }


def few_rows(mesh: Mesh, rows: int) -> Measured:
    """As many microbatches as rows: the last round has one for one rank alone."""
    algo, model = groupwise.algorithm("grpo"), policy()
    alone, over = learners(learner_of(reference=model, tokens_per_microbatch=1), model, mesh)
    minibatch, same = annotated(alone, over, algo, bare_batch(rows=4))
    return {**same, **compared(alone, over, algo, minibatch.rows(torch.arange(rows)))}


def padded_rows(mesh: Mesh) -> Measured:
    """Without shared prefixes, and recomputed."""
    algo, model = groupwise.algorithm("gspo"), policy()
    make = learner_of(reference=model, shared_prefixes=False, recompute=True)
    alone, over = learners(make, model, mesh)
    minibatch, same = annotated(alone, over, algo, bare_batch())
    return {**same, **compared(alone, over, algo, minibatch)}


def supported(mesh: Mesh) -> Measured:
    """Tokens with the ids that sampling left, and an entropy bonus."""
    algo, model, batch = groupwise.algorithm("dapo", {"entropy_coefficient": 0.1}), policy(), bare_batch()
    supports = []
    for row, mask in zip(batch.tokens, batch.mask, strict=True):
        kept = [sorted({int(token), 3, 8}) for token in row[mask]]
        start = torch.tensor([0, *(len(ids) for ids in kept)]).cumsum(0)
        supports.append(Support(torch.tensor([i for ids in kept for i in ids], dtype=torch.int32), start))
    alone, over = learners(learner_of(tokens_per_microbatch=30), model, mesh)
    minibatch, same = annotated(alone, over, algo, dataclasses.replace(batch, support=tuple(supports)))
    return {**same, **compared(alone, over, algo, minibatch)}


def experts(
    mesh: Mesh, replay: ReplayFrom, architecture: str = "qwen3_moe", dtype: torch.dtype = torch.float64
) -> Measured:
    """A mixture of experts with replayed routes and both of the routers' losses; over the ranks of another type."""
    algo = groupwise.algorithm("dapo")
    model = moe_models.build(architecture, dtype=torch.float64, experts_implementation="eager")
    routing = RoutingSettings(replay=replay, load_balance=0.3, z_loss=0.2)
    alone, over = learners(learner_of(routing=routing), model, mesh, dtype)
    batch, numbers = bare_batch(), torch.Generator().manual_seed(2)
    places = [torch.rand(n - 1, 3, 8, generator=numbers).argsort(-1) for n in batch.length.tolist()]
    batch = dataclasses.replace(batch, routes_engine=tuple(place[..., :2].to(torch.uint8) for place in places))
    minibatch, same = annotated(alone, over, algo, batch)
    moved(alone.model, over.model)
    seen = [cleared(x).gradients(minibatch, algo)[1].routing for x in (alone, over)]
    losses = max(abs(a - seen[1].losses[n]) / abs(a) for n, a in seen[0].losses.items())
    own = all(map(torch.equal, seen[0].own, seen[1].own))
    return {**same, **compared(alone, over, algo, minibatch), "losses": losses, "same_own": own}


def distilled(mesh: Mesh, adapters: bool, **settings: Any) -> Measured:
    """Divergences of whole distributions from a teacher: a model of its own, or the policy without its adapters."""
    named = {f"kl.{name}": value for name, value in settings.items()}
    algo = groupwise.algorithm("opd", {"kl.place": "loss", **named})
    make = learner_of(reference=policy(tied=False))
    if adapters:
        own = LearnerSettings(tokens_per_microbatch=BUDGET)

        def make(model: Any, over: Mesh) -> AdaptedLearner:
            return AdaptedLearner(model, AdapterSettings(rank=3), 0, own, 0.8, 8, mesh=over)

    alone, over = learners(make, policy(), mesh)
    for learner in (alone, over):
        if isinstance(learner, AdaptedLearner):
            numbers = torch.Generator().manual_seed(1)
            for matrix in learner.adapters.matrices.values():
                set_unsharded(matrix, 0.2 * torch.randn(matrix.shape, generator=numbers, dtype=matrix.dtype))
    one, other = (x.annotate(bare_batch(), old=True, ref=True, top=algo.kl.top) for x in (alone, over))
    same = all(same_bits(getattr(one, n), getattr(other, n)) for n in ("ref_ids", "ref_top"))
    minibatch = algo.weigh(algo.credit(other))
    return {**same_columns(one, other), "same_top": same, **compared(alone, over, algo, minibatch)}


def adapted(mesh: Mesh, folder: Path) -> Measured:
    """Adapters: reference, gradient, merged weights, and back from a checkpoint."""
    algo = groupwise.algorithm("grpo", {"kl.beta": 0.1})
    settings = LearnerSettings(tokens_per_microbatch=BUDGET, learning_rate=0.01)

    def make(model: Any, over: Mesh) -> AdaptedLearner:
        return AdaptedLearner(model, AdapterSettings(rank=3), 0, settings, 0.8, 8, mesh=over)

    alone, over = learners(make, policy(torch.float32), mesh)
    for learner in (alone, over):
        numbers = torch.Generator().manual_seed(1)
        for matrix in learner.adapters.matrices.values():
            set_unsharded(matrix, 0.2 * torch.randn(matrix.shape, generator=numbers))
    batch = bare_batch()
    own, shared = (x.annotate(batch, old=True, ref=True) for x in (alone, over))
    minibatch = algo.weigh(algo.credit(own))
    measured = {**same_columns(own, shared), **compared(alone, over, algo, minibatch)}
    merged = zip(alone.weights(), over.weights(), strict=True)
    measured["same_merged"] = all(n == m and same_bits(a, b) for (n, a), (m, b) in merged)
    return {**measured, **put_back(alone, over, algo, minibatch, folder)}


def saved(mesh: Mesh, folder: Path) -> Measured:
    algo = groupwise.algorithm("dapo")
    alone, over = learners(learner_of(), policy(torch.float32), mesh)
    minibatch, _ = annotated(alone, over, algo, bare_batch())
    return put_back(alone, over, algo, minibatch, folder)


def put_back(alone: Learner, over: Learner, algo: Any, minibatch: Batch, folder: Path) -> Measured:
    """An update, a checkpoint, and two more updates; once more from there, at both ranks and in one process."""
    tokenizer = TinySpec().tokenizer("0123456789+-=")
    over.update(minibatch, algo)
    (folder / "over").mkdir(parents=True, exist_ok=True)
    hashes = over.save(folder / "over", tokenizer)
    over.mesh.all_agree(True)  # written before it is read
    alone.restore(folder / "over", updates=1)
    first = weights(over.model)
    same = same_bits(first, weights(alone.model))
    if over.mesh.leads:
        alone.save(folder / "alone", tokenizer)
    over.mesh.all_agree(True)
    after = twice(over, minibatch, algo)
    over.restore(folder / "over", updates=1)
    back = same_bits(first, weights(over.model))
    again = twice(over, minibatch, algo)
    over.restore(folder / "alone", updates=1)
    return {
        "same_restored": same and back,
        **files_of(folder / "alone", folder / "over", hashes),
        "same_again": same_bits(after, again),
        "same_from_one": same_bits(after, twice(over, minibatch, algo)),
        "elsewhere": apart(twice(alone, minibatch, algo), after),
    }


def files_of(alone: Path, over: Path, hashes: Mapping[str, str]) -> Measured:
    """Two checkpoints of the same, by one process and by ranks: the policy's files, and where the moments lie."""
    policies = [{p.name: p.read_bytes() for p in (folder / "policy").iterdir()} for folder in (alone, over)]
    with stored(alone, OPTIMIZER) as one, stored(over, OPTIMIZER) as other:
        moments = one.places.keys() == other.places.keys() and all(
            torch.equal(one.whole(name), other.whole(name)) for name in one.places
        )
        count = len(one.places)
    sizes = [(over / name).stat().st_size for name in hashes or [OPTIMIZER]]  # one process writes a single file
    return {
        "same_policy": policies[0] == policies[1],
        "same_moments": moments,
        "moments": count,
        "hashed": {name: sha256_of(over / name) == digest for name, digest in hashes.items()},
        "largest_file": max(sizes) / (alone / OPTIMIZER).stat().st_size,
    }


def twice(learner: Learner, minibatch: Batch, algo: Any) -> Tensor:
    for _ in range(2):
        learner.update(minibatch, algo)
    return weights(learner.model)


def critic(mesh: Mesh, folder: Path) -> Measured:
    model = from_policy(policy())
    with torch.no_grad():
        for parameter in model.score.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    settings = CriticSettings(tokens_per_microbatch=BUDGET, learning_rate=0.01)
    alone, over = learners(lambda model, mesh: Critic(model, settings, 4, mesh=mesh), model, mesh)
    bare = dataclasses.replace(bare_batch(), value=None)
    values = alone.values(bare)
    same = same_bits(values, over.values(bare))
    returns = torch.where(bare.mask, bare.score[:, None].expand_as(values), math.nan)
    batch, tokens = bare.add(value=values + 0.1, returns=returns), int(bare.mask.sum())
    (own_loss, own_held), (loss, held) = (cleared(x).gradients(batch, tokens) for x in (alone, over))
    measured = {
        "same_columns": same,
        "loss": abs(loss - own_loss),
        "same_held": held == own_held,
        "gradient": apart(gradient(alone.model), gradient(over.model)),
    }
    for one in (alone, over):
        one.update(batch)
    folder.mkdir(parents=True, exist_ok=True)
    over.save(folder)
    first = weights(over.model)
    over.mesh.all_agree(True)
    over.update(batch)
    over.restore(folder, updates=1)
    return {
        **measured,
        "weights": apart(weights(alone.model), first),
        "same_restored": same_bits(first, weights(over.model)),
    }


def scoring_model() -> RewardModel:
    own = Policy(policy(torch.float32), SimpleNamespace(pad_token_id=0), frozenset({1}), 0)
    reward = dataclasses.replace(reward_model_of(own), tokens_per_batch=30)
    moved(reward.model, size=0.3)
    return reward


def reward_model(mesh: Mesh) -> Measured:
    """Scores of rows of every length, of which a batch holds a few; and of one row, with which a rank is idle."""
    alone = scoring_model()
    over = RewardScorer(dataclasses.replace(alone, model=copy.deepcopy(alone.model).to(mesh.device)), mesh)
    batch = bare_batch()
    rows = [tuple(row[:n].tolist()) for row, n in zip(batch.tokens, batch.length.tolist(), strict=True)]
    every, one = ([alone.scores(some, [()] * len(some)), over.take_part(some)] for some in (rows, rows[:1]))
    return {
        "same": every[0] == every[1] and one[0] == one[1],
        "batches": len(alone.batches(rows)),
        "spread": max(every[0]) - min(every[0]),
    }


def not_finite(mesh: Mesh) -> Measured:
    """An advantage is NaN in a row of rank 1 alone: neither rank moves, and both go on after it."""
    algo = groupwise.algorithm("dapo")
    alone, over = learners(learner_of(tokens_per_microbatch=1), policy(), mesh)
    minibatch, _ = annotated(alone, over, algo, bare_batch(rows=4))
    rows = list(over._microbatches(Pass(over.model, minibatch, over.routers), torch.ones(4, dtype=torch.bool)))
    own = {int(i) for piece in rows for i in piece.index}
    theirs = next(i for i in range(4) if (i in own) == (mesh.rank == 1))
    theirs = int(mesh.sums([theirs if mesh.rank == 1 else 0])[0])
    advantage = minibatch.need("advantage").clone()
    advantage[theirs] = math.nan
    before = weights(over.model)
    result = over.update(dataclasses.replace(minibatch, advantage=advantage), algo)
    still = same_bits(before, weights(over.model))
    goes_on = over.update(minibatch, algo)
    return {
        "on_rank_1": (theirs in own) == (mesh.rank == 1),
        "applied": result.applied,
        "still": still,
        "goes_on": goes_on.applied and not same_bits(before, weights(over.model)),
    }


def supervised(mesh: Mesh) -> Measured:
    """A mix, supervised rows alone, and their log-probabilities: two updates over ranks beside one process."""
    algo = groupwise.algorithm("dapo")
    alone, over = learners(learner_of(), policy(), mesh)
    minibatch, _ = annotated(alone, over, algo, bare_batch(rows=6))
    rows = algo.weigh(dataclasses.replace(bare_batch(rows=5), weight=None))
    results = [[x.update(each, algo, rows) for x in (alone, over)] for each in (minibatch, None)]
    logp = [x.logprobs_now(rows, sampled=False) for x in (alone, over)]
    return {
        "losses": max(abs(a.supervised.loss - b.supervised.loss) for a, b in results),
        "norms": max(abs(a.gradient_norm - b.gradient_norm) for a, b in results),
        "weights": apart(weights(alone.model), weights(over.model)),
        "own_distribution": float((logp[0] - alone.logprobs_now(rows))[rows.mask].abs().max()),
        "logprobs": float((logp[0] - logp[1])[rows.mask].abs().max()),
    }


def rounded(mesh: Mesh) -> Measured:
    algo, model = groupwise.algorithm("dapo"), policy(torch.float32)
    moved(model)
    alone, over = learners(learner_of(precision="bf16"), model, mesh)
    exact = learner_of()(copy.deepcopy(model), ALONE)
    batch = bare_batch()
    own, shared, right = (x.annotate(batch, old=True, ref=False).need("logp_old") for x in (alone, over, exact))
    minibatch = algo.weigh(algo.credit(dataclasses.replace(batch, logp_old=right)))
    return {
        "same_columns": same_bits(own, shared),
        **compared(alone, over, algo, minibatch),
        "rounding": float((own - right).abs().mean()),
        "masters": all(p.dtype == torch.float32 for p in over.model.parameters()),
    }


def measured(mesh: Mesh) -> Measured:
    """What rounding does, as a run measures it: every side in bfloat16, or one of them in float16, and the probe's
    float32, after an update.
    """
    algo, model = groupwise.algorithm("dapo"), policy(torch.float32)
    whole_policy = Policy(model, None, frozenset({1}), 0)
    engine = LocalEngine(copy.deepcopy(model), whole_policy.eos, whole_policy.pad, precision="bf16")
    prompts = [Prompt(Sample(text, text, ""), tuple(range(2, 6 + i))) for i, text in enumerate("abc")]
    completions = sampled_completions(engine, prompts, Sampling(max_new_tokens=9), seed=0)
    groups = [Group(prompt, each) for prompt, each in zip(prompts, completions, strict=True)]
    alone, over = learners(learner_of(precision="bf16"), model, mesh)
    exact = [float32_logprobs(x) for x in (alone, over)]
    minibatch, _ = annotated(alone, over, algo, bare_batch())
    for learner in (alone, over):
        learner.update(minibatch, algo)
    set_unsharded_state(over.model, alone.model.state_dict(), mesh.tensors)  # the same weights to the bit
    before = alone.completion_logprobs(groups, pad=0)
    sides = (Precisions("bf16", "bf16", "bf16"), Precisions("bf16", "bf16", "fp16"))
    tolerances = [
        [measured_tolerance(whole_policy, x, each, prompts, completions) for each in sides] for x in (alone, over)
    ]
    own, shared = (torch.cat(logprobs(groups, pad=0)) for logprobs in exact)
    return {
        "same_tolerance": tolerances[0] == tolerances[1],
        "rounding": tolerances[1][0].engine.mean,
        "same_exact": same_bits(own, shared),
        "apart_from_live": float((torch.cat(before) - shared).abs().mean()),
        "same_live": all(map(same_bits, before, over.completion_logprobs(groups, pad=0))),
    }


def held(mesh: Mesh) -> Measured:
    """The share of weights, gradients and optimizer state that this rank holds, and of a reward model."""
    algo = groupwise.algorithm("dapo")
    _, over = learners(learner_of(), policy(), mesh)
    minibatch = algo.weigh(algo.credit(over.annotate(bare_batch(), old=True, ref=False)))
    parameters = list(over.model.parameters())
    total = sum(p.numel() for p in parameters)
    scored = list(RewardScorer(scoring_model(), mesh).model.parameters())
    shares = {
        "weights": sum(own_part(p).numel() for p in parameters) / total,
        "reward model": sum(own_part(p).numel() for p in scored) / sum(p.numel() for p in scored),
    }
    cleared(over).gradients(minibatch, algo)
    shares["gradients"] = sum(own_part(p.grad).numel() for p in parameters) / total
    over.update(minibatch, algo)
    moments = [own_part(over.optimizer.adamw.state[p]["exp_avg"]).numel() for p in parameters]
    return {**shares, "optimizer": sum(moments) / total}


def cases(folder: Path) -> Mapping[str, Callable[[Mesh], Measured]]:
    return {
        "catalog float64": lambda mesh: catalog(mesh, torch.float64, DIFFERENT),
        LONG: lambda mesh: catalog(mesh, torch.float64, ALIKE),
        "catalog float32": lambda mesh: catalog(mesh, torch.float32, FLOAT32),
        "updates tied": lambda mesh: updates(mesh, tied=True),
        "updates untied": lambda mesh: updates(mesh, tied=False),
        "3 rows": lambda mesh: few_rows(mesh, rows=3),
        "1 row": lambda mesh: few_rows(mesh, rows=1),
        "padded rows": padded_rows,
        "supported": supported,
        "experts learner": lambda mesh: experts(mesh, ReplayFrom.LEARNER),
        "experts engine": lambda mesh: experts(mesh, ReplayFrom.ENGINE),
        "distilled full": lambda mesh: distilled(mesh, False, estimator="full", mixture=0.3),
        "distilled top": lambda mesh: distilled(mesh, False, estimator="top-k", k=4),
        "distilled adapters": lambda mesh: distilled(mesh, True, estimator="full"),
        "adapted": lambda mesh: adapted(mesh, folder / "adapted"),
        "saved": lambda mesh: saved(mesh, folder / "saved"),
        "critic": lambda mesh: critic(mesh, folder / "critic"),
        "reward model": reward_model,
        "not finite": not_finite,
        "supervised": supervised,
        "rounded": rounded,
        "measured": measured,
        "held": held,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = rendezvous("127.0.0.1", options.port, options.size, leads=False, seconds=60)
    mesh = connect(store, options.rank, options.size, seconds=30)
    with (options.folder / f"rank-{options.rank}.jsonl").open("w") as file:
        for name, case in cases(options.folder).items():
            if name in options.only if options.only else name != LONG:
                print(json.dumps([name, case(mesh)]), file=file, flush=True)
    mesh.close()


if __name__ == "__main__":
    main()
