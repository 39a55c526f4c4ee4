"""What a run does about its policy's experts: its settings, and what they need of the policy and of the engine."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from enum import StrEnum

import torch
from pydantic import Field
from torch import nn

from groupwise.core.engine import Engine
from groupwise.core.errors import UsageError
from groupwise.core.settings import Settings
from groupwise.models.moe.balance import Balance
from groupwise.models.moe.record import Router, record_routes, require_routers, router_logits, routers
from groupwise.models.moe.replay import replay_routes

#: The routers' own losses, by the name of its metric each: the coefficient, and the loss without it.
RouterLosses = Mapping[str, tuple[float, Balance]]


class ReplayFrom(StrEnum):
    """Whose experts the updates on a batch run on."""

    NONE = "none"
    LEARNER = "learner"
    ENGINE = "engine"


class RoutingSettings(Settings):
    """The section [routing]: what a run does about its policy's experts. The defaults do nothing; a dense policy
    allows nothing else.

    replay        none: every forward chooses for itself; learner: what the learner chose under the old policy;
                  engine: what the engine chose, already where logp_old is computed
    load_balance  coefficient of the load-balancing loss
    z_loss        coefficient of the router z-loss
    """

    replay: ReplayFrom = Field(default=ReplayFrom.NONE, strict=False)
    load_balance: float = Field(default=0.0, ge=0)
    z_loss: float = Field(default=0.0, ge=0)

    @property
    def reads_routes(self) -> bool:
        """Whether the updates on a batch read routes that were there before them."""
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
    ids = torch.zeros(1, 2, dtype=torch.long, device=next(backbone.parameters()).device)
    with torch.no_grad():
        with record_routes(backbone) as routes, router_logits(by_layer) if settings.losses else nullcontext():
            backbone(input_ids=ids, use_cache=False)
        with replay_routes(backbone, routes):  # without a replay in training too: the probe after a weight load has one
            backbone(input_ids=ids, use_cache=False)
