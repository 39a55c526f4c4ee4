"""Plan of a recipe on so many ranks of a device, before any is rented: memory of each, about how long a step takes.

Nothing of the model is loaded but its configuration and its tokenizer.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any

from groupwise.commands.build.learner import rows_apart
from groupwise.commands.build.machine import empty_model, largest_parts, run_shape, size_in_words
from groupwise.commands.build.rollout import chat_of, selected, too_long
from groupwise.commands.check.model import model_path
from groupwise.config import recipe as recipes
from groupwise.config.plan import Plan
from groupwise.config.resolve import resolve
from groupwise.config.validate import require_offloadable, require_rankable
from groupwise.core.errors import GroupwiseError, UsageError, counted
from groupwise.core.machine.cards import NOT_TRIED, Cards, placed
from groupwise.core.machine.free_memory import free_memory, held_memory
from groupwise.core.processes.place import Role
from groupwise.core.task import PlaysTurns
from groupwise.engines.local.trial import WHOLE_TEXTS, require_sampled
from groupwise.models.context import positions
from groupwise.models.forward.heads import halves, require_known_head
from groupwise.models.load import has_tokenizer, load_tokenizer, require_config
from groupwise.models.moe.record import require_routers
from groupwise.planning.memory import OTHER_RANKS, USABLE, MemoryPlan, fewest_ranks, plan
from groupwise.planning.parts import WORKSPACES, PlannedRun, engine_parts, planned_run
from groupwise.planning.run_shape import RunShape, microbatch_sizes
from groupwise.planning.shard_groups import held_bytes
from groupwise.planning.step_time import CPU, Device, Phase, device_of, numbers_of, step_phases, step_seconds

#: Columns of a line, of its first word, and of a table's first column.
WIDTH, WORD, FIRST = 112, 13, 24
#: Size of what may be small, in words.
_size = partial(size_in_words, small=True)
#: What plans have been put beside (docs/howto/scale.md).
COMPARED_ON_CPU = "runs of one and two ranks on CPUs: memory within 8 %, seconds within a third, of tiny models a sixth"
COMPARED_ON_GPUS = (
    "memory: five tiny models on one H200, within 5 %; seconds: two runs there, 0.3 and 0.6 of what they took, and "
    "training rates that others publish of 8 to 128 GPUs, within a quarter; sampling: nothing (docs/howto/scale.md)"
)
#: Sampling that takes this share of a step, or more, is said.
MOST_OF_A_STEP = 0.5


@dataclass(frozen=True)
class ScalePlan:
    """A run over ranks, planned.

    shape      its lengths, rows and ranks
    cards      GPUs of the run's own machine that its ranks and engines take, if it is for the run to say
    planned    its models, without memory
    memory     of each rank
    fits_from  the fewest ranks that have room; None if no number of them has
    phases     an estimate of the time of a step, in its order
    refused    why such a run would not start today; "" if it would
    """

    run: Plan
    device: Device
    shape: RunShape
    cards: Cards | None
    planned: PlannedRun
    memory: MemoryPlan
    fits_from: int | None
    phases: Sequence[Phase]
    refused: str

    @property
    def ranks(self) -> int:
        """Number of processes that hold the policy together."""
        return self.shape.ranks

    @property
    def engine_card(self) -> int:
        """Bytes of an engine that has a card for itself; 0 if none has."""
        if self.cards is None or not self.cards.alone:
            return 0
        if self.shape.memory_share is not None:
            return int(self.shape.memory_share * self.device.memory)
        own = engine_parts(self.planned, self.memory.cuts)
        return WORKSPACES + sum(own[part] for part in ("engine's weights", "engine's cache", "drawing"))

    @property
    def seconds(self) -> float:
        """Estimate of a step's seconds."""
        apart = self.shape.elsewhere or (self.cards is not None and self.cards.apart)
        return step_seconds(self.phases, beside=self.shape.ahead and apart)


