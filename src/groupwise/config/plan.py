"""The plan of a run: a recipe with its parts, the keys that nothing in it reads, and its description."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.filters import KeepAll
from groupwise.algorithms.settings import describe
from groupwise.config.recipe import Recipe, is_section, section_types
from groupwise.config.rewards import describe_weights
from groupwise.core.code.user_code import Source
from groupwise.core.engine import Sampling
from groupwise.core.errors import brief, listed
from groupwise.core.numbers.measure import CORRECTNESS, Measure
from groupwise.core.processes.place import Role, in_words, resources_in_words
from groupwise.core.reward import TASK
from groupwise.core.task import Notes, PlaysTurns, ScoresSteps, Task
from groupwise.models.value import POLICY_START, REWARD_START
from groupwise.rewards.functions.form import TaskScore
from groupwise.rollout.scoring import RewardWeights
from groupwise.rollout.selection import evaluated, heldout_sets
from groupwise.tasks.environment.task import EnvironmentTask
from groupwise.training.critic import CriticSettings
from groupwise.training.learner import LearnerSettings
from groupwise.training.reference import START, ReferenceSettings
from groupwise.training.rollback import Guard
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
    def folder(self) -> Path:
        """Folder of the run."""
        return self.place or Path(self.recipe.runs) / self.recipe.name

    @property
    def cache(self) -> Path:
        """Folder of what several runs begin from."""
        return self.folder.parent / ".cache"

    @property
    def copies_reference(self) -> bool:
        """Whether the reference is a model of its own, and not the policy without its adapters."""
        return self.algorithm.needs_reference and not self.recipe.reference_is_base

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
        plays = isinstance(task, EnvironmentTask) and not task.game.quick
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
            "placement": recipe.placement.unread(set(self.processes)),
            "preference": recipe.preference.unread if recipe.preference else no_keys,
            "reference": no_keys if row.needs_reference else every["reference"],
            "rollback": no_keys if recipe.guard is Guard.ROLLBACK else every["rollback"],
        }
        if row.needs_reference and recipe.reference_is_base:
            unread["reference"] = {"precision"}  # of a copy, and there is none
        return unread

    @property
    def slow_rewards(self) -> dict[str, Any]:
        """Rewards that are scored in processes, by name."""
        slow: dict[str, Any] = {name: reward for name, reward in self.rewards.own.items() if not reward.quick}
        return slow if self.task.quick else {**slow, TASK: TaskScore(self.task)}

    def describe(self) -> str:
        """Say what the run will do, before it does it."""
        recipe, row = self.recipe, self.algorithm
        completions = recipe.prompts_per_step * recipe.samples_per_prompt
        instead = f", in place of {recipe.model} and its warm start" if recipe.start else ""
        lines = [
            f"run          {self.folder}, seed {recipe.seed}, {recipe.device}",
            f"policy       {recipe.origin}, {_describe_warm_start(recipe)}{instead}",
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
            *([f"placement    {_describe_placement(recipe, self.processes)}"] if recipe.placement.ray else []),
            *([f"adapters     {_describe_adapters(recipe)}"] if recipe.adapter.rank else []),
            *([f"routing      {recipe.routing}"] if recipe.routing.changed else []),
            f"precision    {_describe_precision(recipe, self.copies_reference)}",
            *([f"critic       {_describe_critic(recipe.critic)}"] if recipe.critic else []),
            *([f"reward model {_describe_preference(recipe.preference)}"] if recipe.preference else []),
            *(
                f"             beside it the task's own score decides {what}"
                for what in (_decided_by_the_task(row, self.task) if recipe.preference else ())
            ),
            *(f"reward       {line}" for line in describe_weights(self.rewards)),
            *([f"step scores  {_describe_steps(self.task)}"] if row.reads_steps else []),
            f"step         {recipe.prompts_per_step} prompts x {recipe.samples_per_prompt} samples = {completions} "
            f"completions of at most {recipe.sampling.max_new_tokens} tokens",
            f"             {recipe.passes_per_batch} pass(es) of {recipe.updates_per_batch} update(s)",
            *(f"age          {line}" for line in _describe_age(recipe, row)),
            f"run length   {recipe.steps} steps, {recipe.total_updates} optimizer updates",
            f"evaluation   {_describe_evaluation(self.evaluated, recipe)}",
        ]
        return "\n".join(lines)


def _describe_placement(recipe: Recipe, processes: Mapping[Role, int]) -> str:
    settings = recipe.placement
    actors = (f"{in_words(role, count)} of {resources_in_words(settings, role)}" for role, count in processes.items())
    return f"actors of the Ray {settings.ray}: {', '.join(actors)}; {settings.strategy}"


def _describe_measure(measure: Measure) -> str:
    if measure.pass_at is None:
        return f"measured by the mean of {measure.metric}; with evaluation.pass_at by a pass rate"
    name = "the task's score" if measure.metric == CORRECTNESS else measure.metric
    return f"passed from {measure.pass_at:g} of {name} on"


def _describe_evaluation(evaluated: Mapping[str, int], recipe: Recipe) -> str:
    if not evaluated:
        return "none"
    counts = ", ".join(
        f"{count} of {name}" if name else f"{count} held-out problems" for name, count in evaluated.items()
    )
    return f"{counts} x {recipe.evaluation.samples} samples, {_describe_measure(recipe.measure)}"


def _describe_precision(recipe: Recipe, copies_reference: bool) -> str:
    precisions = {name: getattr(recipe, name).precision for name in ("learner", "engine", "reference")}
    if not copies_reference:
        del precisions["reference"]
    return ", ".join(f"{name} {'fp32' if one == 'same' else one}" for name, one in precisions.items())


def _describe_reference(settings: ReferenceSettings) -> str:
    start = "the policy that the run starts from" if settings.model == START else settings.model
    return start + (f", renewed from the policy every {settings.every} steps" if settings.every else "")


def _describe_learning(settings: LearnerSettings) -> str:
    rising = f" after {settings.warmup_updates} updates of warmup" if settings.warmup_updates else ""
    norm = f"gradient norm at most {settings.clip_norm:g}" if settings.clip_norm else "any gradient norm"
    decay = f", weight decay {settings.weight_decay:g}" if settings.weight_decay else ""
    return f"rate {settings.learning_rate:g}, {settings.schedule}{rising}, {norm}{decay}"


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


def _describe_adapters(recipe: Recipe) -> str:
    rate, factor = recipe.learner.learning_rate, recipe.adapter.rate_factor
    return f"{recipe.adapter}, learning rate {factor:g} x {rate:g} = {factor * rate:g}"


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


def _decided_by_the_task(row: Algorithm, task: Task) -> list[str]:
    """List what the task's own score still decides if a learned one trains."""
    groups = not isinstance(row.filter, KeepAll) and row.filter.metric == CORRECTNESS
    steps = row.reads_steps and isinstance(task, (ScoresSteps, PlaysTurns))
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
