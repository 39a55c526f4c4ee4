"""GPUs that cannot be used: what torch and the driver say becomes one line, on a machine that has neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.machine.gpu import Card, Gpu, device_of, driver_version

NONE = Gpu("2.11.0+cpu", cuda="", driver="", usable=False)
WITHOUT = Gpu("2.11.0+cpu", cuda="", driver="580.82.07", usable=False)
OLD = Gpu("2.11.0+cu130", cuda="13.0", driver="535.129.03", usable=False)
HIDDEN = Gpu("2.11.0+cu130", cuda="13.0", driver="580.82.07", usable=False)
USABLE = Gpu("2.11.0+cu128", cuda="12.8", driver="535.129.03", usable=True)


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (NONE, "torch finds no GPU here; use cpu or auto"),
        (HIDDEN, "torch finds no GPU here; use cpu or auto"),
        (WITHOUT, "torch 2.11.0+cpu is built without CUDA, and NVIDIA's driver 580.82.07 is here; install another"),
        (
            OLD,
            "NVIDIA's driver 535.129.03 is too old for torch 2.11.0+cu130, which is built for CUDA 13.0 and needs "
            "driver 580 or newer; update the driver, or install another torch",
        ),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_refused_with_the_reason_and_left_alone_otherwise(here: Gpu, words: str):
    with pytest.raises(UsageError) as error:
        device_of("cuda", "device = 'cuda'", lambda: here)
    assert str(error.value).startswith(f"device = 'cuda': {words}")
    assert "\n" not in str(error.value)
    assert device_of("auto", "", lambda: here) == "cpu"
    assert bool(here.wasted) == (here in (WITHOUT, OLD)), "auto says a line only if a GPU seems to be there"


def test_a_gpu_that_torch_can_use_is_taken_whatever_the_drivers_version():
    assert [device_of(name, "", lambda: USABLE) for name in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    assert USABLE.wasted == ""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC 12",
            "535.129.03",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82  Release Build", "580.82"),
        ("nothing of the kind", ""),
        (None, ""),
    ],
)
def test_the_drivers_version_is_read_where_it_says_it(text: str | None, version: str, tmp_path: Path):
    if text is not None:
        (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path / "version") == version


@pytest.mark.parametrize(
    ("capability", "kernels", "runs"),
    [
        ((9, 0), ("sm_80", "sm_90"), True),
        ((8, 6), ("sm_80", "sm_90"), True),
        ((9, 0), ("sm_90a", "compute_120"), True),
        ((6, 1), ("sm_75", "sm_80"), False),
        ((12, 0), ("sm_80", "sm_90"), False),
        ((12, 0), ("sm_90", "compute_90"), True),
        ((8, 0), ("sm_86",), False),
        ((9, 4), (), True),
    ],
)
def test_a_card_that_torch_has_no_kernels_for_is_refused(
    capability: tuple[int, int], kernels: tuple[str, ...], runs: bool
):
    card = Card("Some Card", capability, kernels)
    if runs:
        card.require_kernels("device = 'cuda'")
        return
    one, other = capability
    words = rf"^device = 'cuda': Some Card has compute capability {one}.{other}, and this torch has kernels for "
    with pytest.raises(UsageError, match=words + ", ".join(kernels) + " alone; install another torch"):
        card.require_kernels("device = 'cuda'")
