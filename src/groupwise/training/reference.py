"""The reference of a run: a policy that is not trained, which the KL penalty keeps the trained one near to."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.core.errors import RunError, UsageError
from groupwise.core.numbers.precision import beyond_float16
from groupwise.core.processes.handshake import key_in
from groupwise.core.settings import Changeable, Fixed, Location, Settings
from groupwise.engines.outside.connection import AddressText
from groupwise.models.precision import WeightPrecision, cast_weights, require_range
from groupwise.models.shards import set_unsharded
from groupwise.models.unread import Weights

#: The `model` that is no other: the policy that the run starts from.
START = "start"
#: Its weights in a checkpoint, where they are no longer those that it began with.
WEIGHTS = "reference.safetensors"


class ReferenceSettings(Settings):
    """Reference policy, for algorithms that use one.

    model      "start": the policy that the run starts from; or a model folder, Hugging Face id, RUN or RUN:STEP
    every      steps between updates of the reference to the current policy; 0: never
    precision  precision of the reference's weights; "same": as the learner's master weights
    offload    keep a reference with weights of its own in host memory between batches; one GPU only
    template   prompt of the reference, in the place of the last user message: text with {prompt}, {answer},
               {completion}, {feedback}, {best} or {COLUMN}; "": the policy's prompt
    by_source  references of the problems of a source, { SOURCE = "MODEL" }; `model` is that of all others
    address    HOST:PORT of `groupwise serve --teacher MODEL`, in place of `model`
    key_file   private file with the key of `groupwise serve --key-file`, never sent; default: trust any server
    deadline   seconds without an answer before the server at the address counts as lost
    """

    model: Annotated[Location, Fixed("the steps before were held near to another policy")] = START
    every: Changeable[int] = Field(default=0, ge=0, le=10**9)
    precision: Annotated[WeightPrecision, Fixed("the limits of the run's checks are those of this arithmetic")] = "same"
    offload: Changeable[bool] = False
    template: str = ""
    by_source: dict[str, Location] = Field(default_factory=dict)
    address: Changeable[AddressText] = ""
    key_file: Changeable[Location | None] = None
    deadline: Changeable[float] = Field(default=600.0, ge=0.1, le=86_400)

    @property
    def stays_start(self) -> bool:
        """True if it is the policy that the run starts from, to the end."""
        return self.model == START and self.every == 0 and not self.address

    @property
    def key(self) -> bytes | None:
        """Key of the server at its address, read from its file. Raises UsageError if that holds no secret key."""
        try:
            return None if self.key_file is None else key_in(self.key_file)
        except ValueError as error:
            raise UsageError(f"reference.key_file = {self.key_file!r}: {error}") from None

    @property
    def unread(self) -> set[str]:
        """The keys that nothing reads: of a model here where there is an address, else those of the address."""
        return {"model", "every", "offload"} if self.address else {"key_file", "deadline"}

    @property
    def apart(self) -> str:
        """Keys by which logp_ref is not what one model says behind the policy's prompts, in words; "" if it is."""
        keys = {"template": self.template, "by_source": self.by_source, "address": self.address}
        return " and ".join(f"reference.{key}" for key, value in keys.items() if value)


class KeepsReference(Protocol):
    """Learner, as far as a reference takes its weights from it and is saved and put back by it."""

    def renew_reference(self) -> None: ...

    def save_reference(self, folder: Path, name: str) -> dict[str, str]: ...

    def restore_reference(self, folder: Path, name: str) -> None: ...


class Reference:
    """The frozen policy of a run, and when it was taken.

    model   its own copy; None where it is the policy without its adapters, which needs none
    digest  of the weights that it begins with, before a cast
    every   steps between two renewals; 0 where there are none
    returns whether a run may go back to before its first renewal, so that every checkpoint has to hold it
    step    the step of the policy that it is; 0: it is what it began with
    """

    def __init__(self, model: nn.Module | None, digest: str, every: int = 0, returns: bool = False) -> None:
        self.model, self.digest, self.every, self.returns, self.step = model, digest, every, returns, 0

    @property
    def files(self) -> tuple[str, ...]:
        """Files that a checkpoint needs for the run to go back to it: its weights, once they are not the first ones."""
        return (WEIGHTS,) if self.returns and self.model is not None and self.step else ()

    def renew(self, step: int, learner: KeepsReference) -> bool:
        """Take the policy's weights after `step`, if it is renewed after that one -> whether it is."""
        if self.model is None or not self.every or step % self.every:
            return False
        learner.renew_reference()
        self.step = step
        return True

    def save(self, folder: Path, learner: KeepsReference) -> dict[str, str]:
        """Save the reference's weights into a checkpoint's folder, unless they are surely those that it began with.

        -> the hashes of the files that ranks wrote.
        """
        if self.model is not None and (self.step or (self.every and self.returns)):
            return learner.save_reference(folder, WEIGHTS)
        return {}

    def restore(self, folder: Path, step: int, learner: KeepsReference) -> None:
        """Put the reference of `step` back bit for bit from a checkpoint. Raises ValueError if it does not fit."""
        if step and self.model is None:
            raise ValueError("its reference was renewed, and without reference.every this run keeps none of its own")
        if self.model is not None and (step or self.step):
            learner.restore_reference(folder, WEIGHTS)
        self.step = step


def frozen(model: Any, settings: ReferenceSettings) -> Any:
    """Return the model itself, cast as the settings say. Raises UsageError if it cannot be."""
    require_range("reference.precision", settings.precision, Weights(model).named())
    return cast_weights(model, settings.precision)


def renew(reference: nn.Module, weights: Callable[[], Iterable[tuple[str, Tensor]]]) -> None:
    """Give a reference the weights of a policy, each whole when it comes; they are made twice if it is in float16.

    Raises RunError, and nothing is changed, if float16 cannot hold one of them.
    """
    own = dict(reference.named_parameters())
    if any(weight.dtype == torch.float16 for weight in own.values()) and (beyond := beyond_float16(weights())):
        raise RunError(
            f"reference.precision = 'fp16': {beyond}: the reference stays what it was; resume the run with "
            "reference.every = 0, which keeps it, or start one with reference.precision = 'bf16' or 'same'"
        )
    for name, weight in weights():
        set_unsharded(own[name], weight)
