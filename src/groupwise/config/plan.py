"""A recipe resolved into settings and parts, and the plan that tells it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.filters import KeepAll
from groupwise.algorithms.settings import describe
from groupwise.config.recipe import Recipe
from groupwise.config.rewards import describe_mix
from groupwise.core.engine import Sampling
from groupwise.core.task import Notes, ScoresSteps, Task
from groupwise.models.chat import ChatSettings
from groupwise.models.moe.settings import RoutingSettings
from groupwise.models.value import POLICY_START, REWARD_START
from groupwise.rollout.scoring import Mix
from groupwise.training.critic import CriticSettings
from groupwise.training.learner import LearnerSettings
from groupwise.training.reward_model import PreferenceSettings
from groupwise.training.warm_start import WarmStart

#: Where a reward model's pairs come from without a file.
SAMPLED_PAIRS = "pairs of the policy's own completions, ranked by the task"
#: The reward model's place in the run folder.
REWARD_MODEL = "reward_model"


@dataclass(frozen=True)
class ScoringSettings:
    """The processes that score beside generation.

    workers      how many; 0 is one for each core
    deadline     seconds that one completion's score may take
    memory       bytes that a process may hold
    fault_limit  the largest share of a step's completions that may go without a score
    """

    workers: int
    deadline: float
    memory: int
    fault_limit: float


@dataclass(frozen=True)
class JournalSettings:
    """What a run writes about itself beside its metrics.

    token_budget  completion tokens a step, whole groups in order, whose columns per token are written; 0 is none
    report        whether a finished run leaves a report
    tracker       where metrics go as well; "none" is nowhere
    """

    token_budget: int
    report: bool
    tracker: str


@dataclass(frozen=True)
class Blueprint:
    """A recipe resolved into settings and parts; nothing heavy is loaded yet."""

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
    task: Task
    algorithm: Algorithm
    warm: WarmStart | None
    sampling: Sampling
    evaluation: Sampling
    evaluation_problems: int
    evaluation_samples: int
    evaluation_every: int
    max_rows: int
    learner: LearnerSettings
    routing: RoutingSettings
    critic: CriticSettings | None
    preference: PreferenceSettings | None
    preference_source: str
    old_from_engine: bool
    max_prompt_tokens: int
    chat: ChatSettings
    mix: Mix
    scoring: ScoringSettings
    checkpoint_every: int
    checkpoint_keep: int
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

    def plan(self) -> str:
        """What the run will do, before it does it."""
        rows = self.prompts_per_step * self.samples_per_prompt
        a = self.algorithm
        lines = [
            f"run          {self.folder}, seed {self.seed}, {self.device}",
            f"policy       {self.model}, {f'warm start of {self.warm.steps} steps' if self.warm else 'as it is'}",
            f"task         {self.task}",
            *(f"             {note}" for note in (self.task.notes() if isinstance(self.task, Notes) else ())),
            f"algorithm    {a.name} ({a.paper})",
            *(f"  {slot:<10} {describe(part)}" for slot, part in a.parts.items()),
            *([f"routing      {self.routing}"] if self.routing.changed else []),
            *([f"critic       {_describe_critic(self.critic)}"] if self.critic else []),
            *([f"reward model {_describe_preference(self)}"] if self.preference_source else []),
            *(f"             beside it the task's own score decides {told}" for told in _leaks(self)),
            *(f"reward       {line}" for line in describe_mix(self.mix)),
            *([f"step scores  {_describe_steps(self.task)}"] if a.reads_steps else []),
            f"step         {self.prompts_per_step} prompts x {self.samples_per_prompt} samples = {rows} completions of "
            f"at most {self.sampling.max_new_tokens} tokens",
            f"             {self.passes_per_batch} pass(es) of {self.updates_per_batch} update(s)",
            f"run length   {self.steps} steps, {self.total_updates} optimizer updates",
            f"evaluation   {self.evaluation_problems} held-out problems x {self.evaluation_samples} samples",
        ]
        return "\n".join(lines)


def _describe_preference(plan: Blueprint) -> str:
    made = plan.preference
    if made is None:
        return f"from {plan.preference_source}"
    if plan.preference_source != SAMPLED_PAIRS:
        return f"from the pairs in {plan.preference_source}, {made.epochs} epochs"
    return f"from {made.pairs} {SAMPLED_PAIRS}, {made.noise:.0%} of the labels wrong, {made.epochs} epochs"


def _leaks(plan: Blueprint) -> list[str]:
    """Where the truth reaches a policy that is said to be trained on a learned score."""
    if not plan.preference_source:
        return []
    steps = plan.algorithm.reads_steps and isinstance(plan.task, ScoresSteps)
    by_correctness = not isinstance(plan.algorithm.filter, KeepAll)
    told = ((by_correctness, "which groups train (algorithm.filter)"), (steps, "step rewards (algorithm.shaping)"))
    return [words for found, words in told if found]


def _describe_steps(task: Task) -> str:
    return "by the task" if isinstance(task, ScoresSteps) else "this task has none: rewards come at the end only"


def _describe_critic(critic: CriticSettings) -> str:
    start = f"from the {critic.start}" if critic.start in (POLICY_START, REWARD_START) else f"from {critic.start}"
    alone = f", {critic.warmup_steps} step(s) before the policy's first" if critic.warmup_steps else ""
    return f"{start}, learning rate {critic.learning_rate:g}, clip {critic.clip:g}{alone}"
