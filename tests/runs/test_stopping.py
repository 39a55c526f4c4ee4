"""Laws of stopping: wherever a run is asked to, it ends soon, keeps its folder, and goes on to the bits of one that was
never stopped; asked twice, it ends at once.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import groupwise
from groupwise import loop
from groupwise.commands.build import build, rollout
from groupwise.commands.train.train import resume
from groupwise.core.environment import Conversation, Reply
from groupwise.core.machine.terminal import Terminal
from groupwise.core.processes.stop import SIGNALS, Stop, Stopped
from groupwise.core.samples import Sample
from groupwise.environments.live import InlineEnvironments
from groupwise.journal.journal import read_metrics
from groupwise.training import checkpoint
from groupwise.training.start import cached_reward_model, reward_model, warm_start
from tests.command_process import CommandProcess
from tests.runs.test_rlhf import PREFERENCE
from tests.runs.test_run import assert_same_run, go_on, start, wait_for

#: Seconds in which a run ends that is asked to; on a cluster a kill follows after 30.
SOON = 10.0
#: A run that does all that comes before a first step: a warm start, pairs, a reward model, and an evaluation, which is
#: made again after the second step and after the last.
WHOLE: dict[str, Any] = {**PREFERENCE, "steps": 3, "evaluation.every": 2, "checkpoint.every": 9}
#: Where a signal comes, in the order of a run: what is called there, which of the calls it is, and the signal.
MOMENTS: dict[str, tuple[ModuleType, str, int, signal.Signals]] = {
    "loading": (build, "base_policy", 1, signal.SIGTERM),
    "warm start": (warm_start, "backward", 7, signal.SIGINT),
    "pairs": (cached_reward_model, "scored_groups", 1, signal.SIGHUP),
    "reward model": (reward_model, "gradients", 3, signal.SIGINT),
    "engine": (build, "training_engine", 1, signal.SIGTERM),
    "first evaluation": (rollout, "measured", 1, signal.SIGINT),
    "evaluation after step 2": (rollout, "measured", 2, signal.SIGHUP),
    "step 3": (loop, "train_step", 1, signal.SIGINT),
}


def signalled(monkeypatch: pytest.MonkeyPatch, where: ModuleType, name: str, call: int, *numbers: int) -> list[float]:
    """The signals come when a function of a module is called for the nth time -> when they did."""
    real, calls, when = getattr(where, name), [], []

    def called(*given: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == call:
            when.append(time.monotonic())
            for number in numbers:
                os.kill(os.getpid(), number)
        return real(*given, **named)

    monkeypatch.setattr(where, name, called)
    return when


@pytest.fixture
def whole(small, tmp_path: Path) -> dict[str, Any]:
    """A run that finds nothing in its cache."""
    return {**small(**{key.replace(".", "__"): value for key, value in WHOLE.items()}), "runs": str(tmp_path / "own")}


@pytest.mark.slow
def test_a_run_that_is_stopped_again_and_again_goes_on_to_the_bits_of_one_that_never_was(whole, monkeypatch) -> None:
    folder = Path(whole["runs"]) / "cut"
    for name, moment in MOMENTS.items():
        with monkeypatch.context() as during:
            when = signalled(during, *moment)
            run = resume(folder) if folder.is_dir() else groupwise.train("quickstart", {**whole, "name": "cut"})
        if name == "step 3":  # the last one: it is made, and only its evaluation is left
            assert {r["step"] for r in read_metrics(folder)} == {0, 1, 2, 3}
        assert when, name
        assert time.monotonic() - when[0] < SOON, name
        assert (run.finished, run.stopped_by) == (False, moment[-1]), name
        assert "go on with: groupwise train --resume" in (folder / "log.txt").read_text().splitlines()[-1]
    assert resume(folder).finished
    assert checkpoint.steps(folder / "checkpoints") == [2, 3]
    assert_same_run(groupwise.train("quickstart", {**whole, "name": "whole"}).folder, folder)


def test_a_second_signal_ends_at_once_and_the_run_can_be_gone_on_with(small, monkeypatch) -> None:
    """The first comes in a step, which would be finished; the second does not wait for that."""
    changes = small(name="twice")
    with monkeypatch.context() as during:
        signalled(during, loop, "train_step", 2, signal.SIGTERM)
        signalled(during, loop, "update", 3, signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as ended:
            groupwise.train("quickstart", changes)
    assert not isinstance(ended.value, Stopped)
    folder = Path(changes["runs"]) / "twice"
    assert [r["step"] for r in read_metrics(folder)] == [0, 1]
    assert resume(folder).finished
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class Asked:
    def reset(self, sample: Sample) -> str | None:
        raise Stopped

    def reply(self, text: str) -> Reply:
        raise AssertionError


def test_a_stop_that_comes_in_an_environment_is_no_fault_of_it() -> None:
    with pytest.raises(Stopped):
        InlineEnvironments(Asked).begin(Conversation(Sample("1+1=", "1+1=", "2"), 0, 1))


def test_a_stop_that_other_code_has_kept_is_obeyed_at_the_end_of_the_work() -> None:
    stop, said = Stop(), []

    def work() -> None:
        with stop.listening(said.append), stop.leaving():
            with suppress(BaseException):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(SOON)
            said.append("kept")

    with pytest.raises(Stopped):
        work()
    assert said == ["stopping now, with everything saved; Ctrl-C again stops at once", "kept"]


def test_a_run_begun_by_nohup_goes_on_without_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop()
        with stop.listening(lambda line: None):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.asked
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_gone_does_not_keep_a_run_from_being_saved(small, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses whatever is printed once the window is closed, whose end is the signal."""
    real, gone = Terminal.print, []

    def printed(terminal: Terminal, *parts: Any) -> None:
        if gone:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(terminal, *parts)

    def closed(record: Any) -> None:
        gone.append(True)
        os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(Terminal, "print", printed)
    run = groupwise.train("quickstart", small(steps=3, checkpoint__every=9), callbacks=[closed])
    assert (run.finished, run.stopped_by) == (False, signal.SIGHUP)
    assert checkpoint.steps(run.folder / "checkpoints") == [1]
    assert "stopped after step 1, saved; go on with: " in (run.folder / "log.txt").read_text().splitlines()[-1]


