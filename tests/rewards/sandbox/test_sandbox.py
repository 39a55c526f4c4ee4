"""The sandbox against the corpus of escapes, for real: nothing gets out, nothing is scored right, nothing is left."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import RunError, UsageError
from groupwise.rewards.sandbox import ACCEPTED, Kind, Limits, Sandbox
from groupwise.rewards.sandbox import box as box_module
from groupwise.rewards.sandbox.judge import parse, passed
from tests.rewards.sandbox import escapes
from tests.rewards.sandbox.escapes import Case, Outside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")

ROOT = Path(__file__).parents[3]
CASES = [(name, case) for name in (*escapes.ESCAPES, "resources") for case in escapes.corpus(name)]
KINDS = {
    "ten gigabytes": Kind.MEMORY,
    "ten gigabytes bit by bit": Kind.MEMORY,
    # From 3.12 on Python counts the depth of C's calls too, and raises.
    "recursion without end": Kind.CRASH if sys.version_info < (3, 12) else Kind.EXCEPTION,
    "a segmentation fault": Kind.CRASH,
    "a loop in C": Kind.TIMEOUT,
    "a search in C": Kind.TIMEOUT,
    "sleeping past the deadline": Kind.TIMEOUT,
    "a loop that catches everything": Kind.TIMEOUT,
    "output without end": Kind.OUTPUT,
    "errors without end": Kind.OUTPUT,
    "fork bomb": Kind.EXCEPTION,
    "calls of the 32-bit table": Kind.CRASH,
}


def _named(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=case.name) for case in cases]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    made = Outside(tmp_path_factory.mktemp("outside"))
    os.environ[escapes.SECRET_NAME] = made.secret
    yield made
    del os.environ[escapes.SECRET_NAME]
    made.close()


MODES = list(escapes.MODES)


def across(cases: Iterable[Case], modes: Sequence[str] = MODES) -> list[Any]:
    """Each case under each mode; one that ends by its deadline, whatever the layers, under the first alone."""
    return [
        pytest.param(mode, case, id=f"{mode}: {case.name}")
        for mode in modes
        for case in cases
        if mode == modes[0] or not case.slow
    ]


@pytest.fixture(scope="module")
def boxes() -> Iterator[Callable[[str], Sandbox]]:
    """One sandbox per mode for all tests. Not a parametrised fixture: pytest would make it anew for each test."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda mode: stack.enter_context(Sandbox(escapes.LIMITS, without=escapes.MODES[mode])))


@pytest.fixture(params=MODES)
def box(request: pytest.FixtureRequest, boxes: Callable[[str], Sandbox]) -> Sandbox:
    made = boxes(request.param)
    if not escapes.offered(made.layers, request.param):
        pytest.skip(f"this machine gives no {request.param}")
    return made


@pytest.fixture
def alone(box: Sandbox) -> Iterator[int]:
    """How many processes the sandbox has while it runs no program; after the test as many again."""
    assert box.layers.enough
    process = box._zygote.process.pid
    count = len(escapes.descendants(process))
    yield count
    assert box._zygote.process.pid == process, "the program brought the zygote down"
    assert escapes.settled(process, count)


@pytest.mark.parametrize(("box", "case"), across([case for _, case in CASES]), indirect=["box"])
def test_no_program_gets_out(box: Sandbox, alone: int, case: Case, outside: Outside) -> None:
    faults, outcome = escapes.escape_faults(box, case, outside)
    assert faults == []
    assert outcome.kind is KINDS.get(case.name, outcome.kind)


@pytest.mark.parametrize(("box", "case"), across(escapes.corpus("grading"), MODES[:2]), indirect=["box"])
def test_no_trick_is_scored_right(box: Sandbox, alone: int, case: Case, outside: Outside) -> None:
    assert escapes.grading_faults(box, case, outside) == []


@pytest.mark.parametrize("layers", escapes.SETS)
def test_nothing_that_a_program_raises_steers_a_test(layers: str) -> None:
    with Sandbox(escapes.LIMITS, without=escapes.SETS[layers]) as made:
        if not escapes.offered(made.layers, layers):
            pytest.skip(f"this machine does not give: {layers}")
        assert escapes.steering_faults(made) == []


