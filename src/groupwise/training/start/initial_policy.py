"""The policy a run starts from: a tiny one, a folder's or another run's, warm-started, and cached by everything that
determines it.

A warm start of a trained model is to lose nothing: demonstrations that it has not been shown say how far it goes.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn

from groupwise.core.code.user_code import source_of
from groupwise.core.collate import microbatches
from groupwise.core.errors import UsageError
from groupwise.core.numbers.reproducible import reproducible
from groupwise.core.numbers.seeds import stream
from groupwise.core.task import Demonstrates, Demonstration, Identified, Task
from groupwise.journal.run_policy import run_policy
from groupwise.models.adapters.lora import Adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.chat.later_turns import thinking_of
from groupwise.models.chat.prompts import Chat, ChatSettings
from groupwise.models.load import Policy, digest, load_policy, model_folder, save_policy
from groupwise.models.tiny import ByteSpec, MoeSpec, TinySpec
from groupwise.training.checkpoint import cached_folder
from groupwise.training.optimizer import OnStep, silent
from groupwise.training.start.warm_start import (
    Example,
    WarmStart,
    cross_entropy,
    encoded,
    fingerprint,
    pad_of,
    trained_tokens,
    updates,
    warm_start,
)

TINY = {
    "tiny-dense": TinySpec(),
    "tiny-long": TinySpec(max_length=512),
    "tiny-moe": MoeSpec(),
    "tiny-moe-twin": MoeSpec().twin(),
    "tiny-bytes": ByteSpec(),
    "tiny-chat": ByteSpec(chat=True),
    # 34 million parameters: what is held and computed is of the policy and no longer of the libraries around it.
    "small-dense": TinySpec(
        layers=8,
        width=512,
        mlp_width=2048,
        heads=8,
        kv_heads=8,
        head_dim=64,
        initializer_range=0.02,
        max_length=512,
    ),
}

#: owner/name, as model hubs have it; a relative path would be a folder that exists.
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

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
    """Outcome of a warm start of a trained model; losses of held-out demonstrations, nats a token.

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


def check_model(key: str, model: str, names: Sequence[str] = tuple(TINY)) -> None:
    """Raise UsageError, the recipe's key first, if `model` is none of the names, nor a folder, nor a run, nor looks
    like a hub's id; and where it is a file.
    """
    if os.path.isfile(model):
        raise UsageError(f"{key} = {model!r} is a file; a model is a folder, as save_pretrained writes it")
    known = model in names or os.path.isdir(model) or HUB_ID.fullmatch(model) or run_policy(model)
    if not known:
        others = f"; or one of: {', '.join(names)}" if names else ""
        raise UsageError(f"{key} = {model!r}: there is no such folder{others}")


def starting_policy(
    model: str,
    task: Task,
    warm: WarmStart,
    seed: int,
    cache: Path,
    device: str,
    on_step: OnStep,
    chat: ChatSettings = ChatSettings(),
    note: Callable[[str], None] = print,
    require: Callable[[Any], object] | None = None,
    adapter: AdapterSettings = AdapterSettings(),
    in_files: bool = False,
) -> Policy:
    """Return the policy, ready to train. With a warm start it comes from `cache` if the same one is there already.

    adapter  of a trained model adapters alone learn, if there are to be any, and are merged into its weights
    in_files  its weights stay in its files, where they can (models/unread.py)
    note     is told if what is there is damaged and made again, and what the warm start of a trained model has come to
    require  is called with the model before a warm start, and raises UsageError if the run cannot use it
    """
    if model not in TINY:
        model = str(model_folder(model))
        if not warm.steps:
            return load_policy(Path(model), device=device, training=True, in_files=in_files)
    if warm.steps and not isinstance(task, Demonstrates):
        raise UsageError(f"warm_start.steps = {warm.steps}: {task} has no demonstrations to imitate; set it to 0")
    origin = TINY[model] if model in TINY else digest(load_policy(Path(model), training=True).model)
    tiny, contents = model in TINY, task.contents if isinstance(task, Identified) else ""
    if own := source_of(type(task)):  # its demonstrations are what its file says
        contents += own.sha256
    warm = warm.fitted(tiny)
    trained = () if tiny else (adapter, inspect.getsource(sys.modules[__name__]))
    where = () if tiny and device == "cpu" else (device,)  # another device rounds otherwise
    folder = cache / fingerprint(origin, task, contents, warm, seed, chat, *trained, *where)

    def write(target: Path) -> None:
        if tiny:
            TINY[model].build(task.alphabet, target, seed)
        policy = load_policy(target if tiny else Path(model), device=device)
        if require is not None:
            require(policy.model)
        done = None
        if warm.steps:
            assert isinstance(task, Demonstrates)
            shown, encoder = list(task.demonstrations(warm.demonstrations, seed)), Chat(policy.tokenizer, chat)
            if opening := thinking_of(encoder):
                note(f"warm start   prompts open {opening!r}: demonstrations close it before their answer")
            if tiny:
                warm_start(policy.model, encoder, shown, warm, seed, on_step)
            else:
                done = imitate(policy.model, encoder, shown, warm, adapter, seed, on_step)
        save_policy(policy.model, policy.tokenizer, target)
        if done is not None:
            (target / IMITATION).write_text(done.model_dump_json(indent=2) + "\n", encoding="utf-8")

    cached_folder(folder, write, "the warm-started policy", note)
    if (folder / IMITATION).is_file():
        note(f"warm start   {Imitation.model_validate_json((folder / IMITATION).read_bytes())}")
    return load_policy(folder, device=device, in_files=in_files)


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
    rises training is stopped: a run is compared with its own best. One whose loss ends at its least goes to its end,
    also where a lower rate would have come to less. A second copy of what is trained is held.
    """
    assert settings.learning_rate is not None, "the settings are fitted to the policy"
    adapters = Adapters(model, adapter, seed) if adapter.rank else None
    if adapters is not None:
        settings = settings.replace(learning_rate=settings.learning_rate * adapter.rate_factor)
    shown, held = apart(encoded(chat, demonstrations), seed)
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
    with torch.no_grad():
        for name, weight in weights.items():
            model.get_parameter(name).copy_(weight)
    model.eval()
    if adapters is not None:
        adapters.merge()
    return Imitation(heldout=len(held), before=before, after=best, kept=kept, last=(step, now), steps=settings.steps)


@torch.no_grad()
def loss_of(model: Any, examples: Sequence[Example], pad: int) -> float:
    """Measure the mean cross-entropy of the completion tokens, nats a token. The model stays in its mode."""
    trains = model.training
    model.eval()
    with reproducible(model.device):
        total = sum(float(cross_entropy(model, part, pad)) for part in by_tokens(examples))
    model.train(trains)
    return total / trained_tokens(examples)


def by_tokens(examples: Sequence[Example]) -> list[Sequence[Example]]:
    """Split examples into parts of about one length that TOKENS hold."""
    length = torch.tensor([len(ids) for ids, _ in examples])
    return [[examples[row] for row in part.tolist()] for part in microbatches(length, TOKENS)]


def apart(examples: Sequence[Example], seed: int) -> tuple[list[Example], list[Example]]:
    """Split examples into those shown and those held out; no text is in both, unless there is one alone."""
    different = {tuple(ids): (ids, start) for ids, start in examples}
    order = torch.randperm(len(different), generator=stream(seed, "warm start held out")).tolist()
    texts = list(different)
    held = {texts[i] for i in order[: min(MOST, max(1, int(SHARE * len(order))))]}
    shown = [example for example in examples if tuple(example[0]) not in held]
    return shown or list(examples), [different[text] for text in texts if text in held]


def _copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
