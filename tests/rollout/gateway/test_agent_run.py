"""Runs that agents play: every check of a run holds, and a resumed one goes on to the bit."""

from __future__ import annotations

import json
import math
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.core.errors import UsageError
from groupwise.reports.live import Watched
from groupwise.reports.page.page import page_of_run
from groupwise.rollout.gateway.play import ODD
from tests.runs.test_run import assert_goes_on
from tests.runs.tiny_runs import rollouts, step_rows

RECIPE = "two-questions"
AGENT = Path(__file__).parents[3] / "recipes" / "two_questions.py"
CHANGES: dict[str, Any] = {
    "steps": 3,
    "warm_start.steps": 0,
    "prompts_per_step": 3,
    "samples_per_prompt": 3,
    "task.sessions": 3,
    "evaluation.problems": 2,
    "evaluation.samples": 1,
    "checkpoint.every": 1,
    "checkpoint.keep": 9,
    "journal.report": False,
}


def test_a_run_of_an_agent_holds_its_checks_and_goes_on_to_the_bit(tmp_path: Path) -> None:
    whole = groupwise.train(RECIPE, {**CHANGES, "runs": str(tmp_path), "name": "whole"}).folder
    for row in step_rows(whole):
        assert {check["verdict"] for check in row["checks"].values()} <= {"pass", "not measured"}
    for line in rollouts(whole):
        assert line["ended"] in ("done", "tokens", "turns")
        owns = [span["own"] for span in line.get("spans", [{"own": True}])]
        assert owns == [True, False, True][: 2 * len(line["turns"]) - 1]
    assert any(len(line["turns"]) == 2 for line in rollouts(whole))
    assert_goes_on(whole, 3, 2)


ALONE = """
import json, os, urllib.request
sample = json.load(open("sample.json"))
def asked(*texts):
    body = json.dumps({"messages": [{"role": "user", "content": text} for text in texts], "max_tokens": 3})
    head = {"x-api-key": os.environ["ANTHROPIC_API_KEY"]}
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body.encode(), head)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["content"][0]["text"]
first = asked(sample["prompt"])
print(len(first + asked("another")) % 5 / 4)
"""


def test_a_program_whose_histories_do_not_go_on_trains_in_rows(tmp_path: Path) -> None:
    """The second request of each session begins anew, and so do all of an agent that changes the prompt."""
    (tmp_path / "mine.py").write_text(ALONE)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(40)))
    task = {
        "name": "agent",
        "command": [sys.executable, str(tmp_path / "mine.py")],
        "path": str(tmp_path / "rows.jsonl"),
        "sessions": 3,
    }
    given = {**{k: v for k, v in CHANGES.items() if not k.startswith("task.")}, "task": task}
    changes = {"model": "tiny-chat", "steps": 2, "sampling.max_new_tokens": 120, "runs": str(tmp_path / "runs")}
    run = groupwise.train(RECIPE, {**given, **changes}).folder
    for row in step_rows(run):
        assert {check["verdict"] for check in row["checks"].values()} <= {"pass", "not measured"}
    lines = rollouts(run)
    assert all([span.get("anew", False) for span in line["spans"]] == [False, True, False] for line in lines)
    assert all(not math.isnan(line["score"]) for line in lines)


ANEW = """
import json, urllib.request
import groupwise
alphabet = "0123456789+=\\n"
def samples(split):
    return [groupwise.Sample(str(n), f"{n}+", "") for n in (range(20) if split == "train" else range(20, 25))]
def run(sample, base_url, key):
    said = ""
    for text in (sample.prompt, f"{len(sample.prompt)}=", sample.prompt + "1+"):
        body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 4}).encode()
        request = urllib.request.Request(f"{base_url}/chat/completions", body, {"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request) as answer:
            said += json.load(answer)["choices"][0]["message"]["content"]
    return float(len(said) % 3 == 0)
"""


