"""A recipe: what a TOML file may say, checked key by key. Reading and writing only; nothing is built here."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from groupwise.core.errors import UsageError, nearest


class Section(BaseModel):
    """Strict: an unknown key is an error, and a value of another type is never bent into shape."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SamplingSection(Section):
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    max_new_tokens: int = Field(64, ge=1)


class EvaluationSection(Section):
    """Held-out problems, samples of each and how they are drawn; `every` N steps (0: before and after only)."""

    problems: int = Field(512, ge=1)
    samples: int = Field(1, ge=1)
    every: int = Field(0, ge=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)


class WarmStartSection(Section):
    """Imitation of the task's demonstrations before training; 0 steps is none."""

    steps: int = Field(0, ge=0)
    batch_size: int = Field(64, ge=1)
    demonstrations: int = Field(50_000, ge=1)
    matrix_learning_rate: float = Field(1.5e-2, gt=0)
    learning_rate: float = Field(5e-3, gt=0)
    warmup: float = Field(0.05, ge=0, le=1)
    clip: float = Field(1.0, gt=0)
    load_balance: float = Field(0.01, ge=0)


class EngineSection(Section):
    name: Literal["local"] = "local"
    max_rows: int = Field(512, ge=1)


class OptimizerSection(Section):
    """AdamW and what surrounds it, the same for the policy and the critic."""

    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    warmup_updates: int = Field(0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    clip_norm: float = Field(1.0, ge=0)
    tokens_per_microbatch: int = Field(16384, ge=1)


class LearnerSection(OptimizerSection):
    learning_rate: float = Field(1e-6, ge=0)
    precision: Literal["fp32", "bf16"] = "fp32"


class CriticSection(OptimizerSection):
    """The critic of an algorithm that reads values; where none does, nothing here may be set.

    Without a learning_rate it learns at ten times the policy's.
    """

    learning_rate: float | None = Field(None, ge=0)
    clip: float = Field(0.2, ge=0)
    warmup_steps: int = Field(0, ge=0)
    start: str = Field("policy", min_length=1)


class PreferenceSection(Section):
    """A reward model that scores what trains: from pairs (a file's, or sampled and ranked), or a folder's."""

    model: str | None = Field(None, min_length=1)
    path: str | None = Field(None, min_length=1)
    pairs: int = Field(2000, ge=1)
    heldout_pairs: int = Field(500, ge=1)
    noise: float = Field(0.1, ge=0, lt=0.5)
    samples: int = Field(4, ge=2)
    epochs: int = Field(3, ge=1)
    batch_size: int = Field(64, ge=1)
    learning_rate: float = Field(1e-3, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    clip_norm: float = Field(1.0, ge=0)
    center: float = Field(0.01, ge=0)
    tokens_per_microbatch: int = Field(8192, ge=1)


class RoutingSection(Section):
    """The experts of a mixture-of-experts policy: whose are replayed, and the routers' own losses (0 is none)."""

    replay: Literal["none", "learner", "engine"] = "none"
    load_balance: float = Field(0.0, ge=0)
    z_loss: float = Field(0.0, ge=0)


class ScoringSection(Section):
    """How rewards come together, and the processes that score beside generation (0 workers: one a core)."""

    combine: Literal["before", "after"] = "before"
    workers: int = Field(0, ge=0)
    deadline: float = Field(10.0, gt=0)
    memory_mib: int = Field(4096, ge=64)
    fault_limit: float = Field(0.05, ge=0, le=1)


class ChatSection(Section):
    """How a sample becomes the text that a chat model is asked."""

    template: str = Field("auto", min_length=1)
    system: str = ""
    thinking: Literal["", "on", "off"] = ""
    open: str = ""


class CheckpointSection(Section):
    """A checkpoint every N steps (and at the end); the newest `keep` stay."""

    every: int = Field(50, ge=1)
    keep: int = Field(2, ge=1)


class JournalSection(Section):
    """What a run writes about itself beside its metrics; `token_budget` completion tokens a step have columns each."""

    token_budget: int = Field(200_000, ge=0)
    report: bool = True
    tracker: Literal["none", "trackio", "wandb", "tensorboard"] = "none"


class Recipe(Section):
    """One run. `[task]` and `[algorithm]` hold the keys of the task and of the catalog's row named there."""

    name: str = Field(min_length=1, pattern=r"^[\w.+-]+$")
    seed: int = Field(0, ge=0)
    steps: int = Field(ge=1)
    model: str = Field("tiny-dense", min_length=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    runs: str = Field("runs", min_length=1)
    prompts_per_step: int = Field(64, ge=1)
    samples_per_prompt: int = Field(8, ge=1)
    updates_per_batch: int = Field(1, ge=1)
    passes_per_batch: int | None = Field(None, ge=1)
    max_prompt_tokens: int = Field(0, ge=0)
    logp_old: Literal["learner", "engine"] = "learner"
    task: dict[str, Any]
    algorithm: dict[str, Any]
    rewards: dict[str, dict[str, Any]] | None = None
    scoring: ScoringSection = ScoringSection()  # type: ignore[call-arg]
    chat: ChatSection = ChatSection()  # type: ignore[call-arg]
    warm_start: WarmStartSection = WarmStartSection()  # type: ignore[call-arg]
    sampling: SamplingSection = SamplingSection()  # type: ignore[call-arg]
    evaluation: EvaluationSection = EvaluationSection()  # type: ignore[call-arg]
    engine: EngineSection = EngineSection()  # type: ignore[call-arg]
    learner: LearnerSection = LearnerSection()  # type: ignore[call-arg]
    routing: RoutingSection = RoutingSection()  # type: ignore[call-arg]
    critic: CriticSection | None = None
    preference: PreferenceSection | None = None
    checkpoint: CheckpointSection = CheckpointSection()  # type: ignore[call-arg]
    journal: JournalSection = JournalSection()  # type: ignore[call-arg]


def recipe_folder() -> Path:
    """Where the recipes that come with groupwise lie: inside an installed package, or beside the source tree."""
    packaged = Path(__file__).parents[1] / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "recipes"


def find(recipe: str) -> Path:
    """A recipe's file, from its name or its path. Raises UsageError listing those that exist."""
    path = Path(recipe)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise UsageError(f"recipe {recipe!r}: there is no such file")
        return path
    known = sorted(p.relative_to(recipe_folder()).with_suffix("").as_posix() for p in recipe_folder().rglob("*.toml"))
    if recipe not in known:
        raise UsageError(f"recipe {recipe!r}: there is no such recipe; {nearest(recipe, known)}")
    return recipe_folder() / f"{recipe}.toml"


def load(recipe: str, overrides: Mapping[str, object] | None = None) -> Recipe:
    """The recipe with the overrides (dotted keys) laid over it. Raises UsageError, one line, where anything is off."""
    path = find(recipe)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    table.setdefault("name", path.stem)
    for key, value in (overrides or {}).items():
        lay(table, key, value)
    return parse(table, path.name)


def parse(table: Mapping[str, Any], where: str) -> Recipe:
    """A checked recipe from its table."""
    try:
        return Recipe.model_validate(dict(table))
    except ValidationError as error:
        raise UsageError(f"{where}: {'; '.join(_in_words(e) for e in error.errors())}") from None


def dump(recipe: Recipe, comment: str = "") -> str:
    """The recipe as TOML, with a comment in front; `parse` reads it back equal."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + tomli_w.dumps(recipe.model_dump(exclude_none=True))


def assignment(text: str) -> tuple[str, object]:
    """`key=value` of the command line; the value is TOML, or a bare word taken as text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {text!r}: expected key=value, such as --set algorithm.name=dapo")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def lay(table: dict[str, Any], key: str, value: object) -> None:
    """Put a dotted key's value into nested tables."""
    *sections, last = key.split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UsageError(f"{key}: {section} is a value, not a section")
    table[last] = value


def _without_none(annotation: Any) -> Any:
    """`CriticSection | None` -> CriticSection; anything else as it is."""
    return next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)


def _in_words(error: Any) -> str:
    *path, last = [str(part) for part in error["loc"]]
    key = ".".join([*path, last])
    if error["type"] == "extra_forbidden":
        section: Any = Recipe
        for part in path:
            section = _without_none(section.model_fields[part].annotation)
        return f"{key}: there is no such key; {nearest(last, list(section.model_fields))}"
    if error["type"] == "missing":
        return f"{key} is missing"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{key} = {error['input']!r}: {message}"
