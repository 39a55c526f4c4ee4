"""Mutants of recipes: values of every key, keys and sections that do not exist, and the text itself."""

from __future__ import annotations

import copy
import dataclasses
import re
import tomllib
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st

from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.settings import settings
from groupwise.config.recipe import Recipe
from groupwise.core.settings import Settings
from groupwise.rewards.functions.form import FORMS
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.tasks.data.settings import DataSettings
from tests.faults.ground import DATA, RECIPE, Ground, toml
from tests.faults.mutant import NO_FILES, RAW, TEXTS, Mutant, damaged, one, text, too_deep

#: Keys whose value is a path or names a folder.
PATHS = {
    "name", "runs", "model", "start", "reference.model", "chat.template", "critic.start", "preference.model",
    "preference.path", "task.path", "task.heldout",
}  # fmt: skip
#: Keys that decide how long an accepted run takes; `train` gets small values of them, or impossible ones.
COSTS = re.compile(
    r"steps|prompts_per_step|samples_per_prompt|(updates|passes)_per_batch|warm_start\.|preference\.|evaluation\.(problems|samples)"
    r"|scoring\.(workers|deadline)|task\.problems|algorithm\.filter\.max_rounds|engine.max_rows|tokens_per_microbatch"
)
#: What must stand beside a key of a section, so that something reads it.
BESIDE: dict[str, dict[str, Any]] = {
    "critic": {"algorithm": {"name": "ppo"}},
    "warm_start": {"warm_start": {"steps": 1, "demonstrations": 4, "batch_size": 2}},
    "preference": {"preference": {"pairs": 4, "heldout_pairs": 2, "epochs": 1, "samples": 2, "batch_size": 2}},
    "rewards": {
        "rewards": {
            "task": {},
            "r": {"kind": "repetition"},
            "f": {"kind": "format", "pattern": "a*"},
            "t": {"kind": "tags"},
        }
    },
    "data": {"task": DATA, "model": "tiny-bytes", "evaluation": {"problems": 1}},
}
_REWARDS = {"repetition": "r", "format": "f", "tags": "t"}


@cache
def keys() -> dict[str, str]:
    """Every key of a recipe -> whole | number | truth | choice | word or value | word or words | text | path | list |
    table.
    """
    kinds = _settings_keys(Recipe, "")
    for row in CATALOG.values():
        for slot, values in settings(row).items():
            pairs = values.items() if isinstance(values, dict) else [("", values)]
            kinds |= {f"algorithm.{slot}.{key}".rstrip("."): _of_value(value) for key, value in pairs}
    kinds |= {key: "choice" for key in kinds if re.fullmatch(r"algorithm\.\w+\.(kind|level|estimator|place)", key)}
    for prefix, kind in [
        ("task", Arithmetic),
        ("data", DataSettings),
        *((f"rewards.{_REWARDS[n]}", f) for n, f in FORMS.items()),
    ]:
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            default = field.default if field.default is not dataclasses.MISSING else {} if prefix == "data" else ""
            kinds[f"{prefix}.{field.name}"] = _of_value(default)
    kinds |= dict.fromkeys(["rewards.task.weight", "rewards.r.weight"], "number")
    kinds |= dict.fromkeys(["task.name", "algorithm.name", "rewards.r.kind", "data.check"], "choice")
    return kinds | {key: "path" for key in kinds if key.replace("data.", "task.") in PATHS}


def _settings_keys(section: type[Settings], before: str) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for name, field in section.model_fields.items():
        others = [k for k in get_args(field.annotation) if k is not type(None)]
        kind = field.annotation if get_origin(field.annotation) is Literal or not others else others[0]
        if isinstance(kind, type) and issubclass(kind, Settings):
            kinds |= {f"{before}{name}": "table", **_settings_keys(kind, f"{before}{name}.")}
        elif get_origin(kind) is Literal and kind is not field.annotation and len(others) > 1:
            lists = any(get_origin(other) is tuple for other in others)  # such as "wandb", or ["wandb", "mlflow"]
            kinds[before + name] = "word or words" if lists else "word or value"  # such as "auto"
        else:
            kinds[before + name] = _of_type(kind)
    return kinds


def _of_type(kind: Any) -> str:
    if get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return "choice"
    simple = {bool: "truth", int: "whole", float: "number", str: "text"}
    return simple.get(kind) or ("table" if get_origin(kind) is dict or kind is dict else "list")


def _of_value(value: Any) -> str:
    simple = {bool: "truth", int: "whole", float: "number", str: "text", tuple: "list"}
    return simple.get(type(value), "table")


