"""The record that flows: prompt -> group of completions -> batch; then updates.py. Every column, shape and unit.

Shapes: N completions, P prompts, G completions a prompt, T padded tokens, L layers with experts, K experts a token.
Log-probabilities are in nats.
A log-probability at column t belongs to the token at column t (column 0 has none and holds 0).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from groupwise.core.environment import Ended, EpisodeTurn
from groupwise.core.samples import LEARNED, TASK, LoggedValue, Sample


@dataclass(frozen=True)
class Prompt:
    """A sample as the policy sees it: `tokens` are the ids the engine is given, with BOS where the model has one."""

    sample: Sample
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Support:
    """The sampling support: the ids that top-p, top-k or min-p left to draw from, per token that the policy sampled.

    Sampled token t was drawn from `ids[start[t]:start[t + 1]]`.

    ids    [sum of support sizes] int32
    start  [sampled tokens + 1] int64, start[0] = 0
    """

    ids: Tensor
    start: Tensor

    def padded(self, start: int, stop: int) -> Tensor:
        """Return the supports of tokens start..stop -> [m,K] int64, padded with -1 on the right."""
        edges = self.start[start : stop + 1]
        counts = edges.diff()
        columns = torch.arange(int(counts.max()))
        inside = columns < counts[:, None]
        out = torch.full(inside.shape, -1, dtype=torch.long)
        out[inside] = self.ids[int(edges[0]) : int(edges[-1])].long()
        return out


@dataclass(frozen=True)
class SamplerTop:
    """The sampler's K most likely ids of each token that it drew, under the very distribution it drew from.

    ids   [sampled tokens, K] int32; of equally likely ids any
    logp  [sampled tokens, K] float32, nats; -inf of an id that could not be drawn
    """

    ids: Tensor
    logp: Tensor


@dataclass(frozen=True)
class Span:
    """tokens[start:stop] of a completion, which have one origin.

    own      True: the policy sampled them. False: an environment wrote them; they are never trained, their
             log-probability is 0 and they do not count in lengths
    version  which weights sampled them; of an environment's tokens, the weights at that time
    anew     an environment's: the model reads from here on with nothing before it, prompt included. Such a span is a
             whole prompt, with earlier turns as the chat template writes them now
    """

    start: int
    stop: int
    own: bool
    version: int
    anew: bool = False


@dataclass(frozen=True)
class Completion:
    """One answer. The engine writes the first block, the rollout the second.

    tokens       ids, the end-of-sequence id included where one was sampled
    logp_engine  [tokens] nats, under the very distribution each token was drawn from; 0 where a span is not own
    finish       "stop" (an end id was sampled, or a stop string completed) or "length" (the limit was reached)
    spans        who wrote which tokens, in order and without gaps; the first is own (before it stands the prompt), or a
                 prompt that is read anew in place of the group's
    support      the sampling support per own token, or None where it was the whole vocabulary
    top          the sampler's most likely ids per own token, or None where they were not asked for
    routes       [prompt + completion tokens - 1, L, K] uint8 (int16 above 256 experts) on the CPU, the experts of each
                 token that was run, prompt included (the last one is not run), or None where the engine does not say
    stop         the stop string that the last token completed; "" where none did
    text         the decoded completion, without special tokens
    score        the task's score, reward units; NaN where scoring failed
    learned      a reward model's score, reward units, where one scores: it trains, and `score` only tells the truth
    reward_scores  (name, score in reward units) of each reward that votes, where a recipe names rewards; NaN where
                 scoring failed
    combined     their weighted sum, which trains then; NaN where no reward votes
    logged       (reward.column, value) of what reward functions tell besides their scores
    fault        why a score is missing, such as "timeout in task"; "" where none is
    steps        (index into `tokens` of the token that ends the step, score of the step), where steps are scored; of an
                 episode its turns are the steps
    turns        of an episode, what the policy said and what came of it, in order; empty where there is no environment
    ended        why an episode ended; None where there is no environment

    Raises ValueError where spans and log-probabilities do not cover the tokens as said here.
    """

    tokens: tuple[int, ...]
    logp_engine: tuple[float, ...]
    finish: str
    spans: tuple[Span, ...]
    support: Support | None = None
    routes: Tensor | None = None
    stop: str = ""
    top: SamplerTop | None = None

    text: str = ""
    score: float = math.nan
    learned: float | None = None
    reward_scores: tuple[tuple[str, float], ...] = ()
    combined: float | None = None
    logged: tuple[tuple[str, LoggedValue], ...] = ()
    fault: str = ""
    steps: tuple[tuple[int, float], ...] = ()
    turns: tuple[EpisodeTurn, ...] = ()
    ended: Ended | None = None

    @classmethod
    def of_one_turn(
        cls, tokens: tuple[int, ...], logp_engine: tuple[float, ...], finish: str, version: int, **columns: Any
    ) -> Completion:
        """Return a completion whose tokens were all sampled under one version of the weights: one span.

        >>> Completion.of_one_turn((5, 6), (-0.5, -0.25), "stop", version=3).spans
        (Span(start=0, stop=2, own=True, version=3, anew=False),)
        """
        return cls(tokens, logp_engine, finish, (Span(0, len(tokens), True, version),), **columns)

    @property
    def length(self) -> int:
        """Tokens that the policy sampled."""
        if len(self.spans) == 1:  # most are of one turn, and a step of ten rounds asks tens of thousands
            return self.spans[0].stop
        return sum(span.stop - span.start for span in self.spans if span.own)

    @property
    def said(self) -> tuple[int, ...]:
        """Tokens without the prompts that are read anew, which repeat what came before."""
        if len(self.spans) == 1:
            return self.tokens
        return tuple(t for span in self.spans if not span.anew for t in self.tokens[span.start : span.stop])

    def read_after(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Return what the model reads after this: prompt and tokens, or the tokens from where it last began anew.

        >>> turn, again = Span(0, 2, True, version=3), Span(2, 4, False, version=3, anew=True)
        >>> Completion((5, 6, 8, 9), (-0.5, -0.25, 0.0, 0.0), "stop", (turn, again)).read_after((7,))
        (8, 9)
        """
        start = max((span.start for span in self.spans if span.anew), default=None)
        return prompt + self.tokens if start is None else self.tokens[start:]

    @property
    def version(self) -> int:
        """The oldest weights that sampled any of its tokens."""
        if len(self.spans) == 1:
            return self.spans[0].version
        return min(span.version for span in self.spans if span.own)

    @property
    def trains_on(self) -> float:
        """Quality as training sees it; NaN: it neither votes nor trains, as where an environment's fault ended
        it, whatever else scores it.
        """
        if self.ended is Ended.FAULT:
            return math.nan
        if self.combined is not None:
            return self.combined
        return self.score if self.learned is None else self.learned

    @property
    def by_reward(self) -> dict[str, float]:
        """The score of each reward by its name, a reward model's alone and the task's own included."""
        own = {TASK: self.score, **({} if self.learned is None else {LEARNED: self.learned})}
        return {**own, **dict(self.reward_scores)}

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logp_engine):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.logp_engine)} log-probabilities")
        edge, gaps = 0, False
        for span in self.spans:
            gaps = gaps or span.start != edge or span.stop < edge
            edge = span.stop
        if gaps or edge != len(self.tokens):
            raise ValueError(f"spans {self.spans} do not cover {len(self.tokens)} tokens in order and without gaps")
        if not self.spans or not (self.spans[0].own or self.spans[0].anew):
            raise ValueError("the first span is not the policy's own; what precedes it belongs to the prompt")
        if any(span.own and span.anew for span in self.spans):
            raise ValueError("a span that the policy sampled cannot be a prompt that the model reads anew")
        if any(any(self.logp_engine[span.start : span.stop]) for span in self.spans if not span.own):
            raise ValueError("an environment's token has a log-probability other than 0; nothing sampled it")
        if self.support is not None and len(self.support.start) != self.length + 1:
            raise ValueError(f"{self.length} sampled tokens but a support of {len(self.support.start) - 1}")
        if self.top is not None and not len(self.top.ids) == len(self.top.logp) == self.length:
            raise ValueError(f"{self.length} sampled tokens but the likeliest ids of {len(self.top.ids)}")


