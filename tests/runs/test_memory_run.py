"""A run's memory: what is picked stays picked, and a run that cannot fit is refused while nothing of it is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from transformers import LlamaConfig

import groupwise
from groupwise.commands.build.machine import memory_of, picks, size_in_words, with_cuts
from groupwise.config import recipe
from groupwise.config.plan import Plan
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.models.tiny import TinySpec
from groupwise.planning.activations import without_memory
from groupwise.planning.memory import TOKENS_ON_CPU, USABLE

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
    assert f"{size_in_words(HELD)} are taken, {size_in_words(enough.needed - 1)} free; " in words
    assert 'more than is free; with learner.tokens_per_microbatch = "auto" it is ' in words
    assert "\n" not in words
    with pytest.raises(UsageError, match=r"take a smaller model or a machine with more memory: with .* it still is "):
        memory_of(plan, model, 20, HELD, 10**6)


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
