"""A sampling as one model carries it out: what its logits become before a draw, how it draws, and what ends a row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.core.engine import Sampling
from groupwise.core.errors import UsageError
from groupwise.engines.local.sampler import Draw, draw, end_sum
from groupwise.engines.local.scheduler import Scheduler, TokensHad
from groupwise.engines.stop_strings import Decode, StopStrings
from groupwise.models.forward.adjustment import Adjustment, adjustment_of


@dataclass(frozen=True)
class Rules:
    """How one call of the engine samples.

    adjustment  of logits, on the engine's device
    stops       [V] bool, the ids that end a completion
    strings     the texts that end a completion; None without any
    """

    sampling: Sampling
    adjustment: Adjustment
    stops: Tensor
    strings: StopStrings | None

    def adjusted(self, logits: Tensor, scheduler: Scheduler) -> Tensor:
        """Turn a step's logits [R,V] into those that are divided by the temperature (core/engine.py: Distribution)."""
        if not self.sampling.adjusts:
            return logits
        logits = logits.float()
        if self.adjustment.bias is not None:
            logits = logits + self.adjustment.bias
        if scheduler.history is not None:
            penalty = self.sampling.repetition_penalty
            logits = torch.where(
                scheduler.history.had, torch.where(logits > 0, logits / penalty, logits * penalty), logits
            )
        if scheduler.youngest < self.adjustment.least:
            early = (scheduler.age < self.adjustment.least).nonzero()
            logits = logits.index_put((early, self.adjustment.ends), logits.new_tensor(-torch.inf))
        return logits

    def draw(self, logits: Tensor, uniform: Tensor) -> tuple[Draw, Tensor]:
        """Draw a token for each row from logits [R,V] and numbers [R] -> the draw and its end sum."""
        drawn = draw(logits, uniform, self.sampling)
        return drawn, end_sum(drawn, self.stops)

    def history(self) -> TokensHad | None:
        """Return an empty one where the sampling reads what a row has had."""
        if self.sampling.repetition_penalty == 1:
            return None
        return TokensHad(len(self.stops), self.stops.device)


class Rulebook:
    """Samplings -> their rules, for a model. What stop strings know of ids is kept from call to call.

    eos      ids that end a completion under every sampling
    decode   the text of ids, or None: then there are no stop strings
    options  the keys of Sampling that can be followed
    """

    def __init__(self, eos: frozenset[int], vocabulary: int, device: torch.device, decode: Decode | None) -> None:
        outside = sorted(i for i in eos if not 0 <= i < vocabulary)
        if outside:
            raise UsageError(
                f"end ids {outside} are not among the model's {vocabulary} tokens; is the tokenizer its own?"
            )
        self._eos, self._vocabulary, self._device, self._decode = eos, vocabulary, device, decode
        self.options = frozenset(Sampling.model_fields) - (frozenset() if decode else {"stop"})
        self._strings: dict[tuple[str, ...], StopStrings] = {}

    def __call__(self, sampling: Sampling) -> Rules:
        """Raise UsageError, beginning with the key, for a sampling that the model cannot follow."""
        adjustment = adjustment_of(sampling, self._eos, self._vocabulary).on(self._device)
        stops = torch.zeros(self._vocabulary, dtype=torch.bool, device=self._device)
        stops[adjustment.ends] = True
        return Rules(sampling, adjustment, stops, self._strings_of(sampling.stop))

    def _strings_of(self, stop: tuple[str, ...]) -> StopStrings | None:
        if not stop:
            return None
        if self._decode is None:
            raise UsageError(f"stop = {list(stop)}: this engine was made without what decodes ids; take it out")
        if stop not in self._strings:
            self._strings[stop] = StopStrings(stop, self._decode)
        return self._strings[stop]
