"""Engines in processes beside the run on one GPU: weights that never leave it, and memory that is given back."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
import torch

from groupwise.core.engine import Request, Sampling
from groupwise.engines.make import make_engine
from groupwise.engines.outside.card import Unshareable, exported
from groupwise.engines.outside.client import RemoteEngine
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy, load_policy
from groupwise.models.tiny import TinySpec
from tests.engines.outside.made import REQUESTS, assert_alike, weights
from tests.engines.vllm.conftest import ALPHABET, PYTHON, vllm_settings

PLAIN = Sampling(max_new_tokens=20)
#: 64 rows of 250 tokens, and what their keys and values take in float32: 4 layers, 2 x 512 numbers.
LONG, ENDLESS = [Request((4, 5, 6), samples=64, seed=1)], Sampling(max_new_tokens=250, logit_bias={1: -100.0})
CACHE = 64 * 250 * 4 * 2 * 512 * 4


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("card") / "policy"
    spec = TinySpec(layers=4, width=512, mlp_width=1024, heads=8, kv_heads=8, head_dim=64, max_length=512)
    spec.build(ALPHABET, folder, seed=3)
    return load_policy(folder, device="cuda")


def child_of(policy: Policy, settings: EngineSettings, notes: list[str]) -> RemoteEngine:
    engine = make_engine(policy=policy, settings=settings, note=notes.append)
    assert isinstance(engine, RemoteEngine)
    return engine


def on_card(engine: RemoteEngine) -> bool:
    return engine._weights._card is not None


def test_weights_are_read_on_the_gpu_by_process_after_process_and_nothing_is_held_behind_them(policy: Policy) -> None:
    inside, notes = make_engine(policy=policy, settings=EngineSettings()), list[str]()
    inside.generate(REQUESTS, PLAIN)
    gc.collect()
    held = torch.cuda.memory_allocated()
    child = child_of(policy, EngineSettings(process="child"), notes)
    try:
        for version, scale in ((1, 1.0), (2, 0.9)):
            for engine in (inside, child):
                engine.load_weights(weights(policy, scale).items(), version)
            assert_alike(child.generate(REQUESTS, PLAIN), inside.generate(REQUESTS, PLAIN))
        assert on_card(child), notes
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        assert_alike(child.generate(REQUESTS, PLAIN), inside.generate(REQUESTS, PLAIN))
        assert child.restarts == 1
        assert on_card(child), notes
    finally:
        child.close()
    gc.collect()
    assert torch.cuda.memory_allocated() == held, "of the process that was killed too"


def test_several_read_the_same_buffer(policy: Policy) -> None:
    inside = make_engine(policy=policy, settings=EngineSettings())
    several = make_engine(policy=policy, settings=EngineSettings(process="child", count=2))
    try:
        for engine in (inside, several):
            engine.load_weights(weights(policy, 0.9).items(), 1)
        assert_alike(several.generate(REQUESTS, PLAIN), inside.generate(REQUESTS, PLAIN))
    finally:
        several.close()


def test_memory_of_expandable_segments_is_not_shared() -> None:
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        torch.cuda.empty_cache()
        buffer = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
        with pytest.raises(Unshareable, match=r"^torch's allocator has expandable_segments"):
            exported(buffer)
        del buffer
    finally:
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def test_a_child_that_sleeps_leaves_its_cache_to_other_processes(policy: Policy) -> None:
    child = child_of(policy, EngineSettings(process="child"), [])
    try:
        before = child.generate(LONG, ENDLESS)
        awake, _ = torch.cuda.mem_get_info()
        child.sleep()
        asleep, _ = torch.cuda.mem_get_info()
        assert asleep - awake > CACHE
        assert_alike(child.generate(LONG, ENDLESS), before)
    finally:
        child.close()


@pytest.mark.skipif(not Path(PYTHON).exists(), reason="needs make vllm VLLM=vllm==0.32.0")
def test_vllm_on_the_same_gpu_sleeps_and_wakes_with_the_same_weights(policy: Policy) -> None:
    notes = list[str]()
    child = child_of(policy, vllm_settings(cache_mib=1024, sleep=True), notes)
    size = sum(parameter.numel() * parameter.element_size() for parameter in policy.model.parameters())
    try:
        child.load_weights(weights(policy, 0.9).items(), 1)
        before = child.generate(REQUESTS, PLAIN)
        awake, _ = torch.cuda.mem_get_info()
        child.sleep()
        asleep, _ = torch.cuda.mem_get_info()
        assert asleep - awake > 0.9 * (1024 * 2**20 + size)
        child.load_weights(weights(policy, 0.9).items(), 2)
        after = child.generate(REQUESTS, PLAIN)
        assert [[c.tokens for c in group] for group in after] == [[c.tokens for c in group] for group in before]
        assert on_card(child), notes
    finally:
        child.close()
