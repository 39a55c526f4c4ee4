"""Rewards that fail for real, in worker processes: each fault costs its own completion, and no process is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from selectors import DefaultSelector, SelectorKey
from typing import Any

import pytest

from groupwise.commands.check.findings import Level
from groupwise.commands.check.trials import Kind, TrialScores, repeated_findings
from groupwise.core.errors import ProcessLost, RunError, UsageError
from groupwise.core.records import Completion
from groupwise.core.samples import Attempt, Cause, Sample, ScoreResult
from groupwise.rewards import isolation as isolate
from groupwise.rewards.functions.form import Format, TaskScore, User
from groupwise.rewards.isolation import Isolation
from groupwise.rewards.pool.dispatch import LOSSES, Dispatcher
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.slot import Clock, Slot
from groupwise.rewards.pool.work import Given, Limits
from groupwise.rewards.pool.worker import ask_where
from groupwise.rewards.zygote import Zygote
from groupwise.rollout.scoring import RewardWeights, Scorer
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.tasks.code import Code
from groupwise.tasks.data.task import Data
from groupwise.tasks.gym.task import Gym
from tests.rewards.judge.server import BAD
from tests.rewards.pool.reward_faults import Late, Slow

linux = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and /proc are Linux's")

FILE = Path(__file__).parent / "reward_faults.py"
ONE, MANY, TOGETHER, MOODY = (User(f"{FILE}:{name}") for name in ("one", "many", "together", "Moody"))

#: Of a reward that returns None: no score, and no fault.
NO_VOTE = "no vote"
#: What is done, and the cause it is counted as; a score where it is no fault.
EXPECTED: dict[str, set[object]] = {
    "loop": {Cause.TIMEOUT},
    "regex": {Cause.TIMEOUT},
    "segfault": {Cause.CRASH},
    "bomb": {Cause.EXCEPTION, Cause.TIMEOUT},
    "daemon": {1.0},
    "twice": {1.0},
    "memory": {Cause.MEMORY},
    "exception": {Cause.EXCEPTION},
    "nan": {Cause.NAN},
    "huge": {Cause.TOO_LARGE},
    "none": {NO_VOTE},
    "string": {Cause.WRONG_TYPE},
    "sleep": {Cause.TIMEOUT},
    "exit": {Cause.EXCEPTION},
    "interrupt": {Cause.EXCEPTION},
    "hard exit": {Cause.CRASH},
    "close": {Cause.CRASH},
    "chatter": {1.0},
    "input": {Cause.EXCEPTION},
    "group": {Cause.CRASH},
}


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    """The processes of this test that are alive, known by their environment; none may be at its end."""
    name, value = "GROUPWISE_TEST_MARK", uuid.uuid4().hex
    monkeypatch.setenv(name, value)

    def alive() -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"{name}={value}".encode() in (folder / "environ").read_bytes()
            except OSError:
                continue
            if marked and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return found

    yield alive
    assert until(lambda: not alive(), 2.0), f"left behind: {alive()}"


def until(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def attempts(*acts: str) -> list[Attempt]:
    return [Attempt(Sample(f"k{i // 2}", "p", "good"), act) for i, act in enumerate(acts)]


def own(folder: Path, text: str, name: str = "f") -> User:
    """A reward of a file of this text."""
    (folder / "own.py").write_text(text)
    return User(f"{folder}/own.py:{name}")


def score(pool: Pool, name: str, completions: list[Attempt]) -> list[ScoreResult]:
    return pool.wait(pool.submit(name, completions))


def outcomes(results: list[ScoreResult]) -> list[object]:
    return [result.value if result.votes else result.cause or NO_VOTE for result in results]


def mixed(*acts: str) -> list[Attempt]:
    """Each fault between two good answers."""
    return attempts(*[act for fault in acts for act in ("good", fault)], "good")


@linux
def test_every_fault_costs_its_own_completion_and_leaves_nothing(left: Callable[[], list[int]]) -> None:
    work = mixed(*EXPECTED)
    with Pool({"mine": ONE}, Limits(workers=2, seconds=1.5)) as pool:
        given = score(pool, "mine", work)
        assert left(), "the mark is not seen: this test would prove nothing"
    for attempt, one in zip(work, given, strict=True):
        assert outcomes([one])[0] in EXPECTED.get(attempt.completion, {1.0}), (attempt.completion, one)
    others = {Cause.WRONG_LENGTH, *(cause for _, cause in BAD.values())} - {Cause.NAN}
    assert {one.cause for one in given if one.cause} == set(Cause) - others
    assert left() == []


@linux
def test_in_a_batch_only_the_culprits_lose_their_score(left: Callable[[], list[int]]) -> None:
    faults = ["sleep", "segfault", "exception", "memory", "none"]
    with Pool({"mine": MANY, "async": TOGETHER}, Limits(workers=2, seconds=0.7)) as pool:
        batched, concurrent = pool.submit("mine", mixed(*faults)), pool.submit("async", mixed(*faults))
        expected: list[object] = [1.0] * 11
        expected[1::2] = [Cause.TIMEOUT, Cause.CRASH, Cause.EXCEPTION, Cause.MEMORY, NO_VOTE]
        assert outcomes(pool.wait(concurrent)) == expected
        assert outcomes(pool.wait(batched)) == expected


SLOW, LATE = TaskScore(Slow()), TaskScore(Late())
LOADS = "import time\ntime.sleep(1.0)\ndef f(attempt): return 1.0\n"


@pytest.mark.parametrize(
    ("reward", "limits", "acts", "expected"),
    [
        pytest.param(MANY, {}, ["good", "short", "good"], [1.0, Cause.WRONG_LENGTH, 1.0], id="a wrong length"),
        pytest.param(MOODY, {}, ["good"] * 10, [1.0] * 10, id="a crash that others caused"),
        pytest.param(ONE, {"memory": 1 << 30}, ["leak"] * 5, [1.0] * 5, id="memory that others leaked", marks=linux),
        pytest.param(
            ONE, {"seconds": 2.0}, ["swarm", "work", "good"], [1.0] * 3, id="processes that another left", marks=linux
        ),
        pytest.param(
            SLOW, {"seconds": 0.5}, ["good", "bad", "sleep"], [1.0, 0.0, Cause.TIMEOUT], id="what a task starts"
        ),
        pytest.param(
            LATE,
            {"seconds": 0.5},
            ["sleep", "segfault", "good"],
            [0.0, Cause.CRASH, 1.0],
            id="late where that is wrong",
        ),
        pytest.param(LOADS, {"seconds": 0.5}, ["a", "b"], [1.0, 1.0], id="loading"),
    ],
)
def test_a_completion_is_charged_for_its_own_fault_alone(
    reward: Any, limits: dict[str, Any], acts: list[str], expected: list[object], tmp_path: Path
) -> None:
    if isinstance(reward, str):
        reward = own(tmp_path, reward)
    with Pool({"mine": reward}, Limits(workers=1, **limits)) as pool:
        assert outcomes(score(pool, "mine", attempts(*acts))) == expected


def test_a_task_says_what_late_is_and_what_it_starts_may_be_lost() -> None:
    tasks = (Data(path="p"), Gym(generator="gcd", problems=20), Arithmetic())
    assert [TaskScore(task).late for task in tasks] == [0.0, 0.0, None]
    with Pool({"task": SLOW}, Limits(workers=1)) as pool, pytest.raises(RunError, match="cannot be started"):
        score(pool, "task", attempts("good", "lost"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return [1.0]", "wrong length of a call for 8 completions: returned 1 scores for 8 completions"),
        ("assert len(completions) == 1; return [1.0]", "exception of a call for 8 completions: Traceback"),
    ],
)
def test_a_call_for_many_that_fails_is_said_also_where_each_alone_has_a_score(
    body: str, words: str, tmp_path: Path
) -> None:
    given = attempts(*["good"] * 8)
    with Pool({"best": own(tmp_path, f"def f(completions, **kwargs): {body}\n")}, Limits(workers=1)) as pool:
        results = score(pool, "best", given)
    assert outcomes(results) == [1.0] * 8
    scorer = Scorer(Arithmetic(), str, RewardWeights({"best": 1.0}))
    for attempt, result in zip(given, results, strict=True):
        scorer.note(attempt.sample, {"best": result}, Completion.of_one_turn((5,), (0.0,), "stop", version=0))
    (told,) = scorer.take_unshown()
    assert told.startswith(f"best, called again for each completion alone: {words}")
    (finding,) = repeated_findings(TrialScores("best", [{Kind.GOLD: result} for result in results]))
    assert finding.level is Level.FAULT
    assert "8 completions got a score only when it was called for each alone" in finding.what


@linux
@pytest.mark.parametrize(
    "isolation", [Isolation.NAMESPACE, pytest.param(Isolation.USER_NAMESPACE, marks=pytest.mark.slow), Isolation.REAPER]
)
def test_each_kind_of_wall_ends_what_was_started(isolation: Isolation, left: Callable[[], list[int]]) -> None:
    if isolation not in (isolate.find_isolation(), Isolation.REAPER) and not isolate.works(isolation):
        pytest.skip(f"this machine does not give {isolation}")
    with Pool({"mine": ONE}, Limits(workers=1, seconds=1.0, isolation=isolation)) as pool:
        daemon, _, _, good = outcomes(score(pool, "mine", attempts("daemon", "sleep", "bomb", "good")))
        assert (daemon, good) == (1.0, 1.0)
        pool.submit("mine", attempts("daemon", "stubborn bomb"))
        time.sleep(0.2)
    assert left() == []


@linux
@pytest.mark.parametrize("which", [0, 1], ids=["the process that tries", "the first of a namespace"])
def test_a_trial_of_isolation_that_hangs_is_ended_and_made_again(
    which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that somebody stops as it is born: the process that makes workers waited for it without end."""
    if isolate.find_isolation() is Isolation.REAPER:
        pytest.skip("this machine has no namespaces to try")
    begun = tmp_path / "begun"

    def hangs(*_: int) -> None:
        with begun.open("a") as file:
            file.write("x")
        if begun.stat().st_size == which + 1:
            time.sleep(60)

    monkeypatch.setattr(isolate, "die_with_parent", hangs)
    monkeypatch.setattr(isolate, "TRIAL", 0.3)
    since = time.monotonic()
    assert isolate.works(isolate.find_isolation())
    assert time.monotonic() - since < 10.0
    assert begun.stat().st_size == which + 5, "one that hangs, and two trials of two processes"


