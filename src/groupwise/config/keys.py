"""Keys of a recipe, from the objects that read them: type, default, bounds as declared, and what docstrings say."""

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from groupwise.algorithms import atlas, explain
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.parts.kl import KL
from groupwise.algorithms.settings import (
    AGAINST,
    DIVERGENCES,
    ESTIMATORS,
    KIND_KEY,
    KINDS,
    PLACES,
    keys_of_parts,
    names_of_parts,
)
from groupwise.config.answers import ANSWERS
from groupwise.config.described import Key, KeySection, page
from groupwise.config.recipe import Recipe, algorithm_keys, is_section, known_keys, section_types
from groupwise.config.rewards import RewardTable
from groupwise.core.settings import Settings
from groupwise.rewards.functions import form
from groupwise.tasks.make import ENVIRONMENTS, PRESETS, kind_of, names

#: The section of the keys that are in none.
TOP = "recipe"
#: Section -> the one whose keys it has too.
_ALIKE = {
    "evaluation": "sampling",
    "critic": "learner",
    "task.environment": "task.data",
    "task.agent": "task.data",
    "algorithm.advantage.gae-decoupled": "algorithm.advantage.gae",
    "algorithm.advantage.td": "algorithm.advantage.gae",
    "algorithm.advantage.monte-carlo": "algorithm.advantage.gae",
    "algorithm.trust.off-policy-mask": "algorithm.trust.clip",
    "algorithm.trust.future-kl": "algorithm.trust.clip",
    "algorithm.trust.binary-kl": "algorithm.trust.total-variation",
    "algorithm.mismatch.sequence-tis": "algorithm.mismatch.tis",
    "algorithm.mismatch.sequence-mis": "algorithm.mismatch.mis",
    "algorithm.rejection.sequence": "algorithm.rejection.token",
    "algorithm.rejection.geometric": "algorithm.mismatch.geometric",
    "algorithm.rejection.veto": "algorithm.mismatch.veto",
}
#: What an algorithm's parts do, by slot.
SLOTS = {
    "shaping": "How scores become rewards.",
    "filter": "Which groups train.",
    "advantage": "How rewards become advantages.",
    "ratio": "What the probability ratio is taken of.",
    "trust": "How far the policy may move from the old one.",
    "mismatch": "How a token weighs if the engine's probability of it is not the learner's.",
    "rejection": "What does not train because those two differ too much.",
    "aggregate": "How tokens are added up to one loss.",
}
#: The default of a key that each algorithm of the catalog sets for itself.
BY_NAME = "set by algorithm.name"
_TYPES = {
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "string": "string",
    "array": "list",
    "object": "table",
    "null": "",
}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def sections() -> list[KeySection]:
    """List a recipe's own keys, its sections, then what tasks, rewards and an algorithm's parts have."""
    nested = {name: kind for name, kind in section_types().items() if is_section(kind)}
    tables = ("task", "algorithm", "rewards")
    own = [key for key in _of_settings(Recipe, "") if key.name not in (*nested, *tables)]
    return [
        KeySection(TOP, "Top-level keys.", tuple(own)),
        *(
            KeySection(name, _title(kind), tuple(_of_settings(kind, f"{name}.")), _ALIKE.get(name, ""))
            for name, kind in nested.items()
        ),
        *_tasks(),
        *_rewards(),
        *_algorithm(),
    ]


def meanings(kind: type) -> dict[str, str]:
    """Map each field to what the docstrings of a class and of those above it say of it.

    >>> from groupwise.core.engine import Sampling
    >>> meanings(Sampling)["top_k"]
    'keep the k most likely tokens; 0: all'
    """
    described: dict[str, str] = {}
    for above in reversed(kind.__mro__):
        names: list[str] = []
        for line in inspect.cleandoc(above.__doc__ or "").splitlines():
            entry = re.match(r"((?:\w+, )*\w+) {2,}(\S.*)", line)
            if entry:
                names = entry[1].split(", ")
                described |= dict.fromkeys(names, entry[2])
            elif line.startswith("   "):
                described |= {name: f"{described[name]} {line.strip()}" for name in names}
            else:
                names = []
    return described


