"""Base of settings: a recipe's section is the settings object of the component that reads it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from groupwise.core.errors import UsageError, brief, nearest
from groupwise.core.files.paths import expanded

#: A path that a recipe names, or a word that stands for one.
Location = Annotated[str, Field(min_length=1), AfterValidator(expanded)]


T = TypeVar("T")

#: What pydantic's errors begin with, and how a person says it; the first that fits is taken, the last of all the rest.
PLAIN = {
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    "Input should be greater than": "must be more than",
    "Input should be a valid integer": "must be a whole number",
    "Input should be a valid number": "must be a number",
    "Input should be a valid string": "must be text in quotes",
    "Input should be a valid boolean": "must be true or false",
    "Input should be a valid dictionary": "must be a table",
    "Input should be a valid tuple": "must be a list",
    "Input should be a valid list": "must be a list",
    "Input should be": "must be",
}


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

    Raises pydantic.ValidationError, a ValueError, if a key or a value is wrong.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def replace(self, **changes: Any) -> Self:
        """Copy the settings with some other values, validated; what was at its default counts as not given."""
        given = {key: getattr(self, key) for key in self.model_fields_set}
        return type(self).model_validate({**given, **changes})


S = TypeVar("S", bound=Settings)


def fields_of(kind: Any, section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Read the values that a recipe's table gives to the fields of a dataclass, by their annotations.

    Raises UsageError for the first key that is unknown or missing, or whose value is of another type.
    """
    checked = validated(model_of(kind), section, table)
    return {key: getattr(checked, key) for key in checked.model_fields_set}


def model_of(kind: Any, base: type[S] = Settings, name: str = "") -> type[S]:
    """Make settings of `base` and the fields of a dataclass; `name` is what messages call it, its own if none."""
    hints = get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    typed: Any = {field.name: (hints[field.name], ... if required(field) else None) for field in fields}
    return create_model(name or kind.__name__, __base__=base, **typed)


def validated(model: type[S], section: str, table: Mapping[str, Any], known: Sequence[str] = ()) -> S:
    """Check a table's values. Raises UsageError for the first thing that is wrong; `known` are more of its keys."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, (section, *first["loc"])))
        if first["type"] == "extra_forbidden":
            near = nearest(str(first["loc"][0]), [*known, *model.model_fields])
            raise UsageError(f"{key}: {model.__name__} has no such key; {near}") from None
        raise UsageError(fault(first, key)) from None


def fault(error: Any, key: str) -> str:
    """Say one of pydantic's errors: that a key is missing, or its value and what is wrong with that."""
    if error["type"] == "missing":
        return f"{key} is missing"
    words = error["msg"].removeprefix("Value error, ")
    for theirs, plain in PLAIN.items():
        words = words.replace(theirs, plain, 1) if words.startswith(theirs) else words
    return f"{key} = {brief(error['input'])}: {words[0].lower()}{words[1:]}"


def required(field: dataclasses.Field[Any]) -> bool:
    """Tell whether a dataclass cannot be made without a value for the field."""
    return field.init and field.default is field.default_factory is dataclasses.MISSING
