"""Learner and critic of a run over its ranks: rank 0 starts the others, which build theirs of the same models."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from groupwise.algorithms.algorithm import Algorithm
from groupwise.config.recipe import Recipe
from groupwise.config.resolve import resolve
from groupwise.core.channel import Channel
from groupwise.core.errors import GroupwiseError
from groupwise.core.machine.cards import Cards, failure_of
from groupwise.core.machine.free_memory import give_back, keep_freed
from groupwise.core.processes.place import HERE, Place
from groupwise.models.causal import CausalLM
from groupwise.models.context import STATE, has_states, layer_kinds
from groupwise.models.forward.adjustment import adjustment_of
from groupwise.models.forward.heads import halves
from groupwise.models.load import Policy, description, model_like
from groupwise.models.moe.record import Router, routers
from groupwise.models.on_host import put_on_host
from groupwise.models.precision import keep_few_products
from groupwise.models.scalar_heads import RewardModel
from groupwise.rollout.collect import Judge
from groupwise.training.critic import Critic
from groupwise.training.learner import AdaptedLearner, Learner
from groupwise.training.mesh import ALONE, Mesh, Message, Verb
from groupwise.training.ranks.followers import LOST_OTHERS, given_ranks, lead, lead_given, of_ranks
from groupwise.training.ranks.meeting import Meeting
from groupwise.training.ranks.sharded import RewardScorer, require_decoder_layers

MODULE = "groupwise.commands.build.learner"


@dataclass(frozen=True)
class OverRanks:
    """Parts of a run that its ranks hold together: the critic of an algorithm that reads values, and what scores with
    the reward model, if there is one.
    """

    learner: Learner
    critic: Critic | None
    judge: Judge | None


def over_ranks(
    recipe: Recipe,
    table: Mapping[str, Any],
    folder: Path,
    policy: Policy,
    routers: Sequence[Router],
    reference: nn.Module | None,
    critic: nn.Module | None,
    reward: RewardModel | None,
    place: Place = HERE,
    cards: Cards | None = None,
    teachers: Sequence[nn.Module] = (),
) -> OverRanks:
    """Put the run's models over as many processes as the recipe says; the learner's mesh is to be closed.

    table  the resolved recipe
    place  where the processes of the other ranks are started
    cards  GPUs of this machine that they take, if it is for the run to say
    teachers  further references, of a run in one process
    Raises UsageError if one cannot be started, RunError if one is lost before it is ready.
    """
    models = (policy.model, reference, critic, reward and reward.model)
    for model in models if recipe.learner.ranks > 1 else ():
        if model is not None:
            require_decoder_layers(model, recipe.learner.ranks)
    mesh = _started(recipe, folder, place, cards)
    try:
        with mesh.answering():
            if not mesh.alone:
                known = {"eos": sorted(policy.eos), "pad": policy.pad, "routed": bool(routers)}
                mesh.plain({"recipe": table, "folder": str(folder), "threads": torch.get_num_threads(), **known})
                for model in models:
                    mesh.plain(None if model is None else description(model))
            parts = OverRanks(
                learner=make_learner(recipe, policy, routers, reference, mesh, teachers),
                critic=make_critic(recipe, critic, mesh),
                judge=None if reward is None else RewardScorer(reward, mesh).scores,
            )
            _put_away(recipe, [reference, *teachers], critic, reward)
            if not mesh.alone:
                give_back()  # of the weights that were whole here, one after another or all at once
            return parts
    except BaseException:
        mesh.close()
        raise


def _put_away(
    recipe: Recipe, references: Sequence[nn.Module | None], critic: nn.Module | None, reward: RewardModel | None
) -> None:
    """Move to the host the models that are to be there while they are not used, once they were tried on the device."""
    others = ((recipe.critic, critic), (recipe.preference, reward and reward.model))
    sections = (*((recipe.reference, one) for one in references), *others)
    for settings, model in sections:
        if settings is not None and settings.offload and model is not None:
            put_on_host(model.requires_grad_(model is critic))  # what does not train need not come back


def rounds(recipe: Recipe) -> bool:
    """Tell whether anything of a run computes in less than float32."""
    return not {recipe.learner.precision, recipe.engine.precision, recipe.reference.precision} <= {"same", "fp32"}


def rows_apart(recipe: Recipe, config: Any, longest: int) -> str:
    """Say that a policy's states let rows share nothing, and what that costs; "" if rows may, or are not to.

    longest  prompt, tokens
    """
    if not recipe.learner.shared_prefixes or not has_states(config):
        return ""
    new, samples = recipe.sampling.max_new_tokens, recipe.samples_per_prompt
    times = samples * (longest + new) / (longest + samples * new)
    kinds = ", ".join(sorted(STATE.intersection(layer_kinds(config))))
    return (
        f"each row is run by itself, its prompt too, and padded: layers with a state ({kinds}) read all that stands "
        f"before a token, so that rows cannot share prompts; up to {times:.1f} times the tokens"
    )


def idle_ranks(recipe: Recipe, longest: int) -> str:
    """Ask a question if each update of the run leaves a rank without a microbatch; "" if none does for certain.

    longest  prompt, tokens
    """
    ranks = recipe.learner.ranks
    rows = -(-recipe.prompts_per_step // recipe.updates_per_batch) * recipe.samples_per_prompt
    length, budget = longest + recipe.sampling.max_new_tokens, recipe.learner.tokens_per_microbatch
    most = rows if isinstance(budget, str) else most_microbatches(rows, length, budget)
    if most >= ranks:
        return ""
    fewer = f"set learner.tokens_per_microbatch = {rows // ranks * length} or less, or " if rows >= ranks else ""
    return (
        f"learner.ranks = {ranks}: an update has {most} microbatch{'es' if most > 1 else ''} at most, and the other "
        f"ranks have nothing to do in any; {fewer}set learner.ranks = {most}; is it meant?"
    )


def most_microbatches(rows: int, length: int, budget: int) -> int:
    """Count the microbatches of `budget` tokens of an update at most, whose rows have no more than `length` tokens.

    >>> most_microbatches(rows=512, length=10, budget=6000), most_microbatches(rows=3, length=10, budget=6)
    (1, 3)
    """
    return -(-rows // max(1, budget // length))


def _started(recipe: Recipe, folder: Path, place: Place, cards: Cards | None) -> Mesh:
    """Start the run's mesh: this process alone, or with others that wait for what they need."""
    settings, device = recipe.learner, recipe.device
    if settings.ranks == 1:
        return ALONE
    go_on = f"go on from the newest checkpoint with: groupwise train --resume {shlex.quote(str(folder))}"
    if (given := given_ranks()) is not None:
        return lead_given(given, device, settings.rank_deadline, go_on)
    numbers = (0,) * settings.ranks if cards is None else cards.ranks  # an actor of Ray's sees its own GPU alone
    devices = [device if device == "cpu" else f"{device}:{number}" for number in numbers]
    return lead(MODULE, {}, devices, settings.rank_deadline, go_on, place)


