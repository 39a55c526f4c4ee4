"""The model of a run: first what its folder says, then, once it is loaded, whether engine and learner agree."""

import dataclasses
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import AutoConfig, GenerationConfig

from groupwise.commands.build import memory_estimate
from groupwise.commands.check.findings import Finding, fault, note, ok
from groupwise.config.plan import Plan
from groupwise.core.collate import collate
from groupwise.core.engine import Request
from groupwise.core.errors import GroupwiseError, UsageError
from groupwise.core.records import Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.seeds import derive
from groupwise.diagnostics.checks import Check, Verdict, learner_equals_engine
from groupwise.engines.make import make_engine, require_engine_support
from groupwise.models.chat import Chat
from groupwise.models.heads import halves
from groupwise.models.load import (
    Policy,
    end_ids,
    error_line,
    load_policy,
    load_tokenizer,
    model_folder,
)
from groupwise.models.moe.metrics import comparable
from groupwise.models.moe.record import Router
from groupwise.models.moe.settings import RoutingSettings, require_engine_routes, routers_to_record
from groupwise.models.quiet import quiet
from groupwise.models.template_checks import check_chat
from groupwise.training.initial_policy import TINY
from groupwise.training.learner import Learner

#: The batch that engine and learner both answer: prompts, completions of each, tokens of each at most.
PARITY_PROMPTS, PARITY_SAMPLES, PARITY_TOKENS = 4, 2, 64


@dataclass(frozen=True)
class ModelFiles:
    """What a model's folder says, before any weight is read.

    eos        every id that ends a completion
    positions  the longest prompt and completion together, tokens
    """

    folder: Path
    chat: Chat
    eos: frozenset[int]
    positions: int


def model_path(plan: Plan, into: Path) -> Path:
    """The model's folder; a tiny model is built in `into`, with the random weights a run would begin from.

    Raises UsageError where there is no such model.
    """
    if plan.model not in TINY:
        return model_folder(plan.model)
    TINY[plan.model].build(plan.task.alphabet, into, plan.seed)
    return into


def read_files(folder: Path, plan: Plan) -> ModelFiles:
    """Tokenizer, template, end ids and positions. Raises UsageError where one of them cannot be read."""
    tokenizer = load_tokenizer(folder)
    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"model = {str(folder)!r}: its config.json does not load: {error_line(error)}") from None
    model: Any = SimpleNamespace(config=config, generation_config=_generation_config(folder))
    positions = int(getattr(config, "max_position_embeddings", 0)) or 1 << 30
    return ModelFiles(folder, Chat(tokenizer, plan.chat), end_ids(model, tokenizer), positions)


def file_findings(files: ModelFiles, samples: Sequence[Sample]) -> list[Finding]:
    """Template, BOS and end ids, and whether the tokenizer reads the prompts."""
    names = files.chat.tokenizer.convert_ids_to_tokens(sorted(files.eos))
    ends = f"a completion ends with {', '.join(names)}" if names else "no id ends a completion"
    return [
        ok(files.chat.describe()),
        ok(ends) if names else fault(f"{ends}: set eos_token_id in the model's generation_config.json"),
        *((fault if finding.fatal else note)(str(finding)) for finding in check_chat(files.chat, files.eos, samples)),
    ]


def loaded_findings(plan: Plan, files: ModelFiles, samples: Sequence[Sample], longest: int) -> list[Finding]:
    """Vocabulary, memory, experts, and one batch that engine and learner both run; `longest` prompt, tokens."""
    try:
        policy = load_policy(files.folder, device=plan.device)
    except UsageError as error:
        return [fault(str(error))]
    size = policy.model.get_input_embeddings().weight.shape[0]
    findings = [ok(f"the tokenizer's {len(policy.tokenizer):,} ids have embeddings, of which there are {size:,}")]
    critic = policy.model if plan.critic else None  # of the policy's size, but for one head
    findings.append(ok(" ".join(memory_estimate(plan, policy, critic, longest).split())))
    if plan.model in TINY or plan.warm_start.steps:
        start = "random" if plan.model in TINY else "the folder's"
        warm = "; the warm start is not run here" if plan.warm_start.steps else ""
        findings.append(note(f"its weights are {start}{warm}"))
    if plan.preference is not None:
        findings.append(note(f"the reward model is not looked at: {plan.preference.source}"))
    routers: Sequence[Router] = ()
    try:
        routers = routers_to_record(halves(policy.model)[0], plan.routing)
    except UsageError as error:
        findings.append(fault(str(error)))
    if routers:
        chosen = f"{routers[0].chosen} of {routers[0].experts} experts a token"
        findings.append(ok(f"{len(routers)} layers, {chosen}"))
    return [*findings, _parity(plan, policy, routers, files.chat, samples)]


def _parity(plan: Plan, policy: Policy, routers: Sequence[Router], chat: Chat, samples: Sequence[Sample]) -> Finding:
    """Whether engine and learner give one log-probability for each sampled token."""
    tokens = min(PARITY_TOKENS, plan.sampling.max_new_tokens)
    prompts = [Prompt(sample, chat.encode(sample)) for sample in samples]
    prompts = [prompt for prompt in prompts if len(prompt.tokens) + tokens <= policy.positions][:PARITY_PROMPTS]
    if not prompts:
        return note("learner = engine: not measured (no prompt leaves room for an answer)")
    try:
        check = engine_check(plan, policy, routers, prompts, tokens)
    except GroupwiseError as error:
        return fault(str(error))
    count = f"on {len(prompts)} prompts x {PARITY_SAMPLES} completions"
    if check.verdict is Verdict.FAIL:
        return fault(f"{check} {count}: {check.cause}")
    return ok(f"{check} {count}") if check.verdict is Verdict.PASS else note(str(check))


def engine_check(
    plan: Plan, policy: Policy, routers: Sequence[Router], prompts: Sequence[Prompt], tokens: int
) -> Check:
    """The check of every training step, on one batch under the weights as they are, with the run's own replay."""
    routing = plan.routing if routers else RoutingSettings()
    engine = make_engine(policy=policy, settings=plan.engine, routes=bool(routers))
    require_engine_routes(engine, routing)
    require_engine_support(engine, plan.sampling)
    settings, sampling = plan.learner, plan.sampling
    learner = Learner(policy.model, None, settings, sampling.temperature, plan.total_updates, routing, routers)
    requests = [Request(p.tokens, PARITY_SAMPLES, derive(plan.seed, "check", i), tokens) for i, p in enumerate(prompts)]
    with closing(engine):
        completions = engine.generate(requests, sampling)
    groups = [Group(p, _with_scores(members)) for p, members in zip(prompts, completions, strict=True)]
    batch = collate(groups, policy.pad)
    batch = learner.annotate(batch, old=True, ref=False)
    sampled = comparable(batch.mask, batch.routes, batch.routes_engine)
    return learner_equals_engine(batch.need("logp_old"), batch.logp_engine, sampled, settings.bf16)


def _with_scores(completions: Sequence[Any]) -> tuple[Any, ...]:
    """A completion without a score does not train, so that nothing of it would be compared."""
    return tuple(dataclasses.replace(c, score=0.0) for c in completions)


def _generation_config(folder: Path) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError):  # many models have none
        return None
