"""The base of settings: a recipe's section is the settings object of the component that reads it."""

from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from groupwise.core.paths import expanded

#: A path that a recipe names, or a word that stands for one.
Location = Annotated[str, Field(min_length=1), AfterValidator(expanded)]


T = TypeVar("T")


@dataclass(frozen=True)
class Fixed:
    """Of a key, or of all keys of a section: why a run that goes on keeps the value it began with."""

    reason: str


class MayChange:
    """Of a key: a run may go on with another value (config/changes.py)."""


#: `rate: Changeable[float] = 0.1`: the type of a key that may change in a run that goes on.
Changeable = Annotated[T, MayChange()]


class Settings(BaseModel):
    """Frozen, and strict: an unknown key is an error, a number is finite, and a value of another type is never
    converted (an integer may stand for a float). `model_fields_set` holds the keys that were given; all others are at
    their defaults.

    Raises pydantic.ValidationError, a ValueError, where a key or a value is wrong.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def replace(self, **changes: Any) -> Self:
        """The same settings with other values for some keys, validated; what was at its default counts as not given."""
        given = {key: getattr(self, key) for key in self.model_fields_set}
        return type(self).model_validate({**given, **changes})
