"""Runs whose processes are actors of a real Ray have the bits of runs whose processes are children."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.actors import place as places
from groupwise.actors.place import RayPlace
from groupwise.commands.train.train import resume
from groupwise.core.errors import RunError, UsageError
from groupwise.core.peer import PeerLost
from groupwise.core.processes.place import PlacementSettings, Role
from groupwise.engines.make import make_engine
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy
from tests.actors.rays import actors, gone, in_actors, machines, needs_ray, processes, small
from tests.engines.outside.made import MANY, SAMPLINGS, assert_alike
from tests.runs.test_environment_run import changes as of_episodes
from tests.runs.test_ranks_run import require_same
from tests.runs.test_run import assert_same_run
from tests.runs.tiny_runs import tiny_run

pytestmark = needs_ray

MINE = str(Path(__file__).parents[1] / "runs" / "rewards_of_a_run.py")
ALONE: dict[str, Any] = {"threads": 1, "learner__learning_rate": 1e-3}
ENGINE = {**ALONE, "engine__process": "child"}
#: A reward that is scored in processes.
REWARDS: dict[str, Any] = {"rewards__task": {}, "rewards__short": {"use": f"{MINE}:short", "weight": 0.01}}
POOL = {**ALONE, **REWARDS}
ALL = {**ENGINE, **REWARDS, "learner__ranks": 2, "engine__count": 2}
LOCAL: dict[str, Any] = {"placement.ray": "local"}


def trained(place: Path, name: str, placement: dict[str, Any], callbacks: Any = (), **changes: Any) -> Path:
    overrides = tiny_run(place, name=name, **changes)
    return groupwise.train("quickstart", {**overrides, **placement}, callbacks=callbacks).folder


def log(run: Path) -> str:
    return (run / "log.txt").read_text()


class Kills:
    """A callback: after a step, and some time, one of these processes is killed."""

    def __init__(self, which: Any, step: int, seconds: float = 0.0) -> None:
        self._which, self._step, self._seconds = which, step, seconds
        self.killed: list[int] = []

    def __call__(self, record: Any) -> None:
        if record.step == self._step:
            threading.Thread(target=self._kill).start()

    def _kill(self) -> None:
        time.sleep(self._seconds)
        self.killed += self._which()[:1]
        for pid in self.killed:
            os.kill(pid, signal.SIGKILL)


def test_a_run_whose_engine_and_pool_are_actors_has_the_bits_of_one_without(tmp_path: Path) -> None:
    inside = trained(tmp_path, "inside", {}, **POOL)
    in_ray = trained(tmp_path, "actors", LOCAL | small("engine", "pool"), **ENGINE, **REWARDS)
    require_same(inside, in_ray)
    assert log(in_ray).count("on Ray's node") == 2
    assert gone()
    assert "ray" not in sys.modules, "Ray stays out of the run's own process"


@pytest.mark.slow
def test_two_ranks_two_engines_and_a_pool_on_two_nodes_have_the_bits_of_children(tmp_path: Path) -> None:
    children = trained(tmp_path, "children", {}, **ALL)
    with machines() as ray:
        there = {"placement.ray": ray.address, "placement.strategy": "spread"}
        spread = trained(tmp_path, "spread", there, **ALL)
        require_same(children, spread)
        lines = [line for line in log(spread).splitlines() if "on Ray's node" in line]
        assert len(lines) == 4
        assert len({line.split("node ")[1].split()[0] for line in lines}) == 2
        assert gone()
        assert len(ray.raylets()) == 2, "a Ray that was there stays"


@pytest.mark.slow
@pytest.mark.parametrize("which", [lambda: in_actors("rank"), actors], ids=["its process", "its actor"])
def test_a_killed_rank_is_named_and_the_run_goes_on(which: Any, tmp_path: Path) -> None:
    own = {**ALONE, "learner__ranks": 2, "steps": 3}
    children = trained(tmp_path, "children", {}, **own)
    begin = time.monotonic()
    with pytest.raises(RunError) as ended:
        trained(tmp_path, "actors", LOCAL | small("rank"), [Kills(which, step=1)], **own)
    assert str(ended.value).startswith("rank 1 of 2 ended: "), str(ended.value)
    assert "go on from the newest checkpoint with: groupwise train --resume " in str(ended.value)
    assert time.monotonic() - begin < 60
    assert gone()
    assert resume(tmp_path / "runs" / "actors").finished
    require_same(children, tmp_path / "runs" / "actors")
    assert gone()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["engine", "pool"])
@pytest.mark.parametrize("what", ["process", "actor"])
def test_a_killed_engine_or_pool_is_replaced_with_the_same_bits(role: str, what: str, tmp_path: Path) -> None:
    changes = ENGINE if role == "engine" else POOL
    own = LOCAL | small(role)
    children = trained(tmp_path, "children", {}, steps=3, **changes)
    kills = Kills(actors if what == "actor" else lambda: in_actors(role), step=1)
    in_ray = trained(tmp_path, "actors", own, [kills], steps=3, **changes)
    assert len(kills.killed) == 1
    require_same(children, in_ray)
    assert "process is lost: it ended: " in log(in_ray) or "that scores is lost: it ended: " in log(in_ray)
    assert gone()


@pytest.mark.slow
def test_episodes_and_an_engine_of_another_interpreter_ahead_of_the_run_have_the_same_bits(tmp_path: Path) -> None:
    """The pool that plays is killed while its episodes live."""
    own = {"steps": 4, "threads": 1, "rollout.ahead": 1, "learner.learning_rate": 1e-3}
    inside = groupwise.train("quickstart", {**of_episodes(tmp_path, name="inside"), **own}).folder
    elsewhere = {**LOCAL, **small("engine", "pool"), "engine.process": "child", "engine.python": sys.executable}
    kills = Kills(lambda: in_actors("pool"), step=1)
    overrides = {**of_episodes(tmp_path, name="actors"), **own, **elsewhere}
    in_ray = groupwise.train("quickstart", overrides, callbacks=[kills]).folder
    assert len(kills.killed) == 1
    assert "the process that scores is lost: it ended: killed by SIGKILL" in log(in_ray)
    assert_same_run(inside, in_ray)
    assert gone()


@pytest.mark.slow
def test_a_node_that_goes_away_takes_its_engine_and_the_other_has_room_for_it(tmp_path: Path) -> None:
    own = {**ENGINE, "engine__count": 2}
    children = trained(tmp_path, "children", {}, steps=3, **own)
    with machines() as ray:

        def lose(record: Any) -> None:
            if record.step == 1:
                os.kill(ray.raylets()[1], signal.SIGKILL)
                end = time.monotonic() + 60
                while len(in_actors("engine")) == 2 and time.monotonic() < end:
                    time.sleep(0.1)

        there = {"placement.ray": ray.address, "placement.strategy": "spread"}
        in_ray = trained(tmp_path, "actors", there, [lose], steps=3, **own)
        require_same(children, in_ray)
        assert log(in_ray).count("its process is lost: it ended: ") == 1, log(in_ray)
        assert gone()


@pytest.mark.slow
def test_completions_are_the_same_with_one_two_and_three_engines_in_actors(experts: Policy) -> None:
    inside = make_engine(policy=experts, settings=EngineSettings())
    expected = inside.generate(MANY, SAMPLINGS["plain"])
    for count in (1, 2, 3):
        place = RayPlace(PlacementSettings(ray="local", engine_cpus=0.1), {Role.ENGINE: count}, lambda line: None)
        engine = make_engine(policy=experts, settings=EngineSettings(process="child", count=count), place=place)
        try:
            assert_alike(engine.generate(MANY, SAMPLINGS["plain"]), expected)
            weights = [(name, tensor * 1.2) for name, tensor in experts.model.named_parameters()]
            for each in (inside, engine):
                each.load_weights(weights, count)
            assert_alike(engine.generate(MANY, SAMPLINGS["plain"]), inside.generate(MANY, SAMPLINGS["plain"]))
            inside.load_weights(experts.model.named_parameters(), 0)
        finally:
            engine.close()
            place.close()
    assert gone()


@pytest.mark.slow
def test_what_a_ray_does_not_have_is_said_with_what_it_has() -> None:
    with pytest.raises(UsageError) as refused:
        RayPlace(PlacementSettings(ray="local", engine_cpus=999.0), {Role.ENGINE: 2}, lambda line: None)
    cores = os.cpu_count()
    assert str(refused.value) == (
        "placement.ray = 'local': it does not give the run all at once, pack: 2 engines of 999 CPU; "
        f"it has 1 machine ({cores} CPU), of which {cores} CPU are free. Lower placement.*_cpus or *_gpus, or ask for "
        "fewer, or add machines"
    )
    assert gone()
    with machines(cpus=1) as ray:
        settings = PlacementSettings(ray=ray.address, strategy="strict-pack", deadline=3.0)
        with pytest.raises(UsageError, match=r"2 engines of 1 CPU; it has 2 machines \(1 CPU, 1 CPU\)"):
            RayPlace(settings, {Role.ENGINE: 2}, lambda line: None)
        assert gone()


@pytest.mark.slow
def test_what_listens_there_and_is_no_ray_is_one_line_within_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin = time.monotonic()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UsageError, match=r"no answer of Ray: it did not answer for 16 seconds|Failed to connect"):
            RayPlace(PlacementSettings(ray=address, deadline=1.0), {Role.ENGINE: 1}, lambda line: None)
        assert time.monotonic() - begin < 25
    assert gone()


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from groupwise.actors.place import RayPlace\n"
        "from groupwise.core.processes.place import Role\n"
        "from groupwise.core.processes.place import PlacementSettings\n"
        "place = RayPlace(PlacementSettings(ray='local', engine_cpus=0.1), {Role.ENGINE: 1}, print)\n"
        "process = place.start(Role.ENGINE, 'groupwise.engines.outside.server', {}, seconds=60)\n"
        "print('here', flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    folders = set(Path(tempfile.gettempdir()).glob("groupwise-ray-*"))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        assert any(line == "here\n" for line in run.stdout)
        assert len(in_actors("engine")) == len(actors()) == 1
        run.kill()
    assert gone()
    end = time.monotonic() + 20
    while processes("groupwise-ray-") and time.monotonic() < end:
        time.sleep(0.2)
    assert not processes("groupwise-ray-"), "the Ray of the run has ended too"
    for folder in set(Path(tempfile.gettempdir()).glob("groupwise-ray-*")) - folders:
        shutil.rmtree(folder)  # a run that is killed takes nothing away


@pytest.mark.slow
def test_a_process_that_cannot_begin_or_ends_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    place = RayPlace(PlacementSettings(ray="local", engine_cpus=0.1), {Role.ENGINE: 1}, lambda line: None)
    try:
        with pytest.raises(PeerLost, match=r"exit code 1.*No such file|No such file"):
            place.start(Role.ENGINE, "groupwise.engines.outside.server", {}, seconds=60, python="/no/such/python")
        process = place.start(Role.ENGINE, "tests.core.child_acts", {"greeting": "hello"}, seconds=60)
        assert process.receive(20)["greeting"] == "hello"
        process.send({"act": "exit", "code": 3})
        with pytest.raises(PeerLost, match=r"^it ended: exit code 3$"):
            process.receive(20)
        assert process.exit() == ("exit code 3", 3)
        process.close()
        again = place.start(Role.ENGINE, "tests.core.child_acts", {}, seconds=60)
        assert again.usable
        again.receive(20)
        again.close()
        assert not again.usable
        assert not in_actors("engine")
        monkeypatch.setattr(places, "VERSION", "9.9")
        with pytest.raises(PeerLost, match=r"^groupwise 0\.\S+ is installed on Ray's node .*, and this is 9\.9"):
            place.start(Role.ENGINE, "tests.core.child_acts", {}, seconds=60)
    finally:
        place.close()
        place.close()
    assert gone()
