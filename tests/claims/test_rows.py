"""Rows: kept as they are measured, gone on with after a kill, no longer counted where what measures has changed."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import threading
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from groupwise.claims import experiments
from groupwise.claims.claim import Claim
from groupwise.claims.command import HEADER, append_row, current, measure, missing, read_rows
from groupwise.claims.experiments import Effort, Experiment, computed
from groupwise.claims.measurements import Measurements, Numbers, Row, above
from groupwise.core.errors import RunError, UsageError

SEEDS = 4


def claim(measured: Callable[[int, Path], Mapping[str, Any]], **changes: Any) -> Claim:
    """A claim of one experiment, that its number is above 0."""
    seeds = {Effort.QUICK: SEEDS, Effort.STANDARD: SEEDS + 2}
    experiment = dataclasses.replace(Experiment("counting", measured, "1", seeds), **changes)
    return Claim(
        name="counts",
        title="It counts.",
        source="nowhere",
        argument="",
        expected="",
        of=experiment,
        numbers={"the number": "number"},
        rule="",
        judge=lambda seen: above(seen.interval("number"), 0.0, "the number is"),
    )


def seeds_in(rows: Path) -> list[int]:
    return [row.seed for row in read_rows(rows)]


def test_each_seed_is_measured_once_and_more_with_more_effort(tmp_path: Path) -> None:
    seeds: list[int] = []
    counts = claim(lambda seed, work: seeds.append(seed) or {"number": 1.0 + seed})
    rows = tmp_path / "new" / "rows.jsonl"
    for effort, expected in (
        (Effort.QUICK, range(SEEDS)),
        (Effort.QUICK, range(SEEDS)),
        (Effort.STANDARD, range(SEEDS + 2)),
        (Effort.FULL, range(SEEDS + 2)),
    ):
        measure([counts], effort, rows, tmp_path, print)
        assert seeds == seeds_in(rows) == list(expected)
    assert rows.read_text().count("groupwise_claims") == 1, "the header stands once"
    assert HEADER == {"groupwise_claims": 1}


def test_claims_that_read_the_same_experiment_share_its_rows(tmp_path: Path) -> None:
    seeds: list[int] = []
    one = claim(lambda seed, work: seeds.append(seed) or {"number": 1.0})
    other = dataclasses.replace(one, name="counts too")
    measure([one, other], Effort.QUICK, tmp_path / "rows.jsonl", tmp_path, print)
    assert seeds == list(range(SEEDS))


@pytest.mark.parametrize("torn", [b"", b'{"experiment":"counting","se', b'{"groupwise_cl'])
def test_a_kill_in_the_middle_loses_nothing_that_was_measured(tmp_path: Path, torn: bytes) -> None:
    """A process of its own is killed while it measures seed 2; what it had begun to write is torn."""
    rows = tmp_path / "rows.jsonl"
    child = os.fork()
    if not child:
        measure([claim(lambda seed, work: _until(2, seed))], Effort.QUICK, rows, tmp_path, lambda words: None)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert seeds_in(rows) == [0, 1]
    whole = rows.read_bytes()
    rows.write_bytes(torn if torn.startswith(b'{"groupwise') else whole + torn)
    before = seeds_in(rows)
    seeds: list[int] = []
    known = measure(
        [claim(lambda seed, work: seeds.append(seed) or {"number": 2.0})], Effort.QUICK, rows, tmp_path, print
    )
    assert seeds == [seed for seed in range(SEEDS) if seed not in before]
    assert sorted(known.of("counting")) == list(range(SEEDS))
    assert b"\n".join(rows.read_bytes().split(b"\n")[:-1]).count(b"\n") == SEEDS


def _until(last: int, seed: int) -> Mapping[str, Any]:
    if seed == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"number": 1.0}


def test_side_by_side_are_those_of_a_process_of_their_own(tmp_path: Path) -> None:
    """Two of them wait for each other, and so would wait for ever one after the other."""
    meeting = threading.Barrier(2, timeout=20)

    def measured(seed: int, work: Path) -> Mapping[str, Any]:
        meeting.wait()
        return {"number": 1.0 + seed}

    rows, messages = tmp_path / "rows.jsonl", []
    counts = claim(measured, own_process=True)
    measure([counts], Effort.QUICK, rows, tmp_path, messages.append, at_once=2)
    assert sorted(seeds_in(rows)) == list(range(SEEDS))
    assert not [row.error for row in read_rows(rows) if row.error]
    assert sorted(words for words in messages if " of " in words) == [
        f"{seed + 1} of {SEEDS}: counting, seed {seed}" for seed in range(SEEDS)
    ]
    assert sum("measured (" in words for words in messages) == SEEDS
    here: set[str] = set()
    inside = claim(lambda seed, work: here.add(threading.current_thread().name) or {"number": 1.0})
    measure([inside], Effort.QUICK, tmp_path / "others.jsonl", tmp_path, print, at_once=2)
    assert here == {threading.current_thread().name}


def test_a_number_that_a_run_does_not_have_leaves_its_seed_out(tmp_path: Path) -> None:
    rows = [Row("a", seed, "1", {"number": number}) for seed, number in enumerate((1.0, None, 3.0))]
    known = Measurements([*rows, Row("b", 0, "1", {"number": 5.0}), Row("b", 1, "1", {})])
    assert known.numbers("a", "number") == {0: 1.0, 2: 3.0}
    assert known.numbers("b", "number") == {0: 5.0}
    assert known.difference("a", "b", "number") is None
    for damaged in ("1", True, [1.0], math.nan, 1e301):
        with pytest.raises(UsageError, match=r"the row of a, seed 0, has .* for 'number', which is no number"):
            Measurements([Row("a", 0, "1", {"number": damaged})]).numbers("a", "number")
    with pytest.raises(UsageError, match="which is no number"):
        known.values("a", "number")


@pytest.mark.parametrize(
    "damaged",
    [{"curves": curves} for curves in (1, {"loss": 1.0}, {"loss": ["1"]})]
    + [{"heldout": rates} for rates in (1, [1], [[0]], [["0", 0.5]], [[0, None]])],
)
def test_a_row_without_its_curve_says_which_line_it_is(damaged: Mapping[str, Any]) -> None:
    known = Measurements([Row("a", 0, "1", damaged, line=7)])
    for read in (lambda: known.curves("a", "loss"), lambda: known.heldout("a")):
        with pytest.raises(UsageError, match=r"^line 7, the row of a, seed 0, has .* delete it from the file of rows"):
            read()


def test_curves_and_heldout_rates_are_read_by_seed(tmp_path: Path) -> None:
    row = Row("a", 3, "1", {"curves": {"loss": [1.0, None]}, "heldout": [[0, 0.5], [10, 1]]})
    append_row(tmp_path / "rows.jsonl", row)
    known = Measurements(read_rows(tmp_path / "rows.jsonl"))
    assert known.curves("a", "loss") == {3: [1.0, None]}
    assert known.heldout("a") == {3: [(0, 0.5), (10, 1.0)]}
    assert [row.line for row in known.rows.values()] == [2]
    assert '"line"' not in (tmp_path / "rows.jsonl").read_text()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: {"number": float("nan")}, "number is nan"),
        (lambda: (_ for _ in ()).throw(RunError("the run ended with exit code 3")), "exit code 3"),
    ],
)
def test_an_experiment_that_fails_has_a_row_and_is_measured_again(
    tmp_path: Path, wrong: Callable[[], Any], message: str
) -> None:
    def measured(seed: int, work: Path) -> Mapping[str, Any]:
        if seed == 1 and not mended:
            outcome = wrong()
            return outcome if isinstance(outcome, dict) else next(outcome)
        return {"number": 1.0 + seed}

    mended: list[bool] = []
    counts, rows = claim(measured), tmp_path / "rows.jsonl"
    known = measure([counts], Effort.QUICK, rows, tmp_path, print)
    assert sorted(known.of("counting")) == [0, 2, 3]
    assert message in counts.verdict(known).because
    assert str(counts.verdict(known)).startswith("not measured: counting, seed 1")
    mended.append(True)
    assert str(counts.verdict(measure([counts], Effort.QUICK, rows, tmp_path, print))).startswith("holds")
    assert seeds_in(rows) == [0, 1, 2, 3, 1]


def test_one_seed_again_says_whether_it_is_the_same(tmp_path: Path) -> None:
    """What the machine decides is not compared."""
    said: list[str] = []
    rows = tmp_path / "rows.jsonl"

    def again(number: float, seed: int | None = 3, **more: Any) -> str:
        measure([claim(lambda seed, work: {"number": number}, **more)], Effort.QUICK, rows, tmp_path, said.append, seed)
        return said[-1]

    assert "before" not in again(1.0, seed=None)
    assert again(1.0).endswith("the same numbers as before")
    assert again(7.0).endswith("such as number: 1.0, now 7.0")
    costly = {"costs": frozenset({"number"})}
    assert again(8.0, **costly).endswith("the same numbers as before but for seconds and memory")
    assert seeds_in(rows) == [0, 1, 2, 3, 3, 3, 3]


def test_rows_of_another_definition_no_longer_count(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    older = claim(lambda seed, work: {"number": 1.0})
    measure([older], Effort.QUICK, rows, tmp_path, print)
    newer = claim(lambda seed, work: {"number": -1.0}, fingerprint="2")
    assert current([newer], read_rows(rows)).of("counting") == {}
    assert len(current([older], read_rows(rows)).of("counting")) == SEEDS


def test_rows_of_other_code_count_until_they_are_measured_again(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    measure([claim(lambda seed, work: {"number": 1.0}, code="old")], Effort.QUICK, rows, tmp_path, print)
    now = claim(lambda seed, work: {"number": 2.0}, code="new")
    assert Numbers(current([now], read_rows(rows)), "counting").mean("number") == 1.0
    assert len(missing([now], Effort.QUICK, current([now], read_rows(rows)))) == SEEDS
    assert Numbers(measure([now], Effort.QUICK, rows, tmp_path, print), "counting").mean("number") == 2.0


SOURCE = '''"""A claim."""
from groupwise.claims.experiments import computed
{above}
def unused():
    return {unused}
def helper():
    return SIZE
@computed("counting", seeds={seeds})
def measure(seed):
    return {{"number": {number}}}
'''


def fingerprint(folder: Path, **parts: str) -> str:
    """Define an experiment in a file of its own, and take its fingerprint."""
    usual = {"above": "SIZE = 3", "number": "helper()", "seeds": "2", "unused": "None"}
    text = SOURCE.format(**{**usual, **parts})
    path = folder / f"claim_{abs(hash(text))}.py"
    path.write_text(text)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, path.stem, module)
        exec(compile(text, str(path), "exec"), vars(module))
    return module.measure.fingerprint


def test_what_measures_is_in_the_fingerprint_and_nothing_else_of_its_file(tmp_path: Path, monkeypatch) -> None:
    """The function, what it calls and the constants of that; not another function, nor imports, nor how many seeds."""
    as_it_is = fingerprint(tmp_path)
    assert fingerprint(tmp_path, number="helper() + 1") != as_it_is
    assert fingerprint(tmp_path, above="SIZE = 4") != as_it_is
    assert fingerprint(tmp_path, above="OTHER, SIZE = 1, 3") != as_it_is
    assert fingerprint(tmp_path, above="OTHER = 4\nSIZE = 3") == as_it_is
    assert fingerprint(tmp_path, above="import math\nSIZE = 3") == as_it_is
    assert fingerprint(tmp_path, unused="1") == as_it_is
    assert fingerprint(tmp_path, seeds="3") == as_it_is
    monkeypatch.setattr(experiments, "toys", experiments)
    assert fingerprint(tmp_path) != as_it_is


def counting(seed: int) -> Mapping[str, Any]:
    return {"number": seed}


def test_code_is_that_of_groupwise(tmp_path: Path) -> None:
    experiment = computed("counting", seeds=1)(counting)
    assert len(experiment.code) == 12
    assert experiment.seeds == {Effort.QUICK: 1}
    assert experiment.measure(3, tmp_path) == {"number": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"hello", "this is no file of claims' rows"),
        (b"hello\n", "this is no file of claims' rows"),
        (b'{"step":1}\n', "this is no file of claims' rows"),
        (b"[]\n", "this is no file of claims' rows"),
        (b'{"groupwise_claims":2}\n', "its rows are of version 2, this is 1"),
        (b'{"groupwise_claims":1}\nhello\n', "line 2 is no row"),
        (
            b'{"groupwise_claims":1}\n{"experiment":"a","seed":"x","fingerprint":"1","measured":{}}\n',
            "line 2 is no row",
        ),
        (b'{"groupwise_claims":1}\n{"seed":0}\n', "line 2 is no row"),
        (b"\xff\xfe\n", "this is no file of claims' rows"),
    ],
)
def test_a_damaged_file_is_refused_and_stays_as_it_is(tmp_path: Path, text: bytes, message: str) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(text)
    with pytest.raises(UsageError, match=message):
        measure([claim(lambda seed, work: {"number": 1.0})], Effort.QUICK, rows, tmp_path, print)
    assert rows.read_bytes() == text


def test_a_disk_that_refuses_is_one_line(tmp_path: Path) -> None:
    row = Row("counting", 0, "1", {})
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "rows.jsonl", Path("/dev/null")):
        with pytest.raises(RunError, match="a row cannot be added"):
            append_row(place, row)
