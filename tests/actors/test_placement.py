"""What a recipe may say of places: each wrong word is one line, before anything is started."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.actors.place import require_ray
from groupwise.config import recipe
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.core.errors import UsageError
from groupwise.core.processes.place import PlacementSettings, Role
from tests.actors.rays import needs_ray
from tests.runs.tiny_runs import tiny_run

CHILD = {"engine.process": "child"}
MINE = str(Path(__file__).parents[1] / "runs" / "rewards_of_a_run.py")


def plan(**changes: Any) -> Any:
    return resolve(recipe.load("quickstart", {key.replace("__", "."): value for key, value in changes.items()}))


@pytest.mark.parametrize("text", ["", "ray://host:10001", "host", "host:99999", "http://host:1", "AUTO"])
def test_what_is_no_address_of_a_ray_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"placement\.ray = .*give HOST:PORT of a Ray, 'auto' or 'local'"):
        recipe.load("quickstart", {"placement.ray": text})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"placement.engine_cpus": 2.0}, r"^placement\.engine_cpus: set, but nothing in this run reads it"),
        ({"placement.strategy": "spread", **CHILD}, r"^placement\.strategy: set, but nothing"),
        (
            {"placement.ray": "local"},
            r"^placement\.ray = 'local': nothing of this run lives outside of its own process",
        ),
        ({"placement.ray": "local", "placement.rank_cpus": 2.0, **CHILD}, r"^placement\.rank_cpus: set, but nothing"),
        ({"placement.ray": "local", "placement.pool_gpus": 1.0, **CHILD}, r"^placement\.pool_gpus: set, but nothing"),
    ],
)
def test_what_nothing_reads_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(recipe.load("quickstart", changes))


def test_what_is_placed_is_what_lives_outside_of_the_run() -> None:
    own = {"rewards.task": {}, "rewards.mine": {"use": f"{MINE}:short"}}
    made = plan(placement__ray="local", learner__ranks=3, engine__process="child", engine__count=2, **own)
    assert made.processes == {Role.RANK: 2, Role.ENGINE: 2, Role.POOL: 1}
    assert "actors of the Ray local: 2 other ranks of 1 CPU, 2 engines of 1 CPU, 1 pool that scores of 1 CPU; pack" in (
        made.describe()
    )
    assert set(resolved_recipe(made)["placement"]) == set(PlacementSettings.model_fields)
    again = resolve(recipe.parse(resolved_recipe(made), "again"))
    assert again.processes == made.processes


def test_a_resolved_recipe_has_the_keys_that_are_read_and_goes_on() -> None:
    table = resolved_recipe(plan(placement__ray="host:6379", engine__process="child"))
    assert set(table["placement"]) == {"restarts", "ray", "strategy", "deadline", "engine_cpus", "engine_gpus"}
    assert resolve(recipe.parse(table, "again")).recipe.placement.ray == "host:6379"
    assert set(resolved_recipe(plan())["placement"]) == {"restarts"}


def test_a_ray_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    with pytest.raises(UsageError) as refused:
        require_ray(PlacementSettings(ray="auto"))
    assert str(refused.value) == (
        "placement.ray = 'auto' needs ray, which is not installed: pip install 'groupwise[ray]'"
    )


@needs_ray
def test_where_no_ray_listens_is_one_line_and_leaves_no_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UsageError) as refused:
        groupwise.train("quickstart", tiny_run(tmp_path, placement__ray=f"127.0.0.1:{port}", engine__process="child"))
    assert str(refused.value) == (
        f"placement.ray = '127.0.0.1:{port}': nothing is reached there (connection refused); "
        "begin a Ray with: ray start --head"
    )
    assert not list((tmp_path / "runs").glob("[!.]*"))
