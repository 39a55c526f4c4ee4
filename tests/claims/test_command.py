"""`groupwise claims`: what it measures, shows and writes, and one line for everything that can be asked wrongly."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from groupwise import cli
from groupwise.claims import command
from groupwise.claims.catalog import CLAIMS
from groupwise.claims.claim import Effort
from groupwise.claims.page import TITLE, markdown
from groupwise.claims.run import current, missing
from groupwise.claims.store import read_rows
from tests.command_process import CommandProcess

DOCS = Path(__file__).parents[2] / "docs"
EVIDENCE = DOCS / "evidence" / "claims.jsonl"
#: A claim of mathematics, with one seed, measured in no time; and one of several seeds.
EXACT, SEVERAL = "length-weights", "gspo-token"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """The command in an empty folder -> exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def called(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["groupwise", "claims", *words])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        return int(leaving.value.code or 0), *capfd.readouterr()

    return called


def test_a_claim_is_measured_shown_and_written(call: Call) -> None:
    code, out, err = call("--only", EXACT, "--only", SEVERAL, "--quick")
    assert code == 0
    assert re.search(rf"^{EXACT} +holds$", out, re.MULTILINE)
    assert re.search(rf"^{SEVERAL} +holds$", out, re.MULTILINE)
    assert "2 claims: holds 2" in out
    assert "6 experiments to measure, rows in claims/rows.jsonl" in err
    assert f"6 of 6: {SEVERAL}, seed 4" in err
    page = Path("claims/claims.md").read_text()
    assert page.startswith(TITLE)
    assert all(f"## {claim.name}\n" in page for claim in CLAIMS)
    assert "[rows.jsonl](rows.jsonl)" in page
    assert "data-plot" in Path("claims/claims.html").read_text()
    code, _, err = call("--only", EXACT, "--quick")
    assert code == 0
    assert "0 experiments to measure" in err


def test_a_claim_that_does_not_hold_is_no_failure(call: Call) -> None:
    code, out, _ = call("--only", "long-answers", "--quick")
    assert code == 0
    assert "long-answers  does not hold" in out


def test_the_list_has_every_claim_and_measures_nothing(call: Call) -> None:
    code, out, _ = call("--list")
    assert code == 0
    assert len(re.findall(r"^[a-z0-9-]+ +--(?:quick|standard|full) +not measured$", out, re.MULTILINE)) == len(CLAIMS)
    assert all(claim.title in out and claim.source in out for claim in CLAIMS)
    assert not os.listdir()
    call("--only", EXACT, "--quick")
    code, out, _ = call("--list", "--only", EXACT)
    assert out.startswith(f"{EXACT}  --quick     holds\n")
    code, out, _ = call("--list", "--rows", str(EVIDENCE))
    assert "not measured" not in "".join(line for line in out.splitlines() if "--quick" in line)


def test_one_seed_reproduces_its_row(call: Call) -> None:
    call("--only", SEVERAL, "--quick")
    code, out, err = call("--only", SEVERAL, "--quick", "--seed", "3")
    assert code == 0
    assert err.strip().endswith("the same numbers as before")
    assert f"{SEVERAL}, seed 3\n  share of tokens that are clipped: 0." in out
    code, out, _ = call("--only", SEVERAL, "--quick", "--seed", "17", "--rows", "other.jsonl")
    assert code == 0
    assert [row.seed for row in read_rows(Path("other.jsonl"))] == [17]
    assert "over 1 seed: cannot be told at this size" in out


