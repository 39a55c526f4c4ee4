"""Columns of any type in public calls: arithmetic is float32 or better; what cannot be used is said in a line."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import groupwise
from groupwise.algorithms.laws.draws import draw
from groupwise.algorithms.parts.mismatch import TIS
from groupwise.algorithms.parts.ratio import SequenceRatio
from groupwise.algorithms.settings import CATALOG
from groupwise.core.masked import real
from tests.laws.sampler import of_sampler

ROWS = sorted(CATALOG)
WITHOUT_A_CRITIC = [name for name in ROWS if not CATALOG[name].advantage.reads_value]
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture
def columns() -> dict[str, Any]:
    """A group of 512, of which bfloat16 cannot count the half, and close rewards whose mean it rounds away."""
    rewards = torch.cat([torch.tensor([0.0, 1.0]).repeat(256), torch.tensor([1.0, 1.0, 1.0, 1.0078125])])
    mask = torch.rand(516, 6, generator=torch.Generator().manual_seed(3)) < 0.8
    return {"rewards": rewards, "groups": torch.tensor([9] * 512 + [-4] * 4), "mask": mask}


def fitting(algo: groupwise.Algorithm, rewards: torch.Tensor) -> torch.Tensor:
    """Make rewards that the algorithm takes: of one for right and wrong alone, their signs."""
    return (rewards > 0).to(rewards.dtype) if algo.advantage.binary else rewards


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", WITHOUT_A_CRITIC)
def test_advantages_of_half_precision_are_those_of_float32(name: str, half: torch.dtype, columns: Any) -> None:
    algo, end = groupwise.algorithm(name), {"step_end": columns["mask"]}
    given = fitting(algo, columns["rewards"])
    per_token = given[:, None] * columns["mask"]
    for rewards in (given,) if algo.advantage.binary else (given, per_token):
        expected = algo.advantages(rewards, columns["groups"], columns["mask"], **end)
        found = algo.advantages(rewards.to(half), columns["groups"], columns["mask"], **end)
        assert expected.any()
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ROWS)
def test_the_loss_of_half_precision_is_that_of_float32(name: str, half: torch.dtype) -> None:
    """Value, share, log-ratio and KL; the gradient is float32's, rounded once to the type of what was given."""
    algo = groupwise.algorithm(name, {"mismatch.kind": "sequence-mis", "mismatch.cap": 1e6})
    b = draw(1, spread=0.05)
    given = {"live": b.live, "old": b.old, "ref": b.ref, "advantage": b.advantage, "engine": b.old + 0.01}
    rounded = {name: column.to(half) for name, column in given.items()}
    found, gradient = _loss(algo, rounded, b.mask)
    expected, exact = _loss(algo, {name: column.float() for name, column in rounded.items()}, b.mask)
    for one, other in zip(found, expected, strict=True):
        assert one is None if other is None else torch.equal(one, other)
        assert one is None or one.dtype == torch.float32
    assert gradient.dtype == half
    assert torch.equal(gradient, exact.to(half))
    assert exact.any()


def _loss(algo: Any, columns: dict[str, Any], mask: Any) -> tuple[Any, Any]:
    live = columns["live"].clone().requires_grad_(True)
    more = {"logp_ref": columns["ref"], "logp_engine": columns["engine"], "entropy": -columns["live"]}
    more |= of_sampler(algo, columns["engine"])
    out = algo.loss(live, columns["old"], columns["advantage"], mask, **more)
    out.value.backward()
    return [None if one is None else one.detach() for one in out], live.grad


@pytest.mark.parametrize("half", HALVES)
def test_a_sequence_ratio_beyond_an_epsilon_that_the_type_cannot_hold_is_clipped(half: torch.dtype) -> None:
    old = -torch.rand(16, 1024, generator=torch.Generator().manual_seed(0))
    live, mask = old + 1e-3, torch.ones(16, 1024, dtype=torch.bool)
    out = groupwise.algorithm("gspo").loss(live.to(half), old.to(half), torch.ones(16, dtype=half), mask)
    assert not out.share.any()
    assert torch.equal(SequenceRatio()(live.to(half), old.to(half), mask), out.log_ratio), "the part by itself, too"


