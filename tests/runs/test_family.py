"""Every row of the catalog trains from a recipe to the end, and what only some of them have is seen in their runs."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import tomllib
from pathlib import Path

import pytest
import torch

import groupwise
from groupwise.algorithms.settings import CATALOG, settings
from groupwise.commands.build.machine import picks
from groupwise.config import recipe
from groupwise.config.plan import Plan
from groupwise.config.resolve import resolve
from groupwise.core.records import Completion
from groupwise.diagnostics import checks
from groupwise.engines.local.engine import LocalEngine
from groupwise.training.optimizer import AUTO
from groupwise.training.start.initial_policy import starting_policy
from tests.runs.test_run import weights
from tests.runs.tiny_runs import rollouts, step_rows

#: What a small step may have no number for: nobody was right, or no advantage had that sign.
MAY_BE_EMPTY = {"length_right_mean", "length_wrong_mean", "share_passed_positive", "share_passed_negative"}
KL_AT_START = "KL to the reference is 0 at step 0"
LIVE_OLD = "live = old on the first update"


def first_weights(plan: Plan) -> dict[str, torch.Tensor]:
    r = plan.recipe
    policy = starting_policy(r.model, plan.task, r.warm_start, r.seed, plan.cache, r.device, lambda *_: None)
    return dict(policy.model.named_parameters())


def first_checks(folder: Path) -> dict[str, str]:
    return {name: check["verdict"] for name, check in step_rows(folder)[0]["checks"].items()}


def unpicked(plan: Plan) -> Plan:
    learner = plan.recipe.learner.replace(tokens_per_microbatch=AUTO, chunk_logits=AUTO, held_logits=AUTO)
    critic = plan.recipe.critic and plan.recipe.critic.replace(tokens_per_microbatch=AUTO)
    return dataclasses.replace(plan, recipe=plan.recipe.replace(learner=learner, critic=critic, threads=AUTO))


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_every_row_trains(name: str, small):
    changes = small(algorithm__name=name, name="it", steps=2, evaluation__problems=4, checkpoint__every=9)
    teacher = None
    if name == "opd":
        teacher = groupwise.train("quickstart", small(name="teacher", steps=2, learner__learning_rate=1e-2))
        changes |= {"reference.model": str(teacher.folder)}
    plan = resolve(recipe.load("quickstart", changes))
    run = groupwise.train("quickstart", changes)

    rows = step_rows(run.folder)
    assert [r["step"] for r in rows] == [1, 2]
    for row in rows:
        assert {k for k, v in row.items() if v is None} <= MAY_BE_EMPTY
        assert "fail" not in [c["verdict"] for c in row["checks"].values()]
        assert row["updates"] == 2 * (4 if name == "ppo" else 1)
        assert row["updates_skipped"] == 0
        assert row["advantage_abs_mean"] > 0
        assert row["gradient_norm"] > 0
        assert 0 < row["share_passed"] <= 1
    measured = {n for n, verdict in first_checks(run.folder).items() if verdict == "pass"}
    everywhere = set(first_checks(run.folder)) - {KL_AT_START}
    assert len(everywhere) == 5
    assert measured == everywhere | ({KL_AT_START} if plan.algorithm.needs_reference and name != "opd" else set())

    start, end = first_weights(plan), weights(run.folder)
    assert [k for k in end if torch.equal(start[k], end[k])] == [], "these weights stood still"

    assert json.loads((run.folder / "summary.json").read_text()) == run.summary
    assert (run.summary["algorithm"], run.summary["steps"]) == (name, 2)
    resolved = tomllib.loads((run.folder / "recipe.toml").read_text())
    assert resolved["algorithm"] == {"name": name, **settings(plan.algorithm)}
    assert (resolved["passes_per_batch"], "critic" in resolved) == ((4, True) if name == "ppo" else (1, False))
    again = resolve(recipe.parse(resolved, "again"))
    assert not picks(again)
    if name == "opd":  # the recipe names the teacher's checkpoint
        assert again.recipe.reference.model == f"{teacher.folder}:2"
        plan = dataclasses.replace(plan, recipe=plan.recipe.replace(reference=again.recipe.reference))
    assert unpicked(again) == plan


@pytest.mark.parametrize("estimator", ["full", "top-k"])
def test_a_teacher_of_whole_distributions_draws_the_policy_near(estimator: str, small) -> None:
    teacher = groupwise.train("quickstart", small(name="teacher", steps=2, learner__learning_rate=1e-2))
    changes = small(algorithm__name="opd", name="it", steps=10, evaluation__problems=4, learner__learning_rate=3e-3)
    keys = {"place": "loss", "estimator": estimator, **({"k": 4} if estimator == "top-k" else {})}
    changes |= {"reference.model": str(teacher.folder), "algorithm.kl": keys}
    rows = step_rows(groupwise.train("quickstart", changes).folder)
    assert not [c for row in rows for c in row["checks"].values() if c["verdict"] == "fail"]
    assert 0 < rows[-1]["kl_mean"] < 0.35 * rows[0]["kl_mean"]
    assert all(row["advantage_abs_mean"] == 0 for row in rows)


def test_a_row_that_can_use_steps_goes_without_them_where_the_task_has_none():
    """PPO's step_scale can do without step scores: the plan only says that there are none."""
    task = {"use": f"{Path(__file__).parent / 'task_of_a_run.py'}:Sums"}
    changes = {"algorithm.name": "ppo", "task": task, "warm_start.steps": 0, "evaluation.problems": 3}
    plan = resolve(recipe.load("quickstart", changes))
    assert "this task has none: rewards come at the end only" in plan.describe()


