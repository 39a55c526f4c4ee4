"""Memory of a run, planned before its model is loaded: what cannot fit is refused, what is picked joins the plan.

The numbers are those of planning/memory.py; here the machine is looked at.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from groupwise.commands.build.rollout import chat_of, selected
from groupwise.config.plan import Plan
from groupwise.config.recipe import Recipe, dump
from groupwise.config.resolve import resolved_recipe
from groupwise.core.errors import UsageError
from groupwise.core.machine.free_memory import free_memory, held_memory
from groupwise.core.processes.placement import LOCAL
from groupwise.core.task import PlaysTurns
from groupwise.engines.outside.connection import addresses_of
from groupwise.journal.journal import Journal
from groupwise.models.context import positions
from groupwise.models.files.folder import loading, read_config, require_room, weight_files
from groupwise.models.load import load_tokenizer, model_folder, require_config
from groupwise.models.moe.settings import ReplayFrom
from groupwise.models.precision import itemsize
from groupwise.planning.activations import without_memory
from groupwise.planning.memory import MemoryPlan, plan
from groupwise.planning.parts import planned_run
from groupwise.planning.run_shape import RunShape
from groupwise.rollout.segments import segments_of
from groupwise.training.optimizer import AUTO

#: Parts of the largest phase that are said by name; the others are added up.
NAMED = 4


def memory_of_folder(run: Plan, model: str) -> MemoryPlan:
    """Plan a run whose policy is in a folder: no weight is read. Raises UsageError as loading it would."""
    folder = model_folder(model)
    where = f"model = {str(folder)!r}"
    what = f"{where}: does not load as a causal language model"
    require_config(folder, where)
    config = read_config(folder, what)
    chat = chat_of(run.recipe, run.task, load_tokenizer(folder, config))
    longest = selected(run.recipe, run.task, chat).longest
    return memory_of(run, empty_model(folder, config, what), longest)


def empty_model(folder: Path, config: Any, what: str) -> Any:
    """Make the model of a folder without memory. Raises UsageError, `what` first, if it is none."""
    with loading(what):
        model = without_memory(config)
    require_room(model, weight_files(folder, what), what)
    return model


def memory_of(run: Plan, model: Any, longest: int) -> MemoryPlan:
    """Plan a run of a model without memory; `longest` prompt, tokens. Raises UsageError if it cannot fit."""
    return fitting(run, model, longest, held_memory(run.recipe.device), free_memory(run.recipe.device))


def fitting(run: Plan, model: Any, longest: int, held: int, free: int) -> MemoryPlan:
    """Plan it on a machine that has so much free, by a process that holds so much; raises as `memory_of` does."""

    def of(other: Plan) -> MemoryPlan:
        recipe, shape = other.recipe, run_shape(other, longest, positions(model.config))
        of_run = planned_run(model, shape, recipe.learner, recipe.critic, recipe.adapter, recipe.device)
        return plan(of_run, held, free)

    memory = of(run)
    if memory.needed > free:
        ways = [(way, of(other)) for way, other in _lighter(run)]
        raise UsageError(f"{' '.join(in_words(memory).split())}: more than is free; {_remedy(ways)}")
    return memory


def run_shape(run: Plan, longest: int, most: int) -> RunShape:
    """Find what of the run its memory and its time depend on; a model takes `most` tokens."""
    recipe = run.recipe
    evaluated = sum(run.evaluated.values()) * recipe.evaluation.samples
    begun = recipe.prompts_per_step * recipe.samples_per_prompt * steps_begun(recipe)
    sampled = max(begun, evaluated)
    return RunShape(
        prompts=recipe.prompts_per_step,
        samples=recipe.samples_per_prompt,
        minibatches=recipe.updates_per_batch,
        prompt=longest,
        completion=max(1, min(recipe.sampling.max_new_tokens, most - longest)),
        rows=min(recipe.engine.max_rows, -(-sampled // recipe.engine.count)),
        truncates=recipe.sampling.truncates or recipe.evaluation.truncates,
        adjusts=recipe.sampling.adjusts or recipe.evaluation.adjusts,
        engine=itemsize(recipe.engine.precision),
        reference=itemsize(recipe.reference.precision) if run.copies_reference else 0,
        reward_model=recipe.preference is not None,
        engines=recipe.engine.count,
        outside=recipe.engine.place != "inside",
        elsewhere=recipe.engine.place == "address" or recipe.placement.ray not in (None, LOCAL),
        ahead=recipe.rollout.beside,
        held=sampled if isinstance(run.task, PlaysTurns) and run.task.max_turns > 1 else 0,
        kind=recipe.engine.kind,
        max_rows=recipe.engine.max_rows,
        cache_mib=recipe.engine.cache_mib,
        ranks=recipe.learner.ranks,
        passes=recipe.passes_per_batch or 1,
        annotated=_annotated(run),
        devices=_sampling_devices(recipe),
    )


def _annotated(run: Plan) -> int:
    """Count the passes over a batch before its updates: of the old policy or for its routes, and of a reference."""
    recipe, row = run.recipe, run.algorithm
    old = (recipe.updates_per_step > 1 or row.needs_old) and recipe.logp_old != "engine"
    routes = recipe.routing.reads_routes and recipe.routing.replay is not ReplayFrom.ENGINE
    return (old or routes) + row.needs_reference


def _sampling_devices(recipe: Recipe) -> int:
    """Count the devices that sample: one an address; of children the GPUs that a Ray gives them, else the run's own."""
    engine, placement = recipe.engine, recipe.placement
    if engine.address:
        return len(addresses_of(engine.address))
    given = int(engine.count * placement.engine_gpus) if placement.ray not in (None, LOCAL) else 0
    return max(1, min(engine.count, given))


