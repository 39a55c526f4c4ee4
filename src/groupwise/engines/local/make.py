"""The local engine from a policy and the recipe's settings, or from the spec of an engine in a process of its own."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from groupwise.core.engine import Progress, silent
from groupwise.core.numbers.reproducible import prepare
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.outside.spec import EngineSpec
from groupwise.engines.settings import EngineSettings
from groupwise.engines.weights import copy_weights
from groupwise.models.files.folder import loading, read_config
from groupwise.models.load import Policy, load_tokenizer


def local_engine(policy: Policy, settings: EngineSettings, routes: bool, progress: Progress = silent) -> LocalEngine:
    """Make an engine in this process, with its own copy of the policy.

    Raises UsageError if the policy's model cannot be sampled, or has no experts to record.
    """
    return LocalEngine(
        policy.model,
        eos=policy.eos,
        pad=policy.pad,
        max_rows=settings.max_rows,
        routes=routes,
        precision=settings.precision,
        decode=policy.decode,
        progress=progress,
    )


def engine_of_spec(spec: EngineSpec, folder: Path, weights: Mapping[str, Tensor], progress: Progress) -> LocalEngine:
    """Make an engine of a model that is built from its configuration.

    It tries its ways to compute on the weights that it is made with, so they are in the model before.
    """
    what = "the model of the engine in a child"
    config = read_config(folder, what)
    tokenizer = load_tokenizer(folder, config)
    with loading(what):
        model = AutoModelForCausalLM.from_config(
            config,
            dtype=getattr(torch, spec.dtype),
            attn_implementation=spec.attention,
            experts_implementation=spec.experts,
        )
    progress()
    prepare(spec.device)
    model = model.eval().to(spec.device)
    copy_weights(model, weights, keeps=0)
    policy = Policy(model, tokenizer, frozenset(spec.eos), spec.pad)
    return local_engine(policy, EngineSettings.model_validate(spec.settings), spec.routes, progress)
