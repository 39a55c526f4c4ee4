"""What plays a run's episodes, where its task has an environment."""

from collections.abc import Callable
from functools import partial

from groupwise.commands.build.pools import limits_of, pool_at
from groupwise.config.plan import Plan
from groupwise.core.engine import Engine
from groupwise.core.environment import Environments
from groupwise.core.errors import UsageError
from groupwise.core.processes.place import HERE, Place
from groupwise.environments.inline import InlineEnvironments
from groupwise.environments.pool import PoolEnvironments
from groupwise.models.chat.glue import Glue
from groupwise.models.chat.history import History
from groupwise.models.chat.prompts import Chat
from groupwise.models.chat.template_checks import Finding, require_no_fatal
from groupwise.models.chat.turn_checks import check_turns
from groupwise.models.load import Policy
from groupwise.models.moe.record import routers
from groupwise.rollout.episodes import Episodes
from groupwise.rollout.turns import Sampler, advance
from groupwise.tasks.environment.task import EnvironmentTask


def environments_of(
    plan: Plan, place: Place = HERE, note: Callable[[str], None] = lambda line: None
) -> Environments | None:
    """Where the run's episodes live; None for a task without an environment. Raises UsageError where its code does not
    load.

    place  where their processes are started; `note` hears of one that is started again
    """
    if not isinstance(plan.task, EnvironmentTask):
        return None
    game = plan.task.game
    if game.quick:
        return InlineEnvironments(game.load(), game.with_special, game.tool_names)
    return PoolEnvironments(game, limits_of(plan, place), partial(pool_at, plan, place, note))


def episodes_of(
    plan: Plan, policy: Policy, chat: Chat, engine: Engine, environments: Environments | None
) -> Episodes | None:
    """What plays its episodes; None for a task without an environment. Raises UsageError for a chat template under
    which the ids of a conversation do not only grow.
    """
    if environments is None or not isinstance(plan.task, EnvironmentTask):
        return None
    require_no_fatal(turn_findings(plan, chat, policy.eos))
    glue = Glue(chat, policy.eos)
    if plan.task.history == "rewrite" and routers(policy.model):
        raise UsageError(
            'task.history = "rewrite": a policy with experts records the routes of a row as one text, and under it '
            'each turn has a prompt of its own; set task.history = "grow", or take a dense model'
        )
    onward = History(glue).onward if plan.task.history == "rewrite" else glue.onward
    decode = policy.decode_all if environments.with_special else policy.decode
    return Episodes(engine, environments, onward, chat.encode, decode, plan.task.limits)


def turn_findings(plan: Plan, chat: Chat, ends: frozenset[int]) -> list[Finding]:
    """What the chat template does to conversations of several turns; nothing for a task without an environment."""
    if not isinstance(plan.task, EnvironmentTask):
        return []
    return check_turns(chat, ends, plan.task.game.roles, plan.task.history)


def sampler_of(plan: Plan, policy: Policy, chat: Chat, engine: Engine, environments: Environments | None) -> Sampler:
    """What samples completions, or plays episodes."""
    return episodes_of(plan, policy, chat, engine, environments) or partial(advance, engine)