@pytest.mark.parametrize("half", HALVES)
def test_parts_and_functions_by_themselves_are_exact_too(half: torch.dtype) -> None:
    b = draw(2)
    old, engine = b.old.to(half), (b.old + 0.3).to(half)
    assert torch.equal(TIS()(old, engine, b.mask), TIS()(old.float(), engine.float(), b.mask))
    rewards, values = torch.ones(1, 600, dtype=half), torch.zeros(1, 600, dtype=half)
    advantages, returns = groupwise.gae(rewards, values, torch.ones(1, 600), lam=1.0)
    assert torch.equal(advantages, torch.arange(600.0, 0.0, -1)[None]), "a sum over 600 tokens"
    assert torch.equal(returns, advantages)
    lengths = torch.tensor([18432.0, 20480.0]).to(half)
    assert groupwise.overlong_penalty(lengths, 20480, 4096).tolist() == [-0.5, -1.0]


def test_whole_numbers_are_added_up_exactly_under_a_default_of_half_precision() -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert float(real(torch.ones(601, dtype=torch.long)).sum()) == 601
    finally:
        torch.set_default_dtype(before)


MASKS = {
    "int64": lambda mask: mask.long(),
    "uint8": lambda mask: mask.to(torch.uint8),
    "bfloat16": lambda mask: mask.to(torch.bfloat16),
    "float64": lambda mask: mask.double(),
    "lists": lambda mask: mask.int().tolist(),
    "numpy": lambda mask: mask.numpy(),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", ROWS)
def test_a_mask_of_0_and_1_of_any_type_is_the_mask(name: str, kind: str) -> None:
    algo, b, of = groupwise.algorithm(name), draw(1), MASKS[kind]
    sampler = of_sampler(algo, b.old)
    expected = algo.loss(b.live, b.old, b.advantage, b.mask, logp_ref=b.ref, **sampler)
    found = algo.loss(b.live, b.old, b.advantage, of(b.mask), logp_ref=b.ref, **sampler)
    assert torch.equal(found.value, expected.value)
    assert torch.equal(found.share, expected.share)
    assert torch.equal(groupwise.gae(b.old, b.ref, of(b.mask))[0], groupwise.gae(b.old, b.ref, b.mask)[0])
    if name in WITHOUT_A_CRITIC:
        ends = torch.rand(b.mask.shape, generator=torch.Generator().manual_seed(8)) < 0.4
        given = fitting(algo, b.advantage)
        expected = algo.advantages(given, b.group, b.mask, ends)
        assert torch.equal(algo.advantages(given, b.group, of(b.mask), of(ends)), expected)
        lists = algo.advantages(given.tolist(), b.group.tolist(), b.mask.tolist(), ends.tolist())
        torch.testing.assert_close(lists, expected.float(), rtol=1e-4, atol=1e-5)


def test_infinity_and_nan_are_told_of_at_trained_tokens_and_nowhere_else() -> None:
    algo, b = groupwise.algorithm("grpo"), draw(1)
    row, place = (int(i) for i in b.mask.nonzero()[0])
    hole, hole_place = (int(i) for i in (~b.mask).nonzero()[0])
    columns = {"logp_live": b.live, "logp_old": b.old, "advantage": b.advantage[:, None].expand_as(b.mask).clone()}
    plain = algo.loss(**columns, mask=b.mask, logp_ref=b.ref).value
    for name in columns:
        for value, word in ((torch.inf, "inf"), (-torch.inf, "-inf"), (torch.nan, "nan")):
            wrong, spoilt = columns[name].clone(), columns[name].clone()
            wrong[row, place], spoilt[hole, hole_place] = value, value
            told = f"^{name}\\[{row}, {place}\\] is {word}; finite numbers are due at every trained token$"
            with pytest.raises(ValueError, match=told):
                algo.loss(**columns | {name: wrong}, mask=b.mask, logp_ref=b.ref)
            assert algo.loss(**columns | {name: spoilt}, mask=b.mask, logp_ref=b.ref).value == plain
    nothing = torch.full_like(b.ref, torch.nan)
    with pytest.raises(ValueError, match=r"^logp_ref\["):
        algo.loss(**columns, mask=b.mask, logp_ref=nothing)
    assert algo.loss(**columns, mask=b.mask, logp_ref=b.ref, logp_engine=nothing).value == plain, "not read"


@pytest.mark.parametrize("name", WITHOUT_A_CRITIC)
def test_a_reward_that_is_infinite_is_told_of_and_one_that_is_nan_does_not_vote(name: str) -> None:
    algo, b = groupwise.algorithm(name), draw(1)
    ends = b.mask
    for value in (torch.inf, -torch.inf, 3.4e38):
        rewards = fitting(algo, b.advantage).float()
        rewards[0] = value  # its mask is all False
        assert algo.advantages(rewards, b.group, b.mask, ends).isfinite().all()
        rewards[3] = value
        with pytest.raises(ValueError, match=r"^rewards\[3\] is (-?inf|3.4e\+38, beyond 1e\+15); finite numbers"):
            algo.advantages(rewards, b.group, b.mask, ends)
    rewards = fitting(algo, b.advantage).clone()
    rewards[3] = torch.nan
    without = b.mask.clone()
    without[3] = False
    found = algo.advantages(rewards, b.group, b.mask, ends)
    torch.testing.assert_close(
        found, algo.advantages(fitting(algo, b.advantage), b.group, without, ends), rtol=1e-12, atol=1e-12
    )


ONES = torch.ones(2, 3)
GRPO = groupwise.algorithm("grpo")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: GRPO.advantages(ONES[0], [0, 0]), "groups has shape (2,); an id for each reward [N]: (3,) is due"),
        (lambda: GRPO.advantages(ONES[0], ["a", "a", "b"]), "groups is a list (too many dimensions 'str'); a tensor, "),
        (lambda: GRPO.advantages(ONES[0], ONES[0].bfloat16()), "groups holds torch.bfloat16, which cannot tell all"),
        (lambda: GRPO.advantages([1.0, None], [0, 0]), "rewards is a list ("),
        (lambda: GRPO.advantages(ONES[0].to_sparse(), [0, 0, 0]), "rewards is a tensor of torch.sparse_coo; a dense"),
        (lambda: groupwise.gae(ONES, ONES, ONES, gamma=torch.nan), "gamma = nan: must be from 0 to 1"),
        (lambda: GRPO.loss(ONES, ONES, ONES * 3e38, ONES), "advantage[0, 0] is 3e+38, beyond 1e+15; finite"),
        (lambda: GRPO.loss(ONES * -3e38, ONES, ONES, ONES), "logp_live[0, 0] is -3e+38, beyond 1e+15; finite numbers"),
        (
            lambda: groupwise.algorithm("grpo-process").advantages(ONES, [0, 0], ONES),
            "grpo-process: its advantages read",
        ),
        (lambda: groupwise.gae(ONES, ONES, ONES, lam=1.5), "lam = 1.5: must be from 0 to 1"),
        (lambda: GRPO.advantages(ONES[0, 0], [0]), "rewards has shape (); [N], or [N,T] per token, is due"),
        (lambda: GRPO.advantages(ONES[0] * 1j, [0, 0, 0]), "rewards holds complex numbers; real ones are due"),
        (lambda: GRPO.advantages(ONES[0], [0, 0, 0], ONES), "mask has shape (2, 3); [N,T] of the rewards: (3, 3) is"),
        (lambda: GRPO.advantages(ONES[0], [0, 0, 0], [1, 1, 1]), "mask has shape (3,); [N,T] of the rewards: (3, 3"),
        (lambda: GRPO.advantages(ONES, [0, 0], ONES[:, :2]), "mask has shape (2, 2); [N,T] of the rewards: (2, 3)"),
        (lambda: GRPO.loss(ONES, ONES, ONES, ONES / 2), "mask holds 0.5; it must be bool, or 1 where it holds and 0"),
        (lambda: GRPO.loss(ONES, ONES, ONES, ONES * torch.nan), "mask holds nan; it must be bool"),
        (lambda: GRPO.loss(ONES, ONES, ONES, [[0, -100, 1]] * 2), "mask holds -100; it must be bool"),
        (lambda: GRPO.loss(ONES[0], ONES[0], ONES[0], ONES[0]), "mask has shape (3,); [N,T] is due"),
        (lambda: GRPO.loss(ONES, [[1.0, 2.0], [1.0]], ONES, ONES), "logp_old is a list (expected sequence of length"),
        (lambda: GRPO.loss(ONES, ONES, ONES, ONES.to("meta")), "mask is on meta, what it is used with on cpu;"),
        (lambda: groupwise.gae(ONES, ONES, ONES * 2), "mask holds 2; it must be bool"),
        (lambda: groupwise.gae(ONES * torch.inf, ONES, ONES), "rewards[0, 0] is inf; finite numbers are due at every"),
        (lambda: groupwise.gae(ONES[0], ONES[0], ONES[0]), "rewards, values and mask must be of one shape [N,T], not"),
        (lambda: groupwise.overlong_penalty([5, -1], 10, 5), "lengths has -1; numbers of tokens, at least 0, are due"),
        (lambda: groupwise.overlong_penalty(ONES / 0, 10, 5), "lengths has inf; numbers of tokens, at least 0, are"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}") as told:
        call()
    assert "\n" not in str(told.value)


