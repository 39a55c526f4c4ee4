"""Each library of trackers keeps what a run hands to it, in an offline store: skipped where it is not installed."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.journal.test_trackers import EVALUATION, RECIPE, ROLLOUTS, STEPS, SUMMARY

#: Project, group and tags.
FILED = ("my-project", "my group", ("first", "second one"))


def real(
    name: str, folder: Path, after: int = 0, rows: tuple[Any, ...] = (*STEPS, EVALUATION), **own: str
) -> list[str]:
    """What a run's process does, in a process of its own: these libraries keep state for as long as one lives."""
    program = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from groupwise.journal.sender import Senders\n"
        "from groupwise.journal.trackers import Tracked, made_trackers\n"
        "name, folder, after, recipe, rows, rollouts, summary, filed = json.loads(sys.argv[1])\n"
        "log = []\n"
        "senders = Senders(made_trackers([name]), log.append, patience=60)\n"
        "senders.start(Tracked(Path(folder), 'run', recipe, after, *filed))\n"
        "for row in rows:\n"
        "    senders.completions([{**each, 'step': row['step']} for each in rollouts if 'evaluation' not in row])\n"
        "    senders.metrics(row)\n"
        "senders.close(summary)\n"
        "Path(folder, 'log').write_text(json.dumps(log))\n"
    )
    folder.mkdir(exist_ok=True)
    told = json.dumps([name, str(folder), after, RECIPE, rows, ROLLOUTS, SUMMARY, FILED])
    root = Path(__file__).parents[2]
    apart = {"TRACKIO_DIR": str(folder / "store"), "PYTHONPATH": f"{root / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "TRACKIO_", "MLFLOW_"))}
    kept["HOME"] = str(folder)  # nobody is logged in there
    command = [sys.executable, "-c", program, told]
    done = subprocess.run(command, env=kept | apart | own, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads((folder / "log").read_text())


LATER = tuple({**row, "pass_rate": row["pass_rate"] + 0.5} for row in STEPS[1:])


def test_tensorboard_reads_back_what_was_told(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    run = tmp_path / "run"
    assert real("tensorboard", run) == [f"tracker TensorBoard: tensorboard --logdir {run / 'trackers' / 'tensorboard'}"]
    found = reader.EventAccumulator(str(run / "trackers" / "tensorboard"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("pass_rate")] == [(1, 0.125), (2, 0.25), (3, 0.375)]
    assert [e.step for e in found.Scalars("kl_mean")] == [2, 3]
    assert [(e.step, e.value) for e in found.Scalars("evaluation.avg_at_k")] == [(3, 0.625)]
    assert "arithmetic" in str(found.Tensors("recipe/text_summary"))

    assert len(real("tensorboard", run, after=1, rows=LATER)) == 1
    again = reader.EventAccumulator(str(run / "trackers" / "tensorboard"))
    again.Reload()
    assert [(e.step, e.value) for e in again.Scalars("pass_rate")] == [(1, 0.125), (2, 0.75), (3, 0.875)]
    assert "evaluation.avg_at_k" not in again.Tags()["scalars"] or not again.Scalars("evaluation.avg_at_k")


def test_trackio_reads_back_what_was_told_and_goes_on_with_the_same_run(tmp_path):
    pytest.importorskip("trackio")
    run = tmp_path / "run"
    for lines in (real("trackio", run), real("trackio", run, after=1, rows=LATER)):
        assert len(lines) == 1
        assert lines[0].startswith("tracker Trackio: trackio show --project my-project, run run-")
    with sqlite3.connect(run / "store" / "my-project.db") as store:
        found = store.execute("select run_id, run_name, step, metrics from metrics order by id").fetchall()
        config = store.execute("select config from configs").fetchone()[0]
    store.close()
    assert {row[:2] for row in found} == {(found[0][0], lines[0].rpartition(" ")[2])}, "one run, not two"
    logged = [(step, json.loads(told)) for *_, step, told in found]
    tables = [(step, told["completions"]["_value"]) for step, told in logged if "completions" in told]
    assert [step for step, _ in tables] == [1, 2, 3, 2, 3]
    assert [row["completion"] for row in tables[0][1]] == ["5", "6"]
    logged = [(step, told) for step, told in logged if "completions" not in told]
    rates = [(step, told.get("pass_rate")) for step, told in logged]
    assert rates == [(1, 0.125), (2, 0.25), (3, 0.375), (3, None), (2, 0.75), (3, 0.875)]
    assert logged[3][1]["evaluation.avg_at_k"] == 0.625
    assert json.loads(config)["task.name"] == "arithmetic"


def test_wandb_is_offline_where_nobody_is_logged_in_and_goes_on_with_the_same_id(tmp_path):
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    told = [f"tracker WandB: offline; {run / 'trackers'} has what wandb sync can send"]
    assert real("wandb", run) == told
    first = {path.parent.name: path for path in run.glob("trackers/wandb/offline-run-*/*.wandb")}
    time.sleep(1.1)  # its folders are named by the second
    assert real("wandb", run, after=1, rows=LATER) == told
    files = {path.parent.name: path for path in run.glob("trackers/wandb/offline-run-*/*.wandb")}
    assert (len(first), len(files)) == (1, 2)
    assert {name.rpartition("-")[2] for name in files} == {(run / "trackers" / "wandb.id").read_text()}
    written = next(iter(first.values())).read_bytes()
    for name, value in (("pass_rate", "0.375"), ("evaluation.avg_at_k", "0.625"), ("heldout_after", "0.625")):
        assert re.search(rf"{name}.{{0,8}}{value}".encode(), written, re.DOTALL), name
    assert re.search(rb"operands.{0,4}\[2,3\]", written, re.DOTALL)
    for word in (b"my-project", b"my group", b"first", b"second one"):
        assert word in written, word
    tables = sorted(run.glob("trackers/wandb/offline-run-*/files/media/table/completions_*.json"))
    assert len(tables) == len(STEPS) + len(LATER)
    made = json.loads(tables[0].read_text())
    column = made["columns"].index("completion")
    assert [row[column] for row in made["data"]] == ["5", "6"]


@pytest.mark.filterwarnings("ignore")  # of its own database, while the test reads it
def test_mlflow_keeps_a_database_in_the_run_folder_and_goes_on_with_the_same_run(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    run = tmp_path / "run"
    where = f"sqlite:///{run / 'trackers' / 'mlflow' / 'mlflow.db'}"
    odd = {"step": 1, "logged.mine.a/b@k": 2.0}
    for lines in (real("mlflow", run, rows=(*STEPS, EVALUATION, odd)), real("mlflow", run, after=1, rows=LATER)):
        assert lines == [f"tracker MLflow: mlflow ui --backend-store-uri {where}"]
    client = mlflow.MlflowClient(tracking_uri=where)
    project = client.get_experiment_by_name("my-project")
    (made,) = client.search_runs([project.experiment_id])
    assert (made.info.run_name, made.info.status) == ("run", "FINISHED")
    assert made.data.params["task.name"] == "arithmetic"
    told = {"group": "my group", "first": "true", "second one": "true"}
    assert {name: made.data.tags[name] for name in told} == told
    rates = [(each.step, each.value) for each in client.get_metric_history(made.info.run_id, "pass_rate")]
    assert sorted(rates) == [(1, 0.125), (2, 0.25), (2, 0.75), (3, 0.375), (3, 0.875)]
    assert made.data.metrics["evaluation.avg_at_k"] == 0.625
    assert made.data.metrics["summary.heldout_after"] == 0.625
    assert made.data.metrics["logged.mine.a_b_k"] == 2.0
    tables = client.list_artifacts(made.info.run_id, "completions")
    assert [one.path for one in tables] == [f"completions/step-00000{k}.json" for k in (1, 2, 3)]
    table = mlflow.artifacts.load_dict(f"{made.info.artifact_uri}/completions/step-000001.json")
    column = table["columns"].index("completion")
    assert [row[column] for row in table["data"]] == ["5", "6"]


def test_mlflow_whose_server_is_down_is_one_line(tmp_path):
    pytest.importorskip("mlflow")
    with socket.socket() as taken:  # bound and not listening: a connection is refused
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        lines = real("mlflow", tmp_path / "run", MLFLOW_TRACKING_URI=address, MLFLOW_HTTP_REQUEST_MAX_RETRIES="1")
    (line,) = lines
    assert line.startswith("tracker MLflow: MlflowException: ")
    assert line.endswith("; it is off from here on, and the run goes on")
    assert len(line) < 500
