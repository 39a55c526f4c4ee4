"""A model without its weights, in words that JSON can hold: what another process needs to make one like it."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING

from groupwise.models.files.folder import loading


def description(model: Any) -> dict[str, Any]:
    """Describe what `model_like` makes one of the same class, configuration and arithmetic of."""
    return {
        "config": json.loads(model.config.to_json_string(use_diff=False)),
        "name": model.config.name_or_path,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "experts": model.config._experts_implementation,
    }


def model_like(kind: Any, described: Mapping[str, Any]) -> Any:
    """Return a model of transformers' `kind` with random weights, dropout off, without touching anyone's random
    numbers.

    Raises UsageError if this process cannot make one.
    """
    with loading("the model of another rank"), torch.random.fork_rng(devices=[]):
        config = CONFIG_MAPPING[described["config"]["model_type"]].from_dict(dict(described["config"]))
        config.name_or_path = described["name"]
        model = kind.from_config(
            config,
            dtype=getattr(torch, described["dtype"]),
            attn_implementation=described["attention"],
            experts_implementation=described["experts"],
        )
    return model.eval()
