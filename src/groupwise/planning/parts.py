"""Bytes of each part of a run, and the phases in which it is held."""

import dataclasses
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, Self

import torch

from groupwise.engines.local.engine import PREFILL_TOKENS, PREFILL_TOKENS_CPU
from groupwise.models.adapters.lora import with_adapters
from groupwise.models.adapters.settings import AdapterSettings, adapted_weights
from groupwise.models.context import has_states, windows
from groupwise.models.moe.record import routing_modules
from groupwise.models.scalar_heads import tokens_at_once
from groupwise.planning.activations import (
    Computation,
    cached_widths,
    microbatch_bytes,
    state_numbers,
    weight_bytes,
    with_value_head,
)
from groupwise.planning.run_shape import RunShape, extremes, microbatch_rows, microbatch_sizes, scored_sizes
from groupwise.planning.sampling_bytes import DRAWN, cache_bytes, drawing_bytes, slot_bytes
from groupwise.planning.shard_groups import (
    FLOAT32,
    Group,
    GroupedModel,
    UpdateBytes,
    gathered,
    groups_of,
    held_bytes,
    largest_whole,
    trained_part,
    update_bytes,
)
from groupwise.training.critic import CriticSettings
from groupwise.training.learner_settings import LearnerSettings
from groupwise.training.moments import moment_bytes, visiting_bytes
from groupwise.training.optimizer import GIVEN_BACK, OptimizerSettings

#: Bytes of a token in the columns of a batch; of a sampled one in the completions, which Python holds; and what
#: libraries take after a run is planned.
COLUMNS, SAMPLED, LATER = 100, 250, 64 << 20
#: What cuBLAS keeps on a GPU for its products: as core/numbers/reproducible.py says, for each thread that has any: the
#: one that runs forwards and torch's of backwards.
WORKSPACES = 2 * 8 * (4096 << 10)
#: What another process of the run holds of libraries, at most: this one may hold more, of what it did before.
LIBRARIES = 450 << 20
#: Share of an update's activations that the C library keeps, in pieces, if not given back (docs/howto/memory.md).
KEPT = 0.5
#: Share of activations and of what is gathered that it keeps inside an update over ranks; and of a policy of
#: `GIVEN_BACK` bytes or more, whose largest blocks have pages of their own (docs/howto/scale.md).
KEPT_INSIDE, KEPT_INSIDE_LARGE = 1.2, 0.75

STARTING, GENERATING, SCORING, LOADING, SAVING = "starting", "generating", "scoring", "loading weights", "saving"
UPDATING, UPDATING_CRITIC, ANNOTATING = "updating", "updating the critic", "annotating"
#: Every phase of a run, in the order in which a plan tells them.
PHASES = (GENERATING, UPDATING, LOADING, SCORING, ANNOTATING, UPDATING_CRITIC, STARTING, SAVING)
EVERY, NONE = frozenset(PHASES), frozenset[str]()
#: What each engine has; where it shares another rank's GPU, that rank has it too.
OF_AN_ENGINE = ("engine's weights", "engine's cache", "cache between steps", "drawing")
STEP = EVERY - {STARTING}  # the models are in shards
UPDATES = frozenset({UPDATING, UPDATING_CRITIC})


@dataclass(frozen=True)
class Cuts:
    """Cuts of an update.

    learner, critic  tokens of a microbatch
    chunk_logits     logits computed at once
    held_logits      log-probabilities held for the backward pass, at most
    """

    learner: int
    critic: int
    chunk_logits: int
    held_logits: int


