"""Functions of a program that no other process can import: written into a file whole, or refused with the reason."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from groupwise.core.code.live_code import WRITTEN, extracted, located, require_as_in_its_file
from groupwise.core.code.user_code import Source, load
from groupwise.core.errors import UsageError

CELL = '''
import functools
import json
import re
import math as m
import xml.etree.ElementTree
from random import Random, randint as draw
from statistics import fmean as mean
from groupwise import Sample
import {neighbour}
from {neighbour} import score as score_of_the_neighbour

LIMIT, TABLE = 3, {{"a": (1, 2.5), "b": None}}
NAN = float("nan")
SPACES = re.compile(r"[\\s{{}}]+", re.M)

def whole(sample: Sample, completion: str, *, n: int = LIMIT) -> float:
    """Everything that it uses can be written down."""
    def inner(x: Sample = TABLE["a"]):
        return mean([*x, m.pi])
    tree = xml.etree.ElementTree.fromstring("<a/>")
    return n * len(completion) + inner() + len(tree) + len(json.dumps([c for c in completion]))

def make(limit):
    def closure(sample, completion):
        return len(completion) - limit
    def free(sample, completion):
        return len(completion) / LIMIT
    return closure, free

unnamed = lambda sample, completion: 1.0

def helped(sample, completion):
    return whole(sample, completion)

def tidy(text):
    return re.sub(SPACES, "", text)[:LIMIT]

strip = tidy

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n > 0 and even(n - 1)

def by_helpers(sample, completion, clean=tidy, *, weigh=whole):
    """What it uses uses more: constants, an import, each other, under another name."""
    return weigh(sample, clean(completion)) + len(strip(completion)) + even(len(completion))

def recursive(sample, completion):
    return 0.0 if not completion else 1.0 + recursive(sample, completion[1:])

def by_closure(sample, completion):
    return made(sample, completion)

def by_lambda(sample, completion):
    return unnamed(sample, completion)

def attributed(sample, completion):
    return attributed.weight

attributed.weight = 2.0

def by_class(sample, completion):
    return Judge()(sample, completion)

def missing(sample, completion):
    return not_there(completion)

def counting(sample, completion):
    global LIMIT
    LIMIT += 1
    return LIMIT

def not_a_number(sample, completion):
    return NAN

def beside(sample, completion):
    return {neighbour}.score(completion)

class Judge:
    def __call__(self, sample, completion):
        return 1.0

    @staticmethod
    def static(sample, completion):
        return 1.0

def with_none(sample, completion, extra_info=None, *, scale=None):
    """A default of None is the most usual one: verl's compute_score has it."""
    return len(tidy(completion)) + (scale or 0)

GENERATOR = Random(3)

def by_drawing(sample, completion):
    return float(draw(4, 4)) + len(tidy(completion))

def by_a_generator(sample, completion):
    return GENERATOR.random()

def decorator(function):
    @functools.wraps(function)
    def around(*given):
        return function(*given)
    return around

@decorator
def decorated(sample, completion):
    return 1.0

def by_neighbours_function(sample, completion):
    return score_of_the_neighbour(completion)