def steps_begun(recipe: Recipe) -> int:
    """Count the steps whose completions may be sampled side by side, if none has ended."""
    rollout = recipe.rollout
    turns = segments_of(recipe.sampling.max_new_tokens, rollout.turn_tokens)
    return turns if rollout.free is None else rollout.free + 1


def with_cuts(run: Plan, memory: MemoryPlan) -> Plan:
    """Put what was picked in the place of "auto"."""
    recipe, cuts = run.recipe, memory.cuts
    learner = recipe.learner.replace(
        tokens_per_microbatch=cuts.learner, chunk_logits=cuts.chunk_logits, held_logits=cuts.held_logits
    )
    critic = recipe.critic.replace(tokens_per_microbatch=cuts.critic) if recipe.critic else None
    return dataclasses.replace(run, recipe=recipe.replace(learner=learner, critic=critic))


def record_cuts(run: Plan, journal: Journal) -> None:
    """Write what was picked into the run's recipe, so that a resumed run computes the same bits."""
    journal.replace_recipe(dump(resolved_recipe(run)))


def picks(run: Plan) -> bool:
    """Tell whether anything of the recipe is picked from the free memory."""
    learner, critic = run.recipe.learner, run.recipe.critic
    chosen = [learner.tokens_per_microbatch, learner.chunk_logits, learner.held_logits]
    return AUTO in [*chosen, *([critic.tokens_per_microbatch] if critic else [])]


def in_words(memory: MemoryPlan) -> str:
    """Say in one line the peak, its phase and its largest parts, and what is free."""
    parts = {part: memory.parts[part] for part in memory.phases[memory.phase] if memory.parts[part]}
    largest = sorted(parts, key=lambda part: -parts[part])
    named = [f"{part} {size_in_words(parts[part])}" for part in largest[:NAMED]]
    rest = sum(parts[part] for part in largest[NAMED:])
    named += [f"others {size_in_words(rest)}"] * (rest > 0)
    return (
        f"memory       about {size_in_words(memory.peak)} at most, while {memory.phase} ({', '.join(named)}); "
        f"{size_in_words(memory.held)} are taken, {size_in_words(memory.free)} free; "
        f"{memory.cuts.learner:,} tokens a microbatch"
    )


def size_in_words(size: int) -> str:
    """
    >>> size_in_words(3 << 29), size_in_words(5 << 20), size_in_words(1 << 40)
    ('1.5 GiB', '5 MiB', '1.0 TiB')
    """
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
    ways = {**changes, " and ".join(list(changes)[1:]): every}
    if recipe.learner.ranks > 1:  # of one machine, whose memory they share
        ways["learner.ranks = 1"] = {"learner": recipe.learner.replace(**picked, ranks=1)}
    for words, change in ways.items():
        yield words, dataclasses.replace(run, recipe=recipe.replace(**change))


def _remedy(ways: list[tuple[str, MemoryPlan]]) -> str:
    for words, memory in ways:
        if memory.fits:
            return f"with {words} it is {size_in_words(memory.peak)}"
    words, memory = min(ways, key=lambda way: way[1].peak)
    return f"take a smaller model or a machine with more memory: with {words} it still is {size_in_words(memory.peak)}"
