"""Plans of recipes with some keys laid over them, and what is read back of them."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from groupwise.config import recipe, recipe_files
from groupwise.config.plan import Plan
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.core.errors import LONGEST_MESSAGE, UsageError


def plan(changes: dict[str, Any] | None = None, name: str = "quickstart") -> Plan:
    return resolve(recipe.load(name, changes or {}))


def read_back(plan: Plan) -> Plan:
    """The plan of the recipe that a run of this one writes."""
    return resolve(recipe.parse(tomllib.loads(recipe_files.dump(resolved_recipe(plan), "a comment")), "again"))


def refusal(changes: dict[str, Any], name: str = "quickstart") -> str:
    """The one line, of bounded length, that refuses a recipe with these changes."""
    with pytest.raises(UsageError) as caught:
        plan(changes, name)
    words = str(caught.value)
    assert "\n" not in words
    assert len(words) <= LONGEST_MESSAGE
    assert caught.value.exit_code == 2
    return words
