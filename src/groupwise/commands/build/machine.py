"""Threads, memory and disk that a run takes, looked at before its model is loaded.

Memory is planned by planning/memory.py. What cannot fit is refused, and what is picked joins the plan.
"""

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from groupwise.commands.build.rollout import chat_of, selected
from groupwise.config.given import Given
from groupwise.config.plan import Plan
from groupwise.config.recipe import Recipe
from groupwise.config.resolve import resolve
from groupwise.config.validate import require_offloadable
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import existing_parent
from groupwise.core.machine.cards import Cards, placed, require_cards
from groupwise.core.machine.facts import cores, free_threads, held_cores
from groupwise.core.machine.free_memory import free_memory, held_memory
from groupwise.core.machine.gpu import card, gpu
from groupwise.core.processes.place import LOCAL, Role
from groupwise.core.task import PlaysTurns
from groupwise.engines.outside.connection import addresses_of
from groupwise.models.adapters.settings import AdapterSettings, adapted_weights, adapter_size
from groupwise.models.context import positions
from groupwise.models.files.folder import loading, read_config, require_room, weight_files
from groupwise.models.load import load_tokenizer, model_folder, require_config
from groupwise.models.moe.settings import ReplayFrom
from groupwise.models.multimodal import whole_of
from groupwise.models.precision import itemsize
from groupwise.planning.activations import without_memory
from groupwise.planning.memory import MemoryPlan, plan
from groupwise.planning.parts import planned_run
from groupwise.planning.run_shape import RunShape
from groupwise.rollout.segments import segments_of
from groupwise.training.checkpoint import CHECKPOINTS, steps
from groupwise.training.learner_settings import LearnerSettings
from groupwise.training.optimizer import AUTO
from groupwise.training.ranks.followers import GivenRanks
from groupwise.training.settings import Guard

#: Parts of the largest phase that are said by name; the others are added up.
NAMED = 4
#: Bytes of a trained number in a checkpoint, float32: its weight, and two moments of AdamW.
BYTES = 12
REMEDY = "set checkpoint.keep lower, set runs to another disk, or free space"


