"""An estimate's laws: what doubles, what hides behind what, and what a weight, a token and an expert cost."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import LlamaConfig, Qwen3MoeConfig

from groupwise.core.errors import UsageError
from groupwise.models.adapters.lora import with_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.planning.activations import without_memory
from groupwise.planning.devices import device_of, known_devices
from groupwise.planning.step_time import (
    Sampling,
    forward_seconds,
    optimizer_seconds,
    passing,
    phase,
    sampling_seconds,
    tokens_of,
    training_seconds,
)
from groupwise.planning.traffic import Traffic
from groupwise.planning.work import Work, work_of
from tests.planning.test_run_shape import SHAPE

SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4}
MODEL = without_memory(LlamaConfig(vocab_size=300, intermediate_size=160, tie_word_embeddings=True, **SIZES))
LAYER = 4 * 64 * 64 + 3 * 64 * 160
H100 = device_of("h100", 1, 0)
PLAIN = dataclasses.replace(H100, call=0.0, layer=0.0)
WORK = Work(token=1000, trained=1000, pair=8, head=500, layers=2, dense=600, experts=0, chosen=0.0, cached=32)


def test_operations_of_a_dense_model() -> None:
    work = work_of(MODEL)
    assert (work.token, work.trained) == (2 * 3 * LAYER, 2 * 3 * LAYER)
    assert (work.head, work.pair) == (2 * 300 * 64, 4 * 64 * 3)
    assert work.dense == 3 * LAYER + 300 * 64
    assert work.cached == 3 * 2 * 64
    layers = 10 * work.token + 50 * work.pair
    assert work.forward(10, 50, 4) == layers + 4 * work.head
    assert work.training(10, 50, 4, recompute=False, trains_head=True) == 3 * (layers + 4 * work.head)
    again = work.training(10, 50, 4, recompute=True, trains_head=True)
    assert again == 4 * layers + 3 * 4 * work.head, "the layers go forward once more"


def test_a_token_goes_through_its_own_experts_and_a_step_reads_those_of_all_its_rows() -> None:
    config = Qwen3MoeConfig(
        vocab_size=300, moe_intermediate_size=48, num_experts=8, num_experts_per_tok=2, head_dim=16, **SIZES
    )
    work = work_of(without_memory(config))
    attention, router, experts = 4 * 64 * 64, 8 * 64, 8 * 3 * 64 * 48
    assert work.experts == 3 * experts
    assert work.token == 2 * 3 * (attention + router + experts // 4)
    assert work.read(1) == pytest.approx(work.dense + work.experts / 4)
    assert work.read(2) == pytest.approx(work.dense + work.experts * (1 - 0.75**2))
    assert work.read(1000) == pytest.approx(work.dense + work.experts)


def test_of_frozen_weights_nothing_but_what_came_in_has_a_gradient() -> None:
    adapted = work_of(with_adapters(MODEL, AdapterSettings(rank=4)))
    added = 3 * 4 * (8 * 64 + 3 * (64 + 160))
    assert adapted.token == 2 * (3 * LAYER + added)
    assert adapted.trained == 2 * added
    assert adapted.training(1, 0, 0, recompute=False, trains_head=False) == 2 * adapted.token + adapted.trained


def test_a_pass_is_its_operations_over_the_speed_that_is_reached() -> None:
    tokens = tokens_of(SHAPE, busiest=100, every=400, line=True)
    seconds, every = forward_seconds(WORK, tokens, 1, PLAIN, bf16=True)
    assert every == pytest.approx(4 * seconds * PLAIN.speed(True))
    assert forward_seconds(WORK, tokens, 1, PLAIN, bf16=False)[0] > seconds
    quicker = dataclasses.replace(PLAIN, bf16=2 * PLAIN.bf16)
    assert forward_seconds(WORK, tokens, 1, quicker, bf16=True)[0] == pytest.approx(seconds / 2)
    trained, _ = training_seconds(WORK, tokens, 1, PLAIN, True, recompute=False, trains_head=True)
    assert trained == pytest.approx(3 * seconds)


def test_each_layer_of_each_microbatch_takes_its_least() -> None:
    least = dataclasses.replace(PLAIN, layer=1.0)
    tokens = tokens_of(SHAPE, 100, 400, line=True)
    seconds = [forward_seconds(WORK, tokens, rounds, least, True)[0] for rounds in (1, 5)]
    assert seconds[1] - seconds[0] == pytest.approx(4 * 2)
    first, again = (
        training_seconds(WORK, tokens, 5, least, True, recompute=recompute, trains_head=True)[0]
        for recompute in (False, True)
    )
    assert first == pytest.approx(5 * 2 * 3, rel=1e-6)
    assert again == pytest.approx(5 * 2 * 4, rel=1e-6)


def test_pairs_of_a_line_are_those_of_rows_without_a_prompt_run_twice() -> None:
    line, rows = (tokens_of(SHAPE, 1, 1, line=line) for line in (True, False))
    one = dataclasses.replace(SHAPE, samples=1)
    assert tokens_of(one, 1, 1, line=True) == tokens_of(one, 1, 1, line=False)
    assert line.predicted == pytest.approx(20 / 27)
    assert rows.predicted == pytest.approx(5 / 12)
    assert line.pairs * 27 == pytest.approx(7 * 7 / 2 + 4 * (7 * 5 + 25 / 2))


def test_one_rank_passes_nothing_and_a_ring_moves_all_but_its_own_part() -> None:
    moved = Traffic(gathered=10**9, scattered=10**9, joined=10**9, calls=3)
    assert passing(moved, 1, PLAIN) == 0
    link = PLAIN.link(4)
    assert passing(moved, 4, PLAIN) == pytest.approx(0.75 * 4e9 / link)
    assert passing(moved, 4, dataclasses.replace(PLAIN, doubled=True)) == pytest.approx(0.75 * 5e9 / link)
    assert passing(moved, 4, H100) - passing(moved, 4, PLAIN) == pytest.approx(3 * H100.call)
    assert passing(Traffic(sent=10**9), 64, PLAIN) == pytest.approx(6e9 / PLAIN.host)


def test_more_ranks_than_a_machine_has_pass_over_the_network() -> None:
    assert PLAIN.link(8) == pytest.approx(0.7 * 450e9)
    assert PLAIN.link(9) == pytest.approx(0.7 * 8 * 50e9), "by all cards of a machine"
    assert dataclasses.replace(PLAIN, between=1e12).link(9) == PLAIN.link(8)


def test_weights_hide_behind_what_is_computed_and_columns_do_not() -> None:
    weights, columns = Traffic(gathered=10**9, calls=10), Traffic(joined=10**9, calls=1)
    alone = passing(weights, 8, PLAIN)
    assert phase("update", 2 * alone, weights, 8, PLAIN).seconds == pytest.approx(2 * alone)
    assert phase("update", alone / 2, weights, 8, PLAIN).seconds == pytest.approx(alone)
    in_turn = dataclasses.replace(PLAIN, overlaps=False)
    assert phase("update", alone, weights, 8, in_turn).seconds == pytest.approx(2 * alone)
    apart = passing(columns, 8, PLAIN)
    assert phase("update", 1.0, columns, 8, PLAIN).seconds == pytest.approx(1.0 + apart)


def test_sampling_reads_weights_and_cache_for_each_token() -> None:
    wide = dataclasses.replace(PLAIN, bf16=1e30, fp32=1e30, bandwidth=1000.0, sampling=0.5)
    how = Sampling(devices=1, engines=1, at_once=24, launches=False)
    bytes_read = 4 * (600 + 24 * (7 + 2.5) * 32)
    assert sampling_seconds(WORK, SHAPE, how, wide).seconds == pytest.approx(5 * bytes_read / 500)
    halves = dataclasses.replace(how, at_once=12)
    assert sampling_seconds(WORK, SHAPE, halves, wide).seconds == pytest.approx(
        2 * 5 * 4 * (600 + 12 * 9.5 * 32) / 500
    ), "two rounds read the weights twice"
    two = dataclasses.replace(how, devices=2)
    assert sampling_seconds(WORK, SHAPE, two, wide).seconds == pytest.approx(5 * 4 * (600 + 12 * 9.5 * 32) / 500)


def test_engines_that_share_a_device_share_its_memory_and_its_units() -> None:
    """Eight engines on one card add no card: never faster than one engine with all their places, and each reads the
    weights for itself; where the operations decide they take as long as one.
    """
    slow = dataclasses.replace(PLAIN, bf16=1e30, fp32=1e30, bandwidth=1000.0, sampling=0.5)
    quick = dataclasses.replace(PLAIN, bandwidth=1e30)
    for count, each in ((1, 24), (2, 12), (8, 3), (8, 24)):
        shared = Sampling(devices=1, engines=count, at_once=each, launches=False)
        one = Sampling(devices=1, engines=1, at_once=count * each, launches=False)
        of_all, of_one = (sampling_seconds(WORK, SHAPE, how, slow).seconds for how in (shared, one))
        assert of_all >= of_one
        rows = 24 / count
        read = 4 * (count * 600 + 24 * 9.5 * 32)
        assert of_all == pytest.approx(5 * -(-rows // each) * read / 500)
        assert sampling_seconds(WORK, SHAPE, shared, quick).seconds == pytest.approx(
            sampling_seconds(WORK, SHAPE, one, quick).seconds
        )


def test_eight_engines_on_one_card_take_turns_at_its_layers_too() -> None:
    """Where a layer's least time decides, more engines with as many places each win nothing."""
    slow = dataclasses.replace(PLAIN, bf16=1e30, fp32=1e30, bandwidth=1e30, layer=1e-3)
    one, eight = (Sampling(devices=1, engines=count, at_once=3, launches=True) for count in (1, 8))
    assert sampling_seconds(WORK, SHAPE, eight, slow).seconds == pytest.approx(
        sampling_seconds(WORK, SHAPE, one, slow).seconds
    )


