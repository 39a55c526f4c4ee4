"""Plan of a run: a recipe with its parts, the keys that nothing in it reads, what it says of itself, and about.json."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.explain import lines, objective
from groupwise.algorithms.parts.filters import KeepAll
from groupwise.algorithms.settings import describe
from groupwise.config.recipe import Recipe, is_section, section_types
from groupwise.config.rewards import describe_weights
from groupwise.core import VERSION
from groupwise.core.code.user_code import Source
from groupwise.core.engine import Sampling
from groupwise.core.errors import brief, counted, listed
from groupwise.core.machine.facts import commit, where
from groupwise.core.numbers.measure import CORRECTNESS
from groupwise.core.processes.place import Role, in_words, resources_in_words
from groupwise.core.samples import TASK
from groupwise.core.task import Notes, PlaysInProcesses, PlaysTurns, ScoresSteps, Task
from groupwise.diagnostics.checks import WitnessAction
from groupwise.models.scalar_heads import POLICY_START, REWARD_START
from groupwise.rewards.functions.form import TaskScore
from groupwise.rollout.scoring import RewardWeights
from groupwise.rollout.selection import evaluated, heldout_sets
from groupwise.tasks.agent import SessionTask
from groupwise.training.reference import START
from groupwise.training.settings import Guard
from groupwise.training.start.initial_policy import TINY
from groupwise.training.start.reward_model import SAMPLED_PAIRS, PreferenceSettings
from groupwise.training.start.warm_start import TRAINED_RATES

#: Places in the run folder: of the reward model, and of the policies that came from other runs, which go on.
REWARD_MODEL, OWN_START, OWN_REFERENCE, OWN_CRITIC = "reward_model", "start", "reference", "critic_start"


@dataclass(frozen=True)
class Plan:
    """A recipe with its parts; nothing heavy is loaded yet.

    recipe   with nothing left to a default; `critic` is None if the algorithm reads no values
    rewards  those that train
    place    the folder of a run that is resumed, wherever it was moved and whatever it is called
    code     the files of the user's own that the run is made of
    """

    recipe: Recipe
    task: Task
    algorithm: Algorithm
    rewards: RewardWeights
    place: Path | None = None
    code: Sequence[Source] = ()

    @property
    def method(self) -> str:
        """Name of what trains: the algorithm, or supervised rows alone."""
        return "supervised" if self.recipe.supervised_alone else self.algorithm.name

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.place or Path(self.recipe.runs) / self.recipe.name

    @property
    def cache(self) -> Path:
        """Folder of what several runs begin from."""
        return self.folder.parent / ".cache"

    @property
    def copies_reference(self) -> bool:
        """True if the reference is a model of its own, and not the policy without its adapters."""
        recipe = self.recipe
        return self.algorithm.needs_reference and not recipe.reference_is_base and not recipe.reference.address

    @cached_property
    def evaluated(self) -> dict[str, int]:
        """Number of problems of each held-out set that are evaluated, before any is left out as too long.

        Raises UsageError if the task does not hold out as many as the recipe says.
        """
        sets = evaluated(heldout_sets(self.task), self.recipe.evaluation)
        return {name: len(problems) for name, problems in sets.items() if len(problems)}

    @property
    def processes(self) -> dict[Role, int]:
        """Number of the run's other processes that are placed, by what they do."""
        recipe, task = self.recipe, self.task
        plays = isinstance(task, PlaysInProcesses) and task.in_processes
        every = {
            Role.RANK: recipe.learner.ranks - 1,
            Role.ENGINE: recipe.engine.count if recipe.engine.place == "child" else 0,
            Role.POOL: bool(self.slow_rewards) + plays,
        }
        return {role: count for role, count in every.items() if count}

    @property
    def unread(self) -> dict[str, set[str]]:
        """Keys of each section that nothing in this run reads: such keys are refused, and recipe.toml has none."""
        recipe, row = self.recipe, self.algorithm
        every = {name: set(kind.model_fields) for name, kind in section_types().items() if is_section(kind)}
        no_keys: set[str] = set()
        unread = {
            "adapter": no_keys if recipe.adapter.rank else every["adapter"],
            "critic": no_keys if row.advantage.reads_value else every["critic"],
            "engine": recipe.engine.unread,
            "evaluation": recipe.evaluation.unread,
            "mix": no_keys if recipe.mix.model_fields_set else every["mix"],
            "supervised": {"demonstrations"} if recipe.supervised and recipe.supervised.path else no_keys,
            "placement": recipe.placement.unread(set(self.processes)),
            "preference": recipe.preference.unread if recipe.preference else no_keys,
            "reference": recipe.reference.unread if row.needs_reference else every["reference"],
            "rollout": no_keys if isinstance(self.task, SessionTask) else {"gateway"},
            "rollback": no_keys if recipe.guard is Guard.ROLLBACK else every["rollback"],
        }
        if row.needs_reference and recipe.reference_is_base:
            unread["reference"] |= {"precision", "offload"}  # of a copy, and there is none
        return unread

    @property
    def slow_rewards(self) -> dict[str, Any]:
        """Rewards that are scored in processes, by name."""
        slow: dict[str, Any] = {name: reward for name, reward in self.rewards.own.items() if not reward.quick}
        return slow if self.task.quick else {**slow, TASK: TaskScore(self.task)}

    def describe(self) -> str:
        """Say what the run will do, before it does it."""
        return "\n".join((*_policy_lines(self), *_training_lines(self), *_step_lines(self)))


