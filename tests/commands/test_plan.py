"""`groupwise plan`: what a person reads before renting, of devices that are not here and models that are not loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks.architectures.build import small_config
from transformers import Lfm2Config, LlamaConfig

from groupwise.commands.plan import ScalePlan, in_words, scale_plan
from groupwise.core.errors import UsageError
from groupwise.models.tiny import TinySpec
from groupwise.planning.parts import WORKSPACES, engine_parts
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


def weights(plan: ScalePlan) -> int:
    """Of the policy."""
    return sum(p.numel() for p in plan.planned.base.parameters())


def said(plan: ScalePlan) -> str:
    """Its words, wherever their lines end."""
    return " ".join(in_words(plan).split())


def test_rows_of_a_policy_with_states_share_nothing_and_what_that_costs_is_said(large: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(large, tmp_path / "model")
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    Lfm2Config(
        **sizes, num_attention_heads=4, num_key_value_heads=4, layer_types=["conv", "full_attention"], eos_token_id=1
    ).save_pretrained(folder)
    plan, apart = (planned(1, model=str(folder), learner__shared_prefixes=shares) for shares in (True, False))
    shape = plan.shape
    times = shape.samples * (shape.prompt + shape.completion) / (shape.prompt + shape.samples * shape.completion)
    assert "layers with a state (conv) read all that stands before a token, so that rows cannot share" in said(plan)
    assert f"; up to {times:.1f} times the tokens" in said(plan)
    assert "layers with a state" not in said(apart)
    sizes_of = [[one.memory.own_bytes(phase) for phase in one.memory.phases] for one in (plan, apart)]
    assert sizes_of[0] == sizes_of[1]


def test_an_engine_without_a_cache_for_the_model_is_said_and_takes_longer(large: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(large, tmp_path / "model")
    plans = []
    for kind in ("chunked_attention", "full_attention"):
        small_config("llama4_text", layer_types=[kind] * 2, vocab_size=512).save_pretrained(folder)
        plans.append(planned(1, model=str(folder)))
    assert "engine every step runs whole texts, which is slow for long ones: its chunked_attention" in said(plans[0])
    assert "whole texts" not in said(plans[1])
    chunked, full = (plan.phases[0].work[0].operations for plan in plans)
    assert chunked > 5 * full


@pytest.mark.parametrize(("device", "ranks"), [("h100", 64), ("a100", 2), ("cpu", 2), ("cpu", 1)])
def test_quickstart_on_any_device(device: str, ranks: int, monkeypatch, capfd) -> None:
    words = ["plan", "quickstart", "--set", "warm_start.steps=0", "--ranks", str(ranks), "--device", device]
    code, out, err = call(monkeypatch, capfd, *words)
    assert (code, err) == (0, "")
    assert f"quickstart on {ranks} rank{'s' * (ranks > 1)}: " in out
    parts = ["memory, of ", "generating", "updating", "fits         yes", "a step, estimated", "in all", "left out"]
    for part in [*parts, "estimate     arithmetic, and no measurement: ", "constants "]:
        assert part in out, part
    assert "groupwise train says: " not in out
    assert ("not tried on several cards by us" in out) == (device != "cpu" and ranks > 1)
    assert max(map(len, out.splitlines())) <= 120


def test_a_model_of_which_there_is_a_configuration_alone(large: Path) -> None:
    """8 billion weights of 16 bytes are 128 GB over the ranks, and an engine's copy beside them on rank 0."""
    over = planned(8, model=str(large), engine__precision="bf16", learner__precision="bf16", learner__recompute=True)
    numbers = weights(over)
    assert numbers == pytest.approx(8.03e9, rel=0.01)
    parts = over.memory.parts
    held = sum(parts[name] for name in ("weights", "moments", "gradients"))
    assert held == pytest.approx(16 * numbers / 8, rel=0.01)
    assert parts["engine's weights"] == 2 * numbers
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


