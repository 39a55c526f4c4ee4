"""An estimate's laws: amounts over constants, the longest of them, and what a weight, a token and an expert cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from groupwise.core.errors import UsageError
from groupwise.engines.kinds import KINDS
from groupwise.models.adapters.lora import with_adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.planning import step_time
from groupwise.planning.activations import without_memory
from groupwise.planning.memory import plan
from groupwise.planning.run_shape import RunShape, microbatch_sizes
from groupwise.planning.shard_groups import GroupedModel, gathered, groups_of, held_bytes, trained_part
from groupwise.planning.step_time import (
    ADAMW,
    Device,
    Numbers,
    Phase,
    Work,
    device_of,
    known_devices,
    loaded,
    numbers_of,
    passed,
    sampled,
    step_phases,
    step_seconds,
)
from groupwise.training.critic import CriticSettings
from tests.planning.made import SMALL as SHAPE
from tests.planning.made import experts, llama, run_of

MODEL = without_memory(llama())
GROUPED = GroupedModel(MODEL, groups_of(MODEL))
LAYER = 4 * 64 * 64 + 3 * 64 * 160
H100 = device_of("h100", 1, 0)
NUMBERS = Numbers(layers=2, dense=500, experts=0, chosen=1.0, head=100, trained=1.0, channels=8, cached=32)


def test_operations_of_a_dense_model() -> None:
    numbers = numbers_of(MODEL)
    assert (numbers.dense, numbers.of_token, numbers.head) == (3 * LAYER, 3 * LAYER, 300 * 64)
    assert (numbers.layers, numbers.channels, numbers.cached, numbers.trained) == (3, 3 * 64, 3 * 2 * 64, 1.0)
    pairs = 10 * SHAPE.prompt / 2 + 4 * (SHAPE.prompt + SHAPE.completion / 2)
    expected = 2 * 14 * 3 * LAYER + 2 * 4 * 300 * 64 + 4 * pairs * 3 * 64
    assert numbers.forward(SHAPE, prompts=10, new=4) == expected


def test_a_token_goes_through_its_own_experts_and_a_step_reads_those_of_all_its_rows() -> None:
    numbers = numbers_of(without_memory(experts(num_experts_per_tok=2)))
    attention, router, of_all = 4 * 64 * 64, 8 * 64, 8 * 3 * 64 * 48
    assert numbers.experts == 3 * of_all
    assert numbers.of_token == 3 * (attention + router + of_all // 4)
    always = numbers.dense + numbers.head
    assert numbers.read(1) == pytest.approx(always + numbers.experts / 4)
    assert numbers.read(2) == pytest.approx(always + numbers.experts * (1 - 0.75**2))
    assert numbers.read(1000) == pytest.approx(always + numbers.experts)


def test_of_experts_whose_routers_are_not_known_a_token_goes_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upper bound: the memory of such a model is planned too."""
    monkeypatch.setattr(step_time, "routers", lambda _: ())
    numbers = numbers_of(without_memory(experts()))
    assert numbers.of_token == numbers.dense + numbers.experts


@pytest.mark.parametrize(
    ("work", "constant"),
    [
        (Work(operations=1e15), "fp32"),
        (Work(operations=1e15, bf16=True), "bf16"),
        (Work(operations=1e15), "reached"),
        (Work(memory=1e15), "bandwidth"),
        (Work(memory=1e15), "streamed"),
        (Work(network=1e15), "inside"),
        (Work(network=1e15), "network"),
        (Work(outside=1e15), "host"),
    ],
)
def test_each_amount_is_over_its_constants(work: Work, constant: str) -> None:
    quicker = dataclasses.replace(H100, **{constant: 2 * getattr(H100, constant)})
    assert work.seconds(quicker, 8) == pytest.approx(work.seconds(H100, 8) / 2)


def test_work_takes_the_longest_of_its_amounts() -> None:
    slow, quick = Work(operations=1e15, memory=1.0, network=1.0, layers=1.0), Work(memory=1e12)
    assert slow.seconds(H100, 8) == Work(operations=1e15).seconds(H100, 8)
    assert Work(layers=10).seconds(H100, 8) == pytest.approx(10 * H100.layer)
    both = Phase("update", (slow, quick), 0.0)
    assert [both.total(amount) for amount in ("operations", "memory", "network")] == [1e15, 1.0 + 1e12, 1.0]


def test_more_ranks_than_a_machine_has_pass_over_the_network() -> None:
    assert H100.link(8) == pytest.approx(0.7 * 450e9)
    assert H100.link(9) == pytest.approx(0.7 * 8 * 50e9), "by all cards of a machine"
    assert dataclasses.replace(H100, between=1e12).link(9) == H100.link(8)


