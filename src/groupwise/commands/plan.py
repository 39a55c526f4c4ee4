"""What a recipe takes on so many ranks of a device, before any is rented: memory of each, about how long a step takes.

Nothing of the model is loaded but its configuration and its tokenizer.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from groupwise.commands.build.build import too_long
from groupwise.commands.build.memory import run_shape
from groupwise.commands.build.selected import chat_of, selected
from groupwise.commands.check.model import model_path
from groupwise.config import recipe as recipes
from groupwise.config.plan import Plan
from groupwise.config.resolve import resolve
from groupwise.config.validate import require_rankable
from groupwise.core.errors import UsageError
from groupwise.core.machine.free_memory import free_memory, held_memory
from groupwise.engines.local.prefill import require_sampled
from groupwise.models.context import positions
from groupwise.models.files.folder import loading, read_config
from groupwise.models.forward.heads import halves, require_plain_head
from groupwise.models.load import load_tokenizer, require_config
from groupwise.models.moe.record import require_routers
from groupwise.planning.activations import without_memory
from groupwise.planning.devices import CPU, Device, device_of
from groupwise.planning.memory import MemoryPlan, fewest_ranks, plan
from groupwise.planning.parts import PlannedRun, planned_run
from groupwise.planning.run_shape import RunShape
from groupwise.planning.step_time import Phase, step_phases, step_seconds


@dataclass(frozen=True)
class ScalePlan:
    """A run over ranks, planned.

    shape      its lengths, rows and ranks
    planned    its models, without memory
    memory     of each rank
    fits_from  the fewest ranks that have room; None if no number of them has
    phases     an estimate of the time of a step, in its order
    refused    why such a run would not start today; "" if it would
    """

    run: Plan
    device: Device
    shape: RunShape
    planned: PlannedRun
    memory: MemoryPlan
    fits_from: int | None
    phases: Sequence[Phase]
    refused: str

    @property
    def ranks(self) -> int:
        """The processes that hold the policy together."""
        return self.shape.ranks

    @property
    def seconds(self) -> float:
        """The estimate of a step's seconds."""
        return step_seconds(self.phases, beside=self.shape.ahead and self.shape.elsewhere)


def scale_plan(recipe: str, overrides: Mapping[str, object], ranks: int | None, device: str) -> ScalePlan:
    """Plan a recipe with these keys over it, on so many ranks (those of the recipe unless said) of a device.

    Raises UsageError if the recipe is wrong, its model or its problems are not there, or the device is not known.
    """
    run = resolve(recipes.load(recipe, overrides))
    count = run.recipe.learner.ranks if ranks is None else ranks
    held, free = (held_memory(CPU), free_memory(CPU)) if device == CPU else (0, 0)
    on = device_of(device, count, free)
    with TemporaryDirectory() as place:
        folder = model_path(run, Path(place))
        where = f"model = {str(folder)!r}"
        require_config(folder, where)
        what = f"{where}: does not load as a causal language model"
        config = read_config(folder, what)
        with loading(what):
            model = without_memory(config)
        longest = selected(run, chat_of(run, load_tokenizer(folder, config))).longest
    _require_trainable(run, model)
    if wrong := too_long(run, config, longest):
        raise UsageError(wrong)
    shape = dataclasses.replace(run_shape(run, longest, positions(config)), ranks=count)
    return _planned(run, model, shape, on, held)


def _require_trainable(run: Plan, model: Any) -> None:
    """Raise UsageError for a model (device meta) that the learner or the local engine would refuse."""
    with suppress(NotImplementedError, RuntimeError, ValueError):  # a branch on a number: device meta has none
        require_plain_head(model)
    if run.recipe.engine.name == "local":
        require_sampled(model)
    if run.recipe.routing.changed:
        require_routers(halves(model)[0])


def _planned(run: Plan, model: Any, shape: RunShape, device: Device, held: int) -> ScalePlan:
    recipe, free = run.recipe, int(device.memory)
    kind = CPU if device.name == CPU else "cuda"
    planned = planned_run(model, shape, recipe.learner, recipe.critic, recipe.adapter, kind)
    memory = plan(planned, held, free)
    return ScalePlan(
        run=run,
        device=device,
        shape=shape,
        planned=planned,
        memory=memory,
        fits_from=fewest_ranks(planned, held, free),
        phases=step_phases(planned, memory.cuts, device),
        refused=_refused(run, shape.ranks, kind),
    )


def _refused(run: Plan, ranks: int, kind: str) -> str:
    """Say what `groupwise train` would answer to so many ranks on such a device."""
    learner = run.recipe.learner.replace(ranks=ranks)
    try:
        require_rankable(run.recipe.replace(learner=learner, device=kind))
    except UsageError as error:
        return str(error)
    return ""
