"""The base of settings: a recipe's section is the settings object of the component that reads it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from groupwise.core.errors import UsageError, brief, nearest
from groupwise.core.files.paths import expanded

#: A path that a recipe names, or a word that stands for one.
Location = Annotated[str, Field(min_length=1), AfterValidator(expanded)]


T = TypeVar("T")


@dataclass(frozen=True)
class Fixed:
    """Reason for which a run that is resumed keeps the value of a key, or of all keys of a section."""

    reason: str


class MayChange:
    """Mark of a key with another value of which a run may be resumed (commands/train/resume.py)."""


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
        """Return the settings with some other values, validated; what was at its default counts as not given."""
        given = {key: getattr(self, key) for key in self.model_fields_set}
        return type(self).model_validate({**given, **changes})


def fields_of(kind: Any, section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a recipe's table gives to the fields of a dataclass, by their annotations.

    Raises UsageError for the first key that is unknown or missing, or whose value is of another type.
    """
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    typed: Any = {name: (hints[name], ... if required(field) else None) for name, field in fields.items()}
    try:
        checked = create_model(kind.__name__, __base__=Settings, **typed).model_validate(dict(table))
    except ValidationError as error:
        raise _refusal(error, kind, section, list(fields)) from None
    return {key: getattr(checked, key) for key in checked.model_fields_set}


def required(field: dataclasses.Field[Any]) -> bool:
    """Return whether a dataclass cannot be made without a value for the field."""
    return field.init and field.default is field.default_factory is dataclasses.MISSING


def _refusal(error: ValidationError, kind: Any, section: str, known: list[str]) -> UsageError:
    first = error.errors()[0]
    key = ".".join(map(str, (section, *first["loc"])))
    if first["type"] == "extra_forbidden":
        return UsageError(f"{key}: {kind.__name__} has no such key; {nearest(str(first['loc'][0]), known)}")
    if first["type"] == "missing":
        return UsageError(f"{key} is missing")
    words = first["msg"].removeprefix("Value error, ")
    return UsageError(f"{key} = {brief(first['input'])}: {words[0].lower()}{words[1:]}")
