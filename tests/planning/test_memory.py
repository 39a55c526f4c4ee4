"""The plan of a run's memory: the largest phase, what is picked where there is less room, and what cannot fit."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from groupwise.engines.kinds import VLLM
from groupwise.models.adapters.settings import adapted_weights, adapter_size
from groupwise.planning import parts
from groupwise.planning.activations import weight_bytes, with_value_head, without_memory
from groupwise.planning.memory import ACTIVATIONS_ON_CPU, OTHER_RANKS, TOKENS_ON_CPU
from groupwise.planning.parts import LATER, LIBRARIES
from groupwise.planning.run_shape import microbatch_rows
from groupwise.training.critic import CriticSettings
from tests.planning.made import CUT, HELD, MODEL, RANK_4, ROOM, SHAPE, WEIGHTS, llama, planned

PLAIN = planned()
#: Bytes of the numbers of a token in keys and values of two layers, and of a critic: a head of one number.
TOKEN, VALUES = 2 * 2 * 64 * 4, WEIGHTS - 4 * 5000 * 64 + 4 * 65


def test_the_peak_is_that_of_the_largest_phase_not_the_sum_of_everything():
    assert PLAIN.peak == max(PLAIN.bytes_of(phase) for phase in PLAIN.phases)
    assert PLAIN.phase == "updating"
    assert PLAIN.peak < sum(PLAIN.parts.values())
    of_weights = ("weights", "moments", "engine's weights", "gradients")
    stands = ("process", *of_weights, "cache between steps", "batch", "freed blocks", "activations")
    assert PLAIN.peak == sum(PLAIN.parts[part] for part in stands)
    assert PLAIN.parts["process"] == HELD + LATER
    assert [PLAIN.parts[part] / WEIGHTS for part in of_weights] == [1, 2, 1, 1]


@pytest.mark.parametrize("ahead", [False, True])
def test_every_part_is_held_in_a_phase(ahead: bool):
    """A part that the table forgets would be counted nowhere."""
    memory = planned(critic=CriticSettings(), ahead=ahead, ranks=2, reward_model=True)
    table = parts.held_in(ahead)
    own = {part for part in memory.parts if not part.startswith(OTHER_RANKS)}
    assert own - {"columns"} == set(table), "columns are those of a batch on another rank"
    assert all(phases and phases <= parts.EVERY and theirs <= parts.EVERY for phases, theirs in table.values())


def test_on_a_cpu_no_more_activations_than_pay():
    """Of SmolLM2's shape, eight prompts and 64 completions are two microbatches; of a small model they are one."""
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    config = llama(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, **heads)
    shape = {"prompts": 8, "minibatches": 1, "prompt": 48, "completion": 32}
    memory = planned(model=without_memory(config), **shape)
    assert memory.cuts.learner == TOKENS_ON_CPU // 2
    assert memory.parts["activations"] <= ACTIVATIONS_ON_CPU
    assert planned(**shape).cuts.learner == TOKENS_ON_CPU


#: What a run has more, the parts that this sizes, and what the peak grows by.
MORE: list[tuple[dict[str, Any], dict[str, float], float | None]] = [
    ({"reference": 4}, {"reference": WEIGHTS}, WEIGHTS),
    ({"reference": 2}, {"reference": WEIGHTS / 2}, WEIGHTS / 2),
    ({"outside": True}, {"engine's process": HELD, "shared weights": WEIGHTS}, HELD + WEIGHTS),
    (
        {"outside": True, "elsewhere": True},
        dict.fromkeys(("engine's process", "engine's weights", "engine's cache", "cache between steps", "drawing"), 0)
        | {"shared weights": WEIGHTS},
        None,
    ),
    (
        {"ahead": True},
        {},
        PLAIN.parts["engine's cache"] + PLAIN.parts["drawing"] - PLAIN.parts["cache between steps"],
    ),
    ({"held": 128}, {"held turns": 128 * 50 * TOKEN}, 0),
    (
        {"engine": 2},
        {part: PLAIN.parts[part] / 2 for part in ("engine's weights", "engine's cache")},
        None,
    ),
    ({"critic": CriticSettings()}, {"critic": 3 * VALUES, "critic's gradients": VALUES}, None),
]


@pytest.mark.parametrize(("change", "sizes", "grows"), MORE)
def test_what_a_run_has_more_has_its_size(change: dict[str, Any], sizes: dict[str, float], grows: float | None):
    more = planned(**change)
    assert {part: more.parts[part] for part in sizes} == sizes
    if grows is not None:
        assert more.phase == PLAIN.phase == "updating"
        assert more.peak - PLAIN.peak == grows


