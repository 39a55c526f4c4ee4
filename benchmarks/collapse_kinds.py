"""The conditions of docs/findings/collapse.md: what provokes a collapse, what only looks so, what is sound."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

Settings = Mapping[str, object]

STEPS = 40
#: What every run has: a quarter of the quickstart's prompts, and an evaluation after every second step.
COMMON: Settings = {
    "steps": STEPS,
    "prompts_per_step": 16,
    "samples_per_prompt": 8,
    "threads": 1,
    "evaluation.problems": 256,
    "evaluation.samples": 1,
    "evaluation.every": 2,
    "checkpoint.every": 5,
    "checkpoint.keep": 3,
    "journal.report": False,
    "journal.token_budget": 0,
}


@dataclass(frozen=True)
class Kind:
    """Runs of one condition: what it lays over the quickstart, and by how many loads the engine's weights are late."""

    settings: Settings
    late: int = 0

    @property
    def digest(self) -> str:
        """Tells a condition from the same one before it was changed."""
        text = json.dumps([dict(COMMON), dict(self.settings), self.late], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def provoked(self) -> AbstractContextManager[Any]:
        """What no recipe can ask for, while a run goes on."""
        return weights_late(self.late) if self.late else nullcontext()


def rising(rate: float, updates: int) -> Settings:
    """A learning rate that rises in a straight line to `rate` at a run's last step, of so many updates each."""
    return {"learner.learning_rate": rate, "learner.warmup_updates": STEPS * updates}


def weights_late(loads: int) -> AbstractContextManager[Any]:
    """Each load brings the weights of so many loads before, and no check ends the run for it.

    The checks of a run name this fault in its second step (docs/concepts/checks.md); here the warnings act alone.
    """
    from groupwise.engines.local.engine import LocalEngine
    from groupwise.training import run as training_run

    real, waiting = LocalEngine.load_weights, deque()

    def load_weights(self: Any, weights: Any, version: int) -> None:
        waiting.append({name: tensor.detach().clone() for name, tensor in weights})
        late = waiting.popleft() if len(waiting) > loads else dict(self._model.named_parameters())
        real(self, list(late.items()), version)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(LocalEngine, "load_weights", load_weights))
    stack.enter_context(mock.patch.object(training_run, "require_passed", return_value=None))
    return stack


#: Conditions were chosen on seed 100, which is none of those below.
COLLAPSES: Mapping[str, Kind] = {
    "learning rate": Kind(rising(2e-2, updates=2)),
    "no trust region": Kind({"algorithm.trust.kind": "none", "updates_per_batch": 8, **rising(4e-3, updates=8)}),
    "stale engine": Kind({"learner.learning_rate": 4e-3}, late=10),
    "many updates": Kind({"passes_per_batch": 4, "updates_per_batch": 8, **rising(4e-3, updates=32)}),
    "narrow data": Kind(
        {"task.problems": 264, "task.heldout_share": 0.97, "learner.learning_rate": 3e-3}  # 8 problems to train on
    ),
}
#: As far from the quickstart as the collapses in all but their cause: what a warning says of these is told beside.
PUSHED: Mapping[str, Kind] = {
    "rising rate, with trust region": Kind(rising(4e-3, updates=2)),
    "engine of 4 steps ago": Kind({"learner.learning_rate": 1e-3}, late=4),
    "fast, all problems": Kind({"learner.learning_rate": 3e-3}),
}
#: Sound runs: four algorithms at the quickstart's rate.
SOUND: Mapping[str, Kind] = {
    f"sound, {name}": Kind({"algorithm.name": name}) for name in ("grpo", "dapo", "rloo", "sapo")
}
KINDS: Mapping[str, Kind] = {**SOUND, **COLLAPSES, **PUSHED}
#: Seeds of a kind that collapses; of the sound ones, which come to twenty runs; of the pushed ones.
SEEDS, SOUND_SEEDS, PUSHED_SEEDS = range(10), range(5), range(5)


def seeds_of(kind: str) -> range:
    """The seeds that score."""
    return SOUND_SEEDS if kind in SOUND else PUSHED_SEEDS if kind in PUSHED else SEEDS
