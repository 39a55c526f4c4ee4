"""A run over two ranks is the run of one process up to rounding, and ends in one line where the other rank is lost."""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
from groupwise.commands.build import build
from groupwise.commands.build.engine import TOLERANCE
from groupwise.commands.build.learner import MODULE, idle_ranks
from groupwise.commands.train.train import resume
from groupwise.config import recipe
from groupwise.core.errors import RunError, UsageError
from groupwise.engines.outside.connection import SERVER
from groupwise.journal.journal import read_metrics
from groupwise.models.load import digest, load_policy, save_policy
from groupwise.models.scalar_heads import reward_model_of
from groupwise.models.unread import is_unread
from groupwise.training import checkpoint
from groupwise.training.settings import RunSettings
from tests.moe_policy import save_moe
from tests.runs.test_run import weights
from tests.runs.tiny_runs import cut_back, own_processes, rollouts, tiny_policy, tiny_run
from tests.warm import warm_starts

#: A rate at which rounding does not grow from step to step.
CHANGES: dict[str, Any] = {"steps": 3, "learner__learning_rate": 1e-3, "algorithm__name": "ppo"}
#: A reference that becomes the policy after each step.
RENEWED: dict[str, Any] = {"algorithm__name": "grpo", "algorithm__kl__beta": 0.1, "reference__every": 1}


def other_ranks() -> list[int]:
    return own_processes(MODULE)


class Signals:
    """A callback: after a step, and some time, the other rank gets a signal; each time, or a number of times."""

    def __init__(self, number: int, step: int, seconds: float = 0.0, times: int = 99, module: str = MODULE) -> None:
        self._number, self._step, self._seconds, self._times = number, step, seconds, times
        self._module = module

    def __call__(self, record: Any) -> None:
        if record.step == self._step and self._times:
            self._times -= 1
            threading.Thread(target=self._send).start()

    def _send(self) -> None:
        time.sleep(self._seconds)
        for pid in own_processes(self._module):
            os.kill(pid, self._number)


def trained(place: Path, name: str, callbacks: Any = (), **changes: Any) -> Path:
    return groupwise.train(
        "quickstart", tiny_run(place, name=name, **{**CHANGES, **changes}), callbacks=callbacks
    ).folder


def numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: numbers(entry) for key, entry in value.items() if key not in ("seconds", "scoring_seconds")}
    return value