def test_what_cannot_be_measured_is_exit_code_1(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    (experiment,) = next(claim for claim in CLAIMS if claim.name == EXACT).experiments
    broken = lambda seed, work: {}["no such number"]  # noqa: E731
    monkeypatch.setitem(vars(experiment), "measure", broken)
    code, out, err = call("--only", EXACT, "--only", SEVERAL, "--quick")
    assert code == 1
    assert f"{EXACT}  not measured" in out
    assert "unexpected, in claims length-weights: KeyError: 'no such number'" in err
    assert f"{SEVERAL}      holds" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "claims: choose --quick"),
        (["--only", EXACT], "claims: choose --quick"),
        (["--quick", "--standard"], "one effort, not --quick and --standard"),
        (["--quick", "--standard", "--full"], "one effort, not --quick and --standard and --full"),
        (
            ["--only", "clip-produkt", "--quick"],
            "--only 'clip-produkt': there is no such claim; did you mean 'clip-product'?",
        ),
        (["--only", EXACT, "--only", "", "--quick"], "--only '': there is no such claim"),
        (["--list", "--only", "nothing"], "--only 'nothing': there is no such claim"),
        (["--list", "--quick"], "--list measures and writes nothing"),
        (["--list", "--seed", "0"], "--list measures and writes nothing"),
        (["--quick", "--seed", "one"], "--seed"),
        (["--quick", "--seed", "-1"], "--seed"),
        (["--quick", "--seed", "0,1"], "--seed"),
        (["--quick", "--rows", "folder"], "folder: "),
        (["--quick", "--rows", "fifo"], "fifo: "),
        (["--quick", "--rows", "link"], "link: "),
        (["--quick", "--rows", "/dev/null"], "/dev/null: "),
        (["--quick", "--rows", "text/rows.jsonl"], "text/rows.jsonl: "),
        (["--quick", "--rows", ""], "rows"),
        (["--quick", "--rows", "text"], "text: this is no file of claims' rows"),
        (["--list", "--rows", "folder"], "folder: cannot be read"),
        (["--list", "--rows", "fifo"], "fifo: cannot be read"),
        (["--list", "--rows", "text"], "text: this is no file of claims' rows"),
        (["--quick", "--rows", "newer"], "newer: its rows are of version 2, this is 1"),
        (["--list", "--rows", "damaged"], "damaged: line 2 is no row"),
        (["--quick", "--out", "text"], "--out text: this is no folder"),
        (["--quick", "--out", "mine"], "mine/claims.md: this exists and is no page of claims"),
        (["--quick", "--out", "theirs"], "theirs/claims.html: this exists and is no page of groupwise's"),
    ],
)
def test_wrong_use_is_one_line_and_nothing_is_measured(call: Call, words: list[str], told: str) -> None:
    for folder in ("folder", "mine", "theirs"):
        os.mkdir(folder)
    os.mkfifo("fifo")
    os.symlink("nowhere", "link")
    Path("text").write_text("a text of mine\n")
    Path("newer").write_text('{"groupwise_claims":2}\n')
    Path("damaged").write_text('{"groupwise_claims":1}\n{"experi\n')
    Path("mine/claims.md").write_text("what I claim\n")
    Path("theirs/claims.html").write_text("<p>what they claim\n")
    before = sorted(os.listdir())
    code, _, err = call(*words)
    assert code == 2
    assert told in err
    assert len(err.strip().splitlines()) == 1
    assert sorted(os.listdir()) == before
    assert Path("mine/claims.md").read_text() == "what I claim\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_and_gone_on_with_nothing_is_measured_twice(tmp_path: Path, number: int) -> None:
    rows = tmp_path / "rows.jsonl"
    words = ("claims", "--only", "toy-entropy", "--quick", "--rows", str(rows), "--out", str(tmp_path / "pages"))
    first = CommandProcess(*words)
    while len(read_rows(rows)) < 1 and first.poll() is None:
        time.sleep(0.01)
    first.send_signal(number)
    said = first.communicate()
    assert "Traceback" not in said
    before = [row.seed for row in read_rows(rows)]
    assert before == list(range(len(before)))
    assert 0 < len(before) < 10, said
    again = CommandProcess(*words[:2], "toy-entropy", *words[3:])
    said = again.communicate()
    assert again.returncode == 0, said
    assert [row.seed for row in read_rows(rows)] == list(range(10))
    assert f"{10 - len(before)} experiments to measure" in said


def test_the_committed_rows_are_all_there_and_the_page_is_theirs() -> None:
    known = current(CLAIMS, read_rows(EVIDENCE))
    quick = [claim for claim in CLAIMS if claim.effort is Effort.QUICK]
    again = [each for each in missing(quick, Effort.QUICK, known) if each.seed not in known.of(each.experiment.name)]
    assert again == [], "run make claims"
    made = markdown(CLAIMS, known, "evidence/claims.jsonl")
    assert (DOCS / "claims.md").read_text().startswith(made), "run make claims"


def test_every_number_of_a_table_or_a_figure_is_measured() -> None:
    known = current(CLAIMS, read_rows(EVIDENCE))
    for claim in CLAIMS:
        lines = claim.figure.lines if claim.figure else ()
        names = [(q.experiment, q.name) for q in claim.quantities] + [
            (line.experiment, n) for line in lines for n in line.names
        ]
        assert {experiment for experiment, _ in names} <= {experiment.name for experiment in claim.experiments}
        for experiment, name in names:
            if known.of(experiment):
                assert known.values(experiment, name), (claim.name, name)
        if claim.figure:
            assert all(len(line.names) == len(claim.figure.at) for line in lines), claim.name


def test_names_are_unlike_and_verdicts_are_reached_from_the_default_place() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert Path("claims/rows.jsonl") == command.ROWS
