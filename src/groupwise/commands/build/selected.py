"""The problems of a plan's run, as a chat puts them to the policy."""

from typing import Any

from groupwise.config.plan import Plan
from groupwise.models.chat.prompts import Chat
from groupwise.rollout.selection import PromptLimit, Selection, select
from groupwise.tasks.environment.task import EnvironmentTask


def chat_of(plan: Plan, tokenizer: Any) -> Chat:
    """How problems are put to the policy, the tools of an environment included. Raises UsageError where the template
    cannot say them.
    """
    tools = plan.task.game.schemas if isinstance(plan.task, EnvironmentTask) else ()
    return Chat(tokenizer, plan.recipe.chat, tools)


def selected(plan: Plan, chat: Chat) -> Selection:
    """What the run trains on and is evaluated on. Raises UsageError where no prompt is short enough."""
    recipe = plan.recipe
    limit = PromptLimit(recipe.max_prompt_tokens, recipe.prompt_truncation == "left", head=int(chat.has_bos))
    return select(plan.task, chat.encode, limit, recipe.evaluation)
