"""A plan for scale in words: a table of memory, one of time, and what they stand on."""

from textwrap import wrap

from groupwise.commands.build.memory import NAMED, size_in_words
from groupwise.commands.plan import ScalePlan
from groupwise.core.task import PlaysTurns
from groupwise.planning.devices import CPU
from groupwise.planning.memory import MemoryPlan
from groupwise.planning.run_shape import microbatch_sizes
from groupwise.planning.shard_groups import held_bytes
from groupwise.planning.step_time import numbers_of

#: Columns of a line, of its first word, and of a table's first column.
WIDTH, WORD, FIRST = 112, 13, 24
#: Sampling that takes this share of a step, or more, is said.
MOST_OF_A_STEP = 0.5


def in_words(plan: ScalePlan) -> str:
    """Say all of it, for the person who decides how many devices to rent."""
    return "\n\n".join("\n".join(part) for part in (_what(plan), _memory(plan), _time(plan), _constants(plan)))


def _what(plan: ScalePlan) -> list[str]:
    run, shape = plan.run, plan.shape
    recipe, device = run.recipe, plan.device
    machines = -(-plan.ranks // device.machine)
    where = f"{device.title}" + (f", {machines} machines of {device.machine}" if machines > 1 else "")
    ranks = f"{plan.ranks} rank" + "s" * (plan.ranks > 1)
    trained = f"adapters of rank {recipe.adapter.rank} train" if recipe.adapter.rank else "all train"
    weights = sum(p.numel() for p in plan.planned.base.parameters())
    numbers = numbers_of(plan.planned.policy.model)
    of_token = f", of which a token goes through {numbers.of_token + numbers.head:,.0f}" if numbers.experts else ""
    copies = ["a critic"] * (recipe.critic is not None) + ["a reference"] * (shape.reference > 0)
    copies += ["a reward model"] * shape.reward_model
    beside = f"; beside it {', '.join(copies)}" if copies else ""
    lines = [
        _line("plan", f"{recipe.name} on {ranks}: {where}"),
        _line("policy", f"{run.origin}, {weights:,} weights{of_token}; {trained}{beside}"),
        _line(
            "a step",
            f"{shape.prompts} prompts of at most {shape.prompt} tokens x {shape.samples} completions of at most "
            f"{shape.completion}; {shape.passes} pass(es) of {shape.minibatches} update(s)",
        ),
        _line("microbatches", _microbatches(plan)),
    ]
    return [*lines, *([_line("not yet", f"groupwise train says: {plan.refused}")] if plan.refused else [])]


def _microbatches(plan: ScalePlan) -> str:
    shape, ranks, tokens = plan.shape, plan.ranks, plan.memory.cuts.learner
    line = plan.run.recipe.learner.shared_prefixes
    sizes = microbatch_sizes(shape, tokens, line)
    words = f"{sizes.count} for each update, of at most {tokens:,} tokens"
    if sizes.count >= ranks:
        return f"{words}, {-(-sizes.count // ranks)} a rank"
    fewer = max(shape.prompt + shape.completion, sizes.tokens // ranks)
    then = microbatch_sizes(shape, fewer, line).count
    remedy = f"; learner.tokens_per_microbatch = {fewer} makes {then}" if then > sizes.count else ""
    return f"{words}: {ranks - sizes.count} of {ranks} ranks have none and wait{remedy}"


def _memory(plan: ScalePlan) -> list[str]:
    memory, follower = plan.memory, plan.memory.follower
    room = size_in_words(int(plan.device.memory))
    others = "another rank" if follower else ""
    lines = [_row(f"memory, of {room}", "rank 0" if follower else "", others)]
    largest = max(memory.phases, key=memory.own_bytes)
    # On GPUs the models that are whole at the start are in their machines' memory, and not in that of a device.
    shown = [phase for phase in memory.phases if phase != "starting" or plan.device.name == CPU]
    for phase in shown:
        own = small_size(memory.own_bytes(phase))
        lines.append(_row(f"  {phase}", own, small_size(follower.bytes_of(phase)) if follower else ""))
    lines.append(_line("largest", _parts(memory, largest)))
    if plan.device.name == CPU and follower:
        lines.append(_line("all ranks", f"{size_in_words(memory.peak)} of this machine at most, while {memory.phase}"))
    elif follower:
        whole = sum(held_bytes(held.groups.every, 1) for held in plan.planned.models)
        lines.append(
            _line(
                "at the start",
                f"each rank has all models whole in its machine's memory, {size_in_words(whole)}: "
                f"{size_in_words(whole * min(plan.ranks, plan.device.machine))} a machine",
            )
        )
    return [*lines, _line("fits", _fits(plan))]


def _parts(memory: MemoryPlan, phase: str) -> str:
    names = [part for part in memory.phases[phase] if memory.parts[part] and not part.startswith("other ranks")]
    names.sort(key=lambda part: -memory.parts[part])
    rest = sum(memory.parts[part] for part in names[NAMED:])
    named = [f"{part} {small_size(memory.parts[part])}" for part in names[:NAMED]]
    return f"{phase} on rank 0: {', '.join(named + [f'others {small_size(rest)}'] * (rest > 0))}"


def _fits(plan: ScalePlan) -> str:
    memory, machine = plan.memory, plan.device.name == CPU
    if memory.fits:
        fewer = f"; the fewest ranks that have room are {plan.fits_from}" * bool(plan.fits_from and plan.ranks > 1)
        return f"yes, with a tenth of the memory to spare{fewer}"
    if plan.fits_from:
        shared = " (they share one machine's memory)" if machine else ""
        return f"no; on {plan.fits_from} rank{'s' * (plan.fits_from > 1)}{shared} it does"
    elsewhere = "" if plan.shape.elsewhere else "; engine.address puts the engine elsewhere"
    return f"no, on no number of ranks: what rank 0 has for itself stays{elsewhere}; learner.recompute, adapter.rank"


def _time(plan: ScalePlan) -> list[str]:
    lines = [_row("a step, estimated", "operations", "memory", "network", "seconds")]
    for phase in plan.phases:
        operations = phase.total("operations")
        sizes = (int(phase.total("memory")), int(phase.total("network") + phase.total("outside")))
        memory, network = (small_size(size) if size else "-" for size in sizes)
        amount = f"{operations:.1e}" if operations else "-"
        lines.append(_row(f"  {phase.name}", amount, memory, network, _number(phase.seconds)))
    lines.append(_row("  in all", "", "", "", _number(plan.seconds)))
    words = (
        "arithmetic, and no measurement: of each piece of work the longest of its operations, bytes of memory, bytes "
        "over the network and layers one after another, each over a constant"
    )
    lines.append(_line("estimate", words))
    sampling = plan.phases[0].seconds / plan.seconds
    if sampling >= MOST_OF_A_STEP and plan.ranks > 1:
        devices = f"{plan.shape.devices} device{'s' * (plan.shape.devices > 1)}"
        more = "" if plan.shape.elsewhere else "; engine.address names engines elsewhere"
        lines.append(_line("sampling", f"{sampling:.0%} of it, on {devices}, while the ranks wait{more}"))
    return lines


def _constants(plan: ScalePlan) -> list[str]:
    d = plan.device
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
        plan.run.task, PlaysTurns
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


def small_size(size: int) -> str:
    """
    >>> small_size(800), small_size(70_000), small_size(3 << 30)
    ('800 B', '68.4 KiB', '3.0 GiB')
    """
    if size < 1 << 20:
        return f"{size} B" if size < 1 << 10 else f"{size / (1 << 10):.1f} KiB"
    return size_in_words(size)