@dataclass(frozen=True)
class PlannedRun:
    """A run as its parts depend on it, beside its cuts.

    base       the policy without adapters, as an engine samples from it
    policy     the model that trains: with adapters, if the run has any
    reference  the frozen copy; None if the policy without its adapters is the reference, or none is read
    merged     bytes of the largest weight that adapters are merged into, on its way to the engine, and what is added
    """

    base: Any
    policy: GroupedModel
    reference: GroupedModel | None
    critic: GroupedModel | None
    reward: GroupedModel | None
    merged: int
    shape: RunShape
    learner: LearnerSettings
    critic_settings: CriticSettings | None
    device: str

    @property
    def models(self) -> list[GroupedModel]:
        """The models that are there."""
        return [one for one in (self.policy, self.reference, self.critic, self.reward) if one is not None]

    @property
    def on_cpu(self) -> bool:
        """True if the ranks share one machine's memory."""
        return self.device == "cpu"

    def over(self, ranks: int) -> Self:
        """Replace the number of ranks."""
        return dataclasses.replace(self, shape=dataclasses.replace(self.shape, ranks=ranks))


def planned_run(
    model: Any,
    shape: RunShape,
    learner: LearnerSettings,
    critic: CriticSettings | None,
    adapter: AdapterSettings,
    device: str,
) -> PlannedRun:
    """Derive a run's models from its policy, which is without memory and stays as it is."""
    # Rows of a policy with states share nothing (models/forward/packed_attention.py).
    learner = learner.replace(shared_prefixes=learner.shared_prefixes and not has_states(model.config))

    def grouped(of: Any, bf16: bool = learner.bf16, held: int = FLOAT32) -> GroupedModel:
        return GroupedModel(of, groups_of(of, bf16, held))

    return PlannedRun(
        base=model,
        policy=grouped(with_adapters(model, adapter) if adapter.rank else model),
        reference=grouped(model, held=shape.reference) if shape.reference else None,
        critic=grouped(with_value_head(model)) if critic is not None else None,
        reward=grouped(with_value_head(model, bias=False), bf16=False) if shape.reward_model else None,
        merged=2 * max((weight.numel() for weight in adapted_weights(model, adapter).values()), default=0) * FLOAT32,
        shape=shape,
        learner=learner,
        critic_settings=critic,
        device=device,
    )


def phases_of(run: PlannedRun, rank: int) -> dict[str, tuple[str, ...]]:
    """Map each phase that a run has to the parts that a rank holds in it: rank 0, or 1, which stands for all others."""
    over, table = run.shape.ranks > 1, held_in(run.shape.ahead)
    there = {SCORING: run.reward is not None, UPDATING_CRITIC: run.critic is not None, STARTING: over, SAVING: over}
    there[ANNOTATING] = bool(run.shape.offloaded & {"reference", "critic"})  # else it holds less than an update
    phases = (phase for phase in PHASES if there.get(phase, True))
    shares = rank > 0 and run.shape.engines_of(rank) > 0

    def holds(part: str) -> Set[str]:
        return table[part][0 if shares and part in OF_AN_ENGINE else rank]

    return {phase: tuple(part for part in table if phase in holds(part)) for phase in phases}


def held_in(ahead: bool) -> dict[str, tuple[Set[str], Set[str]]]:
    """Map each part to the phases in which rank 0 holds it, and those in which another rank does.

    `ahead` says whether the next batch is sampled and scored while one trains.
    """
    beside = UPDATES if ahead else NONE
    sampling, scoring = {GENERATING} | beside, {SCORING} | beside
    return {
        "process": (EVERY, EVERY),
        "engine's process": (EVERY, NONE),
        "weights": (STEP, STEP),
        "whole copy": (STEP, NONE),
        "moments": (STEP, STEP),
        "shared weights": (EVERY, NONE),
        "engine's weights": (EVERY, NONE),
        "reference": (STEP, STEP),
        "critic": (STEP, STEP),
        "reward model": (STEP, STEP),
        "batch": (STEP, STEP),
        "freed blocks": (STEP, STEP),
        "engine's cache": (sampling, NONE),
        "held turns": (sampling, NONE),
        "drawing": (sampling, NONE),
        "cache between steps": (STEP - sampling, NONE),
        "gathered to score": (scoring, {SCORING}),
        "scored rows": (scoring, {SCORING}),
        "gradients": ({UPDATING}, {UPDATING}),
        "gathered weights": ({UPDATING}, {UPDATING}),
        "activations": ({UPDATING}, {UPDATING}),
        "critic's gradients": ({UPDATING_CRITIC}, {UPDATING_CRITIC}),
        "critic's gathered weights": ({UPDATING_CRITIC}, {UPDATING_CRITIC}),
        "critic's activations": ({UPDATING_CRITIC}, {UPDATING_CRITIC}),
        "freed inside an update": (UPDATES, UPDATES),
        "critic in use": ({UPDATING_CRITIC}, NONE),
        "reward model in use": (scoring, NONE),
        "model that annotates": ({ANNOTATING}, NONE),
        "annotated rows": ({ANNOTATING}, NONE),
        "merged weights": ({LOADING}, NONE),
        "a gathered weight": ({LOADING}, {LOADING, SAVING}),
        "models at the start": ({STARTING}, {STARTING}),
        "gathered to be saved": ({SAVING}, NONE),
    }