@pytest.mark.parametrize("case", _named(escapes.corpus("honest")))
def test_honest_programs_are_scored_right(box: Sandbox, alone: int, case: Case) -> None:
    assert escapes.honest_faults(box, case) == []


def test_the_corpus_is_as_large_as_promised() -> None:
    names = [case.name for name in (*escapes.ESCAPES, "resources", "grading") for case in escapes.corpus(name)]
    assert len(names) >= 100
    assert len(set(names)) == len(names)


def test_too_few_layers_are_refused_and_the_sentence_accepts_them() -> None:
    bare = ("namespaces", "bubblewrap", "landlock")
    with Sandbox(without=bare) as made, pytest.raises(UsageError, match=r"Landlock.*task.sandbox = ") as told:
        made.run("print(1)")
    assert ACCEPTED in str(told.value)
    with Sandbox(without=("seccomp",)) as made, pytest.raises(UsageError, match="seccomp"):
        made.run("print(1)")
    with Sandbox(without=(*bare, "seccomp"), accept_risk=True) as made:
        assert made.run("print(1)").stdout == "1\n"


def test_a_layer_that_does_not_hold_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe runs before the first program; a way out that is open stops the run."""
    monkeypatch.setattr(box_module, "_PROBE", "import os\nos.getpid()\nprint('signals')")
    with Sandbox() as made, pytest.raises(RunError, match=r"tries to get out succeeds: .*signals"):
        made.run("print(1)")


def test_each_program_is_fresh(box: Sandbox) -> None:
    box.run("import builtins, math\nbuiltins.held = math.held = 1")
    assert (
        box.run("import builtins, math\nprint(hasattr(builtins, 'held'), hasattr(math, 'held'))").stdout
        == "False False\n"
    )
    drawn = {box.run("import random\nprint(random.random(), list({'a', 'b', 'c', 'd'}))").stdout for _ in range(3)}
    assert len(drawn) == 1, "the same program gives the same output in every run"


def test_answers_without_the_questions_nonce_end_the_program(box: Sandbox) -> None:
    forged = """
        import json, os
        for message in ({"value": None}, {"value": 42}):
            body = json.dumps(message).encode()
            os.write(3, len(body).to_bytes(4, "big") + body)
        def f(): return 42
    """
    with box.session(textwrap.dedent(forged)) as session:
        assert session.loaded is None
        assert session.call("f") is None
        assert session.close().detail == "it sent a message without the question's nonce"


def test_a_script_reads_its_input_and_keeps_its_exit_code(box: Sandbox) -> None:
    long = "x" * 300_000
    assert box.run("print(len(input()))", long + "\n").stdout == "300000\n"
    assert box.run("print('never read')", long).stdout == "never read\n"
    assert box.run("import sys\nprint(1)\nsys.exit(3)").detail == "exit code 3"
    failed = box.run("print(1)\n1/0")
    assert (failed.kind, failed.stdout, failed.detail) == (Kind.EXCEPTION, "1\n", "ZeroDivisionError: division by zero")
    assert 'File "<completion>", line 2' in failed.stderr
    assert "inside" not in failed.stderr


def test_the_deadline_is_kept(box: Sandbox) -> None:
    begun = time.monotonic()
    assert box.run("while True: pass", limits=Limits(seconds=0.3)).kind is Kind.TIMEOUT
    assert time.monotonic() - begun < 5


def test_a_lost_zygote_is_replaced(box: Sandbox) -> None:
    before = box._zygote.process
    os.killpg(before.pid, signal.SIGKILL)
    before.wait()
    assert box.run("print(1)").stdout == "1\n"
    assert box._zygote.process is not before


@pytest.mark.parametrize("whole", [True, False], ids=["with what makes them", "alone"])
def test_a_program_that_is_killed_from_outside_is_judged_all_the_same(whole: bool) -> None:
    """It runs once more, and is no slower for it than its sandbox allows twice."""
    program = "import time\ndef f(x):\n    time.sleep(0.4)\n    return x + 1\n"

    def kill(zygote: int) -> None:
        time.sleep(0.2)
        for pid in (zygote, *escapes.descendants(zygote)) if whole else escapes.descendants(zygote)[-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    with Sandbox() as made:
        made.run("print(1)")
        killer = threading.Thread(target=kill, args=(made._zygote.process.pid,))
        killer.start()
        assert passed(made, program, parse([{"call": "f", "args": [1], "expected": 2}])) == [True]
        killer.join()
        assert made.struck == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_trial_of_the_layers_that_is_killed_from_outside_is_made_once_more(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box_module, "_PROBE", "import time\ntime.sleep(2.0)\n" + box_module._PROBE)
    made = Sandbox()
    killed = set[int]()

    def kill() -> None:
        while len(killed) < times:
            time.sleep(0.3)
            if made._zygote is not None:
                for pid in set(escapes.descendants(made._zygote.process.pid)[-1:]) - killed:
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    with made:
        killer.start()
        if times == 1:
            assert made.run("print(1)").stdout == "1\n"
        else:
            with pytest.raises(RunError, match="was killed from outside twice"):
                made.run("print(1)")
        killer.join()
        assert made.struck == times


def test_a_stopped_zygote_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.rewards.zygote.ORDER", 0.3)
    with Sandbox() as made:
        made.run("print(1)")
        hung = made._zygote.process
        for process in (hung.pid, *escapes.descendants(hung.pid)):
            os.kill(process, signal.SIGSTOP)
        assert made.run("print(2)").stdout == "2\n"
        assert hung.poll() is not None


def test_nothing_outlives_the_supervisor() -> None:
    """Also where it is killed and cannot clean up, with a program running that would run forever."""
    script = """
        import sys
        from groupwise.rewards.sandbox import Limits, Sandbox
        box = Sandbox(Limits(seconds=600))
        session = box.session("def f(): return 1")
        print(box._zygote.process.pid, flush=True)
        box.run("while True: pass")
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    zygote = int(parent.stdout.readline())
    parent.stdout.close()
    time.sleep(0.3)
    below = [zygote, *escapes.descendants(zygote)]
    assert len(below) >= 3
    parent.kill()
    parent.wait()
    until = time.monotonic() + 10
    while any(_runs(process) for process in below) and time.monotonic() < until:
        time.sleep(0.01)
    assert [process for process in below if _runs(process)] == []


