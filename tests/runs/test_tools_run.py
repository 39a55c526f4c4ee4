"""Runs whose policy calls tools: what is counted of each is what the turns of rollouts.jsonl hold, and a tool that is
slow is one kind of fault with one remedy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import groupwise
from groupwise.journal.journal import read_metrics
from groupwise.models.tiny import ByteSpec
from groupwise.reports.page.page import page_of_run
from tests.runs.tiny_runs import rollouts

OWN = Path(__file__).parent / "tools_of_a_run.py"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


#: What the policy says in one token each.
SAYS = {
    "double": call("double", n=2),
    "wrong argument": call("double", m=1),
    "broken": call("broken", n=1),
    "slow": call("slow", n=1),
    "crash": call("crash", n=1),
    "waits": call("waits", n=1),
    "no tool": call("nothing"),
    "no call": "<tool_call>{",
}
END = "<|im_end|>"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy that has each of these calls as a token, and a template that names the tools."""
    folder = tmp_path_factory.mktemp("tools") / "policy"
    spec = ByteSpec(layers=1, width=8, mlp_width=16, heads=2, kv_heads=2, head_dim=4, max_length=512, chat=True)
    spec.build("", folder, seed=0)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    tokenizer.add_tokens(list(SAYS.values()))
    tokenizer.chat_template = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}" + str(
        tokenizer.chat_template
    )
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def run(policy: Path, tmp_path: Path) -> Callable[..., Path]:
    """A run of one step whose policy says nothing but what is named, or ends its turn."""
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(12)))
    tokenizer = AutoTokenizer.from_pretrained(policy)

    def train(tools: str, says: str, **more: Any) -> Path:
        tokens = [*(SAYS[name] for name in says.split(", ")), END]
        bias = {str(tokenizer.convert_tokens_to_ids(token)): 100.0 for token in tokens}
        task = {"name": "environment", "tools": [f"{OWN}:{name}" for name in tools.split(", ")], "path": str(problems)}
        settings = {
            "seed": 1,
            "steps": 1,
            "model": str(policy),
            "runs": str(tmp_path / "runs"),
            "name": "tools",
            "warm_start.steps": 0,
            "prompts_per_step": 2,
            "samples_per_prompt": 2,
            "updates_per_batch": 1,
            "task": {**task, "heldout_share": 0.2, "max_turns": 2, "turn_tokens": 3, **more.pop("task", {})},
            "sampling.max_new_tokens": 200,
            "sampling.logit_bias": bias,
            "evaluation": {"problems": 0},
            "checkpoint.every": 1,
            "scoring.workers": 2,
            "scoring.deadline": 0.3,
            "scoring.fault_limit": 1.0,
            "journal.report": False,
        }
        return groupwise.train("quickstart", {**settings, **more}).folder

    return train


