"""The plan of a run: a recipe with its parts, and how it is described before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.filters import KeepAll
from groupwise.algorithms.settings import describe
from groupwise.config.recipe import Recipe
from groupwise.config.rewards import describe_mix
from groupwise.core.code.user_code import Source
from groupwise.core.engine import Sampling
from groupwise.core.errors import brief, listed
from groupwise.core.numbers.measure import CORRECTNESS, Measure
from groupwise.core.processes.place import Role
from groupwise.core.processes.placement import in_words, resources_in_words
from groupwise.core.reward import TASK
from groupwise.core.task import Notes, PlaysTurns, ScoresSteps, Task
from groupwise.models.value import POLICY_START, REWARD_START
from groupwise.rewards.functions.user import TaskScore
from groupwise.rollout.scoring import Mix
from groupwise.rollout.selection import evaluated, heldout_sets
from groupwise.tasks.environment.task import EnvironmentTask
from groupwise.training.critic import CriticSettings
from groupwise.training.learner import LearnerSettings
from groupwise.training.reference import START, ReferenceSettings
from groupwise.training.start.initial_policy import TINY
from groupwise.training.start.reward_model import SAMPLED_PAIRS, PreferenceSettings
from groupwise.training.start.warm_start import TRAINED_RATES, WarmStart

#: Places in the run folder: of the reward model, and of the policies that came from other runs, which go on.
REWARD_MODEL, OWN_START, OWN_REFERENCE, OWN_CRITIC = "reward_model", "start", "reference", "critic_start"


@dataclass(frozen=True)
class Plan:
    """A recipe with its parts; nothing heavy is loaded yet.

    recipe  with nothing left to a default; `critic` is None where the algorithm reads no values
    mix     the rewards that train
    place   of a run that is gone on with: its folder, wherever it was moved and whatever it is called
    code    the files of the user's own that it is made of
    """

    recipe: Recipe
    task: Task
    algorithm: Algorithm
    mix: Mix
    place: Path | None = None
    code: Sequence[Source] = ()

    @property
    def folder(self) -> Path:
        return self.place or Path(self.recipe.runs) / self.recipe.name

    @property
    def cache(self) -> Path:
        """Where what several runs begin from is kept."""
        return self.folder.parent / ".cache"

    @property
    def origin(self) -> str:
        """What the policy is begun with: a tiny model's name, a folder, a hub's id, or a run."""
        return self.recipe.start or self.recipe.model

    @property
    def warm_start(self) -> WarmStart:
        """Of the policy that is begun with; none of a run's."""
        return WarmStart() if self.recipe.start else self.recipe.warm_start

    @property
    def copies_reference(self) -> bool:
        """Whether the reference is a model of its own, and not the policy without its adapters."""
        own = self.recipe.adapter.rank and self.recipe.reference.stays_start
        return self.algorithm.needs_reference and not own

    @property
    def measure(self) -> Measure:
        """What evaluations, and the words of the run, go by."""
        settings = self.recipe.evaluation
        return Measure(settings.metric or CORRECTNESS, settings.pass_at)

    @property
    def passes_per_batch(self) -> int:
        return self.recipe.passes_per_batch or self.algorithm.passes

    @property
    def updates_per_step(self) -> int:
        return self.recipe.updates_per_batch * self.passes_per_batch

    @property
    def waiting_steps(self) -> int:
        """The first steps, in which the critic learns and the policy waits."""
        return self.recipe.critic.warmup_steps if self.recipe.critic else 0

    @cached_property
    def evaluated(self) -> dict[str, int]:
        """How many problems of each held-out set are evaluated, before any is left out as too long; empty for none.

        Raises UsageError where the task does not hold out as many as the recipe says.
        """
        sets = evaluated(heldout_sets(self.task), self.recipe.evaluation)
        return {name: len(problems) for name, problems in sets.items() if len(problems)}

    @property
    def total_updates(self) -> int:
        """The policy's."""
        return (self.recipe.steps - self.waiting_steps) * self.updates_per_step

    @property
    def evaluation_sampling(self) -> Sampling:
        return self.recipe.evaluation.sampling(self.recipe.sampling)

    @property
    def most_age(self) -> int:
        """Versions that a sampled token may be older than the weights that train on it."""
        return self.recipe.rollout.most_age(self.recipe.sampling.max_new_tokens)

    @property
    def processes(self) -> dict[Role, int]:
        """How many the run has beside its own that are placed, by what they do."""
        recipe, task = self.recipe, self.task
        plays = isinstance(task, EnvironmentTask) and not task.game.quick
        every = {
            Role.RANK: recipe.learner.ranks - 1,
            Role.ENGINE: recipe.engine.count if recipe.engine.place == "child" else 0,
            Role.POOL: bool(self.slow_rewards) + plays,
        }
        return {role: count for role, count in every.items() if count}

    @property
    def unread_placement(self) -> set[str]:
        """The keys of [placement] that nothing reads."""
        return self.recipe.placement.unread(set(self.processes))

    @property
    def slow_rewards(self) -> dict[str, Any]:
        """What is scored in processes, by name."""
        slow: dict[str, Any] = {name: reward for name, reward in self.mix.own.items() if not reward.quick}
        return slow if self.task.quick else {**slow, TASK: TaskScore(self.task)}

    def describe(self) -> str:
        """What the run will do, before it does it."""
        recipe, row = self.recipe, self.algorithm
        completions = recipe.prompts_per_step * recipe.samples_per_prompt
        instead = f", in place of {recipe.model} and its warm start" if recipe.start else ""
        lines = [
            f"run          {self.folder}, seed {recipe.seed}, {recipe.device}",
            f"policy       {self.origin}, {_describe_warm_start(self)}{instead}",
            *([f"reference    {_describe_reference(recipe.reference)}"] if self.algorithm.needs_reference else []),
            f"task         {self.task}",
            *(f"             {note}" for note in (self.task.notes() if isinstance(self.task, Notes) else ())),
            f"algorithm    {row.name} ({row.paper})",
            *(f"  {slot:<10} {describe(part)}" for slot, part in row.parts.items()),
            f"  {'entropy':<10} {row.entropy_coefficient:g}",
            *(f"own code     {source}" for source in self.code),
            f"learning     {_describe_learning(recipe.learner)}",
            f"sampling     {_describe_sampling(recipe.sampling)}",
            *([f"engine       {recipe.engine}"] if recipe.engine.place != "inside" else []),
            *([f"placement    {_describe_placement(self)}"] if recipe.placement.ray else []),
            *([f"adapters     {_describe_adapters(recipe)}"] if recipe.adapter.rank else []),
            *([f"routing      {recipe.routing}"] if recipe.routing.changed else []),
            f"precision    {_describe_precision(self)}",
            *([f"critic       {_describe_critic(recipe.critic)}"] if recipe.critic else []),
            *([f"reward model {_describe_preference(recipe.preference)}"] if recipe.preference else []),
            *(f"             beside it the task's own score decides {what}" for what in _decided_by_the_task(self)),
            *(f"reward       {line}" for line in describe_mix(self.mix)),
            *([f"step scores  {_describe_steps(self.task)}"] if row.reads_steps else []),
            f"step         {recipe.prompts_per_step} prompts x {recipe.samples_per_prompt} samples = {completions} "
            f"completions of at most {recipe.sampling.max_new_tokens} tokens",
            f"             {self.passes_per_batch} pass(es) of {recipe.updates_per_batch} update(s)",
            *(f"age          {line}" for line in _describe_age(self)),
            f"run length   {recipe.steps} steps, {self.total_updates} optimizer updates",
            f"evaluation   {_describe_evaluation(self)}",
        ]
        return "\n".join(lines)


