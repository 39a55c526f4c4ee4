"""The models that a run holds, without memory, and their weights as ranks hold and gather them."""

from dataclasses import dataclass
from typing import Any

from groupwise.models.adapters.lora import with_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.adapters.targets import adapted_weights
from groupwise.planning.activations import with_value_head
from groupwise.planning.run_shape import RunShape
from groupwise.planning.shard_groups import FLOAT32, Groups, groups_of


@dataclass(frozen=True)
class Held:
    """A model without memory and its weights in groups."""

    model: Any
    groups: Groups

    @classmethod
    def of(cls, model: Any, bf16: bool = False, itemsize: int = FLOAT32) -> "Held":
        """Group a model's weights; `bf16` says whether it computes in bfloat16, `itemsize` the bytes of a weight."""
        return cls(model, groups_of(model, bf16, itemsize))


@dataclass(frozen=True)
class RunModels:
    """The models of a run.

    base       the policy without adapters, as an engine samples from it
    policy     the model that trains: with adapters, where the run has any
    reference  the frozen copy; None where the policy without its adapters is the reference, or none is read
    merged     bytes of the weights that adapters are merged into, on their way to the engine
    """

    base: Any
    policy: Held
    reference: Held | None
    critic: Held | None
    reward: Held | None
    merged: int

    @property
    def every(self) -> list[Held]:
        """The models that are there."""
        return [held for held in (self.policy, self.reference, self.critic, self.reward) if held is not None]


def run_models(model: Any, shape: RunShape, bf16: bool, critic: bool, adapter: AdapterSettings) -> RunModels:
    """Derive a run's models from its policy, which is without memory and stays as it is."""
    return RunModels(
        base=model,
        policy=Held.of(with_adapters(model, adapter) if adapter.rank else model, bf16),
        reference=Held.of(model, bf16, shape.reference) if shape.reference else None,
        critic=Held.of(with_value_head(model), bf16) if critic else None,
        reward=Held.of(with_value_head(model, bias=False)) if shape.reward_model else None,
        merged=sum(weight.numel() for weight in adapted_weights(model, adapter).values()) * FLOAT32,
    )
