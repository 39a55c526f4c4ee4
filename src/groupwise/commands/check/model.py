"""Check of a run's model: first what its folder says, then, once it is loaded, whether engine and learner agree."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.commands.build.engine import precisions, tolerance_on, training_engine
from groupwise.commands.build.learner import make_learner, rows_apart
from groupwise.commands.build.machine import REMEDY, disk_plan, empty_model, in_words, memory_of
from groupwise.commands.build.policy import named_model
from groupwise.commands.build.rollout import chat_of, turn_findings
from groupwise.commands.check.findings import Remark, fault, note, ok
from groupwise.config.plan import OWN_START, Plan
from groupwise.config.recipe import Recipe
from groupwise.core.collate import collate
from groupwise.core.engine import Request
from groupwise.core.errors import GroupwiseError, UsageError
from groupwise.core.machine.terminal import Terminal
from groupwise.core.numbers.seeds import derive
from groupwise.core.records import Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.task import Task
from groupwise.diagnostics.checks import Check, CheckVerdict, learner_equals_engine
from groupwise.models.adapters.packed import round_base
from groupwise.models.adapters.settings import adapted_weights, in_short
from groupwise.models.chat.prompts import Chat
from groupwise.models.chat.template_checks import check_chat
from groupwise.models.files.folder import read_config, read_generation
from groupwise.models.forward.heads import halves
from groupwise.models.load import (
    Policy,
    end_ids,
    load_policy,
    load_tokenizer,
    model_folder,
    require_tokenizer,
)
from groupwise.models.moe.metrics import comparable
from groupwise.models.moe.record import Router
from groupwise.models.moe.settings import RoutingSettings, routers_to_record
from groupwise.training.start.initial_policy import TINY

#: The batch that engine and learner both answer: prompts, completions of each, tokens of each at most.
PARITY_PROMPTS, PARITY_SAMPLES, PARITY_TOKENS = 4, 2, 64


@dataclass(frozen=True)
class ModelFiles:
    """Content of a model's folder, before any weight is read.

    eos        every id that ends a completion
    config     as transformers takes it
    """

    folder: Path
    chat: Chat
    eos: frozenset[int]
    config: Any


def model_path(recipe: Recipe, task: Task, into: Path) -> Path:
    """Find the model's folder. What another run has trained is copied into `into`; a tiny model is built there, with
    the random weights a run would begin from.

    Raises UsageError if there is no such model.
    """
    if recipe.origin not in TINY:
        return model_folder(named_model(recipe.origin, into / OWN_START, Terminal(stderr=True).print))
    TINY[recipe.origin].build(task.alphabet, into, recipe.seed)
    return into


def read_files(folder: Path, recipe: Recipe, task: Task) -> ModelFiles:
    """Read tokenizer, template, end ids and positions. Raises UsageError if one of them cannot be read."""
    where = f"model = {str(folder)!r}"
    what = f"{where}: does not load as a causal language model"
    require_tokenizer(folder)
    config, generation = read_config(folder, what), read_generation(folder, what)
    tokenizer = load_tokenizer(folder, config)
    eos = end_ids(config, generation, tokenizer, where)
    return ModelFiles(folder, chat_of(recipe, task, tokenizer), eos, config)


def file_findings(task: Task, files: ModelFiles, samples: Sequence[Sample]) -> list[Remark]:
    """Check template, BOS and end ids, that the tokenizer reads the prompts, and that episodes can grow."""
    names = files.chat.tokenizer.convert_ids_to_tokens(sorted(files.eos))
    ends = f"a completion ends with {', '.join(names)}" if names else "no id ends a completion"
    return [
        ok(files.chat.describe()),
        ok(ends) if names else fault(f"{ends}: set eos_token_id in the model's generation_config.json"),
        *((fault if finding.fatal else note)(str(finding)) for finding in check_chat(files.chat, files.eos, samples)),
        *((fault if one.fatal else note)(str(one)) for one in turn_findings(task, files.chat, files.eos)),
    ]


def loaded_findings(plan: Plan, files: ModelFiles, samples: Sequence[Sample], longest: int) -> list[Remark]:
    """Check vocabulary, memory, experts, and one batch that engine and learner both run; `longest` prompt, tokens."""
    recipe = plan.recipe
    try:
        memory = memory_of(plan, empty_model(files.folder), longest)
        policy = load_policy(files.folder, device=recipe.device, training=True)
        adapted_weights(policy.model, recipe.adapter)
        round_base(policy.model, recipe.adapter)
    except UsageError as error:
        return [fault(" ".join(str(error).split()))]
    size = policy.model.get_input_embeddings().weight.shape[0]
    findings = [ok(f"the tokenizer's {len(policy.tokenizer):,} ids have embeddings, of which there are {size:,}")]
    findings.append(ok(" ".join(in_words(memory).split())))
    critic = policy.model if recipe.critic else None  # but for one head
    disk = disk_plan(recipe, plan.folder, policy.model, critic, plan.copies_reference)
    findings.append(ok(f"disk: {disk}") if disk.fits else fault(f"disk: {disk}; {REMEDY}"))
    if apart := rows_apart(recipe, policy.model.config, longest):
        findings.append(note(apart))
    if recipe.adapter.rank:
        findings.append(ok(f"adapters on {in_short(policy.model, recipe.adapter)}"))
    if recipe.origin in TINY or recipe.warm_start.steps:
        start = "random" if recipe.origin in TINY else "the folder's"
        warm = "; the warm start is not run here" if recipe.warm_start.steps else ""
        findings.append(note(f"its weights are {start}{warm}"))
    if recipe.preference is not None:
        findings.append(note(f"the reward model is not looked at: {recipe.preference.source}"))
    routers: Sequence[Router] = ()
    try:
        routers = routers_to_record(halves(policy.model)[0], recipe.routing)
    except UsageError as error:
        findings.append(fault(str(error)))
    if routers:
        chosen = f"{routers[0].chosen} of {routers[0].experts} experts a token"
        findings.append(ok(f"{len(routers)} layers, {chosen}"))
    return [*findings, *_parity(recipe, plan.algorithm, policy, routers, files.chat, samples)]


def _parity(
    recipe: Recipe,
    row: Algorithm,
    policy: Policy,
    routers: Sequence[Router],
    chat: Chat,
    samples: Sequence[Sample],
) -> list[Remark]:
    """Check that engine and learner give one log-probability for each sampled token."""
    tokens = min(PARITY_TOKENS, recipe.sampling.max_new_tokens)
    prompts = [Prompt(sample, chat.encode(sample)) for sample in samples]
    prompts = [prompt for prompt in prompts if len(prompt.tokens) + tokens <= policy.positions][:PARITY_PROMPTS]
    if not prompts:
        return [note("learner = engine: not measured (no prompt leaves room for an answer)")]
    said: list[str] = []
    try:
        checks = engine_checks(recipe, row, policy, routers, prompts, tokens, said.append)
    except GroupwiseError as error:
        return [fault(str(error))]
    return [note(" ".join(line.split())) for line in said] + [
        _check_finding(check, f"on {len(prompts)} prompts x {PARITY_SAMPLES} completions") for check in checks
    ]


def _check_finding(check: Check, count: str) -> Remark:
    if check.verdict is CheckVerdict.FAIL:
        return fault(f"{check} {count}: {check.cause}")
    return ok(f"{check} {count}") if check.verdict is CheckVerdict.PASS else note(str(check))


def engine_checks(
    recipe: Recipe,
    row: Algorithm,
    policy: Policy,
    routers: Sequence[Router],
    prompts: Sequence[Prompt],
    tokens: int,
    hears: Callable[[str], None],
) -> list[Check]:
    """Make the checks of every training step, on one batch under the weights as they are, with the run's own replay.

    hears  how the engine samples, if not as it should
    """
    recipe = recipe if routers else recipe.replace(routing=RoutingSettings())
    top = row.trust.sampler_top
    engine, learner = training_engine(recipe, policy, routers, hears, top=top), make_learner(recipe, policy, routers)
    sides = precisions(recipe, engine, row.needs_reference)
    seeds = [derive(recipe.seed, "check", i) for i in range(len(prompts))]
    requests = [Request(p.tokens, PARITY_SAMPLES, seed, tokens) for p, seed in zip(prompts, seeds, strict=True)]
    with closing(engine):
        completions = engine.generate(requests, recipe.sampling)
        tolerance = tolerance_on(recipe, sides, policy, engine, learner, prompts)
    # A completion without a score does not train, so that nothing of it would be compared.
    scored = [tuple(dataclasses.replace(c, score=0.0) for c in members) for members in completions]
    groups = [Group(p, members) for p, members in zip(prompts, scored, strict=True)]
    batch = collate(groups, policy.pad)
    batch = learner.annotate(batch, old=True, ref=False)
    sampled = comparable(batch.mask, batch.routes, batch.routes_engine)
    return learner_equals_engine(batch.need("logp_old"), batch.logp_engine, sampled, tolerance)
