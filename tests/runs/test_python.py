"""groupwise from a program or a notebook: what train takes, what a run gives, functions as rewards, callbacks."""

from __future__ import annotations

import builtins
import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from html import unescape
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import groupwise
from groupwise.config import recipe_files
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import from_here
from groupwise.journal.journal import read_metrics
from groupwise.models.load import digest
from tests.command_process import CommandProcess
from tests.core.test_live_code import notebook
from tests.refusals import refused
from tests.runs.test_run import assert_same_run
from tests.runs.tiny_runs import rollouts, tiny_run, weights_after

CELL = """
import math
SCALE = 10
def brief(sample, completion):
    return math.exp(-len(completion) / SCALE)
def around(scale):
    def inner(sample, completion):
        return -len(completion) / scale
    return inner
"""
FILE = "def even(sample, completion):\n    return float(completion[-1:] in list('02468'))\n"


def quickstart() -> dict[str, Any]:
    return recipe_files.read_table(recipe_files.find("quickstart"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python")


@pytest.fixture(scope="module")
def run(place: Path) -> groupwise.Run:
    return groupwise.train("quickstart", tiny_run(place, evaluation__every=2, steps=3))


def same(place: Path, **changes: Any) -> dict[str, Any]:
    return tiny_run(place, **{"evaluation__every": 2, "steps": 3, **changes})


def test_a_dictionary_nested_or_dotted_is_the_same_run_to_the_bit(run: groupwise.Run, place: Path):
    changes = same(place, name="dictionary")
    dotted = {key: value for key, value in changes.items() if "." in key}
    given = {**dotted, **quickstart(), **changes}  # dotted keys first: the sections after them do not undo them
    before = json.dumps(given)
    done = groupwise.train(given)
    assert json.dumps(given) == before, "what the caller has stays as it is"
    assert done.folder.name == "dictionary"
    assert_same_run(run.folder, done.folder)
    lines = [(one.folder / "recipe.toml").read_text().splitlines() for one in (run, done)]
    assert lines[1][1] == "# from a dictionary"
    assert [line for line in lines[0][2:-1] if "name =" not in line] == [
        line for line in lines[1][2:-1] if "name =" not in line
    ]


def test_a_recipe_object_an_algorithm_and_a_callback_are_the_same_run_to_the_bit(run: groupwise.Run, place: Path):
    recipe = groupwise.Recipe.load("quickstart", same(place))
    seen: list[groupwise.StepRecord] = []
    algorithm = groupwise.algorithm(quickstart()["algorithm"]["name"])
    done = groupwise.train(recipe, {"name": "object"}, algorithm=algorithm, callbacks=[seen.append])
    assert_same_run(run.folder, done.folder)
    assert [(one.step, one.steps, one.folder) for one in seen] == [(step, 3, done.folder) for step in (1, 2, 3)]
    rows = {row["step"]: row for row in read_metrics(done.folder) if "loss" in row}
    assert [one.metrics["loss"] for one in seen] == [rows[step]["loss"] for step in (1, 2, 3)]
    assert [one.evaluation is not None for one in seen] == [False, True, True]
    assert seen[2].evaluation is not None
    assert seen[2].evaluation["avg_at_k"] == done.summary["heldout_after"]
    for table in (seen[0].metrics, seen[0].metrics["seconds"]):
        with pytest.raises(TypeError):
            table["loss"] = 0.0  # type: ignore[index]


def test_a_name_is_counted_up_unless_the_overrides_say_it(run: groupwise.Run, place: Path):
    changes = same(place, steps=1)
    (place / "runs" / "run").mkdir()
    done = groupwise.train({**quickstart(), "algorithm": {"name": "grpo"}}, changes)
    assert done.folder.name == "run-2"
    with pytest.raises(UsageError, match="exists already"):
        groupwise.train("quickstart", {**changes, "name": "run-2"})


def test_columns_of_one_length_and_a_none_where_there_is_no_number(run: groupwise.Run):
    columns = run.metrics()
    assert {len(values) for values in columns.values()} == {4}
    assert columns["step"] == [0, 1, 2, 3]
    assert next(iter(columns)) == "step"
    rows = read_metrics(run.folder)
    assert columns["loss"] == [None, *(row["loss"] for row in rows if "loss" in row)]
    assert columns["evaluation.avg_at_k"][1] is None
    assert columns["evaluation.avg_at_k"][3] == run.summary["heldout_after"]
    assert columns["seconds.update"][0] is None
    assert columns["evaluation.seconds.evaluate"][0] > 0
    assert not any(isinstance(value, dict) for values in columns.values() for value in values)


def test_rollouts_are_the_rows_of_the_file_or_of_a_step(run: groupwise.Run):
    lines = rollouts(run.folder)
    assert run.rollouts() == lines
    assert run.rollouts(step=2) == [row for row in lines if row["step"] == 2] != []
    for step in (9, -1, "2"):
        with pytest.raises(UsageError, match=f"has no rollouts of step '?{step}'?; it has trained steps 1 to 3"):
            run.rollouts(step)  # type: ignore[arg-type]


def test_a_quiet_run_is_the_same_run_and_prints_nothing(
    run: groupwise.Run, place: Path, capfd: pytest.CaptureFixture[str]
):
    done = groupwise.train("quickstart", same(place, name="quiet"), callbacks=[lambda r: r.step == 2], quiet=True)
    assert not done.finished
    done = groupwise.resume(done, {"journal.token_budget": 1000}, quiet=True)
    assert tuple(capfd.readouterr()) == ("", "")
    assert_same_run(run.folder, done.folder)
    assert "asks to stop" in (done.folder / "log.txt").read_text()


def test_a_run_shows_itself_in_a_notebook(run: groupwise.Run, place: Path):
    page = run._repr_html_()
    s = run.summary
    for shown in ("3 of 3 steps", f"{s['heldout_before']:.3f} -&gt; {s['heldout_after']:.3f}", "grpo", str(run.folder)):
        assert shown in page
    reward = [row["reward_mean"] for row in read_metrics(run.folder) if "reward_mean" in row]
    assert f"{reward[0]:.3f} -&gt; {reward[-1]:.3f}" in page
    strange = place / "runs" / "<b>&amp"
    shutil.copytree(run.folder, strange)
    (strange / "summary.json").unlink()
    opened = groupwise.Run.open(strange)
    assert "&lt;b&gt;&amp;amp" in opened._repr_html_()
    assert "3 of 3 steps; it goes on, or stopped: groupwise.resume(run)" in opened._repr_html_()
    (strange / "metrics.jsonl").write_text("{")
    assert "0 of 3 steps" in opened._repr_html_()
    shutil.rmtree(strange)
    assert "cannot be read" in opened._repr_html_()
    with pytest.raises(UsageError, match="not a run folder"):
        opened.rollouts()


def test_a_list_of_runs_is_told_how_a_report_takes_them(run: groupwise.Run):
    with pytest.raises(UsageError, match=r"^report takes each run by itself: groupwise.report\(\*runs\)$"):
        groupwise.report([run, run])  # type: ignore[arg-type]


def test_a_report_is_a_path_that_a_notebook_shows(run: groupwise.Run, tmp_path: Path):
    page = groupwise.report(run, out=tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    frame = page._repr_html_()
    assert frame is not None
    (inside,) = re.fullmatch('<iframe sandbox="allow-scripts" [^>]*srcdoc="([^"]*)"></iframe>', frame).groups()  # type: ignore[union-attr]
    assert unescape(inside) == page.read_text()
    assert page.parent._repr_html_() is None, "a folder is none"


def test_the_live_view_of_a_notebook_is_changed_in_place(place: Path, monkeypatch: pytest.MonkeyPatch):
    """A kernel, as rich and IPython's display know one: what a cell would show is kept here."""
    shown: list[str] = []

    class ZMQInteractiveShell:
        pass

    class Display(ModuleType):
        HTML = staticmethod(str)

        @staticmethod
        def display(page: str, display_id: bool) -> Any:
            shown.append(page)
            return SimpleNamespace(update=lambda page: shown.__setitem__(-1, page))

    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython.display", Display("IPython.display"))
    done = groupwise.train("quickstart", same(place, name="cell"))
    (last,) = shown
    assert "step 3/3  ████" in last
    assert f"held out after step   3  pass rate {done.summary['heldout_after']:.3f}" in last
    assert "groupwise · cell" in last


def test_the_public_names_are_listed_and_imported_late():
    code = "import groupwise, sys; names = dir(groupwise); print('torch' in sys.modules, *names)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", *sorted(groupwise.__all__)]


def test_pandas_takes_the_columns_as_numbers(run: groupwise.Run):
    table = pytest.importorskip("pandas").DataFrame(run.metrics())
    assert len(table) == 4
    assert table["loss"].dtype == table["evaluation.avg_at_k"].dtype == float
    assert table["loss"].isna().tolist() == [True, False, False, False]


def test_the_policy_of_a_run_and_of_a_step_answers(run: groupwise.Run):
    policy, earlier = run.policy(), run.policy(1)
    ids = policy.tokenizer("1+1=", return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        answer = policy.model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=policy.pad)
    assert policy.tokenizer.decode(answer[0]).startswith("1+1=")
    for step, one in ((3, policy), (1, earlier)):
        assert digest(one.model) == weights_after(run.folder, step)
    with pytest.raises(UsageError, match="no checkpoint of step 7; there are 1, 2, 3"):
        run.policy(7)


def test_a_run_is_found_whatever_folder_the_program_goes_to(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = groupwise.Run(Path("runs/one"), {})
    assert from_here(one.folder) == Path("runs/one"), "as a terminal shows it"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert one.folder == Path(one) == from_here(one.folder) == tmp_path / "runs" / "one"


def test_a_run_is_found_again_and_stands_for_its_folder(run: groupwise.Run, place: Path, monkeypatch, capsys):
    again = groupwise.Run.open(str(run.folder))
    assert (again.summary, again.finished, again.metrics()) == (run.summary, True, run.metrics())
    with pytest.raises(UsageError, match="not a run folder"):
        groupwise.Run.open(place)
    page = groupwise.report(again)
    assert page == run.folder / "report.html"
    assert groupwise.report(again, out=place / "page.html") == place / "page.html"
    results = groupwise.evaluate(again, out=place / "kept")
    assert results.evaluation.avg_at_k == run.summary["heldout_after"]
    (policy,) = results.policies
    assert policy.interval.low <= results.evaluation.avg_at_k <= policy.interval.high
    kept = [json.loads(line) for line in (place / "kept" / "completions.jsonl").read_text().splitlines()]
    assert [row["completion"] for row in policy.rows] == [row["completion"] for row in kept]
    assert "avg@16" in str(results)
    earlier = groupwise.evaluate(run, step=1, recipe={**quickstart(), **same(place)})
    assert earlier.policies[0].name == f"{run.folder}:1"
    capsys.readouterr()
    for call, words in (
        (lambda: groupwise.evaluate(), "evaluate: name a run"),
        (lambda: groupwise.report(), "report: name a run"),
        (lambda: groupwise.report(3), "run = 3: this is no path"),  # type: ignore[arg-type]
        (lambda: groupwise.resume(run, ["steps=2"]), "overrides = .*: give a dictionary"),  # type: ignore[arg-type]
        (lambda: groupwise.evaluate(run, out=place), "it exists already, and is not written over"),
    ):
        with pytest.raises(UsageError, match=words):
            call()


def test_a_check_gives_its_findings_and_prints_nothing(place: Path, capsys):
    changes = same(place)
    whole = groupwise.check("quickstart", changes, model=False)
    assert whole.faults == []
    assert {finding.level for finding in whole.findings} <= {"ok", "note"}
    assert [section.title for section in whole.sections][:2] == ["plan", "problems"]
    (place / "empty").mkdir()
    faulty = groupwise.check("quickstart", {**changes, "model": str(place / "empty")}, rows=0)
    assert [line for line in faulty.faults if line.startswith("model: ")]
    brief = notebook(CELL)["brief"]
    words = [f.what for f in groupwise.check("quickstart", changes, rewards=[brief], model=False).findings]
    assert any("brief is (sample, completion)" in line for line in words)
    assert capsys.readouterr().out == ""


@pytest.fixture(scope="module")
def rewarded(place: Path, tmp_path_factory: pytest.TempPathFactory) -> groupwise.Run:
    """Two steps by a function of a notebook and one of a module, which was imported from a folder of its own."""
    theirs = tmp_path_factory.mktemp("theirs")
    (theirs / "rewards_of_a_notebook.py").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(theirs))
        module: Any = __import__("rewards_of_a_notebook")
        rewards = {"brief": {"use": notebook(CELL)["brief"], "weight": 0.5}, "even": module.even}
        done = groupwise.train("quickstart", tiny_run(place, name="rewarded"), rewards=rewards)
    shutil.rmtree(theirs)
    return done


def test_functions_become_files_of_the_run(rewarded: groupwise.Run):
    code = rewarded.folder / "code"
    assert sorted(path.name for path in code.iterdir()) == ["brief.py", "files.json", "rewards_of_a_notebook.py"]
    assert (code / "rewards_of_a_notebook.py").read_text() == FILE
    assert "import math\nSCALE = 10\n\n\ndef brief(" in (code / "brief.py").read_text()
    rewards = tomllib.loads((rewarded.folder / "recipe.toml").read_text())["rewards"]
    assert rewards["brief"] == {"use": f"{code / 'brief.py'}:brief", "weight": 0.5}
    assert rewards["even"]["use"].endswith("/rewards_of_a_notebook.py:even")
    rows = rollouts(rewarded.folder)
    for row in rows:
        brief, even = torch.tensor(-len(row["completion"]) / 10).exp(), float(row["completion"][-1:] in list("02468"))
        assert row["parts"] == pytest.approx({"brief": float(brief), "even": even})


@pytest.mark.slow
def test_such_a_run_goes_on_in_another_process_and_another_place(rewarded: groupwise.Run, tmp_path: Path):
    moved, here = tmp_path / "moved", tmp_path / "here"
    for folder in (moved, here):
        shutil.copytree(rewarded.folder, folder)
    away = rewarded.folder.rename(tmp_path / "away")
    try:
        resumed = CommandProcess("train", "--resume", str(moved), "--set", "steps=3")
        said = resumed.communicate()
    finally:
        away.rename(rewarded.folder)
    assert resumed.returncode == 0, said
    assert "rewards_of_a_notebook.py is no longer there since the run began" in said
    assert "brief.py is" not in said, "nobody but the run has this file"
    groupwise.resume(here, {"steps": 3})
    assert (here / "rollouts.jsonl").read_text() == (moved / "rollouts.jsonl").read_text()
    assert weights_after(here, 3) == weights_after(moved, 3)
    assert groupwise.evaluate(here).evaluation.rewards.keys() == {"brief", "even"}


THEIRS = notebook(CELL)
TINY = {"model": "tiny-dense", "name": "refused"}


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        ((3,), {}, "recipe 3: give a recipe's name, its path, a dictionary or a groupwise.Recipe"),
        (({"steps": 2, 3: 4},), {}, "recipe: the key 3 is no text"),
        (
            ({"steps": 2, "stps": 3},),
            {},
            "a dictionary: stps: there is no such key; did you mean 'steps'?",
        ),
        (("nowhere",), {}, "there is no such recipe"),
        (("quickstart", ["steps=2"]), {}, "overrides = ['steps=2']: give a dictionary of dotted keys"),
        (("quickstart", {3: 4}), {}, "overrides: the key 3 is no text"),
        (
            ("quickstart",),
            {"callbacks": print},
            "callbacks = <built-in function print>: give a list, such as callbacks=[show]",
        ),
        (("quickstart",), {"callbacks": [3]}, "callbacks[0] = 3: not a function"),
        (("quickstart",), {"callbacks": [lambda: None]}, ": cannot be called with one argument"),
        (("quickstart", TINY), {"rewards": [THEIRS["around"](3)]}, "line 7) takes scale from the function"),
        (("quickstart", TINY), {"rewards": [lambda sample, completion: 1.0]}, "has no name and no source of its own"),
        (("quickstart", TINY), {"rewards": [THEIRS["brief"]] * 2}, "rewards: two are called brief; name them"),
        (
            ("quickstart", TINY),
            {"rewards": {"mine": {"use": 3}}},
            "rewards.mine.use = 3: give a function, or text such as",
        ),
        (("quickstart", TINY), {"rewards": {"mine": {"use": THEIRS["brief"], "wieght": 2}}}, "did you mean 'weight'"),
        (("quickstart", TINY), {"rewards": ["brief"]}, "rewards: 'brief' is no function"),
        (("quickstart", TINY), {"rewards": "rewards.py:brief"}, "rewards: 'rewards.py:brief' is no function"),
        (("quickstart", TINY), {"rewards": 3}, "rewards: 3 is no function"),
    ],
)
def test_what_a_program_cannot_give_is_refused_before_the_run(
    arguments: Any, more: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with refused(words):
        groupwise.train(*arguments, **more)
    assert not list(tmp_path.iterdir())


def test_a_run_is_not_resumed_with_what_cannot_be_called(run: groupwise.Run):
    with refused("callbacks[0] = 3: not a function"):
        groupwise.resume(run, callbacks=[3])  # type: ignore[list-item]


def test_a_callback_stops_a_run_which_then_goes_on_to_the_same_bits(run: groupwise.Run, place: Path, capsys):
    calls: list[int] = []

    def enough(record: groupwise.StepRecord) -> bool:
        calls.append(record.step)
        return record.step == 2

    stopped = groupwise.train("quickstart", same(place, name="stopped"), callbacks=[enough])
    assert (stopped.finished, stopped.summary, stopped.stopped_by) == (False, {}, 0)
    assert calls == [1, 2]
    out = capsys.readouterr().out
    assert "step 2: the callback enough asks to stop" in out
    assert "stopped after step 2, saved; go on with: groupwise train --resume" in out
    assert groupwise.Run.open(stopped).finished is False
    done = groupwise.resume(stopped, callbacks=[enough])
    assert done.finished
    assert calls == [1, 2, 3]
    assert_same_run(run.folder, done.folder)
    assert groupwise.Run.open(done).finished
    groupwise.resume(done, {"steps": 5}, callbacks=[lambda record: True])
    assert (done.folder / "summary.json").is_file()
    assert not groupwise.Run.open(done).finished, "its summary is of fewer steps"


def test_a_callback_that_raises_is_told_once_and_the_run_goes_on(run: groupwise.Run, place: Path, capsys):
    calls: list[int] = []

    def broken(record: groupwise.StepRecord) -> None:
        calls.append(record.step)
        raise KeyError("no such\ncolumn")

    def wrong(record: groupwise.StepRecord) -> Any:
        return torch.tensor(True)

    done = groupwise.train("quickstart", same(place, name="broken"), callbacks=[broken, wrong])
    assert calls == [1, 2, 3], "it is called again"
    assert_same_run(run.folder, done.folder)
    out, log = capsys.readouterr().out, (done.folder / "log.txt").read_text()
    for text in (out, log):
        (line,) = re.findall(r"callback broken: step 1 raised KeyError: .*", text)
        assert re.search(r"\(.*test_python.py, line \d+\); the run goes on, and this is said once$", line)
        assert text.count("callback wrong: step 1 returned tensor(True); return True to stop, False or None") == 1
    assert log.count('raise KeyError("no such') == 1, "its traceback is in the log"
    assert "Traceback" not in out


def test_a_run_in_a_thread_is_the_same_run(run: groupwise.Run, place: Path):
    """Signals are the main thread's: there a run asks for none."""
    ended: list[groupwise.Run] = []
    brief = notebook(CELL)["brief"]
    rewards = {"task": {}, "brief": {"use": brief, "weight": 0.0}}

    def work() -> None:
        ended.append(groupwise.train("quickstart", same(place, name="thread")))
        ended.append(groupwise.train("quickstart", tiny_run(place, name="thread-rewards", steps=1), rewards=rewards))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert [one.finished for one in ended] == [True, True]
    assert_same_run(run.folder, ended[0].folder)


def test_public_names_are_what_they_say_whatever_was_imported():
    """`groupwise.report` would be a package where one of that name was imported."""
    import groupwise.reports.make

    root = Path(groupwise.__file__).parent
    modules = {path.stem for path in root.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert not modules & set(groupwise.__all__) - {"__version__"}
    assert groupwise.report is groupwise.reports.make.report
    assert callable(groupwise.check)
    assert sorted(groupwise.__all__[1:]) == sorted(groupwise._HOME)