def require_same(one: Path, other: Path) -> None:
    """The same metrics and rollouts, and the same files of policy and optimizer, to the byte."""
    assert [numbers(row) for row in read_metrics(one)] == [numbers(row) for row in read_metrics(other)]
    names = [sorted(p.relative_to(run) for p in (run / "checkpoints").rglob("*.safetensors")) for run in (one, other)]
    assert names[0] == names[1] != []
    for name in (*names[0], "rollouts.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def require_near(one: Any, other: Any, where: str = "") -> None:
    """The same but for rounding, which the largest differences between two passes are made of."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            require_near(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, float) and isinstance(other, float) and not math.isnan(one):
        assert other == pytest.approx(one, rel=1e-3, abs=2e-5), where
    else:
        assert json.dumps(one) == json.dumps(other), where


def resumed_entries(run: Path) -> list[dict[str, Any]]:
    return json.loads((run / "about.json").read_text())["resumed"]


@pytest.fixture
def forked() -> Iterator[None]:
    with warm_starts():
        yield


@pytest.mark.usefixtures("forked")
def test_a_killed_rank_is_named_and_the_run_goes_on_by_itself_to_the_metrics_of_one_process(tmp_path: Path) -> None:
    """PPO: policy, reference and critic are in shards; killed after the second step, it goes on from a checkpoint."""
    alone = trained(tmp_path, "alone")
    kill = Signals(signal.SIGKILL, step=2, times=1)
    over = trained(tmp_path, "over", [kill], learner__ranks=2, placement__restarts=1, learner__rank_deadline=120.0)
    assert not other_ranks()
    loss = "rank 1 of 2 ended: killed by SIGKILL"
    again = f"go on from the newest checkpoint with: groupwise train --resume {over}"
    lines = (over / "log.txt").read_text().splitlines()
    at = lines.index(f"error: {loss}; {again}")
    assert f"{loss}; restart 1 of 1 in a row" in lines[at:]
    (entry,) = resumed_entries(over)
    assert entry["lost"] == f"{loss}; restart 1 of 1 in a row"
    assert entry["step"] in (1, 2)
    rows = [[numbers(row) for row in read_metrics(run)] for run in (alone, over)]
    assert len(rows[0]) == len(rows[1]) == 5
    for one, other in zip(*rows, strict=True):
        require_near(one, other)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("way", [{}, pytest.param({"reference__precision": "fp16"}, marks=pytest.mark.slow)])
def test_a_policy_that_no_rank_has_whole_trains_as_one_that_rank_0_has(
    way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PPO with a reference: all three models come from the policy's files, which one run reads whole."""
    changes = {"steps": 1, "learner__ranks": 2, "engine__process": "child", "algorithm__kl__beta": 0.1, **way}
    unread: list[bool] = []
    monkeypatch.setattr(build, "digest", lambda model: unread.append(is_unread(model)) or digest(model))
    runs = [trained(tmp_path, "files", **changes)]
    monkeypatch.setattr(RunSettings, "in_files", property(lambda _: frozenset()))
    runs.append(trained(tmp_path, "whole", **changes))
    assert unread == [True, False]
    require_same(*runs)
    plans = [(run / "log.txt").read_text() for run in runs]
    assert [re.findall("starting policy (.*)", plan) for plan in plans] == [
        re.findall("starting policy (.*)", plans[0])
    ] * 2
    for name in ("config.json", "generation_config.json"):
        assert len({(run / "checkpoints/step-000001/policy" / name).read_bytes() for run in runs}) == 1


@pytest.mark.slow
def test_a_run_in_bfloat16_has_the_limits_of_one_process(tmp_path: Path) -> None:
    """Policy, engine and reference round; the probe's float32 and the tolerance are measured on gathered weights."""
    rounded = dict.fromkeys(("learner__precision", "engine__precision", "reference__precision"), "bf16")
    changes: dict[str, Any] = {**rounded, "algorithm__name": "grpo", "algorithm__kl__beta": 0.1, "steps": 2}
    alone, over = trained(tmp_path, "alone", **changes), trained(tmp_path, "over", learner__ranks=2, **changes)
    limits = [json.loads((run / TOLERANCE).read_text()) for run in (alone, over)]
    assert limits[0] == limits[1]
    assert limits[1]["passes"] is not None
    first = [numbers(read_metrics(run)[1]) for run in (alone, over)]
    require_near(*first)


@pytest.mark.slow
def test_an_engine_ends_with_a_run_whose_ranks_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = sys.executable
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    missing = "it cannot be started: No such file or directory"
    words = f"^learner.ranks = 2: the process of rank 1 was not started: {missing}; ask for fewer, or"
    with pytest.raises(UsageError, match=words) as refused:
        trained(tmp_path, "over", learner__ranks=2, engine__process="child", engine__python=python)
    assert not own_processes(SERVER), "also while somebody looks at the error, which holds what was made"
    assert refused.tb is not None
    assert not (tmp_path / "runs" / "over").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"learner.ranks": 4}, ""),
        ({"learner.ranks": 2, "learner.tokens_per_microbatch": 99_999}, "1 microbatch at most, and the other ranks "),
        ({"learner.ranks": 64, "prompts_per_step": 8, "samples_per_prompt": 4}, "16 microbatches at most, and the "),
    ],
)
def test_ranks_that_no_update_can_use_are_a_question(changes: dict[str, Any], words: str) -> None:
    question = idle_ranks(recipe.load("quickstart", changes), longest=8)
    assert words in question
    assert bool(question) == bool(words)
    assert question.count("learner.tokens_per_microbatch") == (changes.get("learner.ranks") == 2)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4])
