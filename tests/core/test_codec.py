"""What passes between processes comes as it was sent, and what nobody sent is refused before it costs anything."""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
import textwrap
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from groupwise.core.channel import Channel, FrameError, pack, unpack
from groupwise.core.code.user_code import load
from groupwise.core.processes import codec
from groupwise.core.processes.codec import NotPlain
from groupwise.core.samples import Attempt, Sample

Ends = tuple[Channel, Channel]


class Level(IntEnum):
    EASY = 1


@dataclass(frozen=True)
class Kept:
    """Says what it is sent as."""

    name: str
    cache: dict[str, int] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "cache": {}}


@dataclass(frozen=True, slots=True)
class Slotted:
    number: int


class Plain:
    """No dataclass: a name in its table, a number in a slot."""

    __slots__ = ("__dict__", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number


class Pair(NamedTuple):
    number: int
    name: str


class Table(dict[str, int]):
    pass


class Counted(list[int]):
    pass


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = map(Channel, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def sent(value: Any) -> Any:
    """The value, packed, sent as a message and unpacked."""
    message = unpack(bytearray(pack({"given": codec.pack(value)})))
    assert message is not None
    return codec.unpack(message["given"])


PLAIN = [None, True, 1.5, float("inf"), "é\ud800", 2**62, -(2**70), [], [1, 2], (1, "a"), [1, 2**70],
         {"a": [None, (2,)]}, {1: 2, (1, 2): {3}}, {"a"}, [[1.0], ["l"], ["d", 1]],
         list(range(200)), tuple(range(-(2**63), 200 - 2**63)), [2**64] * 99, (True, 1) * 50, [0.5] * 99]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_with_their_types(value: Any) -> None:
    tree = codec.encode(value)
    codec.validate(tree)
    for back in (codec.decode(tree), sent(value)):
        assert (repr(back), type(back)) == (repr(value), type(value))


OTHERS = [
    b"\0\xff", datetime.date(2026, 11, 27), datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.timezone.utc),  # noqa: UP017
    Fraction(1, 3), Path("/a/b"), Pair(1, "a"), 1 + 2j, range(3), Level.EASY, Slotted(3),
    {"at": datetime.time(1)}, np.float32(0.1), len, Path, Fraction.from_float,
    Attempt(Sample("k", "p", "", {"n": 1}, held_answer=([1],)), "text", "stop", tuple(range(50))), {"a", 1},
]  # fmt: skip


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
def test_objects_come_back_equal(value: Any) -> None:
    back = sent(value)
    assert (back, type(back)) == (value, type(value))


def test_numbers_of_arrays_and_tensors_keep_every_bit() -> None:
    value = {
        "array": np.arange(6, dtype=np.int16).reshape(2, 3).T,
        "objects": np.array([1, "a"], dtype=object),
        "half": torch.tensor([[0.1, -0.0]], dtype=torch.bfloat16),
        "scalar": torch.tensor(2.5, requires_grad=True),
        "none": torch.empty(0, 3),
    }
    back = sent(value)
    assert (back["array"] == value["array"]).all()
    assert back["array"].dtype == np.int16
    assert back["objects"].tolist() == [1, "a"]
    for name in ("half", "scalar", "none"):
        assert torch.equal(back[name], value[name])
        assert back[name].dtype == value[name].dtype
        assert not back[name].requires_grad
    back["array"][0] = 7  # the function's own, to change


@pytest.mark.parametrize("value", [OrderedDict(b=1, a=[2]), Counter("aab"), frozenset({1, 2}), defaultdict(list, a=1)])
def test_tables_and_sets_of_the_library_come_as_what_they_are_nearest_to(value: Any) -> None:
    back = sent(value)
    assert back == value
    assert type(back) in (dict, set)


def test_an_object_that_holds_itself_is_refused() -> None:
    kept = Kept("a")
    object.__setattr__(kept, "name", kept)
    with pytest.raises(NotPlain, match="too many others inside one another"):
        codec.pack(kept)


def test_an_object_of_any_class_comes_with_what_it_holds() -> None:
    back = sent(Plain("a", 3))
    assert (type(back), back.name, back.number) == (Plain, "a", 3)


def test_an_object_is_sent_as_it_says_itself() -> None:
    assert sent(Kept("a", {"b": 1})) == Kept("a")


def test_an_object_of_a_users_file_is_the_same_where_there_is_no_such_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Mine:\n    number: int\n"
        "    def worth(self): return 2 * self.number\nclass Other:\n    def __init__(self): self.a = 3\n"
        "def f(): return 4\n"
    )
    kinds = [load(f"{file}:{name}", "x") for name in ("Mine", "Other", "f")]
    tree = codec.pack([kinds[0](5), kinds[1](), kinds[2]])
    file.unlink()
    program = (
        "import sys, json; from groupwise.core.processes import codec\n"
        "mine, other, f = codec.unpack(json.load(sys.stdin)['']); print(mine, mine.worth(), other.a, f())"
    )
    body = pack({"": tree})[4:]
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=body, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.decode().split() == ["Mine(number=5)", "10", "3", "4"]


