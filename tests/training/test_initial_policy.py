"""Policies that runs start from: a trained one loses nothing by its warm start, and a damaged one is made again."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import groupwise
from groupwise.config.usual import unusual
from groupwise.core.task import Demonstration
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import digest, load_policy, save_policy
from groupwise.models.tiny import TinySpec
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.training.start import initial_policy
from groupwise.training.start.initial_policy import Imitation, by_tokens, imitate, loss_of, pad_of, starting_policy
from groupwise.training.start.warm_start import WarmStart, backward, encoded, halves, warm_start

TASK = Arithmetic(operands=(2, 3), largest=3, worked_share=1.0)
DEMONSTRATIONS = list(TASK.demonstrations(120, seed=0))
ALL_WEIGHTS, RANK_2 = AdapterSettings(), AdapterSettings(rank=2, alpha=4.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that has learned a little of the demonstrations already."""
    path = tmp_path_factory.mktemp("trained")
    TinySpec(layers=1, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=32).build(TASK.alphabet, path, seed=0)
    policy = load_policy(path)
    settings = WarmStart(steps=40, batch_size=16).fitted(tiny=True)
    warm_start(policy.model, Chat(policy.tokenizer), DEMONSTRATIONS, settings, seed=1)
    save_policy(policy.model, policy.tokenizer, path / "policy")
    return path / "policy"


def started(
    folder: Path, rate: float, adapter: AdapterSettings = ALL_WEIGHTS, shown: list[Demonstration] = DEMONSTRATIONS
) -> tuple[dict[str, Tensor], dict[str, Tensor], Imitation]:
    """The weights before and after, and what it has come to."""
    policy = load_policy(folder, training=True)
    before = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    settings = WarmStart(steps=30, batch_size=16, learning_rate=rate)
    done = imitate(policy.model, Chat(policy.tokenizer), shown, settings, adapter, seed=0)
    return before, policy.model.state_dict(), done


def test_the_loss_of_what_was_held_out_falls_and_is_that_of_the_weights_that_are_kept(folder: Path) -> None:
    _, after, done = started(folder, rate=2e-3)
    assert done.after < done.before - 0.02
    assert 0 < done.kept <= done.steps
    policy = load_policy(folder)
    policy.model.load_state_dict(after)
    _, held = initial_policy.apart(encoded(Chat(policy.tokenizer), DEMONSTRATIONS), seed=0)
    assert len(held) == done.heldout
    assert loss_of(policy.model, held, pad_of(Chat(policy.tokenizer))) == pytest.approx(done.after, rel=1e-6)
    again = started(folder, rate=2e-3)[1]
    assert all(torch.equal(after[name], again[name]) for name in after)


@pytest.mark.parametrize("adapter", [ALL_WEIGHTS, RANK_2], ids=["all weights", "adapters"])
def test_a_ruinous_rate_is_stopped_and_leaves_the_policy_as_it_was(folder: Path, adapter: AdapterSettings) -> None:
    before, after, done = started(folder, rate=1.0, adapter=adapter)
    assert (done.kept, done.after) == (0, done.before)
    assert done.last[0] < done.steps
    assert done.last[1] > done.before
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert "the policy is as it was; lower warm_start.learning_rate" in str(done)