def _runs(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="every other test runs as an ordinary user already")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv to become another user with")
def test_the_whole_corpus_as_an_ordinary_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    python = next((p for p in (sys.executable, "/usr/bin/python3") if _everyone_runs(p)), None)
    if python is None:
        pytest.skip("no Python of version 3.11 or later that every user may run")
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        shutil.copytree(ROOT / "src" / "groupwise", folder / "groupwise", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(Path(escapes.__file__).parent, folder / "escapes")
        (folder / "canary").mkdir()
        (folder / "canary").chmod(0o777)
        folder.chmod(0o755)
        command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", python, "-B", "-c"]
        done = subprocess.run([*command, _AS_USER], cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.stdout.splitlines()[1:] == [], done.stdout
        assert (done.returncode, done.stderr) == (0, "")
        assert "seccomp" in done.stdout
    finally:
        shutil.rmtree(folder)


_AS_USER = """
import os, sys
from pathlib import Path
sys.path.insert(0, "")
import escapes
from groupwise.rewards.sandbox import Sandbox
outside = escapes.Outside(Path("canary").absolute())
os.environ[escapes.SECRET_NAME] = outside.secret
with Sandbox() as box:
    print(box.layers)
    for fault in escapes.every_fault(box, outside):
        print(fault)
outside.close()
"""


def _everyone_runs(python: str) -> bool:
    program = "import os, sys; sys.exit(sys.version_info < (3, 11) or not os.access(sys.executable, os.X_OK))"
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", python, "-c", program]
    return subprocess.run(command, capture_output=True, cwd="/").returncode == 0
