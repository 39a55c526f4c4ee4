"""The plan of a run: a recipe with its parts, and how it is described before anything runs."""

from dataclasses import dataclass
from pathlib import Path

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.filters import KeepAll
from groupwise.algorithms.settings import describe
from groupwise.config.recipe import Recipe
from groupwise.config.rewards import describe_mix
from groupwise.core.engine import Sampling
from groupwise.core.task import Notes, ScoresSteps, Task
from groupwise.engines.settings import EngineSettings
from groupwise.journal.journal import JournalSettings
from groupwise.models.chat import ChatSettings
from groupwise.models.moe.settings import RoutingSettings
from groupwise.models.value import POLICY_START, REWARD_START
from groupwise.rollout.collect import EvaluationSettings
from groupwise.rollout.scoring import Mix, ScoringSettings
from groupwise.training.checkpoint import CheckpointSettings
from groupwise.training.critic import CriticSettings
from groupwise.training.learner import LearnerSettings
from groupwise.training.reward_model import SAMPLED_PAIRS, PreferenceSettings
from groupwise.training.warm_start import WarmStart

#: The reward model's place in the run folder.
REWARD_MODEL = "reward_model"


@dataclass(frozen=True)
class Plan:
    """A recipe with its parts and its derived values; nothing heavy is loaded yet.

    recipe  as it was given; `config.resolve.resolved_recipe` has what it became
    critic  None where the algorithm reads no values
    mix     the rewards that train
    """

    recipe: Recipe
    name: str
    seed: int
    steps: int
    model: str
    device: str
    runs: Path
    prompts_per_step: int
    samples_per_prompt: int
    updates_per_batch: int
    passes_per_batch: int
    max_prompt_tokens: int
    logp_old: str
    task: Task
    algorithm: Algorithm
    mix: Mix
    scoring: ScoringSettings
    chat: ChatSettings
    warm_start: WarmStart
    sampling: Sampling
    evaluation: EvaluationSettings
    engine: EngineSettings
    learner: LearnerSettings
    routing: RoutingSettings
    critic: CriticSettings | None
    preference: PreferenceSettings | None
    checkpoint: CheckpointSettings
    journal: JournalSettings

    @property
    def folder(self) -> Path:
        return self.runs / self.name

    @property
    def updates_per_step(self) -> int:
        return self.updates_per_batch * self.passes_per_batch

    @property
    def total_updates(self) -> int:
        """The policy's: it waits while the critic learns alone."""
        return (self.steps - (self.critic.warmup_steps if self.critic else 0)) * self.updates_per_step

    @property
    def evaluation_sampling(self) -> Sampling:
        return self.evaluation.sampling(self.sampling.max_new_tokens)

    @property
    def old_from_engine(self) -> bool:
        return self.logp_old == "engine"

    def describe(self) -> str:
        """What the run will do, before it does it."""
        rows = self.prompts_per_step * self.samples_per_prompt
        row = self.algorithm
        warm = self.warm_start.steps
        lines = [
            f"run          {self.folder}, seed {self.seed}, {self.device}",
            f"policy       {self.model}, {f'warm start of {warm} steps' if warm else 'as it is'}",
            f"task         {self.task}",
            *(f"             {note}" for note in (self.task.notes() if isinstance(self.task, Notes) else ())),
            f"algorithm    {row.name} ({row.paper})",
            *(f"  {slot:<10} {describe(part)}" for slot, part in row.parts.items()),
            *([f"routing      {self.routing}"] if self.routing.changed else []),
            *([f"critic       {_describe_critic(self.critic)}"] if self.critic else []),
            *([f"reward model {_describe_preference(self.preference)}"] if self.preference else []),
            *(f"             beside it the task's own score decides {what}" for what in _decided_by_the_task(self)),
            *(f"reward       {line}" for line in describe_mix(self.mix)),
            *([f"step scores  {_describe_steps(self.task)}"] if row.reads_steps else []),
            f"step         {self.prompts_per_step} prompts x {self.samples_per_prompt} samples = {rows} completions of "
            f"at most {self.sampling.max_new_tokens} tokens",
            f"             {self.passes_per_batch} pass(es) of {self.updates_per_batch} update(s)",
            f"run length   {self.steps} steps, {self.total_updates} optimizer updates",
            f"evaluation   {self.evaluation.problems} held-out problems x {self.evaluation.samples} samples",
        ]
        return "\n".join(lines)


def _describe_preference(settings: PreferenceSettings) -> str:
    if settings.model is not None:
        return f"from {settings.model}"
    if settings.path is not None:
        return f"from the pairs in {settings.path}, {settings.epochs} epochs"
    return f"from {settings.pairs} {SAMPLED_PAIRS}, {settings.noise:.0%} of the labels wrong, {settings.epochs} epochs"


def _decided_by_the_task(plan: Plan) -> list[str]:
    """What the task's own score still decides where the policy is said to be trained on a learned one."""
    if plan.preference is None:
        return []
    groups = not isinstance(plan.algorithm.filter, KeepAll)
    steps = plan.algorithm.reads_steps and isinstance(plan.task, ScoresSteps)
    decisions = {"which groups train (algorithm.filter)": groups, "step rewards (algorithm.shaping)": steps}
    return [what for what, decided in decisions.items() if decided]


def _describe_steps(task: Task) -> str:
    return "by the task" if isinstance(task, ScoresSteps) else "this task has none: rewards come at the end only"


def _describe_critic(critic: CriticSettings) -> str:
    start = f"from the {critic.start}" if critic.start in (POLICY_START, REWARD_START) else f"from {critic.start}"
    alone = f", {critic.warmup_steps} step(s) before the policy's first" if critic.warmup_steps else ""
    return f"{start}, learning rate {critic.learning_rate:g}, clip {critic.clip:g}{alone}"
