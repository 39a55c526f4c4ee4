"""The plan of a run's memory: the largest phase, what is picked where there is less room, and what cannot fit."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import pytest
from transformers import LlamaConfig

from groupwise.models.adapters.settings import AdapterSettings, adapted_weights, adapter_size
from groupwise.planning import parts
from groupwise.planning.activations import weight_bytes, with_value_head, without_memory
from groupwise.planning.memory import ACTIVATIONS_ON_CPU, OTHER_RANKS, TOKENS_ON_CPU, MemoryPlan, plan
from groupwise.planning.parts import LATER, LIBRARIES, planned_run
from groupwise.planning.run_shape import RunShape, microbatch_rows
from groupwise.training.critic import CriticSettings
from groupwise.training.learner import LearnerSettings

SHAPE = RunShape(
    prompts=16,
    samples=8,
    minibatches=2,
    prompt=30,
    completion=20,
    rows=128,
    truncates=False,
    adjusts=False,
    engine=4,
    reference=0,
    reward_model=False,
)
MODEL = without_memory(
    LlamaConfig(
        vocab_size=5000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
)
HELD, ROOM = 10**8, 1 << 40
RANK_4 = AdapterSettings(rank=4)


def planned(
    free: int = ROOM,
    critic: CriticSettings | None = None,
    shape: RunShape = SHAPE,
    adapter: AdapterSettings = AdapterSettings(),
    **keys: Any,
) -> MemoryPlan:
    return plan(planned_run(MODEL, shape, LearnerSettings(**keys), critic, adapter, "cpu"), HELD, free)


def test_the_peak_is_that_of_the_largest_phase_not_the_sum_of_everything():
    memory = planned()
    assert memory.peak == max(memory.bytes_of(phase) for phase in memory.phases)
    assert memory.phase == "updating"
    assert memory.peak < sum(memory.parts.values())
    weights = weight_bytes(MODEL)
    of_weights = ("weights", "moments", "engine's weights", "gradients")
    stands = ("process", *of_weights, "cache between steps", "batch", "freed blocks", "activations")
    assert memory.peak == sum(memory.parts[part] for part in stands)
    assert memory.parts["process"] == HELD + LATER
    assert [memory.parts[part] / weights for part in of_weights] == [1, 2, 1, 1]


@pytest.mark.parametrize("ahead", [False, True])
def test_every_part_is_held_in_a_phase(ahead: bool):
    """A part that the table forgets would be counted nowhere."""
    memory = planned(critic=CriticSettings(), shape=dataclasses.replace(SHAPE, ahead=ahead, ranks=2, reward_model=True))
    table = parts.held_in(ahead)
    own = {part for part in memory.parts if not part.startswith(OTHER_RANKS)}
    assert own - {"columns"} == set(table), "columns are those of a batch on another rank"
    assert all(phases and phases <= parts.EVERY and theirs <= parts.EVERY for phases, theirs in table.values())


def test_on_a_cpu_no_more_activations_than_pay():
    """Of SmolLM2's shape, eight prompts and 64 completions are two microbatches; of a small model they are one."""
    shape = dataclasses.replace(SHAPE, prompts=8, minibatches=1, prompt=48, completion=32)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    model = without_memory(config)
    memory = plan(planned_run(model, shape, LearnerSettings(), None, AdapterSettings(), "cpu"), HELD, ROOM)
    assert memory.cuts.learner == TOKENS_ON_CPU // 2
    assert memory.parts["activations"] <= ACTIVATIONS_ON_CPU
    assert planned(shape=shape).cuts.learner == TOKENS_ON_CPU


@pytest.mark.parametrize(
    ("change", "part", "share"),
    [
        ({"reference": 4}, "reference", 1),
        ({"reference": 2}, "reference", 0.5),
    ],
)
def test_a_frozen_copy_costs_its_weights(change: dict[str, Any], part: str, share: float):
    more = planned(shape=dataclasses.replace(SHAPE, **change))
    assert more.parts[part] == share * weight_bytes(MODEL)
    assert more.peak - planned().peak == share * weight_bytes(MODEL)


