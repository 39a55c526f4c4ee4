"""Witness of a run: the rules that its recipe gives, and the readings that are made of each step by them."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from groupwise.config.plan import Plan
from groupwise.config.recipe import Recipe
from groupwise.core.task import Streams
from groupwise.diagnostics.checks import WitnessAction
from groupwise.diagnostics.tolerance import Limits
from groupwise.diagnostics.witness.again import is_ours
from groupwise.diagnostics.witness.credit import CreditReading
from groupwise.diagnostics.witness.draws import DrawsReading, ProblemsReading
from groupwise.diagnostics.witness.fixed import FixedReading, Named
from groupwise.diagnostics.witness.groups import GroupsReading
from groupwise.diagnostics.witness.plain.gradient import GradientReading
from groupwise.diagnostics.witness.plain.model import ModelReading
from groupwise.diagnostics.witness.plain.objective import ObjectiveReading
from groupwise.diagnostics.witness.reading import Reading
from groupwise.diagnostics.witness.requests import HeardEngine
from groupwise.diagnostics.witness.rules import Rules, UpdateRules
from groupwise.diagnostics.witness.scores import ScoresReading
from groupwise.diagnostics.witness.trains import TrainsReading
from groupwise.diagnostics.witness.updates import UpdatesReading
from groupwise.diagnostics.witness.witness import Witness
from groupwise.health.checks import LOSS_BY_DEFINITION, MODEL_IS_TRAINED, UPDATE_AS_ASKED
from groupwise.models.adapters.lora import MATRICES
from groupwise.models.scalar_heads import RewardModel
from groupwise.rollout.scoring import Scorer
from groupwise.rollout.selection import Selection
from groupwise.training.checkpoint import CRITIC, CRITIC_OPTIMIZER, OPTIMIZER, POLICY
from groupwise.training.critic import Critic
from groupwise.training.learner import AdaptedLearner, Learner
from groupwise.training.numerical_noise import UnshardedPolicy
from groupwise.training.optimizer import OptimizerSettings

T = TypeVar("T")


def unheard(engine: HeardEngine, evaluate: Callable[[], T]) -> Callable[[], T]:
    """Make an evaluation whose requests are not taken for those of training."""

    def quietly() -> T:
        with engine.unheard():
            return evaluate()

    return quietly


def witness_of(
    plan: Plan,
    engine: HeardEngine,
    learner: Learner,
    critic: Critic | None,
    scorer: Scorer,
    selection: Selection,
    limits: Limits,
    reward: RewardModel | None,
) -> Witness:
    """Make the witness of a run; one that makes no reading where the recipe wants none."""
    row, settings = plan.algorithm, plan.recipe.checks
    train = None if isinstance(selection.train, Streams) else selection.train
    readings: list[Reading] = [
        GroupsReading(row.filter),
        ScoresReading(scorer, is_function=not own_code(plan)),
        CreditReading(row),
        TrainsReading(row.aggregate),
        DrawsReading(engine, in_segments=plan.recipe.rollout.turn_tokens is not None),
        ProblemsReading(plan.task, train),
    ]
    if settings.witness is WitnessAction.OFF or plan.recipe.supervised_alone:
        readings = []
    else:
        readings.append(UpdatesReading(learner, critic, whole=learner.mesh.alone))
        readings += _plain_readings(plan, learner, critic, limits, reward)
    return Witness(
        readings=readings,
        rules=rules_of(plan.recipe),
        every=settings.witness_every,
        stops=settings.witness is WitnessAction.STOP,
        masks_truncated=row.filter.mask_truncated,
    )


def _plain_readings(
    plan: Plan, learner: Learner, critic: Critic | None, limits: Limits, reward: RewardModel | None
) -> list[Reading]:
    """Make the readings of objective, models and gradients, by plain definitions."""
    row, recipe = plan.algorithm, plan.recipe
    losses = {name: coefficient for name, (coefficient, _) in recipe.routing.losses.items()}

    @cache
    def unsharded() -> UnshardedPolicy:
        return UnshardedPolicy(learner)

    def whole() -> nn.Module:
        unsharded().gather()
        return unsharded().model

    scored = reward.model if reward is not None and learner.mesh.alone else None
    apart = f"{keys} is set" if (keys := recipe.reference.apart) else ""
    of_steps = (recipe.waiting_steps, recipe.old_from_engine, scored, apart)
    model = ModelReading(MODEL_IS_TRAINED, row, learner, critic, limits, whole, *of_steps)
    return [
        FixedReading(
            learner,
            recipe.reference.every,
            recipe.old_from_engine,
            rounding=lambda: limits.tolerance.reference,
            files=_put_back_into(learner, critic),
            apart=apart,
        ),
        ObjectiveReading(LOSS_BY_DEFINITION, row, losses, learner.bf16, critic and critic.clip),
        model,
        GradientReading(UPDATE_AS_ASKED, model, row, learner, critic, (recipe.learner, recipe.critic)),
    ]


def _put_back_into(learner: Learner, critic: Critic | None) -> dict[str, Named]:
    """Say what each file of a checkpoint is put back into, where one process holds all of it."""

    def matrices() -> Mapping[str, Tensor]:
        return learner.adapters.matrices if isinstance(learner, AdaptedLearner) else {}

    def moments(model: nn.Module, adamw: Optimizer) -> Mapping[str, Tensor]:
        named = [(name, adamw.state.get(parameter, {})) for name, parameter in model.named_parameters()]
        return {f"{name}/{entry}": x for name, own in named for entry, x in own.items() if isinstance(x, Tensor)}

    files: dict[str, Named] = {
        f"{POLICY}/model.safetensors": lambda: dict(learner.model.named_parameters()),
        f"{POLICY}/{MATRICES}": matrices,
        OPTIMIZER: lambda: moments(learner.model, learner.optimizer.adamw),
    }
    if critic is not None:
        files[CRITIC] = lambda: dict(critic.model.named_parameters())
        files[CRITIC_OPTIMIZER] = lambda: moments(critic.model, critic.optimizer.adamw)
    return files


def own_code(plan: Plan) -> bool:
    """Tell whether the task's score may be code of the user's own, which need not be a function of a text."""
    return not is_ours(plan.task) or bool({"use", "reward"} & {key for key, value in plan.recipe.task.items() if value})


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
        truncates=recipe.sampling.truncates,
    )


def _updates(settings: OptimizerSettings, faster: float, total: int) -> UpdateRules:
    return UpdateRules(
        rate=settings.learning_rate * faster,
        schedule=settings.schedule.value,
        warmup=settings.warmup_updates,
        total=total,
        clip_norm=settings.clip_norm,
    )
