"""A pool in a process of its own scores as one beside the run does, also after that process was killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import RunError, UsageError
from groupwise.core.processes.place import HERE
from groupwise.core.samples import Sample, ScoreResult
from groupwise.environments.live import PoolEnvironments
from groupwise.rewards.functions.form import User
from groupwise.rewards.pool import remote
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.remote import RemotePool
from groupwise.rewards.pool.work import Limits
from tests.environments.test_environment_pool import COUNTS, play
from tests.rewards.pool.test_reward_pool import MANY, ONE, attempts
from tests.rewards.pool.test_reward_pool import left as left

linux = pytest.mark.skipif(sys.platform != "linux", reason="signals by /proc")

REWARDS = {"one": ONE, "many": MANY}
LIMITS = Limits(workers=2, seconds=1.0)
ACTS = ("good", "nan", "good", "exception", "none", "good", "string")


def elsewhere(note: Callable[[str], None] = lambda line: None, rewards: Any = REWARDS) -> RemotePool:
    """A pool in a child: what it is asked, and how it is lost, is as at any other place."""
    return RemotePool(rewards, LIMITS, HERE, 60.0, note)


@pytest.fixture
def pool(left: Callable[[], list[int]]) -> Iterator[RemotePool]:
    with elsewhere() as pool:
        yield pool


def in_short(results: list[ScoreResult]) -> list[Any]:
    return [(repr(one.value), one.cause, one.detail, one.columns, one.metrics) for one in results]


def kill(pool: RemotePool) -> None:
    process: Any = pool._process
    with suppress(ProcessLookupError):  # it has ended, and the next one is being started
        os.kill(process.pid, signal.SIGKILL)


def test_its_results_are_those_of_a_pool_beside_the_run(pool: RemotePool) -> None:
    with Pool(REWARDS, LIMITS) as beside:
        for name in REWARDS:
            expected = beside.wait(beside.submit(name, attempts(*ACTS)))
            assert in_short(pool.wait(pool.submit(name, attempts(*ACTS)))) == in_short(expected)
        assert pool.check([Sample("k", "p", "good")]) == beside.check([Sample("k", "p", "good")])
    assert pool.seconds > 0


def test_tickets_are_good_for_one_wait_and_in_any_order(pool: RemotePool) -> None:
    first, second = (pool.submit("one", attempts("good", act)) for act in ("good", "nan"))
    assert [r.votes for r in pool.wait(second)] == [True, False]
    assert [r.votes for r in pool.wait(first[::-1])] == [True, True]
    with pytest.raises(ValueError, match="never given, or were waited for already"):
        pool.wait(first)
    with pytest.raises(KeyError):
        pool.submit("other", attempts("good"))


@linux
def test_one_that_is_killed_is_started_again_and_given_what_it_owed(left: Callable[[], list[int]]) -> None:
    notes: list[str] = []
    with elsewhere(notes.append) as pool:
        early = pool.submit("one", attempts("good", "nan"))
        late = pool.submit("one", attempts("sleep", "good"))  # a second, in which the process is killed
        threading.Timer(0.4, kill, [pool]).start()
        assert [r.cause and r.cause.value for r in pool.wait(late)] == ["timeout", None]
        assert [r.votes for r in pool.wait(early)] == [True, False]
    assert len(notes) == 1
    assert notes[0].startswith(
        "rewards      the process that scores is lost: it ended: killed by SIGKILL; it is started"
    )


@linux
def test_an_episode_goes_on_where_its_process_was_killed(left: Callable[[], list[int]]) -> None:
    turns = ["a", "b", "c", "d"]
    notes: list[str] = []
    environments = PoolEnvironments(
        COUNTS, LIMITS, lambda rewards, limits: RemotePool(rewards, limits, HERE, 60.0, notes.append)
    )
    pool: Any = environments._pool
    begin, begun = environments.begin, []

    def killing(conversation: Any) -> int:
        begun.append(conversation)
        if len(begun) == 3:
            kill(pool)
        return begin(conversation)

    environments.begin = killing  # type: ignore[method-assign]
    try:
        ((*replies,),) = play(environments, turns)
    finally:
        environments.close()
    assert [reply.state for reply in replies] == ["s0", "s1", "s2", "s3", "s4"]
    assert len(notes) == 1


@linux
def test_one_that_is_lost_again_and_again_is_one_line(left: Callable[[], list[int]]) -> None:
    with elsewhere() as pool:
        ticket = pool.submit("one", attempts("sleep"))
        stop = threading.Event()

        def kills() -> None:
            while not stop.wait(0.15):
                if pool._broken is None:
                    kill(pool)

        thread = threading.Thread(target=kills)
        thread.start()
        with pytest.raises(RunError, match=r"^rewards: the process that scores is lost, 3 times in a row: it ended: "):
            pool.wait(ticket)
        stop.set()
        thread.join()
        with pytest.raises(RunError, match="3 times in a row"):
            pool.submit("one", attempts("good"))


@linux
@pytest.mark.slow
def test_one_that_says_nothing_counts_as_lost(left: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "STALLED", 1.0 + 2 * remote.BEAT)
    notes: list[str] = []
    with elsewhere(notes.append) as pool:
        pool.wait(pool.submit("one", attempts("good")))
        process: Any = pool._process
        os.kill(process.pid, signal.SIGSTOP)
        assert [r.votes for r in pool.wait(pool.submit("one", attempts("good")))] == [True]
    assert "it gave no sign of life for 3 seconds" in notes[0]


def test_what_a_pool_refuses_is_refused_in_the_same_words(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def f(sample, completion, level):\n    return 1.0\n")
    words = []
    for make in (lambda r: Pool(r, LIMITS), lambda r: elsewhere(rewards=r)):
        with make({"mine": User(f"{own}:f")}) as pool, pytest.raises(UsageError) as refused:
            pool.check([Sample("k", "p", "good")])
        words.append((str(refused.value), getattr(refused.value, "__notes__", [])))
    assert words[0] == words[1]
    with pytest.raises(UsageError, match=r"^rewards: one of them cannot be sent to another process: "):
        elsewhere(rewards={"mine": lambda attempts: [0.0]})


class Gone:
    """What can be pickled here and is not there."""

    quick = False

    def __reduce__(self) -> Any:
        return eval, ("__import__('no_such_module')",)


def test_what_cannot_be_loaded_there_is_one_line() -> None:
    with elsewhere(rewards={"mine": Gone()}) as pool, pytest.raises(UsageError) as refused:
        pool.check()
    why = "ModuleNotFoundError: No module named 'no_such_module'"
    assert str(refused.value) == f"rewards: one of them cannot be loaded where it is to score: {why}"


def test_an_error_of_the_process_itself_is_an_answer_too(pool: RemotePool) -> None:
    pool._owed[99] = "one", attempts("good")[0]  # of which the process has not heard
    with pytest.raises(RunError, match=r"^rewards: in the process that scores: KeyError: 99$"):
        pool.wait([99])


def test_it_closes_at_once_while_it_scores(left: Callable[[], list[int]]) -> None:
    pool = elsewhere()
    tickets = pool.submit("one", attempts("sleep"))

    def wait() -> None:
        with pytest.raises(RunError, match="closed"):
            pool.wait(tickets)

    waits = threading.Thread(target=wait)
    waits.start()
    time.sleep(0.3)
    begin = time.monotonic()
    pool.close()
    waits.join(5)
    assert not waits.is_alive()
    assert time.monotonic() - begin < 5
