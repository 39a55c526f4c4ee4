"""References of a run: the one that an algorithm reads, others by source, and the prompts that they read."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from groupwise.algorithms.parts.shaping import NoReward
from groupwise.commands.build.rollout import TRIED_ROWS, evaluation_of, too_long
from groupwise.config.plan import OWN_REFERENCE, Plan
from groupwise.core.errors import UsageError, listed
from groupwise.core.samples import Sample
from groupwise.core.task import PlaysTurns, Streams
from groupwise.engines.make import make_engine
from groupwise.engines.settings import EngineSettings
from groupwise.models.chat.prompts import Chat
from groupwise.models.context import positions
from groupwise.models.load import Policy, digest
from groupwise.models.on_host import on_device
from groupwise.rollout.scoring import Scorer
from groupwise.rollout.segments import advance
from groupwise.rollout.selection import DRAWN, LOOKED_AT, Selection
from groupwise.training.learner import Learner
from groupwise.training.reference import START, Reference, frozen
from groupwise.training.settings import Guard
from groupwise.training.teachers.address import TeacherAtAddress, vocabulary_of
from groupwise.training.teachers.prompts import TeacherPrompt
from groupwise.training.teachers.teaching import Teaching, held, reference_of

#: Says a line.
Note = Callable[[str], None]
#: Measured values of teachers by name.
Rates = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Taught:
    """Facts that teachers have to fit: the policy, how problems are put to it, and which these are.

    start  digest of the policy
    load   loads the policy that a key names; a run's is copied to the folder first
    """

    plan: Plan
    policy: Policy
    chat: Chat
    selection: Selection
    start: str
    load: Callable[[str, Path], Policy]

    @cached_property
    def samples(self) -> Sequence[Sample]:
        """Training problems; of a task that makes them one by one, some."""
        train = self.selection.train
        return [train.draw(i, 0, {}) for i in range(DRAWN)] if isinstance(train, Streams) else train

    @cached_property
    def prompt(self) -> TeacherPrompt | None:
        """The teachers' prompt, if it is another than the policy's. Raises UsageError if nothing fills in a place."""
        if not (template := self.plan.recipe.reference.template):
            return None
        prompt = TeacherPrompt(template, self.selection.encode, self.policy.decode)
        prompt.require_places(self.samples)
        return prompt

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest prompt that a teacher reads, as far as the problems alone say it."""
        if self.prompt is None:
            return self.selection.longest
        samples = sorted(self.samples, key=lambda s: len(s.prompt) + len(s.answer) + len(str(s.extra)))
        return max(self.selection.longest, self.prompt.longest(samples[-LOOKED_AT:]))


@dataclass(frozen=True)
class References:
    """References of a run, where its algorithm reads one, those of the problems of a source, and what is elsewhere."""

    reference: Reference | None
    by_source: Mapping[str, nn.Module]
    remote: TeacherAtAddress | None = None


def references_of(own: Taught, note: Note) -> References:
    """Load or copy the references that the run's algorithm reads. Raises UsageError if one does not fit the policy."""
    plan, settings = own.plan, own.plan.recipe.reference
    if not plan.algorithm.needs_reference:
        return References(None, {})
    of_policy = settings.model == START and not settings.address
    if of_policy and (wrong := too_long(plan.recipe, own.policy.model.config, own.longest)):
        raise UsageError(f"reference.template: {wrong}")  # the policy's own prompts have been looked at
    reference = _copy(own, note) if plan.copies_reference else Reference(None, own.start)
    remote = _at_address(own, note) if settings.address else None
    reference = reference if remote is None else Reference(None, remote.declared.digest)
    sources = {sample.source for sample in own.samples}
    others: dict[str, nn.Module] = {}
    for number, (source, model) in enumerate(sorted(settings.by_source.items()), 1):
        if source not in sources:
            known = listed(sorted(filter(None, sources)), most=8) or "its problems have none"
            raise UsageError(f"reference.by_source.{source}: no such source in the task; there are: {known}")
        place = plan.folder / f"{OWN_REFERENCE}-{number}"
        policy = _other_policy(own, f"by_source.{source}", model, place)
        identity = digest(policy.model)
        note(f"reference    of {source}: policy {identity}")
        reference.digest += f" {identity}"
        others[source] = frozen(policy.model, settings)
    return References(reference, others, remote)


def teaching_of(own: Taught, references: References, learner: Learner, say: Note) -> Teaching | None:
    """Make the reference's pass, if it is more than that of one model behind the policy's prompts."""
    recipe, reference = own.plan.recipe, references.reference
    if reference is None or not recipe.reference.apart:
        return None
    remote, own_model = references.remote, own.policy.model if reference.model is None else reference.model
    most = positions(own_model.config) if remote is None else remote.declared.positions
    return Teaching(
        reader=reference_of(learner) if remote is None else remote.begin,
        by_source={source: held(learner, model) for source, model in references.by_source.items()},
        prompt=own.prompt,
        positions=min([most, *(positions(model.config) for model in references.by_source.values())]),
        pad=own.policy.pad,
        masks_truncated=own.plan.algorithm.filter.mask_truncated,
        say=say,
        **({} if remote is None else {"close": remote.close}),
    )


