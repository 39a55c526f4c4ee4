"""Parts and tasks from files and packages: chosen by a key, checked key by key, looked after when they are called."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
from groupwise.algorithms.explain import explain
from groupwise.algorithms.laws.draws import draw
from groupwise.algorithms.settings import settings
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.core.errors import RunError, UsageError

PARTS = """
from dataclasses import dataclass
import torch, groupwise
from groupwise.algorithms.parts.aggregate import TokenMean
from groupwise.algorithms.parts.advantage import GroupMean
from groupwise.algorithms.parts.filters import KeepAll
from groupwise.algorithms.parts.kl import K2
from groupwise.algorithms.parts.mismatch import TIS
from groupwise.algorithms.parts.ratio import TokenRatio
from groupwise.algorithms.parts.rejection import TokenBand
from groupwise.algorithms.parts.shaping import OutcomeReward
from groupwise.algorithms.parts.trust import Clip

@dataclass(frozen=True)
class Mine(Clip):
    delta: float = 0.5
    word: str = "a"

@dataclass(frozen=True)
class Steep(K2):
    power: int = 2

@dataclass(frozen=True)
class Weights(TokenMean): pass

@dataclass(frozen=True)
class Mean(GroupMean): pass

@dataclass(frozen=True)
class Keep(KeepAll): pass

@dataclass(frozen=True)
class Capped(TIS): pass

@dataclass(frozen=True)
class Band(TokenBand): pass

@dataclass(frozen=True)
class Halves(groupwise.Rejection):
    equation = "a = 1/2"
    def __call__(self, logp_old, logp_engine, mask): return mask / 2.0

@dataclass(frozen=True)
class Ratio(TokenRatio): pass

@dataclass(frozen=True)
class Late(OutcomeReward): pass

@dataclass(frozen=True)
class Silent(groupwise.Trust):
    def __call__(self, log_ratio, advantage, logp_live, mask): ...

@dataclass(frozen=True)
class Idle(groupwise.Trust):
    equation = "S = A"

@dataclass(frozen=True)
class Many(Clip):
    steps: list = ()

@dataclass(frozen=True)
class Needy(Clip):
    needed: float = 1.0
    def __post_init__(self):
        if self.needed < 0: raise ValueError("needed = -1.0: must not be negative")
        if self.needed > 5: self.missing

@dataclass(frozen=True)
class Shy(Clip):
    @property
    def equation(self): return 1 / 0

@dataclass(frozen=True)
class Numeric(Clip):
    equation = 3

class Loose(Clip): pass

@dataclass(frozen=True)
class Alone:
    equation = "S = A"

@dataclass(frozen=True)
class Wrong(groupwise.Trust):
    how: str = "shape"
    equation = "S = r A"
    def __call__(self, log_ratio, advantage, logp_live, mask):
        value = log_ratio.exp() * advantage
        share = mask.to(value.dtype)
        if self.how == "shape": return groupwise.Surrogate(value[:, :1], share)
        if self.how == "nan": return groupwise.Surrogate(value / 0 * 0, share)
        if self.how == "detached": return groupwise.Surrogate(value.detach(), share)
        if self.how == "one": return value
        if self.how == "list": return groupwise.Surrogate(value.tolist(), share)
        if self.how == "share": return groupwise.Surrogate(value, share * 2)
        if self.how == "whole": return groupwise.Surrogate(value, share.long())
        return value @ value