def main(channel: Channel, rank: int, size: int, meeting: Mapping[str, Any], seconds: float, device: str) -> None:
    """Live as another rank (core/processes/place.py), on a device; `meeting` says where the ranks meet."""
    channel.send({"ready": True})
    try:
        mesh = Meeting(**meeting).joined(rank, size, device, seconds)
    except GroupwiseError as error:
        sys.exit(f"error: {error}")
    take_part(mesh)
    channel.send({"done": True})


def take_part(mesh: Mesh) -> None:
    """Take part as another rank from the run's recipe on to its end; exit if it cannot go on."""
    try:
        run = mesh.plain(None)
        torch.set_num_threads(run["threads"])
        plan = resolve(Recipe.model_validate(run["recipe"]), place=Path(run["folder"]))
        keep_freed(large=not plan.recipe.learner.recompute)
        if rounds(plan.recipe):
            keep_few_products()
        verbs = _verbs(plan.recipe, plan.algorithm, mesh, frozenset(run["eos"]), run["pad"], run["routed"])
        give_back()  # of the models that were whole here
        mesh.follow(verbs)
        mesh.close()
    except GroupwiseError as error:
        sys.exit(f"error: {error}")
    except RuntimeError as error:
        if failed := failure_of(error):
            sys.exit(f"error: its GPU, {mesh.device}, failed: {failed}")
        if not of_ranks(error):
            raise
        sys.exit(LOST_OTHERS)


