"""Settings of a run for its policy's experts, what they need of the policy and of the engine, and two
losses on the routers: one evens the experts' load, one keeps router logits small.

Both losses are sums over tokens, divided by a count of the whole optimizer batch, and the load is a constant of that
batch: so microbatches simply add, and the gradient does not depend on how a batch is cut. A load counted in each
microbatch by itself would make it depend on that: the mean of products is not the product of means.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.core.engine import Engine
from groupwise.core.errors import UsageError
from groupwise.core.settings import Settings
from groupwise.models.moe.record import Router, record_routes, require_routers, router_logits, routers
from groupwise.models.moe.replay import replay_routes
from groupwise.models.unread import device_of, running


@dataclass(frozen=True)
class Balance:
    """The routers' own loss, for one layer; 0 turns a term off.

    L = load * E sum_e f_e P_e + z * mean_t (log sum_e exp x_te)^2

    f_e is the share of the batch's choices that fell on expert e (no gradient), P_e the mean over its tokens of
    softmax(x)_e. An even load gives the first term 1, its least where f follows P (Switch Transformer, 2101.03961, with
    shares of choices in place of shares of tokens); the second is the router z-loss (ST-MoE, 2202.08906).
    P is the softmax of the logits for every router, also for one that weighs its experts by a sigmoid (DeepSeek-V3) and
    adds a bias before it chooses: the loss then pulls on the logits, and knows nothing of the bias or of the groups.
    """

    load: float = 0.0
    z: float = 0.0

    def __call__(self, logits: Tensor, share: Tensor, tokens: int) -> Tensor:
        """logits [M,E] of some of the batch's tokens, share [E] and tokens of the whole batch -> their part of L.

        >>> logits, share = torch.zeros(4, 2), torch.tensor([0.75, 0.25])
        >>> float(Balance(load=1.0)(logits, share, tokens=4))
        1.0
        >>> part = Balance(load=1.0)
        >>> float(part(logits[:1], share, tokens=4) + part(logits[1:], share, tokens=4))
        1.0
        """
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        even = logits.shape[-1] * (wide.softmax(-1) @ share.to(wide.dtype)).sum()
        return (self.load * even + self.z * wide.logsumexp(-1).square().sum()) / tokens

    def mean_over_layers(self, logits: Sequence[Tensor], shares: Sequence[Tensor], tokens: int) -> Tensor:
        """Map logits [M,E] and share [E] of each layer -> scalar: the mean over layers of their parts of L."""
        layers = zip(logits, shares, strict=True)
        return torch.stack([self(layer, share.to(layer.device), tokens) for layer, share in layers]).mean()


def load_shares(routes: Tensor, experts: Sequence[int]) -> list[Tensor]:
    """Map choices [M,L,K], and the experts of each layer -> per layer [E] float64, the share that fell on each expert.

    >>> load_shares(torch.tensor([[[0, 1]], [[0, 2]]]), [4])
    [tensor([0.5000, 0.2500, 0.2500, 0.0000], dtype=torch.float64)]
    """
    layers = [layer.flatten().long() for layer in routes.unbind(1)]
    counts = [torch.bincount(layer, minlength=count) for layer, count in zip(layers, experts, strict=True)]
    return [count.double() / max(1, len(layer)) for count, layer in zip(counts, layers, strict=True)]


#: The routers' own losses, by the name of its metric each: the coefficient, and the loss without it.
RouterLosses = Mapping[str, tuple[float, Balance]]


class ReplayFrom(StrEnum):
    """Whose experts the updates on a batch run on."""

    NONE = "none"
    LEARNER = "learner"
    ENGINE = "engine"


class RoutingSettings(Settings):
    """Expert routing of an MoE policy; a dense policy takes only the defaults.

    replay        "none": each forward pass routes anew; "learner": replay the old policy's routing; "engine": replay
                  the engine's, for logp_old too
    load_balance  coefficient of the load-balancing loss
    z_loss        coefficient of the router z-loss
    """

    replay: ReplayFrom = Field(default=ReplayFrom.NONE, strict=False)
    load_balance: float = Field(default=0.0, ge=0)
    z_loss: float = Field(default=0.0, ge=0)

    @property
    def reads_routes(self) -> bool:
        """True if the updates on a batch read routes that were there before them."""
        return self.replay is not ReplayFrom.NONE or self.load_balance > 0

    @property
    def changed(self) -> dict[str, object]:
        """The keys that are not at their defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @property
    def losses(self) -> RouterLosses:
        """Only those that are on."""
        losses = {"balance_loss": (self.load_balance, Balance(load=1.0)), "z_loss": (self.z_loss, Balance(z=1.0))}
        return {name: (coefficient, loss) for name, (coefficient, loss) in losses.items() if coefficient}

    def __str__(self) -> str:
        losses = [f"{name} x {coefficient:g}" for name, (coefficient, _) in self.losses.items()]
        return ", ".join([f'replay "{self.replay.value}"', *losses])


def routers_to_record(backbone: nn.Module, settings: RoutingSettings) -> tuple[Router, ...]:
    """Return the routers whose routes a run records; none for a dense policy, or for one that cannot be recorded and
    replayed where no setting needs it.

    Tries on two tokens what the run will do. Raises UsageError if that fails and a setting needs it.
    """
    try:
        by_layer = require_routers(backbone) if settings.changed else routers(backbone)
        if by_layer:
            _try_routing(backbone, by_layer, settings)
    except UsageError as error:
        if settings.changed:
            keys = ", ".join(f"routing.{key} = {value!r}" for key, value in settings.changed.items())
            raise UsageError(f"{keys}: {error}") from None
        return ()
    return by_layer


def require_engine_routes(engine: Engine, settings: RoutingSettings) -> None:
    """Raise UsageError if the engine's experts are to be replayed and it does not say which they were."""
    if settings.replay is ReplayFrom.ENGINE and not engine.routes:
        raise UsageError(
            f"routing.replay = 'engine': {type(engine).__name__} does not return the experts it chose "
            '(Completion.routes); set routing.replay = "learner", or take an engine that does'
        )


def _try_routing(backbone: nn.Module, by_layer: Sequence[Router], settings: RoutingSettings) -> None:
    """Run one forward that records, with the logits if a loss reads them, and one that replays what was recorded."""
    ids = torch.zeros(1, 2, dtype=torch.long, device=device_of(backbone))
    with torch.no_grad(), running(backbone):
        with record_routes(backbone) as routes, router_logits(by_layer) if settings.losses else nullcontext():
            backbone(input_ids=ids, use_cache=False)
        with replay_routes(backbone, routes):  # without a replay in training too: the probe after a weight load has one
            backbone(input_ids=ids, use_cache=False)