def _of_settings(kind: type[Settings], prefix: str) -> Iterator[Key]:
    schema, described = kind.model_json_schema(), meanings(kind)
    for name, field in kind.model_fields.items():
        default = "" if field.is_required() else _toml(field.default)
        yield _key(prefix + name, schema["properties"][name], default, described.get(name, ""), schema.get("$defs", {}))


def _of_fields(kind: Any, prefix: str) -> Iterator[Key]:
    """List the keys of a dataclass, whose bounds, if it has any, are in their meanings."""
    described, hints = meanings(kind), get_type_hints(kind)
    for field in dataclasses.fields(kind):
        given = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = "" if given is dataclasses.MISSING else _toml(given)
        yield _key(
            prefix + field.name, TypeAdapter(hints[field.name]).json_schema(), default, described.get(field.name, "")
        )


def _tasks() -> Iterator[KeySection]:
    name = _choice("task.name", names(), "", "one of the tasks below, or one that an installed package offers")
    own = _use("task.use", "my_task.py:MyTask", "your own task, instead of `name`; its fields are keys of [task]")
    presets = {**PRESETS, **ENVIRONMENTS}
    yield KeySection("task", "Problems: `name`, or `use`, and the keys of that task.", (name, own))
    for section in (f"task.{name}" for name in names() if name not in presets):
        kind = kind_of(section.removeprefix("task."))
        yield KeySection(section, _title(kind), tuple(_of_fields(kind, "task.")), _ALIKE.get(section, ""))
    for name, keys in presets.items():
        described = meanings(kind_of(name))
        own = (Key(f"task.{key}", "", _toml(value), "", described[key]) for key, value in keys.items())
        base = "environment" if name in ENVIRONMENTS else "data"
        yield KeySection(f"task.{name}", f"task.{base} with other defaults.", tuple(own))


def _rewards() -> Iterator[KeySection]:
    weight = tuple(_of_settings(RewardTable, "rewards.NAME."))
    words = "one of the rewards below; default: NAME, or user if `use` is set"
    kind = _choice("rewards.NAME.kind", form.KINDS, "", words)
    yield KeySection("rewards", "Keys of every table [rewards.NAME].", (*weight, kind))
    for name, reward in form.KINDS.items():
        yield KeySection(f"rewards.{name}", _title(reward), tuple(_of_fields(reward, "rewards.NAME.")))


def _algorithm() -> Iterator[KeySection]:
    bonus = Key("algorithm.entropy_coefficient", "number", BY_NAME, "", "weight of the entropy bonus; 0 is none")
    words = "VAPO's mu, the weight of the log-likelihood of completions with a score above 0; 0 is none"
    likelihood = Key("algorithm.likelihood_coefficient", "number", BY_NAME, "", words)
    name = _choice("algorithm.name", CATALOG, "", "the algorithm, which sets the defaults of all keys below")
    title = "The algorithm: groupwise explain NAME shows its parts and values."
    yield KeySection("algorithm", title, (name, bonus, likelihood))
    for slot, kinds in KINDS.items():
        word = KIND_KEY.get(slot, "kind")
        part = _choice(f"algorithm.{slot}.{word}", kinds, BY_NAME, "the part that does this")
        first = f"algorithm.{next(iter(KINDS))}"
        alike = "" if first == f"algorithm.{slot}" else first
        yield KeySection(f"algorithm.{slot}", SLOTS[slot], (part, _own_part(slot)), alike)
        for name, kind in kinds.items():
            section = f"algorithm.{slot}.{name}"
            if keys := tuple(_of_fields(kind, f"algorithm.{slot}.")):
                yield KeySection(section, _title(kind), keys, _ALIKE.get(section, ""))
    described = meanings(KL)
    yield KeySection(
        "algorithm.kl",
        _title(KL),
        (
            _choice("algorithm.kl.against", AGAINST, BY_NAME, described["against"]),
            Key("algorithm.kl.beta", "number", BY_NAME, "at least 0", described["beta"]),
            _choice("algorithm.kl.estimator", (*ESTIMATORS, *DIVERGENCES), BY_NAME, described["estimator"]),
            _own_part("kl"),
            _choice("algorithm.kl.place", PLACES, BY_NAME, described["place"]),
        ),
    )
    for name, kind in DIVERGENCES.items():
        yield KeySection(f"algorithm.kl.{name}", _title(kind), tuple(_of_fields(kind, "algorithm.kl.")))


