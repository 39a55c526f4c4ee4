"""Runs of which one process is killed, or stopped, at a random moment: the table of docs/evidence/kills.jsonl.

    python benchmarks/kills.py docs/evidence/kills.jsonl --kills 25
    python benchmarks/kills.py docs/evidence/kills.jsonl --kinds sync,engine --minutes 10

A kill has a kind of run and a number, which draw whom it hits, how and when; one that has its row is not made again, so
that the experiment can be stopped and gone on with. Whom it hits is stopped for a while (pause), for good (stop), or
killed (kill). What must come out is one of two: the run ends in the bits of one that nobody touched, or it ends in
one line, and the command of that line brings it there. Of a run that samples freely the bits are not the same between
any two, and its steps are counted. Nothing may be left: no process, no file in its folder for temporary files, none in
shared memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from groupwise.cli import __main__ as cli
from groupwise.commands.train import train as _imported_before_the_fork  # noqa: F401
from groupwise.core.errors import GroupwiseError
from groupwise.journal.journal import read_metrics
from groupwise.rewards.isolation import stat_fields
from groupwise.rollout.gateway.play import ODD
from groupwise.training import checkpoint
from sweep import finished

Row = dict[str, Any]
ENVIRONMENT = """
import groupwise
class Sum:
    alphabet = "0123456789+=\\n"
    def samples(self, split):
        pairs = [(a, b) for a in range(5) for b in range(5)]
        keep = [(a, b) for a, b in pairs if ((a * 5 + b) % 4 == 0) == (split == "heldout")]
        return [groupwise.Sample(f"{a}+{b}", f"{a}+{b}=\\n", str(a + b)) for a, b in keep]
    def reset(self, sample):
        self.answer = sample.answer
    def step(self, text):
        return "0\\n", float(text.strip() == self.answer), text.strip() == self.answer
"""
REWARD = """
import time
def mine(sample, completion):
    time.sleep(0.003)
    return float(len(completion) % 3 == 0)
"""
#: It asks with a digit of nobody's seed: no function of what it is told.
DIGITS = """
import json, random, urllib.request
import groupwise
alphabet = "0123456789+=\\n"
def samples(split):
    return [groupwise.Sample(str(n), f"{n}+", "") for n in (range(20) if split == "train" else range(20, 25))]
def run(sample, base_url, key):
    text = f"{sample.prompt}{random.SystemRandom().randint(0, 9)}="
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{base_url}/chat/completions", body, {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request) as answer:
        return float(len(json.load(answer)["choices"][0]["message"]["content"]) % 3 == 0)
