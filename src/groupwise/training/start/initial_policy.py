"""The policy a run starts from: a tiny one or a folder's, warm-started, cached by everything that determines it."""

import inspect
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from groupwise.core.code.user_code import source_of
from groupwise.core.errors import UsageError
from groupwise.core.task import Demonstrates, Identified, Task
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.chat.later_turns import thinking_of
from groupwise.models.chat.prompts import Chat, ChatSettings
from groupwise.models.load import Policy, digest, load_policy, model_folder, save_policy
from groupwise.models.tiny import ByteSpec, MoeSpec, TinySpec
from groupwise.training.optimizer import OnStep
from groupwise.training.start import imitation
from groupwise.training.start.cache import cached_folder
from groupwise.training.start.imitation import IMITATION, Imitation, imitate
from groupwise.training.start.run_policy import run_policy
from groupwise.training.start.warm_start import WarmStart, fingerprint, warm_start

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


def check_model(key: str, model: str, names: Sequence[str] = tuple(TINY)) -> None:
    """Raises UsageError, the recipe's key first, if `model` is none of the names, nor a folder, nor a run, nor looks
    like a hub's id; and where it is a file.
    """
    if os.path.isfile(model):
        raise UsageError(f"{key} = {model!r} is a file; a model is a folder, as save_pretrained writes it")
    known = model in names or os.path.isdir(model) or HUB_ID.fullmatch(model) or run_policy(model)
    if not known:
        raise UsageError(f"{key} = {model!r}: there is no such folder; or one of: {', '.join(names)}")


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
) -> Policy:
    """Return the policy, ready to train. With a warm start it comes from `cache` where the same one is there already.

    Of a trained model adapters alone learn, where there are to be any, and they are merged into its weights.

    `note` says a line where what is there is damaged and made again, and what the warm start of a trained model has
    come to. `require` is called with the model before a warm
    start, and raises UsageError where the run cannot use it.
    """
    if model not in TINY:
        model = str(model_folder(model))
        if not warm.steps:
            return load_policy(Path(model), device=device, training=True)
    if warm.steps and not isinstance(task, Demonstrates):
        raise UsageError(f"warm_start.steps = {warm.steps}: {task} has no demonstrations to imitate; set it to 0")
    origin = TINY[model] if model in TINY else digest(load_policy(Path(model), training=True).model)
    contents = task.contents if isinstance(task, Identified) else ""
    if own := source_of(type(task)):  # its demonstrations are what its file says
        contents += own.sha256
    tiny = model in TINY
    warm = warm.fitted(tiny)
    trained = () if tiny else (adapter, device, inspect.getsource(imitation))
    folder = cache / fingerprint(origin, task, contents, warm, seed, chat, *trained)

    def write(target: Path) -> None:
        if tiny:
            TINY[model].build(task.alphabet, target, seed)
        policy = load_policy(target) if tiny else load_policy(Path(model), device=device)
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
    return load_policy(folder, device=device)