def test_arrays_and_batches_without_tokens_or_rows_are_columns() -> None:
    rewards = np.array([1.0, 0.0, 1.0, 1.0])
    assert GRPO.advantages(rewards, np.array([7, 7, 3, 3])).dtype == torch.float64
    assert GRPO.advantages([1, 0], [0, 0], torch.ones(2, 0)).tolist() == [0.0, 0.0]
    assert GRPO.advantages([], torch.zeros(0, dtype=torch.long)).tolist() == []
    old, lists = -ONES.double(), [[-1, -1, -1]] * 2
    assert float(GRPO.loss(lists, old.numpy(), [1, 0], ONES, logp_ref=lists).value) == pytest.approx(-0.5)
    assert GRPO.loss(*[torch.ones(0, 3)] * 4, logp_ref=torch.ones(0, 3)).value == 0


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.0, 1.0, 0.0, 1.0])[::-1],
        np.array([1.0, 0.0, 1.0, 1.0], ">f8"),
        np.array([1.0, 0.0, 1.0, 1.0], np.longdouble),
        np.array([[1.0, 2.0], [0.0, 2.0], [1.0, 2.0], [1.0, 2.0]], order="F")[:, 0],
        np.frombuffer(np.array([1.0, 0.0, 1.0, 1.0]).tobytes()),
    ],
    ids=["reversed", "big-endian", "longdouble", "column", "read-only"],
)
@pytest.mark.filterwarnings("error")
def test_an_array_of_any_layout_is_its_numbers(array: Any) -> None:
    """torch itself reads none of the first three, and warns of the last."""
    expected = GRPO.advantages(torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64), [0, 0, 0, 0])
    assert torch.equal(GRPO.advantages(array, [0, 0, 0, 0]), expected)


def test_lists_without_an_entry_are_ids_too() -> None:
    assert GRPO.advantages([], []).tolist() == []
    told = "; NaN stands for a number that is not there, None does not$"
    with pytest.raises(ValueError, match=told):
        GRPO.advantages([1.0, None], [0, 0])