def rank_0_parts(run: PlannedRun, cuts: Cuts, held: int) -> dict[str, int]:
    """Size every part on rank 0, whose process holds so much already."""
    policy, critic, ranks = run.policy, run.critic, run.shape.ranks
    own = policy_update(run, cuts)
    critics = UpdateBytes(0, 0) if critic is None else _update(run, critic, cuts, cuts.critic)
    trained, critic_trained = (trained_part(weights_of(one), ranks) for one in (policy, critic))
    models = {"weights": policy, "reference": run.reference, "critic": critic, "reward model": run.reward}
    dealt = {name: held_bytes(weights_of(one), ranks) for name, one in models.items()}
    stays = {name: 0 if name in run.shape.offloaded else size for name, size in dealt.items()}
    moments, visiting = _moments(run, policy, run.learner)
    critic_moments, critic_visiting = _moments(run, critic, run.critic_settings)
    return {
        "process": held + LATER if run.on_cpu else WORKSPACES,
        **stays,
        "critic": stays["critic"] + critic_moments,
        "critic in use": dealt["critic"] - stays["critic"],
        "reward model in use": dealt["reward model"] - stays["reward model"],
        "model that annotates": max(dealt[name] - stays[name] for name in ("reference", "critic")),
        "annotated rows": int(cuts.learner * own.layer_token) + cuts.chunk_logits * DRAWN,
        "moments": moments,
        **_engine(run, held),
        **engines_on(run, cuts, rank=0),
        **_batch(run),
        **_kept(run, own, critics),
        **_scoring(run, own.layer_token),
        "gradients": trained,
        "gathered weights": own.gathered,
        "activations": max(own.activations, visiting),
        "critic's gradients": critic_trained,
        "critic's gathered weights": critics.gathered,
        "critic's activations": max(critics.activations, critic_visiting),
        "merged weights": run.merged,
        "models at the start": _starting(run) if run.on_cpu else 0,
        "a gathered weight": largest_whole(policy.groups, ranks) if ranks > 1 else 0,
        "gathered to be saved": _gathered_to_save(run) if run.on_cpu else 0,
    }


def other_rank_parts(run: PlannedRun, cuts: Cuts, parts: dict[str, int], held: int) -> dict[str, int]:
    """Size the parts of rank 1 from those of rank 0: columns alone of a batch, and the moments of its own rows."""
    moments, critic_moments = (
        2 * trained_part(weights_of(one), run.shape.ranks, rank=1) for one in (run.policy, run.critic)
    )
    return {
        **parts,
        **engines_on(run, cuts, rank=1),
        "models at the start": _arriving(run.models, run.shape.ranks) if run.on_cpu else 0,
        "process": min(held, LIBRARIES) if run.on_cpu else WORKSPACES,  # what comes later is an engine's
        "batch": parts["columns"],
        "moments": moments,
        "critic": parts["critic"] - 2 * parts["critic's gradients"] + critic_moments,
    }


def _moments(run: PlannedRun, model: GroupedModel | None, settings: OptimizerSettings | None) -> tuple[int, int]:
    """Size a model's moments on rank 0, and what those on the host take while an update has them: not beside a
    microbatch.
    """
    if model is None or settings is None:
        return 0, 0
    if settings.moments == "device":
        return 2 * trained_part(model.groups.every, run.shape.ranks), 0
    return moment_bytes(model.model, settings.moments), visiting_bytes(model.model, settings.moments)


