"""The policy a run starts from: a tiny one or a folder's, warm-started, cached by everything that determines it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from groupwise.core.atomic import make_whole
from groupwise.core.errors import UsageError
from groupwise.core.task import Demonstrates, Identified, Task
from groupwise.models.chat import Chat, ChatSettings
from groupwise.models.load import Policy, digest, load_policy, model_folder, save_policy
from groupwise.models.tiny import ByteSpec, MoeSpec, TinySpec
from groupwise.training.warm_start import WarmStart, fingerprint, warm_start

TINY = {
    "tiny-dense": TinySpec(),
    "tiny-moe": MoeSpec(),
    "tiny-moe-twin": MoeSpec().twin(),
    "tiny-bytes": ByteSpec(),
    "tiny-chat": ByteSpec(chat=True),
}

#: owner/name, as model hubs have it; a relative path would be a folder that exists.
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def check_model(model: str) -> None:
    """Raises UsageError where `model` is neither a tiny model's name, nor a folder, nor looks like a hub's id."""
    if model not in TINY and not Path(model).is_dir() and not HUB_ID.fullmatch(model):
        raise UsageError(f"model = {model!r}: there is no such folder; or one of: {', '.join(TINY)}")


def starting_policy(
    model: str,
    task: Task,
    warm: WarmStart,
    seed: int,
    cache: Path,
    device: str,
    on_step: Callable[[int, int, float], None],
    chat: ChatSettings | None = None,
) -> Policy:
    """The policy, ready to train. With a warm start it comes from `cache` where the same one was made before."""
    if model not in TINY:
        model = str(model_folder(model))
        if not warm.steps:
            return load_policy(Path(model), device=device)
    if warm.steps and not isinstance(task, Demonstrates):
        raise UsageError(f"warm_start.steps = {warm.steps}: {task} has no demonstrations to imitate; set it to 0")
    origin = TINY[model] if model in TINY else digest(load_policy(Path(model)).model)
    asked = chat or ChatSettings()
    folder = cache / fingerprint(origin, task, identity(task), warm, seed, asked)
    make_whole(folder, partial(_make, model, task, warm, seed, on_step, asked), "the warm-started policy")
    return load_policy(folder, device=device)


def identity(task: Task) -> str:
    """What decides a task's problems beside its settings, such as what a file says."""
    return task.contents if isinstance(task, Identified) else ""


def _tell(on_step: Callable[[int, int, float], None], steps: int, step: int, loss: float) -> None:
    on_step(step, steps, loss)


def _make(
    model: str,
    task: Task,
    warm: WarmStart,
    seed: int,
    on_step: Callable[[int, int, float], None],
    chat: ChatSettings,
    folder: Path,
) -> None:
    if model in TINY:
        TINY[model].build(task.alphabet, folder, seed)
    policy = load_policy(folder if model in TINY else Path(model))
    if warm.steps:
        assert isinstance(task, Demonstrates)
        shown = list(task.demonstrations(warm.demonstrations, seed))
        told = partial(_tell, on_step, warm.steps)
        warm_start(policy.model, Chat(policy.tokenizer, chat), shown, warm, seed, told)
    save_policy(policy.model, policy.tokenizer, folder)