def test_more_ranks_have_the_metrics_of_one_process(tmp_path: Path, ranks: int) -> None:
    alone, over = trained(tmp_path, "alone"), trained(tmp_path, "over", learner__ranks=ranks)
    for one, other in zip(*(read_metrics(run) for run in (alone, over)), strict=True):
        require_near(numbers(one), numbers(other))
    assert not other_ranks()


@pytest.mark.slow
def test_a_rank_that_stalls_is_named_within_the_deadline(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(RunError, match=r"^rank 1 of 2 kept the others waiting for 2 seconds; go on from "):
        trained(tmp_path, "stalled", [Signals(signal.SIGSTOP, step=1)], learner__ranks=2, learner__rank_deadline=2.0)
    assert time.monotonic() - begin < 40
    assert not other_ranks()


def scoring_model(place: Path) -> Path:
    folder = place / "reward_model"
    reward = reward_model_of(load_policy(tiny_policy(place / "scored")))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.nn.init.normal_(reward.model.score.weight)
    save_policy(reward.model, reward.tokenizer, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_reward_model_in_shards_scores_with_the_bits_of_one_process(tmp_path: Path, ahead: int) -> None:
    """Sampled ahead, a batch is scored by a thread while the ranks train: they do one after the other."""
    changes: dict[str, Any] = {"algorithm__name": "grpo", "rollout__ahead": ahead}
    changes["preference__model"] = str(scoring_model(tmp_path))
    alone, over = trained(tmp_path, "alone", **changes), trained(tmp_path, "over", learner__ranks=2, **changes)
    rows = [rollouts(run) for run in (alone, over)]
    for one, other in zip(*rows, strict=True):
        # Of one policy: later ones are the same up to rounding, and their completions need not be.
        assert one["step"] > 1 + ahead or (one["completion"], one["learned"]) == (other["completion"], other["learned"])
    assert len({row["learned"] for row in rows[1]}) > 5, "a model that says one thing would pass this"
    for one, other in zip(*(read_metrics(run) for run in (alone, over)), strict=True):
        require_near(numbers(one), numbers(other))
    assert not other_ranks()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "adapters", "experts", "renewed", "reward model"])
def test_a_run_that_is_resumed_at_two_ranks_has_the_bits_of_one_that_never_stopped(tmp_path: Path, kind: str) -> None:
    own: dict[str, Any] = {"algorithm__name": "grpo", "learner__ranks": 2}
    if kind == "adapters":
        own["adapter__rank"] = 2
    if kind == "renewed":
        own |= RENEWED
    if kind == "reward model":
        own["preference__model"] = str(scoring_model(tmp_path))
    if kind == "experts":
        own |= {"model": str(save_moe(tmp_path / "experts")), "routing__replay": "engine", "routing__load_balance": 0.1}
    whole, cut = (trained(tmp_path, part, **own) for part in ("whole", "cut"))
    require_same(whole, cut)
    cut_back(cut, 2)
    assert resume(cut).finished
    require_same(whole, cut)


@pytest.mark.slow
@pytest.mark.parametrize("own", [{}, RENEWED], ids=["ppo", "a reference that is renewed"])
def test_a_run_goes_on_in_one_process_up_to_rounding(tmp_path: Path, own: dict[str, Any]) -> None:
    alone, over = trained(tmp_path, "alone", **own), trained(tmp_path, "over", learner__ranks=2, **own)
    cut_back(over, 2)
    assert resume(over, {"learner.ranks": 1}).finished
    for one, other in zip(*(read_metrics(run) for run in (alone, over)), strict=True):
        require_near(numbers(one), numbers(other))


