"""The learner of adapters: the policy is frozen, and with its adapters off it is the reference."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from groupwise.core.records import Batch
from groupwise.models.adapters.lora import Adapters, read_adapters, write_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.forward.adjustment import UNADJUSTED, Adjustment
from groupwise.models.moe.record import Router
from groupwise.models.moe.settings import RoutingSettings
from groupwise.training import checkpoint
from groupwise.training.learner import Learner, LearnerSettings
from groupwise.training.mesh import ALONE, Mesh, Message, Verb


class AdaptedLearner(Learner):
    """Trains A and B of W + alpha/r B A alone, at rate_factor times the learning rate; no second copy of the policy."""

    def __init__(
        self,
        model: Any,
        adapter: AdapterSettings,
        seed: int,
        settings: LearnerSettings,
        temperature: float,
        total_updates: int,
        routing: RoutingSettings = RoutingSettings(),
        routers: Sequence[Router] = (),
        reference: nn.Module | None = None,
        adjustment: Adjustment = UNADJUSTED,
        mesh: Mesh = ALONE,
    ) -> None:
        """Injects adapters into the model; `seed` is the run's, of which their random numbers are a function.

        reference  another one than the model with its adapters off
        """
        self.adapters = Adapters(model, adapter, seed)
        faster = settings.replace(learning_rate=settings.learning_rate * adapter.rate_factor)
        super().__init__(model, reference, faster, temperature, total_updates, routing, routers, adjustment, mesh)

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """[N,T] nats under the reference: a model of its own, or this one with its adapters off."""
        if self.reference is not None:
            return super().reference_logprobs(batch)
        with self.adapters.off():
            return self.logprobs(self.model, batch)

    def unsharded_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight as an engine takes it, the adapters merged into it."""
        return self.adapters.merged()

    def save(self, folder: Path, tokenizer: Any) -> dict[str, str]:
        """Save the adapters and their optimizer into a checkpoint's folder; the base stays where it came from."""
        with self.mesh.together(Message(Verb.SAVE, others={"folder": str(folder)})):
            write_adapters(folder / checkpoint.POLICY, self.adapters, self.model.name_or_path, self.mesh.leads)
            return checkpoint.write_optimizer(folder, self.model, self.optimizer.adamw, mesh=self.mesh)

    def restore(self, folder: Path, updates: int) -> None:
        """Put adapters and optimizer back as a checkpoint has them, bit for bit, after `updates` updates."""
        with self.mesh.together(Message(Verb.RESTORE, others={"folder": str(folder), "updates": updates})):
            read_adapters(folder / checkpoint.POLICY, self.adapters)
            checkpoint.read_optimizer(folder, self.model, self.optimizer.adamw)
            self.optimizer.updates = updates
