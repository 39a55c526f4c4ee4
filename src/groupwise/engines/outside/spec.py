"""Specification of which a child makes its engine: facts that JSON can say, and a folder with the
model's configuration and tokenizer.

The weights come by themselves (newest.py), with those buffers that the model has.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from groupwise.core.engine import WeightStream
from groupwise.engines.outside.card_weights import CardWeights
from groupwise.engines.outside.newest import NewestWeights
from groupwise.engines.settings import EngineSettings
from groupwise.models.files.folder import quiet
from groupwise.models.load import Policy
from groupwise.models.unread import Weights


@dataclass(frozen=True)
class EngineSpec:
    """An engine, without weights.

    settings    the section [engine]
    eos, pad    as the policy has them
    routes      whether completions are to carry the experts that were chosen
    dtype       of the weights that are sent, torch's name
    device      where the engine computes
    attention, experts   transformers' names of what computes the model's attention and its experts
    threads     of torch: the bits depend on them
    parameters  the names that every load must have
    vocabulary  ids of the model
    """

    settings: dict[str, Any]
    eos: tuple[int, ...]
    pad: int
    routes: bool
    dtype: str
    device: str
    attention: str
    experts: str | None
    threads: int
    parameters: tuple[str, ...]
    vocabulary: int


def spec_of(policy: Policy, settings: EngineSettings, routes: bool, device: str | None = None) -> EngineSpec:
    """Return the engine of a policy, as it would be inside; `device` stands in the place of the policy's."""
    model = policy.model
    return EngineSpec(
        settings=settings.model_dump(mode="json"),
        eos=tuple(sorted(policy.eos)),
        pad=policy.pad,
        routes=routes,
        dtype=str(model.dtype).removeprefix("torch."),
        device=device or str(policy.device),
        attention=model.config._attn_implementation,
        experts=model.config._experts_implementation,
        threads=max(1, torch.get_num_threads() // settings.count),
        parameters=tuple(name for name, _ in model.named_parameters()),
        vocabulary=model.config.get_text_config().vocab_size,
    )


def newest_weights(
    policy: Policy, on_card: bool = False, note: Callable[[str], None] = lambda _: None
) -> NewestWeights:
    """Return the policy's weights as other processes read them, version 0; every version that is written has its
    buffers too.

    on_card  whether they lie on the policy's GPU, if it is on one, as long as every process can read them there
    note     hears why they do not
    """
    buffers = {name: buffer.detach().clone() for name, buffer in policy.model.named_buffers()}
    device = policy.device
    card = CardWeights(device) if on_card and device.type == "cuda" else None
    weights = NewestWeights(buffers, card, note)
    weights.write(WeightStream(dict(policy.model.named_parameters()), Weights(policy.model).named), version=0)
    return weights


def folder_writer(policy: Policy) -> Callable[[Path], None]:
    """Return what writes the policy's configuration and tokenizer, as they are now, into a folder; no weights."""
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]

    def write(folder: Path) -> None:
        with quiet():
            config.save_pretrained(folder)
            policy.tokenizer.save_pretrained(folder)

    return write
