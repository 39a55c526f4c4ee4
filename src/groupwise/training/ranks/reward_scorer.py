"""What a run scores with where it has a reward model: by itself, or over ranks that hold the model in shards."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from groupwise.core.collate import NO_ROWS
from groupwise.core.machine.free_memory import give_back
from groupwise.models.scalar_heads import RewardModel, Tokens
from groupwise.training.mesh import ALONE, Mesh, Message, Verb
from groupwise.training.ranks.sharded import Sharded

#: What an idle rank runs, beside others that have a batch of rows left: its score is read by nothing.
IDLE: Sequence[Tokens] = ((0,),)


class RewardScorer:
    """Scores with a reward model, of which each rank holds a part, and scores some of the batches.

    A row's score has the bits that `RewardModel.scores` gives in one process: its batch is the same, on whichever rank.
    """

    def __init__(self, reward: RewardModel, mesh: Mesh = ALONE) -> None:
        """Puts the model in shards where the mesh has several ranks. Raises UsageError as `Sharded` does."""
        self.model, self.mesh, self._reward = reward.model, mesh, reward
        self._sharded = None if mesh.alone else Sharded(reward.model, mesh)

    def scores(self, prompts: Sequence[Tokens], completions: Sequence[Tokens]) -> list[float]:
        """Return one score a row, reward units, in the order given. Raises ValueError as `RewardModel.scores` does."""
        rows = self._reward.rows(prompts, completions)
        with self.mesh.together(Message(Verb.SCORES)):
            return self.take_part(rows)

    def take_part(self, rows: Sequence[Tokens] = ()) -> list[float]:
        """Score rank 0's rows, on every rank; what the others give is not read."""
        rows = rows_of(self.mesh.tensors(passed(rows) if self.mesh.leads else {}))
        out = torch.zeros(len(rows))
        with torch.no_grad():
            for part in self.mesh.dealt(self._reward.batches(rows)):
                index, own = (NO_ROWS, IDLE) if part is None else (part, [rows[i] for i in part.tolist()])
                out[index] = self._forward(own)[: len(index)].cpu().float()
        # What a pass leaves with the C library has other sizes than what an update takes, and would stay beside it.
        give_back()
        return self.mesh.joined(out).tolist()

    def _forward(self, rows: Sequence[Tokens]) -> Tensor:
        forward = partial(self._reward.forward, rows)
        return forward() if self._sharded is None else self._sharded.run(forward)


def passed(rows: Sequence[Tokens]) -> dict[str, Tensor]:
    """Rows as they go to the other ranks: their ids one behind the other, and their lengths.

    >>> {name: x.tolist() for name, x in passed([(5, 6, 7), (8,)]).items()}
    {'tokens': [5, 6, 7, 8], 'length': [3, 1]}
    """
    return {
        "tokens": torch.tensor([token for row in rows for token in row], dtype=torch.int64),
        "length": torch.tensor([len(row) for row in rows], dtype=torch.int64),
    }


def rows_of(tensors: Mapping[str, Tensor]) -> list[Tokens]:
    """Return the rows that `passed` laid one behind the other."""
    return [tuple(row.tolist()) for row in tensors["tokens"].split(tensors["length"].tolist())]
