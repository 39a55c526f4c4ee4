"""`groupwise claims`: what it measures, shows and writes, and one line for everything that can be asked wrongly."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from groupwise.claims import articles
from groupwise.claims.articles import CLAIMS, SUBJECTS, chosen
from groupwise.claims.claim import Claim, Line
from groupwise.claims.command import current, listing, missing, read_rows
from groupwise.claims.experiments import Effort
from groupwise.claims.markdown import HEADING, PAGES, claim_page, overview
from groupwise.claims.measurements import Outcome
from groupwise.claims.page import ARTICLES
from groupwise.cli import __main__ as cli
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
    """One that does not hold is no failure."""
    code, out, err = call("--only", EXACT, "--only", SEVERAL, "--only", "long-answers", "--quick")
    assert code == 0
    for name, outcome in ((EXACT, "holds"), (SEVERAL, "holds"), ("long-answers", "does not hold")):
        assert re.search(rf"^{name} +{outcome}$", out, re.MULTILINE)
    assert "3 claims: holds 2, does not hold 1" in out
    assert "6 experiments to measure, rows in claims/rows.jsonl" in err
    assert f"6 of 6: {SEVERAL}, seed 4" in err
    page = Path("claims/claims.md").read_text()
    assert page.startswith(HEADING)
    assert all(f"]({PAGES}/{claim.name}.md)" in page for claim in CLAIMS)
    assert "[rows.jsonl](rows.jsonl)" in page
    own = {claim.name: Path(f"claims/{PAGES}/{claim.name}.md").read_text() for claim in CLAIMS}
    assert all(text.startswith(f"# {name}\n") for name, text in own.items())
    assert "[rows.jsonl](../rows.jsonl)" in own[EXACT]
    assert "data-plot" in Path("claims/claims.html").read_text()
    code, _, err = call("--only", EXACT, "--quick")
    assert code == 0
    assert "0 experiments to measure" in err


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
    ("words", "message"),
    [
        ([], "claims: choose --quick"),
        (["--quick", "--standard"], "one effort, not --quick and --standard"),
        (
            ["--only", "clip-produkt", "--quick"],
            "--only 'clip-produkt': there is no such claim; did you mean 'clip-product'?",
        ),
        (["--only", EXACT, "--only", "", "--quick"], "--only '': there is no such claim"),
        (["--list", "--only", "nothing"], "--only 'nothing': there is no such claim"),
        (["--list", "--quick"], "--list measures and writes nothing"),
        (["--list", "--seed", "0"], "--list measures and writes nothing"),
        (["--list", "--at-once", "2"], "--list measures and writes nothing"),
        (["--quick", "--at-once", "0"], "--at-once"),
        (["--quick", "--seed", "one"], "--seed"),
        (["--quick", "--seed", "-1"], "--seed"),
        (["--quick", "--rows", "folder"], "folder: "),
        (["--quick", "--rows", "fifo"], "fifo: "),
        (["--quick", "--rows", "link"], "link: "),
        (["--quick", "--rows", "/dev/null"], "/dev/null: "),
        (["--quick", "--rows", "text/rows.jsonl"], "text/rows.jsonl: "),
        (["--quick", "--rows", ""], "rows"),
        (["--list", "--rows", "folder"], "folder: cannot be read"),
        (["--list", "--rows", "fifo"], "fifo: cannot be read"),
        (["--list", "--rows", "text"], "text: this is no file of claims' rows"),
        (["--quick", "--rows", "newer"], "newer: its rows are of version 2, this is 1 (line 1); name another"),
        (["--quick", "--out", "text"], "--out text: this is no folder"),
        (["--quick", "--out", "mine"], "mine/claims.md: this exists and is no page of claims"),
        (["--quick", "--out", "own"], f"own/claims/{EXACT}.md: this exists and is no page of claims"),
        (["--quick", "--out", "taken"], "--out taken/claims: this is no folder"),
        (["--quick", "--out", "theirs"], "theirs/claims.html: this exists and is no page of groupwise's"),
    ],
)
def test_wrong_use_is_one_line_and_nothing_is_measured(call: Call, words: list[str], message: str) -> None:
    for folder in ("folder", "mine", "theirs", "taken", "own/claims"):
        os.makedirs(folder)
    os.mkfifo("fifo")
    os.symlink("nowhere", "link")
    Path("text").write_text("a text of mine\n")
    Path("newer").write_text('{"groupwise_claims":2}\n')
    Path("mine/claims.md").write_text("what I claim\n")
    Path("taken/claims").write_text("what they claim\n")
    Path(f"own/claims/{EXACT}.md").write_text("what I claim\n")
    Path("theirs/claims.html").write_text("<p>what they claim\n")
    before = sorted(os.listdir())
    code, _, err = call(*words)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert sorted(os.listdir()) == before
    assert Path("mine/claims.md").read_text() == "what I claim\n"
    assert Path(f"own/claims/{EXACT}.md").read_text() == "what I claim\n"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGTERM, signal.SIGKILL))]
)
def test_stopped_and_gone_on_with_nothing_is_measured_twice(tmp_path: Path, number: int) -> None:
    (experiment,) = chosen(["toy-entropy"])[0].experiments
    rows, seeds = tmp_path / "rows.jsonl", list(experiment.seeds_of(Effort.QUICK))
    words = ("claims", "--only", "toy-entropy", "--quick", "--rows", str(rows), "--out", str(tmp_path / "pages"))
    first = CommandProcess(*words)
    while len(read_rows(rows)) < 1 and first.poll() is None:
        time.sleep(0.01)
    first.send_signal(number)
    said = first.communicate()
    assert "Traceback" not in said
    before = [row.seed for row in read_rows(rows)]
    assert before == list(range(len(before)))
    assert 0 < len(before) < len(seeds), said
    again = CommandProcess(*words[:2], "toy-entropy", *words[3:])
    said = again.communicate()
    assert again.returncode == 0, said
    assert [row.seed for row in read_rows(rows)] == seeds
    assert f"{len(seeds) - len(before)} experiments to measure" in said


def test_the_committed_rows_are_all_there_and_the_page_is_theirs() -> None:
    known = current(CLAIMS, read_rows(EVIDENCE))
    quick = [claim for claim in CLAIMS if claim.effort is Effort.QUICK]
    again = [each for each in missing(quick, Effort.QUICK, known) if each.seed not in known.of(each.experiment.name)]
    assert again == [], "run make claims"
    made = overview(SUBJECTS, known, "../evidence/claims.jsonl")
    assert (DOCS / "findings" / "claims.md").read_text().startswith(made), "run make claims"
    pages = {path.stem: path.read_text() for path in (DOCS / "findings" / PAGES).glob("*.md")}
    assert pages == {claim.name: claim_page(claim, known, "../../evidence/claims.jsonl") for claim in CLAIMS}, (
        "run make claims"
    )


def test_every_verdict_leads_to_its_rows_and_to_a_command() -> None:
    """A page names the lines of the file that have each experiment and each seed that the verdict is read from."""
    lines = EVIDENCE.read_text().splitlines()
    known = current(CLAIMS, read_rows(EVIDENCE))
    for claim in CLAIMS:
        page = (DOCS / "findings" / PAGES / f"{claim.name}.md").read_text()
        plain = " ".join(page.split())
        assert f" Rule: {claim.rule} " in plain
        assert len(claim.rule) > 20
        assert f"\n    groupwise claims --only {claim.name} --{claim.effort.words} --seed 0\n" in page
        named = re.search(r"Rows: lines? ([\d, -]+) of \[claims\.jsonl\]\(\.\./\.\./evidence/claims\.jsonl\)", plain)
        assert named, claim.name
        ranges = [[int(number) for number in each.split("-")] for each in named[1].split(", ")]
        rows = [json.loads(line) for each in ranges for line in lines[each[0] - 1 : each[-1]]]
        read = {(e.name, seed) for e in claim.experiments for seed in known.of(e.name)}
        assert {(row["experiment"], row["seed"]) for row in rows} == read, claim.name
        assert len(rows) == len(read)


def test_every_number_of_a_table_or_a_figure_is_measured() -> None:
    """What computes has each number on every seed; a run may lack one, such as the score of what it never stopped."""
    known = current(CLAIMS, read_rows(EVIDENCE))
    for claim in CLAIMS:
        lines = claim.figure.lines if claim.figure else ()
        names = [(q.experiment.name, q.name) for q in claim.quantities] + [
            point for line in lines if isinstance(line, Line) for point in line.points.values()
        ]
        runs = {experiment.name for experiment in claim.experiments if experiment.own_process}
        drawn = {experiment for line in lines for experiment in line.experiments}
        assert {experiment for experiment, _ in names} | drawn <= {experiment.name for experiment in claim.experiments}
        for experiment, name in names:
            if known.of(experiment):
                read = known.numbers if experiment in runs else known.values
                assert read(experiment, name), (claim.name, name)
        for line in lines:
            if claim.figure and claim.figure.at and all(known.of(experiment) for experiment in line.experiments):
                assert len(line.places(known)) == len(claim.figure.at), claim.name


def test_every_claim_of_every_file_is_in_the_catalog() -> None:
    folder = Path(articles.__file__).parent
    names = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    modules = [importlib.import_module(f"{articles.__name__}.{name}") for name in names]
    claims = [value for module in modules for value in vars(module).values() if isinstance(value, Claim)]
    assert {claim.name for claim in claims} == {claim.name for claim in CLAIMS}
    assert len(claims) == len(CLAIMS)
    assert all(len(list(each.glob("*.py"))) <= 15 for each in (folder, folder.parent))


def test_claims_of_runs_are_not_measured_until_there_are_rows() -> None:
    nothing = current(CLAIMS, [])
    runs = [claim for claim in CLAIMS if claim.effort is not Effort.QUICK]
    assert len(runs) >= 15
    assert {claim.verdict(nothing).outcome for claim in CLAIMS} == {Outcome.NOT_MEASURED}
    assert all("--standard measures it" in claim.verdict(nothing).because for claim in runs)
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


def test_the_articles_that_sources_name_stand_below_the_claims(tmp_path: Path) -> None:
    lines = [*listing(["group-size"], tmp_path / "none.jsonl")]
    assert lines[-1] == f"S1  {ARTICLES['S1']}"
    assert len(lines) == 3
    every = [*listing([], tmp_path / "none.jsonl")]
    assert [line[:4] for line in every[-5:]] == ["S0  ", "S1  ", "S2  ", "S3  ", "S4  "]