def _policy_lines(plan: Plan) -> Iterator[str]:
    """Say what is trained, on which task, and by which algorithm."""
    recipe, row = plan.recipe, plan.algorithm
    instead = f", in place of {recipe.model} and its warm start" if recipe.start else ""
    yield f"run          {plan.folder}, seed {recipe.seed}, {recipe.device}{_describe_order(recipe)}"
    yield f"policy       {recipe.origin}, {_describe_warm_start(recipe)}{instead}"
    if row.needs_reference:
        model, every = recipe.reference.address or recipe.reference.model, recipe.reference.every
        start = "the policy that the run starts from" if model == START else model
        yield f"reference    {start}" + (f", renewed from the policy every {every} steps" if every else "")
    yield f"task         {plan.task}"
    for note in plan.task.notes() if isinstance(plan.task, Notes) else ():
        yield f"             {note}"
    if rows := recipe.supervised:
        mix = recipe.mix
        names = ("reinforced", *["distilled"] * (not recipe.reference.stays_start), "supervised")
        weights = f"weights: {', '.join(f'{name} {getattr(mix, name):g}' for name in names)}"
        source = rows.path or "the task's demonstrations"
        yield f"supervised   {source}, {rows.rows_per_step} rows a step; {weights}"
    if recipe.supervised_alone:
        return
    yield f"algorithm    {row.name} ({row.paper})"
    for slot, part in row.parts.items():
        yield f"  {slot:<10} {describe(part)}"
    yield f"  {'entropy':<10} {row.entropy_coefficient:g}"
    if row.likelihood_coefficient:
        yield f"  {'likelihood':<10} {row.likelihood_coefficient:g} log pi_live of completions with a score above 0"
    for source in plan.code:
        yield f"own code     {source}"


def _describe_order(recipe: Recipe) -> str:
    """Say if a run that is taken up again has the same bits, where that is a question."""
    if recipe.device == "cpu":
        return "" if recipe.deterministic else ", deterministic in any case"
    if recipe.deterministic:
        return ", deterministic: a run that is taken up again has the same bits"
    return ", not deterministic: a run that is taken up again may round otherwise"


