"""A plan for scale in words: a table for memory, one for what passes, one for seconds, and what they stand on."""

from collections.abc import Iterable
from textwrap import wrap

from groupwise.commands.memory import NAMED, size_in_words
from groupwise.commands.plan import ScalePlan
from groupwise.core.task import PlaysTurns
from groupwise.planning.devices import CPU, Device
from groupwise.planning.memory import MemoryPlan
from groupwise.planning.run_shape import microbatch_sizes
from groupwise.planning.traffic import Traffic

#: Columns of a line, of its first word, and of a table's first column.
WIDTH, WORD, FIRST = 112, 13, 24
#: A phase that takes this share of a step, or more, is said; so is what passes beside the weights themselves.
MOST_OF_A_STEP, FILLED_UP = 0.5, 1.25


def in_words(plan: ScalePlan) -> str:
    """All of it, for the person who decides how many devices to rent."""
    parts = [_what(plan), _memory(plan)]
    parts += [_passes(plan)] if plan.ranks > 1 else []
    return "\n\n".join("\n".join(part) for part in [*parts, _seconds(plan), _constants(plan), _left_out(plan)])


def _what(plan: ScalePlan) -> list[str]:
    run, shape = plan.run, plan.shape
    recipe, device = run.recipe, plan.device
    machines = -(-plan.ranks // device.machine)
    where = f"{device.title}" + (f", {machines} machines of {device.machine}" if machines > 1 else "")
    ranks = f"{plan.ranks} rank" + "s" * (plan.ranks > 1)
    trained = f"adapters of rank {recipe.adapter.rank} train" if recipe.adapter.rank else "all train"
    active = plan.work.dense + plan.work.chosen * plan.work.experts
    of_token = f", of which a token goes through {active:,.0f}" if plan.work.experts else ""
    copies = ["a critic"] * (recipe.critic is not None) + ["a reference"] * (shape.reference > 0)
    copies += ["a reward model"] * shape.reward_model
    beside = f"; beside it {', '.join(copies)}" if copies else ""
    lines = [
        _line("plan", f"{recipe.name} on {ranks}: {where}"),
        _line("policy", f"{run.origin}, {plan.numbers:,} weights{of_token}; {trained}{beside}"),
        _line(
            "a step",
            f"{shape.prompts} prompts of at most {shape.prompt} tokens x {shape.samples} completions of at most "
            f"{shape.completion}; {run.passes_per_batch} pass(es) of {shape.minibatches} update(s)",
        ),
        _line("microbatches", _microbatches(plan)),
    ]
    return [*lines, *([_line("not yet", f"groupwise train says: {plan.refused}")] if plan.refused else [])]


def _microbatches(plan: ScalePlan) -> str:
    count, ranks = plan.microbatch.count, plan.ranks
    words = f"{count} for each update, of at most {plan.memory.cuts.learner:,} tokens"
    if count >= ranks:
        return f"{words}, {-(-count // ranks)} a rank"
    fewer = max(plan.shape.prompt + plan.shape.completion, plan.microbatch.tokens // ranks)
    then = microbatch_sizes(plan.shape, fewer, plan.run.recipe.learner.shared_prefixes).count
    remedy = f"; learner.tokens_per_microbatch = {fewer} makes {then}" if then > count else ""
    return f"{words}: {ranks - count} of {ranks} ranks have none and wait{remedy}"


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
        lines.append(
            _line(
                "at the start",
                f"each rank has all models whole in its machine's memory, {size_in_words(plan.whole)}: "
                f"{size_in_words(plan.whole * min(plan.ranks, plan.device.machine))} a machine",
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


def _passes(plan: ScalePlan) -> list[str]:
    heads = ("weights", "gradients", "columns", "from rank 0", "collectives")
    lines = [_row("bytes of a step", *heads)]
    for name, traffic in plan.traffic.items():
        lines.append(_row(f"  {name}", *_sizes(traffic)))
    every = plan.passes
    lines.append(_row("  in all", *_sizes(every)))
    received = size_in_words(int(every.received(plan.ranks)))
    lines.append(_line("each rank", f"gets {received} a step over its own connection, in a ring"))
    if plan.filled_up >= FILLED_UP:
        words = (
            f"{plan.filled_up:.1f} times their size: the rows of a weight, such as a stack's experts, are too few for"
        )
        lines.append(_line("weights pass", f"{words} {plan.ranks} ranks, and go as if each rank had one"))
    return lines


def _sizes(traffic: Traffic) -> Iterable[str]:
    sizes = (traffic.gathered, traffic.scattered, traffic.joined, traffic.sent)
    return [*(small_size(size) if size else "-" for size in sizes), f"{traffic.calls:,}"]


def _seconds(plan: ScalePlan) -> list[str]:
    lines = [_row("seconds of a step", "computing", "passing", "both")]
    for phase in plan.phases:
        passing = _number(phase.passing) if phase.passing else "-"
        lines.append(_row(f"  {phase.name}", _number(phase.computing), passing, _number(phase.seconds)))
    lines.append(_row("  in all", "", "", _number(plan.seconds)))
    sampling = plan.phases[0].seconds / plan.seconds
    if sampling >= MOST_OF_A_STEP and plan.ranks > 1:
        elsewhere = plan.shape.elsewhere
        alone = "rank 0 alone; engine.address names engines elsewhere"
        where = "the engines; more of them would share it" if elsewhere else alone
        lines.append(_line("sampling", f"{sampling:.0%} of it, on {where}"))
    learning = [phase for phase in plan.phases[1:] if phase.operations]
    busy = sum(phase.seconds for phase in learning)
    if busy:
        bf16 = plan.run.recipe.learner.bf16
        peak = plan.ranks * (plan.device.bf16 if bf16 else plan.device.fp32)
        share = sum(phase.operations for phase in learning) / busy / peak
        lines.append(_line("learning", f"{share:.1%} of what {plan.ranks} devices can do at most, in {_kind(bf16)}"))
    return lines


def _constants(plan: ScalePlan) -> list[str]:
    d = plan.device
    speeds = (
        f"{d.bf16 / 1e12:.3g} (bf16) and {d.fp32 / 1e12:.3g} (fp32) TFLOP/s, {d.bandwidth / 1e9:,.4g} GB/s of memory"
    )
    links = f"{d.inside / 1e9:g} GB/s to a device of the same machine"
    links += f", {d.between / 1e9:g} a device to another machine" * (d.name != CPU)
    shares = (
        f"{d.reached:.0%} of the operations are reached, {d.sampling:.0%} of the memory's bandwidth in sampling, "
        f"{d.network:.0%} of the network's"
    )
    least = f"at least {d.call * 1e6:g} us a collective and {d.layer * 1e6:g} us a layer"
    return [
        _line("constants", f"{d.title}: {speeds}, {links}; {d.source}"),
        _line("assumed", f"{shares}; {least}; {d.host / 1e9:g} GB/s for what rank 0 sends; {_overlap(d)}"),
    ]


def _overlap(device: Device) -> str:
    if device.overlaps:
        return "weights and gradients pass while others compute"
    return "nothing passes while a rank computes" + (", and gradients pass twice" if device.doubled else "")


def _left_out(plan: ScalePlan) -> list[str]:
    run, recipe = plan.run, plan.run.recipe
    words = ["rewards that are functions, evaluations and checkpoints"]
    words += ["completions that end early: all are as long as they may be"]
    words += ["the ids that top_p, top_k or min_p leave, which go with a batch"] * recipe.sampling.truncates
    words += ["an environment's answers, and that a turn's tokens are read again"] * isinstance(run.task, PlaysTurns)
    if plan.device.name != CPU:
        words.append("what an allocator loses between its blocks")
    return [_line("left out", "; ".join(words))]


def _line(word: str, text: str) -> str:
    """A word and what is said of it, in lines of one width."""
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


def _kind(bf16: bool) -> str:
    return "bfloat16" if bf16 else "float32"
