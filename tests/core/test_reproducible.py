"""Deterministic mode is on for a GPU and inside alone; on a GPU itself tests/gpu takes runs up again."""

from __future__ import annotations

import os

import pytest
import torch

from groupwise.core.numbers import reproducible as own
from groupwise.core.numbers.reproducible import CUBLAS_WORKSPACE, ONE_ORDER, prepare, reproducible


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The variable is not set, and is what it was behind the test."""
    monkeypatch.setenv(CUBLAS_WORKSPACE, "")
    monkeypatch.delenv(CUBLAS_WORKSPACE)
    return monkeypatch


def test_cublas_is_told_before_a_gpu_is_used_and_what_a_person_set_stays(variable: pytest.MonkeyPatch) -> None:
    prepare("cpu")
    assert CUBLAS_WORKSPACE not in os.environ
    prepare("cuda:0")
    assert os.environ[CUBLAS_WORKSPACE] == ONE_ORDER
    variable.setenv(CUBLAS_WORKSPACE, ":16:8")
    prepare("cuda")
    assert os.environ[CUBLAS_WORKSPACE] == ":16:8"


@pytest.mark.parametrize(
    ("device", "possible", "mode"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_the_mode_is_on_inside_where_it_is_possible(
    device: str, possible: bool, mode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "_has_one_order", lambda: possible)
    fills = own.MODE.fill_uninitialized_memory
    with pytest.raises(KeyError), reproducible(device):
        fail_under(mode, fills)
    assert not torch.are_deterministic_algorithms_enabled()
    assert own.MODE.fill_uninitialized_memory is fills


def test_the_mode_stays_off_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "_has_one_order", lambda: True)
    with reproducible("cuda", False):
        assert not torch.are_deterministic_algorithms_enabled()


def fail_under(mode: bool, fills: bool) -> None:
    """Raises KeyError where the mode is as it should be, inside another one too."""
    for _ in range(2):
        assert torch.are_deterministic_algorithms_enabled() is mode
        assert own.MODE.fill_uninitialized_memory is (fills and not mode)
        with reproducible("cuda"):
            pass
    raise KeyError
