"""What two ranks hold, and what two threads of one get: run as `python -m tests.training.rank_model_acts`.

Rank 0 tells; rank 1 follows. tests/training/test_rank_models.py starts both once.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from groupwise.models.scalar_heads import from_policy
from groupwise.models.shards import own_part
from groupwise.planning.shard_groups import groups_of, held_bytes
from groupwise.training.critic import Critic, CriticSettings
from groupwise.training.learner import Learner, LearnerSettings
from groupwise.training.mesh import Mesh, Verb, connect, rendezvous
from groupwise.training.ranks.followers import LeadingMesh
from groupwise.training.ranks.sharded import RewardScorer
from tests.laws.rank_cases import bare_batch, policy, scoring_model
from tests.training.made import told

#: Tokens of a microbatch, of which there are then several, and an odd number.
BUDGET = 70
RANKS = 2
#: How often each of two threads asks.
TURNS = 10

#: What was seen, and what was expected.
Pair = tuple[list[int], list[int]]


def two_threads(mesh: Mesh) -> Pair:
    """While one thread asks for values, another asks for scores, over and over: whether both get what one gets."""
    own = scoring_model()
    right = own.scores(token_rows(), [()] * 32)
    scorer = RewardScorer(own, mesh)
    valuer = Critic(from_policy(policy(torch.float32)), CriticSettings(tokens_per_microbatch=BUDGET), 4, mesh=mesh)
    bare = dataclasses.replace(bare_batch(), value=None)
    if not mesh.leads:
        mesh.follow({Verb.SCORES: lambda m: scorer.take_part(), Verb.VALUES: lambda m: valuer.values(m.batch)})
        return [], []
    first = valuer.values(bare)
    with ThreadPoolExecutor(1) as other:
        scores = [other.submit(scorer.scores, token_rows(), [()] * 32) for _ in range(TURNS)]
        values = [valuer.values(bare) for _ in range(TURNS)]
    same = [sum(torch.equal(x, first) for x in values), sum(one.result() == right for one in scores)]
    mesh.tell(Verb.STOP)
    return same, [TURNS, TURNS]


def token_rows() -> list[tuple[int, ...]]:
    """The rows of the batch, without what fills them up."""
    batch = bare_batch()
    return [tuple(row[:n].tolist()) for row, n in zip(batch.tokens, batch.length.tolist(), strict=True)]


def held(mesh: Mesh) -> Pair:
    """Bytes of the weights that this rank holds, beside what the groups say, of an uneven vocabulary."""
    model = policy(torch.float32)
    groups = groups_of(model)
    learner = Learner(model, None, LearnerSettings(), 0.8, 4, mesh=mesh)
    kept = {p.data_ptr(): p.untyped_storage().nbytes() for p in map(own_part, learner.model.parameters())}
    own = sum(own_part(p).numel() for p in learner.model.parameters())
    planned = [held_bytes(groups.every, RANKS), sum(w.part(RANKS, mesh.rank) for w in groups.every)]
    return [sum(kept.values()), own], planned


CASES: Mapping[str, Callable[[Mesh], Pair]] = {"two threads": two_threads, "held": held}


def main() -> None:
    rank, port, folder = told()
    torch.set_num_threads(1)
    store = rendezvous("127.0.0.1", port, RANKS, leads=False, seconds=60)
    mesh = connect(store, rank, RANKS, seconds=30)
    if rank == 0:
        mesh = LeadingMesh(0, RANKS, mesh.device, mesh.shards, mesh.waiting)
    seen = {name: case(mesh) for name, case in CASES.items()}
    (folder / f"rank-{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
