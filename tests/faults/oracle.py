"""What counts as right, and as each kind of fault; docs/dev/hostile_input.md says the same in words.

A command over a mutant must do one of two things, in bounded time and memory, and change nothing that is not its own:
end with exit code 0 and a right result, or with 1 or 2 and one line that says why.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.core.errors import LONGEST_MESSAGE
from groupwise.core.machine.terminal import clean as as_shown
from tests.faults.forked import Limits, Outcome, command_words
from tests.faults.ground import Ground, final_policy, without_place
from tests.faults.mutant import Mutant

#: How the line of a refusal begins, and how it goes on where the error was not foreseen. Such a line is a fault here:
#: what a mutant can reach has a line of its own.
BEGINS, UNFORESEEN = "groupwise: ", "unexpected"
#: Characters of the line.
LONGEST_LINE = len(BEGINS) + LONGEST_MESSAGE
#: Lines that may stand on stderr before it, or beside a success: what was passed over on the way.
LACKS_BEFORE = "has no evaluation before step 1: the summary will lack it"
NOTICE = re.compile(
    rf".* is damaged \(.*\); falling back to an older one|.* {LACKS_BEFORE}|.* has no row of .*: the run goes on from "
    "its checkpoint, and what they were is lost|.* has no chat template: each prompt is continued as plain text.*"
)
#: What moves a terminal's cursor, colours it, rings, or ends a line in another way than a newline. A tab may stand.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: A page of the product's has it in its beginning.
PAGE = b'<meta name="generator" content="groupwise">'

#: Name -> type, mode, size, time of change (of what is no folder), contents' hash or a link's target.
Snapshot = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Verdict:
    """faults  `kind: details` each, none where all is well; accepted: exit code 0."""

    faults: tuple[str, ...]
    accepted: bool

    @property
    def kinds(self) -> list[str]:
        return [fault.partition(":")[0] for fault in self.faults]


#: Every kind of fault. `died`: by a signal; `streams`: what stdout and stderr say; `left`: files or processes.
#: `judge`: it failed itself.
KINDS = ("traceback", "unforeseen", "late", "memory", "died", "streams", "outside", "left", "silent", "judge")


def judge(mutant: Mutant, outcome: Outcome, box: Path, before: Snapshot, ground: Ground, limits: Limits) -> Verdict:
    mutant = replace(mutant, words=command_words(mutant.words))
    faults = [*_bounds(outcome, limits), *_streams(mutant, outcome), *_outside(mutant, outcome, box, before)]
    if not faults and outcome.code == 0 and (wrong := _result(mutant, outcome, box, ground)):
        faults.append(f"silent: {wrong}")
    return Verdict(tuple(faults), outcome.code == 0)


def snapshot(folder: Path) -> Snapshot:
    """Everything below a folder, without opening what is no regular file."""
    return {str(path.relative_to(folder)): _state(path) for path in sorted(folder.rglob("*"))}


def _state(path: Path) -> tuple[Any, ...]:
    seen = path.lstat()
    kind = stat.S_IFMT(seen.st_mode)
    if kind == stat.S_IFDIR:
        return kind, seen.st_mode
    contents = path.readlink() if kind == stat.S_IFLNK else _hash(path) if kind == stat.S_IFREG else None
    return kind, seen.st_mode, seen.st_size, seen.st_mtime_ns, contents


def _hash(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()


def _bounds(outcome: Outcome, limits: Limits) -> list[str]:
    faults = [f"late: killed after {outcome.seconds:.1f} s"] * outcome.late
    if outcome.code < 0 and not outcome.late:
        faults.append(f"died: of signal {-outcome.code}")
    if outcome.grown > limits.memory:
        faults.append(f"memory: grew by {outcome.grown >> 20} MiB")
    return faults + [f"left: the process {name}" for name in outcome.left]


def _streams(mutant: Mutant, outcome: Outcome) -> list[str]:
    if "Traceback" in outcome.out + outcome.err:
        return [f"traceback: {place(outcome.err or outcome.out)}"]
    if outcome.late or outcome.code < 0:
        return []
    faults = [
        f"streams: a control character on {name}: {text[max(0, bad.start() - 20) : bad.end() + 20]!r}"
        for name, text in (("stdout", outcome.out), ("stderr", outcome.err))
        if (bad := CONTROL.search(text))
    ]
    lines = [line for line in outcome.err.split("\n") if line and not NOTICE.fullmatch(line)]
    if mutant.words[:1] == ("import",) and outcome.code == 0:  # what became of each option, beside the recipe
        return faults
    if outcome.code == 0 or _check_says_it(mutant, outcome):
        return faults + [f"streams: stderr beside it: {outcome.err[:200]!r}"] * bool(lines)
    line = lines[-1] if lines else ""
    if line.removeprefix(BEGINS).startswith(UNFORESEEN) and line.startswith(BEGINS):
        faults.append(f"unforeseen: {line[:300]}")
    if outcome.code not in (1, 2):
        faults.append(f"streams: exit code {outcome.code}")
    if len(lines) != 1 or not line.startswith(BEGINS) or not line.removeprefix(BEGINS).strip():
        faults.append(
            f"streams: {len(lines)} lines on stderr, not one that begins with {BEGINS!r}: {outcome.err[:200]!r}"
        )
    elif len(line) > LONGEST_LINE:
        faults.append(f"streams: a line of {len(line)} characters: {line[:160]!r}")
    return faults


def _check_says_it(mutant: Mutant, outcome: Outcome) -> bool:
    """`check` lists faults on stdout and ends with 1: that is its result."""
    return mutant.words[:1] == ("check",) and outcome.code == 1 and bool(re.search(r"^\d+ faults?$", outcome.out, re.M))


def place(text: str) -> str:
    frames = re.findall(r'File "[^"]*/(groupwise/[^"]+)", line (\d+)', text)
    last = next(
        (line for line in reversed(text.splitlines()) if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)", line)), ""
    )
    return f"{last[:160]} at {':'.join(frames[-1]) if frames else '?'}"


def _outside(mutant: Mutant, outcome: Outcome, box: Path, before: Snapshot) -> list[str]:
    after = snapshot(box)
    own = _own(mutant, outcome, before)
    changed = [
        name
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name) and not any(_below(name, each) for each in own)
    ]
    faults = [f"outside: {_change(before, after, name)} {name}" for name in changed[:3]]
    return faults + _half_made(mutant, outcome, box, before, after)


def _below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder}/")


def _change(before: Snapshot, after: Snapshot, name: str) -> str:
    return "made" if name not in before else "removed" if name not in after else "changed"


def _own(mutant: Mutant, outcome: Outcome, before: Snapshot) -> list[str]:
    behind = ("", *mutant.words)
    words = tuple(word for word, before in zip(mutant.words, behind, strict=False) if word != "--" or before == "--out")
    verb = words[0] if words else ""
    if outcome.late or outcome.code < 0:  # a killed process leaves its temporary files
        return ["tmp", *_own(mutant, Outcome(1, "", "", 0), before)]
    if verb == "train" and (run := option(words, "--resume")) is not None:
        return [clean(run), "runs/.cache"]
    if verb == "train":
        runs = clean(str((mutant.asked or {}).get("runs", "runs")))
        return [f"{runs}/.cache", *_new_runs(runs, before, outcome)]
    if verb == "eval":
        out = option(words, "--out")
        return [] if outcome.code else ["evaluations" if out is None else clean(out)]
    if verb in ("init", "export") and len(words) > 1:
        return [] if outcome.code else [clean(word) for word in words[1:] if not word.startswith("--")]
    if verb == "import":
        out = option(words, "--out")
        return [] if outcome.code or out is None else [clean(out)]
    if verb == "report":
        out = option(words, "--out")
        runs = [word for i, word in enumerate(words[1:], 1) if words[i - 1] != "--out" and not word.startswith("--")]
        folders = [clean(run) for run in runs]
        default = [f"{folder}/report.html" for folder in folders] if len(folders) == 1 else _comparison(folders)
        return [] if outcome.code else [clean(out)] if out is not None else default
    return []


def _comparison(folders: list[str]) -> list[str]:
    return ["comparison.html", *(f"{folder.rpartition('/')[0]}/comparison.html" for folder in folders)]


def _new_runs(runs: str, before: Snapshot, outcome: Outcome) -> list[str]:
    """The folder of runs itself, and each run in it that was not there."""
    taken = {name.removeprefix(f"{runs}/").split("/")[0] for name in before if name.startswith(f"{runs}/")}
    return [runs] if not taken else [f"{runs}/{new}" for new in outcome_names(outcome, runs) if new not in taken]


def outcome_names(outcome: Outcome, runs: str) -> list[str]:
    return re.findall(rf"^run +{re.escape(runs)}/(\S+): ", outcome.out, re.M)


def _half_made(mutant: Mutant, outcome: Outcome, box: Path, before: Snapshot, after: Snapshot) -> list[str]:
    """A refused start leaves no run folder, or one that can be gone on with."""
    if mutant.words[:1] != ("train",) or "--resume" in mutant.words or outcome.code == 0 or outcome.late:
        return []
    recipes = [n for n in after if n.endswith("/recipe.toml") and n not in before]
    bare = [
        n
        for n in after
        if n.count("/") == 1 and n.startswith("runs/") and n not in before and f"{n}/recipe.toml" not in after
    ]
    faults = [f"left: the run folder {name} without a recipe" for name in bare if name != "runs/.cache"]
    for name in recipes:
        if outcome.code == 2:
            faults.append(f"left: the run folder of {name} after exit code 2")
        elif not _is_toml(box / name):
            faults.append(f"left: {name}, which cannot be read")
    return faults


def _is_toml(path: Path) -> bool:
    try:
        return bool(tomllib.loads(path.read_text()))
    except ValueError:
        return False


def _result(mutant: Mutant, outcome: Outcome, box: Path, ground: Ground) -> str:
    """What is wrong about an accepted mutant's result, "" where nothing is."""
    words = mutant.words
    if "--help" in words:
        return ""
    if mutant.expects == "refuse":
        return f"accepted, though {mutant.what} is known to be wrong"
    if words[:1] == ("chat",):  # without a prompt it answers the lines of its input, of which there are none
        return ""
    if words[:1] == ("train",):
        return _trained(mutant, outcome, box, ground)
    if words[:1] == ("eval",):
        return _evaluated(mutant, outcome, ground)
    if words[:1] == ("check",):
        return _checked(mutant, outcome)
    if words[:1] == ("report",):
        return _reported(mutant, outcome, box)
    if words[:1] == ("watch",):
        return _watched(outcome)
    return "" if outcome.out.strip() else "exit code 0 without a word"


