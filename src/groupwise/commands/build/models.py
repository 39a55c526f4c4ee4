"""Models of a run beside its policy: the reference, the critic's and the reward model."""

import shutil
from pathlib import Path

from torch import nn

from groupwise.commands.build.policy import Note, named_model
from groupwise.commands.build.rollout import too_long
from groupwise.config.plan import OWN_CRITIC, OWN_REFERENCE, REWARD_MODEL
from groupwise.config.recipe import Recipe
from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import make_folder
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import Policy, digest, load_policy, model_folder
from groupwise.models.precision import cast_weights
from groupwise.models.scalar_heads import (
    POLICY_START,
    REWARD_START,
    RewardModel,
    from_folder,
    from_policy,
    load_reward_model,
)
from groupwise.rollout.scoring import Scorer
from groupwise.training.critic import CriticSettings
from groupwise.training.optimizer import OnStep
from groupwise.training.reference import START, Reference, frozen_copy
from groupwise.training.rollback import Guard
from groupwise.training.start.cached_reward_model import cached_reward_model
from groupwise.training.start.reward_report import REPORT, read_report


def reference_copy(recipe: Recipe, policy: Policy, start: str, longest: int, folder: Path, note: Note) -> Reference:
    """Make the frozen reference of an algorithm that reads a copy.

    start    digest of the policy
    longest  prompt, tokens
    Raises UsageError if it does not read the policy's tokens or prompts, or cannot be renewed from it.
    """
    settings = recipe.reference
    source = policy if settings.model == START else _other_policy(recipe, policy, folder, note)
    if wrong := too_long(recipe, source.model.config, longest, sampled=False):
        raise UsageError(f"reference.model = {settings.model!r}: {wrong}")
    identity = start if source is policy else digest(source.model)
    note(f"reference    policy {identity}" + (", the start" if identity == start else ""))
    model = frozen_copy(policy.model, settings) if source is policy else cast_weights(source.model, settings.precision)
    return Reference(model, identity, settings.every, returns=recipe.guard is Guard.ROLLBACK)


def _other_policy(recipe: Recipe, policy: Policy, folder: Path, note: Note) -> Policy:
    """Load the policy that `reference.model` names, before a cast."""
    settings = recipe.reference
    other = load_policy(model_folder(named_model(settings.model, folder / OWN_REFERENCE, note)), device=recipe.device)
    where = f"reference.model = {settings.model!r}"
    embeddings = [p.model.get_input_embeddings().weight.shape[0] for p in (policy, other)]
    if policy.tokenizer.get_vocab() != other.tokenizer.get_vocab() or embeddings[1] < embeddings[0]:
        raise UsageError(f"{where}: its tokenizer is another than the policy's, whose tokens it is to read")
    shapes = [{name: p.shape for name, p in model.named_parameters()} for model in (policy.model, other.model)]
    if settings.every and shapes[0] != shapes[1]:
        raise UsageError(f"{where}: its weights have other shapes than the policy's; set reference.every = 0")
    return other


def value_model(critic: CriticSettings | None, policy: Policy, folder: Path, note: Note) -> nn.Module | None:
    """Make the model of the critic, if the run has one."""
    if critic is None:
        return None
    if critic.start == POLICY_START:
        return from_policy(policy.model)
    if critic.start == REWARD_START:
        return from_folder(folder / REWARD_MODEL, policy.model)
    return from_folder(Path(named_model(critic.start, folder / OWN_CRITIC, note)), policy.model)


def reward_model(
    recipe: Recipe,
    policy: Policy,
    chat: Chat,
    scorer: Scorer,
    folder: Path,
    cache: Path,
    on_step: OnStep,
    say: Note,
) -> RewardModel | None:
    """Load the run's reward model, kept in its folder, so that a resumed run scores with the very same one."""
    preference, own = recipe.preference, folder / REWARD_MODEL
    if preference is None:
        return None

    def bring(place: Path) -> None:
        if preference.model is None:
            shutil.copytree(
                cached_reward_model(
                    policy,
                    chat,
                    scorer,
                    recipe.sampling,
                    preference,
                    seed=recipe.seed,
                    cache=cache,
                    engine_settings=recipe.engine,
                    on_step=on_step,
                    note=say,
                ),
                place,
            )
        else:
            load_reward_model(Path(preference.model))
            shutil.copytree(preference.model, place)

    make_folder(own, bring, "the reward model")
    report = read_report(own / REPORT) if (own / REPORT).is_file() else None
    for line in report.in_words() if report else ():
        say(line)
    judge = load_reward_model(own, device=recipe.device)
    if judge.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise UsageError(
            f"reward model {preference.source!r}: its tokenizer is not the policy's, it would read other words; "
            "take one that shares it"
        )
    return judge
