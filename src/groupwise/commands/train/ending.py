"""Last words of a run: its result, its checks, where it is, and what to do next."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core.errors import counted
from groupwise.core.files import jsonl
from groupwise.core.machine.terminal import Terminal
from groupwise.health.checks import invariant
from groupwise.journal.journal import MACHINE
from groupwise.journal.lines import Shown, checks_in_short, wrapped
from groupwise.journal.terminal import event
from groupwise.training import checkpoint


@dataclass(frozen=True)
class Held:
    """A check of a finished run, which held at every step."""

    name: str
    value: float
    limit: float
    failed: bool = False


def say_end(summary: Mapping[str, Any], folder: Path, shown: Shown, terminal: Terminal) -> None:
    """Say how a run ended: the result first, or, if its summary is empty, where it was stopped."""
    if shown is Shown.JSON:
        terminal.print(event("end", {"finished": bool(summary), "folder": str(folder), **summary}))
    elif summary:
        first, *others = in_words(summary, folder)
        for line, style in ((first, "bold"), *((each, "") for each in others)):
            terminal.print((line, style))
        if shown is not Shown.RESULT:
            for line in next_in_words(folder):
                terminal.print(line)
    elif shown is Shown.RESULT:
        terminal.print(stopped(folder))


def in_words(summary: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Say a summary in lines, and the files of the run's folder."""
    yield from result(summary, folder)
    files = [name for name in ("rollouts.jsonl", "heldout.jsonl", "checkpoints") if (folder / name).exists()]
    yield f"the run is in {folder} ({', '.join(['summary.json', 'metrics.jsonl', *files])})"
    if (folder / "report.html").is_file():
        yield f"read it in a browser: {folder / 'report.html'}"


def result(summary: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Say what a run achieved, what it took, and that its checks held."""
    s = summary
    if "heldout_after" in s:
        yield from wrapped(
            f"held-out {s['heldout_measure']} {s['heldout_before']:.3f} -> {s['heldout_after']:.3f} on "
            f"{counted(s['heldout_problems'], 'problem')} x {counted(s['heldout_samples'], 'sample')}, "
            f"mean length {s['length_before']:.1f} -> {s['length_after']:.1f} tokens"
        )
        yield from wrapped(f"held-out {s['heldout_measure']} {s['heldout_change']['words']}")
    if "supervised_loss_after" in s:
        before, after = s["supervised_loss_before"], s["supervised_loss_after"]
        yield f"held-out rows: loss {before:.3f} -> {after:.3f} nats a token"
    for kind, title in (("heldout_by_reward", "reward {}"), ("heldout_by_source", "{}")):
        for name, mean in s.get(kind, {}).items():
            yield f"{title.format(name)}: held-out mean {mean['before']:.3f} -> {mean['after']:.3f}"
    if totals := s.get("logged_total"):
        words = ", ".join(f"{name} {value:.6g}" for name, value in totals.items())
        yield from wrapped(f"logged by rewards, added up: {words}")
    steps = counted(s["steps"], "step")
    yield f"{steps} of {s['algorithm']} in {s['seconds_training']:.0f} s, {s['seconds_total']:.0f} s in all"
    yield from _checks(s["checks"])
    yield from _read_again(folder)


def _checks(checks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Say in one line that the checks held, and of each that was never measured why."""
    held = [Held(name, one["largest"], one["limit"]) for name, one in checks.items() if one["steps"]]
    if held:
        steps = counted(max(one["steps"] for one in checks.values()), "step")
        yield from wrapped(f"checked on {steps}: {checks_in_short(held)}")
    for name, one in checks.items():
        if not one["steps"]:
            yield from wrapped(f"not measured: {name} ({invariant(name).unmeasured})")


def next_in_words(folder: Path) -> Iterator[str]:
    """Say which commands go on from a finished run, one a line, so that each can be copied."""
    place = shlex.quote(str(folder))
    yield f"next: groupwise watch {place}"
    yield f"      groupwise eval {place}"
    yield f"      groupwise export {place} FOLDER"


def stopped(folder: Path) -> str:
    """Say where a run was stopped, and how it is resumed."""
    saved = checkpoint.steps(folder / checkpoint.CHECKPOINTS)
    where = f"after step {saved[-1]}, saved" if saved else "before step 1, with nothing to save"
    return f"stopped {where}; go on with: groupwise train --resume {shlex.quote(str(folder))}"


def way_on(folder: Path) -> str:
    """Say what is left of a run whose process cannot go on, and how it is resumed in another."""
    saved = checkpoint.steps(folder / checkpoint.CHECKPOINTS)
    if not saved:
        return f"no step was saved yet; begin again with: groupwise train --resume {shlex.quote(str(folder))}"
    return f"step {saved[-1]} is saved; go on with: groupwise train --resume {shlex.quote(str(folder))}"


def _read_again(folder: Path) -> Iterator[str]:
    """Say how many steps the witness read; nothing if it read none. When it reads depends on when a process began, so
    that the summary, which a resumed run has alike, is silent about it.
    """
    path = folder / MACHINE
    tables = [row.get("witness") for row in (jsonl.rows(path) if path.exists() else ())]
    read = [
        {check.get("verdict") for check in table.values() if isinstance(check, dict)}
        for table in tables
        if isinstance(table, dict)
    ]
    if read:
        differed = sum("fail" in verdicts for verdicts in read)
        found = f"{differed} of them differed" if differed else "nothing differed"
        yield f"read a second time by the witness: {counted(len(read), 'step')}, {found}"
