"""Sampling in slots, as a GPU does, beside the engine's rows: the same tokens, ends, supports and routes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from benchmarks.architectures.build import small_model
from transformers import LlamaConfig, LlamaForCausalLM

from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.errors import RunError
from groupwise.core.records import Completion
from groupwise.engines.local import engine as local_engine
from groupwise.engines.local.columns import ONE_KIND
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.local.sampler import support_mask
from groupwise.engines.local.slots.attention import attend_plainly
from groupwise.engines.local.slots.step import packed_bits, unpacked_bits
from groupwise.models.forward.heads import wide_head
from tests.engines.local.kernels import SEATINGS, seated
from tests.engines.local.made import EOS, SIZES, VOCABULARY, assert_alike, build, build_moe, each, plain_logp
from tests.engines.local.test_held import HOW, assert_same, turns_of
from tests.engines.local.test_stopping import decode
from tests.laws import moe_models

#: Groups of 1 to 7 completions, prompts of 1 to 17 tokens, limits of 1 to 40; one begun before, a prompt three times.
RAGGED = [
    *(
        Request(
            tuple(4 + (5 * i + j) % 25 for j in range(1 + 7 * i % 17)),
            1 + i % 7,
            seed=i,
            max_new_tokens=1 + 13 * i % 40,
        )
        for i in range(9)
    ),
    Request((5, 9, 11, 2, 8), 3, seed=20, max_new_tokens=30, drawn=2),
    Request((5, 9, 11, 2, 8), 2, seed=21, max_new_tokens=18),
    Request((5, 9, 11, 2, 8), 2, seed=22, first=4, max_new_tokens=3),
]
HOWS = {
    "all": Sampling(),
    "temperature": Sampling(temperature=0.7),
    "greedy": Sampling(temperature=0),
    "top-p": Sampling(top_p=0.8),
    "top-k": Sampling(top_k=5, temperature=1.3),
    "min-p": Sampling(min_p=0.1, top_p=0.95),
    "all three": Sampling(min_p=0.02, top_p=0.9, top_k=12),
    "bias": Sampling(logit_bias={5: 2.0, 3: -1.0}, top_p=0.9),
    "penalty": Sampling(repetition_penalty=1.3),
    "least": Sampling(min_new_tokens=9, stop_ids=(8, 21)),
    "strings": Sampling(stop=("\n", "é", "Us"), min_new_tokens=2, top_p=0.9),
}


def both(
    model: Any, rows: int, eos: frozenset[int] = EOS, routes: bool = False, how: str = "attend_plainly"
) -> tuple[LocalEngine, LocalEngine]:
    """Engines of the same model, by rows and by slots that attend so."""
    engines = [
        LocalEngine(model, eos, 0, max_rows=rows, routes=routes, decode=decode, slots=slots) for slots in (False, True)
    ]
    assert [engine.how for engine in engines] == ["rows", f"slots, {how}"]
    return engines[0], engines[1]


def assert_same_answers(engines: Sequence[LocalEngine], requests: Sequence[Request], how: Sampling) -> None:
    by_rows, by_slots = (engine.generate(requests, how) for engine in engines)
    for (_, one), (_, other) in zip(each(requests, by_rows), each(requests, by_slots), strict=True):
        assert_alike(one, other)
        assert (one.finish, one.stop, one.routes is None) == (other.finish, other.stop, other.routes is None)
        assert one.routes is None or other.routes is None or one.routes.equal(other.routes)


@pytest.fixture(scope="module")
def engines() -> dict[int, tuple[LocalEngine, LocalEngine]]:
    """By how many completions they sample at a time: all wait for one place, some wait, none waits."""
    return {rows: both(build(), rows) for rows in (1, 11, 64)}


@pytest.mark.parametrize(("how", "rows"), [*((how, 11) for how in HOWS), ("strings", 64), ("all three", 1)])
def test_slots_give_what_rows_give(how: str, rows: int, engines: dict[int, tuple[LocalEngine, LocalEngine]]) -> None:
    before = [engine.tokens_run for engine in engines[rows]]
    assert_same_answers(engines[rows], RAGGED, HOWS[how])
    by_rows, by_slots = (engine.tokens_run - run for engine, run in zip(engines[rows], before, strict=True))
    assert by_slots - by_rows in (0, -5, -10)  # the prompt of three requests, which slots may admit together


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_other_models_are_sampled_in_slots(name: str) -> None:
    assert_same_answers(both(build(name), 11), RAGGED, HOWS["top-p"])


@pytest.mark.parametrize("name", moe_models.BUILD)
def test_experts_and_their_routes_are_those_of_rows(name: str) -> None:
    window: dict[str, Any] = {"sliding_window": 64} if name == "gpt_oss" else {}
    model = moe_models.build(name, seed=4, initializer_range=0.2, **window)
    how = "a copy of each prompt" if name == "deepseek_v3" else "attend_plainly"
    assert_same_answers(both(model, 11, routes=True, how=how), RAGGED, HOWS["all"])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("samples", [1, 3])
def test_episodes_go_on_from_what_slots_hold(
    how: str, samples: int, engines: dict[int, tuple[LocalEngine, LocalEngine]]
) -> None:
    by_rows, by_slots = engines[11]
    before = by_rows.tokens_run - by_slots.tokens_run
    ours, expected = (turns_of(engine, HOW[how], holds=True, samples=samples) for engine in (by_slots, by_rows))
    assert_same(ours, expected)
    assert by_rows.tokens_run - by_slots.tokens_run == before
    assert len(by_slots._held) == len(by_rows._held)


def test_episodes_of_experts_go_on_from_what_slots_hold() -> None:
    by_rows, by_slots = both(build_moe(), 5, routes=True)
    ours, expected = (turns_of(engine, HOW["top-p"], holds=True) for engine in (by_slots, by_rows))
    assert_same(ours, expected)


def test_the_same_call_again_gives_the_same_bits_and_so_does_an_engine_made_anew() -> None:
    """Memory that grew in a call before changes nothing, nor does what a call left behind that ended in an error."""
    engine, other = (LocalEngine(build(), EOS, 0, max_rows=11, slots=True) for _ in range(2))

    def fail(done: Finished) -> None:
        raise ValueError

    first = engine.generate(RAGGED, HOWS["top-p"])
    with pytest.raises(ValueError):
        other.generate([replace(request, max_new_tokens=60) for request in RAGGED], Sampling(), fail)
    for again in (engine, other):
        assert [[(c.tokens, c.logp_engine) for c in g] for g in again.generate(RAGGED, HOWS["top-p"])] == [
            [(c.tokens, c.logp_engine) for c in group] for group in first
        ]


def test_completions_are_told_as_they_end_and_new_weights_are_seen() -> None:
    by_rows, by_slots = both(build(), 11)
    told: dict[tuple[int, int], Finished] = {}
    groups = by_slots.generate(RAGGED, Sampling(), lambda done: told.update({(done.request, done.sample): done}))
    assert {key: (done.tokens, done.finish) for key, done in told.items()} == {
        (request, sample): (done.tokens, done.finish)
        for request, group in enumerate(groups)
        for sample, done in enumerate(group)
    }
    for engine in (by_rows, by_slots):
        engine.load_weights({name: 1.1 * weight for name, weight in build().named_parameters()}.items(), version=3)
    assert_same_answers((by_rows, by_slots), RAGGED, Sampling())
    assert by_slots.generate(RAGGED[:1], Sampling())[0][0].version == 3


def test_slots_that_slept_give_their_memory_back_and_the_same_answers() -> None:
    engine = LocalEngine(build(), EOS, 0, max_rows=11, slots=True)
    before = engine.generate(RAGGED, Sampling())
    assert engine._slots is not None
    assert engine._slots.tables is not None
    engine.sleep()
    assert engine._slots.tables is None
    assert engine.generate(RAGGED, Sampling()) == before


def test_the_head_of_a_model_of_16_bits_rounds_no_logit() -> None:
    model = build("llama").bfloat16()
    states = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    ((head, forward),) = wide_head(model)
    assert head is model.lm_head
    assert torch.equal(forward(states), states.float() @ model.lm_head.weight.float().T)
    assert wide_head(build("llama")) == []
    engine = LocalEngine(build("llama"), EOS, 0, precision="bf16", slots=True)
    groups = engine.generate(RAGGED, Sampling(max_new_tokens=4))
    assert engine._slots is not None
    assert engine._slots.tables is not None
    assert engine._slots.tables.state.logits.dtype == torch.float32
    for request, done in each(RAGGED, groups):
        expected = plain_logp(model.float(), request.tokens, done)
        torch.testing.assert_close(torch.tensor(done.logp_engine).double(), expected, atol=0.2, rtol=0)


def test_broken_weights_are_said() -> None:
    engine = LocalEngine(build(), EOS, 0, slots=True)
    engine.load_weights({name: weight * torch.nan for name, weight in build().named_parameters()}.items(), version=2)
    with pytest.raises(RunError, match="NaN or infinite \\(weights version 2\\)"):
        engine.generate(RAGGED, Sampling())


def test_a_model_that_makes_its_own_masks_is_sampled_in_rows_and_says_why() -> None:
    engine = LocalEngine(small_model("bloom"), EOS, 0, slots=True)
    assert engine._slots is None
    assert engine.why_rows == "it makes its masks itself, of columns, which slots do not have"


def test_a_model_that_cannot_be_sampled_so_is_sampled_in_rows_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in which rows look at each other, which the trial of rows would refuse."""
    monkeypatch.setattr(local_engine, "require_sampled", lambda model: ONE_KIND)
    torch.manual_seed(4)
    model: Any = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    model.model.layers[1].mlp.register_forward_hook(lambda module, given, out: out + out.mean(0))
    engine = LocalEngine(model, EOS, 0, slots=True)
    assert engine._slots is None
    assert re.fullmatch("its logits lie .* of their norm from those of its own forward", engine.why_rows)
    assert engine.generate(RAGGED[:1], Sampling()) == LocalEngine(model, EOS, 0).generate(RAGGED[:1], Sampling())


