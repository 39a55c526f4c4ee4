"""GPUs of a machine, by number: which process of a run takes which, and what is wrong with one that fails."""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import torch

from groupwise.core.errors import UsageError, one_line, shortened

#: The cards that CUDA shows a process, by their numbers or names, with commas between them.
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Beginnings of what torch says when a GPU, or its driver, is gone, and what a person can do then.
GONE = (
    "CUDA error",
    "CUDA driver error",
    "cuDNN error",
    "CUBLAS_STATUS",
    "cuBLAS error",
    "NVML",
    "Unable to find a valid cuDNN",
    "no CUDA-capable device",
    "No CUDA GPUs are available",
)
#: Said of every placement on more than one card.
NOT_TRIED = "not tried on several cards by us"
#: Words of a card that has no room, which is another thing to be told.
MEMORY = ("out of memory", "ALLOC_FAILED")


@dataclass(frozen=True)
class Cards:
    """Cards of one machine, and the number of the one that each process of a run takes.

    count    cards of the machine
    ranks    of each rank
    engines  of each engine that lives in a child
    """

    count: int
    ranks: tuple[int, ...]
    engines: tuple[int, ...]

    @property
    def shared(self) -> bool:
        """True if several ranks have one card."""
        return len(set(self.ranks)) < len(self.ranks)

    @property
    def sampling(self) -> int:
        """Number of cards that sample: those of the engines, or the run's own."""
        return len(set(self.engines)) or 1

    @property
    def apart(self) -> bool:
        """True if there are engines, and none shares a card with a rank."""
        return bool(self.engines) and not set(self.engines) & set(self.ranks)

    @property
    def beside_ranks(self) -> tuple[int, int]:
        """Number of engines on the card of rank 0, and the largest number on that of another rank."""
        first, *others = (self.engines.count(card) for card in self.ranks)
        return first, max(others, default=0)

    @property
    def alone(self) -> int:
        """Number of cards that an engine has for itself."""
        return len(set(self.engines) - set(self.ranks))

    def __str__(self) -> str:
        several = len(self.ranks) > 1
        words = f"rank{'s' * several} on card{'s' * (len(set(self.ranks)) > 1)} {_listed(self.ranks)} of {self.count}"
        if self.engines:
            words += (
                f", engine{'s' * (len(self.engines) > 1)} on {_listed(self.engines)}{', of their own' * self.apart}"
            )
        return words + f"; {NOT_TRIED}" * (len({*self.ranks, *self.engines}) > 1)


def placed(count: int, ranks: int, engines: int) -> Cards:
    """Place ranks and engines on `count` cards: rank i takes card i, engine e the card behind the ranks' and so on.

    If none is left, engines share those of the ranks in turn; ranks that are more than the cards share them in turn.

    >>> placed(8, ranks=2, engines=3).engines, placed(4, ranks=2, engines=4).engines, placed(1, 1, 2).engines
    ((2, 3, 4), (2, 3, 0, 1), (0, 0))
    """
    of_ranks = tuple(rank % count for rank in range(ranks))
    left = max(0, count - ranks)
    taken = len(set(of_ranks))
    return Cards(count, of_ranks, tuple(ranks + e if e < left else (e - left) % taken for e in range(engines)))


def require_cards(cards: int, ranks: int, shares: bool = False) -> None:
    """Raise UsageError for more ranks than cards, unless they are to share them."""
    if ranks > cards and not shares:
        s = "s" * (cards != 1)
        raise UsageError(
            f"learner.ranks = {ranks}: each rank takes a GPU of its own, and torch sees {cards} GPU{s} here; set "
            f"learner.ranks to {max(cards, 1)}, or start more machines with torchrun, or set "
            "placement.share_cards = true to try ranks that share a card, over gloo and slowly"
        )


def alone_on(device: str, variables: MutableMapping[str, str]) -> str:
    """Hide all cards but one from a process that has not used any yet -> the name that the card has there.

    A library that the process runs takes the first card that it sees.

    >>> variables = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    >>> alone_on("cuda:3", variables), variables, alone_on("cpu", {})
    ('cuda:0', {'CUDA_VISIBLE_DEVICES': '7'}, 'cpu')
    """
    kind, _, number = device.partition(":")
    if kind == "cpu" or not number:
        return device
    shown = variables.get(VISIBLE)
    variables[VISIBLE] = shown.split(",")[int(number)].strip() if shown else number
    return f"{kind}:0"


def identity(device: str) -> str:
    """Return what tells a card from all others, on whatever machine and by whatever number; "" for a processor."""
    if torch.device(device).type == "cpu":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def failure_of(error: BaseException) -> str:
    """Say in one line how a card failed, if an error is one of the device; "" for any other error.

    torch has a class for it, AcceleratorError, but cuBLAS, cuDNN and the driver's own are plain RuntimeErrors.

    >>> failure_of(RuntimeError("CUDA error: unspecified launch failure\\nCUDA kernel errors might be reported later"))
    'CUDA error: unspecified launch failure'
    >>> failure_of(RuntimeError("mat1 and mat2 shapes cannot be multiplied")), failure_of(MemoryError("CUDA error"))
    ('', '')
    """
    first = str(error).strip().partition("\n")[0]
    if not isinstance(error, RuntimeError) or any(words in first for words in MEMORY):
        return ""
    if isinstance(error, torch.AcceleratorError) or any(words in first for words in GONE):
        return shortened(first) or one_line(error)
    return ""


def _listed(numbers: Sequence[int]) -> str:
    """Name cards, each once.

    >>> _listed((0, 1, 2, 3)), _listed((4, 6)), _listed((0, 0))
    ('0 to 3', '4, 6', '0')
    """
    each = sorted(set(numbers))
    if len(each) > 2 and each == list(range(each[0], each[-1] + 1)):
        return f"{each[0]} to {each[-1]}"
    return ", ".join(map(str, each))
