"""What a run takes of its machine: memory, threads, and nothing where nothing is to be done."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

import groupwise
from groupwise.commands.build.machine import memory_of, picks, size_in_words, threads, with_cuts, with_threads
from groupwise.commands.train.train import resume
from groupwise.config import recipe
from groupwise.config.plan import Plan
from groupwise.config.recipe import load
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.core.machine.facts import cores
from groupwise.core.machine.free_memory import give_back, held_memory
from groupwise.health.checks import ENGINE_IS_LOADED, LEARNER_IS_ENGINE, LIVE_IS_OLD
from groupwise.models.tiny import TinySpec
from groupwise.planning.activations import without_memory
from groupwise.planning.memory import TOKENS_ON_CPU, USABLE
from groupwise.training.learner import Learner
from tests.conftest import SMALL
from tests.runs.test_run import weights
from tests.runs.tiny_runs import step_rows, tiny_run

CONFIG = LlamaConfig(
    vocab_size=2000, hidden_size=64, intermediate_size=256, num_hidden_layers=6, num_attention_heads=4, eos_token_id=1
)
HELD = 10**8


def quickstart(**changes: object) -> Plan:
    return resolve(recipe.load("quickstart", {k.replace("__", "."): v for k, v in changes.items()}))


def test_what_was_picked_stands_in_the_recipe_of_the_run(small) -> None:
    """So that a resumed run cuts its updates, and rounds, as the run did."""
    run = groupwise.train("quickstart", small(steps=1))
    text = (run.folder / "recipe.toml").read_text()
    assert "\n# from quickstart\n" in text
    again = resolve(recipe.load(str(run.folder / "recipe.toml")))
    assert not picks(again)
    assert again.recipe.learner.tokens_per_microbatch == TOKENS_ON_CPU
    assert "memory about" not in text


def test_a_recipe_of_numbers_is_left_as_it_is() -> None:
    changes = {"learner__tokens_per_microbatch": 5, "learner__chunk_logits": 6, "learner__held_logits": 7}
    plan = quickstart(**changes)
    assert not picks(plan)
    assert all(picks(quickstart(**{k: v for k, v in changes.items() if k != left})) for left in changes)
    memory = memory_of(plan, without_memory(CONFIG), 20, HELD, 1 << 40)
    assert with_cuts(plan, memory).recipe == plan.recipe


def test_too_little_memory_is_one_line_with_numbers_and_what_to_do() -> None:
    cuts = {"learner__tokens_per_microbatch": 16384, "learner__chunk_logits": 1 << 24, "learner__held_logits": 1 << 26}
    model, plan = without_memory(CONFIG), quickstart(prompts_per_step=16, engine__max_rows=32, **cuts)
    enough = memory_of(plan, model, 20, HELD, 1 << 40)
    with pytest.raises(UsageError) as error:
        memory_of(plan, model, 20, HELD, enough.needed - 1)
    words = str(error.value)
    assert words.startswith(f"memory about {size_in_words(enough.peak)} at most, while updating (process ")
    assert f"{size_in_words(HELD)} in use, {size_in_words(enough.needed - 1)} free; " in words
    assert 'more than is free; with learner.tokens_per_microbatch = "auto" it is ' in words
    assert "\n" not in words
    with pytest.raises(UsageError, match=r"take a smaller model or a machine with more memory: with .* it still is "):
        memory_of(plan, model, 20, HELD, 10**6)


def test_on_a_gpu_the_remedy_goes_on_to_what_the_host_can_hold() -> None:
    plan = quickstart(prompts_per_step=16)
    plan = dataclasses.replace(plan, recipe=plan.recipe.replace(device="cuda"))
    model = without_memory(LlamaConfig(**{**CONFIG.to_dict(), "hidden_size": 512, "vocab_size": 30_000}))
    host = {"learner": plan.recipe.learner.replace(recompute=True, moments="host")}
    rows = plan.recipe.engine.replace(max_rows=32)
    lighter = dataclasses.replace(plan, recipe=plan.recipe.replace(**host, engine=rows))
    enough = memory_of(lighter, model, 20, 0, 1 << 40).needed
    words = r'with learner.recompute = true and engine.max_rows = 32 and learner.moments = "host" it is '
    with pytest.raises(UsageError, match=words):
        memory_of(plan, model, 20, 0, int(enough / USABLE) + 1)


def test_a_model_that_cannot_fit_is_refused_before_it_is_loaded(small, tmp_path: Path) -> None:
    """Its file is a hole as large as its weights would be: read, it would be refused for another reason."""
    folder = tmp_path / "large"
    TinySpec().build("".join(map(chr, range(32, 127))), folder, 0)
    large = {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 16, "num_attention_heads": 128}
    LlamaConfig(**{**CONFIG.to_dict(), **large, "num_key_value_heads": 8}).save_pretrained(folder)
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(1 << 37)
    changes = small(name="large", model=str(folder), warm_start__steps=0)
    with pytest.raises(UsageError, match=r"memory about [\d.]+ [GT]iB at most, while .*: more than is free; take a"):
        groupwise.train("quickstart", changes)
    assert "large" not in os.listdir(changes["runs"])


def test_ranks_share_one_machine_and_where_they_do_not_fit_one_process_may() -> None:
    model, own = without_memory(CONFIG), {"prompts_per_step": 16, "engine__max_rows": 32}
    one, four = (quickstart(learner__ranks=ranks, **own) for ranks in (1, 4))
    enough = memory_of(four, model, 20, HELD, 1 << 40)
    assert enough.parts["other ranks while updating"] > 3 * HELD
    free = int(memory_of(one, model, 20, HELD, 1 << 40).needed / USABLE) + 1
    assert free < enough.needed
    with pytest.raises(UsageError, match=r"other ranks while .*: more than is free; with learner.ranks = 1 it is "):
        memory_of(four, model, 20, HELD, free)


@pytest.mark.parametrize("updates", [1, 2])
def test_a_step_in_which_nothing_can_train_runs_one_row_of_the_first_update_and_says_so(
    updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.py"  # alone in its file, as who scores imports what stands beside it
    own.write_text("def same(sample, completion):\n    return 0.5\n")
    changes = tiny_run(tmp_path, updates_per_batch=updates, algorithm__kl__beta=0.0, evaluation__problems=1)
    changes["rewards.same.use"] = f"{own}:same"
    rows, real = [], Learner._forward

    def counted(learner: Learner, micro: Any, *given: Any, **named: Any) -> Any:
        rows.append(len(micro.index))
        return real(learner, micro, *given, **named)

    monkeypatch.setattr(Learner, "_forward", counted)
    learned = Learner.update

    def update(learner: Learner, *given: Any) -> Any:
        rows.clear()
        done = learned(learner, *given)
        ran.append(list(rows))
        return done

    ran: list[list[int]] = []
    monkeypatch.setattr(Learner, "update", update)
    run = groupwise.train("quickstart", changes)
    assert ran == [[1]] + [[]] * (2 * updates - 1)
    for row in step_rows(run.folder):
        assert (row["gradient_norm"], row["loss"], row["updates"]) == (0, 0, updates)
        assert row["groups_signal_share"] == 0
        assert row["share_passed"] is None
        assert "entropy_mean" not in row
        verdicts = {name: check["verdict"] for name, check in row["checks"].items()}
        assert verdicts[LIVE_IS_OLD.name] == "not measured"
        assert verdicts[LEARNER_IS_ENGINE.name] == ("not measured" if updates == 1 else "pass")


def test_how_often_the_probe_is_asked_changes_nothing_but_what_it_says(tmp_path: Path) -> None:
    found = {}
    for every in (1, 3):
        changes = tiny_run(tmp_path, steps=7, name=f"probe-{every}", checks__probe_every=every)
        found[every] = groupwise.train("quickstart", changes).folder
    asked = {
        every: [row["step"] for row in step_rows(folder) if row["checks"][ENGINE_IS_LOADED.name]["verdict"] == "pass"]
        for every, folder in found.items()
    }
    assert asked == {1: [1, 2, 3, 4, 5, 6, 7], 3: [1, 2, 3, 4, 6]}
    one, other = found[1], found[3]
    assert (one / "rollouts.jsonl").read_bytes() == (other / "rollouts.jsonl").read_bytes()
    assert {name: w.tolist() for name, w in weights(one).items()} == {n: w.tolist() for n, w in weights(other).items()}

    def numbers(row: dict[str, Any]) -> dict[str, Any]:
        checks = {name: check for name, check in row["checks"].items() if name != ENGINE_IS_LOADED.name}
        return {**row, "checks": checks, "seconds": None}

    assert [numbers(row) for row in step_rows(one)] == [numbers(row) for row in step_rows(other)]


@pytest.mark.slow
def test_thirty_runs_in_one_process_hold_no_more_than_one(tmp_path: Path) -> None:
    """`groupwise.train` with a warm start and evaluations; what one run leaves is let go by the next."""
    changes = {**SMALL, "steps": 2, "runs": str(tmp_path), "journal.report": True}
    held = []
    for _ in range(30):
        assert groupwise.train("quickstart", changes).finished
        gc.collect()
        give_back()
        held.append(held_memory("cpu") / 2**20)
    print(f"MiB after each of 30 runs: {' '.join(f'{each:.0f}' for each in held)}")
    assert held[-1] - held[0] < 100


BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


@pytest.fixture
def all_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(max(2, cores()))
    yield max(2, cores())
    torch.set_num_threads(before)


@pytest.fixture
def busy():
    """Every core of this process has work that is not its own, for as short as the test is."""
    workers = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores())]
    time.sleep(0.3)
    yield
    for worker in workers:
        worker.kill()
        worker.wait()


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="nothing says what others do")
def test_where_others_hold_the_cores_a_run_takes_what_is_free_and_says_so(all_cores, busy):
    recipe, notes = with_threads(load("quickstart"))
    assert isinstance(recipe.threads, int)
    assert recipe.threads < all_cores
    assert notes[0].startswith(f"threads      {recipe.threads} instead of {all_cores}: other work holds ")
    recipe, notes = with_threads(load("quickstart", {"threads": all_cores}))
    assert recipe.threads == all_cores
    assert notes[0].startswith(f"threads      {all_cores}, as the recipe says: other work holds ")


def test_a_resumed_run_has_the_threads_that_it_began_with(all_cores, small, monkeypatch):
    run = groupwise.train("quickstart", small(steps=1, threads=1))
    assert tomllib.loads((run.folder / "recipe.toml").read_text())["threads"] == 1
    assert torch.get_num_threads() == all_cores, "the caller has its own back"
    taken: list[int] = []
    monkeypatch.setattr(
        "groupwise.commands.train.train.build", lambda *_: taken.append(torch.get_num_threads()) or _stop()
    )
    with pytest.raises(KeyboardInterrupt):
        resume(run.folder)
    assert taken == [1]


def _stop():
    raise KeyboardInterrupt


def test_a_number_of_the_recipe_is_taken_as_it_is(all_cores):
    recipe, _ = with_threads(load("quickstart", {"threads": 3}))
    with threads(recipe):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == all_cores
