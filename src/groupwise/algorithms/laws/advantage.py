"""Laws of the advantages."""

import math
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws import columns, every
from groupwise.algorithms.laws.columns import Columns, Trial
from groupwise.algorithms.laws.draws import Draw, like
from groupwise.algorithms.laws.law import Law, differs, first_of


def given(part: Any, batch: Draw) -> dict[str, Tensor]:
    """Rewards and values a token, and from no to several step ends a completion."""
    numbers = torch.Generator().manual_seed(8)
    ends = torch.rand(batch.mask.shape, generator=numbers) < 0.4
    state = torch.randint(0, 3, batch.mask.shape, generator=numbers)
    columns_ = {"reward": like(batch, seed=6), "value": like(batch, seed=7), "mask": batch.mask}
    return {**columns_, "group": batch.group, "step_end": ends, "step_state": state}


def call(part: Any, given: Columns) -> Any:
    value = given["value"] if part.reads_value else None
    states = (given["step_state"],) if part.reads_states else ()
    return part(given["reward"], value, given["mask"], given["group"], given["step_end"], *states)


TRIAL = Trial(given, call, ("advantage", "returns"))


def ties_are_zero(part: Any, batch: Draw) -> str:
    """Equal rewards of a group, up to the rounding of float32: no epsilon may blow that up."""
    if not part.compares_within_group:
        return ""
    tied = torch.full((8, 1), 0.3, dtype=torch.float64)
    tied[7] = float(torch.tensor(0.3, dtype=torch.float32))
    return _zero(part, tied, torch.zeros(8, dtype=torch.long), "of equal rewards")


def alone_is_zero(part: Any, batch: Draw) -> str:
    """Give 0 to a completion that has no other to compare with."""
    if not part.compares_within_group:
        return ""
    lone = torch.tensor([[1.0], [math.nan], [math.nan], [0.5]], dtype=torch.float64)
    return _zero(part, lone, torch.tensor([0, 0, 0, 1]), "of a completion alone in its group")


def a_missing_reward_does_not_vote(part: Any, batch: Draw) -> str:
    """Treat a completion whose reward is NaN as one that is masked, and no other."""
    plain = given(part, batch)
    row = int((batch.mask & plain["step_end"]).any(-1).nonzero()[1])
    mask, reward = batch.mask.clone(), plain["reward"].clone()
    mask[row] = False
    reward[row, int((batch.mask & plain["step_end"])[row].nonzero()[0])] = math.nan
    without, answer = call(part, {**plain, "mask": mask}), call(part, {**plain, "reward": reward})
    return first_of(*(differs(name, a, b) for name, a, b in zip(TRIAL.answers, answer, without, strict=True)))


def takes_whole_numbers(part: Any, batch: Draw) -> str:
    """Rewards of 0 and 1 need not be floating-point numbers."""
    plain = given(part, batch)
    whole = (2 * plain["reward"]).long()
    answer, expected = call(part, {**plain, "reward": whole}), call(part, {**plain, "reward": whole.float()})
    return differs("advantage", answer[0].double(), expected[0].double(), 1e-6)


def _zero(part: Any, reward: Tensor, group: Tensor, words: str) -> str:
    mask = torch.ones_like(reward, dtype=torch.bool)
    answer = call(
        part,
        {"reward": reward, "value": reward, "mask": mask, "group": group, "step_end": mask, "step_state": mask.long()},
    )
    return differs(f"the advantage {words}", answer[0], torch.zeros_like(reward), 0)


WITHIN = (
    "Subclass WithinGroup of groupwise.algorithms.parts.advantage and write scaled(), or call its centre(), which give "
    "these 0; or "
)

LAWS = (
    *every.LAWS,
    *columns.laws(TRIAL),
    Law(
        "where it compares within a group, ties are exactly 0",
        ties_are_zero,
        f"{WITHIN}answer 0 where the rewards of a group lie within 1e-6.",
    ),
    Law(
        "where it compares within a group, a lone completion is exactly 0",
        alone_is_zero,
        f"{WITHIN}answer 0 where fewer than two completions of a group have a reward.",
    ),
    Law(
        "a reward that is NaN takes its completion out and no other",
        a_missing_reward_does_not_vote,
        "Treat it as if its row had no trained token: mask = mask & ~row_sum(reward, mask).isnan()[:, None], before "
        "anything else; of what reads step ends alone, the sum over these.",
    ),
    Law(
        "rewards may be whole numbers",
        takes_whole_numbers,
        "Begin with reward = real(reward) of groupwise.core.masked.",
    ),
)
