"""What one of two ranks passes at each verb, beside what its closed form says: run as `python -m tests.training...`.

Rank 0 tells and counts; rank 1 follows. tests/training/test_traffic.py starts both once, and compares with ==.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import groupwise
from groupwise.core.collate import microbatches
from groupwise.core.records import Batch
from groupwise.models.adapters.lora import with_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.heads import halves
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings, routers_to_record
from groupwise.models.shards import own_part
from groupwise.models.value import from_policy
from groupwise.planning.shard_groups import Groups, groups_of, held_bytes
from groupwise.planning.traffic import (
    BatchShape,
    RoutesShape,
    Traffic,
    annotated,
    announced,
    critic_updated,
    probed,
    rounds,
    scored,
    updated,
    valued,
    weights_sent,
)
from groupwise.training.adapted import AdaptedLearner
from groupwise.training.critic import Critic, CriticSettings
from groupwise.training.followers import LeadingMesh
from groupwise.training.learner import Learner, LearnerSettings
from groupwise.training.mesh import ALONE, Mesh, Message, Verb, connect, rendezvous
from groupwise.training.reward_scorer import RewardScorer
from groupwise.training.verbs import follow, tell
from tests.laws import moe_models
from tests.laws.rank_cases import bare_batch, policy, scoring_model

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from passed import Passed

#: Tokens of a microbatch, of which there are then several, and an odd number.
BUDGET = 70
RANKS = 2
#: How often each of two threads asks.
TURNS = 10

#: Verb -> what was counted, and what was planned.
Seen = dict[str, tuple[list[int], list[int]]]


class Watch:
    """Rank 0's learner or critic at its verbs: counted beside planned."""

    def __init__(self) -> None:
        self.seen: Seen = {}

    @contextmanager
    def at(self, verb: Verb, planned: Callable[[], Traffic]) -> Iterator[None]:
        with Passed() as passed:
            yield
        self.seen[verb] = (passed.numbers, list(planned().numbers))


def shape(message: Message, parts: list[Any]) -> BatchShape:
    """What the closed forms know of a batch that is sent, and of its microbatches."""
    assert message.batch is not None
    length = message.batch.length
    rows, width = message.batch.tokens.shape
    return BatchShape(rows, width, int((length - 1).sum()), rounds(len(parts), RANKS), announced(message))


def parts_of(learner: Learner, batch: Batch, rows: torch.Tensor, replayed: Any = None) -> list[Any]:
    """The microbatches of some rows, of all ranks; `replayed` routes tell rows apart."""
    routing = learner._routing_pass(batch, replayed)
    own, learner.mesh = learner.mesh, ALONE
    try:
        return list(learner.pieces(batch, routing, rows))
    finally:
        learner.mesh = own


def policy_verbs(make: Callable[[Mesh], Learner], algo: Any, batch: Batch, groups: Groups, mesh: Mesh) -> Seen:
    """Annotate, update, weights and probe."""
    learner, watch = make(mesh), Watch()
    if not mesh.leads:
        return _followed(mesh, learner, algo)
    routing = learner.routing
    routes = None
    if learner.routers:
        replayed = routing.replay is not ReplayFrom.NONE
        from_engine = routing.replay is ReplayFrom.ENGINE
        routes = RoutesShape(
            len(learner.routers), learner.routers[0].chosen, 1, from_engine, replayed, len(routing.losses)
        )
    has_reference = algo.needs_reference
    reference = groups if has_reference else None
    every = torch.arange(len(batch))

    def begun() -> Traffic:
        message = Message(Verb.ANNOTATE, batch, {"old": True, "ref": has_reference})
        replayed = batch.routes_engine if routing.replay is ReplayFrom.ENGINE else None
        parts = parts_of(learner, batch, every, replayed)
        return annotated(shape(message, parts), groups, reference, RANKS, True, routes)

    with watch.at(Verb.ANNOTATE, begun):
        columns = learner.annotate(batch, old=True, ref=has_reference)
    minibatch = algo.weigh(algo.credit(columns))

    def made() -> Traffic:
        message = Message(Verb.UPDATE, minibatch, {"factor": 1.0})
        trained = algo.trained_rows(minibatch) | bool(learner.routing.losses)
        replayed = minibatch.routes if routing.replay is not ReplayFrom.NONE else None
        first, others = (
            parts_of(learner, minibatch, (trained == trains).nonzero()[:, 0], replayed) for trains in (True, False)
        )
        both = rounds(len(first), RANKS) + rounds(len(others), RANKS)
        own = dataclasses.replace(shape(message, []), rounds=both)
        return updated(own, groups, RANKS, routes, untrained=rounds(len(others), RANKS))

    with watch.at(Verb.UPDATE, made):
        learner.update(minibatch, algo)
    with watch.at(Verb.WEIGHTS, lambda: weights_sent(groups, RANKS)):
        for _ in learner.weights():
            pass

    def expected() -> Traffic:
        message = Message(Verb.LOGPROBS, batch)
        return probed(shape(message, parts_of(learner, batch, every, batch.routes_engine)), groups, RANKS)

    with watch.at(Verb.LOGPROBS, expected):
        learner.logprobs_now(batch)
    tell(mesh, Message(Verb.STOP))
    return watch.seen


