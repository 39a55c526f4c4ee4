"""A sampling as one model carries it out: what its logits become before a draw, how it draws, and what ends a row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.core.engine import Sampling
from groupwise.core.errors import UsageError
from groupwise.engines.local.history import History
from groupwise.engines.local.sampler import Drawing
from groupwise.engines.local.scheduler import Scheduler
from groupwise.engines.stop_strings import Decode, StopStrings
from groupwise.models.forward.adjustment import Adjustment, adjustment_of


class Adjusting:
    """The step's logits [R,V] -> those that are divided by the temperature (core/engine.py: Distribution)."""

    def __init__(self, adjustment: Adjustment, penalty: float, device: torch.device) -> None:
        self._bias = None if adjustment.bias is None else adjustment.bias.to(device)
        self._ends, self._least, self._penalty = adjustment.ends.to(device), adjustment.least, penalty

    def __call__(self, logits: Tensor, scheduler: Scheduler) -> Tensor:
        logits = logits.float()
        if self._bias is not None:
            logits = logits + self._bias
        if scheduler.history is not None:
            less_likely = torch.where(logits > 0, logits / self._penalty, logits * self._penalty)
            logits = torch.where(scheduler.history.had, less_likely, logits)
        if scheduler.youngest < self._least:
            early = (scheduler.age < self._least).nonzero()
            logits = logits.index_put((early, self._ends), logits.new_tensor(-torch.inf))
        return logits


@dataclass(frozen=True)
class Rules:
    """How one call of the engine samples.

    stops      [V] bool, the ids that end a completion
    drawing    draws tokens, and says where a row may have ended
    strings    the texts that end a completion; None without any
    adjusting  None where logits stay as they are
    """

    sampling: Sampling
    stops: Tensor
    drawing: Drawing
    strings: StopStrings | None
    adjusting: Adjusting | None

    def history(self) -> History | None:
        """An empty one where the sampling reads what a row has had."""
        if self.sampling.repetition_penalty == 1:
            return None
        return History(len(self.stops), self.stops.device)


class Rulebook:
    """Samplings -> their rules, for a model. Recordings, and what is known of ids, are kept from call to call.

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
        self._drawings: dict[tuple[int, ...], Drawing] = {}
        self._strings: dict[tuple[str, ...], StopStrings] = {}

    def __call__(self, sampling: Sampling) -> Rules:
        """Raises UsageError, beginning with the key, for a sampling that the model cannot follow."""
        adjustment = adjustment_of(sampling, self._eos, self._vocabulary)
        stops = torch.zeros(self._vocabulary, dtype=torch.bool, device=self._device)
        stops[adjustment.ends.to(self._device)] = True
        if sampling.stop_ids not in self._drawings:
            self._drawings[sampling.stop_ids] = Drawing(stops)
        return Rules(
            sampling,
            stops,
            drawing=self._drawings[sampling.stop_ids],
            strings=self._strings_of(sampling.stop),
            adjusting=Adjusting(adjustment, sampling.repetition_penalty, self._device) if sampling.adjusts else None,
        )

    def _strings_of(self, stop: tuple[str, ...]) -> StopStrings | None:
        if not stop:
            return None
        if self._decode is None:
            raise UsageError(f"stop = {list(stop)}: this engine was made without what decodes ids; take it out")
        if stop not in self._strings:
            self._strings[stop] = StopStrings(stop, self._decode)
        return self._strings[stop]