'''


def notebook(text: str, name: str = "<ipython-input-1>") -> dict[str, Any]:
    """What a cell of this text defines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(cached(text, name), names)
    return names


def cached(text: str, name: str) -> CodeType:
    """A cell, compiled; its source is where Python looks for a notebook's."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return compile(text, name, "exec", dont_inherit=True)


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "neighbour_of_a_notebook.py").write_text("def score(text): return 0.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return notebook(CELL.format(neighbour="neighbour_of_a_notebook"))


def written(function: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """The file of a function, and the function that another process finds in it."""
    content = extracted(function, "rewards.it.use", "rewards.py")
    path = Path("/nowhere/it.py")
    return content.decode(), load(f"{path}:{function.__name__}", "it", {path: Source(path, content)})


def test_a_function_and_all_that_it_uses_are_a_file(cell: dict[str, Any]) -> None:
    text, again = written(cell["whole"])
    assert text.startswith(f"{WRITTEN}whole, as the program had it")
    assert "import neighbour" not in text
    assert "import xml\nimport xml.etree\nimport xml.etree.ElementTree\n" in text
    assert "Sample\n" not in text, "an annotation is no reason to import"
    assert again(None, "abc") == cell["whole"](None, "abc")
    assert again(None, "abc", n=7) == cell["whole"](None, "abc", n=7)


def test_a_function_inside_another_that_takes_nothing_from_it_is_whole(cell: dict[str, Any]) -> None:
    _, again = written(cell["make"](5)[1])
    assert again(None, "abcdef") == 2.0


def test_a_cell_whose_statements_are_compiled_one_by_one() -> None:
    """As IPython does it, which gives other instructions for the call of an imported module."""
    text = "import math\ndef root(sample, completion):\n    return math.sqrt(len(completion))\n"
    names = notebook(text, "<ipython-input-2>")
    lines = "\n" + text.partition("\n")[2]
    exec(compile(lines, "<ipython-input-2>", "exec", dont_inherit=True), names)
    _, again = written(names["root"])
    assert again(None, "aaaa") == 2.0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("closure", r"closure \(<ipython-input-1>, line 25\) takes limit from the function around it"),
        ("unnamed", r"has no name and no source of its own.*give 'rewards.py:NAME'"),
        ("by_closure", r"closure \(<ipython-input-1>, line 25\), which by_closure uses, takes limit from the function"),
        ("by_lambda", r"<lambda> \(<ipython-input-1>, line 31\), which by_lambda uses, has no name and no source"),
        ("attributed", r"attributed \(.*\) has attributes that its source does not give it \(weight\)"),
        ("by_class", r"by_class \(.*\) uses Judge of the program \(<class"),
        ("missing", r"uses not_there, which is not defined"),
        ("counting", r"sets the variable LIMIT of the program"),
        ("not_a_number", r"uses NAN of the program \(nan\)"),
        ("beside", r"uses neighbour\w+ of the program \(the module neighbour\w+, which is not installed\)"),
        (
            "by_neighbours_function",
            r"uses score_of_\w+ of the program \(score of the module neighbour\w+, which is not",
        ),
        ("by_a_generator", r"uses GENERATOR of the program \(<random.Random object"),
        ("decorated", r"decorated \(.*\) has a decorator around it \(decorator\)"),
        ("static", r"static \(.*\) stands in the class Judge"),
        ("Judge", r"Judge is a class of this program"),
        ("object", r"is an object of this program"),
        ("sourceless", r"has no source, or it was changed since"),
    ],
)
def test_what_does_not_stand_by_itself_is_refused_in_one_line(name: str, why: str, cell: dict[str, Any]) -> None:
    cell["closure"], cell["object"] = cell["make"](5)[0], cell["Judge"]()
    cell["made"], cell["static"] = cell["closure"], cell["Judge"].static
    exec("def sourceless(sample, completion): return 1.0", cell)
    with pytest.raises(UsageError, match=why) as error:
        extracted(cell[name], "rewards.it.use", "rewards.py")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("rewards.it.use: ")
    assert "write it, with what it uses, into a file rewards.py and give 'rewards.py:" in str(error.value)


def test_the_functions_that_it_uses_are_written_along(cell: dict[str, Any]) -> None:
    text, again = written(cell["by_helpers"])
    for completion in ("a b", "abcd", " a\n{b} c d e"):
        assert again(None, completion) == cell["by_helpers"](None, completion)
    assert text.count("def tidy(") == text.count("def even(") == text.count("LIMIT = 3\n") == 1
    assert "recursive" not in text
    assert written(cell["helped"])[1](None, "abc") == cell["whole"](None, "abc")
    assert written(cell["recursive"])[1](None, "abcd") == 4.0
    assert written(cell["by_drawing"])[1](None, "a b") == 6.0
    assert written(cell["with_none"])[1](None, "a b") == cell["with_none"](None, "a b") == 2


BY_TEXT = """
NAME, OTHER, DRAWS = "b", {"a": 2}, [object()]

def evaluated(sample, completion):
    return completion.count(eval("NAME")) + globals()["OTHER"]["a"] + globals().get("NOT_THERE", 3)

def of_its_own(sample, completion, limit=1):
    return eval("max(limit, *(n for n in [2]))") + eval("a", {"a": 1})

def missed(sample, completion):
    return eval("NOT_THERE")

def not_plain(sample, completion):
    return len(globals()["DRAWS"])
"""


def test_a_name_that_is_looked_up_by_its_text_is_written_along_or_refused() -> None:
    names = notebook(BY_TEXT)
    for name in ("evaluated", "of_its_own"):
        assert written(names[name])[1](None, "abba") == names[name](None, "abba")
    for name, why in (("missed", "uses NOT_THERE, which is not defined"), ("not_plain", "uses DRAWS of the program")):
        with pytest.raises(UsageError, match=why):
            extracted(names[name], "rewards.it.use", "rewards.py")


@pytest.mark.parametrize("sign", ["\u2028", "\x0c", "\x85"])
def test_a_sign_at_which_a_notebook_cuts_a_source_is_named(sign: str) -> None:
    text = f"def lines(sample, completion):\n    return completion.count('a{sign}b')\n"
    function = notebook(text)["lines"]
    # IPython keeps a cell without the ends of its lines.
    linecache.cache["<ipython-input-1>"] = (len(text), None, [f"{line}\n" for line in text.splitlines()], "")
    with pytest.raises(
        UsageError, match=rf"holds the line separator U\+{ord(sign):04X}.*write it as an escape"
    ) as error:
        extracted(function, "rewards.it.use", "rewards.py")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("edit", "name", "why"),
    [
        (("n * len", "n + len"), "whole", "whole .* has no source, or it was changed since"),
        (
            ("[:LIMIT]", "[:LIMIT + 1]"),
            "by_helpers",
            "tidy .*, which by_helpers uses, has no source, or it was changed",
        ),
    ],
)
def test_a_source_that_was_edited_since_is_not_taken_for_the_function(
    edit: tuple[str, str], name: str, why: str, cell: dict[str, Any]
) -> None:
    cached(CELL.format(neighbour="neighbour_of_a_notebook").replace(*edit), "<ipython-input-1>")
    with pytest.raises(UsageError, match=why):
        extracted(cell[name], "it", "rewards.py")


def test_functions_that_are_others_by_now_are_refused(cell: dict[str, Any]) -> None:
    """Of two of one name a file could hold one; a default that was redefined since is not what its name is now."""
    again = notebook("def tidy(text):\n    return text\n", "<ipython-input-7>")["tidy"]
    cell["tidy"] = FunctionType(again.__code__, cell, "tidy")
    with pytest.raises(UsageError, match=r"tidy .*, which by_helpers uses, is another function than the tidy that is"):
        extracted(cell["by_helpers"], "it", "rewards.py")
    cell["strip"] = cell["tidy"]
    cell["LIMIT"] = 9
    for name in ("by_helpers", "whole"):
        with pytest.raises(UsageError, match=f"{name} .* has other defaults than its source would give it now"):
            extracted(cell[name], "it", "rewards.py")


def test_what_a_module_has_is_named_by_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own_module_of_a_user.py"
    path.write_text("def score(s, completion): return 0.0\nclass Judge:\n    def of(self): return 0.0\nother = score\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module: Any = __import__(path.stem)
    assert located(module.score) == located(module.other) == f"{path}:score"
    assert located(module.Judge) == f"{path}:Judge"
    loaded = load(f"{path}:Judge", "it")
    assert located(loaded) == f"{path}:Judge"
    assert located(math.sqrt) == "math:sqrt"
    assert located(written) == f"{__name__}:written"
    assert located(module.Judge()) == located(module.Judge().of) == located(lambda: 0) == ""
    require_as_in_its_file(module.score, "it")
    require_as_in_its_file(module.Judge, "it")
    path.write_text("# a line more\n" + path.read_text().replace("0.0", "1.0"))
    with pytest.raises(UsageError, match=r"^it: .*\.py was changed since score was imported from it; import it again"):
        require_as_in_its_file(module.score, "it")
    copied = FunctionType(module.score.__code__, {}, "score")
    copied.__module__ = module.__name__
    assert located(copied) == "", "another function of the same name"
