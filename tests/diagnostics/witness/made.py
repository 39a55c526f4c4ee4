"""A step made by hand: groups of a seed, the batch that the run's own functions make of them, and its minibatches."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.collate import collate, minibatches
from groupwise.core.records import Batch, Completion, Group, Prompt, Span
from groupwise.core.samples import Sample
from groupwise.core.stream import RolloutResult
from groupwise.diagnostics.witness.credit import CreditReading
from groupwise.diagnostics.witness.groups import GroupsReading
from groupwise.diagnostics.witness.reading import Disagreement, Reading, StepSeen, Unmeasured
from groupwise.diagnostics.witness.rules import Rules, UpdateRules
from groupwise.diagnostics.witness.trains import TrainsReading
from tests.laws.episodes import episodes

GROUPS, SAMPLES, PARTS, PASSES = 4, 4, 2, 2
RULES = Rules(
    groups=GROUPS,
    samples=SAMPLES,
    parts=PARTS,
    passes=PASSES,
    waiting=0,
    weights={},
    each=False,
    learner=UpdateRules(rate=0.5, schedule="linear", warmup=2, total=10, clip_norm=1.0),
)


def groups(seed: int = 0, with_turns: bool = False) -> tuple[Group, ...]:
    """Groups whose scores differ, are tied, and are missing; the last prompt is the first one again."""
    if with_turns:
        return tuple(episodes(seed, between=seed, groups=GROUPS, size=SAMPLES))
    draw = random.Random(seed)
    made = []
    for g in range(GROUPS):
        scores = [0.0] * SAMPLES if g == 1 else [draw.choice((0.0, 0.25, 1.0)) for _ in range(SAMPLES - 1)] + [1.0]
        prompt = Prompt(Sample(f"{g % 3}", f"p{g % 3}", "a"), (2, 3 + g % 3)[: 1 + (g % 3 > 0)])
        made.append(Group(prompt, tuple(_completion(draw, score) for score in scores)))
    made[0] = replace(made[0], completions=(*made[0].completions[:-1], _completion(draw, math.nan)))
    return tuple(made)


def _completion(draw: random.Random, score: float) -> Completion:
    tokens = tuple(draw.randint(5, 99) for _ in range(draw.randint(2, 5)))
    logp = tuple(-3 * draw.random() for _ in tokens)
    cut, own = draw.randint(1, len(tokens) - 1), len(tokens)
    spans = (Span(0, cut, True, 3), Span(cut, own, True, 4))
    finish = draw.choice(("stop", "length"))
    scores = (("task", score), ("tidy", float(tokens[0] % 2)))
    each = {"score": score, "reward_scores": scores} if not math.isnan(score) else {}
    return Completion(tokens, logp, finish, spans, text=str(tokens), **each)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Made:
    """A step: what the witness sees of it, and its minibatches."""

    seen: StepSeen
    parts: Sequence[Batch]


def result_of(those: Sequence[Group]) -> RolloutResult:
    return RolloutResult(tuple(those), tuple(those), dropped=0, fallback=0, surplus=(), rounds=1)


def step(
    row: Algorithm, those: Sequence[Group], weights: Mapping[str, float] | None = None, each: bool = False
) -> Made:
    """Make a step as a run makes it, with log-probabilities and values of a seed."""
    batch = collate(
        those,
        pad=0,
        mask_truncated=row.filter.mask_truncated,
        steps=row.needs_steps,
        states=row.advantage.reads_states,
        reward_names=tuple(weights) if weights and each else (),
    )
    noise = torch.Generator().manual_seed(1)
    old, ref, value = (torch.randn(batch.mask.shape, generator=noise) for _ in range(3))
    batch = batch.add(logp_old=old, logp_ref=ref, value=value)
    batch = row.credit(batch, tuple(weights.values()) if weights and each else None)
    rules = replace(RULES, weights=weights or {}, each=each)
    seen = StepSeen(1, result_of(those), batch, rules, row.filter.mask_truncated, slow=True)
    parts = [
        row.weigh(part)
        for number in range(PASSES)
        for part in minibatches(batch, PARTS, torch.Generator().manual_seed(number))
    ]
    return Made(seen, parts)


def said(row: Algorithm, made: Made) -> Iterator[tuple[Reading, Disagreement | Unmeasured]]:
    """Say what the readings of every step say of it."""
    for reading in (GroupsReading(row.filter), CreditReading(row), TrainsReading(row.aggregate)):
        yield from ((reading, one) for one in reading.begin(made.seen))
        for part in made.parts:
            yield from ((reading, one) for one in reading.minibatch(made.seen, part))
        yield from ((reading, one) for one in reading.end(made.seen))


def disagreements(row: Algorithm, made: Made) -> dict[str, Disagreement]:
    """Find what the readings disagree with, by the name of their subject."""
    found = [(r, one) for r, one in said(row, made) if isinstance(one, Disagreement) and one.real]
    return {reading.subject.name: one for reading, one in reversed(found)}