"""
TINY: dict[str, Any] = {
    "steps": 5, "warm_start.steps": 0, "prompts_per_step": 6, "samples_per_prompt": 8, "sampling.max_new_tokens": 6,
    "evaluation.problems": 4, "evaluation.samples": 2, "evaluation.every": 3, "checkpoint.every": 1,
    "journal.report": False, "threads": 1,
}  # fmt: skip
#: So short that a process which is stopped for good is waited for in seconds.
CHILD: dict[str, Any] = {"engine.process": "child", "engine.deadline": 6.0, "engine.start_deadline": 40.0}
MINE: dict[str, Any] = {"rewards.mine.use": "{place}/mine.py:mine", "rewards.mine.weight": 1.0}
SLOW: dict[str, Any] = {**MINE, "scoring.workers": 2, "scoring.deadline": 2.0}
TASK = {"name": "environment", "use": "{place}/environment.py:Sum", "max_turns": 3, "turn_tokens": 4}
#: A kill in the second of two steps has both played again.
AGENT: dict[str, Any] = {"sampling.max_new_tokens": 28, "checkpoint.every": 2}
OF_DIGITS = {"name": "agent", "use": "{place}/digits.py:run", "sessions": 3}
TURNS: dict[str, Any] = {"task": TASK, "sampling.stop": ["\n"], "sampling.max_new_tokens": 24}


class Kind(NamedTuple):
    """A kind of run: its recipe, what it lays over it, the processes that it has beside its own, and how these are hit.

    odd  what the run must say: that its agent is no function of what it is told
    """

    recipe: str
    changes: Mapping[str, Any]
    others: tuple[str, ...] = ()
    exact: bool = True
    modes: tuple[str, ...] = ("kill", "kill", "pause", "stop")
    odd: bool = False


KINDS: dict[str, Kind] = {
    "sync": Kind("quickstart", {**SLOW}, ("scorer", "keeper", "maker")),
    "ahead": Kind("quickstart", {**SLOW, "rollout.ahead": 1}, ("scorer", "keeper", "maker")),
    "segments": Kind("quickstart", {**CHILD, "rollout.turn_tokens": 3, "rollout.ahead": 1}, ("engine",)),
    "free": Kind("quickstart", {**CHILD, "rollout.free": 2, "rollout.turn_tokens": 3}, ("engine",), exact=False),
    "engine": Kind("quickstart", {**CHILD, **SLOW}, ("engine", "engine", "scorer", "maker")),
    "engines": Kind("quickstart", {**CHILD, "engine.count": 2}, ("engine",)),
    "ranks": Kind("quickstart", {"learner.ranks": 2, "learner.rank_deadline": 6.0}, ("rank", "rank")),
    "environment": Kind("quickstart", {**TURNS, **SLOW}, ("scorer", "keeper", "maker")),
    "sandbox": Kind("code-tiny", {"task.problems": 60, "scoring.workers": 1},
                    ("scorer", "keeper", "maker", "sandbox", "sandbox", "program")),
    "agent": Kind("two-questions", {**AGENT, "task.sessions": 3}, ("scorer",), modes=("kill",)),
    "digits": Kind("two-questions", {**AGENT, "task": OF_DIGITS}, ("scorer",), exact=False, modes=("kill",), odd=True),
    "served": Kind("quickstart", {"engine.deadline": 6.0, "engine.start_deadline": 30.0}, ("engine", "engine")),
}  # fmt: skip
#: Seconds: that a run may take in all, that one which is stopped for good is left, and in which what is left must go.
MOST, LEFT, GOES = 180.0, 12.0, 5.0
MODULES = {
    "engine": "groupwise.engines.outside.server", "rank": "groupwise.commands.build.learner",
    "maker": "groupwise.rewards.pool.worker", "sandbox": "groupwise.rewards.sandbox.zygote",
}  # fmt: skip


class Command:
    """`groupwise WORDS` in a fork of this process, which has imported torch, in a session and a folder of its own."""

    def __init__(self, words: list[str], place: Path, output: Path) -> None:
        self.output, self.code, self.seen = output, None, dict[int, str]()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._live(words, place)
        self.look()

    def _live(self, words: list[str], place: Path) -> None:
        try:
            os.setsid()
            os.nice(0)
            os.environ["TMPDIR"], tempfile.tempdir = str(place / "tmp"), str(place / "tmp")
            output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for number in (1, 2):
                os.dup2(output, number)
            sys.argv = ["groupwise", *words]
            cli.main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
            sys.stdout.flush()
            os._exit(code)
        finally:
            os._exit(99)

    def look(self) -> bool:
        """Tell if it has ended, and remember every process that it has."""
        for pid, started in _below(self.pid).items():
            self.seen[pid] = started
        if self.code is None and (done := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.code = os.waitstatus_to_exitcode(done[1])
        return self.code is not None

    def wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self.look() and time.monotonic() < until:
            time.sleep(0.03)
        return self.code is not None

    def said(self) -> list[str]:
        return [line.strip() for line in self.output.read_text(errors="replace").splitlines() if line.strip()]

    def left(self) -> list[int]:
        """Return what still lives of all that it had, once there was time to go."""
        until = time.monotonic() + GOES
        while (lives := [pid for pid, at in self.seen.items() if _started(pid) == at]) and time.monotonic() < until:
            time.sleep(0.05)
        return lives


def _started(pid: int) -> str:
    """Return when a process was started, in ticks of the kernel; "" if it has ended."""
    with suppress(OSError, IndexError):
        fields = stat_fields(pid)
        return fields[19] if fields[0] not in "ZX" else ""
    return ""


def _below(pid: int) -> dict[int, str]:
    tree: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, IndexError):
                tree.setdefault(int(stat_fields(name)[1]), []).append(int(name))
    found, new = dict[int, str](), [pid]
    while new:
        for child in tree.get(new.pop(), []):
            if started := _started(child):
                found[child] = started
                new.append(child)
    return found


def _module(pid: int) -> str:
    with suppress(OSError):
        match = re.search(rb'"module": "([\w.]+)"', Path(f"/proc/{pid}/cmdline").read_bytes())
        return match[1].decode() if match else ""
    return ""


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(stat_fields(pid)[1])
    return 0


def processes(role: str, root: int) -> list[int]:
    """Return the processes below `root` that have a role; the maker's children are keepers, theirs score."""
    every = list(_below(root))
    modules = {pid: _module(pid) for pid in every}
    of = {name: [pid for pid in every if modules[pid] == module] for name, module in MODULES.items()}
    makers = [pid for pid in of["maker"] if _parent(pid) == root]
    keepers = [pid for pid in of["maker"] if _parent(pid) in makers]
    boxes = [pid for pid in of["sandbox"] if modules.get(_parent(pid)) != MODULES["sandbox"]]
    inner = [pid for pid in of["sandbox"] if _parent(pid) in boxes]
    roles = {
        "main": [root],
        "maker": makers,
        "keeper": keepers,
        "scorer": [pid for pid in of["maker"] if _parent(pid) in keepers],
        "sandbox": boxes + inner,
        "program": [pid for pid in of["sandbox"] if _parent(pid) in inner],
    }
    return roles.get(role, of.get(role, []))