def scale_plan(
    recipe: str, overrides: Mapping[str, object], ranks: int | None, device: str, cards: int | None = None
) -> ScalePlan:
    """Plan a recipe with these keys over it, on so many ranks (those of the recipe unless said) of a device.

    cards  devices that there are, of which engines in children take those that no rank has; None: one a rank
    Raises UsageError if the recipe is wrong, its model or its problems are not there, or the device is not known.
    """
    run = resolve(recipes.load(recipe, overrides))
    count = run.recipe.learner.ranks if ranks is None else ranks
    held, free = (held_memory(CPU), free_memory(CPU)) if device == CPU else (0, 0)
    on = device_of(device, count, free)
    with TemporaryDirectory() as place:
        folder = model_path(run.recipe, run.task, Path(place))
        require_config(folder, f"model = {str(folder)!r}")
        model = empty_model(folder, weights=False)
        longest = _longest_prompt(run, folder, model.config)
    uncached = _require_trainable(run, model)
    if wrong := too_long(run.recipe, model.config, longest):
        raise UsageError(wrong)
    on_cards = _cards(run, on, count, count if cards is None else cards)
    shape = dataclasses.replace(run_shape(run, longest, positions(model.config), on_cards), ranks=count)
    shape = dataclasses.replace(shape, uncached=uncached)
    return _planned(run, model, shape, on, on_cards, held)


def _cards(run: Plan, device: Device, ranks: int, cards: int) -> Cards | None:
    """Place ranks and engines in children on the cards of the run's own machine; None on a CPU and with a Ray.

    Raises UsageError for fewer cards than ranks.
    """
    if device.name == CPU:
        return None
    if cards < ranks:
        raise UsageError(f"--cards {cards}: {ranks} ranks take a card each; give {ranks} or more, or fewer --ranks")
    if run.recipe.placement.ray:
        return None
    here, engines = min(cards, device.machine), run.processes.get(Role.ENGINE, 0)
    return placed(here, min(ranks, here), engines)


def _longest_prompt(run: Plan, folder: Path, config: Any) -> int:
    """Find the longest prompt, tokens. Where there is a configuration and no tokenizer, it is as long as it may be."""
    limit = run.recipe.max_prompt_tokens
    if limit and not has_tokenizer(folder):
        return limit
    return selected(run.recipe, run.task, chat_of(run.recipe, run.task, load_tokenizer(folder, config))).longest


def _require_trainable(run: Plan, model: Any) -> str:
    """Raise UsageError for a model (device meta) that the learner or the local engine would refuse -> why the engine
    runs whole texts, "" if it does not.
    """
    try:
        require_known_head(model)
    except GroupwiseError:
        raise
    except Exception:  # it branches on a number, which device meta does not have
        pass
    if run.recipe.routing.changed:
        require_routers(halves(model)[0])
    return "" if run.recipe.engine.kind.own_layers else require_sampled(model).uncached


def _planned(run: Plan, model: Any, shape: RunShape, device: Device, cards: Cards | None, held: int) -> ScalePlan:
    recipe, free = run.recipe, int(device.memory)
    kind = CPU if device.name == CPU else "cuda"
    planned = planned_run(model, shape, recipe.learner, recipe.critic, recipe.adapter, kind)
    memory = plan(planned, held, free)
    return ScalePlan(
        run=run,
        device=device,
        shape=shape,
        cards=cards,
        planned=planned,
        memory=memory,
        fits_from=fewest_ranks(planned, held, free),
        phases=step_phases(planned, memory.cuts, device),
        refused=_refused(run, shape.ranks, kind),
    )


def _refused(run: Plan, ranks: int, kind: str) -> str:
    """Say what `groupwise train` would answer to so many ranks on such a device."""
    learner = run.recipe.learner.replace(ranks=ranks)
    try:
        require_rankable(run.recipe.replace(learner=learner, device=kind))
        require_offloadable(run.recipe.replace(learner=learner, device=kind))
    except UsageError as error:
        return str(error)
    return ""


def in_words(scale: ScalePlan) -> str:
    """Say all of it, for the person who decides how many devices to rent."""
    return "\n\n".join("\n".join(part) for part in (_what(scale), _memory(scale), _time(scale), _constants(scale)))