def test_the_hosts_looks_are_few() -> None:
    """A step reads no number of the device; 64 tokens of equal length take a look in 16 steps."""
    engine = LocalEngine(build(), frozenset(), 0, slots=True)
    looked = 0

    def progress() -> None:
        nonlocal looked
        looked += 1

    assert engine._slots is not None
    engine._slots.progress = progress
    engine.generate([Request((1, 2, 3), 8, seed=0)], Sampling(max_new_tokens=64))
    assert looked == 64 / 16 + 1  # and once for the prompt


def test_a_step_looks_at_no_number() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoLooks(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default), func
            return func(*args, **(kwargs or {}))

    engine = LocalEngine(build_moe(), EOS, 0, max_rows=11, routes=True, decode=decode, slots=True)
    assert engine._slots is not None
    step = engine._slots.step
    plain = step._step

    def watched(*args: Any) -> None:
        with NoLooks():
            plain(*args)

    step._step = watched  # type: ignore[method-assign]
    for how in HOWS.values():
        engine.generate([replace(request, max_new_tokens=3) for request in RAGGED[:4]], how)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_top_p_by_a_threshold_is_top_p_by_a_sort(top_p: float) -> None:
    """Ties, a certain token, barred ones and one that is all there is, too."""
    numbers = torch.Generator().manual_seed(1)
    logits = torch.randn(40, 700, generator=numbers) * torch.tensor([0.1, 1.0, 5.0, 40.0]).repeat(10)[:, None]
    logits[::3] = logits[::3].round()
    logits[5, 17], logits[6, 100:600], logits[7, 1:] = 100.0, -torch.inf, -torch.inf
    for min_p in (0.0, 0.1):
        by_sort, by_threshold = (support_mask(logits, 0, top_p, min_p, looks=looks) for looks in (True, False))
        assert torch.equal(by_sort, by_threshold)
    logits[3, 4] = torch.nan
    assert bool(support_mask(logits, 0, top_p, looks=False)[3].all())