@linux
def test_the_limit_on_tasks_is_never_the_machines() -> None:
    if os.getuid() != 0:
        pytest.skip("only root could change it")
    limit = Path("/proc/sys/kernel/pid_max")
    before = limit.read_text()
    inside = """
from groupwise.rewards import isolation
isolation.unshare(isolation.NEWNS)
isolation.settle(isolation.space())
"""
    subprocess.run([sys.executable, "-c", inside], check=True)
    after = limit.read_text()
    limit.write_text(before)
    assert after == before


@linux
def test_a_fork_bomb_stays_small(left: Callable[[], list[int]]) -> None:
    if isolate.release() < (6, 14) or isolate.find_isolation() is Isolation.REAPER:
        pytest.skip("this machine has no limit of a namespace's own")
    limit = Path("/proc/sys/kernel/pid_max").read_text()
    with Pool({"mine": ONE}, Limits(workers=1, seconds=30.0)) as pool:
        forks, after = outcomes(score(pool, "mine", attempts("forks", "twice")))
        assert isinstance(forks, float)
        assert 200 < forks < isolate.TASKS
        assert after == 1.0, "what the one before left running is charged to this one"
    assert Path("/proc/sys/kernel/pid_max").read_text() == limit


@linux
def test_a_worker_that_has_started_many_processes_may_start_as_many_at_once_as_before() -> None:
    """Linux gives numbers below 300 once: a namespace whose last number is 320 had room for twenty tasks then."""
    with Pool({"mine": ONE}, Limits(workers=1, seconds=30.0)) as pool:
        assert outcomes(score(pool, "mine", attempts("many", "many"))) == [100.0, 100.0]


