"""What a run holds at its largest, by part and by phase, from shapes alone; and how its updates are cut to fit.

A phase holds what always stands (weights, moments, copies) and what is its own. The peak is the largest phase's.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from groupwise.engines.vllm import cache as vllm
from groupwise.models.adapters.lora import with_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.adapters.targets import adapted_weights
from groupwise.models.logprobs import CHUNK_ELEMENTS
from groupwise.models.reward import tokens_at_once
from groupwise.planning.activations import (
    Computation,
    MicrobatchBytes,
    cached_widths,
    microbatch_bytes,
    trained_bytes,
    weight_bytes,
    with_value_head,
)
from groupwise.planning.engine_memory import cache_bytes, drawing_bytes, prefill_tokens
from groupwise.planning.rank_memory import (
    FOLLOWS,
    UpdateBytes,
    follower_parts,
    gathered_to_save,
    gathered_to_score,
    update_bytes,
    whole_models,
)
from groupwise.planning.run_shape import RunShape, extremes, microbatch_rows, microbatch_sizes, scored_sizes
from groupwise.planning.shard_groups import Groups, groups_of, held_bytes, largest_whole, trained_part
from groupwise.training.critic import CriticSettings
from groupwise.training.learner import LearnerSettings
from groupwise.training.optimizer import AUTO, GIVEN_BACK, OptimizerSettings

#: Logits of a chunk, and log-probabilities held, elements: what is taken where it fits, and less.
LOGITS = ((1 << 24, 1 << 26), (1 << 22, 1 << 24), (1 << 20, 0))
LOGITS_ON_CPU = ((CHUNK_ELEMENTS, 1 << 26), *LOGITS[1:])
#: Tokens of a microbatch, from the most that pays to the fewest that are tried.
TOKENS = (16384, 8192, 4096, 2048, 1024, 512)
#: On a CPU more tokens pay nothing, nor do activations of more bytes: its caches are full with fewer.
TOKENS_ON_CPU, ACTIVATIONS_ON_CPU = 2048, 2 << 30
#: The share of the free memory that a run may take.
USABLE = 0.9
#: Bytes of a token in the columns of a batch; of a sampled one in the completions, which Python holds; and what
#: libraries take after a run is planned.
COLUMNS, SAMPLED, LATER = 100, 250, 64 << 20
#: What cuBLAS keeps on a GPU for its products: as much as core/reproducible.py says, for each thread that has any, the
#: one that runs forwards and torch's of backwards.
WORKSPACES = 2 * 8 * (4096 << 10)
#: What another process of the run holds of libraries, at most: this one may hold more, of what it did before.
LIBRARIES = 450 << 20
#: The share of an update's activations that the C library keeps, in pieces, where they are not given back: of what
#: five shapes held without it, 0.2 to 1.5 of their activations were missing (docs/memory.md).
KEPT = 0.5
#: The same over ranks, inside an update, of activations and what is gathered; and of a policy of `GIVEN_BACK` bytes or
#: more, whose largest blocks have pages of their own. Threads of torch and gloo each have a part of the C library's
#: memory, and what one has freed another does not take (docs/scale.md).
KEPT_INSIDE, KEPT_INSIDE_LARGE = 1.2, 0.75
#: How the part begins that the other ranks of a machine have of a phase.
OTHER_RANKS = "other ranks while "


@dataclass(frozen=True)
class Cuts:
    """How an update is cut.

    learner, critic  tokens of a microbatch
    chunk_logits     logits computed at once
    held_logits      log-probabilities held for the backward pass, at most
    """

    learner: int
    critic: int
    chunk_logits: int
    held_logits: int


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by part, and the parts of each phase.

    held, free  what the process held when this was planned, and what it could take beside that
    cuts        what it was planned for
    follower    the same of another rank than 0, where there is one; on one machine their parts are among these
    """

    parts: Mapping[str, int]
    phases: Mapping[str, tuple[str, ...]]
    held: int
    free: int
    cuts: Cuts
    follower: "MemoryPlan | None" = None

    def bytes_of(self, phase: str) -> int:
        """Everything that is held in a phase."""
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
        """The same of this process alone, without other ranks of the machine."""
        return sum(self.parts[part] for part in self.phases[phase] if not part.startswith(OTHER_RANKS))

    @property
    def needed(self) -> int:
        """What it takes beside what it held."""
        return self.peak - self.held

    @property
    def fits(self) -> bool:
        """Whether the free memory is enough, with a tenth of it to spare."""
        return self.needed <= USABLE * self.free