def _trained(mutant: Mutant, outcome: Outcome, box: Path, ground: Ground) -> str:
    """A finished run: its summary's rates are rates, its losses numbers, its recipe what was asked for."""
    said = re.search(r"^the run is in (.*) \(summary\.json", outcome.out, re.M | re.S)
    if not said:
        return "exit code 0 without a word of the run"
    resumed = option(mutant.words, "--resume")
    folder = box / resumed if resumed is not None else _shown(box, f"{said[1]}/summary.json").parent
    summary = json.loads((folder / "summary.json").read_text())
    recipe = flat(tomllib.loads((folder / "recipe.toml").read_text()))
    rates = [summary["heldout_before"], summary["heldout_after"]]
    if rates[0] is None and LACKS_BEFORE in outcome.err:
        rates = rates[1:]
    if not all(isinstance(rate, float | int) and 0 <= rate <= 1 for rate in rates):
        return f"rates {rates}"
    if summary["steps"] != recipe["steps"]:
        return f"{summary['steps']} steps, of {recipe['steps']}"
    # What stood there before a resumption may be damaged, and is not made anew.
    began = re.search(r"^going on after step (\d+)$", outcome.out, re.M)
    losses = _losses(folder, after=int(began[1]) if began else 0)
    own = range(int(began[1]) + 1 if began else 1, summary["steps"] + 1)
    if list(losses) != list(own) or not all(isinstance(loss, float | int) for loss in losses.values()):
        return f"losses {losses} of steps {own}"
    if endless := [key for key, value in recipe.items() if isinstance(value, float) and not math.isfinite(value)]:
        return f"ran with {endless[0]} = {recipe[endless[0]]}"
    for key, value in flat(mutant.asked or {}).items():
        if not (key in ("name", "device") or same(recipe.get(key), value)):
            return f"asked for {key} = {value!r}, ran with {recipe.get(key)!r}"
    if mutant.kind == "run" and mutant.expects == "same" and final_policy(folder) != ground.policy:
        return "other weights at the end than without the damage"
    return ""


