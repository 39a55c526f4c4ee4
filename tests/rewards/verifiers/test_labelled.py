"""The labelled answers of `labelled/`: how often a checker says otherwise than a careful human grader.

A line is one pair: its kind, the check and its settings, gold answer, completion, right (1.0 or 0.0), the reason of the
label and, where today's checker judges it wrongly, `known`: why. `python -m tests.rewards.verifiers.test_labelled`
prints the table of docs/reference/answers.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from groupwise.rewards.verifiers.answers import CHECKERS, Checker

FOLDER = Path(__file__).parent / "labelled"
#: The largest share of the wrong answers that may be judged right, and of the right answers that may be judged wrong.
MOST_WRONGLY_RIGHT, MOST_WRONGLY_WRONG = 0.005, 0.01
FIELDS = {"kind", "check", "gold", "completion", "right", "reason"}


class Line(NamedTuple):
    """One labelled pair: the family (its file), its number in the file, its fields, and the verdict of its checker."""

    family: str
    number: int
    row: dict[str, Any]
    verdict: float | None = None

    @property
    def missed(self) -> bool:
        """Whether the verdict is not the label."""
        return self.verdict != self.row["right"]

    def __str__(self) -> str:
        return f"{self.family}:{self.number} is {self.verdict}: {json.dumps(self.row, ensure_ascii=False)}"


def lines() -> Iterator[Line]:
    """Every line of every family, not judged."""
    for path in sorted(FOLDER.glob("*.jsonl")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            yield Line(path.stem, number, json.loads(text))


def judged() -> list[Line]:
    """Every line with its verdict; one checker for each check and its settings."""
    checkers: dict[str, Checker] = {}
    found = []
    for line in lines():
        row = line.row
        name = row["check"] + json.dumps(row.get("settings", {}))
        if name not in checkers:
            checkers[name] = CHECKERS[row["check"]](**row.get("settings", {}))
        found.append(line._replace(verdict=checkers[name](row["completion"], row["gold"])))
    return found


def rates(judged: list[Line]) -> tuple[int, int, int, int]:
    """(wrongly right, wrong answers, wrongly wrong, right answers)."""
    count = Counter((line.row["right"], line.missed) for line in judged)
    return (
        count[0.0, True],
        count[0.0, True] + count[0.0, False],
        count[1.0, True],
        count[1.0, True] + count[1.0, False],
    )


def table(judged: list[Line]) -> str:
    """The two error rates by family, as a table of Markdown."""
    families = {
        family: [line for line in judged if line.family == family] for family in {line.family for line in judged}
    }
    rows = ["| family | pairs | wrongly right | wrongly wrong |", "|---|---|---|---|"]
    for name, some in [*sorted(families.items()), ("all", judged)]:
        first, wrong, second, right = rates(some)
        rows.append(
            f"| {name.replace('_', ' ')} | {len(some):,} | {first} of {wrong:,} ({first / wrong:.1%}) "
            f"| {second} of {right:,} ({second / right:.1%}) |"
        )
    return "\n".join(rows)


@pytest.fixture(scope="module")
def verdicts() -> list[Line]:
    return judged()


def test_the_set_covers_every_family_with_both_labels_and_a_reason_each() -> None:
    found = list(lines())
    sizes = Counter(line.family for line in found)
    labels = Counter((line.family, line.row["right"]) for line in found)
    assert len(found) >= 1500
    assert min(sizes.values()) >= 40
    assert len(sizes) >= 15
    assert all(labels[family, right] >= size / 4 for family, size in sizes.items() for right in (0.0, 1.0))
    assert [str(line) for line in found if line.row.keys() - {"settings", "known"} != FIELDS] == []
    assert [
        str(line) for line in found if line.row["right"] not in (0.0, 1.0) or line.row["check"] not in CHECKERS
    ] == []
    assert [str(line) for line in found if not (line.row["reason"].strip() and line.row["completion"].strip())] == []


def test_no_pair_is_there_twice() -> None:
    pairs = Counter(
        json.dumps([line.row.get(key) for key in ("check", "settings", "gold", "completion")]) for line in lines()
    )
    assert [pair for pair, times in pairs.items() if times > 1] == []


def test_every_gold_answer_can_be_read_by_its_check() -> None:
    unread = {
        (line.row["check"], line.row["gold"])
        for line in lines()
        if not CHECKERS[line.row["check"]](**line.row.get("settings", {})).readable(line.row["gold"])
    }
    assert unread == set()


def test_few_wrong_answers_pass_and_few_right_answers_fail(verdicts: list[Line]) -> None:
    wrongly_right, wrong, wrongly_wrong, right = rates(verdicts)
    missed = "\n".join(str(line) for line in verdicts if line.missed)
    assert wrongly_right <= MOST_WRONGLY_RIGHT * wrong, missed
    assert wrongly_wrong <= MOST_WRONGLY_WRONG * right, missed


def test_each_verdict_that_differs_is_known_and_each_known_one_still_differs(verdicts: list[Line]) -> None:
    assert [str(line) for line in verdicts if line.missed and "known" not in line.row] == []
    assert [str(line) for line in verdicts if not line.missed and "known" in line.row] == []
    assert [str(line) for line in verdicts if not line.row.get("known", "a reason").strip()] == []


if __name__ == "__main__":
    print(table(judged()))
