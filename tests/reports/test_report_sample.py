"""The part of the rollouts that a page shows: whole groups, spread over the run, the same every time, bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from groupwise.reports.folder.columns import short
from groupwise.reports.folder.sample import points
from groupwise.reports.folder.sample import sample as sample_and_end
from groupwise.reports.records import RolloutGroup, RolloutRow, Rollouts

Row = dict[str, Any]


def sample(path: Path, *limits: int, **named: int) -> Rollouts:
    """The groups alone."""
    return sample_and_end(path, *limits, **named)[0]


def row(step: int, group: int, place: int, **more: Any) -> Row:
    """A row as runs wrote them before there were columns per token."""
    told = {"step": step, "group": group, "fate": "trained", "fresh": True, "reward": 1.0, "advantage": 0.5}
    told |= {"key": f"k{group}", "prompt": f"1+{group}=", "answer": "2", "completion": f"{step} {group} {place}"}
    return told | {"tokens": 3, "finish": "stop", "score": 1.0, "logp_engine": -1.5, "version": step - 1} | more


def with_tokens(step: int, group: int, place: int, tokens: int = 3, **more: Any) -> Row:
    """A row as it is now."""
    draw = np.random.default_rng([step, group, place])
    column = lambda: draw.standard_normal(tokens).astype(np.float32)  # noqa: E731
    told = {"logp_engine": column(), "logp_old": column(), "advantage": 0.5, "value": column(), "returns": column()}
    updates = [
        {"update": k, "weight": 0.1, "logp_live": column(), "log_ratio": column(), "share": 1.0, "entropy": column()}
        for k in (0, 1)
    ]
    pieces = [f"{i} " for i in range(tokens)]
    return row(step, group, place, tokens=tokens, pieces=pieces, per_token=told, updates=updates, **more)


SCORES: dict[str, list[float | None]] = {
    "mixed": [1.0, 0.0, 1.0, 0.0],
    "all right": [1.0] * 4,
    "all wrong": [0.0] * 4,
    "unscored": [None] * 4,
}


def group(step: int, number: int, kind: str = "mixed", make: Any = row, **more: Any) -> list[Row]:
    return [make(step, number, i, score=score, **more) for i, score in enumerate(SCORES[kind])]


def dumped(*rows: Row) -> bytes:
    return b"".join(orjson.dumps(one, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n" for one in rows)


def today(*rows: Row) -> bytes:
    """With a blank after each colon and comma."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in rows)


def file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(content)
    return path


def places(groups: list[RolloutGroup]) -> list[tuple[int, int]]:
    return [(one.step, one.group) for one in groups]


@pytest.mark.parametrize("write", [today, dumped])
def test_a_small_run_is_shown_whole(write: Any, tmp_path: Path) -> None:
    rows = [one for step in (1, 2, 3) for number in range(3) for one in group(step, number, [*SCORES][number])]
    found = sample(file(tmp_path, write(*rows)))
    assert found.words == "36 of 36 completions: 9 whole groups from 3 of 3 steps"
    assert places(found.groups) == [(step, number) for step in (1, 2, 3) for number in range(3)]
    assert [one.kind for one in found.groups[:3]] == ["mixed", "all right", "all wrong"]
    first = found.groups[0]
    assert (first.key, first.source, first.prompt, first.answer, first.fresh) == ("k0", "", "1+0=", "2", True)
    assert first.completions[1] == RolloutRow("1 0 1", 0.0, 1.0, 0.5, "stop", 3, 0)


def test_columns_per_token_are_those_of_the_last_update_and_numbers_stand_for_all_tokens(tmp_path: Path) -> None:
    rows = group(1, 0, make=with_tokens, learned=0.25, fault="timeout in mine", parts={"mine": 0.5, "x": None})
    found = sample(file(tmp_path, dumped(*rows))).groups[0].completions[2]
    last, told = rows[2]["updates"][1], rows[2]["per_token"]
    assert found.columns["advantage"] == [0.5, 0.5, 0.5]
    assert found.columns["share"] == [1.0, 1.0, 1.0]
    for name, value in {**told, **last}.items():
        if isinstance(value, np.ndarray):
            assert found.columns[name] == pytest.approx(value.tolist(), rel=1e-6, abs=0), name
    assert set(found.columns) == {*told, *last} - {"update", "weight"}
    assert (found.pieces, found.learned, found.fault) == (["0 ", "1 ", "2 "], 0.25, "timeout in mine")
    assert found.parts == {"mine": 0.5, "x": None}


