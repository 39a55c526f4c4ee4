"""Settings: strict and frozen, changed only by a copy that is checked again."""

from __future__ import annotations

import pickle
from enum import StrEnum
from typing import Any

import pytest
from pydantic import Field, ValidationError

from groupwise.core.settings import Settings


class Pace(StrEnum):
    SLOW = "slow"
    FAST = "fast"


class Walk(Settings):
    steps: int = Field(default=3, ge=1)
    stride: float = Field(default=0.5, gt=0)
    pace: Pace = Field(default=Pace.SLOW, strict=False)


@pytest.mark.parametrize(
    "wrong", [{"steps": True}, {"steps": 2.0}, {"steps": 0}, {"stride": "1"}, {"pace": "fats"}, {"step": 1}]
)
def test_what_is_not_a_value_of_the_key_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValidationError):
        Walk.model_validate(wrong)
    with pytest.raises(ValidationError):
        Walk().replace(**wrong)


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        Walk().steps = 4  # type: ignore[misc]


def test_a_copy_differs_in_the_changed_keys_and_knows_which_were_given():
    walk = Walk(steps=5)
    other = walk.replace(stride=2, pace="fast")
    assert other == Walk(steps=5, stride=2.0, pace=Pace.FAST)
    assert (walk.model_fields_set, other.model_fields_set) == ({"steps"}, {"steps", "stride", "pace"})
    assert walk == Walk(steps=5)


def test_equal_settings_print_hash_and_pickle_alike():
    given, default = Walk(steps=3), Walk()
    assert repr(given) == repr(default) == "Walk(steps=3, stride=0.5, pace=<Pace.SLOW: 'slow'>)"
    assert given == default
    assert hash(given) == hash(default)
    assert pickle.loads(pickle.dumps(given)) == given