def test_the_users_own_lines_are_told() -> None:
    with Pool({"mine": ONE}, Limits(workers=1, seconds=0.5)) as pool:
        acts = attempts("exception", "segfault", "sleep", "surrogate")
        exception, crash, late, surrogate = score(pool, "mine", acts)
    assert exception.detail.endswith("KeyError: 'a key of mine'")
    assert crash.detail.endswith("killed by SIGSEGV")
    assert late.detail.endswith("no score after 0.5 s")
    assert surrogate.detail.encode().decode().endswith("half \ufffd of a pair")
    for one in (exception, crash, late):
        assert "reward_faults.py" in one.detail
        assert "groupwise/rewards" not in one.detail


# No more is imported than these need: torch and this file would take 2.5 s.
SCRIPT = """
from groupwise.core.samples import Attempt, Sample
from groupwise.rewards.functions.form import User
from groupwise.rewards.pool.work import Limits
from groupwise.rewards.isolation import Isolation
from groupwise.rewards.pool.pool import Pool
pool = Pool({{"mine": User({use!r})}}, Limits(workers=2, seconds=60, isolation=Isolation({isolation!r})))
def asked(*acts):
    return pool.submit("mine", [Attempt(Sample("k", "p", "good"), act) for act in acts])
print(pool.wait(asked("daemon", "good"))[0].value, flush=True)
pool.wait(asked("sleep", "daemon", "sleep"))
"""


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("isolation", ["found", "reaper"])
def test_a_run_that_is_killed_leaves_no_worker(number: int, isolation: str, left: Callable[[], list[int]]) -> None:
    chosen = isolate.find_isolation() if isolation == "found" else Isolation.REAPER
    script = SCRIPT.format(use=f"{FILE}:one", isolation=chosen.value)
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert run.stdout is not None
    with run.stdout:
        assert run.stdout.readline() == b"1.0\n"
        time.sleep(0.2)
        assert len(left()) > 4
        run.send_signal(number)
        run.wait(10)