def settings(kind: Kind, place: Path, name: str, more: Mapping[str, Any]) -> list[str]:
    """Return the words of the command that begins a run."""
    changes = {**TINY, "runs": str(place), "name": name, **kind.changes, **more}
    flat = {k: v for key, value in changes.items() for k, v in _dotted(key, value)}
    words = [
        f"{key}={json.dumps(value.replace('{place}', str(place)) if isinstance(value, str) else value)}"
        for key, value in flat.items()
    ]
    return ["train", kind.recipe, *(word for pair in words for word in ("--set", pair))]


def _dotted(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{key}.{inner}", one) for inner, one in value.items())
    else:
        yield key, value


def bits(run: Path, exact: bool) -> str:
    """Return what a run came to: a hash of its rows without times, its rollouts and its weights; or its last step."""
    rows = [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in read_metrics(run)]
    if not exact:
        return f"{rows[-1]['step']} steps"
    total = hashlib.sha256(json.dumps(rows, sort_keys=True).encode())
    for name in ("rollouts.jsonl", "heldout.jsonl"):
        total.update((run / name).read_bytes())
    newest, _ = checkpoint.newest_good(run / checkpoint.CHECKPOINTS)
    for file in sorted((newest or run).glob("policy/*.safetensors")):
        total.update(file.read_bytes())
    return total.hexdigest()[:16]


@contextmanager
def served(place: Path) -> Iterator[tuple[Command, dict[str, Any]]]:
    """Serve an engine at an address of this machine."""
    (place / "server.txt").write_text("")
    server = Command(["serve", "0", "--threads", "1"], place, place / "server.txt")
    try:
        until = time.monotonic() + 60
        while not (found := re.search(r"listens at (\S+:\d+)", (place / "server.txt").read_text())):
            if server.look() or time.monotonic() > until:
                raise RuntimeError(f"no server: {server.said()[-1:]}")
            time.sleep(0.05)
        yield server, {"engine.address": found[1]}
    finally:
        server.look()
        if server.code is None:
            os.kill(server.pid, signal.SIGCONT)
            os.kill(server.pid, signal.SIGTERM)
            if not server.wait(20):
                os.kill(server.pid, signal.SIGKILL)
                server.wait(5)


def strike(pid: int, mode: str, command: Command, draw: random.Random) -> None:
    """Kill a process; or stop it, and let it go on after a while, or never."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL if mode == "kill" else signal.SIGSTOP)
        if mode == "pause":
            command.wait(draw.uniform(0.1, 2.5))
            os.kill(pid, signal.SIGCONT)
        if mode == "stop" and pid == command.pid:  # nobody waits for a run itself but whoever began it
            time.sleep(1.0)
            os.kill(pid, signal.SIGKILL)


def one(name: str, number: int, after: float, whole: str, place: Path) -> Row | None:
    """Make a kill so many seconds `after` the run's folder was there; None where the run had ended before."""
    kind, draw = KINDS[name], random.Random(f"{name} {number}")
    role, mode = draw.choice(("main", *kind.others)), draw.choice(kind.modes)
    row: Row = {"kind": name, "number": number, "role": role, "mode": mode}
    shutil.rmtree(place / "cut", ignore_errors=True)
    (place / "said.txt").unlink(missing_ok=True)
    shared, begun = set(os.listdir("/dev/shm")), time.monotonic()
    with served(place) if name == "served" else nullcontext((None, {})) as (server, more):
        words = settings(kind, place, "cut", more)
        command = Command(words, place, place / "said.txt")
        struck = _struck(command, place, (role, mode), after, server, draw)
        row |= {"after": round(struck, 2)} if struck is not None else {}
        ended = command.wait(MOST)
        commands, row["rc"] = [command], command.code
        said = command.said()[-1].replace(f"{Path.cwd()}/", "") if command.code and command.said() else ""
        row["line"] = said[-300:]  # a path of this machine is nobody else's
        if ended and command.code != 0 and struck is not None:
            again = _way_on(command, words, place)
            row["remedy"] = "none" if again is None else ("begin again" if again == words else "resume")
            if again is not None:
                if server is not None and server.look():
                    row["remedy"] = "the server too"
                    return {**row, "outcome": "the server is gone", "left": []}
                (place / "again.txt").unlink(missing_ok=True)
                commands.append(Command(again, place, place / "again.txt"))
                ended = commands[-1].wait(MOST)
                if "wait for its end" in " ".join(commands[-1].said()[-1:]):  # a server whose engine is ending still
                    row["remedy"] += ", after a wait"
                    time.sleep(LEFT)
                    commands.append(Command(again, place, place / "again.txt"))
                    ended = commands[-1].wait(MOST)
    row["outcome"] = _outcome(commands, ended, kind, whole, place)
    if name in ("agent", "digits"):
        row["odd"] = any(ODD in line for each in commands for line in each.said())
    for each in commands:
        if each.code is None:
            os.kill(each.pid, signal.SIGKILL)
            each.wait(5)
    row["left"] = _left(commands, place, shared)
    row |= {"seconds": round(time.monotonic() - begun, 1), "commit": _commit(), "torch": torch.__version__}
    return row if struck is not None else None


def _struck(
    command: Command, place: Path, how: tuple[str, str], after: float, server: Command | None, draw: random.Random
) -> float | None:
    """Wait for the moment, and for somebody of the role -> when it was; None where the run was over before."""
    while not (place / "cut").is_dir():
        if command.look():
            return None
        time.sleep(0.01)
    begun = time.monotonic()
    command.wait(after)
    root = server.pid if server is not None and how[0] == "engine" else command.pid
    while not command.look():
        if found := processes(how[0], root):
            when = time.monotonic() - begun
            strike(draw.choice(found), how[1], command, draw)
            return when
        time.sleep(0.005)
    return None


def _way_on(command: Command, words: list[str], place: Path) -> list[str] | None:
    """Return the command that the run's last lines say; of a run that was killed itself, that of the handbook."""
    if command.code == -signal.SIGKILL:
        return ["train", "--resume", str(place / "cut")]
    text = " ".join(command.said()[-3:])
    if found := re.search(r"groupwise (train --resume \S+)", text):
        return shlex.split(found[1].rstrip(".,;"))
    begins = "no run is left to go on with" in text or "give the same command again" in text
    return words if begins else None


def _outcome(commands: list[Command], ended: bool, kind: Kind, whole: str, place: Path) -> str:
    if not ended:
        return "hang"
    if commands[-1].code != 0:
        return "ended"
    with suppress(GroupwiseError, OSError):
        if bits(place / "cut", kind.exact) == whole:
            return "same" if len(commands) == 1 else "same after its command"
    return "other bits"


def _left(commands: list[Command], place: Path, shared: set[str]) -> list[str]:
    left = [f"process {_module(pid) or pid}" for command in commands for pid in command.left()]
    left += [f"tmp/{name}" for name in os.listdir(place / "tmp")]
    own = {str(pid) for command in commands for pid in (*command.seen, command.pid)}
    new = set(os.listdir("/dev/shm")) - shared
    left += [f"/dev/shm/{name}" for name in new if own & set(re.findall(r"\d+", name))]
    for path in (place / "tmp").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return left


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def reference(name: str, place: Path) -> tuple[float, str]:
    """Make the run that nobody touches -> its seconds from its folder on, and what it came to."""
    kind = KINDS[name]
    (place / "tmp").mkdir(parents=True, exist_ok=True)
    (place / "mine.py").write_text(REWARD)
    (place / "environment.py").write_text(ENVIRONMENT)
    (place / "digits.py").write_text(DIGITS)
    shutil.rmtree(place / "whole", ignore_errors=True)
    with served(place) if name == "served" else nullcontext((None, {})) as (_, more):
        command = Command(settings(kind, place, "whole", more), place, place / "whole.txt")
        begun = time.monotonic()
        while not (place / "whole").is_dir() and not command.look():
            begun = time.monotonic()
            time.sleep(0.01)
        command.wait(MOST)
    if command.code != 0:
        raise RuntimeError(f"{name}: the run that nobody touched ended with {command.code}: {command.said()[-1:]}")
    return time.monotonic() - begun, bits(place / "whole", kind.exact)


def good(row: Row) -> bool:
    """Tell if a kill came out as it must."""
    as_said = row.get("odd", False) == KINDS[row["kind"]].odd
    return row["outcome"] in ("same", "same after its command") and not row["left"] and as_said


def table(rows: list[Row]) -> Iterator[str]:
    """Lines of a table: of each kind of run and each of its processes, what came out."""
    yield "| run | process | kills | same bits | same after its command | other | left |"
    yield "|---|---|---|---|---|---|---|"
    for kind, role in dict.fromkeys((row["kind"], row["role"]) for row in sorted(rows, key=lambda r: r["kind"])):
        own = [row for row in rows if (row["kind"], row["role"]) == (kind, role)]
        count: Callable[[str], int] = lambda outcome, own=own: sum(row["outcome"] == outcome for row in own)  # noqa: E731
        same, after = count("same"), count("same after its command")
        left = sum(bool(row["left"]) for row in own)
        yield f"| {kind} | {role} | {len(own)} | {same} | {after} | {len(own) - same - after} | {left} |"
    yield f"\n{len(rows)} kills, {sum(map(good, rows))} as they must"


def main(
    file: Path,
    kinds: Annotated[str, typer.Option(help="Such as 'sync,engine'.")] = ",".join(KINDS),
    kills: Annotated[int, typer.Option(min=0, help="Of each kind; 0 prints the table.")] = 20,
    minutes: Annotated[float, typer.Option(help="After which no other kill is begun.")] = 1e9,
    pause: Annotated[Path | None, typer.Option(help="While this file is there, no kill is begun.")] = None,
    runs: Annotated[Path, typer.Option(help="Whose folders the runs are made in.")] = Path("runs/kills"),
) -> None:
    """Make the kills that have no row yet, one of each kind in turn; then print the table."""
    until, known = time.monotonic() + 60 * minutes, dict[str, tuple[float, str]]()
    for number in range(kills):
        for name in kinds.split(","):
            if time.monotonic() > until or any((r["kind"], r["number"]) == (name, number) for r in finished(file)):
                continue
            while pause is not None and pause.exists():
                time.sleep(1)
            place = (runs / name).absolute()
            if name not in known:
                known[name] = reference(name, place)
            length, whole = known[name]
            moments = [length * random.Random(f"{name} {number} moment").random() * 0.6**tries for tries in range(5)]
            row = next(filter(None, (one(name, number, after, whole, place) for after in moments)), None)
            if row is None:
                print(f"{name} {number}: nobody of that kind was there", flush=True)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(f"{'ok ' if good(row) else 'BAD'} {json.dumps(row)}", flush=True)
    print("\n".join(table(finished(file))))


if __name__ == "__main__":
    typer.run(main)