@dataclass(frozen=True)
class Group:
    """All completions of one prompt."""

    prompt: Prompt
    completions: tuple[Completion, ...]

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(c.score for c in self.completions)


@dataclass(frozen=True)
class Batch:
    """A frozen table of N completions that only gains columns; each column has one writer.

    tokens       [N,T] int64, prompt then completion, padded on the right
    mask         [N,T] bool, True where the policy sampled the token
    length       [N] int64, prompt and completion tokens, padding not counted
    group        [N] int64, equal for the completions of one prompt
    score        [N] reward units (the task's, a reward model's where one scores, or the weighted sum of several)
    reward_scores  [N,K] reward units, one column a reward, where they are combined after group normalisation; NaN where
                 one does not vote
    version      [N] int64, the oldest weights that sampled a token of the row
    token_version  [N,T] int64, the weights that sampled the token; -1 where the policy did not
    read_from    [N,T] int64, the column at which what the model reads for the token begins: 0, or that of the prompt of
                 its turn where earlier turns are written anew; None where it is 0 everywhere
    row          [N] int64, the place in the batch that the step trains, the same in every part of it
    logp_engine  [N,T] nats (the engine's)
    support      per row, the sampling support of its sampled tokens, or None
    engine_ids, engine_top  [N,T,K] int32 and nats, the engine's K most likely ids in the token's place
    routes_engine  per row [length - 1, L, K], the engine's experts of each token that was run, or None
    routes       the same of the pass under the old policy, before the first update on this batch
    routes_own   the same, what the routers would have chosen there, where the engine's experts were replayed
    logp_old     [N,T] nats, the learner's before the first update on this batch
    logp_ref     [N,T] nats, the frozen reference's
    ref_ids, ref_top  [N,T,K] int32 and nats, the reference's K most likely ids in the token's place
    value        [N,T] reward units, the critic's
    step_score   [N,T] reward units, the task's score of the step that ends here, 0 elsewhere
    step_end     [N,T] bool, True where a step of a process reward ends; a step may well score 0
    step_state   [N,T] int64, at the end of an episode's turn the number, from 1, of the state in which it was spoken:
                 equal where a prompt's episodes were in the same state; 0 elsewhere, and where states have no names
    reward       [N,T] reward units, after shaping
    advantage    [N,T]
    returns      [N,T] reward units
    correction   [N,T], engine-mismatch weight, 1 where absent
    weight       [N,T], the aggregation weight; made per minibatch, after the split
    likelihood   [N,T], the weight of a token's log-likelihood, 1 in all over right completions; made with `weight`
    """

    tokens: Tensor
    mask: Tensor
    length: Tensor
    group: Tensor
    score: Tensor
    version: Tensor
    logp_engine: Tensor
    token_version: Tensor | None = None
    read_from: Tensor | None = None
    row: Tensor | None = None
    reward_scores: Tensor | None = None
    support: tuple[Support | None, ...] | None = None
    engine_ids: Tensor | None = None
    engine_top: Tensor | None = None
    routes_engine: tuple[Tensor | None, ...] | None = None
    routes: tuple[Tensor, ...] | None = None
    routes_own: tuple[Tensor, ...] | None = None
    logp_old: Tensor | None = None
    logp_ref: Tensor | None = None
    ref_ids: Tensor | None = None
    ref_top: Tensor | None = None
    value: Tensor | None = None
    step_score: Tensor | None = None
    step_end: Tensor | None = None
    step_state: Tensor | None = None
    reward: Tensor | None = None
    advantage: Tensor | None = None
    returns: Tensor | None = None
    correction: Tensor | None = None
    weight: Tensor | None = None
    likelihood: Tensor | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def need(self, name: str) -> Tensor:
        """Return the column `name`. Raises ValueError if nothing has written it yet."""
        column = getattr(self, name)
        if column is None:
            raise ValueError(f"column {name} is read before it is written")
        return column

    def add(self, **columns: Tensor | tuple[Tensor, ...] | None) -> Batch:
        """Add columns. Raises ValueError if one of them exists already: none is ever overwritten."""
        taken = [name for name, new in columns.items() if new is not None and getattr(self, name) is not None]
        if taken:
            raise ValueError(f"column {', '.join(taken)} has been written already; each column has one writer")
        return dataclasses.replace(self, **columns)  # type: ignore[arg-type]

    def rows(self, index: Sequence[int] | Tensor, width: int | None = None) -> Batch:
        """Return the rows `index`, in that order, cut to `width` columns (their longest row by default)."""
        at = torch.as_tensor(index, dtype=torch.long)
        if width is None:
            width = int(self.length[at].max()) if len(at) else 0
        taken: dict[str, object] = {}
        for column in dataclasses.fields(self):
            value = getattr(self, column.name)
            if isinstance(value, Tensor):
                by_token = value.dim() > 1 and column.name != "reward_scores"
                taken[column.name] = value[at, :width] if by_token else value[at]
            elif isinstance(value, tuple):
                taken[column.name] = tuple(value[i] for i in at.tolist())
        return Batch(**taken)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Evaluation:
    """Sampled results on a split.

    avg_at_k      mean over problems of the share of its k samples that pass: the pass rate; NaN without a pass mark
    pass_at_k     {k: chance that at least one of k samples passes}, unbiased, for k = 1, 2, 4, ... up to the samples
    measured_mean  mean of what is measured (evaluation.metric), reward units, over completions that have it
    score_mean    mean of the task's score, reward units; a completion that could not be scored counts 0; NaN where the
                  task has no score
    unscored      completions without a value of what is measured: they do not pass, and no mean counts them
    standard_error  of avg_at_k, else of measured_mean, over problems: the deviation of their means by the root of how
                  many there are
    rewards       {name: mean of its score} of each reward that trains
    logged        {name: mean} of the numbers that reward functions log
    logged_total  {name: sum} of the same, a call's number counted once
    by_source     {name: its problems, avg_at_k, measured_mean and score_mean} of each source and each held-out
                  set with a name
    supervised_loss  of held-out supervised rows, nats a token; None without any
    by_problem    {key: the share of its samples that pass, without a pass mark their mean} of each problem that has it
    teachers      {name: avg_at_k, measured_mean, length_mean} of each policy that teaches, before the first step
    """

    problems: int
    samples: int
    avg_at_k: float
    pass_at_k: dict[int, float]
    length_mean: float
    truncated_share: float
    score_mean: float = math.nan
    unscored: int = 0
    measured_mean: float = math.nan
    standard_error: float = math.nan
    rewards: dict[str, float] = field(default_factory=dict)
    logged: dict[str, float] = field(default_factory=dict)
    logged_total: dict[str, float] = field(default_factory=dict)
    by_source: dict[str, dict[str, float]] = field(default_factory=dict)
    by_problem: dict[str, float] = field(default_factory=dict)
    supervised_loss: float | None = None
    teachers: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def row(self) -> dict[str, Any]:
        """Row for files: without single problems, too many for a row of metrics, and what a run has none of."""
        left_out = {"by_problem", *["supervised_loss"] * (self.supervised_loss is None)}
        left_out |= {*["teachers"] * (not self.teachers)}
        return {name: value for name, value in asdict(self).items() if name not in left_out}
