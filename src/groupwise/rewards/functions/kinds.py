"""The one place where a recipe's words under [rewards] become rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from groupwise.core.errors import UsageError, nearest
from groupwise.core.reward import Reward
from groupwise.rewards.functions.form import FORMS
from groupwise.rewards.functions.user import User

KINDS: Mapping[str, Any] = {"user": User, **FORMS}


def reward(name: str, told: Mapping[str, Any]) -> Reward:
    """The reward of a recipe's table [rewards.NAME]: its `kind` (or NAME itself, or a user's own where `use` is set).

    Raises UsageError for a kind or key that does not exist, and for settings that the reward refuses.
    """
    settings = dict(told)
    kind = settings.pop("kind", "user" if "use" in settings else name)
    if kind not in KINDS:
        raise UsageError(f"rewards.{name}.kind = {kind!r}: there is no such reward; {nearest(str(kind), KINDS)}")
    known = [f.name for f in dataclasses.fields(KINDS[kind])]
    for key in settings:
        if key not in known:
            raise UsageError(
                f"rewards.{name}.{key}: {kind} has no such key; {nearest(key, ['kind', 'weight', *known])}"
            )
    try:
        return KINDS[kind](**settings)
    except (TypeError, ValueError) as error:
        raise UsageError(f"rewards.{name}: {error}") from None