def test_turns_of_a_session_are_in_the_rows_that_the_policy_read(tmp_path: Path) -> None:
    own = [(0, 2, True, False), (2, 5, False, False), (5, 6, True, False), (6, 9, False, True), (9, 12, True, False)]
    spans = [dict(zip(("start", "stop", "own", "anew"), span, strict=True)) for span in own]
    turns = [{"stop": 2, "reward": 0.0}, {"stop": 6, "reward": 0.0}, {"stop": 12, "reward": 1.0}]
    first = [{**span, "anew": span["anew"] or not span["start"]} for span in spans]
    several, alone, begun, odd = ({"spans": s, "turns": turns} for s in (spans, [], first, [{"anew": True}, {}]))
    rows = [row(1, 0, place, **more) for place, more in enumerate((several, alone, begun, odd))]
    found = sample(file(tmp_path, dumped(*rows))).groups[0].completions
    assert [[turn["row"] for turn in one.turns] for one in found] == [[1, 1, 2], [1, 1, 1], [1, 1, 2], [1, 1, 1]]
    assert [[turn["tokens"] for turn in one.turns] for one in found[:2]] == [[2, 1, 3], [2, 4, 6]]
    assert [one.anew for one in found] == [[6], [], [0, 6], []]


def test_gaps_stay_gaps_and_a_column_of_another_length_is_left_out(tmp_path: Path) -> None:
    rows = group(1, 0, make=with_tokens)
    rows[0]["per_token"] |= {"value": [1.0, None, 2], "returns": [1.0, 2.0], "kl": None, "odd": "x"}
    found = sample(file(tmp_path, dumped(*rows)))
    assert found.groups[0].completions[0].columns["value"] == [1.0, None, 2]
    assert found.groups[0].completions[0].columns["kl"] == [None] * 3
    assert not {"returns", "odd"} & set(found.groups[0].completions[0].columns)
    assert "2 columns of numbers per token not as long as the tokens" in found.words


def long_run(tmp_path: Path, steps: int, groups: int, make: Any = row) -> Path:
    """Mostly groups of one kind, one of each other kind a step, and what does not train at the end."""
    kinds = ["mixed"] * groups + ["all right", "all wrong"]
    rows = []
    for step in range(1, steps + 1):
        told = [(kind, {}) for kind in kinds] + [("all right", {"fate": "dropped"}), ("mixed", {"fault": "none"})]
        rows += [one for i, (kind, more) in enumerate(told) for one in group(step, i, kind, make, **more)]
    return file(tmp_path, dumped(*rows))


@pytest.mark.parametrize("budget", [20_000, 60_000, 200_000])
def test_the_sample_fits_and_holds_whole_groups_of_every_kind_from_all_over_the_run(
    budget: int, tmp_path: Path
) -> None:
    path = long_run(tmp_path, steps=90, groups=12, make=with_tokens)
    found = sample(path, bytes_budget=budget)
    assert len(orjson.dumps(found.groups)) <= budget * 1.05
    assert len(orjson.dumps(found.groups)) > budget / 2, "what there is room for is used"
    assert all(len(one.completions) == 4 for one in found.groups)
    steps = sorted({one.step for one in found.groups})
    assert (steps[0], steps[-1]) == (1, 90)
    assert max(b - a for a, b in pairwise(steps)) <= 2.1 * 90 / (len(steps) - 1)
    first = [one for one in found.groups if one.step == 1]
    assert {one.kind for one in first} >= {"mixed", "all right", "all wrong"}
    assert "dropped" in {one.fate for one in first}
    assert any(completion.fault for one in first for completion in one.completions)
    assert sample(path, bytes_budget=budget) == found, "the same every time"


def test_no_more_groups_than_the_browser_can_filter(tmp_path: Path) -> None:
    path = long_run(tmp_path, steps=40, groups=12)
    found = sample(path, most_groups=50)
    assert len(found.groups) == 50
    assert found.words.startswith("200 of 2,560 completions: 50 whole groups from 10 of 40 steps")
    gaps = {b - a for a, b in pairwise(sorted({one.step for one in found.groups}))}
    assert max(gaps) - min(gaps) <= 1


def test_steps_stay_spread_where_a_page_holds_fewer_groups_than_the_file_promised(tmp_path: Path) -> None:
    """A number that stands for all tokens is one number in the file and many in the page."""
    told = {f"c{i}": 0.1234567 for i in range(20)}
    made = {"pieces": ["x"] * 50, "per_token": told}
    path = file(tmp_path, dumped(*(one for step in range(1, 101) for one in group(step, 0, **made))))
    found = sample(path, bytes_budget=400_000)
    steps = [one.step for one in found.groups]
    assert 5 < len(steps) < 50
    assert (steps[0], steps[-1]) == (1, 100)
    assert max(b - a for a, b in pairwise(steps)) <= 2.1 * 100 / (len(steps) - 1)


