"""What an engine asks of the device: refused in one line where the device cannot give it, and counted in the plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.engines.kinds import VLLM
from groupwise.engines.settings import EngineSettings
from groupwise.engines.vllm.engine import ModelFacts
from groupwise.engines.vllm.make import _memory, _scheduling
from tests.planning.made import WEIGHTS, planned

GIB = 2**30


def of_vllm(**settings: Any) -> EngineSettings:
    return EngineSettings(name="vllm", **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sleep": True}, "engine.sleep = true: on a CPU vLLM gives nothing back; take it out"),
        ({"memory_share": 0.5}, "engine.memory_share = 0.5: it is a share of a GPU's memory, and the run computes on "
         "a CPU; set engine.cache_mib in its place"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_cpu_has_neither_a_share_nor_a_sleep_of_vllm(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        of_vllm(**settings).require_device("cpu")
    assert str(error.value) == words
    of_vllm(**settings, address="far:1").require_device("cpu")
    of_vllm().require_device("cpu")
    EngineSettings(sleep=True).require_device("cpu")


def test_a_share_that_is_not_free_is_one_line_with_numbers() -> None:
    def card() -> tuple[int, int]:
        return 40 * GIB, 80 * GIB

    of_vllm(memory_share=0.5).require_device("cuda", card)
    with pytest.raises(UsageError) as error:
        of_vllm(memory_share=0.6).require_device("cuda", card)
    assert str(error.value) == (
        "engine.memory_share = 0.6: that is 48.0 of the GPU's 80.0 GiB, and 40.0 are free; set it to at most 0.5, or "
        "end what holds memory there"
    )
    with pytest.raises(UsageError, match=r", and 0.0 are free; end what holds it$"):
        of_vllm(memory_share=0.3).require_device("cuda", lambda: (0, 80 * GIB))


def test_the_cache_has_one_size() -> None:
    with pytest.raises(UsageError, match=r"cache_mib = 64 and memory_share = 0.5 are two sizes of one cache; take one"):
        recipe.load("quickstart", {"engine.name": "vllm", "engine.cache_mib": 64, "engine.memory_share": 0.5})
    with pytest.raises(
        UsageError, match=r"memory_share = 0.3 with count = 2: each would measure what it takes by what"
    ):
        recipe.load("quickstart", {"engine.name": "vllm", "engine.count": 2, "engine.memory_share": 0.3})
    with pytest.raises(UsageError, match=r"^engine.memory_share: set, but nothing in this run reads it"):
        resolve(recipe.load("quickstart", {"engine.memory_share": 0.5}))


def test_vllm_is_told_bytes_and_never_asks_for_more_of_a_gpu_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would refuse to start beside a learner: 0.92 of the GPU has to be free by default."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: type("Card", (), {"total_memory": 80 * GIB}))
    cache, taken = 2 * GIB, 8 * GIB
    assert _memory(None, cache, taken, torch.device("cpu")) == {"kv_cache_memory_bytes": cache}
    said = {"kv_cache_memory_bytes": cache, "gpu_memory_utilization": 0.1}
    assert _memory(None, cache, taken, torch.device("cuda")) == said
    assert _memory(None, cache, taken, torch.device("cuda:3")) == {**said, "device_ids": [3]}
    assert _memory(0.4, cache, taken, torch.device("cuda:0")) == {"gpu_memory_utilization": 0.4}


def test_on_a_gpu_no_step_of_vllm_is_in_flight_as_a_call_ends() -> None:
    model = ModelFacts(frozenset({1}), vocabulary=20, context=4096, parameters={}, buffers={})
    assert _scheduling(model, on_cpu=False) == {"async_scheduling": False}
    assert _scheduling(model, on_cpu=True) == {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}


def test_the_plan_counts_the_share() -> None:
    vllm: dict[str, Any] = {"kind": VLLM, "outside": True, "device": "cuda", "max_rows": 8, "sleep": False}
    memory = planned(**vllm, memory_share=0.25, free=40 * GIB, process=0)
    assert memory.parts["engine's weights"] + memory.parts["engine's cache"] == 10 * GIB
    assert memory.parts["cache between steps"] == memory.parts["engine's cache"]
    assert memory.parts["engine's weights"] == WEIGHTS
    assert planned(**{**vllm, "elsewhere": True}, memory_share=0.25).parts["engine's cache"] == 0
