"""The section [adapter] of a recipe."""

from pydantic import Field

from groupwise.core.errors import listed, need
from groupwise.core.settings import Changeable, Settings

#: What installs peft, beside groupwise.
EXTRA = "adapters"


class AdapterSettings(Settings):
    """The section [adapter]: low-rank adapters (LoRA). A weight W is frozen and W + alpha/rank B A is used, of which
    only A [rank, in] and B [out, rank] are trained.

    rank         0: no adapters, every weight is trained
    alpha        the scale of what is added, alpha/rank
    targets      ends of layers' names, such as "q_proj"; without one every linear layer and every expert gets
                 adapters, but neither the output head nor a router
    rate_factor  adapters learn at learner.learning_rate times this
    """

    rank: int = Field(default=0, ge=0, le=4096)
    alpha: float = Field(default=32.0, gt=0)
    targets: tuple[str, ...] = Field(default=(), strict=False)
    rate_factor: Changeable[float] = Field(default=10.0, gt=0)

    def require_installed(self) -> None:
        """Raise UsageError, with what to install, if there are to be adapters and peft is missing."""
        if self.rank:
            need("peft", EXTRA, f"adapter.rank = {self.rank}")

    def __str__(self) -> str:
        where = listed(self.targets) if self.targets else "every linear layer but the head and routers"
        return f"rank {self.rank}, alpha {self.alpha:g}, on {where}"