@linux
def test_what_does_not_load_stops_the_run_in_one_line(tmp_path: Path, left: Callable[[], list[int]]) -> None:
    with Pool({"mine": own(tmp_path, "import math\nx = math.nope\n")}) as pool:
        with pytest.raises(UsageError, match=r"importing it raised AttributeError.*own.py, line 2") as wrong:
            pool.check()
        assert "x = math.nope" in wrong.value.__notes__[0]
        with pytest.raises(UsageError):
            pool.submit("mine", attempts("good"))
    with (
        Pool({"mine": own(tmp_path, "import time\ntime.sleep(60)\n")}, Limits(load=2.0)) as pool,
        pytest.raises(UsageError, match="cannot be loaded"),
    ):
        score(pool, "mine", attempts("good"))
    with Pool({"mine": lambda attempts: [0.0]}) as pool, pytest.raises(UsageError, match="another process"):
        pool.check()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Leaves", "reward mine: preparing it raised SystemExit: 3"),
        ("Interrupted", "reward mine: preparing it raised KeyboardInterrupt"),
        ("Gone", "reward mine cannot be loaded: ended the process with exit code 3"),
    ],
)
def test_a_reward_that_ends_its_process_while_it_is_made_stops_the_run(name: str, words: str) -> None:
    for call in (lambda pool: pool.check(), lambda pool: score(pool, "mine", attempts("good"))):
        with Pool({"mine": User(f"{FILE}:{name}")}) as pool, pytest.raises(UsageError) as told:
            call(pool)
        assert str(told.value).startswith(words)
        assert "\n" not in str(told.value)