@pytest.mark.parametrize(
    ("model", "algorithm"), [("tiny-moe", "grpo"), ("tiny-moe", "gspo"), ("tiny-dense", "ppo"), ("tiny-moe", "ppo")]
)
def test_a_policy_with_experts_and_a_critic_train_on_sessions_of_several_rows(
    model: str, algorithm: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(ANEW)
    task = {"name": "agent", "use": f"{tmp_path / 'mine.py'}:run", "sessions": 3}
    given = {**{k: v for k, v in CHANGES.items() if not k.startswith("task.")}, "task": task, "model": model}
    if algorithm == "ppo":
        given["algorithm.shaping.kind"] = "steps"
    more = {"algorithm.name": algorithm, "updates_per_batch": 3, "sampling.max_new_tokens": 60, "sampling.stop": []}
    whole = groupwise.train(RECIPE, {**given, **more, "runs": str(tmp_path / "runs"), "name": "whole"}).folder
    log = (whole / "log.txt").read_text()
    assert ('routing      not recorded, as under task.name = "agent"' in log) == (model == "tiny-moe")
    assert "witness: the model that trains is the one that samples: pass" in log
    assert "witness: updates are as the recipe asks: pass" in log
    for row in step_rows(whole):
        verdicts = {name: check["verdict"] for name, check in row["checks"].items()}
        assert set(verdicts.values()) <= {"pass", "not measured"}
        assert verdicts["learner = engine"] == "pass"
        assert row["rows_mean"] == 3.0
    assert_goes_on(whole, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"preference.path": "pairs.jsonl"},
            'task.name = "agent": a reward model reads an episode as one text',
        ),
        (
            {
                "algorithm.name": "opd",
                "algorithm.kl.beta": 1.0,
                "reference.every": 1,
                "reference.template": "{prompt}!",
            },
            'reference.template with task.name = "agent": the prompt of a turn is not the problem\'s',
        ),
        ({"rollout.turn_tokens": 4}, "rollout.turn_tokens = 4: an episode is played whole"),
        ({"rollout.gateway": "nowhere"}, "rollout.gateway = 'nowhere': an address is HOST:PORT"),
        (
            {"model": "tiny-moe", "routing.replay": "learner"},
            'task.name = "agent": routing.replay reads an episode as one text',
        ),
    ],
)
def test_what_sessions_cannot_be_trained_with_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        groupwise.train(RECIPE, {**CHANGES, "runs": str(tmp_path), **changes})
    assert words in str(refused.value)


def test_nothing_but_agents_reads_the_address(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"rollout\.gateway: set, but nothing in this run reads it"):
        groupwise.train("quickstart", {"rollout.gateway": "127.0.0.1:0", "runs": str(tmp_path)})


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_run_goes_on_if_its_agent_is_killed_and_says_that_it_asks_something_else_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds are drawn from again for a session that is played again, which is no fault of the run's."""
    monkeypatch.setenv("GATEWAY_TEST_FOLDER", str(tmp_path))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(40)))
    use = f"{Path(__file__).with_name('agents_that_fail.py')}:killed_and_another"
    task = {"name": "agent", "use": use, "path": str(tmp_path / "rows.jsonl"), "sessions": 3}
    given = {**{k: v for k, v in CHANGES.items() if not k.startswith("task.")}, "task": task}
    changes = {"model": "tiny-chat", "steps": 2, "samples_per_prompt": 2, "sampling.max_new_tokens": 120}
    run = groupwise.train(RECIPE, {**given, **changes, "runs": str(tmp_path / "runs")}).folder
    assert all(line["ended"] == "done" for line in rollouts(run))
    assert (run / "log.txt").read_text().count(ODD) == 1


SLOW = """
import json, os, time, urllib.request
sample = json.load(open("sample.json"))
body = json.dumps({"messages": [{"role": "user", "content": sample["prompt"]}], "max_tokens": 3}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
                                 {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
urllib.request.urlopen(request).read()
time.sleep(0.5)
print(1)
"""


def test_a_watched_page_shows_what_sessions_do_while_they_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("groupwise.rollout.gateway.play.SECONDS", 0.0)
    monkeypatch.setattr("groupwise.reports.live.SHARE", math.inf)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(40)))
    task = {"name": "agent", "command": [sys.executable, "-c", SLOW], "path": str(tmp_path / "rows.jsonl")}
    given = {**{k: v for k, v in CHANGES.items() if not k.startswith("task.")}, "task": {**task, "sessions": 3}}
    changes = {"model": "tiny-chat", "steps": 1, "sampling.max_new_tokens": 120, "runs": str(tmp_path), "name": "run"}
    seen, over, run = list[tuple[tuple[str, ...], ...]](), threading.Event(), tmp_path / "run"

    def watch() -> None:
        watched: Watched | None = None
        while not over.wait(0.02):
            with suppress(UsageError):
                watched = watched or Watched(run)
                (page,) = watched.fresh(-1).runs
                seen.extend(table.rows for table in page.tables if table.title == "Sessions being played")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        groupwise.train(RECIPE, {**given, **changes})
    finally:
        over.set()
        watcher.join()
    rows = [row for table in seen for row in table]
    assert {row[-1] for row in rows} == {"at work", "waits for an answer"}
    assert {row[2] for row in rows} >= {"0", "1"}  # requests
    assert max(map(len, seen)) == 3
    assert not (run / "sessions.json").exists()
    assert all(table.title != "Sessions being played" for table in page_of_run(run).runs[0].tables)