def weights_of(model: GroupedModel | None) -> Group:
    """List the weights of a model; none if there is no such model."""
    return () if model is None else model.groups.every


def policy_update(run: PlannedRun, cuts: Cuts) -> UpdateBytes:
    """Size an update of the policy on rank 0, beside its gradients."""
    learner = run.learner
    return _update(run, run.policy, cuts, cuts.learner, learner.shared_prefixes, learner.recompute)


def _update(
    run: PlannedRun, of: GroupedModel, cuts: Cuts, tokens: int, line: bool = False, recompute: bool = False
) -> UpdateBytes:
    model, ranks = of.model, run.shape.ranks
    how = Computation(line, run.learner.bf16, recompute, cuts.chunk_logits, cuts.held_logits)
    # What is alive is counted on shapes; those of a GPU can be made where torch sees one.
    device = run.device if run.on_cpu or torch.cuda.is_available() else "cpu"
    every = microbatch_rows(run.shape, tokens, line)
    sizes = [microbatch_bytes(model, rows, how, device) for rows in extremes(every, model, how)]
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    several = microbatch_sizes(run.shape, tokens, line).count > ranks
    each = [update_bytes(of.groups, ranks, at, tied, several, copies=run.on_cpu) for at in sizes]
    most = max(each, key=lambda one: one.activations + one.gathered)
    return dataclasses.replace(most, layer_token=sizes[0].layer / every[0].tokens(line))


def _scoring(run: PlannedRun, layer_token: float) -> dict[str, int]:
    if run.reward is None:
        return {"scored rows": 0, "gathered to score": 0}
    ranks, groups = run.shape.ranks, run.reward.groups
    tokens = scored_sizes(run.shape, tokens_at_once(run.device)).largest
    # What lies around the layers, a layer and the next one.
    whole = gathered(groups.outer, ranks) + 2 * gathered(groups.largest, ranks)
    return {"scored rows": int(tokens * layer_token), "gathered to score": whole if ranks > 1 else 0}


def _starting(run: PlannedRun) -> int:
    """Size what rank 0 has at the start: models whole; of those in files its part, and one group of them whole."""
    named = {"policy": run.policy, "reference": run.reference, "critic": run.critic, "reward model": run.reward}
    of_files = frozenset[str]() if routing_modules(run.base) else run.shape.in_files
    unread = [one for name, one in named.items() if one is not None and name in of_files]
    whole = sum(held_bytes(one.groups.every, 1) for one in run.models if one not in unread)
    return whole + _arriving(unread, run.shape.ranks)


def _arriving(models: Sequence[GroupedModel], ranks: int) -> int:
    """Size what a rank has while weights arrive: its part of these models, and one group of them whole."""
    parts = sum(held_bytes(one.groups.every, ranks) for one in models)
    groups = (group for one in models for group in (one.groups.outer, one.groups.largest))
    return parts + max((held_bytes(group, 1) for group in groups), default=0)


def _gathered_to_save(run: PlannedRun) -> int:
    """Size what rank 0 holds to write a checkpoint: the whole policy, or with adapters one weight after another."""
    ranks, groups = run.shape.ranks, run.policy.groups
    if ranks == 1:
        return 0
    return largest_whole(groups, ranks) if run.merged else sum(w.rows * w.row for w in groups.every) * FLOAT32


def _kept(run: PlannedRun, *updates: UpdateBytes) -> dict[str, int]:
    """Size what the C library keeps of what an update frees: behind it, and inside it."""
    over, large = run.shape.ranks > 1, trained_part(run.policy.groups.every, 1) >= GIVEN_BACK
    most = max(one.activations + over * one.gathered for one in updates) if run.on_cpu else 0
    inside = KEPT_INSIDE_LARGE if large else KEPT_INSIDE
    return {
        "freed blocks": 0 if over or large else int(KEPT * most),
        "freed inside an update": int(inside * most) if over else 0,
    }


