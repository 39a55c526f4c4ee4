"""AdamW, and where the two moments that it keeps of each trained weight are.

    device   beside the weights, float32: 8 bytes a weight
    host     in the host's memory, float32, on the device one weight after another while an update uses them
    8bit     beside the weights, 8 bits each with a scale for every 256: 2.03 bytes a weight

From the host an update moves 16 bytes a weight: both moments to the device, and back. Of 1.5 billion weights that are
24 GB, 0.5 s of PCIe at 50 GB/s from pinned memory. An update on the host itself would move half of them, the gradient
there and the weight back, but it needs the float32 weights there too, reads and writes 28 bytes a weight in the host's
slower memory, and rounds as a processor does. Here the numbers are those of moments on the device, to the bit, and a
checkpoint of the one is a checkpoint of the other. FSDP2's CPUOffloadPolicy moves weights and gradients too, with every
pass over a layer, and is of models in shards.

8 bits are bitsandbytes': its kernels are compiled once for every card, and its state is plain tensors, which a
checkpoint holds to the bit; torchao compiles an update anew for each shape, and its state is subclasses of tensors. The
embedding keeps float32 moments, as transformers' trainer has it: tokens seen seldom lie beside frequent ones in a
block.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.adamw import AdamW, adamw

from groupwise.models.on_host import Copy, host_like, to_device
from groupwise.models.precision import bitsandbytes

Moments = Literal["device", "host", "8bit"]
#: Of bitsandbytes: a weight of fewer numbers has float32 moments; numbers of a block, which have a scale in common.
SMALLEST, BLOCK = 4096, 256
FLOAT32 = 4


def make_adamw(model: nn.Module, moments: Moments, **settings: Any) -> torch.optim.Optimizer:
    """Make the AdamW of a model's trained weights, with torch's `settings`."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if moments == "8bit":
        return _eight_bit(trained, embeddings(model), settings)
    return (HostAdamW if moments == "host" else AdamW)(trained, fused=True, **settings)


def require_moments(key: str, moments: object) -> None:
    """Raise UsageError, the setting's key first, with what to install if bitsandbytes is missing."""
    if moments == "8bit":
        bitsandbytes(f"{key} = '8bit'")


class HostAdamW(AdamW):
    """AdamW whose moments are in the host's memory, and visit the device one weight after another.

    copy  takes them there
    """

    def __init__(self, params: Sequence[Tensor], copy: Copy = to_device, **settings: Any) -> None:
        super().__init__(params, **settings)
        self._copy = copy

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make an update. The host waits once, at its end: a checkpoint may read the moments then."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()

    def keep(self, parameter: Tensor, entry: str, value: Tensor) -> None:
        """Put a moment, or the count of its updates, where an update looks for it."""
        self.state[parameter][entry] = value if entry == "step" else host_like(value).copy_(value)

    def _update(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = host_like(parameter).zero_()
        home = [state["exp_avg"], state["exp_avg_sq"]]
        here = [self._copy(moment, parameter.device) for moment in home]
        adamw(
            *([parameter], [gradient], here[:1], here[1:], [], [state["step"]]),
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for moment, updated in zip(home, here, strict=True):
            moment.copy_(updated, non_blocking=True)


def embeddings(model: nn.Module) -> set[int]:
    """Find the weights of a model's embeddings, by id()."""
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}


def moment_bytes(model: nn.Module, moments: Moments) -> int:
    """Size the moments that a model's trained weights have beside them, in one process."""
    wide, sizes = embeddings(model), _float32_bytes(model)
    for p in model.parameters() if moments == "8bit" else ():
        if id(p) in sizes and p.numel() >= SMALLEST and id(p) not in wide:
            sizes[id(p)] = 2 * (p.numel() + FLOAT32 * -(-p.numel() // BLOCK))
    return 0 if moments == "host" else sum(sizes.values())


def visiting_bytes(model: nn.Module, moments: Moments) -> int:
    """Size what an update takes of moments that are on the host: those of one weight, the largest."""
    return max(_float32_bytes(model).values(), default=0) if moments == "host" else 0


def _float32_bytes(model: nn.Module) -> dict[int, int]:
    """Size the float32 moments of each trained weight, by its id()."""
    return {id(p): 2 * FLOAT32 * p.numel() for p in model.parameters() if p.requires_grad}


def _eight_bit(trained: Sequence[Tensor], wide: set[int], settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Make bitsandbytes' AdamW; the weights `wide`, by id(), have float32 moments."""
    library = bitsandbytes("8-bit moments").optim

    class EightBit(library.AdamW8bit):
        """AdamW of bitsandbytes, where a group of parameters may have more bits than the others."""

        def get_config(self, gindex: int, pindex: int, group: Mapping[str, Any]) -> dict[str, Any]:
            config = super().get_config(gindex, pindex, group)
            return {**config, "optim_bits": group.get("optim_bits", config["optim_bits"])}

    groups = [
        {"params": [p for p in trained if id(p) not in wide]},
        {"params": [p for p in trained if id(p) in wide], "optim_bits": 32},
    ]
    return EightBit([group for group in groups if group["params"]], min_8bit_size=SMALLEST, **settings)