def misreport(monkeypatch: pytest.MonkeyPatch, nats: float) -> None:
    """The engine reports every second token of a completion as likelier than it was, and no check stops the run."""
    real = LocalEngine.generate

    def generate(self, *request):
        return [tuple(shifted(c, nats) for c in group) for group in real(self, *request)]

    monkeypatch.setattr(LocalEngine, "generate", generate)
    monkeypatch.setattr(checks, "FLOAT32_LIMIT", 100.0)


def shifted(completion: Completion, nats: float) -> Completion:
    logp = tuple(x + nats * (i % 2) for i, x in enumerate(completion.logp_engine))
    return dataclasses.replace(completion, logp_engine=logp)


def shifted_share(folder: Path) -> float:
    """Of the tokens that train, those whose log-probability the engine misreported."""
    lengths = [r["tokens"] for r in rollouts(folder) if r["fate"] == "trained"]
    return sum(n // 2 for n in lengths) / sum(lengths)


@pytest.mark.parametrize(
    ("kind", "nats", "there"),
    [
        ("tis", 0.0, 1.0),
        ("tis", -1.0, 2.0),
        ("tis", 1.0, math.exp(-1)),
        ("icepop", -1.0, math.e),
        ("icepop", 1.0, 0.0),
        ("none", 1.0, None),
    ],
)
def test_an_engine_mismatch_is_corrected_and_logged(kind: str, nats: float, there: float | None, small, monkeypatch):
    """`there` is the correction of the tokens that the engine misreported; that of the others is 1."""
    misreport(monkeypatch, nats)
    folder = groupwise.train("quickstart", small(steps=1, algorithm__mismatch__kind=kind, checks__witness="off")).folder
    row, share = step_rows(folder)[0], shifted_share(folder)
    if there is None:
        assert not [key for key in row if "correction" in key]
        return
    assert row["correction_mean"] == pytest.approx(1 - share + there * share, abs=1e-4)
    assert row["correction_rejected_share"] == pytest.approx(share if there == 0 else 0, abs=1e-12)


@pytest.mark.parametrize("updates", [1, 2])
def test_old_log_probabilities_may_be_the_engines(updates: int, small):
    changes = small(steps=2, logp_old="engine", updates_per_batch=updates)
    folder = groupwise.train("quickstart", changes).folder
    for row in step_rows(folder):
        verdicts = {name: check["verdict"] for name, check in row["checks"].items()}
        assert verdicts.pop(LIVE_OLD) == "not measured"
        if row["step"] > 1:
            verdicts.pop(KL_AT_START)
        assert set(verdicts.values()) == {"pass"}
    assert f"step 1: {LIVE_OLD}: not measured (logp_old is the engine's" in (folder / "log.txt").read_text()


def test_the_ratio_is_then_to_what_the_engine_reported(small, monkeypatch):
    misreport(monkeypatch, 0.5)
    changes = small(steps=1, updates_per_batch=1, checks__witness="off")
    alone = groupwise.train("quickstart", {**changes, "name": "alone"}).folder
    engine = groupwise.train("quickstart", {**changes, "name": "engine", "logp_old": "engine"}).folder
    assert step_rows(alone)[0]["ratio_mean"] == 1
    share = shifted_share(engine)
    assert step_rows(engine)[0]["ratio_mean"] == pytest.approx(1 - share + math.exp(-0.5) * share, abs=1e-4)


def test_completions_cut_at_the_limit_neither_vote_nor_train(small):
    changes = small(steps=2, samples_per_prompt=8, sampling__max_new_tokens=4, algorithm__filter__mask_truncated=True)
    folder = groupwise.train("quickstart", changes).folder
    rows, distinguished = rollouts(folder), 0
    for step in step_rows(folder):
        here = [r for r in rows if r["step"] == step["step"]]
        finished = [r for r in here if r["finish"] == "stop"]
        assert 0 < len(finished) < len(here)
        assert step["trained_completions"] == len(finished)
        assert step["trained_tokens"] == sum(r["tokens"] for r in finished)
        assert [r["advantage"] for r in here if r["finish"] == "length"] == [0.0] * (len(here) - len(finished))
        for group in {r["group"] for r in here}:
            group_rows = [r for r in here if r["group"] == group]
            votes = [r for r in group_rows if r["finish"] == "stop"]
            advantages = [r["advantage"] for r in votes]
            assert advantages == pytest.approx(zscores([r["score"] for r in votes]), abs=1e-6)
            with_cut = zip(group_rows, zscores([r["score"] for r in group_rows]), strict=True)
            other = [z for r, z in with_cut if r["finish"] == "stop"]
            distinguished += any(advantages) and other != pytest.approx(advantages, abs=1e-3)
    assert distinguished, "the votes of the cut would have changed nothing here"


def zscores(scores: list[float]) -> list[float]:
    if len(scores) < 2 or max(scores) - min(scores) <= 1e-6:
        return [0.0] * len(scores)
    return [(s - statistics.fmean(scores)) / (statistics.stdev(scores) + 1e-6) for s in scores]
