"""The witness in a run: it changes no bit, stops what is wrong in the first steps, and warns or is silent by a key."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
import groupwise.commands.build.build as building
import groupwise.loop as loop
import groupwise.rollout.segments as segments
import groupwise.training.optimizer as optimizing
from groupwise.algorithms.parts import Signal
from groupwise.algorithms.parts.filters import DropUniform, Verdict
from groupwise.commands.train.train import resume
from groupwise.core.errors import CheckFailed
from groupwise.core.files import jsonl
from groupwise.core.numbers.seeds import derive
from groupwise.core.stream import Cohort
from groupwise.health.checks import (
    CREDIT_BY_DEFINITION,
    DRAWS_ARE_NEW,
    GROUPS_AS_SAMPLED,
    TRAINS_WHAT_WAS_SAID,
    UPDATE_AS_ASKED,
    Invariant,
)
from groupwise.rollout.collect import Rollout
from groupwise.rollout.scoring import RewardWeights, ScoringRound
from groupwise.training import checkpoint
from tests.runs.tiny_runs import cut_back, tiny_run

Patch = pytest.MonkeyPatch


def trained(place: Path, **changes: Any) -> groupwise.Run:
    return groupwise.train("quickstart", tiny_run(place, **changes))


def files(run: groupwise.Run) -> dict[str, bytes]:
    """What a run has sampled and saved."""
    found = [run.folder / "rollouts.jsonl", run.folder / "heldout.jsonl"]
    found += checkpoint.newest_good(run.folder / "checkpoints")[0].glob("**/*.safetensors")  # type: ignore[union-attr]
    return {str(path.relative_to(run.folder)): path.read_bytes() for path in found if path.exists()}


def test_no_bit_of_a_run_changes_and_off_reads_nothing(tmp_path: Path) -> None:
    runs = {
        how: trained(tmp_path, name=how, checks__witness=how, checks__witness_every=1, algorithm__name="ppo")
        for how in ("stop", "off")
    }
    assert files(runs["stop"]) == files(runs["off"])
    read = {how: list(jsonl.rows(run.folder / "machine.jsonl")) for how, run in runs.items()}
    verdicts = {one["verdict"] for row in read["stop"] for one in row["witness"].values()}
    assert "fail" not in verdicts
    assert "pass" in verdicts
    assert not any("witness" in row for row in read["off"])


def group_ids_one_row_late(patch: Patch) -> None:
    usual = loop.collate
    patch.setattr(loop, "collate", lambda *a, **k: rolled(usual(*a, **k)))


def rolled(batch: Any) -> Any:
    return dataclasses.replace(batch, group=batch.group.roll(1))


def drawing(seeds: Callable[[int, int, int], int], again: bool = False) -> Callable[[Patch], None]:
    """`seeds` of (run's seed, number of the draw, first number of the round); `again`: the same problems come."""

    def cohort(self: Rollout, count: int) -> Cohort:
        first, seed = self.state.cursor, self.prompts.seed
        self.state = dataclasses.replace(self.state, cursor=first + count)
        drawn = range(first * (not again), first * (not again) + count)
        prompts = tuple(self.prompts.draw(i, self.state.levels) for i in drawn)
        return Cohort(prompts, tuple(seeds(seed, i, first) for i in range(first, first + count)))

    return lambda patch: patch.setattr(Rollout, "cohort", cohort)


def scores_in_another_order(patch: Patch) -> None:
    usual = ScoringRound._finish
    scores: list[Any] = []

    def late(self: ScoringRound, completion: Any, attempt: Any, results: Any) -> Any:
        scores.append(results)
        return usual(self, completion, attempt, scores[max(0, len(scores) - 2)])

    patch.setattr(ScoringRound, "_finish", late)


def nothing_is_clipped(patch: Patch) -> None:
    usual = torch.nn.utils.clip_grad_norm_
    patch.setattr(optimizing.nn.utils, "clip_grad_norm_", lambda of, limit: usual(of, float("inf")))


def the_first_rate_stays(patch: Patch) -> None:
    usual = optimizing.learning_rate
    patch.setattr(optimizing, "learning_rate", lambda settings, update, total: usual(settings, 0, total))


def all_wrong_groups_are_kept(patch: Patch) -> None:
    patch.setattr(DropUniform, "__call__", lambda self, group: Verdict(True, Signal.MIXED))


def weights_are_ignored(patch: Patch) -> None:
    patch.setattr(RewardWeights, "combine", lambda self, parts: sum(parts.values()))


def minibatches_overlap(patch: Patch) -> None:
    usual = loop.minibatches

    def overlapping(batch: Any, count: int, generator: Any) -> Any:
        first, *others = usual(batch, count, generator)
        return [first, *[first] * len(others)]

    patch.setattr(loop, "minibatches", overlapping)


def training_problems_are_evaluated(patch: Patch) -> None:
    usual = building.evaluation_of

    def on_training(recipe: Any, sample: Any, scorer: Any, selection: Any, judge: Any) -> Any:
        return usual(recipe, sample, scorer, dataclasses.replace(selection, heldout=selection.train[:3]), judge)

    patch.setattr(building, "evaluation_of", on_training)


def advantages_of_other_rows(patch: Patch) -> None:
    usual = loop.annotate

    def late(run: Any, result: Any) -> Any:
        batch = usual(run, result)
        return dataclasses.replace(batch, returns=batch.returns.roll(1, 0))

    patch.setattr(loop, "annotate", late)


def tokens_have_the_oldest_version(patch: Patch) -> None:
    usual = segments.joined

    def joined(before: Any, new: Any) -> Any:
        one = usual(before, new)
        return dataclasses.replace(one, spans=(dataclasses.replace(one.spans[0], stop=len(one.tokens)),))

    patch.setattr(segments, "joined", joined)


def segments_begin_their_random_numbers_anew(patch: Patch) -> None:
    usual = segments.Request
    patch.setattr(segments, "Request", lambda *a, **k: usual(*a, **{**k, "drawn": 0}))


IN_SEGMENTS = {"rollout__turn_tokens": 2}
WEIGHED = {"task": {"weight": 1.0}, "format": {"pattern": "1", "weight": 0.5}}
FAULTS: dict[str, tuple[Invariant, Callable[[Patch], None], dict[str, Any]]] = {
    "group ids one row late": (GROUPS_AS_SAMPLED, group_ids_one_row_late, {}),
    "scores in another order": (GROUPS_AS_SAMPLED, scores_in_another_order, {}),
    "all-wrong groups are kept": (GROUPS_AS_SAMPLED, all_wrong_groups_are_kept, {"algorithm__name": "dapo"}),
    "weights of rewards are ignored": (GROUPS_AS_SAMPLED, weights_are_ignored, {"rewards": WEIGHED}),
    "returns of other rows": (CREDIT_BY_DEFINITION, advantages_of_other_rows, {"algorithm__name": "ppo"}),
    "minibatches overlap": (TRAINS_WHAT_WAS_SAID, minibatches_overlap, {}),
    "seeds come again each step": (DRAWS_ARE_NEW, drawing(lambda s, i, first: derive(s, "c", i - first)), {}),
    "one seed for all": (DRAWS_ARE_NEW, drawing(lambda s, i, first: 7 + first), {}),
    "the same problems each step": (
        DRAWS_ARE_NEW,
        drawing(lambda s, i, first: derive(s, "c", i), again=True),
        {"steps": 3, "prompts_per_step": 2},
    ),
    "tokens have the oldest version": (DRAWS_ARE_NEW, tokens_have_the_oldest_version, IN_SEGMENTS),
    "segments begin anew": (DRAWS_ARE_NEW, segments_begin_their_random_numbers_anew, IN_SEGMENTS),
    "training problems are evaluated": (DRAWS_ARE_NEW, training_problems_are_evaluated, {}),
    "nothing is clipped": (UPDATE_AS_ASKED, nothing_is_clipped, {"learner__clip_norm": 1e-3}),
    "the first rate stays": (UPDATE_AS_ASKED, the_first_rate_stays, {"learner__schedule": "linear"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_with_a_fault_stops_and_says_what_it_is_about(fault: str, tmp_path: Path, monkeypatch: Patch) -> None:
    invariant, plant, changes = FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(CheckFailed, match=invariant.name):
        trained(tmp_path, **changes)


def test_moments_that_a_checkpoint_does_not_put_back_are_found(tmp_path: Path, monkeypatch: Patch) -> None:
    run = trained(tmp_path)
    cut_back(run.folder, 2)
    monkeypatch.setattr(checkpoint, "read_optimizer", lambda *_: None)
    with pytest.raises(CheckFailed, match="AdamW has the moments of 0 updates, and 2 were made"):
        resume(run.folder)


def test_a_run_that_only_warns_goes_on_and_says_so_once(tmp_path: Path, monkeypatch: Patch) -> None:
    group_ids_one_row_late(monkeypatch)
    run = trained(tmp_path, checks__witness="warn")
    rows = [row for row in jsonl.rows(run.folder / "metrics.jsonl") if "checks" in row]
    assert [row["checks"][GROUPS_AS_SAMPLED.name]["verdict"] for row in rows] == ["fail", "fail"]
    log = (run.folder / "log.txt").read_text()
    assert log.count("warning, ") == 1
    assert GROUPS_AS_SAMPLED.name in log
    shutil.rmtree(run.folder)
