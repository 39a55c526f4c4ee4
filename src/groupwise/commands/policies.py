"""The policies of a run: the one that it starts from, and those of its checkpoints."""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

from groupwise.config.plan import Plan
from groupwise.core.errors import UsageError
from groupwise.models.adapters.files import holds_adapters, read_adapters
from groupwise.models.adapters.lora import Adapters
from groupwise.models.adapters.targets import adapted_weights
from groupwise.models.load import Policy, load_policy
from groupwise.training import checkpoint
from groupwise.training.initial_policy import starting_policy
from groupwise.training.optimizer import OnStep, silent


def base_policy(plan: Plan, note: Callable[[str], None], on_step: OnStep = silent) -> Policy:
    """The policy that a run starts from, made again or loaded; `note` says a line where a damaged one is made again.

    Raises UsageError, before a warm start, where there is none or a target of adapters does not fit it.
    """
    recipe = plan.recipe
    require = partial(adapted_weights, settings=recipe.adapter)
    policy = starting_policy(
        recipe.model,
        plan.task,
        recipe.warm_start,
        seed=recipe.seed,
        cache=plan.cache,
        device=recipe.device,
        on_step=on_step,
        chat=recipe.chat,
        note=note,
        require=require,
    )
    require(policy.model)
    return policy


def checkpoint_policy(plan: Plan, folder: Path, note: Callable[[str], None]) -> Policy:
    """The policy of a checkpoint's folder; where that holds adapters, the run's starting policy with them merged.

    Raises UsageError where it does not load, or the run does not start from the policy that the adapters are of.
    """
    place = folder / checkpoint.POLICY
    if not holds_adapters(place):
        return load_policy(place, device=plan.recipe.device)
    policy = base_policy(plan, note)
    adapters = Adapters(policy.model, plan.recipe.adapter, plan.recipe.seed)
    read_adapters(place, adapters)
    adapters.merge()
    return policy


def checkpoint_of(run: Path, step: int | None, note: Callable[[str], None]) -> Path:
    """The checkpoint of a step, or the newest good one of a run; `note` says a line of each damaged one that is newer.

    Raises UsageError where there is none.
    """
    root = run / checkpoint.CHECKPOINTS
    if step is None:
        newest, damaged = checkpoint.newest_good(root)
        for line in damaged:
            note(line)
        if newest is None:
            raise UsageError(f"{run}: no checkpoint in it; name a run folder, or to evaluate a model --model PATH")
        return newest
    steps = checkpoint.steps(root)
    if step not in steps:
        there = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
        raise UsageError(f"--step {step}: {shlex.quote(str(run))} has no checkpoint of that step; {there}")
    if damage := checkpoint.damaged(checkpoint.folder_of(root, step)):
        raise UsageError(f"--step {step}: {checkpoint.folder_of(root, step)} is damaged ({damage}); take another step")
    return checkpoint.folder_of(root, step)
