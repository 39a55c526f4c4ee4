"""Recipes: what a TOML file may say, section by section, checked; nothing is built here."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError

from groupwise.algorithms.algorithm import COEFFICIENTS
from groupwise.algorithms.settings import KINDS
from groupwise.config.answers import first_ones, require_known
from groupwise.config.recipe_files import find, named_table, set_key
from groupwise.core.errors import UsageError
from groupwise.core.files.plain import require_plain
from groupwise.core.settings import Settings, fault
from groupwise.training.settings import RunSettings


class Recipe(RunSettings):
    """Settings of one run as a program loads them, by the name or the path of a recipe."""

    @classmethod
    def load(cls, recipe: str, overrides: Mapping[str, object] | None = None) -> "Recipe":
        """Load the recipe of a name or a path, with dotted keys laid over it. Raises UsageError if anything is off."""
        return load(recipe, overrides)


def load(recipe: str, overrides: Mapping[str, object] | None = None) -> Recipe:
    """Load a recipe, the overrides (dotted keys) laid over it. Raises UsageError, one line, if anything is off."""
    path = find(recipe)
    table = named_table(path)
    for key, value in (overrides or {}).items():
        set_key(table, key, value)
    return parse(table, path.name)


def parse(table: Mapping[str, Any], where: str) -> Recipe:
    """Check a recipe's table. Raises UsageError, one line, if anything is off."""
    for key, value in table.items():
        require_plain(f"{where}: {key}", value)
    require_known(table, known_keys(), algorithm_keys(), where)
    try:
        loaded = Recipe.model_validate(dict(table))
    except ValidationError as error:
        raise UsageError(f"{where}: {first_ones(list(map(_in_words, error.errors())))}") from None
    missing = [f"{key} is missing" for key in ("task", "algorithm") if key not in loaded.model_fields_set]
    if missing and loaded.supervised is None and loaded.task.get("name") != "chats":
        raise UsageError(f"{where}: {'; '.join(missing)}")
    return loaded


def known_keys() -> dict[str, Any]:
    """Map each key of a recipe to the keys inside it; to an empty table if whoever reads those judges them."""
    return _inside(Recipe)


def algorithm_keys() -> list[str]:
    """List the keys that [algorithm] may hold."""
    return ["name", "kl", *COEFFICIENTS, *KINDS]


def _inside(kind: Any) -> dict[str, Any]:
    sections = {name: section_type(field.annotation) for name, field in kind.model_fields.items()}
    return {name: _inside(inner) if is_section(inner) else {} for name, inner in sections.items()}


def is_section(kind: Any) -> bool:
    """Check that a type is the settings class of a section."""
    return isinstance(kind, type) and issubclass(kind, Settings)


def section_types() -> dict[str, Any]:
    """Map each key of a recipe to the settings class of its section, or to its own type."""
    return {name: section_type(field.annotation) for name, field in Recipe.model_fields.items()}


def _in_words(error: Any) -> str:
    """Say one of pydantic's errors: the key, its value and, for an unknown key, the nearest known."""
    path = [str(part) for part in error["loc"] if part != "[key]"]
    key = ".".join(path)
    said = fault(error, key)
    if error["type"] == "model_type":  # the section is named, not the class that reads it
        said = said.replace(error["ctx"]["class_name"], f"{path[-1].title().replace('_', '')}Section")
    return said


def section_type(annotation: Any) -> Any:
    """Take the class out of `CriticSettings | None`; anything else stays as it is."""
    return next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)
