"""The batches that a run's rank 0 will send to the others: which columns they have, and how many bytes.

A batch of four short rows goes through what makes one in a run; its columns are then made as large as those of the run,
without memory.
"""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from groupwise.commands.parity import PROBE_PROMPTS, PROBE_SAMPLES, PROBE_TOKENS
from groupwise.config.plan import Plan
from groupwise.core.collate import collate
from groupwise.core.records import Batch, Completion, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.task import PlaysTurns, ScoresSteps
from groupwise.models.moe.record import Router, route_dtype, routers
from groupwise.models.moe.settings import ReplayFrom
from groupwise.planning.run_shape import RunShape, microbatch_sizes
from groupwise.planning.traffic import BatchShape, RoutesShape, announced, rounds
from groupwise.training.mesh import Message, Verb

#: Tokens of the short rows: of a prompt, and of a completion.
SHORT_PROMPT, SHORT_COMPLETION = 2, 3
#: By which a rate is multiplied where no guard has lowered it.
FACTOR = 1.0


@dataclass(frozen=True)
class _Experts:
    """Of a mixture of experts that the run records: its routers."""

    routers: tuple[Router, ...]

    def of_tokens(self, count: int) -> Tensor:
        """Routes [count,L,K] of zeros."""
        first = self.routers[0]
        dtype = route_dtype(max(router.experts for router in self.routers))
        return torch.zeros(count, len(self.routers), first.chosen, dtype=dtype)


class PlannedBatches:
    """Of a run and its model, which is without memory.

    old     whether the old policy is run before the updates
    routes  what is recorded of a mixture of experts; None of a dense policy
    """

    def __init__(self, run: Plan, model: Any, shape: RunShape) -> None:
        recipe, row, by_layer = run.recipe, run.algorithm, routers(model)
        self._run, self._shape = run, shape
        self._experts = _Experts(by_layer) if by_layer else None
        from_engine = recipe.routing.replay is ReplayFrom.ENGINE
        several = recipe.updates_per_batch * run.passes_per_batch > 1
        self._measured = (several or row.needs_old) and recipe.logp_old != "engine"
        self.old = self._measured or bool(by_layer and recipe.routing.reads_routes and not from_engine)
        self.routes = None
        if self._experts is not None:
            one = self._experts.of_tokens(1)
            replayed = recipe.routing.replay is not ReplayFrom.NONE
            losses = len(recipe.routing.losses)
            self.routes = RoutesShape(one.shape[1], one.shape[2], one.element_size(), from_engine, replayed, losses)
        self._sampled = self._collated()
        self._annotated = self._with_columns(self._sampled)

    def annotate(self, each: int) -> BatchShape:
        """The step's batch as it is first sent; a rank runs so many microbatches of it."""
        others = {"old": self._measured, "ref": self._run.algorithm.needs_reference}
        return self._sent(Verb.ANNOTATE, self._sampled, self._shape, each, others)

    def values(self, each: int) -> BatchShape:
        """The same once it has log-probabilities."""
        return self._sent(Verb.VALUES, self._annotated, self._shape, each, {})

    def update(self, shape: RunShape, each: int, critic: bool = False) -> BatchShape:
        """A minibatch of this shape with its advantages and weights."""
        if critic:
            return self._sent(Verb.UPDATE_CRITIC, self._weighed, shape, each, {})
        return self._sent(Verb.UPDATE, self._weighed, shape, each, {"factor": FACTOR})

    def probe(self, ranks: int, tokens: int) -> BatchShape:
        """What the learner answers after a load, of prompts as long as the longest."""
        probe = replace(
            self._shape, prompts=PROBE_PROMPTS, samples=PROBE_SAMPLES, completion=PROBE_TOKENS, minibatches=1
        )
        sizes = microbatch_sizes(probe, tokens, self._run.recipe.learner.shared_prefixes)
        bare = collate(self._groups(scored=False), pad=0)
        return self._sent(Verb.LOGPROBS, bare, probe, rounds(sizes.count, ranks), {})

    @property
    def _weighed(self) -> Batch:
        batch, mix, row = self._annotated, self._run.mix, self._run.algorithm
        if self._run.recipe.critic is not None:
            batch = batch.add(value=torch.zeros(batch.tokens.shape))
        return row.weigh(row.credit(batch, tuple(mix.weights.values()) if mix.each else None))

    def _sent(self, verb: Verb, batch: Batch, shape: RunShape, each: int, others: dict[str, Any]) -> BatchShape:
        rows, width = shape.prompts * shape.samples, shape.prompt + shape.completion
        said = announced(Message(verb, as_large(batch, rows, width), others))
        return BatchShape(rows, width, rows * (width - 1), each, said)

    def _groups(self, scored: bool) -> list[Group]:
        names = tuple(self._run.mix.weights) if scored and self._run.mix.each else ()
        routes = None if self._experts is None else self._experts.of_tokens(SHORT_PROMPT + SHORT_COMPLETION - 1)
        own, logp = (0,) * SHORT_COMPLETION, (0.0,) * SHORT_COMPLETION

        def answer(score: float) -> Completion:
            each = tuple((name, score) for name in names)
            return Completion.of_one_turn(
                own, logp, "length", version=0, score=score, reward_scores=each, routes=routes
            )

        prompt = Prompt(Sample(key="", prompt="", answer=""), (0,) * SHORT_PROMPT)
        return [Group(prompt, (answer(0.0), answer(1.0))) for _ in range(2)]

    def _collated(self) -> Batch:
        row, task, mix = self._run.algorithm, self._run.task, self._run.mix
        turns = isinstance(task, PlaysTurns)
        return collate(
            self._groups(scored=True),
            pad=0,
            steps=row.needs_steps or turns or (row.reads_steps and isinstance(task, ScoresSteps)),
            states=row.advantage.reads_states or turns,
            reward_names=tuple(mix.weights) if mix.each else (),
        )

    def _with_columns(self, batch: Batch) -> Batch:
        """What `annotate` adds, and what follows from it."""
        column = torch.zeros(batch.tokens.shape)
        from_engine = self.routes is not None and self.routes.from_engine
        recorded: Any = batch.routes_engine if self.old or from_engine else None
        return batch.add(
            logp_old=column if self._measured or self._run.recipe.logp_old == "engine" else None,
            logp_ref=column if self._run.algorithm.needs_reference else None,
            routes=recorded,
            routes_own=recorded if self.old and from_engine else None,
        )


def as_large(batch: Batch, rows: int, width: int) -> Batch:
    """The same columns, of so many rows of `width` tokens each, without memory."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            by_token = value.dim() == 2 and field.name != "reward_scores"
            shape = (rows, width) if by_token else (rows, *value.shape[1:])
            columns[field.name] = torch.empty(shape, dtype=value.dtype, device="meta")
        elif isinstance(value, tuple):
            row = value[0]
            columns[field.name] = (torch.empty(width - 1, *row.shape[1:], dtype=row.dtype, device="meta"),) * rows
    return Batch(**columns)