@linux
def test_a_process_that_never_makes_a_worker_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.rewards.pool.dispatch.FAREWELL", 0.2, raising=False)
    start, raised = Dispatcher._zygote, []

    def stopped(self: Dispatcher) -> Zygote:
        zygote = start(self)
        os.kill(zygote.process.pid, signal.SIGSTOP)
        return zygote

    def waits(pool: Pool) -> None:
        with pytest.raises(RunError, match="a process that scores did not start") as told:
            score(pool, "mine", attempts("good"))
        raised.append(told)

    monkeypatch.setattr(Dispatcher, "_zygote", stopped)
    pool = Pool({"mine": ONE}, Limits(workers=1, load=0.3))
    thread = threading.Thread(target=waits, args=(pool,), daemon=True)
    thread.start()
    thread.join(5)
    assert raised, "it still waits"
    pool.close()


@linux
def test_a_pattern_that_hangs_costs_its_own_completion_and_is_counted() -> None:
    texts = attempts("so\n#### 24", "a\n" * 28, "24", "x\n" * 40)
    with Pool({"format": Format(r"(.|\n)*#### \d+")}, Limits(workers=2, seconds=0.5)) as pool:
        begun = time.monotonic()
        results = score(pool, "format", texts)
        assert time.monotonic() - begun < 10
    assert outcomes(results) == [1.0, Cause.TIMEOUT, 0.0, Cause.TIMEOUT]
    assert results[1].detail.endswith("no score after 0.5 s")


@pytest.mark.slow
def test_mathematics_and_generators_are_not_charged_for_their_start() -> None:
    hang = r"\boxed{\lfloor(\sqrt{2}+\sqrt{3}+\sqrt{5}+\sqrt{7})^{3000}\rfloor}"
    texts = [(r"\boxed{\frac{x}{2}}", "x/2"), (hang, "5"), (r"\boxed{\frac{y}{2}}", "y/2")]
    work = [Attempt(Sample(answer, "p", answer), text) for text, answer in texts]
    with Pool({"task": TaskScore(Data(path="p", check="math"))}, Limits(workers=1, seconds=0.8)) as pool:
        assert outcomes(score(pool, "task", work)) == [1.0, 0.0, 1.0]
    gym = Gym(generator="gcd", problems=20)
    sample = gym.samples("train")[0]
    with Pool({"task": TaskScore(gym)}, Limits(workers=1, seconds=0.3)) as pool:
        assert outcomes(score(pool, "task", [Attempt(sample, sample.answer)])) == [1.0]


SCRIPTS = [{"input": str(i), "output": str(i)} for i in range(12)]
CALLS = [{"call": "f", "args": [i], "expected": i} for i in range(12)]
ASSERTS = [f"assert f({i}) == {i}" for i in range(12)]


@linux
@pytest.mark.parametrize(
    ("tests", "partial"),
    [
        pytest.param(SCRIPTS, True, id="scripts", marks=pytest.mark.slow),
        pytest.param(SCRIPTS, False, id="scripts until one fails"),
        pytest.param(CALLS, True, id="calls", marks=pytest.mark.slow),
        pytest.param(ASSERTS, True, id="asserts", marks=pytest.mark.slow),
        pytest.param([CALLS[1], *SCRIPTS, ASSERTS[1]], True, id="all"),
    ],
)
def test_a_program_that_hangs_is_wrong_and_never_unscored(tests: list[object], partial: bool) -> None:
    task = Code(problems=50, seconds=0.3, partial=partial)
    sample = Sample("k", "p", "", {"tests": tests, "entry_point": "", "prefix": ""})
    hangs = [
        "import time\ntime.sleep(100)",
        "def f(x):\n  while True:\n    try:\n      while True: pass\n    except BaseException: pass\nf(0)",
        "import time\ndef f(x):\n    time.sleep(0.2)\n    return x\nif __name__ == '__main__': print(f(int(input())))",
        "import os\ndef f(x):\n    os.closerange(0, 64)\n    while True: pass\nf(0)",
    ]
    with Pool({"task": TaskScore(task)}, Limits(workers=2, seconds=0.3 + 2.0)) as pool:
        results = score(pool, "task", [Attempt(sample, text) for text in hangs])
    assert [result.cause for result in results] == [None] * len(hangs)
    assert max(result.value for result in results) < 1.0


@pytest.mark.parametrize("fields", [{"workers": 0}, {"seconds": 0.0}, {"load": 0.0}, {"memory": -1}], ids=repr)
def test_limits_that_nothing_could_run_in_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="workers must be 1 or more, seconds above 0"):
        Limits(**fields)


