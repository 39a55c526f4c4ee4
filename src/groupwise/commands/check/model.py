"""The model of a run: first what its folder says, then, once it is loaded, whether engine and learner agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import AutoConfig, GenerationConfig

from groupwise.commands.build import memory_estimate
from groupwise.commands.check.remarks import Remark, fault, note, ok
from groupwise.config.plan import Blueprint
from groupwise.core.collate import collate
from groupwise.core.engine import Request
from groupwise.core.errors import GroupwiseError, UsageError
from groupwise.core.records import Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.seeds import derive
from groupwise.diagnostics.checks import Check, Verdict, learner_equals_engine
from groupwise.engines.local.engine import LocalEngine
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
from groupwise.models.moe.replay import RoutingSettings, demand_engine, demand_routing
from groupwise.models.moe.routing import Router
from groupwise.models.quiet import quiet
from groupwise.models.template_checks import check_chat
from groupwise.training.initial_policy import TINY
from groupwise.training.learner import Learner

#: The batch that engine and learner both answer: prompts, completions of each, tokens of each at most.
PARITY_PROMPTS, PARITY_SAMPLES, PARITY_TOKENS = 4, 2, 64


@dataclass(frozen=True)
class Paper:
    """What a model's folder says, before any weight is read.

    eos        every id that ends a completion
    positions  the longest prompt and completion together, tokens
    """

    folder: Path
    chat: Chat
    eos: frozenset[int]
    positions: int


def bring(plan: Blueprint, into: Path) -> Path:
    """The model's folder; a tiny model is made in `into`, with the random weights a run would begin from.

    Raises UsageError where the model cannot be had.
    """
    if plan.model not in TINY:
        return model_folder(plan.model)
    TINY[plan.model].build(plan.task.alphabet, into, plan.seed)
    return into


def read(folder: Path, plan: Blueprint) -> Paper:
    """Tokenizer, template, end ids and positions. Raises UsageError where one of them cannot be read."""
    tokenizer = load_tokenizer(folder)
    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"model = {str(folder)!r}: its config.json does not load: {error_line(error)}") from None
    told: Any = SimpleNamespace(config=config, generation_config=_generation(folder))
    positions = int(getattr(config, "max_position_embeddings", 0)) or 1 << 30
    return Paper(folder, Chat(tokenizer, plan.chat), end_ids(told, tokenizer), positions)


def on_paper(paper: Paper, samples: Sequence[Sample]) -> list[Remark]:
    """Template, BOS and end ids, and whether the tokenizer reads the prompts."""
    names = paper.chat.tokenizer.convert_ids_to_tokens(sorted(paper.eos))
    ends = f"a completion ends with {', '.join(names)}" if names else "no id ends a completion"
    found = check_chat(paper.chat, paper.eos, samples)
    return [
        ok(paper.chat.describe()),
        ok(ends) if names else fault(f"{ends}: set eos_token_id in the model's generation_config.json"),
        *(fault(str(finding)) if finding.fatal else note(str(finding)) for finding in found),
    ]


def loaded(plan: Blueprint, paper: Paper, samples: Sequence[Sample], longest: int) -> list[Remark]:
    """Vocabulary, memory, and one batch that engine and learner both answer."""
    try:
        policy = load_policy(paper.folder, device=plan.device)
    except UsageError as error:
        return [fault(str(error))]
    size = policy.model.get_input_embeddings().weight.shape[0]
    remarks = [ok(f"the tokenizer's {len(policy.tokenizer):,} ids have embeddings, of which there are {size:,}")]
    critic = policy.model if plan.critic else None  # of the policy's size, but for one head
    remarks.append(ok(" ".join(memory_estimate(plan, policy, critic, longest).split())))
    if plan.model in TINY or plan.warm:
        start = "random" if plan.model in TINY else "the folder's"
        warm = "; the warm start is not run here" if plan.warm else ""
        remarks.append(note(f"its weights are {start}{warm}"))
    if plan.preference_source:
        remarks.append(note(f"the reward model is not looked at: {plan.preference_source}"))
    experts, told = _routing(plan, policy)
    return [*remarks, *told, _parity(plan, policy, experts, paper.chat, samples)]


def _routing(plan: Blueprint, policy: Policy) -> tuple[tuple[Router, ...], list[Remark]]:
    """The routers that a run would record, and what is said of them: nothing for a dense model."""
    try:
        experts = demand_routing(halves(policy.model)[0], plan.routing)
    except UsageError as error:
        return (), [fault(str(error))]
    if not experts:
        return (), []
    return experts, [ok(f"{len(experts)} layers, {experts[0].chosen} of {experts[0].experts} experts a token")]


def _parity(
    plan: Blueprint, policy: Policy, experts: Sequence[Router], chat: Chat, samples: Sequence[Sample]
) -> Remark:
    """Whether engine and learner give one log-probability for each sampled token."""
    tokens = min(PARITY_TOKENS, plan.sampling.max_new_tokens)
    asked = [Prompt(sample, chat.encode(sample)) for sample in samples]
    asked = [prompt for prompt in asked if len(prompt.tokens) + tokens <= policy.positions][:PARITY_PROMPTS]
    if not asked:
        return note("learner = engine: not measured (no prompt leaves room for an answer)")
    try:
        check = measured(plan, policy, experts, asked, tokens)
    except GroupwiseError as error:
        return fault(str(error))
    count = f"on {len(asked)} prompts x {PARITY_SAMPLES} completions"
    if check.verdict is Verdict.FAIL:
        return fault(f"{check} {count}: {check.cause}")
    return ok(f"{check} {count}") if check.verdict is Verdict.PASS else note(str(check))


def measured(plan: Blueprint, policy: Policy, experts: Sequence[Router], asked: Sequence[Prompt], tokens: int) -> Check:
    """The check of every training step, on one batch under the weights as they are, with the run's own replay."""
    routing = plan.routing if experts else RoutingSettings()
    engine = LocalEngine(policy.model, eos=policy.eos, pad=policy.pad, max_rows=plan.max_rows, routes=bool(experts))
    demand_engine(engine, routing)
    told = (plan.sampling.temperature, plan.total_updates, routing, experts)
    learner = Learner(policy.model, None, plan.learner, *told)
    seeds = [derive(plan.seed, "check", i) for i in range(len(asked))]
    requests = [Request(p.tokens, PARITY_SAMPLES, seed, tokens) for p, seed in zip(asked, seeds, strict=True)]
    answers = engine.generate(requests, plan.sampling)
    batch = collate([Group(p, _scored(done)) for p, done in zip(asked, answers, strict=True)], policy.pad)
    batch = learner.annotate(batch, old=True, ref=False)
    sampled = dataclasses.replace(batch, mask=comparable(batch.mask, batch.routes, batch.routes_engine))
    return learner_equals_engine(batch.need("logp_old"), sampled, engine.version, plan.learner.bf16)


def _scored(completions: Sequence[Any]) -> tuple[Any, ...]:
    """With a score, for a completion without one does not train."""
    return tuple(dataclasses.replace(c, score=0.0) for c in completions)


def _generation(folder: Path) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError):  # many models have none
        return None