def test_sampling_reads_weights_for_each_round_of_tokens_and_the_cache_of_each() -> None:
    shape = dataclasses.replace(SHAPE, rows=24)
    cache = 24 * 5 * 9.5 * 32  # tokens, their mean context, numbers cached
    assert sampled(NUMBERS, shape).memory == 4 * (5 * 600 + cache)
    assert sampled(NUMBERS, dataclasses.replace(shape, rows=12)).memory == 4 * (2 * 5 * 600 + cache), "two rounds"
    assert sampled(NUMBERS, dataclasses.replace(shape, devices=2)).memory == 4 * (5 * 600 + cache / 2)
    prompts, new = 6 * 7, 24 * 5
    assert sampled(NUMBERS, shape).operations == NUMBERS.forward(shape, prompts, new)
    recorded = dataclasses.replace(shape, kind=KINDS["vllm"])
    assert (sampled(NUMBERS, shape).layers, sampled(NUMBERS, recorded).layers) == (10, 0)
    whole = sampled(NUMBERS, dataclasses.replace(shape, uncached="it has no cache"))
    assert whole.memory == 4 * 5 * 600, "nothing is cached"
    assert whole.operations == NUMBERS.forward(shape, prompts + new * 9.5, new), "a token runs what is before it"


def test_engines_that_share_a_device_add_no_device() -> None:
    """They are never faster than one engine with all their places, and each reads the weights for itself."""
    for count, each in ((1, 24), (2, 12), (8, 3), (8, 24)):
        of_all = sampled(NUMBERS, dataclasses.replace(SHAPE, engines=count, rows=each))
        of_one = sampled(NUMBERS, dataclasses.replace(SHAPE, engines=1, rows=count * each))
        assert of_all.operations == of_one.operations
        assert of_all.layers >= of_one.layers
        assert of_all.memory - of_one.memory == 4 * (count - 1) * 5 * 600


def of_passes(shape: RunShape = SHAPE, tokens: int = 40, of: GroupedModel = GROUPED, **how: bool) -> Work:
    return passed(of, shape, microbatch_sizes(shape, tokens, line=True), bf16=False, **how)


def test_a_backward_pass_is_two_forward_ones_and_recomputation_one_more() -> None:
    forward, both, again = of_passes(), of_passes(trains=True), of_passes(trains=True, recompute=True)
    assert (both.operations, again.operations) == (3 * forward.operations, 4 * forward.operations)
    assert (both.layers, again.layers) == (3 * forward.layers, 4 * forward.layers)
    assert forward.operations == pytest.approx(numbers_of(MODEL).forward(SHAPE, *run_tokens(40)))


def run_tokens(tokens: int) -> tuple[int, int]:
    """Tokens of prompts and of completions in a minibatch; the last token of a row is not run."""
    new = 24 * (SHAPE.completion - 1)
    return microbatch_sizes(SHAPE, tokens, line=True).tokens - new, new


def test_of_frozen_weights_nothing_but_what_came_in_has_a_gradient() -> None:
    model = with_adapters(MODEL, AdapterSettings(rank=4))
    adapted = GroupedModel(model, groups_of(model))
    added = 3 * 4 * (8 * 64 + 3 * (64 + 160))
    share = added / (3 * LAYER + added + 300 * 64)
    forward, both = of_passes(of=adapted), of_passes(of=adapted, trains=True)
    assert both.operations == pytest.approx((2 + share) * forward.operations)