def test_a_reward_model_costs_its_weights_and_what_a_batch_of_rows_takes():
    more = planned(shape=dataclasses.replace(SHAPE, reward_model=True))
    own = weight_bytes(with_value_head(MODEL, bias=False))
    assert more.parts["reward model"] == own
    assert own == weight_bytes(MODEL) - 4 * (5000 - 1) * 64, "a head of one number, without a bias"
    assert more.bytes_of("updating") - planned().bytes_of("updating") >= own
    assert more.parts["scored rows"] > 0
    assert more.bytes_of("scoring") == more.bytes_of("loading weights") + more.parts["scored rows"]


def test_an_engine_in_a_child_costs_its_libraries_and_the_weights_on_their_way():
    more = planned(shape=dataclasses.replace(SHAPE, outside=True))
    assert (more.parts["engine's process"], more.parts["shared weights"]) == (HELD, weight_bytes(MODEL))
    assert more.peak - planned().peak == HELD + weight_bytes(MODEL)


def test_an_engine_on_another_machine_costs_the_weights_on_their_way_alone():
    more = planned(shape=dataclasses.replace(SHAPE, outside=True, elsewhere=True))
    names = ("engine's process", "engine's weights", "engine's cache", "cache between steps", "drawing")
    assert [more.parts[part] for part in names] == [0] * 5
    assert more.parts["shared weights"] == weight_bytes(MODEL)


def test_what_samples_ahead_is_held_while_training():
    sizes, more = planned().parts, planned(shape=dataclasses.replace(SHAPE, ahead=True))
    assert more.phase == planned().phase == "updating"
    assert more.peak - planned().peak == sizes["engine's cache"] + sizes["drawing"] - sizes["cache between steps"]


def test_what_is_held_between_turns_is_a_cache_of_whole_episodes_while_sampling():
    plain, turns = planned(), planned(shape=dataclasses.replace(SHAPE, held=128))
    numbers = 2 * 2 * 64  # of a token: keys and values of two layers
    assert turns.parts["held turns"] == 128 * 50 * numbers * 4
    assert plain.parts["held turns"] == 0
    assert turns.bytes_of("generating") - plain.bytes_of("generating") == turns.parts["held turns"]
    assert turns.bytes_of("updating") == plain.bytes_of("updating"), "given up with the last turn"


def test_an_engine_of_half_the_bytes_has_half_the_weights_and_half_the_cache():
    half, full = planned(shape=dataclasses.replace(SHAPE, engine=2)).parts, planned().parts
    assert all(half[part] * 2 == full[part] for part in ("engine's weights", "engine's cache"))


def test_other_processes_have_libraries_and_nothing_of_what_this_one_did_before():
    shape = dataclasses.replace(SHAPE, ranks=2, outside=True)
    long_lived = plan(planned_run(MODEL, shape, LearnerSettings(), None, AdapterSettings(), "cpu"), 8 << 30, ROOM)
    assert long_lived.follower is not None
    assert long_lived.parts["process"] > 8 << 30
    assert long_lived.parts["engine's process"] == long_lived.follower.parts["process"] == LIBRARIES


def test_rank_0_has_a_whole_policy_where_one_in_shards_in_bfloat16_is_asked_in_float32():
    over = dataclasses.replace(SHAPE, ranks=2)
    policy = 4 * sum(weight.numel() for weight in MODEL.parameters())
    copies = [
        planned(shape=shape, precision=precision).parts["whole copy"]
        for shape, precision in (
            (over, "bf16"),
            (over, "fp32"),
            (SHAPE, "bf16"),
            (dataclasses.replace(over, engine=2), "bf16"),
        )
    ]
    assert copies == [policy, 0, 0, 0]
    phases = planned(shape=over, precision="bf16").phases
    assert all("whole copy" in phases[phase] for phase in ("generating", "updating", "saving"))


