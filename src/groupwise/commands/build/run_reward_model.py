"""The reward model of a run, in its folder."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from groupwise.config.plan import REWARD_MODEL, Plan
from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import make_folder
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import Policy
from groupwise.models.reward import RewardModel, load_reward_model
from groupwise.rollout.scoring import Scorer
from groupwise.training.optimizer import OnStep
from groupwise.training.start.cached_reward_model import cached_reward_model
from groupwise.training.start.reward_model import PreferenceSettings
from groupwise.training.start.reward_report import REPORT, read_report


def run_reward_model(
    plan: Plan, policy: Policy, chat: Chat, scorer: Scorer, say: Callable[[str], None], on_step: OnStep
) -> RewardModel | None:
    """The run's reward model, kept in its folder: a resumed run scores with the very same one."""
    preference = plan.recipe.preference
    if preference is None:
        return None
    folder = plan.folder / REWARD_MODEL
    make_folder(folder, partial(_bring, plan, preference, policy, chat, scorer, say, on_step), "the reward model")
    report = read_report(folder / REPORT) if (folder / REPORT).is_file() else None
    for line in report.in_words() if report else ():
        say(line)
    judge = load_reward_model(folder, device=plan.recipe.device)
    if judge.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise UsageError(
            f"reward model {preference.source!r}: its tokenizer is not the policy's, it would read other words; "
            "take one that shares it"
        )
    return judge


def _bring(
    plan: Plan,
    preference: PreferenceSettings,
    policy: Policy,
    chat: Chat,
    scorer: Scorer,
    note: Callable[[str], None],
    on_step: OnStep,
    folder: Path,
) -> None:
    """A copy of the one that the recipe names, or of one made now (or before, the same)."""
    if preference.model is not None:
        origin = Path(preference.model)
        load_reward_model(origin)
    else:
        origin = cached_reward_model(
            policy,
            chat,
            scorer,
            plan.recipe.sampling,
            preference,
            seed=plan.recipe.seed,
            cache=plan.cache,
            engine_settings=plan.recipe.engine,
            on_step=on_step,
            note=note,
        )
    shutil.copytree(origin, folder)
