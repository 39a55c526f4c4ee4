"""GPU of this machine, as torch and NVIDIA's driver have it; and in words why a run cannot be on it."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from groupwise.core.errors import UsageError

Device = Literal["auto", "cpu", "cuda"]

#: Where the driver says its version.
DRIVER = Path("/proc/driver/nvidia/version")
#: Oldest driver that runs programs of a CUDA, by the first numbers of their versions (CUDA's release notes).
OLDEST = {11: 450, 12: 525, 13: 580}
REMEDY = "install another torch (pytorch.org/get-started), or set device = 'cpu'"


@dataclass(frozen=True)
class Gpu:
    """Facts of this machine's GPU, as torch and the driver say them.

    torch   its version
    cuda    the CUDA that torch is built for, such as "13.0"; "" if it is built without
    driver  the version of NVIDIA's driver; "" if there is none
    usable  whether torch can use a GPU
    """

    torch: str
    cuda: str
    driver: str
    usable: bool

    @property
    def wasted(self) -> str:
        """Say why a GPU that seems to be there cannot be used; "" if one can, or none seems to be there."""
        if self.usable or not self.driver:
            return ""
        if not self.cuda:
            return f"torch {self.torch} is built without CUDA, and NVIDIA's driver {self.driver} is here; {REMEDY}"
        needed = OLDEST.get(_first(self.cuda), 0)
        if _first(self.driver) >= needed:  # CUDA_VISIBLE_DEVICES may hide it
            return ""
        return (
            f"NVIDIA's driver {self.driver} is too old for torch {self.torch}, which is built for CUDA {self.cuda} "
            f"and needs driver {needed} or newer; update the driver, or {REMEDY}"
        )


def gpu() -> Gpu:
    """Look at the machine. CUDA is not started by this."""
    return Gpu(torch.__version__, torch.version.cuda or "", driver_version(), torch.cuda.is_available())


def driver_version(file: Path = DRIVER) -> str:
    """Read the version of NVIDIA's driver; "" if there is none."""
    with suppress(OSError):
        if found := re.search(r"\b\d{3,}(\.\d+)+\b", file.read_text(errors="replace")):
            return found[0]
    return ""


def device_of(name: Device, key: str, look: Callable[[], Gpu] = gpu) -> Device:
    """Return "cpu" or "cuda", which "auto" takes if torch can use a GPU. Raises UsageError if there is no such device.

    key  what asks for it, as a person wrote it
    """
    if name == "cpu":
        return name
    here = look()
    if name == "cuda" and not here.usable:
        raise UsageError(f"{key}: {here.wasted or 'torch finds no GPU here; use cpu or auto'}")
    return "cuda" if here.usable else "cpu"


@dataclass(frozen=True)
class Card:
    """One GPU.

    capability  such as (9, 0)
    kernels     the capabilities that torch has kernels for, such as "sm_90" and "compute_90"; none if it does not tell
    """

    name: str
    capability: tuple[int, int]
    kernels: tuple[str, ...]

    def require_kernels(self, key: str) -> None:
        """Raise UsageError, the setting's key first, if torch has no kernel for it: one of sm_ runs on its own
        generation, and one of compute_ on later ones too.
        """
        own = 10 * self.capability[0] + self.capability[1]
        codes = [(kind, int(re.sub(r"\D", "", code))) for kind, _, code in (k.partition("_") for k in self.kernels)]
        runs = any(code <= own and (kind == "compute" or code // 10 == own // 10) for kind, code in codes)
        if self.kernels and not runs:
            raise UsageError(
                f"{key}: {self.name} has compute capability {own // 10}.{own % 10}, and this torch has kernels for "
                f"{', '.join(self.kernels)} alone; {REMEDY}"
            )


def card() -> Card:
    """Look at the GPU that torch computes on, which starts CUDA."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    kernels = torch.cuda.get_arch_list() if torch.version.cuda else ()
    return Card(properties.name, (properties.major, properties.minor), tuple(kernels))


def _first(version: str) -> int:
    return int(version.partition(".")[0])