def plan(
    model: Any,
    shape: RunShape,
    learner: LearnerSettings,
    critic: CriticSettings | None,
    adapter: AdapterSettings,
    device: str,
    held: int,
    free: int,
) -> MemoryPlan:
    """The first plan that fits, from large microbatches to small; where none does, the smallest.

    `model` is without memory (planning/activations.py); nothing here looks at the machine.
    """
    return Planner(model, shape, learner, critic, adapter, device).plan(held, free)


class Planner:
    """Plans one run for any number of ranks and any room: what its microbatches take is found once."""

    def __init__(
        self,
        model: Any,
        shape: RunShape,
        learner: LearnerSettings,
        critic: CriticSettings | None,
        adapter: AdapterSettings,
        device: str,
    ) -> None:
        self._learner, self._critic = learner, critic
        self._sizes = _Sizes(model, shape, learner, critic is not None, adapter, device)

    def plan(self, held: int, free: int, ranks: int | None = None) -> MemoryPlan:
        """The first plan that fits; `ranks` of the shape unless others are given."""
        sizes = self._sizes if ranks is None else self._sizes.over(ranks)

        def of(cuts: Cuts) -> MemoryPlan:
            return sizes.plan(cuts, held, free)

        preferred = list(_cuts(self._learner, self._critic, sizes.most_tokens(), sizes.logits))
        largest = of(preferred[0])
        if largest.fits or not (smallest := of(preferred[-1])).fits:
            return largest if largest.fits else smallest
        return next((this for this in map(of, preferred[1:]) if this.fits), smallest)


def _cuts(
    learner: LearnerSettings, critic: CriticSettings | None, most: int, logits: Sequence[tuple[int, int]]
) -> Iterator[Cuts]:
    """What may be tried, with at most so many tokens, in the order of preference; none comes twice.

    A number of the settings stays as it is.
    """
    tried = set()
    for tokens in (count for count in TOKENS if count <= most):
        for chunk, held in logits:
            cuts = Cuts(
                learner=_or_number(tokens, learner),
                critic=0 if critic is None else _or_number(tokens, critic),
                chunk_logits=chunk if learner.chunk_logits == AUTO else learner.chunk_logits,
                held_logits=held if learner.held_logits == AUTO else learner.held_logits,
            )
            if cuts not in tried:
                yield cuts
            tried.add(cuts)


def _or_number(tokens: int, settings: OptimizerSettings) -> int:
    return tokens if settings.tokens_per_microbatch == AUTO else settings.tokens_per_microbatch