def test_bits_are_packed_and_unpacked() -> None:
    mask = torch.rand(5, 29, generator=torch.Generator().manual_seed(0)) < 0.4
    assert torch.equal(unpacked_bits(packed_bits(mask), 29), mask)


@pytest.mark.parametrize("sizes", SEATINGS, ids=repr)
@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_slot_attends_to_its_prompt_and_its_own_tokens(sizes: tuple[int, ...], with_sinks: bool) -> None:
    """One softmax over both, key by key; in float64 the two parts are it to 1e-13."""
    query, seating = seated(sizes, torch.float64)
    sinks = torch.linspace(-2, 3, query.shape[1]).double() if with_sinks else None
    ours = attend_plainly(query, 1, seating, 0.3, sinks)
    for slot in range(len(query)):
        place, tokens = int(seating.seat[slot]) // sizes[6], int(seating.column[slot]) + 1
        for head in range(query.shape[1]):
            group, before = head // sizes[2], int(seating.length[place])
            keys, values = (
                torch.cat([seating.prompts[i][place, group, :before], seating.own[i][slot, group, :tokens]])
                for i in (2, 3)
            )
            scores = 0.3 * (keys @ query[slot, head])
            extra = torch.empty(0) if sinks is None else sinks[head : head + 1]
            weight = torch.cat([scores, extra]).softmax(0)[: len(scores)]
            torch.testing.assert_close(ours[slot, head].double(), weight @ values, atol=2e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="make test-slow installs it")
def test_the_kernels_attend_as_plain_torch_does() -> None:
    """By Triton's interpreter, which is chosen before triton is imported: in a process of its own."""
    command = [sys.executable, "-m", "tests.engines.local.kernels"]
    run = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, check=True)
    off = json.loads(run.stdout)
    assert len(off) == 4 * len(SEATINGS) + 1
    for case, difference in off.items():
        assert difference <= (4e-3 if "float16" in case else 1e-5), case


def alone(groups: Sequence[Sequence[Completion]]) -> list[tuple[int, ...]]:
    return [done.tokens for group in groups for done in group]


def test_a_completion_is_a_function_of_its_request_in_slots_too() -> None:
    engine = LocalEngine(build(), EOS, 0, slots=True)
    together = engine.generate(RAGGED, Sampling())
    for request, group in zip(RAGGED, together, strict=True):
        assert alone([group]) == alone(engine.generate([request], Sampling()))
    assert max(max(tokens) for tokens in alone(together)) < VOCABULARY
