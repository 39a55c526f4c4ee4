"""A recipe from another project's options: each is answered, and what a recipe has for it is written."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from textwrap import wrap
from typing import Any

from groupwise.algorithms.settings import algorithm, as_keys
from groupwise.config.answers import sections
from groupwise.config.bridge import trl, verl
from groupwise.config.bridge.given import Code, Given, trl_table
from groupwise.config.bridge.named_rewards import OWN_FILE
from groupwise.config.bridge.rules import Manual, NotHere, Rule
from groupwise.config.elsewhere import Option, chapters, option_of
from groupwise.config.recipe import Recipe, parse
from groupwise.config.recipe_files import dump, set_key
from groupwise.core.errors import UsageError, shortened
from groupwise.core.files.atomic import whole_file


class AnswerKind(Enum):
    """Outcome of an option; the value is the heading of its list."""

    TRANSLATED = "translated"
    DEFAULT = "default already: a recipe does this without a key"
    MANUAL = "set manually"
    ABSENT = "not here, and why"
    UNKNOWN = "unknown: a name of neither project"


@dataclass(frozen=True)
class OptionAnswer:
    """Answer to one option of the file."""

    name: str
    value: Any
    verdict: AnswerKind
    words: str

    def __str__(self) -> str:
        return f"{self.name} = {written(self.value)}: {self.words}"


@dataclass(frozen=True)
class Imported:
    """Recipe of a file, with an answer for each of its options.

    notes  what a person has to look at before the first run
    """

    given: Given
    table: Mapping[str, Any]
    answers: Sequence[OptionAnswer]
    notes: Sequence[str]

    def text(self) -> str:
        """Write the recipe, with what is not here in comments on top."""
        left = [answer for answer in self.answers if answer.verdict not in (AnswerKind.TRANSLATED, AnswerKind.DEFAULT)]
        said = [*self.notes, *map(str, left)]
        lines = [f"From {self.given.name}, {project(self.given)}."]
        for words in said:
            lines += wrap(f"- {words}", 105, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        return dump(self.table, "\n".join(lines))

    def lines(self) -> list[str]:
        """List the answers by their verdicts, an option a line."""
        lines = [f"{self.given.name}: {project(self.given)}, {len(self.answers)} options"]
        for verdict in AnswerKind:
            some = [answer for answer in self.answers if answer.verdict is verdict]
            if some:
                lines += [f"{verdict.value} ({len(some)})", *(f"  {answer}" for answer in some)]
        return [*lines, *(["look at"] if self.notes else []), *(f"  {note}" for note in self.notes)]


@dataclass(frozen=True)
class Project:
    """Rules and defaults of a project's options.

    in_place  options that are null -> those that are read in their place
    """

    rules: Mapping[str, Rule]
    defaults: Mapping[str, Any]
    written: Sequence[str]
    base: Mapping[str, Any]
    in_place: Mapping[str, str] = field(default_factory=dict)


TRL = Project(trl.RULES, trl.DEFAULTS, trl.WRITTEN, trl.BASE)
_OF_RLOO = [name for name in trl.WRITTEN if name not in ("loss_type", "scale_rewards")]
RLOO = Project(trl.RULES, trl.RLOO_DEFAULTS, _OF_RLOO, trl.RLOO_BASE)
VERL = Project(verl.RULES, verl.DEFAULTS, verl.WRITTEN, verl.BASE, verl.IN_PLACE)

#: Keys whose default is another one's value.
DEPENDENT = ("critic.learning_rate",)
#: What a recipe needs that a file may not have: key, a value to begin with, and what to do.
NEEDED: Mapping[str, tuple[Any, str]] = {
    "steps": (100, "steps = 100 is a guess: epochs times problems / prompts_per_step"),
    "model": ("path/to/model", "no model in the file: set model to a folder or a hub's id"),
    "task.path": ("train.jsonl", "no data in the file: set task.path to a file, a folder or a data set's id"),
}
NO_REWARD = "no reward in the file: rewards.py:reward is a name to begin with; set [rewards.NAME]"
VERL_REWARD = (
    "no reward function in the file: verl chooses one by data_source, here task.check = 'math' compares with the gold "
    "answer; another is set as [rewards.NAME] use = 'file.py:compute_score'"
)
#: Sections of Hydra's own.
HYDRA = ("hydra", "defaults")
LAUNCHER = "an option of the launcher; learner.ranks is how many processes train"
LORA_RATE = (
    "adapter.rate_factor = 1.0: the file's learning rate is LoRA's already, which groupwise would multiply by 10"
)


def project(given: Given) -> str:
    """Name whose options a file has."""
    return "verl's" if given.of_verl else "TRL's RLOO" if given.rloo else "TRL's GRPO"


def written(value: Any) -> str:
    """Return a value as a line shows it."""
    return shortened(str(value) if isinstance(value, Code) else repr(value), 80)


def imported(given: Given) -> Imported:
    """Answer each option of a file, and make a recipe. Raises UsageError if the values make none."""
    known = VERL if given.of_verl else RLOO if given.rloo else TRL
    usable = _usable(given.options, known)
    whole = {**known.defaults, **usable}
    keys: dict[str, Any] = dict(known.base)
    for name in known.written:
        if name not in usable:
            keys |= _of_default(known.rules[name], whole[name], whole)
    own: dict[str, Mapping[str, Any]] = {}
    refused: dict[str, OptionAnswer] = {}
    for name, value in given.options.items():
        rule = known.rules.get(name)
        if rule and name in usable:
            try:
                own[name] = rule(usable[name], whole)
            except (NotHere, Manual) as reason:
                verdict = AnswerKind.MANUAL if isinstance(reason, Manual) else AnswerKind.ABSENT
                refused[name] = OptionAnswer(name, value, verdict, str(reason))
            else:
                keys |= own[name]
    notes = _completed(keys, given, usable)
    table = _table(keys, given.name)
    answers = [
        refused.get(name) or _answer(name, value, own.get(name), table, known, whole)
        for name, value in given.options.items()
    ]
    return Imported(given, table, answers, notes)


def write(recipe: Imported, place: Path) -> None:
    """Write a recipe's file, whole or not at all. Raises UsageError if the disk refuses."""
    try:
        with whole_file(place) as file:
            file.write(recipe.text().encode())
    except OSError as error:
        raise UsageError(f"--out {place}: cannot be written: {error.strerror}") from None


