"""Faults injected for real: each is caught by the run itself, within a step, with its cause in words."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import groupwise
from groupwise.algorithms.parts.aggregate import SequenceMean
from groupwise.commands.train.train import resume
from groupwise.core.errors import CheckFailed, RunError
from groupwise.diagnostics.checks import Check, CheckVerdict, worst
from groupwise.engines.local.engine import LocalEngine
from groupwise.health.checks import Invariant
from groupwise.journal.journal import read_metrics
from groupwise.journal.kept import RECIPE, replace_recipe
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.training import checkpoint
from groupwise.training.learner import Learner
from tests.command_process import CommandProcess
from tests.runs.test_run import weights
from tests.runs.tiny_runs import step_rows


def steps_done(folder: Path) -> int:
    return max((r["step"] for r in read_metrics(folder)), default=0)


@pytest.mark.parametrize("rate", [1e-3, 1e-6], ids=["a large step", "a step too small for the gap limit"])
def test_an_engine_that_keeps_its_old_weights(rate, small, monkeypatch):
    """Loading only stamps the version. Even where the gap is within the limit, the answers' very bits give it away."""
    monkeypatch.setattr(LocalEngine, "load_weights", lambda self, weights, version: setattr(self, "_version", version))
    changes = small(name="stale", learner__learning_rate=rate)
    with pytest.raises(CheckFailed, match=r"step 1: .*the engine still serves the weights of before"):
        groupwise.train("quickstart", changes)
    folder = Path(changes["runs"]) / "stale"
    assert steps_done(folder) == 0
    assert "still serves the weights of before" in (folder / "log.txt").read_text()


def test_an_engine_that_keeps_its_old_weights_after_a_resume(small, monkeypatch):
    """In the first step already: what the next load must change are the restored weights' answers, not the start's."""
    settings = small(steps=3, learner__learning_rate=1e-6, checkpoint__keep=3)
    folder = groupwise.train("quickstart", settings).folder
    (checkpoint.folder_of(folder / "checkpoints", 3) / checkpoint.MANIFEST).unlink()
    real = LocalEngine.load_weights

    def until_two(self, weights, version):
        real(self, weights, version) if version <= 2 else setattr(self, "_version", version)

    monkeypatch.setattr(LocalEngine, "load_weights", until_two)
    with pytest.raises(CheckFailed, match=r"step 3: .*the engine still serves the weights of before"):
        resume(folder)


def test_an_engine_that_gets_some_of_the_weights(small, monkeypatch):
    real = LocalEngine.load_weights

    def partial(self, weights, version):
        kept = dict(self._model.named_parameters())
        real(self, [(n, w if "layers.0" in n else kept[n]) for n, w in weights], version)

    monkeypatch.setattr(LocalEngine, "load_weights", partial)
    with pytest.raises(CheckFailed, match=r"step 1: .*the weights did not arrive"):
        groupwise.train("quickstart", small(learner__learning_rate=1e-2))


def test_an_engine_that_samples_another_distribution(small, monkeypatch):
    real = LocalEngine.generate

    def cooler(self, requests, sampling, *told):
        return real(self, requests, sampling.replace(temperature=0.9), *told)

    monkeypatch.setattr(LocalEngine, "generate", cooler)
    with pytest.raises(CheckFailed, match=r"step 1: .*'learner = engine'.*look at temperature"):
        groupwise.train("quickstart", small())


def test_dropout_in_the_learner(small, monkeypatch):
    real = Learner.__init__

    def with_dropout(self, model, *args, **named):
        real(self, model, *args, **named)
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.2
        model.train()

    monkeypatch.setattr(Learner, "__init__", with_dropout)
    with pytest.raises(CheckFailed, match=r"step 1: .*'live = old on the first update'.*look at dropout"):
        groupwise.train("quickstart", small())


def test_a_loss_that_is_normalised_wrongly(small, monkeypatch):
    """Completions counted per microbatch instead of per optimizer batch: the classic."""
    real = SequenceMean.__call__
    monkeypatch.setattr(SequenceMean, "__call__", lambda self, mask, totals: real(self, mask, totals) * 2)
    with pytest.raises(CheckFailed, match=r"'weights reach their declared total' is 1, .*normalised wrongly"):
        groupwise.train("quickstart", small())