class _Sizes:
    """Bytes of one run's parts, for any cuts."""

    def __init__(
        self,
        model: Any,
        shape: RunShape,
        learner: LearnerSettings,
        critic: bool,
        adapter: AdapterSettings,
        device: str,
    ) -> None:
        self._base, self._shape, self._learner, self._device = model, shape, learner, device
        self.logits = LOGITS_ON_CPU if device == "cpu" else LOGITS
        self._model = with_adapters(model, adapter) if adapter.rank else model
        self._merged = sum(weight.numel() for weight in adapted_weights(model, adapter).values()) * 4
        self._value_model = with_value_head(model) if critic else None
        self._policy = groups_of(self._model, learner.bf16)
        self._reference = groups_of(model, learner.bf16, shape.reference) if shape.reference else None
        self._critic = None if self._value_model is None else groups_of(self._value_model, learner.bf16)
        self._reward = groups_of(with_value_head(model, bias=False)) if shape.reward_model else None
        self._ranks = shape.ranks
        # What is alive is counted on shapes; those of a GPU can be made where torch sees one.
        self._simulated = device if device == "cpu" or torch.cuda.is_available() else "cpu"

    def over(self, ranks: int) -> Self:
        """The same over so many ranks."""
        other = copy.copy(self)
        other._ranks = ranks
        return other

    def plan(self, cuts: Cuts, held: int, free: int) -> MemoryPlan:
        """Of rank 0, and of another."""
        parts, phases = self.parts(cuts, held), self._phases()
        if self._ranks == 1:
            return MemoryPlan(parts, phases, held, free, cuts)
        follows = {phase: FOLLOWS[phase] for phase in phases}
        own = follower_parts(parts, self._policy, self._critic, self._ranks)
        # What comes later is an engine's.
        own["process"] = min(held, LIBRARIES) if self._device == "cpu" else WORKSPACES
        follower = MemoryPlan(own, follows, held, free, cuts)
        if self._device == "cpu":  # one machine has all of them
            each = {phase: f"{OTHER_RANKS}{phase}" for phase in phases}
            parts |= {each[phase]: (self._ranks - 1) * follower.bytes_of(phase) for phase in phases}
            phases = {phase: (*names, each[phase]) for phase, names in phases.items()}
        return MemoryPlan(parts, phases, held, free, cuts, follower)

    def _phases(self) -> dict[str, tuple[str, ...]]:
        """The parts of each phase on rank 0."""
        copies = ("engine's weights", "reference", "critic", "reward model")
        engine = ("engine's process", "shared weights", "engine's weights")
        standing = ("process", "engine's process", "weights", "whole copy", "moments", "shared weights", *copies)
        sampling, idle = ("engine's cache", "held turns", "drawing"), ("cache between steps",)
        between = (*standing, "batch", "freed blocks")
        scoring = () if self._reward is None else ("gathered to score", "scored rows")
        beside = (*between, *((*sampling, *scoring) if self._shape.ahead else idle))
        phases = {
            "generating": (*between, *sampling),
            "updating": (*beside, "gradients", "gathered weights", "activations", "freed inside an update"),
            "loading weights": (*between, *idle, "merged weights", "a gathered weight"),
        }
        if scoring:
            phases["scoring"] = (*between, *idle, *scoring)
        if self._critic is not None:
            critics = ("critic's gradients", "critic's gathered weights", "critic's activations")
            phases["updating the critic"] = (*beside, *critics, "freed inside an update")
        if self._ranks > 1:
            phases["starting"] = ("process", *engine, "whole models")
            phases["saving"] = (*between, *idle, "gathered to be saved")
        return phases

    def most_tokens(self) -> int:
        """The tokens of a microbatch of which more would pay nothing."""
        if self._device != "cpu":
            return max(TOKENS)
        chunk, held = self.logits[0]
        for tokens in (count for count in TOKENS if count <= TOKENS_ON_CPU):
            cuts = Cuts(learner=tokens, critic=0, chunk_logits=chunk, held_logits=held)
            update, _ = self._update(self._model, self._policy, cuts, tokens, line=self._learner.shared_prefixes)
            if update.activations <= ACTIVATIONS_ON_CPU:
                return tokens
        return min(TOKENS)

    def parts(self, cuts: Cuts, held: int) -> dict[str, int]:
        """Every part by its name."""
        shape, weights, ranks, on_cpu = self._shape, weight_bytes(self._base), self._ranks, self._device == "cpu"
        line = self._learner.shared_prefixes
        own, of_layer = self._update(self._model, self._policy, cuts, cuts.learner, line)
        critics, value = UpdateBytes(0, 0), self._critic
        if self._value_model is not None and value is not None:
            critics, _ = self._update(self._value_model, value, cuts, cuts.critic, line=False)
        trained, critic_trained = (0 if g is None else trained_part(g.every, ranks) for g in (self._policy, value))
        models = {"policy": self._policy, "reference": self._reference, "critic": value, "reward model": self._reward}
        scored = self._scored(of_layer)
        return {
            "process": held + LATER if on_cpu else WORKSPACES,
            **self._engine(weights, held),
            "weights": held_bytes(self._policy.every, ranks),
            # A policy in shards that is trained in bfloat16 is asked for its float32 answers as a whole one.
            "whole copy": weights if ranks > 1 and self._learner.bf16 and shape.engine == 4 else 0,
            "moments": 2 * trained,
            "reference": 0 if self._reference is None else held_bytes(self._reference.every, ranks),
            "critic": 0 if value is None else held_bytes(value.every, ranks) + 2 * critic_trained,
            "reward model": 0 if self._reward is None else held_bytes(self._reward.every, ranks),
            **(self._batch() if on_cpu else {"batch": 0, "columns": 0}),
            **self._kept(own, critics),
            "scored rows": scored.activations,
            "gathered to score": scored.gathered,
            **self._sampling(of_layer),
            "gradients": trained,
            "gathered weights": own.gathered,
            "merged weights": self._merged,
            "activations": own.activations,
            "critic's gradients": critic_trained,
            "critic's gathered weights": critics.gathered,
            "critic's activations": critics.activations,
            "whole models": whole_models(models) if on_cpu else 0,
            "a gathered weight": largest_whole(self._policy, ranks) if ranks > 1 else 0,
            "gathered to be saved": gathered_to_save(self._policy, ranks, bool(self._merged)) if on_cpu else 0,
        }

    def _scored(self, layer_token: float) -> UpdateBytes:
        """Of a batch that the reward model scores; a layer takes so much for a token."""
        if self._reward is None:
            return UpdateBytes(0, 0)
        tokens = scored_sizes(self._shape, tokens_at_once(self._device)).largest
        return UpdateBytes(int(tokens * layer_token), gathered_to_score(self._reward, self._ranks))

    def _kept(self, *updates: UpdateBytes) -> dict[str, int]:
        """What the C library keeps of what an update frees: behind it, and inside it."""
        over, large = self._ranks > 1, trained_bytes(self._model) >= GIVEN_BACK
        most = max(one.activations + over * one.gathered for one in updates) if self._device == "cpu" else 0
        inside = KEPT_INSIDE_LARGE if large else KEPT_INSIDE
        return {
            "freed blocks": 0 if over or large else int(KEPT * most),
            "freed inside an update": int(inside * most) if over else 0,
        }

    def _engine(self, weights: int, held: int) -> dict[str, int]:
        """The engines' copies of the weights, and what their processes take; beside a GPU that is not counted."""
        shape, on_cpu = self._shape, self._device == "cpu"
        packed = vllm.WEIGHTS if on_cpu and shape.vllm_rows else 1
        process = shape.engines * (vllm.PROCESS if shape.vllm_rows else min(held, LIBRARIES))
        return {
            "engine's process": process if on_cpu and shape.outside and not shape.elsewhere else 0,
            "shared weights": weights if on_cpu and shape.outside else 0,
            "engine's weights": 0 if shape.elsewhere else shape.engines * weights * shape.engine // 4 * packed,
        }

    def _batch(self) -> dict[str, int]:
        """Its columns, which every rank has, and the completions beside them, which rank 0 has."""
        shape = self._shape
        rows = shape.prompts * shape.samples
        columns = rows * (shape.prompt + shape.completion) * COLUMNS
        return {"batch": columns + rows * shape.completion * SAMPLED, "columns": columns}

    def _sampling(self, layer_token: float) -> dict[str, int]:
        """Keys and values, and what a step and a pass over prompts take; a layer takes so much for a token."""
        shape, widths = self._shape, cached_widths(self._base)
        if shape.elsewhere:
            return {"engine's cache": 0, "held turns": 0, "cache between steps": 0, "drawing": 0}
        if shape.vllm_rows:
            on_cpu, config = self._device == "cpu", self._base.config
            taken = shape.engines * vllm.cache_bytes(config, shape.vllm_rows, shape.cache_mib, shape.engine, on_cpu)
            return {"engine's cache": taken, "held turns": 0, "cache between steps": taken, "drawing": 0}
        cache = cache_bytes(widths, shape.rows, shape.prompt, shape.completion, shape.engine)
        prompts = max(prefill_tokens(self._device), shape.prompt)
        vocabulary = self._model.config.get_text_config().vocab_size
        drawing = drawing_bytes(shape.rows, vocabulary, shape.truncates, shape.adjusts)
        passing = prompts * sum(widths) * shape.engine + int(max(prompts, shape.rows) * layer_token)
        held = shape.held * (shape.prompt + shape.completion) * sum(widths) * shape.engine
        return {
            "engine's cache": shape.engines * cache.peak,
            "held turns": held,
            "cache between steps": shape.engines * cache.kept,
            "drawing": shape.engines * (drawing + passing),
        }

    def _activations(self, model: Any, cuts: Cuts, tokens: int, line: bool) -> list[MicrobatchBytes]:
        """Of the largest microbatches, beside gradients."""
        learner = self._learner
        how = Computation(line, learner.bf16, learner.recompute, cuts.chunk_logits, cuts.held_logits)
        every = microbatch_rows(self._shape, tokens, line)
        return [microbatch_bytes(model, rows, how, self._simulated) for rows in extremes(every, model, how)]

    def _update(self, model: Any, groups: Groups, cuts: Cuts, tokens: int, line: bool) -> tuple[UpdateBytes, float]:
        """Of an update on rank 0, beside its gradients; and of one layer for one token."""
        every, sizes = microbatch_rows(self._shape, tokens, line), self._activations(model, cuts, tokens, line)
        head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
        several = microbatch_sizes(self._shape, tokens, line).count > self._ranks
        tied, copies = head is embedding, self._device == "cpu"
        each = [update_bytes(groups, self._ranks, at, tied, several, copies) for at in sizes]
        most = max(each, key=lambda one: one.activations + one.gathered)
        return most, sizes[0].layer / every[0].tokens(line)
