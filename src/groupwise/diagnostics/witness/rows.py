"""The rows of a step as its records have them: who wrote which token, in which group, with which score."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from groupwise.core.environment import Ended
from groupwise.core.records import Completion, Group
from groupwise.core.samples import LEARNED, TASK

#: Scores that lie no further apart are one score, by the definition of a tie; and a score from which on an answer is
#: right.
TIE, RIGHT = 1e-6, 1 - 1e-6


def reward_of(completion: Completion, weights: Mapping[str, float]) -> float:
    """Return what a completion is to train on, from its single scores and the recipe's weights; NaN if nothing."""
    if completion.ended is Ended.FAULT:
        return math.nan
    if weights:
        votes = [weights[name] * score for name, score in completion.reward_scores if name in weights]
        return math.fsum(votes) if votes else math.nan
    return completion.score if completion.learned is None else completion.learned


def values_of(group: Group, metric: str, weights: Mapping[str, float]) -> list[float]:
    """Return what a filter goes by: the completions' scores, rewards, or scores of one reward, without those that have
    none.
    """
    if metric == "correctness":
        values = [c.score for c in group.completions]
    elif metric == "reward":
        values = [reward_of(c, weights) for c in group.completions]
    else:
        values = [_named(c, metric) for c in group.completions]
    return [value for value in values if not math.isnan(value)]


def _named(completion: Completion, name: str) -> float:
    scores = {TASK: completion.score, LEARNED: math.nan if completion.learned is None else completion.learned}
    return {**scores, **dict(completion.reward_scores)}.get(name, math.nan)


@dataclass(frozen=True)
class Rows:
    """N completions of a step in the order of their groups, in a table of T columns.

    weights  of the rewards that train, by name; none where the task's score or a reward model's does
    masks_truncated  whether completions that were cut off at the limit are not trained
    """

    groups: Sequence[Group]
    weights: Mapping[str, float]
    masks_truncated: bool = False

    @cached_property
    def completions(self) -> list[Completion]:
        return [c for group in self.groups for c in group.completions]

    @cached_property
    def prompts(self) -> list[tuple[int, ...]]:
        """Ids of each row's prompt."""
        return [group.prompt.tokens for group in self.groups for _ in group.completions]

    @cached_property
    def group(self) -> list[int]:
        """Number of each row's group."""
        return [i for i, group in enumerate(self.groups) for _ in group.completions]

    @cached_property
    def groups_of(self) -> Tensor:
        """[N]: number of each row's group."""
        return torch.tensor(self.group)

    @cached_property
    def score(self) -> list[float]:
        """Reward of each row before it is shaped; NaN where it has none."""
        return [reward_of(c, self.weights) for c in self.completions]

    @cached_property
    def starts(self) -> Tensor:
        """[N]: tokens of each row's prompt, after which its completion starts."""
        return torch.tensor([len(prompt) for prompt in self.prompts])

    @cached_property
    def lengths(self) -> Tensor:
        """[N]: tokens of each row, its prompt's included."""
        return self.starts + torch.tensor([len(c.tokens) for c in self.completions])

    @cached_property
    def inside(self) -> Tensor:
        """[N,T] bool: prompt and completion, without what fills a row up."""
        return torch.arange(int(self.lengths.max())) < self.lengths[:, None]

    @cached_property
    def answers(self) -> Tensor:
        """[N,T] bool: the completion, whoever wrote its tokens."""
        return self.inside & (torch.arange(self.inside.shape[1]) >= self.starts[:, None])

    @cached_property
    def tokens(self) -> Tensor:
        """Ids of all rows one after another."""
        pairs = zip(self.prompts, (c.tokens for c in self.completions), strict=True)
        ids = chain.from_iterable(chain.from_iterable(pairs))
        return torch.from_numpy(np.fromiter(ids, dtype=np.int64, count=int(self.lengths.sum())))

    @cached_property
    def logp_engine(self) -> Tensor:
        """Nats of all completions one after another."""
        every = [*chain.from_iterable(c.logp_engine for c in self.completions)]
        return torch.from_numpy(np.array(every, dtype=np.float32))

    @cached_property
    def mask(self) -> Tensor:
        """[N,T] bool: tokens that the policy wrote, of completions that train."""
        cut = [self.masks_truncated and c.finish == "length" for c in self.completions]
        votes = [not math.isnan(score) and not off for score, off in zip(self.score, cut, strict=True)]
        return self.own & torch.tensor(votes)[:, None]

    @cached_property
    def trained(self) -> Tensor:
        """Places in the flat table of the tokens that train."""
        return self.mask.flatten().nonzero()[:, 0]

    @cached_property
    def own(self) -> Tensor:
        """[N,T] bool: tokens that the policy wrote."""
        return self.version >= 0

    @cached_property
    def version(self) -> Tensor:
        """[N,T]: weights that sampled each token; -1 where the policy did not."""
        if all(len(c.spans) == 1 and c.spans[0].own for c in self.completions):
            each = torch.tensor([c.spans[0].version for c in self.completions])
            return torch.where(self.answers, each[:, None], -1)
        runs, lengths = [], []
        rows = zip(self.starts.tolist(), self.completions, (~self.inside).sum(1).tolist(), strict=True)
        for start, completion, rest in rows:
            runs += [-1, *(span.version if span.own else -1 for span in completion.spans), -1]
            lengths += [start, *(span.stop - span.start for span in completion.spans), rest]
        return torch.tensor(runs).repeat_interleave(torch.tensor(lengths)).view(self.inside.shape)

    def words(self, row: int) -> str:
        """Name a row for a person: its number and its prompt."""
        text = self.groups[self.group[row]].prompt.sample.prompt
        return f"row {row} (prompt {text[-40:]!r})"

    def place(self, at: tuple[int, ...]) -> str:
        """Name a row, or a row's column, for a person."""
        return self.words(at[0]) + (f", column {at[1]}" if len(at) > 1 else "")
