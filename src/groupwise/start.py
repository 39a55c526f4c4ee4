"""The policy a run starts from: a tiny one or a folder's, warm-started, cached by everything that determines it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from groupwise.errors import UsageError
from groupwise.models.load import Policy, digest, load_policy, save_policy
from groupwise.models.tiny import TinySpec
from groupwise.supervised import WarmStart, fingerprint, warm_start
from groupwise.tasks.base import Demonstrates, Task
from groupwise.whole import make_whole

TINY = {"tiny-dense": TinySpec()}


def check_model(model: str) -> None:
    """Raises UsageError where `model` is neither a tiny model's name nor a folder."""
    if model not in TINY and not Path(model).is_dir():
        raise UsageError(f"model = {model!r}: there is no such folder; or one of: {', '.join(TINY)}")


def starting_policy(
    model: str,
    task: Task,
    warm: WarmStart | None,
    seed: int,
    cache: Path,
    device: str,
    on_step: Callable[[int, int, float], None],
) -> Policy:
    """The policy, ready to train. With a warm start it comes from `cache` where the same one was made before."""
    if model not in TINY and warm is None:
        return load_policy(Path(model), device=device)
    if warm is not None and not isinstance(task, Demonstrates):
        raise UsageError(f"warm_start.steps = {warm.steps}: {task} has no demonstrations to imitate; set it to 0")
    origin = TINY[model] if model in TINY else digest(load_policy(Path(model)).model)
    folder = cache / fingerprint(origin, task, getattr(task, "contents", ""), warm, seed)
    make_whole(folder, partial(_make, model, task, warm, seed, on_step), "the warm-started policy")
    return load_policy(folder, device=device)


def _tell(on_step: Callable[[int, int, float], None], steps: int, step: int, loss: float) -> None:
    on_step(step, steps, loss)


def _make(
    model: str,
    task: Task,
    warm: WarmStart | None,
    seed: int,
    on_step: Callable[[int, int, float], None],
    folder: Path,
) -> None:
    if model in TINY:
        TINY[model].build(task.alphabet, folder, seed)
    policy = load_policy(folder if model in TINY else Path(model))
    if warm is not None:
        assert isinstance(task, Demonstrates)
        shown = list(task.demonstrations(warm.demonstrations, seed))
        told = partial(_tell, on_step, warm.steps)
        warm_start(policy.model, policy.tokenizer, shown, warm, seed, told)
    save_policy(policy.model, policy.tokenizer, folder)