def _losses(folder: Path, after: int) -> dict[int, object]:
    losses: dict[int, object] = {}
    for line in (folder / "metrics.jsonl").read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            row = json.loads(line)
            losses |= {row["step"]: row["loss"]} if row["step"] > after else {}
    return losses


def _evaluated(mutant: Mutant, outcome: Outcome, ground: Ground) -> str:
    rates = re.findall(r"@\d+ +(\S+)", outcome.out)
    if not rates or not all(re.fullmatch(r"0\.\d+|1\.0+", rate) for rate in rates):
        return f"rates {rates}"
    if mutant.expects != "same":
        return ""
    newest = 0 if mutant.kind in ("model", "tokenizer", "index") else 3 if "runs/done" in mutant.words else 2
    said = without_place(outcome.out)
    if said == ground.evaluations[newest]:
        return ""
    older = said in ground.evaluations.values() and newest and NOTICE.search(outcome.err)
    return "" if older else "another result than without the damage, and no word of it"


def _checked(mutant: Mutant, outcome: Outcome) -> str:
    if not re.search(r"^no faults found$", outcome.out, re.M):
        return "exit code 0 without a verdict"
    rows = re.search(r"([\d,]+) rows read", outcome.out)
    if mutant.rows is not None and (not rows or int(rows[1].replace(",", "")) != mutant.rows):
        return f"read {rows[1] if rows else 'no'} rows of {mutant.rows}"
    return ""