def test_an_object_of_a_programs_own_class_is_one_line_that_says_what_to_do() -> None:
    program = """
        from groupwise.core.processes import codec
        class Mine:
            quick = False
        try:
            codec.pack({"mine": Mine()})
        except codec.NotPlain as refused:
            print(refused)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout == 'Mine is of the program; write it to a file and name it, such as use = "my_file.py:Mine"\n'


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: 0, r"<lambda> is not found by this name; define it at the top of a file$"),
        (threading.Lock(), "a value of type lock; hold text, numbers, lists or tables instead$"),
        ({"a": (n for n in ())}, "a value of type generator; hold text"),
        (Table(a=1), "a value of type Table; hold text"),
        (Counted(), "a value of type Counted; hold text"),
    ],
)
def test_what_no_process_can_have_is_said_in_one_line(value: Any, words: str) -> None:
    with pytest.raises(NotPlain, match=words):
        codec.pack(value)


def test_arrays_of_any_layout_come_as_they_are(ends: Ends) -> None:
    ours, theirs = ends
    whole = np.arange(24).reshape(2, 3, 4)
    layouts = {
        "turned": whole.T,
        "strided": whole[:, :, ::2],
        "row": whole[0, 0, ::-1],
        "one": np.array(3.5),
        "no": whole[:0],
    }
    codec.send(theirs, {"a": 1}, layouts)
    content, arrays = codec.receive(ours, 5.0)
    assert content == {"a": 1}
    assert {name: (a.dtype, a.tolist()) for name, a in arrays.items()} == {
        name: (a.dtype, a.tolist()) for name, a in layouts.items()
    }


STRANGE = [["c", ["n", "os", "system"], ["t", "true"], None, None, None], ["n", "os", "system"], ["r", 0], ["b", ""],
           ["a", "0"], ["x", 1], ["s", ["l"]], ["d", [1]], ["i", "zz"], ["i"], [], {}, [["l"]]]  # fmt: skip


@pytest.mark.parametrize("tree", STRANGE, ids=repr)
def test_plain_trees_hold_nothing_that_could_run(tree: Any) -> None:
    with pytest.raises(NotPlain, match="a malformed value"):
        codec.decode(tree)


def test_no_tree_is_deeper_than_the_reader_goes() -> None:
    deep: Any = []
    for _ in range(codec.DEPTH + 1):
        deep = [deep]
    with pytest.raises(NotPlain):
        codec.encode(deep)
    tree: Any = ["l"]
    for _ in range(5_000):
        tree = ["l", tree]
    for read in (codec.decode, codec.validate, codec.unpack):
        with pytest.raises(NotPlain):
            read(tree)


@pytest.mark.parametrize(
    "arrays",
    [
        5, ["a"], {"a": 5}, {"a": ["int64"]}, {"a": ["O", [1]]}, {"a": ["int64", [-1]]}, {"a": ["int64", [1.0]]},
        {"a": ["int64", [True]]}, {"a": [["int64"], [1]]}, {"a": ["int64", [1] * 40]}, {"a": ["float64", [2**40]]},
        {"a": ["int8", [2**62, 2**62]]}, {"a": ["int8", [2**35]], "b": ["int8", [2**35]], "c": ["int8", [1]]},
        {str(n): ["int8", [0]] for n in range(codec.MOST_ARRAYS + 1)},
    ],
    ids=lambda arrays: repr(arrays)[:40],
)  # fmt: skip
def test_arrays_that_cannot_be_are_refused_before_a_byte_of_them_is_read(arrays: Any, ends: Ends) -> None:
    ours, theirs = ends
    sender = threading.Thread(target=theirs.send, args=({"arrays": arrays},))
    sender.start()
    with pytest.raises(FrameError) as refused:
        codec.receive(ours, 5.0)
    sender.join()
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200