def test_a_loss_that_falls_and_then_rises_leaves_its_least(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where demonstrations are learned by heart; the losses are given here, a measurement every third step."""
    told = iter([1.0, 0.8, 0.7, 0.9, 0.72, 0.8, 0.9])
    monkeypatch.setattr(initial_policy, "loss_of", lambda *given: next(told))
    _, after, done = started(folder, rate=1e-3)
    assert (done.kept, done.after, done.last) == (6, 0.7, (18, 0.9))
    assert str(done).endswith("stopped after step 18 it was 0.900, so that step 6 is kept")
    monkeypatch.setattr(initial_policy, "loss_of", lambda *given: next(told))
    told = iter([1.0, 0.8, 0.7, 2.0, math.nan])
    assert all(torch.equal(after[name], weight) for name, weight in started(folder, rate=1e-3)[1].items())


def test_with_adapters_the_weights_move_by_matrices_of_their_rank_and_nothing_else_does(folder: Path) -> None:
    before, after, done = started(folder, rate=2e-3, adapter=RANK_2)
    assert done.after < done.before
    for name, weight in before.items():
        change = after[name] - weight
        if "_proj." in name:
            assert int(torch.linalg.matrix_rank(change.double(), rtol=1e-4)) == 2, name
        else:
            assert not change.any(), name


def test_nothing_that_is_held_out_is_shown(folder: Path) -> None:
    chat = Chat(load_policy(folder).tokenizer)
    shown, held = initial_policy.apart(encoded(chat, [*DEMONSTRATIONS, *DEMONSTRATIONS]), seed=0)
    assert held
    assert not {tuple(ids) for ids, _ in shown} & {tuple(ids) for ids, _ in held}
    one = encoded(chat, DEMONSTRATIONS[:1])
    assert initial_policy.apart(one, seed=0) == (one, one)


def test_the_gradient_does_not_depend_on_how_a_batch_is_split(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_policy, "TOKENS", 60)
    examples = encoded(Chat(load_policy(folder).tokenizer), DEMONSTRATIONS[:20])
    assert len(by_tokens(examples)) > 3
    found: list[tuple[float, list[Any]]] = []
    for split in (halves, by_tokens):
        model = load_policy(folder, training=True).model.double()
        loss = backward(model, split(examples), 0, load_balance=0.0)
        found.append((loss, [p.grad for p in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_run_of_a_trained_model_says_what_its_warm_start_came_to_and_asks_after_harsh_rates(
    folder: Path, tmp_path: Path, small: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs-own").mkdir()
    changes = {**small(steps=1, model=str(folder), task__largest=3), "runs": str(tmp_path / "runs-own")}
    run = groupwise.train("quickstart", {**changes, "adapter.rank": 2, "warm_start.learning_rate": 2e-3})
    told = (run.folder / "log.txt").read_text()
    assert "warm start of 30 steps: AdamW at 0.02, of adapters alone" in told
    line = next(line for line in (run.folder / "log.txt").read_text().splitlines() if line.startswith("warm start "))
    assert "held-out demonstrations, nats a token" in line
    recipe = (run.folder / "recipe.toml").read_text()
    assert "matrix_learning_rate" not in recipe
    assert "question     warm_start.learning_rate = 0.002 makes AdamW's rate 0.02" in told
    asked = unusual({"model": "x", "warm_start": {"steps": 1, "learning_rate": 1e-5, "matrix_learning_rate": 0.015}})
    assert [words[:31] for words in asked] == ["warm_start.matrix_learning_rate"]
    assert unusual({"model": "tiny-dense", "warm_start": {"steps": 1, "matrix_learning_rate": 0.015}}) == []


SUMS, WARM = Arithmetic(operands=(2, 3), largest=3), WarmStart(steps=2, batch_size=4, demonstrations=20)


def other_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one warm-started policy."""
    folder = tmp_path_factory.mktemp("cache")
    start(folder, [])
    return folder


def start(cache: Path, lines: list[str]) -> str:
    """The digest of the starting policy; what is said on the way goes to `lines`."""
    policy = starting_policy("tiny-dense", SUMS, WARM, 0, cache, "cpu", lambda *_: None, note=lines.append)
    return digest(policy.model)


@pytest.mark.parametrize("damage", [other_weights, no_manifest])
def test_a_damaged_warm_start_is_made_again_to_the_same_bits_and_said(
    damage: Callable[[Path], None], cache: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    own = Path(shutil.copytree(cache, tmp_path / "cache"))
    first = start(own, lines)
    assert lines == []
    (cached,) = own.iterdir()
    damage(cached)
    assert start(own, lines) == first
    (line,) = lines
    assert line.startswith(f"cache        the warm-started policy in {cached} is damaged (")
    assert line.endswith("); it is made again")
    assert (start(own, lines), len(lines)) == (first, 1)