def _describe_placement(plan: Plan) -> str:
    settings = plan.recipe.placement
    counts = plan.processes.items()
    actors = (f"{in_words(role, count)} of {resources_in_words(settings, role)}" for role, count in counts)
    return f"actors of the Ray {settings.ray}: {', '.join(actors)}; {settings.strategy}"


def _describe_measure(measure: Measure) -> str:
    if measure.pass_at is None:
        return f"measured by the mean of {measure.metric}; with evaluation.pass_at by a pass rate"
    name = "the task's score" if measure.metric == CORRECTNESS else measure.metric
    return f"passed from {measure.pass_at:g} of {name} on"


def _describe_evaluation(plan: Plan) -> str:
    if not plan.evaluated:
        return "none"
    names = {name: f" of {name}" if name else " held-out problems" for name in plan.evaluated}
    counts = ", ".join(f"{count}{names[name]}" for name, count in plan.evaluated.items())
    return f"{counts} x {plan.recipe.evaluation.samples} samples, {_describe_measure(plan.measure)}"


def _precisions(plan: Plan) -> dict[str, str]:
    """What each holds its weights or computes in; a reference where one is read."""
    recipe = plan.recipe
    known = {"learner": recipe.learner.precision, "engine": recipe.engine.precision}
    return known | ({"reference": recipe.reference.precision} if plan.copies_reference else {})


