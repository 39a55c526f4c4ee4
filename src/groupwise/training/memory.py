"""What a run holds at its largest, by part and by phase, from shapes alone; and how its updates are cut to fit.

A phase holds what always stands (weights, moments, copies) and what is its own. The peak is the largest phase's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from groupwise.core.collate import microbatches
from groupwise.core.prefixes import prefix_microbatches, prompt_keys
from groupwise.engines.local.memory import cache_bytes, drawing_bytes, prefill_tokens
from groupwise.engines.vllm import cache as vllm
from groupwise.models.activations import (
    Computation,
    Rows,
    cached_widths,
    microbatch_bytes,
    trained_bytes,
    weight_bytes,
    with_value_head,
)
from groupwise.models.adapters.lora import with_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.adapters.targets import adapted_weights
from groupwise.models.logprobs import CHUNK_ELEMENTS
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
#: Microbatches that are laid out to find the largest.
ENOUGH = 4
#: The share of the free memory that a run may take.
USABLE = 0.9
#: Bytes of a token in the columns of a batch; of a sampled one in the completions, which Python holds; and what
#: libraries take after a run is planned.
COLUMNS, SAMPLED, LATER = 100, 250, 64 << 20
#: The share of an update's activations that the C library keeps, in pieces, where they are not given back: of what
#: five shapes held without it, 0.2 to 1.5 of their activations were missing (docs/memory.md).
KEPT = 0.5


@dataclass(frozen=True)
class RunShape:
    """What of a run its memory depends on, beside the model.

    prompts, samples    of a step
    minibatches         of a batch
    prompt, completion  tokens, at most
    rows                completions that an engine samples side by side
    truncates, adjusts  whether sampling leaves ids out, and whether it changes logits
    engine, reference   bytes of a weight of the engine's copy, and of the frozen one's; 0 where there is none
    reward_model        whether a reward model is held, which is of the policy's size
    engines             how many engines there are
    outside             whether they have processes of their own: libraries once more, and the weights on their way
    elsewhere           whether that is on another machine: then the weights on their way are all that is here
    ahead               whether a batch is sampled while another trains
    held                completions whose keys and values are held between the turns of their episodes
    vllm_rows           completions that vLLM samples side by side; 0 where another engine samples
    cache_mib           of vLLM's cache, where the recipe says it
    """

    prompts: int
    samples: int
    minibatches: int
    prompt: int
    completion: int
    rows: int
    truncates: bool
    adjusts: bool
    engine: int
    reference: int
    reward_model: bool
    engines: int = 1
    outside: bool = False
    elsewhere: bool = False
    ahead: bool = False
    held: int = 0
    vllm_rows: int = 0
    cache_mib: int | None = None


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
    """

    parts: Mapping[str, int]
    phases: Mapping[str, tuple[str, ...]]
    held: int
    free: int
    cuts: Cuts

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

    `model` is without memory (models/activations.py); nothing here looks at the machine.
    """
    sizes = _Sizes(model, shape, learner, critic is not None, adapter, device)

    def of(cuts: Cuts) -> MemoryPlan:
        return MemoryPlan(sizes.parts(cuts, held), sizes.phases, held, free, cuts)

    preferred = list(_cuts(learner, critic, sizes.most_tokens(), sizes.logits))
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
        copies = ("engine's weights", "reference", "critic", "reward model")
        standing = ("process", "engine's process", "weights", "moments", "shared weights", *copies)
        sampling, idle = ("engine's cache", "held turns", "drawing"), ("cache between steps",)
        between = (*standing, "batch", "freed blocks")
        beside = (*between, *(sampling if shape.ahead else idle))
        self.phases = {
            "generating": (*between, *sampling),
            "updating": (*beside, "gradients", "activations"),
            "loading weights": (*between, *idle, "merged weights"),
        }
        if critic:
            self.phases["updating the critic"] = (*beside, "critic's gradients", "critic's activations")

    def most_tokens(self) -> int:
        """The tokens of a microbatch of which more would pay nothing."""
        if self._device != "cpu":
            return max(TOKENS)
        chunk, held = self.logits[0]
        for tokens in (count for count in TOKENS if count <= TOKENS_ON_CPU):
            cuts = Cuts(learner=tokens, critic=0, chunk_logits=chunk, held_logits=held)
            activations, _ = self._activations(self._model, cuts, tokens, line=self._learner.shared_prefixes)
            if activations <= ACTIVATIONS_ON_CPU:
                return tokens
        return min(TOKENS)

    def parts(self, cuts: Cuts, held: int) -> dict[str, int]:
        """Every part by its name."""
        shape, weights, trained = self._shape, weight_bytes(self._base), trained_bytes(self._model)
        on_cpu = self._device == "cpu"
        own, of_layer = self._activations(self._model, cuts, cuts.learner, line=self._learner.shared_prefixes)
        value_weights = critics = 0
        if self._value_model is not None:
            value_weights = weight_bytes(self._value_model)
            critics, _ = self._activations(self._value_model, cuts, cuts.critic, line=False)
        return {
            "process": held + LATER if on_cpu else 0,
            **self._engine(weights, held),
            "weights": weight_bytes(self._model),
            "moments": 2 * trained,
            "reference": weights * shape.reference // 4,
            "critic": 3 * value_weights,
            "reward model": weights if shape.reward_model else 0,
            "batch": self._batch() if on_cpu else 0,
            "freed blocks": int(KEPT * max(own, critics)) if on_cpu and trained < GIVEN_BACK else 0,
            **self._sampling(of_layer),
            "gradients": trained,
            "merged weights": self._merged,
            "activations": own,
            "critic's gradients": value_weights,
            "critic's activations": critics,
        }

    def _engine(self, weights: int, held: int) -> dict[str, int]:
        """The engines' copies of the weights, and what their processes take; beside a GPU that is not counted."""
        shape, on_cpu = self._shape, self._device == "cpu"
        packed = vllm.WEIGHTS if on_cpu and shape.vllm_rows else 1
        process = shape.engines * (vllm.PROCESS if shape.vllm_rows else held)
        return {
            "engine's process": process if on_cpu and shape.outside and not shape.elsewhere else 0,
            "shared weights": weights if on_cpu and shape.outside else 0,
            "engine's weights": 0 if shape.elsewhere else shape.engines * weights * shape.engine // 4 * packed,
        }

    def _batch(self) -> int:
        shape = self._shape
        rows = shape.prompts * shape.samples
        return rows * ((shape.prompt + shape.completion) * COLUMNS + shape.completion * SAMPLED)

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

    def _activations(self, model: Any, cuts: Cuts, tokens: int, line: bool) -> tuple[int, float]:
        """Of an update, beside the gradients; and of one layer for one token."""
        learner, gradients = self._learner, trained_bytes(model)
        how = Computation(line, learner.bf16, learner.recompute, cuts.chunk_logits, cuts.held_logits)
        every = microbatch_rows(self._shape, tokens, line)
        sizes = [microbatch_bytes(model, rows, how, self._device) for rows in _extremes(every, model, how)]
        # The gradients of the only microbatch come while its activations go; those of a second are there before it.
        most = max(max(b.first - gradients if len(every) == 1 else b.first, b.last) for b in sizes)
        return most, sizes[0].layer / every[0].tokens(line)


def microbatch_rows(shape: RunShape, tokens: int, line: bool) -> list[Rows]:
    """The microbatches of a minibatch whose prompts and completions are all as long as they may be."""
    count = -(-shape.prompts // shape.minibatches) * shape.samples
    count = min(count, ENOUGH * (tokens // shape.completion + 1))  # equal rows: the next microbatches are like these
    length = torch.full((count,), shape.prompt + shape.completion)
    family = torch.arange(count) // shape.samples
    if line:
        parts = prefix_microbatches(prompt_keys(family, shape.prompt, shape.completion), length, tokens)
    else:
        parts = microbatches(length, tokens)
    of_each = (family[part].unique(return_counts=True)[1] if line else torch.tensor([len(part)]) for part in parts)
    return [Rows(tuple(counts.tolist()), shape.prompt, shape.completion) for counts in of_each]


def _extremes(every: list[Rows], model: Any, how: Computation) -> list[Rows]:
    """The largest microbatch, and the largest whose log-probabilities are held, where that is another."""
    vocabulary = model.get_output_embeddings().out_features
    holding = [rows for rows in every if sum(rows.completions) * rows.completion * vocabulary <= how.held_elements]
    return list(dict.fromkeys([every[0], *holding[:1]]))