def with_threads(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """Pick the number of threads of a recipe, and say a line if not all cores are free.

    They are picked once, at the start of a run, because its bits depend on their number.
    """
    usual = max(1, torch.get_num_threads() // recipe.learner.ranks)
    if recipe.device == "cuda" or max(usual, 1 if recipe.threads == AUTO else recipe.threads) == 1:
        return recipe.replace(threads=usual if recipe.threads == AUTO else recipe.threads), []
    held = held_cores()
    free = free_threads(usual, held, among=cores())
    busy = f"other work holds {held:.1f} of {cores()} cores"
    if recipe.threads == AUTO:
        words = f"threads      {free} instead of {usual}: {busy}, and steps with more may take many times as long"
        return recipe.replace(threads=free), [words] * (free < usual)
    slow = f"threads      {recipe.threads}, as the recipe says: {busy}, so steps may take many times as long"
    return recipe, [slow] * (free < min(usual, recipe.threads))


def plan_of(one: Given, recipe: Recipe) -> tuple[Plan, list[str]]:
    """Resolve what a program gives, `recipe` in the place of its own, with threads picked; and what is said of them."""
    loaded, notes = with_threads(recipe)
    notes = [*one.notes, *notes]
    loaded, files = one.placed(loaded)
    plan = resolve(loaded, files=files)
    require_offloadable(plan.recipe)
    if plan.recipe.device == "cuda":
        card().require_kernels("device = 'cuda'")
    elif recipe.device == "auto" and (wasted := gpu().wasted):
        notes.append(f"device       cpu: {wasted}")
    return plan, notes


@contextmanager
def threads(recipe: Recipe) -> Iterator[None]:
    """Give torch the recipe's threads inside the block."""
    before = torch.get_num_threads()
    if recipe.threads != AUTO:
        torch.set_num_threads(recipe.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cards_of(run: Plan, count: int | None = None, given: GivenRanks | None = None) -> Cards | None:
    """Place the run's ranks and its engines in children on the GPUs of this machine; None on a CPU, and where a Ray
    places them.

    count  GPUs that there are; None looks
    given  this process as torchrun has started it
    Raises UsageError if ranks have no card of their own, and are not to share one.
    """
    recipe = run.recipe
    if recipe.device == "cpu" or recipe.placement.ray:
        return None
    count = torch.cuda.device_count() if count is None else count
    ranks = recipe.learner.ranks if given is None else given.local_size
    require_cards(count, ranks, recipe.placement.share_cards)
    return placed(count, ranks, run.processes.get(Role.ENGINE, 0))


def memory_of_folder(run: Plan, model: str, cards: Cards | None = None) -> MemoryPlan:
    """Plan a run whose policy is in a folder: no weight is read. Raises UsageError as loading it would."""
    folder = model_folder(model)
    require_config(folder, f"model = {str(folder)!r}")
    policy = empty_model(folder)
    chat = chat_of(run.recipe, run.task, load_tokenizer(folder, policy.config))
    return memory_of(run, policy, selected(run.recipe, run.task, chat).longest, cards=cards)


def empty_model(folder: Path, weights: bool = True) -> Any:
    """Make the causal language model of a folder without memory. Raises UsageError if it is none.

    weights  whether the folder is to have files of weights, as large as the model's
    """
    what = f"model = {str(folder)!r}: does not load as a causal language model"
    config = read_config(folder, what)
    with loading(what):
        model = without_memory(config)
    if weights:
        require_room(model, weight_files(folder, what), what)
    return model


def memory_of(
    run: Plan,
    model: Any,
    longest: int,
    held: int | None = None,
    free: int | None = None,
    cards: Cards | None = None,
) -> MemoryPlan:
    """Plan a run of a model without memory. Raises UsageError if it cannot fit.

    longest     prompt, tokens
    held, free  bytes that this process holds, and that the machine has left; None looks
    cards       GPUs that its processes take
    """
    held = held_memory(run.recipe.device) if held is None else held
    free = free_memory(run.recipe.device) if free is None else free

    def of(other: Plan) -> MemoryPlan:
        recipe, shape = other.recipe, run_shape(other, longest, positions(model.config), cards)
        with loading(f"what a run of {type(model).__name__} takes cannot be planned"):
            of_run = planned_run(model, shape, recipe.learner, recipe.critic, recipe.adapter, recipe.device)
            return plan(of_run, held, free)

    memory = of(run)
    if memory.needed > free:
        ways = [(way, of(other)) for way, other in _lighter(run)]
        raise UsageError(f"{' '.join(in_words(memory).split())}: more than is free; {_remedy(ways)}")
    return memory


def run_shape(run: Plan, longest: int, most: int, cards: Cards | None = None) -> RunShape:
    """Find what of the run its memory and its time depend on; a model takes `most` tokens."""
    recipe, engine, free = run.recipe, run.recipe.engine, run.recipe.rollout.free
    evaluated = sum(run.evaluated.values()) * recipe.evaluation.samples
    turns = segments_of(recipe.sampling.max_new_tokens, recipe.rollout.turn_tokens)
    steps_begun = turns if free is None else free + 1
    sampled = max(recipe.prompts_per_step * recipe.samples_per_prompt * steps_begun, evaluated)
    return RunShape(
        prompts=recipe.prompts_per_step,
        samples=recipe.samples_per_prompt,
        minibatches=recipe.updates_per_batch,
        prompt=longest,
        completion=max(1, min(recipe.sampling.max_new_tokens, most - longest)),
        rows=min(engine.max_rows, -(-sampled // engine.count)),
        truncates=recipe.sampling.truncates or recipe.evaluation.truncates or run.algorithm.trust.sampler_top > 0,
        adjusts=recipe.sampling.adjusts or recipe.evaluation.adjusts,
        engine=itemsize(engine.precision),
        reference=itemsize(recipe.reference.precision) * (run.copies_reference + len(recipe.reference.by_source)),
        reward_model=recipe.preference is not None,
        engines=engine.count,
        outside=engine.place != "inside",
        elsewhere=engine.place == "address" or recipe.placement.ray not in (None, LOCAL),
        ahead=recipe.rollout.beside,
        held=sampled if isinstance(run.task, PlaysTurns) and run.task.max_turns > 1 else 0,
        kind=engine.kind,
        max_rows=engine.max_rows,
        cache_mib=engine.cache_mib,
        sleep=engine.sleep,
        memory_share=engine.memory_share,
        ranks=recipe.learner.ranks,
        top=run.algorithm.kl.top,
        engine_top=run.algorithm.trust.sampler_top,
        passes=recipe.passes_per_batch or 1,
        annotated=_annotated(run),
        devices=_sampling_devices(recipe, cards),
        offloaded=_offloaded(recipe),
        in_files=recipe.in_files,
        beside=cards.beside_ranks if cards and cards.engines else None,
    )


def _offloaded(recipe: Recipe) -> frozenset[str]:
    """Name the models that are on the host while they are not used, as a plan of memory names them."""
    sections = {"reference": recipe.reference, "critic": recipe.critic, "reward model": recipe.preference}
    return frozenset(name for name, section in sections.items() if section is not None and section.offload)


def _annotated(run: Plan) -> int:
    """Count the passes over a batch beside its updates: of the old policy or for its routes, and of a reference."""
    recipe, row = run.recipe, run.algorithm
    old = (recipe.updates_per_step > 1 or row.needs_old) and recipe.logp_old != "engine"
    routes = recipe.routing.reads_routes and recipe.routing.replay is not ReplayFrom.ENGINE
    in_updates = row.kl.divergence is not None and not row.kl.top
    return (old or routes) + row.needs_reference + in_updates * (recipe.passes_per_batch or 1)


def _sampling_devices(recipe: Recipe, cards: Cards | None) -> int:
    """Count the devices that sample: one an address; of children the GPUs that they are on, else the run's own."""
    engine, placement = recipe.engine, recipe.placement
    if engine.address:
        return len(addresses_of(engine.address))
    if cards is not None:
        return cards.sampling
    given = int(engine.count * placement.engine_gpus) if placement.ray not in (None, LOCAL) else 0
    return max(1, min(engine.count, given))


def with_cuts(run: Plan, memory: MemoryPlan) -> Plan:
    """Put what was picked in the place of "auto"."""
    recipe, cuts = run.recipe, memory.cuts
    learner = recipe.learner.replace(
        tokens_per_microbatch=cuts.learner, chunk_logits=cuts.chunk_logits, held_logits=cuts.held_logits
    )
    critic = recipe.critic.replace(tokens_per_microbatch=cuts.critic) if recipe.critic else None
    return dataclasses.replace(run, recipe=recipe.replace(learner=learner, critic=critic))


def picks(run: Plan) -> bool:
    """Tell whether anything of the recipe is picked from the free memory."""
    learner, critic = run.recipe.learner, run.recipe.critic
    chosen = [learner.tokens_per_microbatch, learner.chunk_logits, learner.held_logits]
    return AUTO in [*chosen, *([critic.tokens_per_microbatch] if critic else [])]


def in_words(memory: MemoryPlan) -> str:
    """Say in one line the peak, its phase and its largest parts, and what is free."""
    named = largest_parts({part: memory.parts[part] for part in memory.phases[memory.phase]})
    return (
        f"memory       about {size_in_words(memory.peak)} at most, while {memory.phase} ({named}); "
        f"{size_in_words(memory.held)} in use, {size_in_words(memory.free)} free; "
        f"{memory.cuts.learner:,} tokens a microbatch"
    )


def largest_parts(parts: Mapping[str, int], small: bool = False) -> str:
    """Name the largest parts with their sizes, and add up the others; `small` sizes are said in KiB and bytes."""
    names = sorted((part for part, size in parts.items() if size), key=lambda part: -parts[part])
    rest = sum(parts[part] for part in names[NAMED:])
    sizes = [*((part, parts[part]) for part in names[:NAMED]), *[("others", rest)] * (rest > 0)]
    return ", ".join(f"{part} {size_in_words(size, small)}" for part, size in sizes)


def size_in_words(size: int, small: bool = False) -> str:
    """
    >>> size_in_words(3 << 29), size_in_words(5 << 20), size_in_words(1 << 40), size_in_words(1 << 19)
    ('1.5 GiB', '5 MiB', '1.0 TiB', '0 MiB')
    >>> size_in_words(800, small=True), size_in_words(70_000, small=True), size_in_words(3 << 30, small=True)
    ('800 B', '68.4 KiB', '3.0 GiB')
    """
    if small and size < 1 << 20:
        return f"{size} B" if size < 1 << 10 else f"{size / (1 << 10):.1f} KiB"
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 2**20:,.0f} MiB"


def _lighter(run: Plan) -> Iterator[tuple[str, Plan]]:
    """List settings that take less memory, and the plan under each; the last under all of them."""
    recipe = run.recipe
    picked = {"tokens_per_microbatch": AUTO, "chunk_logits": AUTO, "held_logits": AUTO}
    rows = max(1, min(recipe.engine.max_rows, 32))
    changes = {
        'learner.tokens_per_microbatch = "auto"': {"learner": recipe.learner.replace(**picked)},
        "learner.recompute = true": {"learner": recipe.learner.replace(**picked, recompute=True)},
        f"engine.max_rows = {rows}": {"engine": recipe.engine.replace(max_rows=rows)},
    }
    every: dict[str, Any] = {}
    for change in changes.values():
        every |= change
    ways = {**changes, (words := " and ".join(list(changes)[1:])): every}
    if recipe.device == "cuda" and recipe.learner.ranks == 1:
        for more, change in _to_the_host(run, every["learner"]).items():
            words, every = f"{words} and {more}", every | change
            ways[words] = every
    if recipe.learner.ranks > 1:  # of one machine, whose memory they share
        ways["learner.ranks = 1"] = {"learner": recipe.learner.replace(**picked, ranks=1)}
    for words, change in ways.items():
        yield words, dataclasses.replace(run, recipe=recipe.replace(**change))


def _to_the_host(run: Plan, learner: LearnerSettings) -> dict[str, dict[str, Any]]:
    """Map settings that take something to the host, in words, to the sections that they change."""
    recipe, preference = run.recipe, run.recipe.preference
    ways: dict[str, dict[str, Any]] = {'learner.moments = "host"': {"learner": learner.replace(moments="host")}}
    if run.copies_reference:
        ways["reference.offload = true"] = {"reference": recipe.reference.replace(offload=True)}
    if preference is not None:
        ways["preference.offload = true"] = {"preference": preference.replace(offload=True)}
    if recipe.critic is not None:
        critic = recipe.critic.replace(offload=True, moments="host")
        ways['critic.offload = true and critic.moments = "host"'] = {"critic": critic}
    return ways


def _remedy(ways: list[tuple[str, MemoryPlan]]) -> str:
    for words, memory in ways:
        if memory.fits:
            return f"with {words} it is {size_in_words(memory.peak)}"
    words, memory = min(ways, key=lambda way: way[1].peak)
    return f"take a smaller model or a machine with more memory: with {words} it still is {size_in_words(memory.peak)}"


@dataclass(frozen=True)
class DiskPlan:
    """Bytes of a run's checkpoints.

    checkpoint  bytes of one
    more        bytes of those still to come that are there at once: those that stay, and one that is being written
    free        free bytes of the disk with the run folder
    """

    checkpoint: int
    more: int
    free: int

    def __str__(self) -> str:
        megabytes = [f"{size / 1e6:,.0f} MB" for size in (self.checkpoint, self.more, self.free)]
        return "a checkpoint takes about {}, those to come {} at once, and {} are free".format(*megabytes)

    @property
    def fits(self) -> bool:
        return self.more <= self.free

    def require(self) -> None:
        """Raise UsageError if the checkpoints have no room."""
        if not self.fits:
            raise UsageError(f"disk: {self}; {REMEDY}")


def disk_plan(
    recipe: Recipe, folder: Path, policy: nn.Module, critic: nn.Module | None, copies_reference: bool
) -> DiskPlan:
    """Plan the checkpoints of a run with these models, in its folder."""
    reference, settings = recipe.reference, recipe.checkpoint
    numbers = policy_numbers(recipe.adapter, policy) + (0 if critic is None else _trained(critic))
    around = None if recipe.adapter.rank else whole_of(policy)
    checkpoint = BYTES * numbers + (around.untrained_bytes if around else 0)
    if copies_reference and reference.every:
        checkpoint += itemsize(reference.precision) * sum(p.numel() for p in policy.parameters())
    made = -(-recipe.steps // settings.every) + (recipe.guard is Guard.ROLLBACK)  # that one also at step 0
    count = min(settings.keep + 1, made) - len(steps(folder / CHECKPOINTS))
    return DiskPlan(checkpoint, max(1, count) * checkpoint, shutil.disk_usage(existing_parent(folder)).free)


def policy_numbers(adapter: AdapterSettings, policy: nn.Module) -> int:
    """Count the numbers of the policy that train: with adapters these alone, which are not in the model yet."""
    return adapter_size(adapted_weights(policy, adapter), adapter.rank) if adapter.rank else _trained(policy)


def _trained(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