def teacher_rates(own: Taught, references: References, scorer: Scorer, say: Note) -> Callable[[], Rates]:
    """Return what measures on the held-out problems the policies that teach, each sampled by a local engine of its own
    for that time; nothing if there is no teacher, or it is in shards, or a problem is an episode.
    """
    plan, recipe, reference = own.plan, own.plan.recipe, references.reference
    models = dict(references.by_source)
    if recipe.reference.model != START and reference is not None and reference.model is not None:
        models = {"teacher": reference.model, **models}
    taught = isinstance(plan.algorithm.shaping, NoReward) and recipe.learner.ranks == 1
    if not taught or isinstance(plan.task, PlaysTurns):
        return dict

    def rate(model: nn.Module) -> dict[str, float]:
        with on_device(model, torch.device(recipe.device)):
            policy = dataclasses.replace(own.policy, model=model)
            engine = make_engine(policy=policy, settings=EngineSettings(max_rows=recipe.engine.max_rows))
        with closing(engine):
            found, _ = evaluation_of(recipe, partial(advance, engine), scorer, own.selection, None)()
        return {key: getattr(found, key) for key in ("avg_at_k", "measured_mean", "length_mean")}

    def rates() -> Rates:
        try:
            return {name: rate(model) for name, model in models.items()}
        except torch.OutOfMemoryError:
            say("the teacher is not evaluated: beside the run's models the GPU has no room for its engine")
            return {}

    return rates


def _copy(own: Taught, note: Note) -> Reference:
    """Make the frozen reference of an algorithm that reads a copy."""
    recipe, policy, settings = own.plan.recipe, own.policy, own.plan.recipe.reference
    source = policy
    if settings.model != START:
        source = _other_policy(own, "model", settings.model, own.plan.folder / OWN_REFERENCE)
    shapes = [{name: p.shape for name, p in model.named_parameters()} for model in (policy.model, source.model)]
    if settings.every and shapes[0] != shapes[1]:
        what = f"reference.model = {settings.model!r}"
        raise UsageError(f"{what}: its weights have other shapes than the policy's; set reference.every = 0")
    identity = own.start if source is policy else digest(source.model)
    note(f"reference    policy {identity}" + (", the start" if identity == own.start else ""))
    model = frozen(copy.deepcopy(policy.model) if source is policy else source.model, settings)
    return Reference(model, identity, settings.every, returns=recipe.guard is Guard.ROLLBACK)


def _other_policy(own: Taught, key: str, named: str, place: Path) -> Policy:
    """Load a policy that a key of [reference] names, before a cast. Raises UsageError if it does not fit the policy."""
    recipe, policy, other = own.plan.recipe, own.policy, own.load(named, place)
    where = f"reference.{key} = {named!r}"
    embeddings = [p.model.get_input_embeddings().weight.shape[0] for p in (policy, other)]
    if policy.tokenizer.get_vocab() != other.tokenizer.get_vocab() or embeddings[1] < embeddings[0]:
        raise UsageError(f"{where}: its tokenizer is another than the policy's, whose tokens it is to read")
    _require_template(own, other.tokenizer, where)
    if wrong := too_long(recipe, other.model.config, own.longest):
        raise UsageError(f"{where}: {wrong}")
    return other


def _at_address(own: Taught, note: Note) -> TeacherAtAddress:
    """Reach the teacher at the address of [reference]. Raises UsageError if it does not fit the policy."""
    recipe, policy, where = own.plan.recipe, own.policy, f"reference.address = {own.plan.recipe.reference.address!r}"
    remote = TeacherAtAddress(recipe.reference, recipe.sampling, policy.eos, note)
    said, limit = remote.declared, recipe.sampling.max_new_tokens
    note(f"reference    policy {said.digest} at {recipe.reference.address}")
    embeddings = policy.model.get_input_embeddings().weight.shape[0]
    tokenizer = copy.copy(policy.tokenizer)
    tokenizer.chat_template = said.template
    try:
        if said.vocabulary != vocabulary_of(policy.tokenizer) or said.embeddings < embeddings:
            raise UsageError(f"{where}: its tokenizer is another than the policy's, whose tokens it is to read")
        _require_template(own, tokenizer, where)
        if own.longest + limit > said.positions:
            what = f"a prompt of {own.longest} tokens and sampling.max_new_tokens = {limit}"
            raise UsageError(f"{where}: {what} are beyond its {said.positions} positions; lower max_new_tokens")
    except BaseException:
        remote.close()
        raise
    return remote


def _require_template(own: Taught, tokenizer: Any, where: str) -> None:
    """Raise UsageError if the recipe's choice of a chat template is another one of the other policy."""
    theirs = Chat(tokenizer, own.chat.settings, own.chat.tools)
    if any(own.chat.text(sample) != theirs.text(sample) for sample in own.samples[:TRIED_ROWS]):
        raise UsageError(
            f"{where}: its chat template ({theirs.source}) is another than the policy's ({own.chat.source}), behind "
            "whose prompts it reads; set chat.template to the Jinja file of one of them, or take another teacher"
        )
