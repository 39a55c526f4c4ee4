"""Laws of reward shaping."""

from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws import columns, every
from groupwise.algorithms.laws.columns import Columns, Trial
from groupwise.algorithms.laws.draws import Draw, like
from groupwise.algorithms.laws.law import Law, first_of, not_finite
from groupwise.core.records import Batch


def given(part: Any, batch: Draw) -> dict[str, Tensor]:
    """Scores a completion, and from no to several scored steps in it."""
    ends = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(8)) < 0.4
    scores = {"score": batch.advantage, "step_score": like(batch, seed=6), "step_end": ends}
    return {"mask": batch.mask, "group": batch.group, "old": batch.old, **scores}


def call(part: Any, given: Columns) -> Any:
    return part(_batch(given))


def _batch(given: Columns, steps: bool = True) -> Batch:
    rows, width = given["mask"].shape
    return Batch(
        tokens=torch.zeros(rows, width, dtype=torch.long),
        mask=given["mask"],
        length=torch.full((rows,), width),
        group=given["group"],
        score=given["score"],
        version=torch.zeros(rows, dtype=torch.long),
        logp_engine=given["old"],
        logp_old=given["old"],
        step_score=given["step_score"] if steps else None,
        step_end=given["step_end"] if steps else None,
    )


TRIAL = Trial(given, call, ("reward",))


def lives_without_steps(part: Any, batch: Draw) -> str:
    """Most tasks have no scores of steps; only what declares needs_steps may ask for them."""
    if part.needs_steps:
        return ""
    return not_finite("reward without scores of steps", part(_batch(given(part, batch), steps=False)))


def a_row_without_tokens_may_have_no_score(part: Any, batch: Draw) -> str:
    """Try a completion that could not be scored: a row of the batch without a trained token."""
    unscored = {**given(part, batch), "score": torch.where(batch.mask.any(1), batch.advantage, torch.nan)}
    reward = call(part, unscored)
    return first_of(not_finite("reward at trained tokens", reward[batch.mask]))


LAWS = (
    *every.LAWS,
    *columns.laws(TRIAL),
    Law(
        "it needs scores of steps only where it declares so",
        lives_without_steps,
        "Ask whether batch.step_end is None, or set needs_steps = True as a line of the class.",
    ),
    Law(
        "a row that could not be scored spoils no other",
        a_row_without_tokens_may_have_no_score,
        "Its score is NaN and none of its tokens is trained: place scores by at_last_token(score, batch.mask) of "
        "groupwise.algorithms.parts.shaping, and take no mean over batch.score with NaN in it.",
    ),
)