# Thirty random moments, in processes of their own.


def living_below(pid: int) -> set[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                of = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(of, []).append(int(entry.name))
    found, new = set(), [pid]
    while new:
        children = parents.get(new.pop(), [])
        found.update(children)
        new += children
    return found


def lives(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def stopped_after(process: CommandProcess, folder: Path, seconds: float, number: int) -> tuple[set[int], float]:
    """Signals a run so long after its folder was there -> all processes that it had, and how long it took to end."""
    wait_for(folder.is_dir, process)
    children, until = set(), time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        children |= living_below(process.pid)
        time.sleep(0.02)
    children |= living_below(process.pid)
    if process.poll() is None:
        process.send_signal(number)
    began = time.monotonic()
    while process.poll() is None and time.monotonic() < began + 3 * SOON:
        children |= living_below(process.pid)
        time.sleep(0.005)
    return children, time.monotonic() - began


@pytest.mark.slow
def test_a_signal_at_thirty_random_moments_of_the_start_of_a_run(whole, tmp_path: Path) -> None:
    """With a reward of one's own, whose processes would be left behind."""
    (tmp_path / "mine.py").write_text("def mine(sample, completion):\n    return len(completion) / 100\n")
    rewards = {"rewards.mine.use": f"{tmp_path}/mine.py:mine", "rewards.learned.weight": 1.0}
    whole |= {**rewards, "warm_start.steps": 60}
    first = start({**whole, "name": "whole", "runs": str(tmp_path / "first")}, threads=1)
    reference = tmp_path / "first" / "whole"
    began = {}
    for what in (reference, reference / "metrics.jsonl"):  # the folder; the row of the first evaluation
        wait_for(what.exists, first)
        began[what] = time.monotonic()
    length = began[reference / "metrics.jsonl"] - began[reference]
    said = first.communicate(timeout=300)
    assert first.returncode == 0, said
    generator, told = torch.Generator().manual_seed(50), []
    while len(told) < 30:
        number = len(told)
        changes = {**whole, "name": "cut", "runs": str(tmp_path / str(number))}
        folder, sent = tmp_path / str(number) / "cut", SIGNALS[number % len(SIGNALS)]
        process = start(changes, threads=1)
        after = length * float(torch.rand((), generator=generator))
        children, seconds = stopped_after(process, folder, after, sent)
        said = process.communicate(timeout=60)
        if process.returncode == 0:  # it was faster than the first, and had ended before the signal
            shutil.rmtree(tmp_path / str(number))
            continue
        told.append(
            f"{sent.name} after {after:.2f} of {length:.2f} s: ended in {seconds:.2f} s, {len(children)} children"
        )
        print(told[-1], said.splitlines()[-1])
        assert process.returncode == 128 + sent, said
        assert seconds < SOON, told[-1]
        time.sleep(0.5)
        assert not [pid for pid in children if lives(pid)], told[-1]
        rest = go_on(folder, threads=1)
        said = rest.communicate(timeout=300)
        assert rest.returncode == 0, said
        assert_same_run(reference, folder)