def make_learner(
    recipe: Recipe,
    policy: Policy,
    routers: Sequence[Router],
    reference: nn.Module | None = None,
    mesh: Mesh = ALONE,
    teachers: Sequence[nn.Module] = (),
) -> Learner:
    """Make the policy's learner; `reference` is a frozen model, if the algorithm reads one of its own.

    With adapters these are in the policy's model from here on, and without such a model it is its own reference.
    """
    common: dict[str, Any] = {
        "settings": recipe.learner,
        "temperature": recipe.sampling.temperature,
        "total_updates": recipe.total_updates,
        "routing": recipe.routing,
        "routers": routers,
        "adjustment": adjustment_of(recipe.sampling, policy.eos, policy.model.config.get_text_config().vocab_size),
        "mesh": mesh,
        "deterministic": recipe.deterministic,
        "teachers": teachers,
    }
    if recipe.adapter.rank:
        return AdaptedLearner(policy.model, recipe.adapter, recipe.seed, reference=reference, **common)
    return Learner(policy.model, reference, **common)


def make_critic(recipe: Recipe, model: nn.Module | None, mesh: Mesh = ALONE) -> Critic | None:
    """Make the critic of an algorithm that reads values, over its model."""
    if recipe.critic is None or model is None:
        return None
    updates = recipe.steps * recipe.updates_per_step
    return Critic(model, recipe.critic, updates, recipe.learner.bf16, mesh, recipe.deterministic)


def _verbs(
    recipe: Recipe, algorithm: Algorithm, mesh: Mesh, eos: frozenset[int], pad: int, routed: bool
) -> Mapping[Verb, Callable[[Message], object]]:
    """Make what another rank does at each verb, with learner, critic and reward model of rank 0's models.

    routed  whether routes are recorded, which rank 0 has tried: its models have weights
    """
    policy, reference = (_arrived(mesh, CausalLM) for _ in range(2))
    critic = _arrived(mesh, AutoModelForTokenClassification)
    reward = _arrived(mesh, AutoModelForSequenceClassification)
    own = Policy(policy, None, eos, pad)
    recorded = routers(halves(policy)[0]) if routed else ()
    learner = make_learner(recipe, own, recorded, reference, mesh)
    valuer = make_critic(recipe, critic, mesh)

    def update(message: Message) -> None:
        learner.optimizer.factor = message.others["factor"]
        learner.update(message.batch, algorithm, message.supervised)

    verbs: dict[Verb, Callable[[Message], object]] = {
        Verb.ANNOTATE: lambda m: learner.annotate(_batch(m), **m.others),
        Verb.UPDATE: update,
        Verb.LOGPROBS: lambda m: learner.logprobs_now(_batch(m), **m.others),
        Verb.WEIGHTS: lambda m: [None for _ in learner.weights()],
        Verb.SAVE: lambda m: learner.save(Path(m.others["folder"]), None),
        Verb.RESTORE: lambda m: learner.restore(Path(m.others["folder"]), m.others["updates"]),
        Verb.RENEW_REFERENCE: lambda m: learner.renew_reference(),
        Verb.SAVE_REFERENCE: lambda m: learner.save_reference(Path(m.others["folder"]), m.others["name"]),
        Verb.RESTORE_REFERENCE: lambda m: learner.restore_reference(Path(m.others["folder"]), m.others["name"]),
    }
    if valuer is not None:
        verbs |= {
            Verb.VALUES: lambda m: valuer.values(_batch(m)),
            Verb.UPDATE_CRITIC: lambda m: valuer.update(_batch(m)),
            Verb.SAVE_CRITIC: lambda m: valuer.save(Path(m.others["folder"])),
            Verb.RESTORE_CRITIC: lambda m: valuer.restore(Path(m.others["folder"]), m.others["updates"]),
        }
    if reward is not None:
        scorer = RewardScorer(RewardModel(reward, tokenizer=None), mesh)
        verbs[Verb.SCORES] = lambda m: scorer.take_part()
    return verbs


def _batch(message: Message) -> Any:
    assert message.batch is not None
    return message.batch


def _arrived(mesh: Mesh, kind: Any) -> Any:
    """Make rank 0's next model without its weights, which come where it is sharded; None if it has none."""
    described = mesh.plain(None)
    return None if described is None else model_like(kind, described, "meta")