def test_a_reference_that_is_not_the_start(small, monkeypatch):
    real = Learner.__init__

    def other_reference(self, model, reference, *args, **named):
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.mul_(1.01)
        real(self, model, reference, *args, **named)

    monkeypatch.setattr(Learner, "__init__", other_reference)
    with pytest.raises(CheckFailed, match="the reference is not the starting policy"):
        groupwise.train("quickstart", small())


def poison(first: int):
    real = Learner.gradients

    def gradients(self, minibatch, algorithm):
        found = real(self, minibatch, algorithm)
        if self.optimizer.updates >= first:
            next(self.model.parameters()).grad[0] = math.nan
        return found

    return gradients


def test_gradients_that_are_not_finite_stop_the_run_with_a_sound_state(small, monkeypatch):
    changes = small(name="nan", checkpoint__every=100)
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "gradients", poison(first=4))
        with pytest.raises(RunError, match=r"step 4: 3 updates in a row .*another try of this step: .*step-000003"):
            groupwise.train("quickstart", changes)
    folder = Path(changes["runs"]) / "nan"
    saved, sound = weights(folder), weights(groupwise.train("quickstart", small(steps=2)).folder)
    assert all(torch.equal(saved[name], sound[name]) for name in sound)
    assert resume(folder).finished
    assert [r["step"] for r in read_metrics(folder) if "loss" in r] == [1, 2, 3, 4]


def test_skipped_updates_that_are_not_in_a_row_are_counted_and_the_run_goes_on(small, monkeypatch):
    real, spoiled = Learner.gradients, poison(first=0)

    def now_and_then(self, *given):
        return (spoiled if self.optimizer.updates in (1, 3, 5) else real)(self, *given)

    monkeypatch.setattr(Learner, "gradients", now_and_then)
    run = groupwise.train("quickstart", small())
    assert [r["updates_skipped"] for r in read_metrics(run.folder) if "loss" in r] == [1, 1, 1, 0]


def test_skipped_updates_in_a_row_are_counted_across_a_stop(small, monkeypatch):
    """Two before it and one after are three."""
    changes = small(name="cut", steps=3, checkpoint__keep=3)
    monkeypatch.setattr(Learner, "gradients", poison(first=2))
    with pytest.raises(RunError, match="step 3: 3 updates in a row"):
        groupwise.train("quickstart", {**changes, "name": "whole"})
    folder = groupwise.train("quickstart", {**changes, "steps": 2}).folder
    with pytest.raises(RunError, match="step 3: 3 updates in a row"):
        resume(folder, {"steps": 3})


def test_the_worst_of_several_measurements_is_the_one_that_is_judged():
    one, two = (Invariant(name, held="", cause="", unmeasured="") for name in "ab")
    small, large = (Check(one, CheckVerdict.PASS, value, 1.0) for value in (0.1, 0.2))
    other = Check(two, CheckVerdict.FAIL, 9.0, 1.0)
    for told in ([small, large, other], [large, other, small]):
        assert sorted(worst(told), key=lambda check: check.name) == [large, other]
    broken, unmeasured = (
        Check(one, CheckVerdict.FAIL, math.nan, 1.0),
        Check(one, CheckVerdict.NOT_MEASURED, math.nan, 1.0),
    )
    assert worst([small, broken, large]) == worst([broken, large, small]) == [broken]
    assert worst([small, unmeasured]) == worst([unmeasured, small]) == [small]


@pytest.mark.parametrize(("score", "words"), [(0.0, "every completion is wrong"), (1.0, "every completion is right")])
def test_groups_without_signal_are_told_in_words(score, words, small, monkeypatch):
    monkeypatch.setattr(Arithmetic, "score", lambda self, sample, completion: score)
    run = groupwise.train("quickstart", small(steps=1))
    assert words in (run.folder / "log.txt").read_text()
    row = step_rows(run.folder)[0]
    assert row["advantage_abs_mean"] == 0
    assert row["groups_mixed_share"] == 0


