"""vLLM in this process, for the model of a spec."""

import math
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groupwise.core.engine import Progress
from groupwise.core.errors import UsageError, one_line
from groupwise.core.numbers.precision import DTYPES, precision_of
from groupwise.engines.inputs import shapes_of
from groupwise.engines.kinds import VLLM
from groupwise.engines.outside.spec import EngineSpec
from groupwise.engines.settings import EngineSettings
from groupwise.engines.vllm.engine import Library, ModelFacts, VllmEngine
from groupwise.engines.vllm.heads import cache_bytes, widening_for
from groupwise.models.context import positions
from groupwise.models.files.folder import read_config
from groupwise.models.load import load_tokenizer
from groupwise.models.precision import require_range

#: Tokens that go through the model at once, at least.
LEAST_BATCHED = 2048


def vllm_engine(spec: EngineSpec, folder: Path, weights: Mapping[str, Tensor], progress: Progress) -> VllmEngine:
    """Make vLLM, with weights that are random until the first load.

    Raises UsageError if vLLM is missing, or cannot serve the model.
    """
    settings = EngineSettings.model_validate(spec.settings)
    if spec.routes:
        raise UsageError(
            "engine.name = 'vllm': routes are not recorded with it here; set routing.replay = \"learner\", or take "
            "engine.name = 'local'"
        )
    on_cpu = torch.device(spec.device).type == "cpu"
    if on_cpu and settings.memory_share is not None:
        raise UsageError(
            f"engine.memory_share = {settings.memory_share:g}: it is a share of a GPU's memory, and the engine is on a "
            "CPU; set engine.cache_mib in its place"
        )
    if on_cpu and any(".experts." in name for name in spec.parameters):
        raise UsageError(
            "engine.name = 'vllm': on a CPU it keeps the experts that it was started with, whatever is loaded; take "
            "engine.name = 'local'"
        )
    config = read_config(folder, "the model of the engine in a child")
    tokenizer = load_tokenizer(folder, config)
    model = _facts(spec, config, weights, on_cpu)
    dtype = DTYPES.get(settings.precision, getattr(torch, spec.dtype))
    require_range("engine.precision", settings.precision, weights.items())
    sleeps = settings.sleep is True and not on_cpu
    cache = cache_bytes(config, settings.max_rows, settings.cache_mib, dtype.itemsize, on_cpu)
    taken = cache + sum(map(math.prod, shapes_of(weights).values())) * dtype.itemsize
    _configure_process(spec.threads)
    library, make = _import()
    try:
        llm = make(
            model=str(folder),
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype=str(dtype).removeprefix("torch."),
            max_model_len=model.context,
            max_num_seqs=settings.max_rows,
            **_memory(settings.memory_share, cache, taken, torch.device(spec.device)),
            logprobs_mode="processed_logprobs",
            max_logprobs=-1,  # as many as a request asks for
            generation_config="vllm",
            enforce_eager=on_cpu,
            enable_sleep_mode=sleeps,
            hf_overrides=_overrides(model),
            **_scheduling(model, on_cpu),
        )
    except Exception as error:  # vLLM raises whatever it raises
        words = UsageError(f"engine.name = 'vllm': it cannot serve this model: {one_line(error)}")
        raise words from error
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    return VllmEngine(llm, library, model, decode, precision_of(dtype), progress, sleeps)


def _memory(share: float | None, cache: int, taken: int, device: torch.device) -> dict[str, Any]:
    """Say what vLLM may take of which GPU, or of the machine.

    share  of a GPU, for all of it: what is left of that is its cache; None where the cache's bytes are said
    taken  bytes of weights and cache

    vLLM refuses to start unless the share `gpu_memory_utilization` is free, even where the bytes of its cache are said
    and nothing is sized by the share. Its default is nearly the whole GPU, of which the learner holds a part: so the
    share is then what vLLM takes for certain.
    """
    if device.type == "cpu":
        return {"kv_cache_memory_bytes": cache}
    index = device.index or 0
    which = {"device_ids": [index]} if index else {}
    if share is not None:
        return {"gpu_memory_utilization": share, **which}
    certain = share_of(taken, torch.cuda.get_device_properties(index).total_memory)
    return {"kv_cache_memory_bytes": cache, "gpu_memory_utilization": certain, **which}


def share_of(taken: int, whole: int) -> float:
    """Return the share of a GPU that so many bytes are, as vLLM takes one: above 0, and 1 at most.

    >>> share_of(20, 80), share_of(100, 80)
    (0.25, 1.0)
    """
    return min(1.0, max(1, taken) / whole)


def _facts(spec: EngineSpec, config: Any, weights: Mapping[str, Tensor], on_cpu: bool) -> ModelFacts:
    """Gather what the engine knows of the model. Raises UsageError if a CPU cannot be made to compute heads so wide."""
    shapes, names = shapes_of(weights), set(spec.parameters)
    embedding = next((name for name in spec.parameters if name.endswith("embed_tokens.weight")), None)
    return ModelFacts(
        eos=frozenset(spec.eos),
        vocabulary=config.get_text_config().vocab_size,
        context=positions(config),
        parameters={name: shape for name, shape in shapes.items() if name in names},
        buffers={name: shape for name, shape in shapes.items() if name not in names},
        tied_to=embedding if on_cpu and "lm_head.weight" not in names else None,
        widening=widening_for(config) if on_cpu else None,
    )


def _configure_process(threads: int) -> None:
    """Set what vLLM reads from the environment, of this process alone."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process, so that its end is the engine's
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # the run's own threads need cores too
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    os.environ["OMP_NUM_THREADS"] = str(threads)


def _import() -> tuple[Library, Any]:
    """Import vLLM's parts, and what makes an LLM. Raises UsageError if it is missing."""
    try:
        from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError(
            f"engine.name = 'vllm': vLLM cannot be imported there ({one_line(error)}); {VLLM.install}"
        ) from None
    return Library(SamplingParams, RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA), LLM


def _scheduling(model: ModelFacts, on_cpu: bool) -> dict[str, Any]:
    """Keep vLLM's scheduler from what cannot be undone.

    On a CPU from running a prompt in parts: the number that it then draws too early it takes back, which the generators
    there cannot do. On a GPU from scheduling a step before the one that runs has ended: it would be in flight as a call
    ends, and vLLM that lives in this process waits for it neither before it sleeps nor before it takes weights.
    """
    if not on_cpu:
        return {"async_scheduling": False}
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(LEAST_BATCHED, model.context)}


def _overrides(model: ModelFacts) -> dict[str, Any]:
    """Override the configuration: on a CPU vLLM packs an output head once, so that a tied one would keep its first
    weights.
    """
    wide = {"head_dim": model.widening.wide} if model.widening else {}
    return wide | ({"tie_word_embeddings": False} if model.tied_to else {})