def _training_lines(plan: Plan) -> Iterator[str]:
    """Say how the policy learns and samples, what stands beside it, and what scores."""
    recipe, row, task, learner = plan.recipe, plan.algorithm, plan.task, plan.recipe.learner
    rising = f" after {learner.warmup_updates} updates of warmup" if learner.warmup_updates else ""
    norm = f"gradient norm at most {learner.clip_norm:g}" if learner.clip_norm else "any gradient norm"
    decay = f", weight decay {learner.weight_decay:g}" if learner.weight_decay else ""
    yield f"learning     rate {learner.learning_rate:g}, {learner.schedule}{rising}, {norm}{decay}"
    yield f"sampling     {_describe_sampling(recipe.sampling)}"
    if k := row.trust.sampler_top:
        yield f"             with the {k} most likely ids of each token, which the loss reads: {8 * k} bytes a token"
    if recipe.engine.place != "inside":
        yield f"engine       {recipe.engine}"
    if recipe.placement.ray:
        placed = plan.processes.items()
        actors = (f"{in_words(role, count)} of {resources_in_words(recipe.placement, role)}" for role, count in placed)
        yield f"placement    actors of the Ray {recipe.placement.ray}: {', '.join(actors)}; {recipe.placement.strategy}"
    if recipe.adapter.rank:
        rate, factor = learner.learning_rate, recipe.adapter.rate_factor
        yield f"adapters     {recipe.adapter}, learning rate {factor:g} x {rate:g} = {factor * rate:g}"
    if recipe.routing.changed:
        yield f"routing      {recipe.routing}"
    sides = ("learner", "engine", *["reference"] * plan.copies_reference)
    precisions = (f"{side} {getattr(recipe, side).precision}".replace(" same", " fp32") for side in sides)
    yield f"precision    {', '.join(precisions)}"
    if critic := recipe.critic:
        start = f"from the {critic.start}" if critic.start in (POLICY_START, REWARD_START) else f"from {critic.start}"
        alone = f", {counted(critic.warmup_steps, 'step')} before the policy's first" if critic.warmup_steps else ""
        yield f"critic       {start}, learning rate {critic.learning_rate:g}, clip {critic.clip:g}{alone}"
    scores_steps = isinstance(task, (ScoresSteps, PlaysTurns))
    if recipe.preference:
        yield f"reward model {_describe_preference(recipe.preference)}"
        decided = "             beside it the task's own score decides"
        if not isinstance(row.filter, KeepAll) and row.filter.metric == CORRECTNESS:
            yield f"{decided} which groups train (algorithm.filter)"
        if row.reads_steps and scores_steps:
            yield f"{decided} step rewards (algorithm.shaping)"
    for line in describe_weights(plan.rewards):
        yield f"reward       {line}"
    if row.reads_steps:
        of_turns = "the rewards of the turns" if isinstance(task, PlaysTurns) else "by the task"
        yield f"step scores  {of_turns if scores_steps else 'this task has none: rewards come at the end only'}"


def _step_lines(plan: Plan) -> Iterator[str]:
    """Say what a step is, how many there are, and how the run is evaluated."""
    recipe, row, measure = plan.recipe, plan.algorithm, plan.recipe.measure
    completions = recipe.prompts_per_step * recipe.samples_per_prompt
    if not recipe.supervised_alone:
        yield (
            f"step         {recipe.prompts_per_step} prompts x {recipe.samples_per_prompt} samples = {completions} "
            f"completions of at most {recipe.sampling.max_new_tokens} tokens"
        )
        passes = counted(recipe.passes_per_batch or 0, "pass")
        yield f"             {passes} of {counted(recipe.updates_per_batch, 'update')}"
        for line in _describe_age(recipe, row):
            yield f"age          {line}"
    steps, updates = counted(recipe.steps, "step"), counted(recipe.total_updates, "optimizer update")
    yield f"run length   {steps}, {updates}"
    if not recipe.supervised_alone:
        yield f"witness      {_describe_witness(recipe)}"
    if not plan.evaluated:
        yield "evaluation   none"
        return
    counts = (f"{n} of {name}" if name else f"{n} held-out problems" for name, n in plan.evaluated.items())
    measured = f"measured by the mean of {measure.metric}; with evaluation.pass_at by a pass rate"
    if measure.pass_at is not None:
        name = "the task's score" if measure.metric == CORRECTNESS else measure.metric
        measured = f"correct where {name} is at least {measure.pass_at:g}"
    yield f"evaluation   {', '.join(counts)} x {recipe.evaluation.samples} samples, {measured}"


def _describe_witness(recipe: Recipe) -> str:
    """Say what a second reading of each step does, and what it costs."""
    checks = recipe.checks
    if checks.witness is WitnessAction.OFF:
        return "none: nothing reads a step a second time"
    does = "ends the run" if checks.witness is WitnessAction.STOP else "is a warning"
    return (
        f"each step is read a second time, which takes about a hundredth of it, and what differs {does}; the slow "
        f"reading, in the first two steps and every {checks.witness_every} after them, takes up to a step's time"
    )


def _describe_sampling(sampling: Sampling) -> str:
    """Say the temperature, and all else that is not at its default; the limit stands with the step."""
    others = [key for key in type(sampling).model_fields if key not in ("temperature", "max_new_tokens")]
    chosen = {key: getattr(sampling, key) for key in others if getattr(sampling, key) != getattr(Sampling(), key)}
    return ", ".join([f"temperature {sampling.temperature:g}", *(f"{key} {_in_short(v)}" for key, v in chosen.items())])


def _in_short(value: object) -> str:
    if isinstance(value, Mapping):
        return listed([f"{key}: {one:g}" for key, one in value.items()])
    return listed(map(brief, value)) if isinstance(value, tuple) else f"{value:g}"


