"""Which engine a child builds: a row each. What it needs is imported when it is built: a child has one engine."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from groupwise.core.engine import Engine, Progress
from groupwise.engines.outside.spec import EngineSpec
from groupwise.engines.settings import EngineSettings

#: What the engine is, the folder of its configuration and tokenizer, its first weights, what it calls as it gets on.
Build = Callable[[EngineSpec, Path, Mapping[str, Tensor], Progress], Engine]


def local(spec: EngineSpec, folder: Path, weights: Mapping[str, Tensor], progress: Progress) -> Engine:
    """The engine of engines/local, on a model that is made from its configuration.

    It tries its ways to compute on the weights that it is made with, so they are in the model before.
    """
    from transformers import AutoModelForCausalLM

    from groupwise.core.numbers.reproducible import prepare
    from groupwise.engines.local.make import local_engine
    from groupwise.engines.weights import copy_weights
    from groupwise.models.files.folder import loading, read_config
    from groupwise.models.load import Policy, load_tokenizer

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


def vllm(spec: EngineSpec, folder: Path, weights: Mapping[str, Tensor], progress: Progress) -> Engine:
    """The engine of engines/vllm."""
    from groupwise.engines.vllm.make import vllm_engine

    return vllm_engine(spec, folder, weights, progress)


BUILDERS: Mapping[str, Build] = {"local": local, "vllm": vllm}

#: The module that computes what the engine samples.
LIBRARIES: Mapping[str, str] = {"local": "transformers", "vllm": "vllm"}


def library_of(name: str) -> str:
    """The library of an engine that has been built, with its version."""
    library = LIBRARIES[name]
    return f"{library} {sys.modules[library].__version__}"
