"""The rows of a step as its records have them: who wrote which token, in which group, with which score."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
    def lengths(self) -> list[int]:
        """Tokens of each row, its prompt's included."""
        return [len(prompt) + len(c.tokens) for prompt, c in zip(self.prompts, self.completions, strict=True)]

    @cached_property
    def score(self) -> list[float]:
        """Reward of each row before it is shaped; NaN where it has none."""
        return [reward_of(c, self.weights) for c in self.completions]

    @cached_property
    def inside(self) -> Tensor:
        """[N,T] bool: prompt and completion, without what fills a row up."""
        return torch.arange(max(self.lengths)) < torch.tensor(self.lengths)[:, None]

    @cached_property
    def tokens(self) -> Tensor:
        """Ids of all rows one after another."""
        pairs = zip(self.prompts, self.completions, strict=True)
        return torch.tensor([token for prompt, c in pairs for token in (*prompt, *c.tokens)])

    @cached_property
    def logp_engine(self) -> Tensor:
        """Nats of all rows one after another, 0 in prompts."""
        pairs = zip(self.prompts, self.completions, strict=True)
        return torch.tensor([x for prompt, c in pairs for x in ((0.0,) * len(prompt) + c.logp_engine)])

    @cached_property
    def mask(self) -> Tensor:
        """[N,T] bool: tokens that the policy wrote, of completions that train."""
        return self._by_span(
            [[span.own and votes for span in c.spans] for c, votes in zip(self.completions, self._trains, strict=True)],
            outside=False,
        )

    @cached_property
    def version(self) -> Tensor:
        """[N,T]: weights that sampled each token; -1 where the policy did not."""
        each = [[span.version if span.own else -1 for span in c.spans] for c in self.completions]
        return self._by_span(each, outside=-1)

    @cached_property
    def _trains(self) -> list[bool]:
        cut = [self.masks_truncated and c.finish == "length" for c in self.completions]
        return [not math.isnan(score) and not off for score, off in zip(self.score, cut, strict=True)]

    def _by_span(self, values: Sequence[Sequence[int]], outside: int) -> Tensor:
        """[N,T] of a value a span; `outside` in prompts and beyond a row's end."""
        width = max(self.lengths)
        runs, lengths = [], []
        for prompt, completion, own, length in zip(self.prompts, self.completions, values, self.lengths, strict=True):
            runs += [outside, *own, outside]
            lengths += [len(prompt), *(span.stop - span.start for span in completion.spans), width - length]
        column = torch.tensor(runs).repeat_interleave(torch.tensor(lengths))
        return column.view(len(self.completions), width)

    def words(self, row: int) -> str:
        """Name a row for a person: its number and its prompt."""
        text = self.groups[self.group[row]].prompt.sample.prompt
        return f"row {row} (prompt {text[-40:]!r})"

    def place(self, at: tuple[int, ...]) -> str:
        """Name a row, or a row's column, for a person."""
        return self.words(at[0]) + (f", column {at[1]}" if len(at) > 1 else "")
