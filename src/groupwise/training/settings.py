"""Settings of a run: what its recipe may say, key by key, and what follows from the keys alone."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from groupwise.core.engine import Sampling
from groupwise.core.numbers.measure import CORRECTNESS, Measure
from groupwise.core.processes.place import PlacementSettings
from groupwise.core.settings import Changeable, Fixed, Location, Settings
from groupwise.diagnostics.checks import CheckSettings
from groupwise.engines.settings import EngineSettings
from groupwise.journal.settings import JournalSettings
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.chat.prompts import ChatSettings
from groupwise.models.moe.settings import RoutingSettings
from groupwise.models.scalar_heads import POLICY_START
from groupwise.rollout.batches import RolloutSettings
from groupwise.rollout.collect import EvaluationSettings
from groupwise.rollout.scoring import ScoringSettings
from groupwise.training.checkpoint import CheckpointSettings
from groupwise.training.critic import CriticSettings
from groupwise.training.learner_settings import LearnerSettings
from groupwise.training.reference import ReferenceSettings
from groupwise.training.start.reward_model import PreferenceSettings
from groupwise.training.start.warm_start import WarmStart
from groupwise.training.supervised import MixSettings, SupervisedSettings

#: Why keys stay as they are in a run that goes on.
PLACE = Fixed("the run is its folder: rename or move that")
ORIGIN = Fixed("the run's weights come from there")
DRAWN = Fixed("groups that wait for their step were drawn under it, and all steps before")
GOAL = Fixed("the steps before were trained for another goal, and one run has one")
COMPARED = Fixed("evaluations before and after the change would not compare")
LIMITS = Fixed("the limits of the run's checks are those of this arithmetic")
COUNTED = Fixed("the schedule of the learning rate counts updates by it")


def _no_number(device: object) -> object:
    """Raise ValueError for a GPU by its number: which cards a run sees is said before it starts."""
    kind, _, number = str(device).partition(":")
    if kind == "cuda" and number.isdecimal():
        raise ValueError(
            f"set 'cuda', and CUDA_VISIBLE_DEVICES={number} before the command; rank i takes card i of those"
        )
    return device


class Guard(StrEnum):
    """Action of a run when an early warning of collapse begins, beside saying it."""

    WARN = "warn"
    STOP = "stop"
    ROLLBACK = "rollback"


class RollbackSettings(Settings):
    """Rollback after an early warning, with guard = "rollback".

    most         number of rollbacks before the next early warning stops the run
    rate_factor  factor on the policy's learning rate after each rollback
    """

    most: Changeable[int] = Field(default=2, ge=1, le=100)
    rate_factor: Changeable[float] = Field(default=0.3, gt=0, lt=1)


class RunSettings(Settings):
    """Settings of one run: those of each component, declared where they are read.

    `[task]`, `[algorithm]` and `[rewards.NAME]` hold the keys of the task, the catalog's row and the reward of that
    name.

    name                name of the run folder, numbered if it exists; default: the recipe's name
    seed                seed of every random number in the run
    steps               training steps; each samples, scores and updates
    model               model folder, Hugging Face id, run (RUN or RUN:STEP) or tiny policy: tiny-dense, tiny-long,
                        tiny-moe, tiny-moe-twin, tiny-bytes, tiny-chat, small-dense
    start               run (RUN or RUN:STEP) to start from, instead of `model` and its warm start
    device              where models run; "auto": CUDA if there is a GPU
    threads             CPU threads, kept on resume; "auto": torch's default, or fewer if cores are busy
    deterministic       add gradients on a GPU in a fixed order, for bit-identical resumes (always so on a CPU); false:
                        faster
    runs                folder that holds the run folders
    prompts_per_step    problems per step
    samples_per_prompt  completions per problem (the group size)
    updates_per_batch   optimizer updates in one pass over a step's completions
    passes_per_batch    passes over a batch; default: the algorithm's
    max_prompt_tokens   leave out problems with longer prompts; 0: no limit
    prompt_truncation   "left": cut longer prompts from the left (but keep a BOS) instead of leaving them out
    logp_old            source of the ratio's old log-probabilities
    guard               action on an early warning of collapse: warn, stop, or roll back to an earlier checkpoint at a
                        lower learning rate
    supervised          rows to imitate, beside what is sampled or instead of it
    mix                 weights of reinforced, distilled and supervised tokens in one update
    critic              critic, for algorithms that use values
    preference          reward model whose score trains; without this section the task's own score does
    """

    name: Annotated[str, PLACE] = Field(min_length=1, pattern=r"^[\w+-][\w.+-]*$")
    seed: Annotated[int, DRAWN] = Field(default=0, ge=0, lt=2**63)
    steps: Changeable[int] = Field(ge=1, le=10**9)
    model: Annotated[Location, ORIGIN] = "tiny-dense"
    start: Annotated[Location | None, ORIGIN] = None
    device: Annotated[Literal["auto", "cpu", "cuda"], BeforeValidator(_no_number), LIMITS] = "auto"
    threads: Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=1024)], LIMITS] = "auto"
    deterministic: Annotated[bool, LIMITS] = True
    runs: Annotated[Location, PLACE] = "runs"
    prompts_per_step: Annotated[int, DRAWN] = Field(default=64, ge=1, le=2**20)
    samples_per_prompt: Annotated[int, DRAWN] = Field(default=8, ge=1, le=2**16)
    updates_per_batch: Annotated[int, COUNTED] = Field(default=1, ge=1)
    passes_per_batch: Annotated[int | None, COUNTED] = Field(default=None, ge=1, le=1000)
    max_prompt_tokens: Annotated[int, DRAWN] = Field(default=0, ge=0)
    prompt_truncation: Annotated[Literal["none", "left"], DRAWN] = "none"
    logp_old: Annotated[Literal["learner", "engine"], GOAL] = "learner"
    guard: Changeable[Guard] = Field(default=Guard.WARN, strict=False)
    task: Annotated[dict[str, Any], DRAWN] = Field(default_factory=dict)
    algorithm: Annotated[dict[str, Any], GOAL] = Field(default_factory=dict)
    supervised: Annotated[SupervisedSettings | None, DRAWN] = None
    mix: Annotated[MixSettings, GOAL] = MixSettings()
    rewards: Annotated[dict[str, dict[str, Any]] | None, GOAL] = None
    rollout: Annotated[RolloutSettings, DRAWN] = RolloutSettings()
    scoring: Annotated[ScoringSettings, GOAL] = ScoringSettings()
    chat: Annotated[ChatSettings, DRAWN] = ChatSettings()
    warm_start: Annotated[WarmStart, ORIGIN] = WarmStart()
    sampling: Annotated[Sampling, DRAWN] = Sampling()
    evaluation: Annotated[EvaluationSettings, COMPARED] = EvaluationSettings()
    engine: Annotated[EngineSettings, LIMITS] = EngineSettings()
    learner: Annotated[LearnerSettings, LIMITS] = LearnerSettings()
    reference: Annotated[ReferenceSettings, GOAL] = ReferenceSettings()
    adapter: Annotated[AdapterSettings, ORIGIN] = AdapterSettings()
    routing: Annotated[RoutingSettings, GOAL] = RoutingSettings()
    critic: Annotated[CriticSettings | None, ORIGIN] = None
    preference: Annotated[PreferenceSettings | None, GOAL] = None
    checks: CheckSettings = CheckSettings()
    placement: PlacementSettings = PlacementSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    rollback: RollbackSettings = RollbackSettings()
    journal: JournalSettings = JournalSettings()

    @property
    def origin(self) -> str:
        """Source of the first weights: a tiny model's name, a folder, a hub's id, or a run."""
        return self.start or self.model

    @property
    def in_files(self) -> frozenset[str]:
        """Models whose weights stay in files until ranks take their parts, as a plan of memory names them: of a run in
        whose own process nothing needs all of the policy's weights at once.
        """
        if self.learner.ranks == 1 or self.engine.place == "inside" or self.adapter.rank or self.preference:
            return frozenset()
        copied = self.critic is not None and self.critic.start == POLICY_START
        return frozenset(("policy", "reference", *["critic"] * copied))

    @property
    def engine_sleeps(self) -> bool:
        """True if the engine gives its memory back while the learner trains."""
        shared = self.device == "cuda" and self.placement.ray is None
        return self.engine.sleeps(on_gpu=shared, beside=self.rollout.beside)

    @property
    def measure(self) -> Measure:
        """Measure of evaluations, once resolved."""
        return Measure(self.evaluation.metric or CORRECTNESS, self.evaluation.pass_at)

    @property
    def evaluation_sampling(self) -> Sampling:
        """Sampling of evaluations."""
        return self.evaluation.sampling(self.sampling)

    @property
    def most_age(self) -> int:
        """Versions that a sampled token may be older than the weights that train on it."""
        return self.rollout.most_age(self.sampling.max_new_tokens)

    @property
    def supervised_alone(self) -> bool:
        """True if supervised rows alone train, so that nothing is sampled but for evaluations; once resolved."""
        return self.mix.reinforced == 0 and (self.mix.distilled == 0 or self.reference.stays_start)

    @property
    def waiting_steps(self) -> int:
        """Number of first steps in which the critic learns and the policy waits."""
        return self.critic.warmup_steps if self.critic else 0

    @property
    def updates_per_step(self) -> int:
        """Updates of a step, once resolved."""
        return 1 if self.supervised_alone else self.updates_per_batch * (self.passes_per_batch or 1)

    @property
    def total_updates(self) -> int:
        """Updates of the policy in the whole run."""
        return (self.steps - self.waiting_steps) * self.updates_per_step

    @property
    def reference_is_base(self) -> bool:
        """True if a reference, if one is read, is the policy without its adapters, and no copy."""
        return bool(self.adapter.rank) and self.reference.stays_start

    @property
    def old_from_engine(self) -> bool:
        """True if logp_old is the engine's, and not measured by the learner."""
        return self.logp_old == "engine"
