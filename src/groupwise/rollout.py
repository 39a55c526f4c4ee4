"""Prompts to scored, filtered groups; and evaluation, which is the same without filtering or training."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from groupwise.engines.base import Engine, Request, Sampling
from groupwise.parts.filters import RIGHT, Filter
from groupwise.records import Completion, Group, Prompt
from groupwise.samples import Sample
from groupwise.seeds import derive, stream
from groupwise.tasks.base import ScoresSteps, Task

#: No refill round assumes that fewer than this share of groups will be kept, so that one unlucky step stays affordable.
LEAST_KEEP_RATE = 0.25


@dataclass(frozen=True)
class Harvest:
    """What a step generated and what of it trains.

    groups      the groups that train
    generated   every group generated in this step, dropped and surplus ones included
    dropped     groups that the filter took out
    fallback    dropped groups that train all the same, because the budget of rounds was spent
    surplus     kept groups beyond what the step needs; they train first in the next step
    rounds      rounds of generation
    """

    groups: tuple[Group, ...]
    generated: tuple[Group, ...]
    dropped: int
    fallback: int
    surplus: tuple[Group, ...]
    rounds: int


@dataclass(frozen=True)
class StreamState:
    """Where the stream of prompts stands: how many were drawn, groups waiting, and the last share of groups kept."""

    cursor: int = 0
    surplus: tuple[Group, ...] = ()
    keep_rate: float = 1.0


class Prompts:
    """The training samples in an endless shuffled order: draw i is a function of (seed, i)."""

    def __init__(self, samples: Sequence[Sample], encode: Callable[[str], tuple[int, ...]], seed: int) -> None:
        self.samples, self.encode, self.seed = samples, encode, seed
        self._epoch, self._order = -1, torch.empty(0)

    def draw(self, index: int) -> Prompt:
        epoch, position = divmod(index, len(self.samples))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.randperm(len(self.samples), generator=stream(self.seed, "prompts", epoch))
        sample = self.samples[int(self._order[position])]
        return Prompt(sample, self.encode(sample.prompt))


#: Prompts and completions, token ids, side by side -> a reward model's score of each, reward units.
Judge = Callable[[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]], list[float]]


class Rollout:
    """Generates, scores and filters until a step has its groups."""

    def __init__(
        self,
        engine: Engine,
        task: Task,
        prompts: Prompts,
        decode: Callable[[tuple[int, ...]], str],
        sampling: Sampling,
        samples_per_prompt: int,
        filter: Filter,
        state: StreamState | None = None,
        reads_steps: bool = False,
        judge: Judge | None = None,
    ) -> None:
        self.engine, self.task, self.prompts, self.decode = engine, task, prompts, decode
        self.sampling, self.samples_per_prompt, self.filter = sampling, samples_per_prompt, filter
        self.state, self.reads_steps, self.judge = state or StreamState(), reads_steps, judge

    def collect(self, wanted: int, during: Callable[[str], None] = lambda phase: None) -> Harvest:
        """The next `wanted` groups. Whole rounds of prompts are finished before any is chosen, so short completions
        have no head start; what is left over waits for the next step.
        """
        keep: list[Group] = list(self.state.surplus)
        generated: list[Group] = []
        dropped: list[Group] = []
        rounds = 0
        rate = self.state.keep_rate
        while len(keep) < wanted and rounds < self.filter.max_rounds:
            fresh = self._round(math.ceil((wanted - len(keep)) / max(rate, LEAST_KEEP_RATE)), during)
            verdicts = [self.filter(group) for group in fresh]
            keep += [group for group, verdict in zip(fresh, verdicts, strict=True) if verdict.keep]
            dropped += [group for group, verdict in zip(fresh, verdicts, strict=True) if not verdict.keep]
            generated += fresh
            rounds += 1
            rate = sum(v.keep for v in verdicts) / len(verdicts)
        fallback = dropped[: max(0, wanted - len(keep))]
        surplus = tuple(keep[wanted:])
        self.state = dataclasses.replace(self.state, surplus=surplus, keep_rate=rate)
        groups = (*keep[:wanted], *fallback)
        return Harvest(groups, tuple(generated), len(dropped), len(fallback), surplus, rounds)

    def _round(self, count: int, during: Callable[[str], None]) -> list[Group]:
        first = self.state.cursor
        prompts = [self.prompts.draw(first + i) for i in range(count)]
        self.state = dataclasses.replace(self.state, cursor=first + count)
        seeds = [derive(self.prompts.seed, "completions", first + i) for i in range(count)]
        during("generate")
        answers = sample(self.engine, prompts, seeds, self.samples_per_prompt, self.sampling)
        during("score")
        groups = [score(self.task, p, a, self.decode, self.reads_steps) for p, a in zip(prompts, answers, strict=True)]
        return groups if self.judge is None else judged(groups, self.judge)


def sample(
    engine: Engine, prompts: Sequence[Prompt], seeds: Sequence[int], samples: int, sampling: Sampling
) -> list[tuple[Completion, ...]]:
    """The engine's completions of each prompt, in order."""
    requests = [Request(p.tokens, samples, seed) for p, seed in zip(prompts, seeds, strict=True)]
    return engine.generate(requests, sampling)