def test_a_solved_task_does_not_end_it(small, monkeypatch):
    """Nothing is left to learn, which is no failure: the fallback fills the batch and its advantages are 0."""
    monkeypatch.setattr(Arithmetic, "score", lambda self, sample, completion: 1.0)
    run = groupwise.train("quickstart", small(algorithm__name="dapo", steps=2, algorithm__filter__max_rounds=2))
    for row in step_rows(run.folder):
        assert row["groups_fallback"] == 8
        assert row["advantage_abs_mean"] == 0


def test_a_completion_without_a_score_neither_votes_nor_trains(small, monkeypatch):
    real = Arithmetic.score
    monkeypatch.setattr(Arithmetic, "score", lambda self, s, text: math.nan if len(text) % 2 else real(self, s, text))
    run = groupwise.train("quickstart", small(steps=2, scoring__fault_limit=1.0))
    for row in step_rows(run.folder):
        assert row["unscored_completions"] > 0
        assert row["trained_completions"] == row["generated_completions"] - row["unscored_completions"]
        assert math.isfinite(row["loss"])


def test_a_disk_that_is_full_while_saving(small):
    """The system refuses large files while a resumed run saves: one line, exit code 1, older checkpoints untouched."""
    changes = small(name="full", steps=3)
    folder = groupwise.train("quickstart", changes).folder
    last = checkpoint.folder_of(folder / "checkpoints", 3)
    for path in last.rglob("*"):
        if path.is_file():
            path.unlink()
    before = {p: p.read_bytes() for p in checkpoint.folder_of(folder / "checkpoints", 2).rglob("*") if p.is_file()}
    code, said = limited_call("--resume", str(folder))
    assert code == 1, said
    told = said.strip().splitlines()[-1]
    assert "step 3: the checkpoint cannot be saved: " in told
    assert f"checkpoints/step-000002 is untouched. Free space, then: groupwise train --resume {folder}" in told
    assert "Traceback" not in said
    assert {p: p.read_bytes() for p in before} == before
    assert not list((folder / "checkpoints").glob(".partial-*"))
    assert resume(folder).finished


def test_what_a_kill_left_of_a_save_is_in_no_checkpoint(tmp_path):
    left = tmp_path / ".partial-step-000003"
    left.mkdir()
    (left / "half.safetensors").write_text("half")
    made = checkpoint.save(tmp_path, 3, lambda folder: checkpoint.write_state(folder, {}), keep=2)
    assert sorted(p.name for p in made.iterdir()) == [checkpoint.MANIFEST, checkpoint.STATE]
    assert checkpoint.damaged(made) == ""


def limited_call(*words: str) -> tuple[int | None, str]:
    """`groupwise train` in a process that the system lets write no file above 100 kB: its exit code, what it said."""
    process = CommandProcess("train", *words, file_size=100_000)
    said = process.communicate(timeout=120)
    return process.returncode, said


def test_a_disk_that_is_full_before_the_first_step(tmp_path):
    settings = [
        "--set",
        f"runs={tmp_path}/runs",
        "--set",
        "warm_start.steps=1",
        "--set",
        "warm_start.demonstrations=64",
    ]
    code, said = limited_call("quickstart", *settings)
    assert code == 1
    assert "the warm-started policy cannot be saved: " in said.strip().splitlines()[-1]
    assert "Traceback" not in said


def test_a_reference_that_is_not_the_one_the_run_began_with(small):
    """The starting policy is made again on a resume: another one must not take its place in silence."""
    folder = groupwise.train("quickstart", small(steps=2)).folder
    text = (folder / RECIPE).read_text()
    replace_recipe(folder, text[text.index("\nname") :].replace("[warm_start]\nsteps = 30", "[warm_start]\nsteps = 31"))
    with pytest.raises(groupwise.UsageError, match="the run's reference was policy"):
        resume(folder)


def test_two_processes_do_not_write_one_run(small):
    run = groupwise.train("quickstart", small(steps=1))
    book = groupwise.journal.journal.Journal(run.folder)
    with pytest.raises(groupwise.UsageError, match="another process is writing this run"):
        resume(run.folder)
    book.close()
    assert resume(run.folder).finished