def test_where_memory_is_quick_sampling_is_its_operations() -> None:
    quick = dataclasses.replace(PLAIN, bandwidth=1e30)
    how = Sampling(devices=1, engines=1, at_once=24, launches=False)
    one = sampling_seconds(WORK, SHAPE, how, quick)
    assert one.seconds == pytest.approx(one.operations / quick.speed(False))


def test_adamw_reads_four_numbers_and_writes_three() -> None:
    assert optimizer_seconds(400, dataclasses.replace(PLAIN, bandwidth=2800.0)) == pytest.approx(1.0)


@pytest.mark.parametrize("name", [name for name in known_devices() if name != "cpu"])
def test_every_row_of_the_table_is_whole(name: str) -> None:
    device = device_of(name, 8, 0)
    assert all(value for field, value in vars(device).items() if field != "doubled")
    assert 0 < device.reached < 1
    assert device.memory > 2**36
    assert device.inside > device.between


def test_this_machines_processor_is_measured_and_its_threads_are_shared() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        one, four = (device_of("cpu", ranks, 10**9) for ranks in (1, 4))
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    assert one.fp32 == pytest.approx(4 * four.fp32, rel=0.75)
    assert min(one.fp32, one.bf16, one.bandwidth) > 1e8
    assert (one.memory, one.overlaps) == (10**9, False)
    assert one.link(2) == one.host


def test_a_device_that_no_row_has_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^--device h10: did you mean 'h100'\? known: cpu, a100, h100, h200, b200$"):
        device_of("h10", 1, 0)
