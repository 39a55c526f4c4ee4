"""A new engine is a package and a row of the table: nothing else of groupwise knows an engine by its name."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.engines.kinds import KINDS, LOCAL, EngineKind
from tests.runs.tiny_runs import tiny_run, weights_after

SOURCE = Path(__file__).parents[2] / "src" / "groupwise"


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> EngineKind:
    """The local engine under another name, with a key of its own."""
    kind = dataclasses.replace(LOCAL, name="third", title="the third", keys=frozenset({"cache_mib"}))
    monkeypatch.setitem(KINDS, kind.name, kind)  # type: ignore[arg-type]
    return kind


def test_a_third_kind_trains_as_the_engine_that_it_is_made_of(third: EngineKind, tmp_path: Path) -> None:
    once: dict[str, Any] = {"steps": 1, "evaluation.problems": 1}
    runs = [
        groupwise.train("quickstart", tiny_run(tmp_path, **once, name=name, **{"engine.name": name}))
        for name in (LOCAL.name, third.name)
    ]
    assert weights_after(runs[0].folder, 1) == weights_after(runs[1].folder, 1)
    assert 'name = "third"' in (runs[1].folder / "recipe.toml").read_text()


def test_its_keys_are_read_with_it_alone(third: EngineKind) -> None:
    resolve(recipe.load("quickstart", {"engine.name": third.name, "engine.cache_mib": 8}))
    with pytest.raises(UsageError, match=r"^engine.cache_mib: set, but nothing in this run reads it"):
        resolve(recipe.load("quickstart", {"engine.cache_mib": 8}))
    with pytest.raises(UsageError, match=r"engine.name = 'fourth': must be 'local', 'vllm' or 'third'$"):
        resolve(recipe.load("quickstart", {"engine.name": "fourth"}))


def test_one_that_cannot_live_inside_lives_in_a_child_with_its_interpreter(
    third: EngineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = dataclasses.replace(third, build_inside="", python="no-such", install="make one")
    monkeypatch.setitem(KINDS, third.name, apart)  # type: ignore[arg-type]
    engine = resolve(recipe.load("quickstart", {"engine.name": third.name})).recipe.engine
    assert (engine.process, engine.python) == ("child", "no-such")
    with pytest.raises(UsageError, match=r"^engine.python = 'no-such': there is no such program; make one$"):
        engine.require_place()
    with pytest.raises(UsageError, match=r"^engine.process = 'inside': the third needs libraries of its own"):
        resolve(recipe.load("quickstart", {"engine.name": third.name, "engine.process": "inside"}))


def test_no_other_source_asks_for_an_engine_by_its_name() -> None:
    own = [SOURCE / "engines" / name for name in ("local", "vllm")]
    own += [SOURCE / "config" / "bridge"]  # the names there are another project's
    asks = re.compile("|".join(rf"[!=]= \"{name}\"|\"{name}\": |\"{name}\"\]" for name in KINDS))
    others = (path for path in SOURCE.rglob("*.py") if not any(path.is_relative_to(folder) for folder in own))
    assert not [(path, found[0]) for path in others for found in asks.finditer(path.read_text())]