def _shown(box: Path, shown: str) -> Path:
    """The file that a terminal shows under this name; odd characters of its name are shown as escapes."""
    same = (path for path in box.rglob("*") if as_shown(str(path.relative_to(box))) == shown)
    return box / shown if (box / shown).exists() else next(same, box / shown)


def _reported(mutant: Mutant, outcome: Outcome, box: Path) -> str:
    out = option(mutant.words, "--out")
    if "--text" in mutant.words and out != "--text":
        return "" if "checks" in outcome.out else "exit code 0 and no text"
    if mutant.kind == "run" and out is None:
        out = f"{mutant.words[1]}/report.html"
    said = re.search(r"^(.*) \(\d+\.\d MB, ", outcome.out, re.M | re.S)
    path = _shown(box, said[1]) if said else None
    path = box / out if out is not None else path
    if path is None or not path.is_file() or PAGE not in path.read_bytes()[:1000]:
        return "exit code 0 and no page"
    return ""


def _watched(outcome: Outcome) -> str:
    if not outcome.replies:
        return "served nothing"
    status, body = outcome.replies[0]
    if status == 200 and "shows the runs of" in outcome.out:  # a list of runs, which has no state of one
        return ""
    if status == 200 and PAGE.decode() in body[:1000]:
        return (
            ""
            if outcome.replies[1][0] in (200, 503)
            else f"then {outcome.replies[1][0]}: {outcome.replies[1][1][:200]}"
        )
    return "" if status == 503 and body.count("\n") == 1 else f"answered {status}: {body[:200]}"


def same(ran: object, asked: object) -> bool:
    if isinstance(ran, bool) or isinstance(asked, bool):
        return ran is asked
    return ran == asked


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return values


def option(words: tuple[str, ...], name: str) -> str | None:
    value = None
    for i, word in enumerate(words):
        if word == name and i + 1 < len(words):
            value = words[i + 1]
        elif word.startswith(f"{name}="):
            value = word.removeprefix(f"{name}=")
    return value


def clean(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))