def test_adapters_alone_have_gradients_and_moments_and_are_merged_on_their_way_to_the_engine():
    memory, weights = planned(adapter=RANK_4), adapted_weights(MODEL, RANK_4)
    adapters = 4 * adapter_size(weights, rank=4)
    assert memory.parts["weights"] == weight_bytes(MODEL) + adapters
    assert (memory.parts["moments"], memory.parts["gradients"]) == (2 * adapters, adapters)
    assert memory.parts["merged weights"] == 4 * sum(weight.numel() for weight in weights.values())
    assert "merged weights" in memory.phases["loading weights"]
    assert all(parameter.requires_grad for parameter in MODEL.parameters()), "the model stays as it is"


def test_less_room_cuts_an_update_into_smaller_pieces_until_nothing_fits():
    roomy = planned()
    tight = planned(free=int((roomy.needed - 1) / 0.9))
    assert tight.fits
    assert tight.peak < roomy.peak
    assert tight.cuts != roomy.cuts
    none = planned(free=10**6)
    assert not none.fits
    assert none.peak <= tight.peak
    assert none.cuts.learner < roomy.cuts.learner


def test_what_the_settings_say_is_not_picked():
    keys = {"tokens_per_microbatch": 777, "chunk_logits": 12345, "held_logits": 0}
    for free in (1 << 40, 10**6):
        cuts = planned(free, critic=CriticSettings(tokens_per_microbatch=99), **keys).cuts
        assert (cuts.learner, cuts.chunk_logits, cuts.held_logits, cuts.critic) == (777, 12345, 0, 99)


def test_a_critic_has_moments_gradients_and_a_phase_of_its_own():
    memory = planned(critic=CriticSettings())
    value_weights = weight_bytes(MODEL) - 4 * 5000 * 64 + 4 * 65  # a head of one number
    assert memory.parts["critic"] == 3 * value_weights
    assert memory.parts["critic's gradients"] == value_weights
    assert memory.parts["critic's activations"] > 0
    assert memory.cuts.critic == memory.cuts.learner
    assert "updating the critic" not in planned().phases


def test_a_critic_holds_its_activations_where_the_policy_recomputes_them():
    plain, again = (planned(critic=CriticSettings(), recompute=recompute).parts for recompute in (False, True))
    assert again["activations"] < plain["activations"]
    assert again["critic's activations"] == plain["critic's activations"]


def test_recomputed_layers_and_fewer_rows_take_less():
    assert planned(recompute=True).parts["activations"] < planned().parts["activations"]
    fewer = planned(shape=dataclasses.replace(SHAPE, rows=8))
    assert fewer.parts["engine's cache"] < planned().parts["engine's cache"]
    assert fewer.parts["drawing"] < planned().parts["drawing"]


def test_microbatches_are_those_of_the_learner():
    rows = microbatch_rows(SHAPE, 16384, line=True)
    assert [each.completions for each in rows] == [(8,) * 8]
    assert rows[0].tokens(in_line=True) == 8 * (30 + 8 * 20)
    assert rows[0].tokens(in_line=False) == 64 * 50
    assert [each.completions for each in microbatch_rows(SHAPE, 250, line=True)][:2] == [(8, 2), (6, 4)]
    assert [each.completions for each in microbatch_rows(SHAPE, 250, line=False)][:2] == [(5,), (5,)]


def test_an_enormous_run_is_planned_at_once():
    shape = dataclasses.replace(SHAPE, prompts=2**20, samples=2**16, completion=10**6, rows=2**36)
    memory = planned(shape=shape)
    assert not memory.fits
    assert memory.phase == "generating"


def test_what_an_update_frees_stays_with_the_process_unless_it_is_given_back():
    """Half of the activations, whatever comes next; none of a model whose blocks go back."""
    memory = planned()
    kept = memory.parts["freed blocks"]
    assert kept == memory.parts["activations"] // 2
    assert all("freed blocks" in names for names in memory.phases.values())
    with mock.patch.object(parts, "GIVEN_BACK", 0):
        assert planned().parts["freed blocks"] == 0
