"""A run takes the threads that other work leaves it, says so, and keeps their number."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib

import pytest
import torch

import groupwise
from groupwise.commands.build.machine import threads, with_threads
from groupwise.commands.train.train import resume
from groupwise.config.recipe import load
from groupwise.core.machine.facts import cores

BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


@pytest.fixture
def all_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(max(2, cores()))
    yield max(2, cores())
    torch.set_num_threads(before)


@pytest.fixture
def busy():
    """Every core of this process has work that is not its own, for as short as the test is."""
    workers = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores())]
    time.sleep(0.3)
    yield
    for worker in workers:
        worker.kill()
        worker.wait()


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="nothing says what others do")
def test_where_others_hold_the_cores_a_run_takes_what_is_free_and_says_so(all_cores, busy):
    recipe, notes = with_threads(load("quickstart"))
    assert isinstance(recipe.threads, int)
    assert recipe.threads < all_cores
    assert notes[0].startswith(f"threads      {recipe.threads} instead of {all_cores}: other work holds ")
    recipe, notes = with_threads(load("quickstart", {"threads": all_cores}))
    assert recipe.threads == all_cores
    assert notes[0].startswith(f"threads      {all_cores}, as the recipe says: other work holds ")


def test_a_resumed_run_has_the_threads_that_it_began_with(all_cores, small, monkeypatch):
    run = groupwise.train("quickstart", small(steps=1, threads=1))
    assert tomllib.loads((run.folder / "recipe.toml").read_text())["threads"] == 1
    assert torch.get_num_threads() == all_cores, "the caller has its own back"
    taken: list[int] = []
    monkeypatch.setattr(
        "groupwise.commands.train.train.build", lambda *_: taken.append(torch.get_num_threads()) or _stop()
    )
    with pytest.raises(KeyboardInterrupt):
        resume(run.folder)
    assert taken == [1]


def _stop():
    raise KeyboardInterrupt


def test_a_number_of_the_recipe_is_taken_as_it_is(all_cores):
    recipe, _ = with_threads(load("quickstart", {"threads": 3}))
    with threads(recipe):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == all_cores
