"""Runs that learn from teachers with prompts of their own, and from several."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.core.errors import UsageError
from groupwise.journal.journal import read_metrics
from groupwise.models.load import load_policy
from tests.runs.test_run import assert_goes_on
from tests.runs.tiny_runs import tiny_policy, tiny_run, weights_after

TASK = {"use": "tests/runs/sources_of_a_run.py:TwoSources"}


@pytest.fixture
def few(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    return partial(tiny_run, tmp_path, algorithm__name="opd")


def with_task(settings: dict[str, Any], **task: Any) -> dict[str, Any]:
    return {**{k: v for k, v in settings.items() if not k.startswith("task.")}, "task": {**TASK, **task}}


@pytest.mark.parametrize("rank", [0, 2])
def test_a_policy_teaches_itself_by_the_answer_and_goes_on_exactly(few, rank: int):
    """The teacher is the policy of each step behind a prompt with the answer; the witness has nothing against it."""
    changes: dict[str, Any] = {"reference.template": "{answer}={prompt}", **({"adapter.rank": rank} if rank else {})}
    changes |= {"reference.every": 1, "checks.witness": "stop", "checks.witness_every": 1}
    whole = groupwise.train("quickstart", {**few(steps=3), **changes}).folder
    assert all(row["kl_reward_mean"] != 0 for row in read_metrics(whole) if "kl_reward_mean" in row)
    assert "(reference.template is set)" in (whole / "log.txt").read_text()
    assert_goes_on(whole, 3, 2)


def test_a_template_of_the_prompt_alone_is_the_run_without(few, tmp_path: Path):
    teacher = {"reference.model": str(tiny_policy(tmp_path / "teacher", 7))}
    plain, same = (
        groupwise.train("quickstart", {**few(name=f"run{len(more)}"), **teacher, **more}).folder
        for more in ({}, {"reference.template": "{prompt}"})
    )
    assert weights_after(plain, 2) == weights_after(same, 2)


def test_teachers_by_source_teach_and_go_on_exactly(few, tmp_path: Path):
    teachers = {name: tiny_policy(tmp_path / name, seed, layers=2) for seed, name in enumerate(("one", "two"), 5)}
    by_source = {"reference.by_source": {"even": str(teachers["one"])}, "reference.model": str(teachers["two"])}
    whole = groupwise.train("quickstart", with_task({**few(), **by_source}, answers=False)).folder
    assert "reference    of even: policy" in (whole / "log.txt").read_text()
    assert_goes_on(whole, 2)
    swapped = {"reference.by_source": {"odd": str(teachers["two"])}, "reference.model": str(teachers["one"])}
    same = groupwise.train("quickstart", with_task({**few(name="same"), **swapped}, answers=False)).folder
    assert weights_after(whole, 2) == weights_after(same, 2)
    one = {"reference.model": str(teachers["one"])}
    other = groupwise.train("quickstart", with_task({**few(name="other"), **one}, answers=False)).folder
    assert weights_after(whole, 2) != weights_after(other, 2)


def test_teachers_are_evaluated_once_beside_the_policy_and_change_nothing(few, tmp_path: Path):
    """Each as `groupwise eval` finds it, on the same problems with the same random numbers."""
    places = {name: str(tiny_policy(tmp_path / name, seed, layers=2)) for seed, name in enumerate(("one", "two"), 5)}
    taught = {"reference.by_source": {"even": places["one"]}, "reference.model": places["two"], "evaluation.every": 1}
    run = groupwise.train("quickstart", with_task({**few(), **taught})).folder
    first, *later = [row["evaluation"] for row in read_metrics(run) if "evaluation" in row]
    found = {name: row["measured_mean"] for name, row in first["teachers"].items()}
    expected = [groupwise.evaluate(places[name], recipe=str(run)).evaluation.measured_mean for name in ("two", "one")]
    assert found == dict(zip(("teacher", "even"), expected, strict=True))
    assert not any("teachers" in row for row in later)
    assert f"| teacher {expected[0]:.3f} | even {expected[1]:.3f}" in (run / "log.txt").read_text()
    reinforced = groupwise.train("quickstart", with_task(few(algorithm__name="grpo", name="grpo"))).folder
    assert not any("teachers" in row.get("evaluation", {}) for row in read_metrics(reinforced))


def test_a_run_as_a_sources_teacher_is_pinned_and_copied(few):
    source = groupwise.train("quickstart", few(algorithm__name="grpo", name="source")).folder
    changes = {"reference.by_source": {"odd": str(source)}}
    run = groupwise.train("quickstart", with_task({**few(), **changes})).folder
    assert tomllib.loads((run / "recipe.toml").read_text())["reference"]["by_source"] == {"odd": f"{source}:2"}
    assert (run / "reference-1" / "config.json").is_file()


def rewritten(folder: Path, template: str) -> str:
    tokenizer = load_policy(folder).tokenizer
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"reference.template": "{prompt}{why}"}, "there is no place {why}"),
    (
        {"reference.template": "{prompt}{answer}", "task.answers": False},
        "{answer} is named, and the task has no answers",
    ),
    ({"reference.template": "{answer}" * 58 + "{prompt}"}, "reference.template: sampling.max_new_tokens = 4: with a"),
    ({"reference.template": "{answer}", "prompt_truncation": "left", "max_prompt_tokens": 9}, "it would be cut off as"),
    (
        {"reference.by_source": {"add": "OTHER"}},
        "reference.by_source.add: no such source in the task; there are: even, odd",
    ),
    (
        {"reference.by_source": {"odd": "start"}},
        "reference.by_source.odd = 'start': reference.model says what the other",
    ),
    (
        {"reference.by_source": {"odd": "no/where/there"}},
        "reference.by_source.odd = 'no/where/there': there is no such",
    ),
    ({"reference.by_source": {"odd": "OTHER"}, "learner.ranks": 2}, "further teachers are not sharded: take it out"),
    (
        {"reference.by_source": {"odd": "TEMPLATE"}},
        "is another than the policy's (none, prompts are plain text), behind",
    ),
    ({"reference.model": "TEMPLATE"}, "set chat.template to the Jinja file of one of them, or take another teacher"),
    ({"reference.model": "start"}, "opd learns from a teacher, and this is the policy itself"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_no_teacher_can_do_is_refused_in_one_line(few, tmp_path: Path, changes: dict[str, Any], words: str):
    other = tiny_policy(tmp_path / "other", 3)
    template = rewritten(
        tiny_policy(tmp_path / "template", 4), "{% for m in messages %}{{ m.content|replace('?', '') }}+{% endfor %}"
    )
    names = {"OTHER": str(other), "TEMPLATE": template}

    def named(value: Any) -> Any:
        return {k: named(v) for k, v in value.items()} if isinstance(value, dict) else names.get(value, value)

    task = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("task.")}
    others = {key: named(value) for key, value in changes.items() if not key.startswith("task.")}
    with pytest.raises(UsageError) as told:
        groupwise.train("quickstart", with_task({**few(), **others}, **task))
    assert words in str(told.value)
    assert "\n" not in str(told.value)