def function(): ...
"""
#: Of every slot: the class of the file that fills it.
SLOTS = {
    "shaping": "Late",
    "filter": "Keep",
    "advantage": "Mean",
    "ratio": "Ratio",
    "trust": "Mine",
    "mismatch": "Capped",
    "rejection": "Band",
    "kl": "Steep",
    "aggregate": "Weights",
}


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("slot", "name"), SLOTS.items())
def test_every_slot_takes_a_part_from_a_file_and_says_where_it_is_from(theirs: Path, slot: str, name: str) -> None:
    row = groupwise.algorithm("dapo", {f"{slot}.use": f"mine.py:{name}", "kl.beta": 0.1})
    part: Any = row.kl.estimator if slot == "kl" else getattr(row, slot)
    assert type(part).__name__ == name
    table: Any = settings(row)
    assert table[slot]["use"] == f"{theirs}/mine.py:{name}"
    assert groupwise.algorithm("dapo", table) == row == pickle.loads(pickle.dumps(row))
    b = draw(1)
    columns = {"logp_ref": b.ref, "logp_engine": b.old}
    assert row.loss(b.live, b.old, b.advantage, b.mask, **columns).value.isfinite()
    assert name in explain("dapo", {f"{slot}.use": f"mine.py:{name}", "kl.beta": 0.1})


def test_fields_lie_beside_the_file_and_one_part_changes_no_other(theirs: Path) -> None:
    row = groupwise.algorithm("dapo", {"trust": {"use": "mine.py:Mine", "delta": 2, "word": "b"}})
    assert repr(row.trust) == "Mine(epsilon_low=0.2, epsilon_high=0.2, dual_clip=0.0, delta=2.0, word='b')"
    assert {k: v for k, v in row.parts.items() if k != "trust"} == {
        k: v for k, v in groupwise.algorithm("dapo").parts.items() if k != "trust"
    }


def test_a_part_with_a_limit_gets_the_samplings(theirs: Path) -> None:
    """Else the penalty of an overlong completion would silently be none."""
    keys: dict[str, object] = {"algorithm.shaping": {"use": "mine.py:Late", "overlong_cache": 0.5}}
    shaping: Any = resolve(recipe.load("quickstart", keys)).algorithm.shaping
    assert shaping.limit == recipe.load("quickstart").sampling.max_new_tokens
    keys = {"algorithm.shaping": {"use": "mine.py:Late", "overlong_cache": 0.5, "limit": 7}}
    shaping = resolve(recipe.load("quickstart", keys)).algorithm.shaping
    assert shaping.limit == 7


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trust.use": "mine.py:Mien"}, "has no 'Mien'; did you mean 'Mine'?"),
        ({"trust.use": 3}, 'algorithm.trust.use = 3: must be text, such as "my_parts.py:Name"'),
        ({"trust.use": "mine.py:Mine", "trust.kind": "clip"}, "algorithm.trust: kind and use both name its part"),
        ({"trust.use": "mine.py:Mine", "trust.detla": 1.0}, "trust 'Mine' has no such key; did you mean 'delta'?"),
        ({"trust.use": "mine.py:Mine", "trust.delta": "x"}, "algorithm.trust.delta = 'x': must be a number"),
        ({"trust.use": "mine.py:Mine", "trust.word": 1}, "algorithm.trust.word = 1: must be text"),
        (
            {"ratio.use": "mine.py:Mine"},
            "Mine is a part of the slot trust; set algorithm.trust.use, or make it",
        ),
        ({"trust.use": "mine.py:function"}, "a function, not a class"),
        ({"trust.use": "mine.py:Shy"}, "algorithm.trust: making Shy raised ZeroDivisionError: division by zero ("),
        ({"trust.use": "mine.py:Numeric"}, "algorithm.trust: the equation of Numeric is 3; it must be text"),
        ({"trust.use": "mine.py:Loose"}, "Loose is no frozen dataclass; write @dataclass(frozen=True) above it"),
        ({"trust.use": "mine.py:Alone"}, "Alone is a part of no slot; make it a subclass of one of: groupwise.Shaping"),
        ({"trust.use": "mine.py:Idle"}, "Idle has no __call__; that is what it computes"),
        ({"trust.use": "mine.py:Silent"}, 'Silent does not say its equation; add a line: equation = "S = r A"'),
        ({"trust.use": "mine.py:Many"}, "the field 'steps' of Many is <class 'list'>, which no recipe can set"),
        ({"trust.use": "mine.py:Needy", "trust.needed": -1.0}, "algorithm.trust.needed = -1.0: must not be negative"),
        ({"trust.use": "mine.py:Needy", "trust.needed": 9.0}, "algorithm.trust: making Needy raised AttributeError: "),
        ({"kl.use": "mine.py:Steep", "kl.pwoer": 3}, "kl 'Steep' has no such key; did you mean 'power'?"),
        ({"kl.use": "mine.py:Steep", "kl.estimator": "k1"}, "algorithm.kl: estimator and use both name its part"),
        ({"trust.kind": "mine.py:Mine"}, "algorithm.trust.kind = 'mine.py:Mine': known: none, clip"),
    ],
)
def test_what_is_wrong_with_a_part_is_said_in_one_line(theirs: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as told:
        groupwise.algorithm("grpo", changes)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("shape", "Wrong returned a value of shape [8, 1]; [N,T] is [8, 12]"),
        ("nan", "Wrong returned a value that is not finite at "),
        ("detached", "Wrong returned a value that is detached from the policy: nothing would train"),
        ("one", "Wrong returned a Tensor; value and share, [N,T] each, are due"),
        ("list", "Wrong returned a list as its value; a tensor [N,T] is due"),
        ("share", "Wrong returned a share outside of 0 to 1"),
        ("whole", "Wrong returned a share of torch.int64; floating-point numbers are due"),
        ("raises", "Wrong raised RuntimeError: "),
        ("weighs", "Halves accepted a token by a number other than 0 or 1"),
    ],
)
def test_a_wrong_answer_names_the_part_the_slot_and_the_remedy(theirs: Path, how: str, words: str) -> None:
    slot, name = ("rejection", "Halves") if how == "weighs" else ("trust", "Wrong")
    row = groupwise.algorithm(
        "dapo", {f"{slot}.use": f"mine.py:{name}", **({"trust.how": how} if slot == "trust" else {})}
    )
    b = draw(0)
    with pytest.raises(RunError, match=rf"^algorithm\.{slot}: {re.escape(words)}") as told:
        row.loss(b.live.requires_grad_(True), b.old, b.advantage, b.mask, logp_engine=b.old)
    assert str(told.value).endswith(f"; try: groupwise laws {theirs}/mine.py:{name}")
    if how == "detached":
        with torch.no_grad():  # rows that train nothing are run so, for the record
            row.loss(b.live, b.old, b.advantage, b.mask)
    if how == "raises":
        assert "in __call__" in told.value.__notes__[0]
        assert f"({theirs}/mine.py, line" in str(told.value)


def test_a_package_offers_parts_and_tasks_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package as pip leaves it: a module, and a folder of its metadata."""
    (tmp_path / "offering_package.py").write_text(PARTS + TASK)
    metadata = tmp_path / "offering_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: offering-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[groupwise.parts]\ntrust.mine = offering_package:Mine\nkl.steep = offering_package:Steep\n"
        "ratio.wrong = offering_package:Alone\ntrust.gone = offering_package:Gone\n"
        "[groupwise.tasks]\nnumbers = offering_package:Numbers\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    row = groupwise.algorithm("grpo", {"trust.kind": "mine", "trust.delta": 3.0, "kl.estimator": "steep"})
    table: Any = settings(row)
    assert (table["trust"]["kind"], table["trust"]["delta"], table["kl"]["estimator"]) == ("mine", 3.0, "steep")
    assert groupwise.algorithm("grpo", table) == row
    for changes, words in (
        ({"trust.kind": "mien"}, "did you mean 'mine'? known: none, clip"),
        ({"ratio.level": "wrong"}, "algorithm.ratio 'wrong': Alone is a part of no slot"),
        ({"trust.kind": "gone"}, "loading offering_package:Gone of the package offering-package raised AttributeError"),
    ):
        with pytest.raises(UsageError, match=re.escape(words)):
            groupwise.algorithm("grpo", changes)
    assert groupwise.task("numbers", {"largest": 3}).samples("train")[0].answer == "0"
    with pytest.raises(UsageError, match="did you mean 'numbers'"):
        groupwise.task("nubmers")


