"""A warm start of a trained model, which is to lose nothing: what it has not been shown says how far it goes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn

from groupwise.core.collate import microbatches
from groupwise.core.numbers.reproducible import reproducible
from groupwise.core.numbers.seeds import stream
from groupwise.core.task import Demonstration
from groupwise.models.adapters.lora import Adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.chat.prompts import Chat
from groupwise.training.optimizer import OnStep, silent
from groupwise.training.start.warm_start import (
    Example,
    WarmStart,
    cross_entropy,
    encoded,
    pad_of,
    trained_tokens,
    updates,
)

#: What a folder of a warm-started policy says of it.
IMITATION = "warm_start.json"
#: Demonstrations that are held out: this share of the different ones, and so many at most.
SHARE, MOST = 0.1, 64
#: Times that the held-out loss is measured; how far above its least it may be, by a share, or by nats a token; and of
#: how many measurements in a row that is too far: at the largest rate a loss may rise and fall again.
TIMES, RISE, LEAST_RISE, PATIENCE = 10, 0.1, 0.02, 2
#: Tokens that go through the model at once, padding included.
TOKENS = 1024


class Imitation(BaseModel):
    """What a warm start has come to; losses of held-out demonstrations, nats a token.

    heldout      how many are held out
    before       the loss under the model as it was
    after        the loss under the weights that are kept, which is the least that was measured
    kept         the step that these are of
    last         the step after which it ended, and the loss then
    steps        how many it was to have
    """

    heldout: int
    before: float
    after: float
    kept: int
    last: tuple[int, float]
    steps: int

    def __str__(self) -> str:
        step, loss = self.last
        ended = f"stopped after step {step}" if step < self.steps else f"after step {step}"
        of = f"of {self.heldout} held-out demonstrations, nats a token"
        if not self.kept:
            return (
                f"loss {self.before:.3f} -> {loss:.3f} {ended} of {self.steps}, {of}: no step made it less, and the "
                "policy is as it was; lower warm_start.learning_rate, or set warm_start.steps = 0"
            )
        words = f"loss {self.before:.3f} -> {self.after:.3f} in {self.kept} of {self.steps} steps, {of}"
        return words if self.kept == step else f"{words}; {ended} it was {loss:.3f}, so that step {self.kept} is kept"


def imitate(
    model: Any,
    chat: Chat,
    demonstrations: Sequence[Demonstration],
    settings: WarmStart,
    adapter: AdapterSettings,
    seed: int,
    on_step: OnStep = silent,
) -> Imitation:
    """Train in place, adapters alone where there are to be any, which are merged then; a seed gives the same bits.

    The weights with the least held-out loss stay, those of the start where no step has a smaller one, and where it
    rises training is stopped. A second copy of what is trained is held.
    """
    assert settings.learning_rate is not None, "the settings are fitted to the policy"
    adapters = Adapters(model, adapter, seed) if adapter.rank else None
    if adapters is not None:
        settings = settings.replace(learning_rate=settings.learning_rate * adapter.rate_factor)
    shown, held = _apart(encoded(chat, demonstrations), seed)
    measure = partial(loss_of, model, held, pad_of(chat))
    before = best = now = measure()
    kept, weights = 0, _copied(model)
    every, step, higher = max(1, settings.steps // TIMES), 0, 0
    for step, loss in updates(model, chat, shown, settings, seed, by_tokens):
        on_step(step, settings.steps, loss)
        if step % every and step < settings.steps:
            continue
        now = measure()
        higher = 0 if now <= best + max(RISE * best, LEAST_RISE) else higher + 1
        if now < best:
            best, kept, weights = now, step, _copied(model)
        if higher == PATIENCE:
            break
    _put_back(model, weights)
    if adapters is not None:
        adapters.merge()
    return Imitation(heldout=len(held), before=before, after=best, kept=kept, last=(step, now), steps=settings.steps)


@torch.no_grad()
def loss_of(model: Any, examples: Sequence[Example], pad: int) -> float:
    """The mean cross-entropy of the completion tokens, nats a token. The model stays in the mode that it is in."""
    trains = model.training
    model.eval()
    with reproducible(model.device):
        total = sum(float(cross_entropy(model, part, pad)) for part in by_tokens(examples))
    model.train(trains)
    return total / trained_tokens(examples)


def by_tokens(examples: Sequence[Example]) -> list[Sequence[Example]]:
    """As many as TOKENS hold, of about one length."""
    length = torch.tensor([len(ids) for ids, _ in examples])
    return [[examples[row] for row in part.tolist()] for part in microbatches(length, TOKENS)]


def _apart(examples: Sequence[Example], seed: int) -> tuple[list[Example], list[Example]]:
    """-> those that are shown and those that are held out; no text is in both, but where there is one alone."""
    different = {tuple(ids): (ids, start) for ids, start in examples}
    order = torch.randperm(len(different), generator=stream(seed, "warm start held out")).tolist()
    texts = list(different)
    held = {texts[i] for i in order[: min(MOST, max(1, int(SHARE * len(order))))]}
    shown = [example for example in examples if tuple(example[0]) not in held]
    return shown or list(examples), [different[text] for text in texts if text in held]


def _copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def _put_back(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    for name, weight in weights.items():
        model.get_parameter(name).copy_(weight)
    model.eval()
