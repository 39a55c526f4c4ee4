"""Mutants of run folders: each file of a finished run damaged, stray entries, names; gone on with, evaluated, shown."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hypothesis import strategies as st

from tests.faults.ground import Ground
from tests.faults.mutant import NO_FILES, Content, Mutant, as_json, damaged, odd_json, odd_table, one, word
from tests.faults.recipes import RAW

JSON_FILES = ("about.json", "summary.json")
LINE_FILES = ("metrics.jsonl", "rollouts.jsonl", "machine.jsonl", "heldout.jsonl", "heldout_problems.jsonl")
NEWEST = "checkpoints/step-000002"
STRAY = [
    "checkpoints/step-000004.bak", "checkpoints/step-", "checkpoints/step-x", "checkpoints/step-9999999999999999999999",
    "checkpoints/step-٣", "checkpoints/step--1", "checkpoints/step-000009", "checkpoints/.partial-step-000003",
    "checkpoints/step-1_0", "checkpoints/step-000003 ", "metrics.jsonl.partial", "reward_model", "report.html",
]  # fmt: skip
COMMANDS = ("resume", "resume", "eval", "eval", "report", "report", "watch", "compare")


def _words(command: str, run: str) -> tuple[str, ...]:
    lines = {
        "resume": ("train", "--resume", run),
        "eval": ("eval", run),
        "report": ("report", run),
        "watch": ("watch", run),
        "compare": ("report", run, "runs/done", "--out", "page.html"),
    }
    return lines[command]


def _mutant(
    what: str, command: str, files: tuple[tuple[str, Content], ...], expects: str, run: str = "runs/half", **more: Any
) -> Mutant:
    shows = command in ("report", "watch", "compare")
    return Mutant("run", f"{command}: {what}", _words(command, run), files, "either" if shows else expects, **more)


@st.composite
def run_folder(draw: st.DrawFn, ground: Ground) -> Mutant:
    command = draw(st.sampled_from(COMMANDS))
    return draw(
        st.one_of(
            _damage(ground, command),
            _damage(ground, command),
            _values(ground, command),
            _values(ground, command),
            _forged(ground, command),
            _stray(ground, command),
            _names(command),
            _recipes(ground, command),
            _full(command),
        )
    )


@st.composite
def _damage(draw: st.DrawFn, ground: Ground, command: str) -> Mutant:
    """A file's bytes, or what stands in its place. A run goes on to the same bits, or refuses."""
    files = ground.files("runs/half")
    name = draw(st.sampled_from([name for name in files if name != "recipe.toml"] + ["recipe.toml"]))
    if draw(st.integers(0, 3)) == 0:
        place = draw(one(*NO_FILES, None, "link ../../keep/notes.txt"))
        gone = name == "recipe.toml" and place != "link ../../keep/notes.txt"
        what = f"{place or 'nothing'} as {_general(name)}"
        return _mutant(what, command, ((f"runs/half/{name}", place),), "refuse" if gone else "same")
    how, content = draw(damaged(files[name]))
    expects = "either" if name == "recipe.toml" else "same"
    return _mutant(f"{how} {_general(name)}", command, ((f"runs/half/{name}", content),), expects)


def _general(name: str) -> str:
    return name.replace("step-000002", "new").replace("step-000001", "old")


@st.composite
def _values(draw: st.DrawFn, ground: Ground, command: str) -> Mutant:
    """A value in a row of JSON lines or in a JSON file that is of another kind."""
    files = ground.files("runs/half") | {"summary.json": ground.files("runs/done")["summary.json"]}
    name = draw(one(*JSON_FILES, *LINE_FILES))
    if name in JSON_FILES:
        place, changed = draw(odd_table(json.loads(files[name])))
        content = as_json(changed)
    else:
        lines = files[name].splitlines(keepends=True)
        at = draw(st.integers(0, len(lines) - 1))
        place, changed = draw(odd_table(json.loads(lines[at])))
        changed = draw(st.just(changed) | odd_json()) if draw(st.booleans()) else changed
        lines[at] = as_json(changed, separators=(",", ":")) + b"\n"
        content = b"".join(lines)
    # The rows of metrics.jsonl are what the summary is made of: a value there is read.
    expects = "same" if name != "summary.json" else "either"
    return _mutant(f"a value in {name} ({place.split()[0]})", command, ((f"runs/half/{name}", content),), expects)


@st.composite
def _forged(draw: st.DrawFn, ground: Ground, command: str) -> Mutant:
    """A checkpoint whose hashes are right and whose contents are not: state, weights, manifest."""
    files = {n.removeprefix(f"{NEWEST}/"): c for n, c in ground.files("runs/half").items() if n.startswith(NEWEST)}
    name = draw(
        one(
            "state.json", "state.json", "manifest.json", "policy/config.json", "optimizer.safetensors",
            "policy/model.safetensors",
        )
    )  # fmt: skip
    if name.endswith(".json"):
        place, changed = draw(odd_table(json.loads(files[name])))
        content = as_json(changed)
    else:
        place, content = draw(damaged(files[name]))
    laid: list[tuple[str, Content]] = [(f"runs/half/{NEWEST}/{name}", content)]
    if name != "manifest.json":
        manifest = json.loads(files["manifest.json"])
        manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
        laid.append((f"runs/half/{NEWEST}/manifest.json", json.dumps(manifest).encode()))
    expects = "same" if name == "manifest.json" else "either"
    return _mutant(f"forged {name} ({place.split()[0]})", command, tuple(laid), expects)


@st.composite
def _stray(draw: st.DrawFn, ground: Ground, command: str) -> Mutant:
    """Entries that do not belong there, and checkpoints that do and are gone."""
    if draw(st.integers(0, 4)) == 0:
        gone: tuple[tuple[str, Content], ...] = tuple((f"runs/half/checkpoints/step-00000{i}", None) for i in (1, 2))
        return _mutant("no checkpoint", command, gone, "refuse" if command in ("eval", "resume") else "same")
    name = draw(st.sampled_from(STRAY))
    place = draw(one("folder", b"", b"{}", "fifo", "link nowhere"))
    return _mutant(f"{place!r} as {name}", command, ((f"runs/half/{name}", place),), "same")


@st.composite
def _names(draw: st.DrawFn, command: str) -> Mutant:
    name = draw(word()).replace("/", "").strip("-")[:80].replace("~", "t")
    name = name if name not in ("", ".", "..", "done", "half") else "a b"
    return _mutant("another name", command, (("runs/half", f"move runs/{name}"),), "same", run=f"runs/{name}")


@st.composite
def _recipes(draw: st.DrawFn, ground: Ground, command: str) -> Mutant:
    lines = ground.files("runs/half")["recipe.toml"].decode().splitlines()
    at = draw(
        st.sampled_from(
            [i for i, each in enumerate(lines) if " = " in each and not each.startswith(("#", "steps", "prompts"))]
        )
    )
    key = lines[at].split(" = ")[0]
    raw = draw(
        one(
            *RAW.values(),
            '"x"',
            "true",
            "-1",
            "[]",
            "{}",
            "0",
            '"[/x]"',
            '"\\u001b[31m"',
            '"a\\u0000b"',
            "18446744073709551616",
        )
    )
    lines[at] = f"{key} = {raw}"
    return _mutant("a value in recipe.toml", command, (("runs/half/recipe.toml", "\n".join(lines).encode()),), "either")


@st.composite
def _full(draw: st.DrawFn, command: str) -> Mutant:
    return _mutant("a full disk", command, (), "same", disk=draw(st.integers(0, 60_000)))