def _engine(run: PlannedRun, held: int) -> dict[str, int]:
    """Size the copies of the weights for checks and on their way to engines, and the engines' processes."""
    shape, weights = run.shape, weight_bytes(run.base)
    process = shape.engines * (shape.kind.process_bytes or min(held, LIBRARIES))
    return {
        "engine's process": process if run.on_cpu and shape.outside and not shape.elsewhere else 0,
        "shared weights": weights if shape.outside and (run.on_cpu or _read_on_card(shape)) else 0,
        # A policy in shards that is trained in bfloat16 is asked for its float32 answers as a whole one.
        "whole copy": weights if shape.ranks > 1 and run.learner.bf16 and shape.engine == 4 else 0,
    }


def _read_on_card(shape: RunShape) -> bool:
    """Tell if engines in children read the newest weights on the GPU: all are on that of a policy that is whole."""
    return not shape.elsewhere and shape.ranks == 1 and shape.engines_of(0) == shape.engines


def _batch(run: PlannedRun) -> dict[str, int]:
    """Size a batch's columns, which every rank has, and with the completions beside them, which rank 0 has."""
    if not run.on_cpu:
        return {"batch": 0, "columns": 0}
    shape, rows = run.shape, run.shape.prompts * run.shape.samples
    top = 8 * min(shape.engine_top, run.base.config.get_text_config().vocab_size)
    columns = rows * (shape.prompt + shape.completion) * (COLUMNS + 8 * shape.top + top)
    return {"batch": columns + rows * shape.completion * (SAMPLED + 2 * top), "columns": columns}


def engine_parts(run: PlannedRun, cuts: Cuts) -> dict[str, int]:
    """Size what one engine has where it samples: weights, keys and values, and what a step and a pass over prompts
    take; without any if that is another machine.
    """
    shape, config, widths = run.shape, run.base.config, cached_widths(run.base)
    if shape.elsewhere:
        return dict.fromkeys(OF_AN_ENGINE, 0)
    copies = shape.kind.weight_copies if run.on_cpu else 1
    own = {"engine's weights": weight_bytes(run.base) * shape.engine // 4 * copies}
    if shape.kind.cache_bytes is not None:
        taken = shape.kind.cache_bytes(config, shape.max_rows, shape.cache_mib, shape.engine, run.on_cpu)
        return own | {"engine's cache": taken, "cache between steps": taken, "drawing": 0}
    sizes = (shape.prompt, shape.completion, shape.engine)
    if run.on_cpu or has_states(config) or min(windows(config)) < shape.prompt + shape.completion:  # else in slots
        cache = cache_bytes(widths, shape.rows, *sizes, windows=windows(config), states=state_numbers(run.base))
    else:
        cache = slot_bytes(widths, shape.rows, shape.max_rows or shape.rows, shape.samples, *sizes)
    prompts = max(PREFILL_TOKENS_CPU if run.on_cpu else PREFILL_TOKENS, shape.prompt)
    drawing = drawing_bytes(shape.rows, config.get_text_config().vocab_size, shape.truncates, shape.adjusts)
    layer = int(max(prompts, shape.rows) * policy_update(run, cuts).layer_token)
    passing = prompts * sum(widths) * shape.engine + layer
    return own | {"engine's cache": cache.peak, "cache between steps": cache.kept, "drawing": drawing + passing}


def engines_on(run: PlannedRun, cuts: Cuts, rank: int) -> dict[str, int]:
    """Size what the engines on a rank's device have, and between the turns of episodes, which rank 0 holds."""
    shape, widths = run.shape, cached_widths(run.base)
    each = {part: shape.engines_of(rank) * size for part, size in engine_parts(run, cuts).items()}
    held = shape.held * (shape.prompt + shape.completion) * sum(widths) * shape.engine
    holds = rank == 0 and not shape.elsewhere and shape.kind.cache_bytes is None
    return {**each, "held turns": held if holds else 0}