_DATE, _DEEP, _HUGE = "@date", "@deep", ["@digits400", "@digits5000"]
_ENDLESS = ["@nan", "@inf", "@-inf"]
#: Values that are never of a kind.
WRONG: dict[str, list[Any]] = {
    "whole": [1.5, "no", True, [1], {"a": 1}, _DATE, _DEEP, *_HUGE, *_ENDLESS],
    "number": ["no", True, [0.5], {"a": 1}, _DATE, _DEEP, *_HUGE, *_ENDLESS],
    "truth": [0, 1, 1.0, "true", [True], _DATE, "@nan"],
    "choice": [0, True, ["none"], {"a": 1}, "@nan", *TEXTS],
    "word or value": [["none"], {"a": 1}, "@nan", *TEXTS],
    "word or words": [["x"], [1], {"a": 1}, "@nan", *TEXTS],
    "text": [0, True, 1.5, ["x"], {"a": 1}, _DATE, "@nan"],
    "path": [0, True, ["x"], {"a": 1}, "a\x00b", "x" * 5000, "no/such/" * 700],
    "list": [0, True, "no", {"a": 1}, _DEEP, _DATE],
    "table": [0, True, "no", [1], "@nan", _DEEP],
}
_WHOLE_SMALL = [0, 1, 2, 3, -1, -(2**31)]
_WHOLE_LARGE = [10, 64, 1000, 10**6, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 2**70]
_NUMBERS = [0.0, -0.0, 1.0, 0.5, -1.0, 1e-320, 1e-12, 1e6, 1e38, 1e308, -1e308, 1, 2**60]
_LISTS = [
    [], [2, 2], [2, 12], [12, 12], [3, 2], [-1, 2], [2], [2, 2, 2], [0.5, 1], [2**70, 2**70], ["a", "b"], [[2], [3]],
    ["x"] * 300,
]  # fmt: skip


@st.composite
def recipe(draw: st.DrawFn, ground: Ground) -> Mutant:
    return draw(
        st.one_of(_values(ground), _values(ground), _values(ground), _structure(ground), _texts(ground), _files())
    )


def section(key: str) -> str:
    return key.split(".")[0]


@st.composite
def _values(draw: st.DrawFn, ground: Ground) -> Mutant:
    """One key with a value that is of another kind, at the edge, or any; and sometimes a second."""
    train = draw(st.booleans())
    table, expects, what = copy.deepcopy(RECIPE), "either", []
    few = st.lists(
        st.sampled_from(sorted(keys())),
        min_size=1,
        max_size=draw(one(1, 1, 1, 2)),
        unique_by=lambda key: "task" if section(key) == "data" else section(key),  # no value is laid over another
    )
    chosen = draw(few)
    for key in chosen:
        train = train and section(key) not in ("preference", "data")
        table = merged(table, copy.deepcopy(BESIDE.get(section(key), {})))
    for key in chosen:
        kind = keys()[key]
        if section(key) == "algorithm" and key != "algorithm.name":
            table["algorithm"] = {"name": draw(st.sampled_from(sorted(CATALOG)))}
        value, wrong = draw(_value(key, kind, train))
        put(table, key.replace("data.", "task.", 1) if section(key) == "data" else key, value)
        expects = "refuse" if wrong else expects
        what.append(f"{'wrong' if wrong else 'odd'} {kind}")
    return _mutant(" and ".join(what), written(table), train, expects)


@st.composite
def _value(draw: st.DrawFn, key: str, kind: str, train: bool) -> tuple[Any, bool]:
    """A value for a key, and whether it is known to be wrong there."""
    if draw(st.integers(0, 9)) < 5:
        value = draw(st.sampled_from(WRONG[kind]))
        if kind == "choice" and value in ("none", ""):  # choices of some keys; "" leaves chat.thinking to the template
            return value, False
        unread = key.split(".")[0] == "algorithm" and kind != "choice"  # another row's part may not have the key at all
        return value, not (unread and isinstance(value, dict))
    if kind == "whole":
        few = train and COSTS.search(key) is not None
        value = draw(
            st.sampled_from(_WHOLE_SMALL if few else _WHOLE_SMALL + _WHOLE_LARGE) | st.integers(-3, 4 if few else 300)
        )
        never = value < 0 and key.split(".")[0] not in ("algorithm", "task", "data", "rewards")
        return value, never or (key == "seed" and value >= 2**64)
    if kind == "number":
        return draw(st.sampled_from(_NUMBERS) | st.floats(-2, 2)), False
    if kind == "list":
        return draw(st.sampled_from(_LISTS) | st.lists(st.integers(0, 1001), min_size=2, max_size=2)), False
    if kind == "truth":
        return draw(st.booleans()), False
    if kind == "table":
        return draw(st.dictionaries(text(), one(1, "x", {}, [], {"min": "@nan"}), max_size=2)), False
    return draw(text()), False