def _describe_age(recipe: Recipe, row: Algorithm) -> list[str]:
    """Say what older completions mean for the objective: which policy sampled, and from which the ratios start."""
    settings, from_engine, most = recipe.rollout, recipe.logp_old == "engine", recipe.most_age
    if not most:
        return []
    parts = " and ".join(describe(part) for _, part in row.corrections if part.reads_engine)
    corrected = f"{parts} corrects pi_old / pi_engine"
    uncorrected = "nothing corrects pi_old / pi_engine (algorithm.mismatch.kind would)"
    ahead = "a batch is sampled while the one before trains, by the weights before that (behaviour: logp_engine)"
    turns = (
        f"completions are sampled in turns of {settings.turn_tokens} tokens, one a step; what has not ended goes on "
        "under the next weights (behaviour: logp_engine)"
    )
    if settings.free is not None:
        each = f"turn after turn of {settings.turn_tokens} tokens" if settings.turn_tokens else "batch after batch"
        turns = (
            f"the engine samples {each} while training goes on, under the weights that are there (behaviour: "
            "logp_engine): which these are is up to the clock, so that a resumed run is not the same to the bit"
        )
    return [
        *([ahead] if settings.ahead else []),
        *([turns] if most > settings.ahead else []),
        f"a token is at most {most} version{'s' if most > 1 else ''} older than the weights that train on it",
        'ratios start from logp_engine itself, so that they see how old it is (logp_old = "engine")'
        if from_engine
        else "ratios start from the weights before its first update (proximal: logp_old); "
        + (corrected if row.corrects else uncorrected),
    ]


def _describe_warm_start(recipe: Recipe) -> str:
    warm, adapter = recipe.warm_start, recipe.adapter
    if not warm.steps:
        return "as it is"
    words = f"warm start of {warm.steps} steps"
    if recipe.origin in TINY:
        return words
    rate = (warm.learning_rate or TRAINED_RATES["learning_rate"]) * (adapter.rate_factor if adapter.rank else 1.0)
    muon = f" and Muon at {warm.matrix_learning_rate:g}" if warm.matrix_learning_rate else ""
    return f"{words}: AdamW at {rate:g}{muon}, of {'adapters alone' if adapter.rank else 'every weight'}"


def _describe_preference(settings: PreferenceSettings) -> str:
    if settings.model is not None:
        return f"from {settings.model}"
    if settings.path is not None:
        return f"from the pairs in {settings.path}, {settings.epochs} epochs"
    return f"from {settings.pairs} {SAMPLED_PAIRS}, {settings.noise:.0%} of the labels wrong, {settings.epochs} epochs"


def about(plan: Plan, started: float) -> dict[str, Any]:
    """Make about.json of a run at its start, `started` unix seconds: what recipe.toml does not say."""
    return {
        "groupwise": VERSION,
        "started": round(started, 3),
        **where(plan.recipe.device),
        "algorithm": {"name": plan.method} if plan.recipe.supervised_alone else algorithm_row(plan.algorithm),
        "task": plan.recipe.task.get("name") or type(plan.task).__name__,
        **({"code": [{"path": str(one.path), "sha256": one.sha256} for one in plan.code]} if plan.code else {}),
        **({"commit": name} if (name := commit(Path.cwd())) else {}),
        "resumed": [],
    }


def algorithm_row(row: Algorithm) -> dict[str, Any]:
    """Describe the parts of a row, each with its kind, its values and its equation."""
    parts = [
        {"slot": slot, **_kind_and_value(description), "equation": equation}
        for slot, description, equation in lines(row)
    ]
    return {
        "name": row.name,
        "paper": row.paper,
        "watch": row.watch,
        "objective": objective(row),
        "compares_within_group": row.advantage.compares_within_group,
        "parts": parts,
    }


def _kind_and_value(description: str) -> dict[str, str]:
    """Split a part, as `describe` says it, in two.

    >>> _kind_and_value("clip(epsilon_low=0.2)"), _kind_and_value("k3 in the loss, beta=0.04"), _kind_and_value("0")
    ({'kind': 'clip', 'value': 'epsilon_low=0.2'}, {'kind': 'k3', 'value': 'in the loss, beta=0.04'},
     {'kind': '', 'value': '0'})
    """
    if description[0].isdigit():
        return {"kind": "", "value": description}
    kind, _, value = description.partition("(" if description.endswith(")") else " ")
    return {"kind": kind, "value": value.removesuffix(")") if description.endswith(")") else value}
