"""Witness of a run: the rules that its recipe gives, and the readings that are made of each step by them."""

from groupwise.algorithms.algorithm import Algorithm
from groupwise.config.recipe import Recipe
from groupwise.diagnostics.checks import WitnessAction
from groupwise.diagnostics.witness.credit import CreditReading
from groupwise.diagnostics.witness.groups import GroupsReading
from groupwise.diagnostics.witness.reading import Reading
from groupwise.diagnostics.witness.rules import Rules, UpdateRules
from groupwise.diagnostics.witness.trains import TrainsReading
from groupwise.diagnostics.witness.updates import UpdatesReading
from groupwise.diagnostics.witness.witness import Witness
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner
from groupwise.training.optimizer import OptimizerSettings


def witness_of(recipe: Recipe, row: Algorithm, learner: Learner, critic: Critic | None) -> Witness:
    """Make the witness of a run; one that makes no reading where the recipe wants none."""
    settings = recipe.checks
    wanted = settings.witness is not WitnessAction.OFF
    return Witness(
        readings=_readings(row, learner, critic) if wanted else [],
        rules=rules_of(recipe),
        every=settings.witness_every,
        stops=settings.witness is WitnessAction.STOP,
        masks_truncated=row.filter.mask_truncated,
    )


def _readings(row: Algorithm, learner: Learner, critic: Critic | None) -> list[Reading]:
    return [
        GroupsReading(row.filter),
        CreditReading(row),
        TrainsReading(row.aggregate),
        UpdatesReading(learner, critic, whole=learner.mesh.alone),
    ]


def rules_of(recipe: Recipe) -> Rules:
    """Read the rules of a resolved recipe: from its keys alone, and from nothing that was made of them."""
    passes, waiting = recipe.passes_per_batch or 1, recipe.critic.warmup_steps if recipe.critic else 0
    each_step = recipe.updates_per_batch * passes
    faster = recipe.adapter.rate_factor if recipe.adapter.rank else 1.0
    critic = None if recipe.critic is None else _updates(recipe.critic, 1.0, recipe.steps * each_step)
    return Rules(
        groups=recipe.prompts_per_step,
        samples=recipe.samples_per_prompt,
        parts=recipe.updates_per_batch,
        passes=passes,
        waiting=waiting,
        weights={name: float(table.get("weight", 1.0)) for name, table in (recipe.rewards or {}).items()},
        each=recipe.scoring.combine == "after",
        learner=_updates(recipe.learner, faster, (recipe.steps - waiting) * each_step),
        critic=critic,
    )


def _updates(settings: OptimizerSettings, faster: float, total: int) -> UpdateRules:
    return UpdateRules(
        rate=settings.learning_rate * faster,
        schedule=settings.schedule.value,
        warmup=settings.warmup_updates,
        total=total,
        clip_norm=settings.clip_norm,
    )