@st.composite
def _structure(draw: st.DrawFn, ground: Ground) -> Mutant:
    """Keys that are not there, or are there and unknown; rows and kinds that exist, put together at will."""
    table, train = copy.deepcopy(RECIPE), draw(st.booleans())
    how = draw(one("unknown key", "missing key", "parts at will", "reward at will"))
    if how == "unknown key":
        section = draw(one("", "task", "algorithm", "sampling", "learner", "evaluation", "checkpoint", "algorithm.kl"))
        name = "zz" + draw(text()).replace(".", "")
        put(table, f"{section}.{name}".lstrip("."), draw(one(1, "x", {}, {"a": {"b": 1}}, [], "@nan")))
    elif how == "missing key":
        place = draw(one("steps", "task", "algorithm", "task.name", "algorithm.name"))
        inner = table[place.split(".")[0]] if "." in place else table
        del inner[place.split(".")[-1]]
    elif how == "parts at will":
        row = {"name": draw(st.sampled_from(sorted(CATALOG)))}
        for key in draw(
            st.lists(
                st.sampled_from([k for k in keys() if k.startswith("algorithm.") and k.count(".") == 2]), max_size=4
            )
        ):
            value = draw(
                one(
                    0, 1, 2, 0.5, 1.0, "none", "clip", "token", "sequence", "k3", "loss", "reward", "gae", "return",
                    True,
                )
            )  # fmt: skip
            put(row, key.removeprefix("algorithm."), value)
        table["algorithm"] = row
    else:
        rewards = {}
        for name in draw(
            st.lists(one("task", "learned", "format", "tags", "repetition", "mine", "[/x]"), min_size=1, max_size=3)
        ):
            fields = one("weight", "kind", "pattern", "longest", "tags", "opened", "n", "largest", "tokens", "use")
            values = one(0, 1, -1, 0.5, True, "a*", "(a|a)*b", "format", ["a", "b"], "keep/notes.txt:f", "nowhere.py:f")
            rewards[name] = draw(st.dictionaries(fields, values, max_size=3))
        table["rewards"] = rewards
    return _mutant(how, written(table), train, "refuse" if how.endswith("key") else "either")


@st.composite
def _texts(draw: st.DrawFn, ground: Ground) -> Mutant:
    clean = toml(RECIPE)
    ends = [
        b"\nx = " + b"[" * 3000, b"\n" + b".".join([b"a"] * 3000) + b" = 1\n", b"\nseed = 1\n", b"\n[task]\n", b"\x00",
        b"\xff", b"\n# " + b"x" * 10**6 + b"\n", b'\nx = "\\ud800"\n', b"\r\n\r\n", b"\xef\xbb\xbf", b"\nx = 1_000_\n",
        b'\nname = """' + b"n" * 400 + b'"""\n',
    ]  # fmt: skip
    if draw(st.booleans()):
        how, changed = draw(damaged(clean))
    else:
        end = draw(st.sampled_from(ends))
        how, changed = "an odd end", draw(one(clean + end, end + clean))
    return _mutant(f"text {how}", changed, draw(st.booleans()), "either")


@st.composite
def _files(draw: st.DrawFn) -> Mutant:
    """Where the recipe should be there is no file that can be read, or the disk is full when it is written."""
    if draw(st.booleans()):
        disk = draw(st.integers(0, 4000))
        return Mutant("recipe", "a full disk", ("train", "mutant.toml"), (("mutant.toml", toml(RECIPE)),), disk=disk)
    place = draw(st.sampled_from(NO_FILES))
    words = draw(one(("train", "mutant.toml"), ("check", "mutant.toml", "--no-model")))
    return Mutant("recipe", "no file", words, (("mutant.toml", place),), "refuse")


def _mutant(what: str, content: bytes, train: bool, expects: str) -> Mutant:
    """With what a run must have taken over; what is no TOML is known to be wrong."""
    words = ("train", "mutant.toml") if train else ("check", "mutant.toml", "--no-model")
    try:
        asked = tomllib.loads(content.decode("utf-8-sig"))
        if too_deep(asked):
            raise RecursionError  # hypothesis raises the limit, so that it was read here
    except (ValueError, RecursionError):
        return Mutant("recipe", what, words, (("mutant.toml", content),), "refuse")
    if train and costs_too_much(asked):
        words = ("check", "mutant.toml", "--no-model")
    return Mutant("recipe", what, words, (("mutant.toml", content),), expects, asked=asked)


def costs_too_much(table: Mapping[str, Any]) -> bool:
    from tests.faults.oracle import flat

    known = keys()
    return any(
        isinstance(value, int) and 8 < value < 2**62 and COSTS.search(key) and known.get(key, "whole") == "whole"
        for key, value in flat(table).items()
    )


def written(table: Mapping[str, Any]) -> bytes:
    out = toml(dict(table)).decode()
    for mark, raw in RAW.items():
        out = out.replace(f'"{mark}"', raw)
    return out.encode()


def put(table: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        if not isinstance(table.get(section), dict):
            table[section] = {}
        table = table[section]
    table[last] = value


def merged(table: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """A table with another laid over it; sections that name something else are replaced."""
    for key, value in other.items():
        old = table.get(key)
        keep = (
            isinstance(old, dict)
            and isinstance(value, Mapping)
            and old.get("name") == value.get("name", old.get("name"))
        )
        table[key] = merged(old, value) if keep else value  # type: ignore[arg-type]
    return table
