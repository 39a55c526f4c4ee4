"""Changes of keys when a run is resumed: each key says where it is declared that it may change, or why not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import tomli_w

from groupwise.config.recipe import Recipe, is_section, section_type
from groupwise.core.errors import UsageError, shortened
from groupwise.core.settings import Fixed, MayChange

#: Of a key that no declaration speaks of.
UNSAID = "the run depends on it from its first step"
#: The value of a key that a recipe does not have.
UNSET = "unset"


@dataclass(frozen=True)
class Change:
    """A key of a recipe with its value before and after, as TOML; UNSET where there is none."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key} {shortened(self.before, 80)} -> {shortened(self.after, 80)}"

    @property
    def setting(self) -> str:
        """Option of a command line that makes the change."""
        return f"--set {quote(f'{self.key}={self.after}')}"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """List the keys in which two recipes' tables differ, in the order of the second.

    >>> differences({"steps": 4, "learner": {"clip_norm": 1.0}}, {"steps": 8, "learner": {"clip_norm": 1.0}})
    (Change(key='steps', before='4', after='8'),)
    """
    old, new = dict(_values(before)), dict(_values(after))
    keys = dict.fromkeys([*new, *old])
    return tuple(Change(k, _toml(old.get(k)), _toml(new.get(k))) for k in keys if old.get(k) != new.get(k))


def require_changeable(changes: tuple[Change, ...], run: Path) -> None:
    """Raise UsageError for the first key that may not change: the reason, what may, and what to do instead."""
    for change in changes:
        if reason := fixed_because(change.key):
            place = quote(str(run))
            raise UsageError(
                f"{change}: cannot change in a run that goes on: {reason}. What may: {changeable_in_words()}. "
                f"For another {change.key} begin a run with this one's weights: "
                f"groupwise train {quote(str(run / 'recipe.toml'))} --set start={place} {change.setting}"
            )


def fixed_because(key: str) -> str:
    """Say why a key of a recipe stays as it is in a run that is resumed; "" if it may change.

    >>> fixed_because("learner.learning_rate"), fixed_because("runs")
    ('', 'the run is its folder: rename or move that')
    """
    section, reason = Recipe, UNSAID
    for part in key.split("."):
        field = section.model_fields.get(part) if is_section(section) else None
        if field is None:
            break
        if any(isinstance(mark, MayChange) for mark in field.metadata):
            return ""
        reason = next((mark.reason for mark in field.metadata if isinstance(mark, Fixed)), reason)
        section = section_type(field.annotation)
    return reason


def changeable_keys(section: Any = Recipe, prefix: str = "") -> Iterator[str]:
    """List the keys that may change, dotted, in the order of declaration."""
    for name, field in section.model_fields.items():
        inner = section_type(field.annotation)
        if any(isinstance(mark, MayChange) for mark in field.metadata):
            yield prefix + name
        elif is_section(inner):
            yield from changeable_keys(inner, f"{prefix}{name}.")


def changeable_in_words() -> str:
    """Say the keys that may change in one line, by section."""
    sections: dict[str, list[str]] = {}
    for key in changeable_keys():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(name)
    words = {section: ", ".join(names) for section, names in sections.items()}
    return "; ".join(f"{section}: {names}" if section else names for section, names in words.items())


def _values(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """List dotted keys and their values."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    if isinstance(value, list):  # in one line
        return f"[{', '.join(map(_toml, value))}]"
    return UNSET if value is None else tomli_w.dumps({"v": value}).removeprefix("v = ").strip()
