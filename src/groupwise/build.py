"""From a plan to a run at step 0: the heavy things are loaded here, and what only they can tell is checked."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from groupwise.checks import Probe
from groupwise.config import REWARD_MODEL, SAMPLED_PAIRS, Blueprint
from groupwise.critic import Critic
from groupwise.engines.base import Engine, Request
from groupwise.engines.local import LocalEngine
from groupwise.errors import UsageError
from groupwise.journal import Journal
from groupwise.learner import Learner
from groupwise.loop import Run
from groupwise.models.load import Policy, digest
from groupwise.models.logprobs import CHUNK_ELEMENTS
from groupwise.models.reward import RewardModel, load_reward_model
from groupwise.models.value import POLICY_START, REWARD_START, from_folder, from_policy
from groupwise.preference import REPORT, read_report, reward_model
from groupwise.rollout import Evaluation, Prompts, Rollout, evaluate
from groupwise.seeds import derive
from groupwise.start import starting_policy
from groupwise.state import save_run
from groupwise.view import View
from groupwise.whole import make_whole

#: How many completions the probe after a weight load asks for, and how long they may be.
PROBE_SAMPLES, PROBE_TOKENS = 4, 8


def build(plan: Blueprint, journal: Journal, view: View, stop_asked: Callable[[], bool]) -> Run:
    """Load or make the policy and put the run together, at step 0."""
    policy = starting_policy(
        plan.model,
        plan.task,
        plan.warm,
        plan.seed,
        plan.runs / ".cache",
        plan.device,
        view.warm_start,
    )
    _demand_room(plan, policy)
    reference = copy.deepcopy(policy.model) if plan.algorithm.needs_reference else None
    start = digest(policy.model)
    journal.log(f"starting policy {start}")
    judge = _reward_model(plan, policy, journal, view)
    critic = _critic(plan, policy)
    view.note(memory_estimate(plan, policy, critic))
    engine = LocalEngine(policy.model, eos=policy.eos, pad=policy.pad, max_rows=plan.max_rows)
    learner = Learner(policy.model, reference, plan.learner, plan.sampling.temperature, plan.total_updates)
    prompts = Prompts(plan.task.samples("train"), policy.encode, plan.seed)
    rollout = Rollout(
        engine,
        plan.task,
        prompts,
        policy.decode,
        plan.sampling,
        plan.samples_per_prompt,
        plan.algorithm.filter,
        reads_steps=plan.algorithm.reads_steps,
        judge=None if judge is None else judge.scores,
    )
    return Run(
        folder=plan.folder,
        **{k: getattr(plan, k) for k in ("seed", "steps", "prompts_per_step", "updates_per_batch", "passes_per_batch")},
        evaluate_every=plan.evaluation_every,
        checkpoint_every=plan.checkpoint_every,
        pad=policy.pad,
        start=start,
        bf16=plan.learner.bf16,
        algorithm=plan.algorithm,
        rollout=rollout,
        engine=engine,
        learner=learner,
        probe=make_probe(plan, engine, learner, prompts, policy.pad),
        evaluate=partial(_evaluate, plan, engine, policy),
        save=partial(save_run, policy, plan.checkpoint_keep),
        journal=journal,
        view=view,
        stop_asked=stop_asked,
        critic=critic,
        old_from_engine=plan.old_from_engine,
    )


def _reward_model(plan: Blueprint, policy: Policy, journal: Journal, view: View) -> RewardModel | None:
    """The run's reward model, kept in its folder: a resumed run scores with the very same one."""
    if not plan.preference_source:
        return None
    folder = plan.folder / REWARD_MODEL
    make_whole(folder, partial(_bring_reward_model, plan, policy, view), "the reward model")
    report = read_report(folder / REPORT) if (folder / REPORT).is_file() else None
    for line in report.in_words() if report else ():
        journal.log(line)
        view.note(line)
    judge = load_reward_model(folder, device=plan.device)
    if judge.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise UsageError(
            f"reward model {plan.preference_source!r}: its tokenizer is not the policy's, it would read other words; "
            "take one that shares it"
        )
    return judge


