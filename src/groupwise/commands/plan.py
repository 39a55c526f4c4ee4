"""What a recipe takes on so many ranks of a device, before any of them is rented: memory, bytes that pass, seconds.

Nothing of the model is loaded but its configuration and its tokenizer.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from groupwise.commands.build import too_long
from groupwise.commands.check.model import model_path
from groupwise.commands.memory import run_shape
from groupwise.commands.planned_batch import PlannedBatches
from groupwise.commands.selected import chat_of, selected
from groupwise.config import recipe as recipes
from groupwise.config.plan import Plan
from groupwise.config.resolve import resolve
from groupwise.config.validate import require_rankable
from groupwise.core.errors import UsageError
from groupwise.core.free_memory import free_memory, held_memory
from groupwise.engines.address import addresses_of
from groupwise.engines.local.prefill import require_sampled
from groupwise.models.adapters.lora import with_adapters
from groupwise.models.context import positions
from groupwise.models.folder import loading, read_config
from groupwise.models.heads import halves, require_plain_head
from groupwise.models.load import load_tokenizer, require_config
from groupwise.models.moe.record import require_routers
from groupwise.models.reward import tokens_at_once
from groupwise.planning.activations import with_value_head, without_memory
from groupwise.planning.devices import CPU, Device, device_of
from groupwise.planning.memory import MemoryPlan, Planner
from groupwise.planning.run_shape import MicrobatchSizes, RunShape, microbatch_sizes, scored_sizes
from groupwise.planning.shard_groups import Groups, gathered, groups_of, held_bytes, trained_part
from groupwise.planning.step_time import (
    Phase,
    Sampling,
    Tokens,
    forward_seconds,
    loading_seconds,
    optimizer_seconds,
    phase,
    sampling_seconds,
    step_seconds,
    tokens_of,
    training_seconds,
)
from groupwise.planning.traffic import (
    NOTHING,
    Traffic,
    annotated,
    critic_updated,
    probed,
    rounds,
    scored,
    total,
    updated,
    valued,
    weights_sent,
)
from groupwise.planning.work import Work, work_of


@dataclass(frozen=True)
class ScalePlan:
    """A run over ranks, planned.

    model       without memory, adapters included; numbers  of its weights, those of adapters not counted
    microbatch  the microbatches of the largest minibatch
    memory      of each rank
    fits_from   the fewest ranks that have room, None where no number of them has
    traffic     what passes in a step, by phase; of one rank nothing
    phases      seconds, in the order of a step
    whole       bytes of the models that every rank has whole at its start
    filled_up   how many times their size weights pass, with the rows that fill them up
    refused     why such a run would not start today; "" where it would
    """

    run: Plan
    ranks: int
    device: Device
    shape: RunShape
    numbers: int
    work: Work
    microbatch: MicrobatchSizes
    memory: MemoryPlan
    fits_from: int | None
    traffic: Mapping[str, Traffic]
    phases: Sequence[Phase]
    whole: int
    filled_up: float
    refused: str

    @property
    def seconds(self) -> float:
        """Of a step."""
        return step_seconds(self.phases, beside=self.shape.ahead and self.shape.elsewhere)

    @property
    def passes(self) -> Traffic:
        """Everything that passes in a step."""
        return total(list(self.traffic.values()))


def scale_plan(recipe: str, overrides: Mapping[str, object], ranks: int | None, device: str) -> ScalePlan:
    """Of a recipe with these keys over it, on so many ranks (those of the recipe unless said) of a device.

    Raises UsageError where the recipe is wrong, its model or its problems are not there, or its time cannot be told.
    """
    run = resolve(recipes.load(recipe, overrides))
    count = run.recipe.learner.ranks if ranks is None else ranks
    held, free = (held_memory(CPU), free_memory(CPU)) if device == CPU else (0, 0)
    on = device_of(device, count, free)
    with TemporaryDirectory() as place:
        folder = model_path(run, Path(place))
        where = f"model = {str(folder)!r}"
        require_config(folder, where)
        what = f"{where}: does not load as a causal language model"
        config = read_config(folder, what)
        with loading(what):
            model = without_memory(config)
        longest = selected(run, chat_of(run, load_tokenizer(folder, config))).longest
    _require_trainable(run, model)
    if wrong := too_long(run, config, longest):
        raise UsageError(wrong)
    shape = dataclasses.replace(run_shape(run, longest, positions(config)), ranks=count)
    return _planned(run, model, shape, on, held, int(on.memory))


def _require_trainable(run: Plan, model: Any) -> None:
    """Raises UsageError for a model (device meta) that the learner or the local engine would refuse."""
    with suppress(NotImplementedError, RuntimeError, ValueError):  # a branch on a number: device meta has none
        require_plain_head(model)
    if run.recipe.engine.name == "local":
        require_sampled(model)
    if run.recipe.routing.changed:
        require_routers(halves(model)[0])


def _planned(run: Plan, model: Any, shape: RunShape, device: Device, held: int, free: int) -> ScalePlan:
    recipe, ranks = run.recipe, shape.ranks
    kind = CPU if device.name == CPU else "cuda"
    planner = Planner(model, shape, recipe.learner, recipe.critic, recipe.adapter, kind)
    memory = planner.plan(held, free)
    step = _Step(run, model, shape, device, memory)
    return ScalePlan(
        run=run,
        ranks=ranks,
        device=device,
        shape=shape,
        numbers=sum(p.numel() for p in model.parameters()),
        work=step.work,
        microbatch=step.sizes(shape, critic=False),
        memory=memory,
        fits_from=fewest_ranks(planner, held, free),
        traffic=step.traffic if ranks > 1 else {},
        phases=step.phases,
        whole=sum(held_bytes(groups.every, 1) for groups in step.models),
        filled_up=step.filled_up,
        refused=_refused(run, ranks, kind),
    )


def fewest_ranks(planner: Planner, held: int, free: int) -> int | None:
    """The fewest ranks at which every rank has room; what a rank holds does not grow with their number on a GPU."""
    enough = next((n for n in (2**i for i in range(11)) if planner.plan(held, free, n).fits), None)
    if enough is None or enough <= 2:
        return enough
    low, high = enough // 2, enough  # the first is too few
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if planner.plan(held, free, middle).fits else (middle, high)
    return high


def _refused(run: Plan, ranks: int, kind: str) -> str:
    """What `groupwise train` would say to so many ranks on such a device."""
    learner = run.recipe.learner.replace(ranks=ranks)
    try:
        require_rankable(run.recipe.replace(learner=learner, device=kind))
    except UsageError as error:
        return str(error)
    return ""


class _Step:
    """A step's passes over a model, its traffic and its seconds."""

    def __init__(self, run: Plan, model: Any, shape: RunShape, device: Device, memory: MemoryPlan) -> None:
        recipe = run.recipe
        self._run, self._shape, self._device, self._cuts = run, shape, device, memory.cuts
        self._ranks, self._line, self._bf16 = shape.ranks, recipe.learner.shared_prefixes, recipe.learner.bf16
        adapted = with_adapters(model, recipe.adapter) if recipe.adapter.rank else model
        value_model = None if recipe.critic is None else with_value_head(model)
        self._policy = groups_of(adapted, self._bf16)
        copied = groups_of(model, self._bf16, shape.reference) if shape.reference else None
        self._reference = copied or (self._policy if run.algorithm.needs_reference else None)
        self._critic = None if value_model is None else groups_of(value_model, self._bf16)
        reward_model = with_value_head(model, bias=False) if shape.reward_model else None
        self._reward = None if reward_model is None else groups_of(reward_model)
        self._reward_work = None if reward_model is None else work_of(reward_model, value=True)
        self.filled_up = gathered(self._policy.every, shape.ranks) / gathered(self._policy.every, 1)
        every = (self._policy, copied, self._critic, self._reward)
        self.models = [groups for groups in every if groups is not None]
        self.work = work_of(adapted)
        self._value_work = None if value_model is None else work_of(value_model, value=True)
        self._batches = PlannedBatches(run, model, shape)
        self._trains_head = not recipe.adapter.rank
        self._old = self._batches.old

    def sizes(self, shape: RunShape, critic: bool) -> MicrobatchSizes:
        """The microbatches of a minibatch of this shape."""
        cuts = self._cuts
        return microbatch_sizes(shape, cuts.critic if critic else cuts.learner, self._line and not critic)

    @cached_property
    def _whole(self) -> RunShape:
        """The step's batch as one minibatch."""
        return dataclasses.replace(self._shape, minibatches=1)

    @cached_property
    def _minibatches(self) -> dict[RunShape, int]:
        """The minibatches of a step, and how many there are of each."""
        count = min(self._shape.minibatches, self._shape.prompts)
        small, larger = divmod(self._shape.prompts, count)
        sizes = {small + 1: larger, small: count - larger}
        passes = self._run.passes_per_batch
        return {dataclasses.replace(self._whole, prompts=p): passes * n for p, n in sizes.items() if n}

    def _rounds(self, critic: bool) -> dict[RunShape, int]:
        """Microbatches that each rank runs, of the step's batch and of each minibatch."""
        return {s: rounds(self.sizes(s, critic).count, self._ranks) for s in (self._whole, *self._minibatches)}

    @cached_property
    def traffic(self) -> dict[str, Traffic]:
        """By phase, the words of which `phases` has too."""
        ranks, of, policy = self._ranks, self._batches, self._policy
        each = self._rounds(critic=False)
        minibatches = self._minibatches.items()
        updates = [updated(of.update(s, each[s]), policy, ranks, of.routes).times(n) for s, n in minibatches]
        begun = of.annotate(each[self._whole])
        parts = {}
        if self._reward is not None:
            rows, sizes = self._shape.prompts * self._shape.samples, self._scored_sizes
            parts["score"] = scored(rows, sizes.tokens, sizes.count, self._reward, ranks)
        parts["annotate"] = annotated(begun, policy, self._reference, ranks, self._old, of.routes)
        if (critic := self._critic) is not None:
            own = self._rounds(critic=True)
            parts["values"] = valued(of.values(own[self._whole]), critic, ranks)
            parts["update the critic"] = total(
                [critic_updated(of.update(s, own[s], critic=True), critic, ranks).times(n) for s, n in minibatches]
            )
        parts["update"] = total(updates)
        parts["load weights"] = weights_sent(self._policy, ranks)
        parts["probe"] = probed(of.probe(ranks, self._cuts.learner), self._policy, ranks)
        return parts

    @cached_property
    def phases(self) -> list[Phase]:
        """In the order of a step."""
        ranks, device = self._ranks, self._device
        passed: Mapping[str, Traffic] = self.traffic if ranks > 1 else {}

        def over(name: str, seconds: tuple[float, float]) -> Phase:
            return phase(name, seconds[0], passed.get(name, NOTHING), ranks, device, seconds[1])

        passes = self._old + (self._reference is not None)
        before, every = self._forward(self.work, self._whole, critic=False)
        done = [self._sampled()]
        if self._reward_work is not None:
            done.append(over("score", self._scoring(self._reward_work)))
        done.append(over("annotate", (passes * before, passes * every)))
        if self._value_work is not None:
            done.append(over("values", self._forward(self._value_work, self._whole, critic=True)))
        done.append(over("update", self._updates(self.work, self._policy, critic=False)))
        if self._value_work is not None and self._critic is not None:
            done.append(over("update the critic", self._updates(self._value_work, self._critic, critic=True)))
        weights = held_bytes(self._policy.every, 1)
        done.append(over("load weights", (loading_seconds(weights, self._shape, device), 0.0)))
        done.append(over("probe", (self.work.layers * device.layer, 0.0)))
        return done

    def _forward(self, work: Work, shape: RunShape, critic: bool) -> tuple[float, float]:
        sizes = self.sizes(shape, critic)
        tokens = tokens_of(shape, sizes.busiest(self._ranks), sizes.tokens, self._line and not critic)
        return forward_seconds(work, tokens, rounds(sizes.count, self._ranks), self._device, self._bf16)

    @cached_property
    def _scored_sizes(self) -> MicrobatchSizes:
        return scored_sizes(self._shape, tokens_at_once(CPU if self._device.name == CPU else "cuda"))

    def _scoring(self, work: Work) -> tuple[float, float]:
        """Of a reward model, which computes in float32 and reads the last token of each row; it learns nothing."""
        sizes, shape = self._scored_sizes, self._shape
        length = shape.prompt + shape.completion
        tokens = Tokens(sizes.busiest(self._ranks), sizes.tokens, pairs=length / 2, predicted=1 / length)
        seconds, _ = forward_seconds(work, tokens, rounds(sizes.count, self._ranks), self._device, bf16=False)
        return seconds, 0.0

    def _updates(self, work: Work, groups: Groups, critic: bool) -> tuple[float, float]:
        """All updates of a step, the optimizer's work included."""
        seconds = operations = 0.0
        learner, line = self._run.recipe.learner, self._line and not critic
        recompute, trains_head = learner.recompute and not critic, critic or self._trains_head
        for shape, count in self._minibatches.items():
            sizes = self.sizes(shape, critic)
            tokens = tokens_of(shape, sizes.busiest(self._ranks), sizes.tokens, line)
            each = rounds(sizes.count, self._ranks)
            own, every = training_seconds(work, tokens, each, self._device, self._bf16, recompute, trains_head)
            own += optimizer_seconds(trained_part(groups.every, self._ranks), self._device)
            seconds, operations = seconds + count * own, operations + count * every
        return seconds, operations

    def _sampled(self) -> Phase:
        engine, devices, engines = self._run.recipe.engine, 1, 1
        if engine.address:
            devices = len(addresses_of(engine.address))
        elif engine.place == "child":
            devices = self._engine_devices(engine.count)
            engines = -(-engine.count // devices)
        how = Sampling(devices, engines, at_once=engine.max_rows, launches=engine.name != "vllm")
        return sampling_seconds(self.work, self._shape, how, self._device)

    def _engine_devices(self, engines: int) -> int:
        """The devices of so many engines in children: this run's own, or those that a Ray elsewhere gives each."""
        if self._shape.elsewhere and self._device.name != CPU:
            return max(1, int(engines * self._run.recipe.placement.engine_gpus))
        return 1