def score(
    task: Task,
    prompt: Prompt,
    completions: Sequence[Completion],
    decode: Callable[[tuple[int, ...]], str],
    reads_steps: bool = False,
) -> Group:
    """The group with each completion's text and score, and its steps where they are read and the task scores them."""
    done = []
    for completion in completions:
        text = decode(completion.tokens)
        told = dataclasses.replace(completion, text=text, score=float(task.score(prompt.sample, text)))
        if reads_steps and isinstance(task, ScoresSteps):
            told = dataclasses.replace(told, steps=_steps_at_tokens(task.steps(prompt.sample, text), told, decode))
        done.append(told)
    return Group(prompt, tuple(done))


def judged(groups: Sequence[Group], judge: Judge) -> list[Group]:
    """The groups with the judge's score of each completion beside the task's."""
    asked = [(group.prompt.tokens, c.tokens) for group in groups for c in group.completions]
    scores = iter(judge([prompt for prompt, _ in asked], [completion for _, completion in asked]))
    return [
        dataclasses.replace(g, completions=tuple(dataclasses.replace(c, learned=next(scores)) for c in g.completions))
        for g in groups
    ]


def _steps_at_tokens(
    steps: Sequence[tuple[int, float]], completion: Completion, decode: Callable[[tuple[int, ...]], str]
) -> tuple[tuple[int, float], ...]:
    """Ends in the text to ends in the tokens: a step ends with the token that brings its last character.

    Searched by the length of decoded prefixes, which asks nothing of the tokenizer but that text grows with tokens.
    Raises ValueError for an end outside the text.
    """
    if not completion.tokens:
        return ()
    longer = range(1, len(completion.tokens))
    found = []
    for end, value in steps:
        if not 0 <= end <= len(completion.text):
            raise ValueError(
                f"a step ends at {end} in a completion of {len(completion.text)} characters; see task.steps"
            )
        index = bisect_left(longer, end, key=lambda count: len(decode(completion.tokens[:count])))
        found.append((index, float(value)))
    return tuple(found)


@dataclass(frozen=True)
class Evaluation:
    """Sampled results on a split.

    avg_at_k      mean over problems of the share of its k samples that are right: the pass rate
    pass_at_k     {k: chance that at least one of k samples is right}, unbiased, for k = 1, 2, 4, ... up to the samples
    """

    problems: int
    samples: int
    avg_at_k: float
    pass_at_k: dict[int, float]
    length_mean: float
    truncated_share: float


def evaluate(
    engine: Engine,
    task: Task,
    problems: Sequence[Sample],
    encode: Callable[[str], tuple[int, ...]],
    decode: Callable[[tuple[int, ...]], str],
    samples: int,
    sampling: Sampling,
    seed: int,
) -> Evaluation:
    """Sample every problem `samples` times and score; the same seed asks with the same random numbers each time."""
    prompts = [Prompt(s, encode(s.prompt)) for s in problems]
    seeds = [derive(seed, "evaluation", i) for i in range(len(prompts))]
    answers = sample(engine, prompts, seeds, samples, sampling)
    groups = [score(task, p, a, decode) for p, a in zip(prompts, answers, strict=True)]
    completions = [c for g in groups for c in g.completions]
    right = [sum(c.score >= RIGHT for c in g.completions) for g in groups]
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= samples]
    return Evaluation(
        problems=len(problems),
        samples=samples,
        avg_at_k=math.fsum(right) / len(completions),
        pass_at_k={k: math.fsum(pass_at_k(samples, c, k) for c in right) / len(groups) for k in ks},
        length_mean=sum(len(c.tokens) for c in completions) / len(completions),
        truncated_share=sum(c.finish == "length" for c in completions) / len(completions),
    )


def pass_at_k(samples: int, right: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n samples, c of them right, hold a right one (2107.03374).

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)
