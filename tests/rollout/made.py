"""Shared parts of the rollout tests: tasks, completions and groups, engines without a model, rollouts, evaluations."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from groupwise.algorithms.parts.filters import KeepAll
from groupwise.core.engine import Request, Sampling
from groupwise.core.files.dataclass_json import from_json, to_json
from groupwise.core.numbers.measure import Measure
from groupwise.core.records import Completion, Evaluation, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.stream import StreamState
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.chat.prompts import Chat
from groupwise.rollout.collect import Prompts, Rollout, heldout_answers, measured
from groupwise.rollout.scoring import Scorer
from groupwise.rollout.segments import advance
from groupwise.tasks.arithmetic import Arithmetic

ARITHMETIC = Arithmetic(operands=(2, 3), largest=4)
NAN = math.nan


class ByText:
    """The problems of ARITHMETIC with another score; of its own, half of a random policy's groups are mixed."""

    alphabet = ARITHMETIC.alphabet
    quick = True

    def __init__(self, score: Callable[[Sample, str], float] = lambda sample, text: float(len(text) % 2 == 0)) -> None:
        self.score = score

    def samples(self, split: str) -> Sequence[Sample]:
        return ARITHMETIC.samples(split)


IMPOSSIBLE = ByText(lambda sample, text: 0.0)


def completion(
    score: float = NAN, tokens: tuple[int, ...] = (4,), finish: str = "stop", **rewards: float
) -> Completion:
    """One with the task's score and these rewards, each of weight 1."""
    done = Completion.of_one_turn(tokens, (-0.1,) * len(tokens), finish, 0, score=score)
    if not rewards:
        return done
    return dataclasses.replace(done, reward_scores=tuple(rewards.items()), combined=sum(rewards.values()))


def group(*completions: Completion | float) -> Group:
    """A group of one prompt; numbers stand for completions of that score."""
    each = (one if isinstance(one, Completion) else completion(one) for one in completions)
    return Group(Prompt(Sample("a", "1+1=", "2"), (3,)), tuple(each))


def local(policy: Any) -> LocalEngine:
    return LocalEngine(policy.model, policy.eos, policy.pad)


def make(policy: Any, filter: Any, task: Any = None, state: StreamState | None = None, **how: Any) -> Rollout:
    """A rollout of the real engine on a policy; `how` are its other fields, and `reads_steps` the scorer's."""
    scorer = Scorer(task or ByText(), policy.decode, reads_steps=how.pop("reads_steps", False))
    prompts = Prompts(ARITHMETIC.samples("train"), Chat(policy.tokenizer).encode, seed=1)
    sampling = Sampling(temperature=1.5, max_new_tokens=how.pop("limit", 6))
    return Rollout(local(policy), scorer, prompts, sampling, 4, filter, state=state or StreamState(), **how)


def saved(state: StreamState) -> StreamState:
    """A state as it comes out of a checkpoint."""
    return from_json(StreamState, json.loads(json.dumps(to_json(state))))


def evaluated(policy: Any, scorer: Scorer, problems: Sequence[Sample], samples: int, measure: Measure) -> Evaluation:
    """An evaluation by the real engine, whose random numbers are always the same."""
    sampling, encode = Sampling(temperature=1.5, max_new_tokens=6), Chat(policy.tokenizer).encode
    sample = partial(advance, local(policy))
    return measured(
        heldout_answers(sample, scorer, problems, encode, samples, sampling, 3), measure, scorer.has_answers
    )


class ByLengths:
    """An engine without a model: completion i of a seed ends after its own number of tokens, whatever the segments."""

    def __init__(self, stop: float = 0.15) -> None:
        self.version, self._stop = 0, stop

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_finish: Any = None) -> Any:
        return [tuple(self._one(r, r.first + i, sampling) for i in range(r.samples)) for r in requests]

    def _one(self, request: Request, number: int, sampling: Sampling) -> Completion:
        lot = random.Random(f"{request.seed} {number}")
        length = 1 + int(math.log(1 - lot.random()) / math.log(1 - self._stop))
        whole = min(length, sampling.max_new_tokens)
        end = min(whole, request.drawn + (request.max_new_tokens or sampling.max_new_tokens))
        count = end - request.drawn
        finish = "stop" if end == length else "length"
        return Completion.of_one_turn((4,) * count, (-0.1,) * count, finish, self.version)


def rollout_of(
    engine: Any, limit: int, tokens: int | None, filter: Any = None, task: Any = None, samples: int = 4
) -> Rollout:
    """A rollout of an engine without a model, in segments of so many tokens."""
    prompts = Prompts(ARITHMETIC.samples("train"), lambda sample: (1,), seed=1)
    scorer = Scorer(task or ByText(), lambda ids: "".join(map(str, ids)))
    sampling = Sampling(max_new_tokens=limit)
    return Rollout(engine, scorer, prompts, sampling, samples, filter or KeepAll(), turn_tokens=tokens)


def keys(groups: Sequence[Group]) -> list[str]:
    return [group.prompt.sample.key for group in groups]