@linux
@pytest.mark.parametrize("moment", ["before a worker", "while workers score", "at rest"])
def test_a_process_that_makes_workers_is_killed_and_every_completion_has_its_score(moment: str, tmp_path: Path) -> None:
    """All that it made ends with it, whatever that was doing, and no completion is charged for it."""
    with Pool(
        {"mine": own(tmp_path, "import time\ndef f(attempt):\n    time.sleep(0.02)\n    return 0.5\n")},
        Limits(workers=2),
    ) as pool:
        dispatcher = pool._dispatcher
        if moment == "at rest":
            assert score(pool, "mine", attempts("good"))[0].value == 0.5
        tickets = pool.submit("mine", attempts(*["good"] * 20))
        end = time.monotonic() + 20
        while time.monotonic() < end:
            maker, slots = dispatcher.maker, dispatcher.slots
            if moment == "while workers score" and not any(slot.served for slot in slots):
                continue
            if maker is not None and (slots or moment != "before a worker"):
                break
            time.sleep(0.001)
        assert maker is not None
        os.kill(maker.process.pid, signal.SIGKILL)
        assert [(r.value, r.cause) for r in pool.wait(tickets)] == [(0.5, None)] * 20
        assert dispatcher.maker is not maker


@linux
@pytest.mark.parametrize("told", ["rewards", "kind"], ids=["before it has its rewards", "before it has work"])
def test_a_worker_that_is_killed_as_it_is_told_something_is_replaced(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line breaks before the end of its keeper is seen: it was taken for one that the run had asked to end."""
    own, killed = Slot.send, list[int]()

    def send(slot: Slot, given: Given, seconds: float) -> None:
        if told in given.message and not killed:
            killed.append(slot.clock.pid)
            os.kill(slot.clock.pid, signal.SIGKILL)
            while slot.line.recv(1, socket.MSG_PEEK):
                time.sleep(0.001)
            raise BrokenPipeError
        own(slot, given, seconds)

    monkeypatch.setattr(Slot, "send", send)
    with Pool({"mine": ONE}, Limits(workers=1)) as pool:
        pool.check()
        assert outcomes(score(pool, "mine", attempts("good", "twice"))) == [1.0, 1.0]
    assert killed


#: Whom a signal hits, which, and when: as the reward is loaded, in the first score of a process, or at its death.
STRUCK = {
    "worker, loading": ("worker", signal.SIGKILL, "loading"),
    "worker, first score": ("worker", signal.SIGKILL, "score"),
    "keeper, loading": ("keeper", signal.SIGKILL, "loading"),
    "keeper, first score": ("keeper", signal.SIGKILL, "score"),
    "worker, stopped for good": ("worker", signal.SIGSTOP, "score"),
}


@linux
@pytest.mark.parametrize("name", STRUCK)
def test_whatever_is_killed_or_stopped_from_outside_costs_no_completion_its_score(name: str, tmp_path: Path) -> None:
    """Also the first that a process scores, which nothing before it can have harmed."""
    who, number, moment = STRUCK[name]
    begun = {at: tmp_path / at for at in ("loading", "score")}
    waits = "import pathlib, time\ndef at(name):\n    pathlib.Path(name).touch()\n    time.sleep(0.15)\n"
    code = f"{waits}at({str(begun['loading'])!r})\ndef f(attempt):\n    at({str(begun['score'])!r})\n    return 0.5\n"
    with Pool({"mine": own(tmp_path, code)}, Limits(workers=1, seconds=0.6)) as pool:
        tickets = pool.submit("mine", attempts("good", "good"))
        end = time.monotonic() + 20
        while not begun[moment].exists() and time.monotonic() < end:
            time.sleep(0.001)
        (slot,) = pool._dispatcher.slots
        pid = slot.clock.pid if who == "worker" else int(isolate.stat_fields(slot.clock.pid)[1])
        os.kill(pid, number)
        assert [(r.value, r.cause) for r in pool.wait(tickets)] == [(0.5, None)] * 2


@linux
def test_what_makes_workers_and_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.rewards.pool.dispatch.FAREWELL", 0.2)
    start, started = Dispatcher._zygote, list[Zygote]()

    def first_stopped(self: Dispatcher) -> Zygote:
        started.append(start(self))
        if len(started) == 1:
            os.kill(started[0].process.pid, signal.SIGSTOP)
        return started[-1]

    monkeypatch.setattr(Dispatcher, "_zygote", first_stopped)
    with Pool({"mine": ONE}, Limits(workers=2, load=2.5)) as pool:
        assert [r.value for r in score(pool, "mine", attempts("good", "good"))] == [1.0, 1.0]
        assert len(started) == 2
        assert started[0].process.returncode == -signal.SIGKILL


@linux
def test_a_worker_that_dies_again_and_again_as_it_starts_is_a_lost_process(tmp_path: Path) -> None:
    """As where the system kills for memory: it is tried again, and not for ever."""
    code = f"import os\nwith open({str(tmp_path / 'starts')!r}, 'a') as f: f.write('1')\nos.kill(os.getpid(), 9)\n"
    with (
        Pool({"mine": own(tmp_path, code)}) as pool,
        pytest.raises(UsageError, match="cannot be loaded: killed by SIG"),
    ):
        score(pool, "mine", attempts("good"))
    assert (tmp_path / "starts").read_text() == "1" * (LOSSES + 1)


def test_a_worker_whose_two_connections_end_in_one_moment_is_removed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leash may be seen to end before its line."""

    def is_line(event: tuple[SelectorKey, int]) -> bool:
        key, _ = event
        return key.data is not None and key.fileobj is key.data.line

    def leash_first(selector: DefaultSelector, seconds: float | None = None) -> list[tuple[SelectorKey, int]]:
        as_they_come(selector, seconds)
        time.sleep(0.1)  # in which the other one ends too
        return sorted(as_they_come(selector, 0), key=is_line)

    as_they_come = DefaultSelector.select
    monkeypatch.setattr(DefaultSelector, "select", leash_first)
    with Pool({"mine": ONE}, Limits(workers=1)) as pool:
        results = score(pool, "mine", attempts("good", "hard exit", "good"))
    assert [result.cause for result in results] == [None, Cause.CRASH, None]


def test_a_lost_process_that_starts_workers_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Zygote("no.such.module", {}, "")
    child.process.wait()
    monkeypatch.setattr(Dispatcher, "_zygote", lambda self: child)
    words = "do not start: the process that starts them is lost: it ended: exit code 1$"
    with Pool({"mine": ONE}) as pool, pytest.raises(ProcessLost) as told:
        score(pool, "mine", attempts("good"))
    assert re.search(words, told.value.loss)


def test_check_tells_the_forms_and_tries_the_columns(tmp_path: Path) -> None:
    with Pool(
        {"mine": ONE, "trl": own(tmp_path, "def f(completions, level, **kwargs): return [0.0 for _ in completions]\n")}
    ) as pool:
        forms = pool.check([Sample("k", "p", "a", {"level": 3})])
        assert forms["trl"] == "TRL reward_funcs: completions, level, **kwargs"
        with pytest.raises(UsageError, match="parameter 'level'"):
            pool.check([Sample("k", "p", "a")])


def test_a_task_scores_in_the_pool_and_tickets_may_be_taken_in_any_order() -> None:
    task = Arithmetic()
    samples = task.samples("heldout")[:200]
    with Pool({"task": TaskScore(task)}, Limits(workers=2)) as pool:
        first = pool.submit("task", [Attempt(sample, sample.answer) for sample in samples])
        second = pool.submit(
            "task", [Attempt(sample, "x" if i % 3 else sample.answer) for i, sample in enumerate(samples)]
        )
        assert outcomes(pool.wait(second)) == [float(i % 3 == 0) for i in range(200)]
        assert outcomes(pool.wait(first[::-1])) == [1.0] * 200
        with pytest.raises(ValueError, match="waited for already"):
            pool.wait(first[:1])


def test_a_run_works_while_its_completions_are_scored(tmp_path: Path) -> None:
    text = f"def f(attempt):\n    open({str(tmp_path / 'calls')!r}, 'a').write('x')\n    return 1.0\n"
    with Pool({"mine": own(tmp_path, text)}, Limits(workers=4)) as pool:
        tickets = pool.submit("mine", attempts(*["x"] * 16))
        assert until(lambda: all(future.done() for future in pool._dispatcher.futures.values()))
        assert (tmp_path / "calls").read_text() == "x" * 16
        assert outcomes(pool.wait(tickets)) == [1.0] * 16
        assert (tmp_path / "calls").read_text() == "x" * 16, "nothing is left to do for the one who waits"


def test_closing_while_another_waits_lets_it_go(left: Callable[[], list[int]]) -> None:
    pool, raised = Pool({"mine": ONE}, Limits(workers=1, seconds=60)), []

    def waits() -> None:
        with pytest.raises(RunError, match="closed") as error:
            score(pool, "mine", attempts("sleep"))
        raised.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    assert until(lambda: bool(left()))
    time.sleep(0.2)
    pool.close()
    thread.join(5)
    assert raised
    with pytest.raises(RunError, match="closed"):
        pool.submit("mine", attempts("good"))


@linux
def test_a_new_worker_is_there_in_a_moment() -> None:
    with Pool({"mine": ONE}, Limits(workers=1, seconds=5)) as pool:
        score(pool, "mine", attempts("good"))
        took = []
        for _ in range(3):  # another process may hold the cores for a while, not three times
            started = time.monotonic()
            assert outcomes(score(pool, "mine", attempts("hard exit", "good"))) == [Cause.CRASH, 1.0]
            took.append(time.monotonic() - started)
        assert min(took) < 1.0  # two new ones: a crash is believed only of a fresh process


@linux
def test_time_without_a_core_is_not_charged() -> None:
    busy = [
        sys.executable,
        "-c",
        "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass",
    ]
    crowd = [subprocess.Popen(busy) for _ in range(4)]
    try:
        time.sleep(0.3)
        clock = Clock(pid=crowd[0].pid)
        clock.start()
        time.sleep(1.0)
        assert 0.0 < clock.seconds() < 0.7
    finally:
        for process in crowd:
            process.kill()
            process.wait()


def test_rewards_whose_completions_come_interleaved_each_score_their_own(tmp_path: Path) -> None:
    """As a run hands them over: every completion to each reward in turn, all of a group together or not."""
    (tmp_path / "own.py").write_text(
        "def tens(samples, completions):\n    return [10.0 * int(c) for c in completions]\n"
        "def ones(sample, completion):\n    return float(completion)\n"
        "def hundreds(completions, **kwargs):\n    return [100.0 * int(c) for c in completions]\n"
    )
    names = {"tens": 10, "ones": 1, "hundreds": 100}
    given = [Attempt(Sample(f"k{i // 8}", "", ""), str(i)) for i in range(200)]
    with Pool({name: User(f"{tmp_path}/own.py:{name}") for name in names}, Limits(workers=2, seconds=5.0)) as pool:
        tickets = [(name, pool.submit(name, [attempt])[0]) for attempt in given for name in names]
        for name, scale in names.items():
            results = pool.wait([ticket for own, ticket in tickets if own == name])
            assert [result.value for result in results] == [scale * float(i) for i in range(200)]


def test_a_worker_that_ends_while_it_is_asked_where_it_is_is_no_fault():
    """A pool that closes asks its workers, which may have ended a moment before."""
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    ask_where(ended.pid)


KEEPER = """
import os, socket
from groupwise.rewards.pool.worker import keep
(line, _), (leash, run) = socket.socketpair(), socket.socketpair()
run.close()
keep(line, leash, lambda: os._exit(0), alone=True)
"""


@linux
def test_a_keeper_whose_run_has_gone_ends_without_a_word() -> None:
    """The run ended while a worker started: nobody is there to be told, and its last line stays the last."""
    done = subprocess.run([sys.executable, "-c", KEEPER], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