TASK = """
@dataclass(frozen=True)
class Numbers(groupwise.Task):
    largest: int = 4
    wrong: str = ""
    nothing: object = 0

    def __post_init__(self):
        if self.wrong == "field": object.__setattr__(self, "nothing", None)
        if self.largest < 1: raise ValueError("largest = 0: must be at least 1")

    def samples(self, split):
        made = [groupwise.Sample(key=f"{split}{n}", prompt=f"{n}", answer=f"{n}") for n in range(self.largest)]
        return {"empty": [], "double": made + made, "text": "abc", "raises": None}.get(self.wrong, made)[:]

    def score(self, sample, completion):
        return float(completion == sample.answer)

@dataclass(frozen=True)
class Scoreless(groupwise.Task):
    def samples(self, split): return []
"""


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, 'task.name is missing; such as name = "arithmetic" or use = "my_task.py:MyTask" under [task]'),
        ({"use": "mine.py:Number"}, "has no 'Number'; did you mean 'Numbers'?"),
        ({"use": "mine.py:Scoreless"}, "Scoreless is no task; make it a groupwise.Task with samples and score"),
        ({"use": "mine.py:Mine"}, "Mine is no task"),
        ({"use": "mine.py:Numbers", "lagrest": 3}, "task.lagrest: Numbers has no such key; did you mean 'largest'?"),
        ({"use": "mine.py:Numbers", "largest": "3"}, "task.largest = '3': must be a whole number"),
        ({"use": "mine.py:Numbers", "largest": 0}, "task.largest = 0: must be at least 1"),
        ({"use": "mine.py:Numbers", "wrong": "field"}, "its field nothing = None: a recipe has no such value"),
        ({"use": "mine.py:Numbers", "wrong": "empty"}, "samples('train') is empty"),
        ({"use": "mine.py:Numbers", "wrong": "double"}, "samples('train') has samples of one key"),
        ({"use": "mine.py:Numbers", "wrong": "text"}, "samples('train') is a str; return a list or a tuple"),
        ({"use": "mine.py:Numbers", "wrong": "raises"}, "making Numbers and its samples raised TypeError: "),
    ],
)
def test_what_is_wrong_with_a_task_is_said_in_one_line(theirs: Path, keys: dict[str, object], words: str) -> None:
    (theirs / "mine.py").write_text(PARTS + TASK)
    with pytest.raises(UsageError, match=re.escape(words)) as told:
        groupwise.task(None, keys)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", [{}, [], 3, True, None, "nope"], ids=repr)
def test_a_kind_that_is_no_name_of_a_part_is_one_line(kind: object) -> None:
    with pytest.raises(UsageError, match=r"^algorithm\.aggregate\.kind = .*: known: sequence-mean, "):
        groupwise.algorithm("grpo", {"aggregate": {"kind": kind}})