def test_a_configuration_without_a_tokenizer_is_planned_with_prompts_as_long_as_they_may_be(
    large: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((large / "config.json").read_bytes())
    over = planned(1, model=str(tmp_path), max_prompt_tokens=77)
    assert over.shape.prompt == 77
    assert weights(over) == pytest.approx(8.03e9, rel=0.01)
    with pytest.raises(UsageError, match="no tokenizer"):
        planned(1, model=str(tmp_path))


def test_what_is_refused_on_a_gpu_or_without_one_is_said_of_the_device_that_is_planned() -> None:
    here, there = (planned(1, device, learner__moments="host") for device in ("cpu", "h100"))
    assert here.refused.startswith("learner.moments = 'host' with device = 'cpu': ")
    assert (there.refused, there.memory.parts["moments"]) == ("", 0)


def test_what_rank_0_has_for_itself_is_not_dealt(large: Path) -> None:
    never = planned(
        64, "a100", model=str(large), reference__precision="fp32", engine__count=32, engine__process="child"
    )
    assert never.fits_from is None
    assert "no, on no number of ranks: what rank 0 has for itself stays; engine.address puts" in said(never)


def test_an_engine_elsewhere_takes_nothing_here(large: Path) -> None:
    """Nothing listens at these addresses: a plan does not ask."""
    here, there = planned(8, model=str(large)), planned(8, model=str(large), engine__address="one:7001, two:7001")
    assert here.memory.parts["engine's weights"] == 4 * weights(here)
    assert there.memory.parts["engine's weights"] == 0
    assert there.phases[0].seconds < here.phases[0].seconds
    assert there.phases[-1].seconds > here.phases[-1].seconds, "weights go over the network"


def test_ranks_without_a_microbatch_are_said() -> None:
    words = said(planned(64))
    assert " of 64 ranks have none and wait; learner.tokens_per_microbatch = " in words
    assert " for each update, of at most 512 tokens, " in said(planned(2))


def test_adapters_a_critic_and_a_reference_are_counted() -> None:
    plain = planned(4)
    adapted = planned(4, adapter__rank=2)
    assert adapted.memory.parts["moments"] < plain.memory.parts["moments"] / 4
    assert "adapters of rank 2 train" in said(adapted)
    ppo = planned(4, algorithm={"name": "ppo"}, passes_per_batch=2)
    more = [
        later.total("operations") - before.total("operations")
        for later, before in zip(ppo.phases, plain.phases, strict=True)
    ]
    assert more[0] == more[-1] == 0, "it samples and loads the same"
    assert min(more[1:-1]) > 0, "values are annotated, and the critic is updated"
    assert ppo.memory.parts["critic"] > 0
    assert "beside it a critic" in said(ppo)


def test_experts_are_run_in_part_and_gathered_whole(tmp_path: Path) -> None:
    model = str(save_moe(tmp_path / "experts"))
    over, dense = planned(2, model=model), planned(2)
    assert "of which a token goes through" in said(over)
    assert "of which a token goes through" not in said(dense)
    assert over.phases[-1].total("network") == pytest.approx(4 * weights(over) / 2, rel=0.01), (
        "all of them, from the other rank"
    )
    most = 6 * weights(over) * 64 * 8 * (8 + 32) / 2
    assert over.phases[-2].total("operations") < most / 2


def test_what_a_run_annotates_is_counted() -> None:
    """Of one update a batch the old policy is the one that trains; a reference is another pass, as the engine's are
    none.
    """
    passes = {
        1: {"updates_per_batch": 2, "algorithm": {"name": "dapo"}},
        0: {"updates_per_batch": 1, "algorithm": {"name": "dapo"}},
        2: {"updates_per_batch": 2, "algorithm": {"name": "grpo", "kl": {"beta": 0.1}}},
    }
    for count, changes in passes.items():
        assert planned(1, **changes).shape.annotated == count
    assert planned(1, **passes[1], logp_old="engine").shape.annotated == 0


@pytest.mark.parametrize(
    ("changes", "devices"),
    [
        ({}, 1),
        ({"engine__process": "child", "engine__count": 8}, 2),
        ({"engine__address": "one:7001, two:7001"}, 2),
        ({"engine__process": "child", "engine__count": 8, "placement__ray": "h:1"}, 1),
        ({"engine__process": "child", "engine__count": 8, "placement": {"ray": "h:1", "engine_gpus": 0.5}}, 4),
        ({"engine__process": "child", "engine__count": 2, "placement": {"ray": "h:1", "engine_gpus": 4.0}}, 2),
        ({"engine__process": "child", "engine__count": 8, "placement": {"ray": "local", "engine_gpus": 1.0}}, 1),
    ],
)
def test_a_plan_adds_no_device_that_is_not_there(changes: dict[str, Any], devices: int) -> None:
    """Engines share the ranks' own cards, unless they are at addresses or a Ray elsewhere gives them GPUs."""
    plan = planned(2, **changes)
    assert plan.shape.devices == devices
    if devices == 1:
        assert plan.phases[0].total("operations") == planned(2).phases[0].total("operations")


@pytest.mark.parametrize(
    ("engine", "ranks", "cards", "engines", "devices", "beside"),
    [
        ("local", 1, 1, 8, 1, (8, 0)),
        ("vllm", 1, 8, 7, 7, (0, 0)),
        ("local", 4, 8, 4, 4, (0, 0)),
        ("local", 8, 8, 1, 1, (1, 0)),
        ("vllm", 8, 8, 8, 8, (1, 1)),
        ("local", 64, 64, 16, 8, (2, 2)),
    ],
)
def test_engines_are_on_the_cards_of_the_runs_machine(
    engine: str, ranks: int, cards: int, engines: int, devices: int, beside: tuple[int, int]
) -> None:
    """On 1, 8 and 64 H100: one with a card of its own takes nothing of a rank's, and no more sample than are there."""
    changes = {"engine": {"name": engine, "process": "child", "count": engines}}
    plan = scale_plan("quickstart", {**SET, **changes}, ranks, "h100", cards)
    shape, of_one = plan.shape, engine_parts(plan.planned, plan.memory.cuts)
    assert (shape.devices, shape.beside) == (devices, beside)
    for part, size in of_one.items():
        assert plan.memory.parts[part] == beside[0] * size
        if plan.memory.follower is not None:
            assert plan.memory.follower.parts[part] == beside[1] * size
            held = {name for phase in plan.memory.follower.phases.values() for name in phase}
            assert (part in held) == (beside[1] > 0)
    alone = of_one["engine's weights"] + of_one["engine's cache"] + of_one["drawing"] + WORKSPACES
    assert plan.engine_card == (alone if cards > ranks else 0)
    words = said(plan)
    assert ("an engine's own card" in words) == (cards > ranks)
    assert "rests on the seconds of sampling: " in words
    assert "compared memory: five tiny models on one H200" in words
    assert words.count("not tried on several cards by us") == (cards > 1)


def test_what_the_seconds_of_sampling_rest_on_is_what_decides_them(large: Path) -> None:
    """A layer's launches where they take longest, the bandwidth where layers are recorded or rows are many."""
    few = {"model": str(large), "prompts_per_step": 2, "engine__name": "vllm", "engine__precision": "bf16"}
    read = "the seconds of sampling: reading weights, keys and values at 50% of 3,350 GB/s, a share that is assumed"
    assert read in said(planned(1, **few))
    assert "the seconds of sampling: 900 us a layer and token, measured once, on an H200" in said(planned(1))


def test_an_engine_beside_another_rank_sleeps_there_too() -> None:
    """As many engines as ranks: each card has as much in an update, but for what rank 0 alone has."""
    plan = planned(8, engine={"name": "vllm", "process": "child", "count": 8})
    memory, follower = plan.memory, plan.memory.follower
    assert follower is not None
    asleep = {"engine's weights", "engine's cache", "cache between steps"}
    for phases in (memory.phases, follower.phases):
        assert not asleep & set(phases["updating"])
        assert "engine's weights" in phases["generating"]
    assert follower.bytes_of("updating") <= memory.own_bytes("updating")


def test_fewer_cards_than_ranks_are_one_line() -> None:
    with pytest.raises(UsageError, match=r"^--cards 4: 8 ranks take a card each; give 8 or more, or fewer --ranks$"):
        scale_plan("quickstart", SET, 8, "h100", cards=4)


def test_seconds_fall_with_ranks_until_microbatches_run_out() -> None:
    """Of updates alone: rank 0 samples by itself."""
    cuts = {"learner__tokens_per_microbatch": 64}
    updates = [next(p for p in planned(n, **cuts).phases if p.name == "update").seconds for n in (1, 2, 4)]
    assert updates[0] > updates[1] > updates[2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--device", "h10"],
            "--device h10: did you mean 'h100'? known: cpu, a100, h100, h200, b200, or a file of constants",
        ),
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
