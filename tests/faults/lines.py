"""Mutants of command lines: words that are put in, taken out, doubled and replaced; options with hostile values."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tests.faults.ground import RECIPE, Ground
from tests.faults.mutant import RAW, Content, Mutant, one, too_deep, word
from tests.faults.recipes import COSTS, WRONG, costs_too_much, keys, put

NO_MODEL = ("check", "recipe.toml", "--no-model")
LINES: list[tuple[str, ...]] = [
    ("train", "recipe.toml"),
    ("train", "recipe.toml", "--set", "seed=1"),
    NO_MODEL,
    (*NO_MODEL, "--rows", "1"),
    ("eval", "runs/done"),
    ("eval", "runs/done:1", "model", "--out", "made"),
    ("eval", "model", "--recipe", "recipe.toml"),
    ("report", "runs/done"),
    ("report", "runs/done", "runs/half", "--out", "page.html"),
    ("watch", "runs/done", "--port", "0"),
    ("explain", "grpo"),
    ("explain", "ppo", "--against", "grpo"),
    ("explain", "grpo", "--set", "algorithm.kl.beta=0.1"),
    ("train", "--resume", "runs/half"),
    ("runs",),
    ("runs", "runs", "--json"),
    ("chat", "runs/done:1", "-p", "1+1=", "-n", "2"),
    ("chat", "model", "-p", "1+1=", "--temperature", "0", "--max-tokens", "4", "--seed", "3"),
    ("init", "made"),
    ("export", "runs/done", "made"),
    ("export", "runs/half", "made", "--step", "1"),
    ("import", "options.yaml"),
    ("import", "options.yaml", "--out", "made.toml"),
    ("report", "runs/done", "--text"),
    ("keys", "learner"),
]
VERBS = (
    "train", "eval", "check", "model", "report", "watch", "explain", "runs", "chat", "init", "export", "import",
    "sweep", "keys",
)  # fmt: skip
OPTIONS = (
    "--set", "--resume", "--recipe", "--step", "--no-model", "--rows", "--out", "--port", "--against", "--help",
    "--no-such", "-p", "-n", "--json", "--text", "--over", "--seed", "--temperature",
)  # fmt: skip
PLACES = (
    "runs/done", "runs/half", "runs", "recipe.toml", "model", "keep", "keep/notes.txt", "nowhere", "nowhere/x",
    "data.jsonl", "options.yaml",
)  # fmt: skip
#: What `report --out` may not replace, as it is laid over the box.
TARGETS: list[tuple[str, str, Content]] = [
    ("a FIFO", "page.html", "fifo"), ("a socket", "page.html", "socket"), ("a folder", "page.html", "folder"),
    ("a dangling link", "page.html", "link nowhere/x"),
    ("a link to what is no page", "page.html", "link keep/notes.txt"),
    ("a file of another", "keep/page.html", b"<p>mine</p>"), ("a missing folder", "nowhere/page.html", None),
    ("a file as a folder", "keep/notes.txt/page.html", None),
]  # fmt: skip


@st.composite
def line(draw: st.DrawFn, ground: Ground) -> Mutant:
    return draw(st.one_of(_settings(), _settings(), _words(), _words(), _values(), _targets()))


@st.composite
def _settings(draw: st.DrawFn) -> Mutant:
    verb = draw(one(("train", "recipe.toml"), NO_MODEL, ("eval", "model", "--recipe", "recipe.toml")))
    how = draw(one("no key", "unknown key", "wrong value", "a second line", "any value", "any text", "twice"))
    plain = [
        k
        for k, kind in keys().items()
        if kind in WRONG and k.split(".")[0] not in ("data", "rewards", "critic", "preference", "algorithm", "task")
    ]
    key = draw(st.sampled_from(plain))
    expects, given = "refuse", ()
    if how == "no key":
        given = (
            draw(one("", "=", "=3", "steps", " =1", ".", ".=1", "..=1", "steps.=1", ".steps=1", "a..b=1", "steps.x=1")),
        )
    elif how == "unknown key":
        given = (f"zz{draw(word()).replace('=', '')}={draw(word())}",)
    elif how == "wrong value":
        value = draw(st.sampled_from([v for v in WRONG[keys()[key]] if not (isinstance(v, str) and v not in RAW)]))
        given = (f"{key}={RAW.get(value) if isinstance(value, str) else _toml(value)}",)
    elif how == "a second line":
        given = (f"steps={draw(one('1', '[1', chr(39) * 3 + 'x'))}\n{draw(one('seed = 3', 'x', '[task]', '#'))}",)
        expects = "refuse" if given[0] != "steps=1\n#" else "either"
    elif how == "any value":
        value = draw(one(0, 1, 2, 0.5, -1, "x", "grpo", True, [2, 2]))
        given, expects = (f"{key}={_toml(value)}",), "either"
    elif how == "twice":
        given, expects = ("seed=1", f"seed={draw(st.integers(0, 9))}"), "either"
    else:
        given, expects = (draw(word()),), "either"
    words = (*verb, *(w for each in given for w in ("--set", each)))
    return _with_asked(Mutant("line", f"--set: {how}", words, expects=expects), given)


def _with_asked(mutant: Mutant, given: Sequence[str]) -> Mutant:
    """The keys that a run of it must have; `check` instead of `train` where it would be long."""
    asked: dict[str, Any] = copy.deepcopy(RECIPE)
    for each in given:
        key, _, value = each.partition("=")
        try:
            known = tomllib.loads(f"value = {value}")["value"]
            known = value.strip() if too_deep(known) else known
        except (ValueError, RecursionError):
            known = value.strip()
        put(asked, key.strip(), known)
    words = mutant.words
    if words[0] != "check" and any(COSTS.search(each) for each in given) and costs_too_much(asked):
        words = (*NO_MODEL, *(w for w in words[2:] if w not in ("--recipe", "recipe.toml")))
    return Mutant(mutant.kind, mutant.what, words, expects=mutant.expects, asked=asked)


def _toml(value: Any) -> str:
    import tomli_w

    return tomli_w.dumps({"value": value}).partition("=")[2].strip() if not isinstance(value, dict) else "{a = 1}"


@st.composite
def _words(draw: st.DrawFn) -> Mutant:
    words = list(draw(st.sampled_from(LINES)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(words)))
        new = draw(one(*VERBS, *OPTIONS, *PLACES) | word())
        how = draw(one("put in", "taken out", "doubled", "replaced", "swapped"))
        if how == "put in":
            words.insert(at, new)
        elif how == "taken out":
            del words[at : at + 1]
        elif how == "doubled":
            words[at:at] = words[at : at + 1]
        elif how == "replaced":
            words[at : at + 1] = [new]
        else:
            words[at : at + 2] = reversed(words[at : at + 2])
    return Mutant("line", "words moved about", tuple(words), expects=_known(tuple(words)))


def _known(words: tuple[str, ...]) -> str:
    return "refuse" if "--no-such" in words and "--help" not in words and "--" not in words else "either"


@st.composite
def _values(draw: st.DrawFn) -> Mutant:
    odd = draw(word())
    number = draw(one("-1", "65536", "x", "", "1.5", "9" * 400, "9" * 5000, "1e3", "NaN", "٣x"))
    nowhere = f"zz{odd}"
    words, wrong = draw(
        st.sampled_from(
            [
                (("watch", "runs/done", "--port", number), True),
                ((*NO_MODEL, "--rows", number), number not in ("9" * 400, "9" * 5000)),
                (("train", nowhere), True),
                (("train", f"{nowhere}.toml"), True),
                (("train", "--resume", nowhere), True),
                (("train", "--resume", "runs/half", "--set", "seed=2"), True),
                (("train", "recipe.toml", "--resume", "runs/half"), True),
                (("eval", nowhere), True),
                (("eval", nowhere, "--recipe", "recipe.toml"), True),
                (("eval", "model", "--recipe", nowhere), True),
                (("eval", "runs/done", "--step", number), True),
                (("eval", "runs/done", "--out", "keep"), True),
                (("check", nowhere), True),
                (("model", nowhere, "made"), True),
                (("model", "smollm2", "model"), True),
                (("report", nowhere), True),
                (("report", "runs/done", nowhere, "--out", "page.html"), True),
                (("watch", nowhere), True),
                (("explain", nowhere), True),
                (("explain", "grpo", "--against", nowhere), True),
                (("explain", "grpo", "--against", "ppo", "--set", "kl.beta=1"), True),
                (("explain", "grpo", "--set", "algorithm.kl.beta=nan"), True),
                (("explain", "grpo", "--set", f"algorithm.trust.{nowhere}=1"), True),
                (("runs", nowhere), True),
                (("chat", nowhere, "-p", "1+1="), True),
                (("chat", "model", "-p", "1+1=", "-n", number), number not in ("1e3",)),
                (("chat", "model", "-p", "1+1=", "--seed", number), number not in ("65536",)),
                (("chat", "model", "-p", "1+1=", "--temperature", number), number not in ("1.5", "٣x")),
                (("init", "keep"), True),
                (("init", "keep/notes.txt"), True),
                (("export", nowhere, "made"), True),
                (("export", "runs/done", "keep"), True),
                (("export", "runs/done", "made", "--step", number), True),
                (("import", nowhere), True),
                (("import", "options.yaml", "--out", "recipe.toml"), True),
                (("sweep", "recipe.toml"), True),
                (("sweep", "recipe.toml", "--over", nowhere), True),
                (("sweep", "recipe.toml", "--over", f"{nowhere}=1,2"), True),
                (("sweep", "recipe.toml", "--over", "seed=0,1", "--at-once", number), number not in ("1e3",)),
                (("keys", nowhere), True),
                ((nowhere,), True),
                (("train", "recipe.toml", nowhere), True),
                ((), False),
            ]
        )
    )
    return Mutant("line", "a value that cannot be", words, expects="refuse" if wrong else "either")


@st.composite
def _targets(draw: st.DrawFn) -> Mutant:
    what, out, content = draw(st.sampled_from(TARGETS))
    runs = draw(one(("runs/done",), ("runs/half",), ("runs/done", "runs/half")))
    files = ((out, content),) if content is not None else ()
    return Mutant("line", f"--out: {what}", ("report", *runs, "--out", out), files, "refuse")