def _describe_precision(plan: Plan) -> str:
    master = {"same": "fp32"}
    return ", ".join(f"{name} {master.get(precision, precision)}" for name, precision in _precisions(plan).items())


def _describe_reference(settings: ReferenceSettings) -> str:
    start = "the policy that the run starts from" if settings.model == START else settings.model
    return start + (f", renewed from the policy every {settings.every} steps" if settings.every else "")


def _describe_learning(settings: LearnerSettings) -> str:
    rising = f" after {settings.warmup_updates} updates of warmup" if settings.warmup_updates else ""
    norm = f"gradient norm at most {settings.clip_norm:g}" if settings.clip_norm else "any gradient norm"
    decay = f", weight decay {settings.weight_decay:g}" if settings.weight_decay else ""
    return f"rate {settings.learning_rate:g}, {settings.schedule}{rising}, {norm}{decay}"


def _describe_sampling(sampling: Sampling) -> str:
    """The temperature, and all else that is not as it would be without the key; the limit stands with the step."""
    others = [key for key in type(sampling).model_fields if key not in ("temperature", "max_new_tokens")]
    chosen = {key: getattr(sampling, key) for key in others if getattr(sampling, key) != getattr(Sampling(), key)}
    return ", ".join([f"temperature {sampling.temperature:g}", *(f"{key} {_in_short(v)}" for key, v in chosen.items())])


def _in_short(value: object) -> str:
    if isinstance(value, Mapping):
        return listed([f"{key}: {one:g}" for key, one in value.items()])
    return listed(map(brief, value)) if isinstance(value, tuple) else f"{value:g}"


def _describe_age(plan: Plan) -> list[str]:
    """What older completions mean for the objective: which policy sampled, and from which the ratios start."""
    row, from_engine, most = plan.algorithm, plan.recipe.logp_old == "engine", plan.most_age
    if not most:
        return []
    settings = plan.recipe.rollout
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


def _describe_adapters(recipe: Recipe) -> str:
    rate, factor = recipe.learner.learning_rate, recipe.adapter.rate_factor
    return f"{recipe.adapter}, learning rate {factor:g} x {rate:g} = {factor * rate:g}"


def _describe_warm_start(plan: Plan) -> str:
    warm, adapter = plan.warm_start, plan.recipe.adapter
    if not warm.steps:
        return "as it is"
    words = f"warm start of {warm.steps} steps"
    if plan.origin in TINY:
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


def _decided_by_the_task(plan: Plan) -> list[str]:
    """What the task's own score still decides where the policy is said to be trained on a learned one."""
    if plan.recipe.preference is None:
        return []
    row = plan.algorithm
    groups = not isinstance(row.filter, KeepAll) and row.filter.metric == CORRECTNESS
    steps = row.reads_steps and isinstance(plan.task, (ScoresSteps, PlaysTurns))
    decisions = {"which groups train (algorithm.filter)": groups, "step rewards (algorithm.shaping)": steps}
    return [what for what, decided in decisions.items() if decided]


def _describe_steps(task: Task) -> str:
    if isinstance(task, PlaysTurns):
        return "the rewards of the turns"
    return "by the task" if isinstance(task, ScoresSteps) else "this task has none: rewards come at the end only"


def _describe_critic(critic: CriticSettings) -> str:
    start = f"from the {critic.start}" if critic.start in (POLICY_START, REWARD_START) else f"from {critic.start}"
    alone = f", {critic.warmup_steps} step(s) before the policy's first" if critic.warmup_steps else ""
    return f"{start}, learning rate {critic.learning_rate:g}, clip {critic.clip:g}{alone}"