def _bring_reward_model(plan: Blueprint, policy: Policy, view: View, folder: Path) -> None:
    """A copy of the one that the recipe names, or of one made now (or before, the same)."""
    if plan.preference is None:
        origin = Path(plan.preference_source)
        load_reward_model(origin)
    else:
        path = None if plan.preference_source == SAMPLED_PAIRS else Path(plan.preference_source)
        cache = plan.runs / ".cache"
        told = (plan.preference, plan.seed, cache, path, plan.max_rows, view.reward_model)
        origin = reward_model(policy, plan.task, plan.sampling, *told)
    shutil.copytree(origin, folder)


def _critic(plan: Blueprint, policy: Policy) -> Critic | None:
    """The critic of an algorithm that reads values."""
    if plan.critic is None:
        return None
    start = plan.critic.start
    if start == POLICY_START:
        model = from_policy(policy.model)
    else:
        folder = plan.folder / REWARD_MODEL if start == REWARD_START else Path(start)
        model = from_folder(folder, policy.model)
    return Critic(model, plan.critic, plan.steps * plan.updates_per_step)


def memory_estimate(plan: Blueprint, policy: Policy, critic: Critic | None) -> str:
    """What the run will hold at its largest, as far as the shapes say."""
    shape = policy.model.config.get_text_config()
    weights = _bytes(policy.model)
    # Weights, gradient, two moments of AdamW, the engine's copy; the reference.
    copies = 6 if plan.algorithm.needs_reference else 5
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    rows = min(plan.max_rows, plan.prompts_per_step * plan.samples_per_prompt)
    cache = (
        2
        * shape.num_hidden_layers
        * heads
        * size
        * rows
        * (_longest_prompt(plan, policy) + plan.sampling.max_new_tokens)
        * 4
    )
    logits = 4 * 4 * min(CHUNK_ELEMENTS, plan.learner.tokens_per_microbatch * shape.vocab_size)
    parts = {"weights and optimizer": weights * copies, "engine cache": cache, "logits": logits}
    if critic is not None:  # weights, gradient, two moments of AdamW
        parts["critic and optimizer"] = 4 * _bytes(critic.model)
    return "memory       about " + ", ".join(f"{size / 2**20:,.0f} MiB {name}" for name, size in parts.items())


def _bytes(model: nn.Module) -> int:
    """Of a model's weights, float32."""
    return sum(p.numel() for p in model.parameters()) * 4


def make_probe(plan: Blueprint, engine: Engine, learner: Learner, prompts: Prompts, pad: int) -> Probe:
    """The fixed question that engine and learner are both asked after each weight load."""
    prompt = prompts.draw(0)
    request = Request(prompt.tokens, PROBE_SAMPLES, derive(plan.seed, "probe"), PROBE_TOKENS)
    return Probe(engine, partial(learner.completion_logprobs, prompt, pad), request, plan.sampling, plan.learner.bf16)


def _evaluate(plan: Blueprint, engine: Engine, policy: Policy) -> Evaluation:
    problems = plan.task.samples("heldout")[: plan.evaluation_problems]
    return evaluate(
        engine, plan.task, problems, policy.encode, policy.decode, plan.evaluation_samples, plan.evaluation, plan.seed
    )


def _longest_prompt(plan: Blueprint, policy: Policy) -> int:
    """Tokens of the longest prompt, looked for among those with the longest texts."""
    samples = [s for split in ("train", "heldout") for s in plan.task.samples(split)]
    return max(len(policy.encode(s.prompt)) for s in sorted(samples, key=lambda s: len(s.prompt))[-32:])


def _demand_room(plan: Blueprint, policy: Policy) -> None:
    """The longest prompt and a whole completion must fit the model's positions."""
    longest = _longest_prompt(plan, policy)
    if longest + plan.sampling.max_new_tokens > policy.positions:
        raise UsageError(
            f"sampling.max_new_tokens = {plan.sampling.max_new_tokens}: with a prompt of {longest} tokens that is "
            f"beyond the model's {policy.positions} positions; at most {policy.positions - longest}"
        )
