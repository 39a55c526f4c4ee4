"""A recipe: what a TOML file may say, section by section. Reading and writing only; nothing is built here."""

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import Field, ValidationError

from groupwise.algorithms.settings import KINDS
from groupwise.config.elsewhere import require_own_names
from groupwise.core.engine import Sampling
from groupwise.core.errors import UsageError, brief, nearest, one_line
from groupwise.core.files.paths import decoded, location, require_regular
from groupwise.core.files.plain import require_plain
from groupwise.core.processes.placement import PlacementSettings
from groupwise.core.settings import Changeable, Fixed, Location, Settings
from groupwise.diagnostics.checks import CheckSettings
from groupwise.engines.settings import EngineSettings
from groupwise.journal.journal import JournalSettings
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.chat.prompts import ChatSettings
from groupwise.models.moe.settings import RoutingSettings
from groupwise.rollout.ahead import RolloutSettings
from groupwise.rollout.collect import EvaluationSettings
from groupwise.rollout.scoring import ScoringSettings
from groupwise.training.checkpoint import CheckpointSettings
from groupwise.training.critic import CriticSettings
from groupwise.training.learner import LearnerSettings
from groupwise.training.reference import ReferenceSettings
from groupwise.training.rollback import Guard, RollbackSettings
from groupwise.training.start.reward_model import PreferenceSettings
from groupwise.training.start.warm_start import WarmStart

#: Bytes of a recipe's file at most, and of what is wrong in one as many things as are said.
LARGEST_FILE, MOST_FAULTS = 1 << 20, 3

#: Why keys stay as they are in a run that goes on.
PLACE = Fixed("the run is its folder: rename or move that")
ORIGIN = Fixed("the run's weights come from there")
DRAWN = Fixed("groups that wait for their step were drawn under it, and all steps before")
GOAL = Fixed("the steps before were trained for another goal, and one run has one")
COMPARED = Fixed("evaluations before and after the change would not compare")
LIMITS = Fixed("the limits of the run's checks are those of this arithmetic")
COUNTED = Fixed("the schedule of the learning rate counts updates by it")


class Recipe(Settings):
    """One run: the settings of each component, declared where they are read.

    `[task]`, `[algorithm]` and `[rewards.NAME]` hold the keys of the task, the catalog's row and the reward of that
    name.

    name                of the run's folder; the recipe's own unless it is set, counted up where that folder exists
    seed                every random number of the run is a function of it
    steps               training steps: each samples, scores and updates
    model               a folder, a hub's id, a tiny policy (tiny-dense, tiny-long, tiny-moe, tiny-chat), or a run (RUN,
                        RUN:STEP)
    start               RUN or RUN:STEP, whose policy this run begins with in place of `model` and its warm start
    device              where models run; "auto" takes CUDA where there is one
    threads             CPU threads; "auto": as torch has them, or as many as other work leaves cores free, one at
                        least. A run keeps the number that it began with, because its bits depend on it
    runs                the folder of run folders
    prompts_per_step    problems of a step
    samples_per_prompt  completions of each problem: its group
    updates_per_batch   optimizer updates of one pass over a step's completions
    passes_per_batch    passes over a batch; without this key as many as the algorithm's row says
    max_prompt_tokens   problems with longer prompts are left out; 0 leaves out none
    prompt_truncation   "left": longer prompts lose their first tokens (but a BOS) instead of being left out
    logp_old            whose log-probabilities the ratio starts from: measured by the learner, or the engine's own
    guard               what an early warning of collapse does, beside being said: "warn": nothing, "stop": the run is
                        saved and stops, "rollback": it goes back to a checkpoint from before, at a lower learning rate
    critic              of an algorithm that reads values; may have no keys where none does
    preference          the reward model that scores what trains; without this section the task's own score does
    """

    name: Annotated[str, PLACE] = Field(min_length=1, pattern=r"^[\w+-][\w.+-]*$")
    seed: Annotated[int, DRAWN] = Field(default=0, ge=0, lt=2**63)
    steps: Changeable[int] = Field(ge=1, le=10**9)
    model: Annotated[Location, ORIGIN] = "tiny-dense"
    start: Annotated[Location | None, ORIGIN] = None
    device: Annotated[Literal["auto", "cpu", "cuda"], LIMITS] = "auto"
    threads: Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=1024)], LIMITS] = "auto"
    runs: Annotated[Location, PLACE] = "runs"
    prompts_per_step: Annotated[int, DRAWN] = Field(default=64, ge=1, le=2**20)
    samples_per_prompt: Annotated[int, DRAWN] = Field(default=8, ge=1, le=2**16)
    updates_per_batch: Annotated[int, COUNTED] = Field(default=1, ge=1)
    passes_per_batch: Annotated[int | None, COUNTED] = Field(default=None, ge=1, le=1000)
    max_prompt_tokens: Annotated[int, DRAWN] = Field(default=0, ge=0)
    prompt_truncation: Annotated[Literal["none", "left"], DRAWN] = "none"
    logp_old: Annotated[Literal["learner", "engine"], GOAL] = "learner"
    guard: Changeable[Guard] = Field(default=Guard.WARN, strict=False)
    task: Annotated[dict[str, Any], DRAWN]
    algorithm: Annotated[dict[str, Any], GOAL]
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

    @classmethod
    def load(cls, recipe: str, overrides: Mapping[str, object] | None = None) -> "Recipe":
        """The recipe of a name or a path, with dotted keys laid over it. Raises UsageError where anything is off."""
        return load(recipe, overrides)


def recipe_folder() -> Path:
    """Where the recipes that come with groupwise lie: inside an installed package, or beside the source tree."""
    packaged = Path(__file__).parents[1] / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "recipes"


