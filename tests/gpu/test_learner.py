"""A learner on a GPU has the gradients of the same learner on the CPU: the cases of several ranks, run by one there."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import groupwise
from groupwise.algorithms.settings import CATALOG
from groupwise.models.forward.packed_attention import runs_as_one, windows_of
from groupwise.models.moe.settings import ReplayFrom
from groupwise.training.learner import Learner
from groupwise.training.mesh import ALONE
from tests.laws import moe_models, rank_cases
from tests.laws.test_layout import gradient, make_batch, make_learner
from tests.tiny_models import causal

ON_GPU = dataclasses.replace(ALONE, device="cuda")
#: Relative, of a gradient. Norms and rotary positions of transformers' models are computed in float32 whatever the type
#: of the weights, and a GPU rounds there otherwise than a CPU.
ROUNDING = {"float64": 1e-6, "float32": 1e-4}
#: Relative, of a loss of experts: some 80 times what float32 tells apart.
LOSS = 1e-5


def require(measured: dict[str, Any], rounding: float = ROUNDING["float64"]) -> None:
    assert measured["columns"] < rounding
    assert measured["gradient"] < rounding
    assert measured["loss"] < rounding
    assert measured["norm"] > 1e-3, "there is a gradient to compare"


@pytest.fixture(scope="module")
def catalog() -> dict[str, dict[str, Any]]:
    return {dtype: rank_cases.catalog(ON_GPU, getattr(torch, dtype)) for dtype in ROUNDING}


@pytest.mark.parametrize("name", CATALOG)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_every_row_of_the_catalog(dtype: str, name: str, catalog: dict[str, dict[str, Any]]) -> None:
    require(catalog[dtype][name], ROUNDING[dtype])


@pytest.mark.parametrize("case", [rank_cases.padded_rows, rank_cases.supported])
def test_rows_without_shared_prompts_recomputed_and_tokens_of_a_truncated_distribution(case: Any) -> None:
    require(case(ON_GPU))


@pytest.mark.parametrize("replay", [ReplayFrom.LEARNER, ReplayFrom.ENGINE])
@pytest.mark.parametrize("architecture", moe_models.BUILD)
def test_routes_are_recorded_and_replayed(replay: ReplayFrom, architecture: str) -> None:
    """Routers compute in float32 whatever the type of the weights: no further from float64 than float32 is on a CPU.

    The policy's loss is one number, whose rounding on either may happen to be small: it has a bound of its own.
    """
    measured = rank_cases.experts(ON_GPU, replay, architecture)
    single = rank_cases.experts(ALONE, replay, architecture, torch.float32)
    beside = {name: (measured[name], single[name]) for name in ("columns", "gradient", "losses")}
    assert {name: pair for name, pair in beside.items() if pair[0] > pair[1]} == {}
    assert measured["loss"] < LOSS * abs(measured["own_loss"])
    assert measured["same_routes"]
    assert measured["same_own"]


@pytest.mark.parametrize("tied", [True, False])
def test_clipped_updates(tied: bool) -> None:
    measured = rank_cases.updates(ON_GPU, tied)
    assert max(measured["weights"], measured["norms"]) < ROUNDING["float64"]
    assert measured["clipped"] > 0.1, "the norm was above its limit"
    assert measured["least_moved_row"] > 1e-3


def test_bfloat16_is_near_that_of_a_cpu_over_float32_masters() -> None:
    """Either rounds on its own: their gradients may lie as far apart as rounding moves one, eps = 2^-8."""
    measured = rank_cases.rounded(ON_GPU)
    assert measured["gradient"] < 8 * 2**-8
    assert 1e-4 < measured["rounding"] < 0.1
    assert measured["masters"]


def test_the_critic(tmp_path: Any) -> None:
    measured = rank_cases.critic(ON_GPU, tmp_path)
    assert max(measured["loss"], measured["gradient"], measured["weights"]) < ROUNDING["float64"]
    assert measured["same_restored"]


def test_adapters_and_back_from_their_checkpoint(tmp_path: Any) -> None:
    measured = rank_cases.adapted(ON_GPU, tmp_path)
    require(measured, ROUNDING["float32"])
    assert measured["same_restored"]
    assert measured["same_again"], "the same updates from the same checkpoint have the same bits"
    assert measured["elsewhere"] < ROUNDING["float32"]


def test_back_from_a_checkpoint(tmp_path: Any) -> None:
    measured = rank_cases.saved(ON_GPU, tmp_path)
    assert measured["same_restored"], "what a GPU wrote, a CPU reads"
    assert measured["same_from_one"], "and the other way"
    assert measured["same_again"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("changes", [{}, {"sliding_window": 5}], ids=str)
def test_one_attention_is_blocks(changes: dict[str, Any], dtype: torch.dtype) -> None:
    """By torch's own kernels, compiled, forward and backward."""
    torch.manual_seed(0)
    backbone = causal("mistral" if changes else "llama", head_dim=16, **changes).base_model.to("cuda")
    assert runs_as_one(backbone, windows_of([backbone]), dtype)


@pytest.mark.parametrize("attention", ["blocks", "flex"])
def test_no_microbatch_waits_for_the_gpu(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises where one does."""
    torch.manual_seed(0)
    learner = make_learner(causal("llama", head_dim=16).to("cuda"), 60, attention=attention)
    algo, run = groupwise.algorithm("dapo"), Learner.run_microbatch
    batch = algo.weigh(algo.credit(make_batch()))
    plain = gradient(learner, algo, batch)  # what is compiled or allocated at first may wait

    def watched(*args: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return run(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Learner, "run_microbatch", watched)
    again = gradient(learner, algo, batch)
    assert again[0] == plain[0]
    assert torch.equal(again[1], plain[1])