def test_moments_on_the_host_leave_the_device_those_of_one_weight_while_it_is_updated():
    """The head has 5,000 x 64 numbers, more than any other weight, and 8 bytes each."""
    beside, host, bits = (planned(device="cuda", moments=kind, **CUT) for kind in ("device", "host", "8bit"))
    assert [memory.parts["moments"] / WEIGHTS for memory in (beside, host)] == [2, 0]
    assert host.parts["activations"] == max(beside.parts["activations"], 8 * 5000 * 64)
    wide = 8 * 5000 * 64  # the embedding's stay in float32, as do those of the norms
    narrow = 2 * (WEIGHTS / 4 - 5000 * 64) * (1 + 4 / 256)
    assert bits.parts["moments"] == pytest.approx(wide + narrow, rel=0.01)


OFFLOADED = {"reference": 4, "reward_model": True, "critic": CriticSettings(), "device": "cuda", **CUT}


def test_models_on_the_host_are_on_the_device_in_the_phases_that_use_them_alone():
    beside = planned(**OFFLOADED)
    away = planned(**OFFLOADED, offloaded=frozenset({"reference", "critic", "reward model"}))
    sizes = {name: beside.parts[name] for name in ("reference", "reward model")}
    sizes["critic"] = VALUES
    saved = {phase: beside.bytes_of(phase) - away.bytes_of(phase) for phase in beside.phases}
    every = sum(sizes.values())
    assert saved["generating"] == saved["updating"] == saved["loading weights"] == every
    assert saved["scoring"] == every - sizes["reward model"]
    assert saved["updating the critic"] == every - sizes["critic"]
    assert away.bytes_of("annotating") == (
        sum(away.parts[part] for part in ("process", "weights", "moments", "critic", "engine's weights"))
        + sum(away.parts[part] for part in ("cache between steps", "annotated rows"))
        + max(sizes["reference"], sizes["critic"])
    )
    assert "annotating" not in beside.phases


def test_what_is_held_between_turns_is_given_up_with_the_last():
    turns = planned(held=128)
    assert turns.bytes_of("generating") - PLAIN.bytes_of("generating") == turns.parts["held turns"]
    assert turns.bytes_of("updating") == PLAIN.bytes_of("updating")


def test_a_reward_model_costs_its_weights_and_what_a_batch_of_rows_takes():
    more, own = planned(reward_model=True), weight_bytes(with_value_head(MODEL, bias=False))
    assert more.parts["reward model"] == own == WEIGHTS - 4 * (5000 - 1) * 64, "a head of one number, without a bias"
    assert more.bytes_of("updating") - PLAIN.bytes_of("updating") >= own
    assert more.parts["scored rows"] > 0
    assert more.bytes_of("scoring") == more.bytes_of("loading weights") + more.parts["scored rows"]


def test_other_processes_have_libraries_and_nothing_of_what_this_one_did_before():
    long_lived = planned(process=8 << 30, ranks=2, outside=True)
    assert long_lived.follower is not None
    assert long_lived.parts["process"] > 8 << 30
    assert long_lived.parts["engine's process"] == long_lived.follower.parts["process"] == LIBRARIES


def test_rank_0_has_a_whole_policy_where_one_in_shards_in_bfloat16_is_asked_in_float32():
    half = {"ranks": 2, "precision": "bf16"}
    without: list[dict[str, Any]] = [{"ranks": 2}, {"precision": "bf16"}, {**half, "engine": 2}]
    assert [planned(**keys).parts["whole copy"] for keys in (half, *without)] == [WEIGHTS, 0, 0, 0]
    phases = planned(**half).phases
    assert all("whole copy" in phases[phase] for phase in ("generating", "updating", "saving"))


def test_adapters_alone_have_gradients_and_moments_and_are_merged_on_their_way_to_the_engine():
    memory, weights = planned(adapter=RANK_4), adapted_weights(MODEL, RANK_4)
    adapters = 4 * adapter_size(weights, rank=4)
    assert memory.parts["weights"] == WEIGHTS + adapters
    assert (memory.parts["moments"], memory.parts["gradients"]) == (2 * adapters, adapters)
    assert memory.parts["merged weights"] == 2 * 4 * max(weight.numel() for weight in weights.values())
    assert "merged weights" in memory.phases["loading weights"]
    assert all(parameter.requires_grad for parameter in MODEL.parameters()), "the model stays as it is"