def _followed(mesh: Mesh, learner: Learner, algo: Any) -> Seen:
    """Rank 1 does what rank 0 says."""
    follow(
        mesh,
        {
            Verb.ANNOTATE: lambda m: learner.annotate(m.batch, **m.others),
            Verb.UPDATE: lambda m: learner.update(m.batch, algo),
            Verb.WEIGHTS: lambda m: [None for _ in learner.weights()],
            Verb.LOGPROBS: lambda m: learner.logprobs_now(m.batch),
        },
    )
    return {}


def dense(mesh: Mesh, rows: int = 32, dtype: torch.dtype = torch.float32, **settings: Any) -> Seen:
    """A tied head with an uneven vocabulary, a reference, and rows that have no gradient."""
    algo, model = groupwise.algorithm("grpo", {"kl.beta": 0.1, "kl.place": "loss"}), policy(dtype)
    own = {"tokens_per_microbatch": BUDGET, "learning_rate": 0.01, **settings}
    chosen = LearnerSettings(**own)
    groups = groups_of(model, chosen.bf16)

    def make(over: Mesh) -> Learner:
        return Learner(model, policy(dtype), chosen, 0.8, 4, mesh=over)

    return policy_verbs(make, algo, bare_batch(rows), groups, mesh)


def some_untrained(mesh: Mesh) -> Seen:
    """Without a KL term: groups whose scores are equal are run for the record alone."""
    algo, model = groupwise.algorithm("dapo"), policy(torch.float32, tied=False)
    chosen = LearnerSettings(tokens_per_microbatch=30, learning_rate=0.01)

    def make(over: Mesh) -> Learner:
        return Learner(model, None, chosen, 0.8, 4, mesh=over)

    return policy_verbs(make, algo, bare_batch(), groups_of(model), mesh)


def adapted(mesh: Mesh, *targets: str) -> Seen:
    """Adapters, their reference the policy without them."""
    algo, model = groupwise.algorithm("grpo", {"kl.beta": 0.1, "kl.place": "loss"}), policy(torch.float32)
    chosen, adapter = LearnerSettings(tokens_per_microbatch=BUDGET), AdapterSettings(rank=3, targets=targets)
    groups = groups_of(with_adapters(model, adapter))

    def make(over: Mesh) -> Learner:
        return AdaptedLearner(model, adapter, 0, chosen, 0.8, 4, mesh=over)

    return policy_verbs(make, algo, bare_batch(), groups, mesh)


def experts(mesh: Mesh, replay: ReplayFrom) -> Seen:
    """Stacks of 8 experts, whose routes are recorded and replayed."""
    algo = groupwise.algorithm("dapo")
    model = moe_models.build("qwen3_moe", dtype=torch.float32, experts_implementation="eager")
    routing = RoutingSettings(replay=replay, load_balance=0.3, z_loss=0.2)
    routers = routers_to_record(halves(model)[0], routing)
    batch, numbers = bare_batch(), torch.Generator().manual_seed(2)
    places = [torch.rand(n - 1, 3, 8, generator=numbers).argsort(-1) for n in batch.length.tolist()]
    batch = dataclasses.replace(batch, routes_engine=tuple(place[..., :2].to(torch.uint8) for place in places))
    chosen = LearnerSettings(tokens_per_microbatch=BUDGET)

    def make(over: Mesh) -> Learner:
        return Learner(model, None, chosen, 0.8, 4, routing, routers, mesh=over)

    return policy_verbs(make, algo, batch, groups_of(model), mesh)


def critic(mesh: Mesh) -> Seen:
    """Values, and an update of the critic."""
    model = from_policy(policy(torch.float32))
    groups, watch = groups_of(model), Watch()
    valuer = Critic(model, CriticSettings(tokens_per_microbatch=BUDGET), 4, mesh=mesh)
    bare = dataclasses.replace(bare_batch(), value=None)
    if not mesh.leads:
        follow(
            mesh, {Verb.VALUES: lambda m: valuer.values(m.batch), Verb.UPDATE_CRITIC: lambda m: valuer.update(m.batch)}
        )
        return {}

    def own(verb: Verb, batch: Batch) -> BatchShape:
        return shape(Message(verb, batch), microbatches(batch.length, BUDGET))

    with watch.at(Verb.VALUES, lambda: valued(own(Verb.VALUES, bare), groups, RANKS)):
        values = valuer.values(bare)
    batch = bare.add(value=values, returns=bare.score[:, None].expand_as(values).contiguous())
    with watch.at(Verb.UPDATE_CRITIC, lambda: critic_updated(own(Verb.UPDATE_CRITIC, batch), groups, RANKS)):
        valuer.update(batch)
    tell(mesh, Message(Verb.STOP))
    return watch.seen