def _own_part(slot: str) -> Key:
    words = f"a part of your own, in place of `{KIND_KEY.get(slot, 'kind')}`; its fields are keys beside it"
    return _use(f"algorithm.{slot}.use", "my_parts.py:MyPart", words)


def _use(name: str, example: str, meaning: str) -> Key:
    return Key(name, "string", "", "", f'{meaning}, such as "{example}", or "package.module:Name"')


def _choice(name: str, choices: Iterable[str], default: str, meaning: str) -> Key:
    return Key(name, ", ".join(map(json.dumps, choices)), default, "", meaning)


def _key(name: str, schema: Any, default: str, meaning: str, shared: Mapping[str, Any] | None = None) -> Key:
    forms = [_followed(one, shared or {}) for one in schema.get("anyOf", [schema])]
    kinds = dict.fromkeys(filter(None, map(_kind, forms)))
    return Key(name, " or ".join(kinds), default, ", ".join(filter(None, map(_bounds, forms))), meaning)


def _bounds(form: Any) -> str:
    """Write the bounds of a number.

    >>> _bounds({"minimum": 1, "maximum": 1024}), _bounds({"minimum": 0.0, "exclusiveMaximum": 0.5})
    ('1 to 1,024', '>= 0, < 0.5')
    """
    ends = {sign: f"{form[bound]:,}".removesuffix(".0") for bound, sign in _BOUNDS.items() if bound in form}
    if ends.keys() == {">=", "<="}:
        return " to ".join(ends.values())
    return ", ".join(f"{sign} {end}" for sign, end in ends.items())


def _followed(schema: Any, shared: Mapping[str, Any]) -> Any:
    refers = schema.get("$ref") or next((one["$ref"] for one in schema.get("allOf", ()) if "$ref" in one), "")
    return shared[refers.rpartition("/")[2]] if refers else schema


def _kind(form: Any) -> str:
    choices = form.get("enum", [form["const"]] if "const" in form else [])
    return ", ".join(map(json.dumps, choices)) or _TYPES[form["type"]]


def _toml(value: Any) -> str:
    return "" if value is None else json.dumps(value, default=str)


def _title(kind: type) -> str:
    """Take the first sentence of a docstring."""
    paragraph = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
    return re.split(r"(?<=[.])\s+(?=[A-Z`])", " ".join(paragraph.split()), maxsplit=1)[0]


def write_answers(page_of_keys: Path, page_of_algorithms: Path, page_of_weights: Path) -> None:
    """Write three pages, of keys, algorithms and gradient weights, and what `answers` reads, from the same objects."""
    page_of_keys.write_text(page(sections()), encoding="utf-8")
    page_of_algorithms.write_text(explain.page(), encoding="utf-8")
    page_of_weights.write_text(atlas.page(), encoding="utf-8")
    ANSWERS.write_text(made_answers(), encoding="utf-8")


def made_answers() -> str:
    """Make the content of answers.json."""
    answers = {
        "keys": known_keys(),
        "algorithm_keys": algorithm_keys(),
        "parts": keys_of_parts(),
        "rows": {name: names_of_parts(row) for name, row in CATALOG.items()},
        "algorithms": {name: explain.explain(name) for name in CATALOG},
        "family": explain.family(),
        "sections": [dataclasses.asdict(section) for section in sections()],
    }
    return json.dumps(answers, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    write_answers(*map(Path, sys.argv[1:]))
