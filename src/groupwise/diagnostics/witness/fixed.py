"""Fixed things: the reference between two renewals, what adapters freeze, and what a checkpoint has put back."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from groupwise.core.records import Batch
from groupwise.diagnostics.tolerance import NumericalNoise
from groupwise.diagnostics.witness.plain.gates import gates_under_replay
from groupwise.diagnostics.witness.plain.model import gap
from groupwise.diagnostics.witness.reading import Disagreement, Reading, Said, StepSeen, Unmeasured, differs
from groupwise.health.checks import MODEL_IS_TRAINED

#: Rows that the reference reads again, and tensors of a file that are compared.
FEW = 8

#: Tensors by the names that a file has them under.
Named = Callable[[], Mapping[str, Tensor]]


class HasReference(Protocol):
    """Learner, as far as its reference and its trained weights are looked at."""

    model: Any
    mesh: Any
    optimizer: Any
    routers: Any

    def reference_logprobs(self, batch: Batch) -> Tensor | None: ...


class FixedReading(Reading):
    """The reference moves if the recipe renews it and at no other time, AdamW has just what trains, and a run that goes
    on has the weights that were saved.

    renewed   steps from one renewal of the reference to the next; 0: it is never renewed
    files     what each file of a checkpoint has been put back into; one that is not there is not looked at
    rounding  of the reference's forward beside the learner's
    apart     why logp_ref is not what the learner's reference says of the batch; "" if it is
    """

    subject = MODEL_IS_TRAINED

    def __init__(
        self,
        learner: HasReference,
        renewed: int,
        old_from_engine: bool,
        rounding: Callable[[], NumericalNoise | None],
        files: Mapping[str, Named],
        apart: str = "",
    ) -> None:
        self._learner, self._renewed, self._rounding = learner, renewed, rounding
        self._old_from_engine, self._files, self._apart = old_from_engine, files, apart
        self._rows: Batch | None = None
        self._replays = False

    def restart(self, step: int, rate_factor: float) -> None:
        """Take the reference of the next slow step for the one that stays, and try a replay again."""
        self._rows, self._replays = None, False

    def put_back(self, folder: Path) -> Said:
        """Compare what the run goes on with with the files that it was put back from."""
        for name, named in self._files.items():
            if (path := folder / name).is_file() and self._learner.mesh.alone:
                yield from _saved(path, named())

    def begin(self, seen: StepSeen) -> Said:
        """Compare the reference with the policy where it was just renewed, else with what it said before."""
        batch = seen.batch
        if not self._apart:
            yield from self._after_renewal(seen)
        if not seen.slow:
            return
        yield from self._trained()
        if batch.logp_ref is None or self._renewed:
            return
        if not self._learner.mesh.alone:
            yield Unmeasured("the reference is in shards")
            return
        with torch.no_grad():
            if self._rows is None:
                self._rows = replace(batch.rows(range(min(FEW, len(batch)))), routes=None, routes_own=None)
                self._rows = replace(self._rows, logp_ref=self._learner.reference_logprobs(self._rows))
                if self._rows.logp_ref is not None:
                    return
            again = self._learner.reference_logprobs(self._rows)
        if again is None:
            yield Unmeasured(self._apart)  # what is at an address is not asked again
            return
        about = "what the reference says of completions of an earlier step, which must stay"
        yield gap(about, again, self._rows.need("logp_ref"), self._rows.mask, lambda: None)

    def minibatch(self, seen: StepSeen, minibatch: Batch) -> Said:
        """Try once whether experts that are replayed have the weights of today's routers."""
        learner = self._learner
        if seen.slow and not self._replays and learner.routers and learner.mesh.alone:
            self._replays = True
            return gates_under_replay(learner.model, learner.routers, minibatch)
        return ()

    def _after_renewal(self, seen: StepSeen) -> Said:
        batch = seen.batch
        if (
            self._apart
            or not self._renewed
            or seen.step == 1
            or (seen.step - 1) % self._renewed
            or batch.logp_ref is None
        ):
            return
        if batch.logp_old is None or self._old_from_engine or self._learner.routers:
            yield Unmeasured("nothing says what the policy was when the reference was renewed")
            return
        about = f"logp_ref, of the reference that reference.every = {self._renewed} renewed after the step before"
        yield gap(about, batch.logp_ref, batch.logp_old.double(), batch.mask, self._rounding)

    def _trained(self) -> Iterator[Disagreement]:
        """Compare the weights that AdamW has with the adapters', where these alone train."""
        adapters: Any = getattr(self._learner, "adapters", None)
        if adapters is None:
            return
        own = {id(matrix) for matrix in adapters.matrices.values()}
        others = [p for group in self._learner.optimizer.adamw.param_groups for p in group["params"]]
        if more := [tuple(p.shape) for p in others if id(p) not in own]:
            words = f"it has {len(more)} weights beside those of the adapters, of shape {more[0]} first"
            yield differs("the optimizer of [learner]", f"{words}; look at what adapters freeze")


def _saved(path: Path, named: Mapping[str, Tensor]) -> Iterator[Disagreement]:
    """Compare some tensors with those of a file that have their name and shape."""
    with safe_open(path, "pt") as file:
        both = [n for n in file.keys() if n in named and file.get_slice(n).get_shape() == list(named[n].shape)]  # noqa: SIM118
        for name in both[:: max(1, len(both) // FEW)]:
            saved, now = file.get_tensor(name), named[name].detach().cpu()
            if not torch.equal(saved.to(now.dtype), now):
                words = f"{path.name} has another {name} than the run that goes on from it"
                yield differs("what was put back", f"{words}; look at what a checkpoint restores")
                return