def test_less_room_cuts_an_update_into_smaller_pieces_until_nothing_fits():
    tight = planned(free=int((PLAIN.needed - 1) / 0.9))
    assert tight.fits
    assert tight.peak < PLAIN.peak
    assert tight.cuts != PLAIN.cuts
    none = planned(free=10**6)
    assert not none.fits
    assert none.peak <= tight.peak
    assert none.cuts.learner < PLAIN.cuts.learner


def test_what_the_settings_say_is_not_picked():
    keys = {"tokens_per_microbatch": 777, "chunk_logits": 12345, "held_logits": 0}
    for free in (ROOM, 10**6):
        cuts = planned(free, critic=CriticSettings(tokens_per_microbatch=99), **keys).cuts
        assert (cuts.learner, cuts.chunk_logits, cuts.held_logits, cuts.critic) == (777, 12345, 0, 99)


def test_a_critic_has_a_phase_of_its_own_and_holds_what_the_policy_recomputes():
    plain, again = (planned(critic=CriticSettings(), recompute=recompute) for recompute in (False, True))
    assert again.parts["activations"] < plain.parts["activations"]
    assert again.parts["critic's activations"] == plain.parts["critic's activations"] > 0
    assert plain.cuts.critic == plain.cuts.learner
    assert "updating the critic" in plain.phases.keys() - PLAIN.phases.keys()


def test_fewer_rows_take_less():
    fewer = planned(rows=8)
    assert all(fewer.parts[part] < PLAIN.parts[part] for part in ("engine's cache", "drawing"))


def test_microbatches_are_those_of_the_learner():
    rows = microbatch_rows(SHAPE, 16384, line=True)
    assert [each.completions for each in rows] == [(8,) * 8]
    assert rows[0].tokens(packs=True) == 8 * (30 + 8 * 20)
    assert rows[0].tokens(packs=False) == 64 * 50
    assert [each.completions for each in microbatch_rows(SHAPE, 250, line=True)][:2] == [(8, 2), (6, 4)]
    assert [each.completions for each in microbatch_rows(SHAPE, 250, line=False)][:2] == [(5,), (5,)]


def test_an_enormous_run_is_planned_at_once():
    memory = planned(prompts=2**20, samples=2**16, completion=10**6, rows=2**36)
    assert not memory.fits
    assert memory.phase == "generating"


def test_what_an_update_frees_stays_with_the_process_unless_it_is_given_back():
    """Half of the activations, whatever comes next; none of a model whose blocks go back."""
    assert PLAIN.parts["freed blocks"] == PLAIN.parts["activations"] // 2
    assert all("freed blocks" in names for names in PLAIN.phases.values())
    with mock.patch.object(parts, "GIVEN_BACK", 0):
        assert planned().parts["freed blocks"] == 0


@pytest.mark.parametrize(
    ("run", "gone"),
    [
        ({"kind": VLLM, "outside": True, "device": "cuda"}, {"engine's weights", "cache between steps"}),
        ({"outside": True, "device": "cuda"}, set()),
        ({"outside": True, "device": "cuda", "sleep": True}, {"cache between steps"}),
        ({"device": "cuda"}, set()),
        ({"kind": VLLM, "outside": True, "device": "cuda", "ahead": True}, set()),
        ({"kind": VLLM, "outside": True, "device": "cuda", "elsewhere": True}, set()),
        ({"kind": VLLM, "outside": True, "device": "cuda", "sleep": False}, set()),
        ({"kind": VLLM, "outside": True}, set()),
        ({"sleep": True}, {"cache between steps"}),
    ],
    ids=str.split("vllm child asleep inside ahead elsewhere awake cpu told"),
)
def test_an_engine_that_sleeps_holds_nothing_of_what_it_gives_back_while_the_learner_trains(
    run: dict[str, Any], gone: set[str]
) -> None:
    """An engine in a child on the run's GPU does by itself, and no other."""
    memory, awake = planned(max_rows=8, **run), planned(max_rows=8, **{**run, "sleep": False})
    for phase, parts_of_it in awake.phases.items():
        missing = set(parts_of_it) - set(memory.phases[phase])
        assert missing == (gone if phase == "updating" else set())
    assert awake.bytes_of("updating") - memory.bytes_of("updating") == sum(awake.parts[part] for part in gone)


def test_weights_that_children_read_on_the_gpu_are_counted_there() -> None:
    assert planned(outside=True, device="cuda").parts["shared weights"] == WEIGHTS
    assert planned(outside=True, elsewhere=True, device="cuda").parts["shared weights"] == 0
    assert planned(device="cuda").parts["shared weights"] == 0