def _usable(options: Mapping[str, Any], known: Project) -> dict[str, Any]:
    """Return the options that have a value, their own or that of the one which is read in their place."""
    usable = {name: value for name, value in options.items() if not isinstance(value, Code) and value is not None}
    null = {name: other for name, other in known.in_place.items() if name in options and options[name] is None}
    return usable | {name: usable.get(other, known.defaults[other]) for name, other in null.items()}


def _of_default(rule: Rule, value: Any, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return rule(value, whole)
    except (NotHere, Manual):
        return {}


def _completed(keys: dict[str, Any], given: Given, usable: Mapping[str, Any]) -> list[str]:
    """Add what a recipe needs and the file does not have; return what a person has to look at."""
    notes = []
    keys.setdefault("algorithm.name", "grpo")
    for key, (value, words) in NEEDED.items():
        if key not in keys:
            keys[key] = value
            notes.append(words)
    rewarded = "task.check" in keys or any(key.startswith("rewards.") for key in keys)
    if not rewarded and not given.of_verl:
        keys["rewards.reward.use"] = "rewards.py:reward"
    if not rewarded:
        notes.append(VERL_REWARD if given.of_verl else NO_REWARD)
    own = [str(value) for value in keys.values() if str(value).startswith(OWN_FILE)]
    if rewarded and own:
        names = ", ".join(name.removeprefix(OWN_FILE) for name in own)
        notes.append(f"move {names} into rewards.py, in the folder that groupwise is started in")
    if keys.get("adapter.rank"):
        notes.append(LORA_RATE)
    return notes


def _table(keys: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Make the recipe's table, without what is the default. Raises UsageError if it is no recipe."""
    settings = {key.removeprefix("algorithm."): value for key, value in keys.items() if key.startswith("algorithm.")}
    name = settings.pop("name")
    usual = defaults(str(keys["task.name"]))
    table: dict[str, Any] = {}
    needed = {*NEEDED, "prompts_per_step", "samples_per_prompt"}
    for key, value in keys.items():
        if not key.startswith("algorithm.") and (key in needed or not same_value(value, usual.get(key, ...))):
            set_key(table, key, value)
    try:
        table["algorithm"] = as_keys(algorithm(str(name), settings))
        parse({"name": "imported", **table}, where)
    except UsageError as error:
        raise UsageError(f"{where}: its values make no recipe: {error}") from None
    return {key: table[key] for key in Recipe.model_fields if key in table}


def defaults(task: str) -> dict[str, Any]:
    """Map each key of a recipe that has a default to it; keys of the task are those that it sets."""
    some = [one for one in sections() if one.name == f"task.{task}" or not one.name.startswith("task")]
    known = {key.name: json.loads(key.default) for one in some for key in one.keys if _has_value(key.default)}
    return {key: value for key, value in known.items() if key not in DEPENDENT}


def _has_value(default: str) -> bool:
    return bool(re.fullmatch(r'".*"|-?[\d.e+-]+|true|false|\[.*\]', default))


def same_value(one: Any, other: Any) -> bool:
    """Check that two values are equal, a truth value being no number."""
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def _answer(
    name: str,
    value: Any,
    keys: Mapping[str, Any] | None,
    table: Mapping[str, Any],
    known: Project,
    whole: Mapping[str, Any],
) -> OptionAnswer:
    option = option_of(name) or _inner(name, known) or option_of(trl_table(name))
    if name.startswith("--"):
        return OptionAnswer(name, value, AnswerKind.ABSENT, LAUNCHER)
    if name.partition(".")[0] in HYDRA or name.endswith("._target_"):
        return OptionAnswer(
            name, value, AnswerKind.ABSENT, "how Hydra puts a configuration together; import what it prints"
        )
    if isinstance(value, Code):
        place = f"; {option}" if option else ""
        return OptionAnswer(name, value, AnswerKind.MANUAL, f"this is no value but code or a variable{place}")
    if keys is not None:
        said = _said(keys, table)
        return OptionAnswer(name, value, AnswerKind.TRANSLATED if said else AnswerKind.DEFAULT, said or _usual(keys))
    if value is None:
        read = known.defaults.get(name)
        made = {} if read is None else _of_default(known.rules[name], read, whole)
        if said := _said(made, table):
            return OptionAnswer(name, value, AnswerKind.MANUAL, f"null; read as its default {written(read)}: {said}")
        return OptionAnswer(name, value, AnswerKind.DEFAULT, "it is not set")
    near = _near(name, known, option)
    if option is None or near:
        return OptionAnswer(name, value, AnswerKind.UNKNOWN, near or "nothing is written for it")
    verdict = AnswerKind.MANUAL if option.here else AnswerKind.ABSENT
    return OptionAnswer(name, value, verdict, option.answer)


def _said(keys: Iterable[str], table: Mapping[str, Any]) -> str:
    """List those of the keys that a recipe has, with their values."""
    return ", ".join(f"{key} = {written(_at(table, key))}" for key in keys if _at(table, key) is not ...)


def _usual(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {written(value)}" for key, value in keys.items()) or "nothing to set"


def _at(table: Mapping[str, Any], key: str) -> Any:
    inner: Any = table
    for part in key.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            return ...
        inner = inner[part]
    return inner


def _inner(name: str, known: Project) -> Option | None:
    """Find the option of a name that stands in a section of the user's own."""
    return option_of(name.rpartition(".")[2]) if known is not VERL else None


def _near(name: str, known: Project, option: Option | None) -> str:
    """Say which option a mistyped one is meant for; "" if it is one, or none is near."""
    if option is not None and not option.name.endswith("*"):
        return ""
    section, _, last = name.rpartition(".")
    exact = {one.name for chapter in chapters() for one in chapter.options if not one.name.endswith("*")} | set(
        known.rules
    )
    beside = [one.rpartition(".")[2] for one in exact if one.rpartition(".")[0] == section]
    near = [one for one in get_close_matches(last, beside, n=1, cutoff=0.85) if one != last]
    return f"did you mean {f'{section}.{near[0]}' if section else near[0]}? nothing is written for it" if near else ""
