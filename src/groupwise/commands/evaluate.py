"""Sample a policy on held-out problems: a run's last checkpoint, or any model folder."""

import os
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path

from groupwise.commands.build import evaluation, pool_of
from groupwise.commands.policies import checkpoint_of, checkpoint_policy
from groupwise.commands.selected import selected
from groupwise.commands.threads import threads, with_threads
from groupwise.config import recipe
from groupwise.config.plan import REWARD_MODEL, Plan
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.core.records import Evaluation
from groupwise.core.terminal import Terminal
from groupwise.engines.make import make_engine
from groupwise.journal import journal
from groupwise.models.chat import Chat
from groupwise.models.load import load_policy
from groupwise.models.reward import load_reward_model
from groupwise.models.template_checks import check_chat, require_no_fatal
from groupwise.rollout.scoring import Scorer


def evaluate_folder(name: str, overrides: Mapping[str, object], model: str | None) -> Evaluation:
    """Sampled results on the held-out problems of a run folder's recipe, or of any recipe.

    model  a Hugging Face folder to evaluate; None takes the last checkpoint of the run folder `name`
    Raises UsageError where there is nothing to evaluate.
    """
    is_run = os.path.lexists(os.path.join(name, journal.RECIPE))
    table = str(journal.whole_recipe(Path(name))) if is_run else name
    loaded, notes = with_threads(recipe.load(table, overrides))
    plan = resolve(loaded, place=Path(os.path.realpath(name)) if is_run else None)
    if not plan.evaluated:
        raise UsageError("evaluation.problems = 0: there is nothing to evaluate; --set evaluation.problems=64")
    note = Terminal(stderr=True).print
    for line in notes:
        note(line)
    with threads(plan.recipe):
        return _evaluated(plan, name, model, note)


def _evaluated(plan: Plan, name: str, model: str | None, note: Callable[..., None]) -> Evaluation:
    if model:
        policy = load_policy(Path(model), device=plan.recipe.device)
    else:
        policy = checkpoint_policy(plan, checkpoint_of(Path(name), None, note), note)
    engine = make_engine(policy=policy, settings=plan.recipe.engine)
    chat = Chat(policy.tokenizer, plan.recipe.chat)
    selection = selected(plan, chat)
    require_no_fatal(check_chat(chat, policy.eos, selection.heldout))
    with closing(engine), pool_of(plan) or nullcontext() as pool:
        scorer = Scorer(plan.task, policy.decode, pool=pool)
        judge = load_reward_model(Path(name) / REWARD_MODEL, device=plan.recipe.device) if scorer.judged else None
        return evaluation(plan, engine, scorer, selection, judge)()