def counted(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    (row,) = [row for row in read_metrics(folder) if "evaluation" not in row]
    return row, rollouts(folder)


def assert_counts_are_those_of_the_turns(folder: Path, tools: str) -> dict[str, Any]:
    row, lines = counted(folder)
    calls = [(i, c) for i, line in enumerate(lines) for turn in line["turns"] for c in turn.get("calls", [])]
    for tool in tools.split(", "):
        own = [(i, c) for i, c in calls if c["tool"] == tool]
        assert row[f"tools.{tool}.calls"] == len(own)
        assert row[f"tools.{tool}.episodes_share"] == len({i for i, _ in own}) / len(lines)
        start = f"tools.{tool}.failures."
        failures = {name.removeprefix(start): count for name, count in row.items() if name.startswith(start)}
        assert failures == dict(Counter(c["failure"] for _, c in own if c["failure"]))
    stray = {
        name.removeprefix("calls_of_no_tool."): n for name, n in row.items() if name.startswith("calls_of_no_tool")
    }
    assert stray == dict(Counter(c["failure"] for _, c in calls if not c["tool"]))
    return row


def test_calls_and_failures_by_kind_are_those_of_the_turns(run: Callable[..., Path]) -> None:
    tools = "double, broken, unused"
    folder = run(tools, "double, wrong argument, broken, no tool, no call", prompts_per_step=6)
    row = assert_counts_are_those_of_the_turns(folder, tools)
    assert row["tools.double.failures.arguments"] > 0
    assert row["tools.broken.failures.exception"] == row["tools.broken.calls"] > 0
    assert row["tools.double.calls"] > row["tools.double.failures.arguments"]
    assert row["tools.unused.calls"] == row["tools.unused.episodes_share"] == row["tools.unused.seconds"] == 0
    assert row["calls_of_no_tool.malformed"] > 0 < row["calls_of_no_tool.unknown tool"]
    assert not any(name.startswith(("faults", "turn_faults")) for name in row), "mistakes of the policy's are no faults"
    (table,) = [table for table in page_of_run(folder).runs[0].tables if table.title == "Tools in training"]
    assert [line[0] for line in table.rows] == ["broken", "double", "unused", "of no tool"]
    stray = {kind: row[f"calls_of_no_tool.{kind}"] for kind in ("malformed", "unknown tool")}
    assert table.rows[3][1:3] == (
        f"{sum(stray.values()):.0f}",
        ", ".join(f"{n:.0f} {kind}" for kind, n in stray.items()),
    )
    assert table.rows[1][1] == f"{row['tools.double.calls']:.0f}"


@pytest.mark.parametrize(
    ("tool", "cause"), [("slow", "timeout"), pytest.param("crash", "crash", marks=pytest.mark.slow)]
)
def test_a_tool_at_fault_is_one_kind_with_its_own_remedy(
    tool: str, cause: str, run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(f"double, {tool}", f"double, {tool}", task={"max_turns": 1})
    row = assert_counts_are_those_of_the_turns(folder, f"double, {tool}")
    faulty = row[f"faults.{cause} in environment"]
    assert faulty == row[f"turn_faults.{cause}"] == row[f"tools.{tool}.failures.{cause}"] > 0
    assert f"tools.double.failures.{cause}" not in row, "the one that hung is at fault, and not those beside it"
    assert not any(name.startswith("faults.") and "environment" not in name for name in row)
    if tool == "slow":
        assert row["tools.slow.seconds"] == pytest.approx(0.3 * faulty)
    assert capsys.readouterr().out.count("first of its kind") == 1
    (finding,) = [one for one in page_of_run(folder).runs[0].findings if one.name == "scoring faults"]
    assert f"{faulty:.0f} {cause} in environment (tool {tool} {faulty:.0f} times)" in finding.words
    assert 'task.on_fault = "answer"' in finding.advice
    assert "reward" not in finding.advice


@pytest.mark.slow
def test_of_a_coroutine_that_waits_only_a_lone_call_is_known_to_be_at_fault(run: Callable[..., Path]) -> None:
    folder = run("double, waits", "double, waits", task={"max_turns": 1, "on_fault": "answer"}, prompts_per_step=6)
    row = assert_counts_are_those_of_the_turns(folder, "double, waits")
    _, lines = counted(folder)
    turns = [turn for line in lines for turn in line["turns"] if turn.get("fault")]
    assert turns
    for turn in turns:
        expected = ["timeout"] if len(turn["calls"]) == 1 else ["unanswered"] * len(turn["calls"])
        assert [call["failure"] for call in turn["calls"]] == expected
    assert row["unscored_completions"] == 0


@pytest.mark.slow
def test_an_episode_that_a_fault_ended_does_not_train_whatever_else_scores_it(run: Callable[..., Path]) -> None:
    rewards = {"repetition": {}}
    folder = run("slow", "slow", task={"max_turns": 1}, rewards=rewards, samples_per_prompt=2)
    row, lines = counted(folder)
    ended = [line for line in lines if line["ended"] == "fault"]
    assert ended
    assert row["unscored_completions"] == row["faults.timeout in environment"] == len(ended)
    assert row["trained_completions"] == len(lines) - len(ended)