@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_goes_on_in_one_process_to_a_millionth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The step after it, of the same completions: what a gradient that is added up in another order leaves."""
    changes = {"learner__ranks": 2, "learner__tokens_per_microbatch": 16, "critic__tokens_per_microbatch": 16}
    over, one = (trained(tmp_path, name, **changes) for name in ("over", "one"))
    cut_back(one, 3)
    capsys.readouterr()
    assert resume(one, {"learner.ranks": 1}).finished
    line = "learner.ranks = 1: the numbers from here on are those of 2 up to rounding alone"
    assert line in " ".join(capsys.readouterr().out.split())
    assert line in (one / "log.txt").read_text()
    assert (one / "rollouts.jsonl").read_text().count('"step":3') > 10
    rows = [next(row for row in read_metrics(run) if row["step"] == 3 and "loss" in row) for run in (over, one)]
    for name in ("loss", "gradient_norm", "value_loss", "critic_gradient_norm", "entropy", "kl"):
        if name in rows[0]:
            assert rows[1][name] == pytest.approx(rows[0][name], rel=1e-6, abs=1e-7), name
    own, shared = (weights(run) for run in (one, over))
    assert own.keys() == shared.keys()
    difference = math.sqrt(sum(float((own[n] - shared[n]).double().square().sum()) for n in own))
    assert 0 < difference < 1e-6 * math.sqrt(sum(float(x.double().square().sum()) for x in own.values()))


@pytest.mark.slow
def test_a_checkpoint_without_one_of_its_shards_is_named_and_the_one_before_it_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = (trained(tmp_path, name, learner__ranks=2) for name in ("whole", "cut"))
    newest = checkpoint.folder_of(cut / "checkpoints", 3)
    (newest / "critic.00002-of-00002.safetensors").unlink()
    capsys.readouterr()
    assert resume(cut).finished
    words = f"{newest} is damaged (critic.00002-of-00002.safetensors is missing); falling back to an older one"
    assert words in " ".join(capsys.readouterr().err.split())
    require_same(whole, cut)


@pytest.mark.slow
def test_a_rank_that_is_killed_at_any_moment_leaves_a_run_that_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """It ends in a line, and is resumed; then once more with restarts, and goes on by itself."""
    whole = trained(tmp_path, "whole", learner__ranks=2)
    moments = random.Random(0)
    for number in range(10):
        name, step, seconds = f"killed-{number}", moments.randint(1, 2), moments.uniform(0, 0.4)
        with pytest.raises(RunError, match=r"^rank 1 of 2 ended: killed by SIGKILL; go on from "):
            trained(tmp_path, name, [Signals(signal.SIGKILL, step, seconds)], learner__ranks=2)
        assert not other_ranks()
        assert resume(tmp_path / "runs" / name).finished
        kill = Signals(signal.SIGKILL, step, seconds, times=1)
        again = trained(tmp_path, f"again-{number}", [kill], learner__ranks=2, placement__restarts=1)
        assert not other_ranks()
        assert [bool(entry["lost"]) for entry in resumed_entries(again)] == [True]
        for run in (tmp_path / "runs" / name, again):
            require_same(whole, run)


@pytest.mark.slow
def test_a_rank_that_is_killed_again_and_again_without_a_new_step_ends_the_run(tmp_path: Path) -> None:
    kill = Signals(signal.SIGKILL, step=1)
    with pytest.raises(RunError, match=r"^a process was lost 3 times in a row, the last of them: rank 1 of 2 ended: "):
        trained(tmp_path, "over", [kill], learner__ranks=2, placement__restarts=2, checkpoint__every=3)
    assert len(resumed_entries(tmp_path / "runs" / "over")) == 2
    assert not other_ranks()


@pytest.mark.slow
def test_a_run_goes_on_by_itself_after_an_engine_was_lost_for_good(tmp_path: Path) -> None:
    """To the bits of the run with an engine inside."""
    inside = trained(tmp_path, "inside")
    kill = Signals(signal.SIGKILL, step=2, times=1, module=SERVER)
    changes = {"engine__process": "child", "engine__restarts": 0, "placement__restarts": 1}
    child = trained(tmp_path, "child", [kill], **changes)
    require_same(inside, child)
    (entry,) = resumed_entries(child)
    assert entry["lost"].startswith("the engine's process is lost, and engine.restarts = 0: ")