def reward_model(mesh: Mesh, rows: int) -> Seen:
    """Scores of rows whose batches are an odd number, or of one row."""
    reward, watch = scoring_model(), Watch()
    groups, some = groups_of(reward.model), token_rows()[:rows]
    batches, tokens = len(reward.batches(some)), sum(map(len, some))
    scorer = RewardScorer(reward, mesh)
    if not mesh.leads:
        follow(mesh, {Verb.SCORES: lambda m: scorer.take_part()})
        return {}
    with watch.at(Verb.SCORES, lambda: scored(len(some), tokens, batches, groups, RANKS)):
        scorer.scores(some, [()] * len(some))
    tell(mesh, Message(Verb.STOP))
    return watch.seen


def two_threads(mesh: Mesh) -> Seen:
    """While one thread asks for values, another asks for scores, over and over: whether both get what one gets."""
    own = scoring_model()
    right = own.scores(token_rows(), [()] * 32)
    scorer = RewardScorer(own, mesh)
    valuer = Critic(from_policy(policy(torch.float32)), CriticSettings(tokens_per_microbatch=BUDGET), 4, mesh=mesh)
    bare = dataclasses.replace(bare_batch(), value=None)
    if not mesh.leads:
        follow(mesh, {Verb.SCORES: lambda m: scorer.take_part(), Verb.VALUES: lambda m: valuer.values(m.batch)})
        return {}
    first = valuer.values(bare)
    with ThreadPoolExecutor(1) as other:
        scores = [other.submit(scorer.scores, token_rows(), [()] * 32) for _ in range(TURNS)]
        values = [valuer.values(bare) for _ in range(TURNS)]
    same = [sum(torch.equal(x, first) for x in values), sum(one.result() == right for one in scores)]
    tell(mesh, Message(Verb.STOP))
    return {"the same": (same, [TURNS, TURNS])}


def token_rows() -> list[tuple[int, ...]]:
    """The rows of the batch, without what fills them up."""
    batch = bare_batch()
    return [tuple(row[:n].tolist()) for row, n in zip(batch.tokens, batch.length.tolist(), strict=True)]


def held(mesh: Mesh) -> Seen:
    """Bytes of the weights that this rank holds, beside what the groups say, of an uneven vocabulary."""
    model = policy(torch.float32)
    groups = groups_of(model)
    learner = Learner(model, None, LearnerSettings(), 0.8, 4, mesh=mesh)
    kept = {p.data_ptr(): p.untyped_storage().nbytes() for p in map(own_part, learner.model.parameters())}
    own = sum(own_part(p).numel() for p in learner.model.parameters())
    planned = [held_bytes(groups.every, RANKS), sum(w.own(RANKS, mesh.rank) for w in groups.every)]
    return {"weights": ([sum(kept.values()), own], planned)}


CASES: Mapping[str, Callable[[Mesh], Seen]] = {
    "dense": dense,
    "3 rows": lambda mesh: dense(mesh, rows=3, tokens_per_microbatch=1),
    "padded": lambda mesh: dense(mesh, shared_prefixes=False),
    "recomputed": lambda mesh: dense(mesh, recompute=True),
    "bfloat16": lambda mesh: dense(mesh, precision="bf16"),
    "some untrained": some_untrained,
    "adapters": adapted,
    "adapters above": lambda mesh: adapted(mesh, "layers.1.self_attn.q_proj"),
    "experts learner": lambda mesh: experts(mesh, ReplayFrom.LEARNER),
    "experts engine": lambda mesh: experts(mesh, ReplayFrom.ENGINE),
    "critic": critic,
    "reward model": lambda mesh: reward_model(mesh, rows=32),
    "reward model, 1 row": lambda mesh: reward_model(mesh, rows=1),
    "two threads": two_threads,
    "held": held,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = rendezvous("127.0.0.1", options.port, RANKS, leads=False, seconds=60)
    mesh = connect(store, options.rank, RANKS, seconds=30)
    if options.rank == 0:
        mesh = LeadingMesh(0, RANKS, mesh.device, mesh.shards, mesh.waiting)
    with (options.folder / f"rank-{options.rank}.jsonl").open("w") as file:
        for name, case in CASES.items():
            print(json.dumps([name, case(mesh)]), file=file, flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