def shipped() -> list[str]:
    """The names of the recipes that come with groupwise, those in folders of their own last."""
    every = (p.relative_to(recipe_folder()).with_suffix("").as_posix() for p in recipe_folder().rglob("*.toml"))
    return sorted(every, key=lambda name: ("/" in name, name))


def first_comment(recipe: str) -> str:
    """The first line of the comment that a recipe begins with; "" where it begins with none."""
    first = find(recipe).read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def find(recipe: str) -> Path:
    """A recipe's file, from its name or its path. Raises UsageError listing those that exist."""
    path = location(recipe, "recipe")
    if path.suffix == ".toml" or path.is_file():
        require_regular(path, f"recipe {brief(recipe)}")
        return path
    known = shipped()
    if recipe not in known:
        raise UsageError(f"recipe {brief(recipe)}: there is no such recipe; {nearest(recipe, known)}")
    return recipe_folder() / f"{recipe}.toml"


def load(recipe: str, overrides: Mapping[str, object] | None = None) -> Recipe:
    """The recipe with the overrides (dotted keys) laid over it. Raises UsageError, one line, where anything is off."""
    path = find(recipe)
    table = read_table(path)
    table.setdefault("name", path.stem)
    for key, value in (overrides or {}).items():
        set_key(table, key, value)
    return parse(table, path.name)


def read_table(path: Path) -> dict[str, Any]:
    """The table of a TOML file. Raises UsageError where it cannot be read."""
    require_regular(path, str(path))
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"{path}: longer than {LARGEST_FILE >> 20} MiB; no recipe is")
        return tomllib.loads(decoded(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise UsageError(f"{path}: not a TOML file: {one_line(error)}") from None


def parse(table: Mapping[str, Any], where: str) -> Recipe:
    """A checked recipe from its table. Raises UsageError, one line, where anything is off."""
    for key, value in table.items():
        require_plain(f"{where}: {key}", value)
    require_own_names(table, _known_names(), where)
    try:
        return Recipe.model_validate(dict(table))
    except ValidationError as error:
        faults = [_in_words(e) for e in error.errors()[:MOST_FAULTS]]
        more = [f"and {error.error_count() - MOST_FAULTS} more"] * (error.error_count() > MOST_FAULTS)
        raise UsageError(f"{where}: {'; '.join(faults + more)}") from None


def dump(table: Mapping[str, Any], comment: str = "") -> str:
    """A recipe's table as TOML, with a comment in front; `parse` reads it back equal."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + tomli_w.dumps(table)


def assignment(text: str) -> tuple[str, object]:
    """`key=value` of the command line; the value is TOML, or a bare word taken as text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {brief(text)}: expected key=value, such as --set algorithm.name=dapo")
    value = value.strip()
    try:
        table = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key.strip(), value
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--set {brief(text)}: cannot be read: {one_line(error)}") from None
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        tomllib.loads(f"value = [{value}]")  # a comment after the value would hide the bracket
        if len(table) == 1:
            return key.strip(), table["value"]
    raise UsageError(f"--set {brief(text)}: more than one value; --set takes one key and its value")


def require_overrides(overrides: object) -> None:
    """Raises UsageError where a program lays something else than a dictionary of dotted keys over a recipe."""
    if not isinstance(overrides, Mapping):
        raise UsageError(f'overrides = {brief(overrides)}: give a dictionary of dotted keys, such as {{"steps": 20}}')
    for key in overrides:
        if not isinstance(key, str):
            raise UsageError(f"overrides: the key {brief(key)} is no text")


def set_key(table: dict[str, Any], key: str, value: object) -> None:
    """Put a dotted key's value into nested tables."""
    *sections, last = key.split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UsageError(f"{key}: {section} is a value, not a section")
    table[last] = value


def _known_names() -> dict[str, dict[str, Any]]:
    """The keys of a recipe, and inside of its sections; what tasks, rewards and parts have is judged by them."""
    sections = {name: section_type(field.annotation) for name, field in Recipe.model_fields.items()}
    names = {name: {key: {} for key in getattr(kind, "model_fields", ())} for name, kind in sections.items()}
    return names | {"algorithm": {key: {} for key in ("name", "kl", "entropy_coefficient", *KINDS)}}


def _in_words(error: Any) -> str:
    """One of pydantic's errors as a line that names the key, its value and, for an unknown key, the nearest known."""
    path = [str(part) for part in error["loc"] if part != "[key]"]
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        section: Any = Recipe
        for part in path[:-1]:
            section = section_type(section.model_fields[part].annotation)
        near = _nearest_elsewhere(key, error["input"]) if section is Recipe else []
        return f"{key}: there is no such key; {nearest(path[-1], list(section.model_fields), near)}"
    if error["type"] == "missing":
        return f"{key} is missing"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if error["type"] == "model_type":  # the section is named, not the class that reads it
        message = message.replace(error["ctx"]["class_name"], f"{path[-1].title().replace('_', '')}Section")
    return f"{key} = {brief(error['input'])}: {message}"


def _nearest_elsewhere(unknown: str, table: object) -> list[str]:
    """The key of a section that is nearest to the first key of an unknown table; none where none is near."""
    sections = {name: section_type(field.annotation) for name, field in Recipe.model_fields.items()}
    known = [f"{name}.{key}" for name, kind in sections.items() for key in getattr(kind, "model_fields", ())]
    return get_close_matches(f"{unknown}.{next(iter(table))}", known, n=1) if isinstance(table, dict) and table else []


def section_type(annotation: Any) -> Any:
    """`CriticSettings | None` -> CriticSettings; anything else as it is."""
    return next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)
