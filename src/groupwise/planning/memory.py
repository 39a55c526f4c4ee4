"""Memory that each rank of a run holds, by part and by phase, from shapes alone; and how its updates are cut to fit.

A phase holds what always stands (weights, moments, copies) and what is its own. The peak is the largest phase's.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from groupwise.engines.kinds import sleeps
from groupwise.models.forward.logprobs import CHUNK_ELEMENTS
from groupwise.planning.parts import UPDATES, Cuts, PlannedRun, other_rank_parts, phases_of, policy_update, rank_0_parts
from groupwise.training.optimizer import AUTO

#: Logits of a chunk, and log-probabilities held, elements: what is taken where it fits, and less.
LOGITS = ((1 << 24, 1 << 26), (1 << 22, 1 << 24), (1 << 20, 0))
LOGITS_ON_CPU = ((CHUNK_ELEMENTS, 1 << 26), *LOGITS[1:])
#: Tokens of a microbatch, from the most that pays to the fewest that are tried.
TOKENS = (16384, 8192, 4096, 2048, 1024, 512)
#: On a CPU more tokens pay nothing, nor do activations of more bytes: its caches are full with fewer.
TOKENS_ON_CPU, ACTIVATIONS_ON_CPU = 2048, 2 << 30
#: The share of the free memory that a run may take.
USABLE = 0.9
#: How the part begins that the other ranks of a machine have of a phase.
OTHER_RANKS = "other ranks while "


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by part, and the parts of each phase.

    held, free  what the process held when this was planned, and what it could take beside that
    cuts        what it was planned for
    follower    the plan of another rank than 0, where there is one; on one machine its parts are among these
    """

    parts: Mapping[str, int]
    phases: Mapping[str, tuple[str, ...]]
    held: int
    free: int
    cuts: Cuts
    follower: "MemoryPlan | None" = None

    def bytes_of(self, phase: str) -> int:
        """Add up what is held in a phase."""
        return sum(self.parts[part] for part in self.phases[phase])

    @property
    def phase(self) -> str:
        """The largest phase."""
        return max(self.phases, key=self.bytes_of)

    @property
    def peak(self) -> int:
        """The most that the process holds."""
        return self.bytes_of(self.phase)

    def own_bytes(self, phase: str) -> int:
        """Add up what this process alone holds in a phase, without other ranks of the machine."""
        return sum(self.parts[part] for part in self.phases[phase] if not part.startswith(OTHER_RANKS))

    @property
    def needed(self) -> int:
        """The bytes that the peak takes beside what the process held."""
        return self.peak - self.held

    @property
    def fits(self) -> bool:
        """True if the free memory is enough, with a tenth of it to spare."""
        return self.needed <= USABLE * self.free


def plan(run: PlannedRun, held: int, free: int) -> MemoryPlan:
    """Find the first plan that fits, from large microbatches to small; if none does, the smallest.

    held, free  what the process holds, and what it can take beside that; nothing here looks at the machine
    """
    preferred = _cuts(run)
    largest = _plan(run, preferred[0], held, free)
    if largest.fits or not (smallest := _plan(run, preferred[-1], held, free)).fits:
        return largest if largest.fits else smallest
    others = (_plan(run, cuts, held, free) for cuts in preferred[1:])
    return next((this for this in others if this.fits), smallest)


def fewest_ranks(run: PlannedRun, held: int, free: int) -> int | None:
    """Find the fewest ranks, up to 1,024, at which each has room; on GPUs none holds more if there are more of them."""
    enough = next((n for n in (2**i for i in range(11)) if plan(run.over(n), held, free).fits), None)
    if enough is None or enough <= 2:
        return enough
    counts = range(enough // 2 + 1, enough)  # half of them are too few
    return counts.start + bisect_left(counts, True, key=lambda n: plan(run.over(n), held, free).fits)


def _plan(run: PlannedRun, cuts: Cuts, held: int, free: int) -> MemoryPlan:
    parts = rank_0_parts(run, cuts, held)
    parts |= _shared_out(run, parts["engine's weights"], held + free)
    phases, others = _phases(run, rank=0), run.shape.ranks - 1
    if not others:
        return MemoryPlan(parts, phases, held, free, cuts)
    follower = MemoryPlan(other_rank_parts(run, cuts, parts, held), _phases(run, rank=1), held, free, cuts)
    if run.on_cpu:  # one machine has all of them
        each = {phase: f"{OTHER_RANKS}{phase}" for phase in phases}
        parts |= {each[phase]: others * follower.bytes_of(phase) for phase in phases}
        phases = {phase: (*own, each[phase]) for phase, own in phases.items()}
    return MemoryPlan(parts, phases, held, free, cuts, follower)


def _shared_out(run: PlannedRun, weights: int, whole: int) -> dict[str, int]:
    """Size an engine that takes a share of a device of so many bytes: what are not its weights is called its cache."""
    shape = run.shape
    if shape.memory_share is None or run.on_cpu or shape.elsewhere or not shape.engines_of(rank=0):
        return {}
    rest = max(0, int(shape.memory_share * whole) - weights)
    return {"engine's cache": rest, "cache between steps": rest}


def _phases(run: PlannedRun, rank: int) -> dict[str, tuple[str, ...]]:
    """Map each phase to the parts that a rank holds in it; an engine that sleeps has given some back in updates."""
    shape, phases = run.shape, phases_of(run, rank)
    on_card = shape.outside and not (shape.elsewhere or run.on_cpu)
    if not sleeps(shape.sleep, shape.kind, on_card, shape.ahead):
        return phases
    gone = shape.kind.gives_back
    return {at: tuple(p for p in own if p not in gone) if at in UPDATES else own for at, own in phases.items()}


def _cuts(run: PlannedRun) -> list[Cuts]:
    """List what may be tried, in the order of preference; none comes twice. A number of the settings stays as it is."""
    learner, critic, logits = run.learner, run.critic_settings, LOGITS_ON_CPU if run.on_cpu else LOGITS
    most = _most_tokens(run, logits)
    every = (
        Cuts(
            learner=_number(learner.tokens_per_microbatch, tokens),
            critic=0 if critic is None else _number(critic.tokens_per_microbatch, tokens),
            chunk_logits=_number(learner.chunk_logits, chunk),
            held_logits=_number(learner.held_logits, held),
        )
        for tokens, (chunk, held) in product((count for count in TOKENS if count <= most), logits)
    )
    return list(dict.fromkeys(every))


def _number(setting: int | Literal["auto"], tried: int) -> int:
    return tried if setting == AUTO else setting


def _most_tokens(run: PlannedRun, logits: Sequence[tuple[int, int]]) -> int:
    """Find the tokens of a microbatch of which more would pay nothing."""
    if not run.on_cpu:
        return max(TOKENS)
    tried = (Cuts(count, 0, *logits[0]) for count in TOKENS if count <= TOKENS_ON_CPU)
    enough = (cuts.learner for cuts in tried if policy_update(run, cuts).activations <= ACTIVATIONS_ON_CPU)
    return next(enough, min(TOKENS))