def test_only_the_later_lines_of_a_step_that_was_written_twice(tmp_path: Path) -> None:
    before = [one for number in range(3) for one in group(2, number, key="old")]
    after = [one for number in range(3) for one in group(2, number, key="new")]
    for between in ([], group(3, 0, key="old")):
        found = sample(file(tmp_path, dumped(*group(1, 0), *before, *between, *after, *group(3, 0, key="new"))))
        assert places(found.groups) == [(1, 0), (2, 0), (2, 1), (2, 2), (3, 0)]
        assert {one.key for one in found.groups} == {"k0", "new"}
        assert found.words.startswith("20 of 20 completions")


LINES = dumped(*(one for number in range(3) for one in group(1, number, make=with_tokens))).splitlines(keepends=True)


DAMAGED = [b"garbage\n", b'{"step":1,"group":%d,"fate":"trained","fr\n']
GONE = [(place, b"") for place in (0, 3, 8, 11)]  # in the middle of a step, a line that is gone leaves no trace


@pytest.mark.parametrize(("place", "damage"), GONE + [(place, damage) for place in range(12) for damage in DAMAGED])
def test_a_group_with_a_line_that_is_gone_or_damaged_is_left_out_whole(
    place: int, damage: bytes, tmp_path: Path
) -> None:
    damaged = damage.replace(b"%d", b"%d" % (place // 4))
    found = sample(file(tmp_path, b"".join([*LINES[:place], damaged, *LINES[place + 1 :]])))
    assert all(len(one.completions) == 4 for one in found.groups)
    assert {number for _, number in places(found.groups)} == {0, 1, 2} - {place // 4}
    assert found.words.startswith("8 of 11 completions: 2 whole groups from 1 of 1 step")


@pytest.mark.parametrize("place", range(11))
def test_half_a_line_that_runs_into_the_next_one_takes_the_groups_of_both(place: int, tmp_path: Path) -> None:
    found = sample(file(tmp_path, b"".join([*LINES[:place], LINES[place][:200], *LINES[place + 1 :]])))
    assert all(len(one.completions) == 4 for one in found.groups)
    assert {number for _, number in places(found.groups)} == {0, 1, 2} - {place // 4, (place + 1) // 4}


@pytest.mark.parametrize("cut", range(1, 400, 23))
def test_a_file_cut_anywhere_gives_whole_groups(cut: int, tmp_path: Path) -> None:
    content = b"".join(LINES)
    at = cut * len(content) // 400
    found = sample(file(tmp_path, content[:at]))
    done = content[:at].count(b"\n") // 4
    assert places(found.groups)[:done] == [(1, number) for number in range(done)]
    merged = sample(file(tmp_path, content[:at] + content))
    assert all(len(one.completions) == 4 for one in merged.groups)


@pytest.mark.parametrize("wrong", [{"completion": 3}, {"completion": None}, {"prompt": ["x"]}])
def test_rows_of_a_wrong_shape_are_left_out_and_counted(wrong: Row, tmp_path: Path) -> None:
    rows = [*group(1, 0), *group(1, 1), *group(1, 2)]
    rows[5] |= wrong
    found = sample(file(tmp_path, dumped(*rows)))
    assert places(found.groups) == [(1, 0), (1, 2)]
    assert "1 row cannot be read and left out, with the rest of the group" in found.words


def test_tokens_of_an_environment_are_gaps_however_far_a_span_says_that_they_reach(tmp_path: Path) -> None:
    spans = [{"start": 0, "stop": 1, "own": True}, {"start": 1, "stop": 2**40, "own": False}]
    found = sample(file(tmp_path, dumped(*group(1, 0, make=with_tokens, spans=spans)))).groups[0].completions[0]
    assert found.answers == [(1, 2**40)]
    assert found.columns["advantage"] == [0.5, None, None]


def test_numbers_and_texts_of_a_wrong_kind_are_gaps(tmp_path: Path) -> None:
    wrong: Row = {"score": "high", "reward": True, "advantage": None, "tokens": -1, "version": None, "parts": 3}
    wrong |= {"pieces": [1, 2], "per_token": [], "updates": {}, "answer": 12, "key": None, "finish": 0, "learned": {}}
    found = sample(file(tmp_path, dumped(*([row(1, 0, i) | wrong for i in range(4)]))))
    assert found.groups[0].completions[0] == RolloutRow("1 0 0", None, None, None, "0", 0, 0)
    assert (found.groups[0].kind, found.groups[0].answer, found.groups[0].key) == ("unscored", "12", "")


def test_long_texts_are_cut_and_say_so(tmp_path: Path) -> None:
    long = with_tokens(1, 0, 0, tokens=9000, completion="ä" * 30_000)
    found = sample(file(tmp_path, dumped(long, with_tokens(1, 0, 1))))
    cut = found.groups[0].completions[0]
    assert cut.text == "ä" * 20_000 + " [cut here: 30,000 characters in all]"
    assert cut.tokens == 9000
    assert cut.pieces[-1].endswith("more tokens]")
    assert len("".join(cut.pieces[:-1])) <= 20_000
    assert {len(column) for column in cut.columns.values()} == {len(cut.pieces)}
    assert "1 text longer than 20,000 characters cut off there" in found.words


def test_a_group_too_large_for_its_share_loses_columns_before_completions(tmp_path: Path) -> None:
    rows = [with_tokens(1, number, i, tokens=300) for number in range(3) for i in range(4)]
    found = sample(file(tmp_path, dumped(*rows)), bytes_budget=400_000)
    assert [len(one.completions) for one in found.groups] == [4, 4, 4]
    bare = sum(not completion.pieces for one in found.groups for completion in one.completions)
    assert 0 < bare < 12
    assert f"{bare} long completions shown without numbers per token" in found.words
    nothing = sample(file(tmp_path, dumped(*rows)), bytes_budget=200)
    assert nothing.groups == []
    assert nothing.words.startswith("0 of 12 completions")


def test_files_without_rollouts(tmp_path: Path) -> None:
    assert sample(tmp_path / "nothing").words == "no rollouts were written"
    assert sample(file(tmp_path, b"")).words == "0 of 0 completions: 0 whole groups from 0 of 0 steps"
    assert sample(tmp_path).words.endswith("cannot be read: Is a directory")
    assert sample(file(tmp_path, b"\xff\x00\n\n[1]\n")).groups == []


def test_what_is_appended_later_is_sampled_from_where_the_first_sample_ended(tmp_path: Path) -> None:
    path = file(tmp_path, dumped(*group(1, 0), *group(1, 1)) + b'{"step":2,"gr')
    found, end = sample_and_end(path)
    assert places(found.groups) == [(1, 0), (1, 1)]
    with path.open("ab") as more:
        more.write(dumped(*group(2, 0), *group(2, 1))[len(b'{"step":2,"gr') :])
    later, end = sample_and_end(path, start=end)
    assert end == path.stat().st_size
    assert places(later.groups) == [(2, 0), (2, 1)]


def test_points_of_the_newest_steps(tmp_path: Path) -> None:
    rows = [one for step in (1, 2) for one in group(step, 0, make=with_tokens, learned=0.5)]
    groups = sample(file(tmp_path, dumped(*rows))).groups
    found = points(groups)
    assert set(found) == {"value-return", "learned-score"}
    assert found["value-return"].step == [2] * 12 + [1] * 12
    told = rows[4]["per_token"]
    assert found["value-return"].columns["value"][:3] == [short(float(v)) for v in map(str, told["value"])]
    assert found["value-return"].columns["returns"][:3] == [short(float(v)) for v in map(str, told["returns"])]
    assert found["learned-score"].columns == {"learned": [0.5] * 8, "score": [1.0, 0.0] * 4}
    assert points(sample(file(tmp_path, dumped(*group(1, 0)))).groups) == {}
    many = [one for step in (1, 2) for one in group(step, 0, make=with_tokens, tokens=400)]
    most = points(sample(file(tmp_path, dumped(*many))).groups)["value-return"]
    assert (len(most.step), most.step[0], most.step[-1]) == (2000, 2, 1)


MEASURED = """
import re, sys, time
from pathlib import Path
from groupwise.reports.folder.sample import sample
began = time.process_time()
found, _ = sample(Path(sys.argv[1]))
seconds = time.process_time() - began
peak = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
print(seconds, peak, len(found.groups), found.words, sep="\\n")
"""


def test_a_hundred_thousand_rollouts_in_seconds_and_in_little_memory(tmp_path: Path) -> None:
    """The pass over them all looks at beginnings; only what is shown is parsed."""
    path = tmp_path / "rollouts.jsonl"
    made = [dumped(with_tokens(0, 0, i, tokens=16)).replace(b'{"step":0,"group":0', b"") for i in range(8)]
    with path.open("wb") as out:
        for step in range(1, 201):
            for number in range(64):
                begin = b'{"step":%d,"group":%d' % (step, number)
                out.write(b"".join(begin + one for one in made))
    told = subprocess.run([sys.executable, "-c", MEASURED, path], capture_output=True, text=True, check=True).stdout
    path.unlink()
    seconds, peak, groups, words = told.splitlines()
    assert words.startswith(f"{int(groups) * 8:,} of 102,400 completions: {groups} whole groups from ")
    assert int(groups) > 100
    assert float(seconds) < 4
    assert float(peak) < 200, "MiB; the file has more"