def test_one_rank_passes_nothing_and_a_ring_moves_all_but_its_own_part() -> None:
    groups, rounds = GROUPED.groups, microbatch_sizes(SHAPE, 40, line=True).count
    assert of_passes().network == of_passes(trains=True).network == 0
    four = dataclasses.replace(SHAPE, ranks=4)
    weights = gathered(groups.every, 4)
    layers = weights - gathered(groups.outer, 4)
    each = -(-rounds // 4)
    assert of_passes(four).network == pytest.approx(0.75 * each * weights)
    assert of_passes(four, trains=True).network == pytest.approx(0.75 * each * (2 * weights + layers))


def test_ranks_share_the_microbatches_until_these_run_out() -> None:
    rounds = microbatch_sizes(SHAPE, 40, line=True).count
    each = [of_passes(dataclasses.replace(SHAPE, ranks=ranks)).operations for ranks in (1, rounds, 8 * rounds)]
    assert each[0] == pytest.approx(rounds * each[1])
    assert each[1] == each[2]


def test_weights_are_written_or_sent_to_an_engine_outside() -> None:
    policy = GROUPED
    size = held_bytes(policy.groups.every, 1)
    inside = loaded(policy, dataclasses.replace(SHAPE, engine=2))
    assert (inside.memory, inside.network, inside.outside) == (1.5 * size, 0, 0)
    outside = loaded(policy, dataclasses.replace(SHAPE, outside=True))
    assert (outside.memory, outside.network, outside.outside) == (0, 0, size)


def phases(critic: CriticSettings | None = None, recompute: bool = False, **changes: object) -> dict[str, Phase]:
    shape = {**vars(SHAPE), **changes}
    run = run_of(MODEL, critic, device="cuda", tokens_per_microbatch=40, recompute=recompute, **shape)
    return {each.name: each for each in step_phases(run, plan(run, 0, 1 << 40).cuts, H100)}


def test_a_step_has_its_passes_and_updates() -> None:
    once = of_passes()
    plain = phases()
    assert list(plain) == ["generate", "annotate", "update", "load weights"]
    assert plain["update"].seconds == sum(piece.seconds(H100, 1) for piece in plain["update"].work)
    assert (plain["annotate"].total("operations"), plain["update"].total("operations")) == (0, 3 * once.operations)
    adamw = ADAMW * trained_part(GROUPED.groups.every, 1)
    assert plain["update"].total("memory") == of_passes(trains=True).memory + adamw
    more = phases(annotated=2, passes=2, reward_model=True)
    assert list(more) == ["generate", "score", "annotate", "update", "load weights"]
    assert more["annotate"].total("operations") == 2 * once.operations
    assert more["update"].total("operations") == 6 * once.operations
    assert more["score"].total("operations") > 0
    again = phases(critic=CriticSettings(tokens_per_microbatch=40), recompute=True)
    ppo = phases(critic=CriticSettings(tokens_per_microbatch=40))
    assert ppo["annotate"].total("operations") > 0
    assert ppo["update"].total("operations") > plain["update"].total("operations")
    assert again["update"].total("operations") - ppo["update"].total("operations") == once.operations, (
        "of the policy alone"
    )


def test_phases_add_up_unless_others_sample_beside_them() -> None:
    each = list(phases(annotated=1).values())
    assert step_seconds(each, beside=False) == pytest.approx(sum(one.seconds for one in each))
    rest = sum(one.seconds for one in each[1:])
    assert step_seconds(each, beside=True) == max(each[0].seconds, rest)


@pytest.mark.parametrize("name", [name for name in known_devices() if name != "cpu"])
def test_every_row_of_the_table_is_whole(name: str) -> None:
    device = device_of(name, 8, 0)
    assert all(vars(device).values())
    assert 0 < device.reached < 1
    assert device.memory > 2**36
    assert device.inside > device.between


def test_a_device_may_be_a_file_of_constants(tmp_path: Path) -> None:
    numbers = {key: value for key, value in vars(H100).items() if isinstance(value, int | float)}
    text = "".join(f"{key} = {value / 2**30 if key == 'memory' else value!r}\n" for key, value in numbers.items())
    own = tmp_path / "card.toml"
    own.write_text(text)
    device = device_of(str(own), 8, 0)
    assert device == dataclasses.replace(H100, name=str(own), title="card", source=str(own))
    assumed = {"streamed", "network", "host", "layer"}
    own.write_text("\n".join(line for line in text.splitlines() if line.split()[0] not in assumed))
    assert device_of(str(own), 8, 0) == device


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("fp33 = 1", "fp33: did you mean 'fp32'?"),
        ("", "bf16: expected a number above 0, not None"),
        ("bf16 = 0", "bf16: expected a number above 0, not 0"),
        ("bf16 = 'quick'", "bf16: expected a number above 0, not 'quick'"),
        ("bf16 =", "cannot be read: Invalid value"),
    ],
)
def test_a_file_with_other_keys_is_one_line(change: str, told: str, tmp_path: Path) -> None:
    keys = ("memory", "fp32", "bandwidth", "inside", "between", "machine", "reached")
    own = tmp_path / "card.toml"
    own.write_text("".join(f"{key} = 1\n" for key in keys) + change + "\n")
    with pytest.raises(UsageError) as refused:
        device_of(str(own), 1, 0)
    assert str(refused.value).startswith(f"--device {own}: ")
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_device_that_no_row_has_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^--device h10: did you mean 'h100'\? known: cpu, .*, b200, or a file"):
        device_of("h10", 1, 0)
    with pytest.raises(UsageError, match=r"^--device nowhere.toml: cannot be read: .*No such file"):
        device_of("nowhere.toml", 1, 0)


def test_this_machines_processor_is_measured_and_its_threads_are_shared() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        # Other processes may take a core while one of them is measured: the faster of two is the processor's.
        measured = [[device_of("cpu", ranks, 10**9) for ranks in (1, 4)] for _ in range(2)]
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    one = measured[0][0]
    whole, shared = (max(each[way].fp32 for each in measured) for way in (0, 1))
    assert whole == pytest.approx(4 * shared, rel=0.75)
    assert min(one.fp32, one.bf16, one.bandwidth) > 1e8
    assert one.memory == 10**9
    assert one.link(2) == one.host


def test_every_constant_is_read() -> None:
    """A constant that no amount is over would be one that a person sets for nothing."""
    words = {"name", "title", "source", "memory"}
    work = [Work(operations=1e9), Work(operations=1e9, bf16=True), Work(memory=1e9), Work(network=1e9)]
    work += [Work(outside=1e9), Work(layers=1e9)]

    def seconds(device: Device) -> list[float]:
        return [one.seconds(device, ranks) for one in work for ranks in (1, 64)]

    for field in {field.name for field in dataclasses.fields(Device)} - words:
        other = dataclasses.replace(H100, **{field: 3 * getattr(H100, field)})
        assert seconds(other) != seconds(H100), field
