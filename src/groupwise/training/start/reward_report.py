"""How good a reward model is on held-out preference pairs: accuracy, its ceiling, and calibration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor

from groupwise.core.errors import UsageError, one_line
from groupwise.models.scalar_heads import RewardModel
from groupwise.training.start.pairs import Comparison
from groupwise.training.start.reward_model import bradley_terry

REPORT = "preference.json"
BINS = 10


@dataclass(frozen=True)
class Bin:
    """Held-out pairs whose predicted P(first preferred) lies in [low, high); `predicted` is their mean of it.

    Which of a pair comes first means nothing, so each is looked at both ways round: `count` is of views, two a pair.
    observed is the share of views whose first is preferred by the label. Both are None in an empty bin.
    """

    low: float
    high: float
    count: int
    predicted: float | None
    observed: float | None


@dataclass(frozen=True)
class PreferenceReport:
    """How good a reward model is on held-out pairs, whose prompts it has not been trained on. Ties count half.

    accuracy           share of held-out pairs ordered as labelled, wrong labels included
    accuracy_true      share ordered as the true ranking has them; None where that is unknown
    ceiling            1 - noise: the accuracy as labelled that a perfect ranking is expected to reach; None for a file
    labels_right       share of held-out labels that agree with the true ranking: the ceiling as it was drawn
    share_of_ceiling   accuracy / ceiling
    loss               mean Bradley-Terry loss of held-out pairs, nats
    calibration_error  mean over views of |predicted - observed| of their bin (expected calibration error)
    seconds            what sampling, training and measuring took
    """

    pairs: int
    heldout_pairs: int
    updates: int
    accuracy: float
    accuracy_true: float | None
    ceiling: float | None
    labels_right: float | None
    share_of_ceiling: float | None
    loss: float
    calibration_error: float
    calibration: tuple[Bin, ...]
    seconds: float = field(default=math.nan, compare=False)

    def in_words(self) -> list[str]:
        """Return what a person should know before anything trains on its scores."""
        allowed = "" if self.ceiling is None else f", {self.share_of_ceiling:.1%} of the {self.ceiling:.3f} that wrong "
        allowed += "labels allow" if allowed else ""
        true = "" if self.accuracy_true is None else f"; by the true ranking {self.accuracy_true:.3f}"
        return [
            f"reward model  orders {self.accuracy:.3f} of {self.heldout_pairs} held-out pairs as labelled{allowed}"
            f"{true}",
            f"              calibration error {self.calibration_error:.3f}; trained on {self.pairs} pairs",
        ]


def report_on(
    model: RewardModel, heldout: Sequence[Comparison], ceiling: float | None, pairs: int = 0, updates: int = 0
) -> PreferenceReport:
    """Measure the model on held-out pairs; `pairs` and `updates` say what it was trained on."""
    prompts = [pair.prompt for pair in heldout]
    chosen = model.scores(prompts, [pair.chosen for pair in heldout])
    rejected = model.scores(prompts, [pair.rejected for pair in heldout])
    gap = torch.tensor(chosen, dtype=torch.float64) - torch.tensor(rejected, dtype=torch.float64)
    right = None if any(p.right is None for p in heldout) else torch.tensor([bool(p.right) for p in heldout])
    accuracy = _share_above(gap)
    bins = calibration(gap)
    return PreferenceReport(
        pairs=pairs,
        heldout_pairs=len(heldout),
        updates=updates,
        accuracy=accuracy,
        accuracy_true=None if right is None else _share_above(torch.where(right, gap, -gap)),
        ceiling=ceiling,
        labels_right=None if right is None else float(right.double().mean()),
        share_of_ceiling=None if ceiling is None else accuracy / ceiling,
        loss=float(bradley_terry(gap, torch.zeros_like(gap))),
        calibration_error=calibration_error(bins),
        calibration=bins,
    )


def calibration(gap: Tensor) -> tuple[Bin, ...]:
    """[M] score differences, chosen minus rejected -> BINS equal bins of predicted P(first preferred).

    Each pair is seen both ways round: as sigmoid(gap) with the first preferred, and as sigmoid(-gap) with the second.
    """
    predicted = torch.cat([gap, -gap]).sigmoid()
    preferred = torch.cat([torch.ones_like(gap), torch.zeros_like(gap)])
    place = (predicted * BINS).long().clamp(max=BINS - 1)
    return tuple(_bin(i / BINS, (i + 1) / BINS, predicted[place == i], preferred[place == i]) for i in range(BINS))


def calibration_error(bins: Sequence[Bin]) -> float:
    """sum of count * |predicted - observed| / sum of count (expected calibration error; Guo et al., 1706.04599)."""
    total = sum(b.count for b in bins)
    gaps = [b.count * abs(b.predicted - b.observed) for b in bins if b.predicted is not None and b.observed is not None]
    return math.fsum(gaps) / total


def read_report(path: Path) -> PreferenceReport:
    """Return the report beside a reward model. Raises UsageError if it is damaged."""
    try:
        return TypeAdapter(PreferenceReport).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: damaged: {one_line(error)[:200]}; take the file away, or bring its copy") from None


def _share_above(gap: Tensor) -> float:
    """Return the share of positive differences, ties counted half, as if a coin decided them."""
    return float(((gap > 0).double() + 0.5 * (gap == 0).double()).mean())


def _bin(low: float, high: float, predicted: Tensor, preferred: Tensor) -> Bin:
    if not len(predicted):
        return Bin(low, high, 0, None, None)
    return Bin(low, high, len(predicted), float(predicted.mean()), float(preferred.mean()))
