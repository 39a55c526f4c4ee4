"""What a checkpoint holds of a run, and how a built run is put back where it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from groupwise.core.clock import LOST
from groupwise.core.errors import UsageError
from groupwise.journal.journal import read_metrics
from groupwise.loop import Run
from groupwise.models.load import Policy, load_policy, save_policy
from groupwise.training import checkpoint


def save_run(policy: Policy, keep: int, run: Run) -> Path:
    """A checkpoint of the run as it is -> its folder."""
    learner, critic = run.learner, run.critic
    state = {
        "step": run.step,
        "start": run.start,
        "updates": learner.updates,
        "critic_updates": critic.updates if critic else 0,
        "skipped_in_a_row": run.skipped_in_a_row,
        "seconds_total": run.seconds_before + run.clock.total,
        "seconds_training": run.seconds_training,
        "stream": checkpoint.stream_to_json(run.rollout.state),
    }

    def write(folder: Path) -> None:
        save_policy(learner.model, policy.tokenizer, folder / checkpoint.POLICY)
        checkpoint.write_optimizer(folder, learner.model, learner.optimizer)
        if critic is not None:
            checkpoint.write_parameters(folder, critic.model, checkpoint.CRITIC)
            checkpoint.write_optimizer(folder, critic.model, critic.optimizer, checkpoint.CRITIC_OPTIMIZER)
        checkpoint.write_state(folder, state)

    return checkpoint.save(run.folder / "checkpoints", run.step, write, keep)


def restore(run: Run, folder: Path) -> None:
    """Put a built run where a checkpoint left it, bit for bit."""
    state = checkpoint.read_state(folder)
    if run.algorithm.needs_reference and state["start"] != run.start:
        raise UsageError(
            f"{folder}: the run's reference was policy {state['start']}, and what is made or loaded now is "
            f"{run.start}; resume with the model folder, library versions and number of threads that it had"
        )
    learner = run.learner
    checkpoint.put_parameters(learner.model, _weights(learner.model, folder))
    checkpoint.read_optimizer(folder, learner.model, learner.optimizer)
    learner.updates = state["updates"]
    if run.critic is not None:
        checkpoint.read_parameters(folder, run.critic.model, checkpoint.CRITIC)
        checkpoint.read_optimizer(folder, run.critic.model, run.critic.optimizer, checkpoint.CRITIC_OPTIMIZER)
        run.critic.updates = state["critic_updates"]
    run.rollout.state = checkpoint.stream_from_json(state["stream"])
    run.step, run.skipped_in_a_row = state["step"], state["skipped_in_a_row"]
    run.seconds_before, run.seconds_training = state["seconds_total"], state["seconds_training"]
    told = math.fsum(value for row in read_metrics(run.folder) for value in row.get("seconds", {}).values())
    run.clock.add(LOST, max(0.0, run.seconds_before - told))
    run.engine.load_weights(learner.model.named_parameters(), version=run.step)
    run.probe.restart()


def _weights(model: nn.Module, folder: Path) -> Mapping[str, Tensor]:
    """A checkpoint's weights by the model's own names. The files of some models name them otherwise, such as each
    expert by itself where the model holds them as one: then they are loaded as a model, which undoes that bit for bit.
    """
    weights = checkpoint.read_weights(folder)
    if weights.keys() >= dict(model.named_parameters()).keys():
        return weights
    return dict(load_policy(folder / checkpoint.POLICY).model.named_parameters())
