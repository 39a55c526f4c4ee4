"""Five bugs that are planted into the parts, and which verdicts each turns: python -m tests.claims.planted.

The table of docs/findings/claims.md is what this prints; tests/claims/test_planted.py holds the quickest of its lines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from groupwise.algorithms.parts import advantage, aggregate, ratio, trust
from groupwise.claims.articles import CLAIMS
from groupwise.claims.claim import Claim
from groupwise.claims.experiments import Effort
from groupwise.claims.measurements import Measurements, Row, Verdict
from groupwise.core.errors import GroupwiseError
from groupwise.core.masked import group_range, group_sum, keep
from groupwise.models.forward import logprobs


@dataclass(frozen=True)
class Bug:
    """What is wrong, in words; where it is put, and by what."""

    words: str
    where: Any
    name: str
    by: Any

    def plant(self) -> Any:
        """A context in which groupwise has the bug."""
        return mock.patch.object(self.where, self.name, self.by)


_clip = trust.Clip.__call__
_forward = logprobs.HeadLogprobs.forward


def swapped_epsilons(self: trust.Clip, *columns: Tensor) -> trust.Surrogate:
    swapped = dataclasses.replace(self, epsilon_low=self.epsilon_high, epsilon_high=self.epsilon_low)
    return _clip(swapped, *columns)


def by_padded_length(self: aggregate.SequenceMean, mask: Tensor, totals: aggregate.Totals) -> Tensor:
    return mask.double() / (mask.shape[1] * max(totals.completions, 1))


def mean_with_one_more(x: Tensor, vote: Tensor, dense: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    votes = group_sum(vote.to(x.dtype), dense, groups)
    mean = group_sum(keep(x, vote), dense, groups) / (votes + 1)
    has_baseline = vote & ((votes >= 2) & (group_range(x, vote, dense, groups) > 1e-6))[dense]
    return keep(x - mean[dense], has_baseline), votes, has_baseline


def old_less_live(logp_live: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    return keep(logp_old, mask) - keep(logp_live, mask)


def entropy_at_one(
    ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: logprobs.Scoring
) -> tuple[Tensor | None, ...]:
    logp, entropy, *rest = _forward(ctx, states, weight, bias, targets, how)
    assert entropy is not None
    logits = states @ weight.T if bias is None else states @ weight.T + bias
    log_p = logits.log_softmax(-1)
    return logp, entropy.copy_(-(log_p.exp() * log_p).sum(-1)), *rest


BUGS: Mapping[str, Bug] = {
    "swapped epsilon": Bug(
        "the clip takes its lower width for the upper one", trust.Clip, "__call__", swapped_epsilons
    ),
    "wrong normaliser": Bug(
        "the mean per sequence divides by the padded length", aggregate.SequenceMean, "__call__", by_padded_length
    ),
    "biased group mean": Bug("the group's sum is divided by G + 1", advantage, "centre", mean_with_one_more),
    "ratio of the wrong sign": Bug("the log-ratio is old less live", ratio, "_difference", old_less_live),
    "entropy of another temperature": Bug(
        "the entropy is that of logits not divided by the temperature",
        logprobs.HeadLogprobs,
        "forward",
        staticmethod(entropy_at_one),
    ),
}


def verdicts(claims: Sequence[Claim], seeds: int | None = None) -> dict[str, Verdict]:
    """What the claims say now, each measured anew; `seeds` is how many at most, None all of the quick effort."""
    experiments = {e.name: e for claim in claims for e in claim.experiments}
    rows: list[Row] = []
    with TemporaryDirectory() as work:
        for experiment in experiments.values():
            for seed in experiment.seeds_of(Effort.QUICK)[:seeds]:
                measured, error = {}, ""
                try:
                    measured = experiment.measure(seed, Path(work))
                except (GroupwiseError, ValueError, ArithmeticError, RuntimeError) as wrong:  # as a run would say it
                    error = str(wrong) or type(wrong).__name__
                rows.append(Row(experiment.name, seed, experiment.fingerprint, measured, error))
    known = Measurements(rows)
    return {claim.name: claim.verdict(known) for claim in claims}


def with_bug(bug: Bug, claims: Sequence[Claim], seeds: int | None = None) -> dict[str, Verdict]:
    """What they say with the bug planted."""
    with bug.plant():
        return verdicts(claims, seeds)


def table() -> str:
    """The section of the page, after an empty line."""
    quick = [claim for claim in CLAIMS if claim.effort is Effort.QUICK]
    lines = [
        "",
        "## Planted bugs",
        "",
        "    python -m tests.claims.planted",
        "",
        "Five bugs, each planted into the part of groupwise that it belongs to, and the quick verdicts that it "
        "changes.",
        "",
        "| bug | what is wrong | verdicts that change |",
        "|---|---|---|",
    ]
    before = verdicts(quick)
    for name, bug in BUGS.items():
        pairs = ((claim, before[claim].outcome, now.outcome) for claim, now in with_bug(bug, quick).items())
        words = "; ".join(f"{claim}: {was.value} -> {now.value}" for claim, was, now in pairs if was is not now)
        lines.append(f"| {name} | {bug.words} | {words} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(), end="")
