"""`groupwise plan`: what a person reads before renting, of devices that are not here and models that are not loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from groupwise.commands.plan import ScalePlan, scale_plan
from groupwise.commands.plan_words import in_words
from groupwise.core.errors import UsageError
from groupwise.models.tiny import TinySpec
from groupwise.planning.traffic import NOTHING
from tests.commands.test_cli import call
from tests.moe_policy import save_moe

#: Sums, without a warm start, of fixed cuts: nothing is picked from what this machine has free.
SET: dict[str, Any] = {"warm_start.steps": 0, "learner.tokens_per_microbatch": 512}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration of 8 billion parameters with a tokenizer, and no weight."""
    folder = tmp_path_factory.mktemp("large") / "model"
    TinySpec().build("".join(map(chr, range(32, 127))), folder, 0)
    (folder / "model.safetensors").unlink()
    LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        eos_token_id=1,
    ).save_pretrained(folder)
    return folder


def planned(ranks: int, device: str = "h100", **changes: Any) -> ScalePlan:
    given = {**SET, **{key.replace("__", "."): value for key, value in changes.items()}}
    return scale_plan("quickstart", given, ranks, device)


def said(plan: ScalePlan) -> str:
    """Its words, wherever their lines end."""
    return " ".join(in_words(plan).split())


@pytest.mark.parametrize(("device", "ranks"), [("h100", 64), ("a100", 2), ("cpu", 2), ("cpu", 1)])
def test_quickstart_on_any_device(device: str, ranks: int, monkeypatch, capfd) -> None:
    words = ["plan", "quickstart", "--set", "warm_start.steps=0", "--ranks", str(ranks), "--device", device]
    code, out, err = call(monkeypatch, capfd, *words)
    assert (code, err) == (0, "")
    assert f"quickstart on {ranks} rank{'s' * (ranks > 1)}: " in out
    parts = ["memory, of ", "generating", "updating", "fits         yes", "seconds of a step", "in all", "left out"]
    parts += ["bytes of a step", "annotate", "from rank 0", "gets "] * (ranks > 1)
    for part in parts:
        assert part in out, part
    assert ("bytes of a step" in out) == (ranks > 1)
    assert (f"groupwise train says: learner.ranks = {ranks} with device: " in out) == (device != "cpu")
    assert max(map(len, out.splitlines())) <= 120


def test_a_model_of_which_there_is_a_configuration_alone(large: Path) -> None:
    """8 billion weights of 16 bytes are 128 GB over the ranks, and an engine's copy beside them on rank 0."""
    over = planned(8, model=str(large), engine__precision="bf16", learner__precision="bf16", learner__recompute=True)
    assert over.numbers == pytest.approx(8.03e9, rel=0.01)
    parts = over.memory.parts
    held = sum(parts[name] for name in ("weights", "moments", "gradients"))
    assert held == pytest.approx(16 * over.numbers / 8, rel=0.01)
    assert parts["engine's weights"] == 2 * over.numbers
    assert over.fits_from is not None
    assert 2 < over.fits_from <= 8
    fewer = planned(
        over.fits_from - 1,
        model=str(large),
        engine__precision="bf16",
        learner__precision="bf16",
        learner__recompute=True,
    )
    assert not fewer.memory.fits
    assert fewer.fits_from == over.fits_from
    assert f"no; on {over.fits_from} ranks it does" in said(fewer)


def test_what_rank_0_has_for_itself_is_not_dealt(large: Path) -> None:
    never = planned(64, "a100", model=str(large), reference__precision="fp32", engine__count=4, engine__process="child")
    assert never.fits_from is None
    assert "no, on no number of ranks: what rank 0 has for itself stays; engine.address puts" in said(never)


def test_an_engine_elsewhere_takes_nothing_here(large: Path) -> None:
    """Nothing listens at these addresses: a plan does not ask."""
    here, there = planned(8, model=str(large)), planned(8, model=str(large), engine__address="one:7001, two:7001")
    assert here.memory.parts["engine's weights"] == 4 * here.numbers
    assert there.memory.parts["engine's weights"] == 0
    assert there.phases[0].seconds < here.phases[0].seconds
    assert there.phases[-2].seconds > here.phases[-2].seconds, "weights go over the network"


def test_ranks_without_a_microbatch_are_said() -> None:
    words = said(planned(64))
    assert " of 64 ranks have none and wait; learner.tokens_per_microbatch = " in words
    assert " for each update, of at most 512 tokens, " in said(planned(2))


def test_adapters_a_critic_and_a_reference_are_counted() -> None:
    plain = planned(4)
    adapted = planned(4, adapter__rank=2)
    assert adapted.memory.parts["moments"] < plain.memory.parts["moments"] / 4
    assert "adapters of rank 2 train" in said(adapted)
    assert adapted.traffic["update"].scattered < plain.traffic["update"].scattered / 4
    ppo = planned(4, algorithm={"name": "ppo"}, passes_per_batch=2)
    assert set(ppo.traffic) - set(plain.traffic) == {"values", "update the critic"}
    assert [p.name for p in ppo.phases][2:5] == ["values", "update", "update the critic"]
    assert ppo.memory.parts["critic"] > 0
    assert "beside it a critic" in said(ppo)


def test_experts_are_read_and_gathered_whole_and_run_in_part(tmp_path: Path) -> None:
    model = str(save_moe(tmp_path / "experts"))
    over = planned(2, model=model, routing__replay="engine")
    assert over.work.experts
    assert over.work.chosen < 1
    assert "of which a token goes through" in said(over)
    assert over.traffic["annotate"].joined > planned(2, model=model).traffic["annotate"].joined
    many = planned(64, model=model)
    assert "as if" in said(many), "a stack of few experts is filled up"


def test_a_step_of_one_rank_passes_nothing() -> None:
    alone = planned(1)
    assert not alone.traffic
    assert all(phase.passing == 0 for phase in alone.phases)
    assert alone.passes == NOTHING


def test_seconds_fall_with_ranks_until_microbatches_run_out() -> None:
    """Of passes alone: rank 0 samples by itself."""
    cuts = {"learner__tokens_per_microbatch": 64}
    updates = [next(p for p in planned(n, **cuts).phases if p.name == "update").computing for n in (1, 2, 4)]
    assert updates[0] > updates[1] > updates[2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device", "h10"], "--device h10: did you mean 'h100'? known: cpu, a100, h100, h200, b200"),
        (["--set", "model=nobody/nothing"], "model = 'nobody/nothing': no such folder, and no model of that id can"),
        (["--set", "stps=3"], "stps: there is no such key; did you mean 'steps'?"),
        (["--ranks", "0"], "Invalid value for '--ranks': "),
        (["--set", "sampling.max_new_tokens=300"], "that is beyond the model's 256 positions"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], told: str, monkeypatch, capfd) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = call(monkeypatch, capfd, "plan", "quickstart", "--set", "warm_start.steps=0", *words)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_a_folder_without_a_model_is_one_line(tmp_path: Path, large: Path) -> None:
    shutil.copytree(large, tmp_path / "bare")
    (tmp_path / "bare" / "config.json").unlink()
    with pytest.raises(UsageError, match=r"bare': no config.json; expected a Hugging Face model folder$"):
        planned(2, model=str(tmp_path / "bare"))


def test_the_plan_is_of_the_recipes_own_ranks_unless_others_are_given() -> None:
    assert scale_plan("quickstart", {**SET, "learner.ranks": 3}, None, "cpu").ranks == 3
    assert scale_plan("quickstart", {**SET, "learner.ranks": 3}, 2, "cpu").shape.ranks == 2