def _what(scale: ScalePlan) -> list[str]:
    run, shape = scale.run, scale.shape
    recipe, device = run.recipe, scale.device
    machines = -(-scale.ranks // device.machine)
    where = f"{device.title}" + (f", {machines} machines of {device.machine}" if machines > 1 else "")
    ranks = f"{scale.ranks} rank" + "s" * (scale.ranks > 1)
    trained = f"adapters of rank {recipe.adapter.rank} train" if recipe.adapter.rank else "all train"
    weights = sum(p.numel() for p in scale.planned.base.parameters())
    numbers = numbers_of(scale.planned.policy.model)
    of_token = f", of which a token goes through {numbers.of_token + numbers.head:,.0f}" if numbers.experts else ""
    copies = ["a critic"] * (recipe.critic is not None) + ["a reference"] * (shape.reference > 0)
    copies += ["a reward model"] * shape.reward_model
    beside = f"; beside it {', '.join(copies)}" if copies else ""
    lines = [
        _line("plan", f"{recipe.name} on {ranks}: {where}"),
        _line("policy", f"{recipe.origin}, {weights:,} weights{of_token}; {trained}{beside}"),
        _line(
            "a step",
            f"{shape.prompts} prompts of at most {shape.prompt} tokens x {shape.samples} completions of at most "
            f"{shape.completion}; {counted(shape.passes, 'pass')} of {counted(shape.minibatches, 'update')}",
        ),
        _line("microbatches", _microbatches(scale)),
    ]
    if apart := rows_apart(recipe, scale.planned.base.config, shape.prompt):
        lines.append(_line("rows", apart))
    if shape.uncached:
        lines.append(_line("engine", f"{WHOLE_TEXTS}: {shape.uncached}"))
    if scale.cards is not None and len(scale.cards.ranks) + len(scale.cards.engines) > 1:
        lines.append(_line("cards", "on the run's own machine " * (machines > 1) + str(scale.cards)))
    return [*lines, *([_line("not yet", f"groupwise train says: {scale.refused}")] if scale.refused else [])]


def _microbatches(scale: ScalePlan) -> str:
    shape, ranks, tokens = scale.shape, scale.ranks, scale.memory.cuts.learner
    line = scale.planned.learner.shared_prefixes
    sizes = microbatch_sizes(shape, tokens, line)
    words = f"{sizes.count} for each update, of at most {tokens:,} tokens"
    if sizes.count >= ranks:
        return f"{words}, {-(-sizes.count // ranks)} a rank"
    fewer = max(shape.prompt + shape.completion, sizes.tokens // ranks)
    then = microbatch_sizes(shape, fewer, line).count
    remedy = f"; learner.tokens_per_microbatch = {fewer} makes {then}" if then > sizes.count else ""
    return f"{words}: {ranks - sizes.count} of {ranks} ranks have none and wait{remedy}"


def _memory(scale: ScalePlan) -> list[str]:
    memory, follower = scale.memory, scale.memory.follower
    room = size_in_words(int(scale.device.memory))
    others = "another rank" if follower else ""
    lines = [_row(f"memory, of {room}", "rank 0" if follower else "", others)]
    largest = max(memory.phases, key=memory.own_bytes)
    # On GPUs the models that are whole at the start are in their machines' memory, and not in that of a device.
    shown = [phase for phase in memory.phases if phase != "starting" or scale.device.name == CPU]
    for phase in shown:
        own = _size(memory.own_bytes(phase))
        lines.append(_row(f"  {phase}", own, _size(follower.bytes_of(phase)) if follower else ""))
    if scale.engine_card:
        words = "an engine's own card"
        lines.append(_row(f"  {words}", _size(scale.engine_card)))
    own = {part: memory.parts[part] for part in memory.phases[largest] if not part.startswith(OTHER_RANKS)}
    lines.append(_line("largest", f"{largest} on rank 0: {largest_parts(own, small=True)}"))
    if scale.device.name == CPU and follower:
        lines.append(_line("all ranks", f"{size_in_words(memory.peak)} of this machine at most, while {memory.phase}"))
    elif follower:
        whole = size_in_words(sum(held_bytes(held.groups.every, 1) for held in scale.planned.models))
        words = f"rank 0 has all models whole in its machine's memory, {whole}; on a card an engine's copy is"
        lines.append(_line("at the start", words))
    return [*lines, _line("fits", _fits(scale))]


def _fits(scale: ScalePlan) -> str:
    memory, machine = scale.memory, scale.device.name == CPU
    if scale.engine_card > USABLE * scale.device.memory:
        return "no, not on a card that an engine has for itself; engine.max_rows, engine.precision, engine.cache_mib"
    if memory.fits:
        fewer = f"; the fewest ranks that have room are {scale.fits_from}" * bool(scale.fits_from and scale.ranks > 1)
        return f"yes, with a tenth of the memory to spare{fewer}"
    if scale.fits_from:
        shared = " (they share one machine's memory)" if machine else ""
        return f"no; on {scale.fits_from} rank{'s' * (scale.fits_from > 1)}{shared} it does"
    elsewhere = "" if scale.shape.elsewhere else "; engine.address puts the engine elsewhere"
    return f"no, on no number of ranks: what rank 0 has for itself stays{elsewhere}; learner.recompute, adapter.rank"


def _time(scale: ScalePlan) -> list[str]:
    lines = [_row("a step, estimated", "operations", "memory", "network", "seconds")]
    for phase in scale.phases:
        operations = phase.total("operations")
        sizes = (int(phase.total("memory")), int(phase.total("network") + phase.total("outside")))
        memory, network = (_size(size) if size else "-" for size in sizes)
        amount = f"{operations:.1e}" if operations else "-"
        lines.append(_row(f"  {phase.name}", amount, memory, network, _number(phase.seconds)))
    lines.append(_row("  in all", "", "", "", _number(scale.seconds)))
    words = (
        "arithmetic, and no measurement: of each piece of work the longest of its operations, bytes of memory, bytes "
        "over the network and layers one after another, each over a constant"
    )
    lines += [_line("estimate", words), _line("compared", _compared(scale)), _line("rests on", _basis(scale))]
    sampling = scale.phases[0].seconds / scale.seconds
    if sampling >= MOST_OF_A_STEP and scale.ranks > 1:
        devices = f"{scale.shape.devices} device{'s' * (scale.shape.devices > 1)}"
        more = "" if scale.shape.elsewhere else "; engine.address names engines elsewhere"
        if scale.cards is not None and scale.cards.sampling < scale.cards.count:
            more = "; engines in children (engine.process, engine.count) sample on more cards" + more
        lines.append(_line("sampling", f"{sampling:.0%} of it, on {devices}, while the ranks wait{more}"))
    return lines


def _compared(scale: ScalePlan) -> str:
    """Say beside what such a plan has been put, and beside what not."""
    if scale.device.name == CPU:
        return COMPARED_ON_CPU
    said = scale.cards is not None and len(scale.cards.ranks) + len(scale.cards.engines) > 1
    return COMPARED_ON_GPUS + f"; {NOT_TRIED}" * (not said and (scale.ranks > 1 or scale.shape.devices > 1))


def _basis(scale: ScalePlan) -> str:
    """Say on which constant the seconds of sampling rest, and where that comes from."""
    device, work = scale.device, scale.phases[0].work[0]
    bases = {
        "operations": f"{device.reached:.0%} of its operations, a share taken from what others publish of training",
        "memory": f"reading weights, keys and values at {device.streamed:.0%} of {device.bandwidth / 1e9:,.4g} GB/s, a "
        "share that is assumed",
        "layers": f"{device.layer * 1e6:g} us a layer and token, "
        + ("a constant of this processor" if device.name == CPU else "measured once, on an H200 with 135M weights"),
    }
    return f"the seconds of sampling: {bases[work.longest(device, scale.ranks)]}"


def _constants(scale: ScalePlan) -> list[str]:
    d = scale.device
    links = f"{d.inside / 1e9:g} GB/s inside a machine" + f", {d.between / 1e9:g} between machines" * (d.name != CPU)
    constants = (
        f"{d.title}: {d.bf16 / 1e12:.3g} (bf16) and {d.fp32 / 1e12:.3g} (fp32) TFLOP/s, of which {d.reached:.0%} are "
        f"reached; {d.bandwidth / 1e9:,.4g} GB/s of memory, {d.streamed:.0%}; a device's network {links}, "
        f"{d.network:.0%}; {d.host / 1e9:g} GB/s to an engine outside; {d.layer * 1e6:g} us a layer at least; "
        f"{d.source}"
    )
    words = ["rewards that are functions, evaluations and checkpoints"]
    words += ["completions that end early: all are as long as they may be"]
    words += ["an environment's answers, and that a turn's tokens are read again"] * isinstance(
        scale.run.task, PlaysTurns
    )
    words += ["what an allocator loses between its blocks"] * (d.name != CPU)
    return [_line("constants", f"{constants}. Others: --device NAME.toml"), _line("left out", "; ".join(words))]


def _line(word: str, text: str) -> str:
    """Put a word and what is said of it into lines of one width."""
    lines = wrap(text, WIDTH - WORD, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"{before:<{WORD}}{line}" for before, line in zip([word, *[""] * len(lines)], lines, strict=False))


def _row(first: str, *cells: str) -> str:
    return f"{first:<{FIRST}}" + "".join(f"{cell:>16}" for cell in cells).rstrip()


def _number(seconds: float) -> str:
    """
    >>> _number(0.01234), _number(1.5), _number(12345.6)
    ('0.012', '1.50', '12,346')
    """
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.2g}"
