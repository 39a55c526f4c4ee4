"""A reward model from ranked preference pairs: the Bradley-Terry loss, its training, and how good the result is."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from groupwise.core.atomic import make_whole
from groupwise.core.collate import microbatches
from groupwise.core.engine import Sampling
from groupwise.core.errors import RunError, UsageError
from groupwise.core.seeds import derive, stream
from groupwise.engines.make import make_engine
from groupwise.engines.settings import EngineSettings
from groupwise.models import reward as reward_module
from groupwise.models.chat import Chat
from groupwise.models.load import Policy, digest
from groupwise.models.reward import RewardModel, check_rows, reward_model_of
from groupwise.rollout.collect import Prompts
from groupwise.rollout.scoring import Scorer
from groupwise.training import pairs as pairs_module
from groupwise.training.pairs import (
    Comparison,
    encode_pairs,
    read_pairs,
    sample_pairs,
    split_by_prompt,
)
from groupwise.training.warm_start import fingerprint

REPORT = "preference.json"
BINS = 10
#: Of a file of pairs, at most this share is held out.
LARGEST_HELDOUT_SHARE = 0.2


def silent(step: int, steps: int, loss: float) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class PreferenceSettings:
    """How a reward model is made.

    pairs          training pairs to sample; a file of pairs is used whole
    heldout_pairs  pairs of other prompts that measure the model; of a file, at most a fifth
    noise          chance that a sampled pair's label is swapped; a file's labels stay as they are
    samples        completions of each prompt that pairs are taken from
    batch_size     pairs in an optimizer update
    learning_rate  AdamW's, after a linear warmup over the first tenth and before a linear decay to zero
    clip_norm      gradients are scaled down to this norm; 0 leaves them alone
    center         weight of mean((r_chosen + r_rejected)^2), which settles the constant that the loss leaves free
    tokens_per_microbatch  padded tokens held at once; the gradient does not depend on it
    """

    pairs: int = 2000
    heldout_pairs: int = 500
    noise: float = 0.1
    samples: int = 4
    epochs: int = 3
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    center: float = 0.01
    tokens_per_microbatch: int = 8192

    def __post_init__(self) -> None:
        least = {"pairs": 1, "heldout_pairs": 1, "samples": 2, "epochs": 1, "batch_size": 1, "tokens_per_microbatch": 1}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise UsageError(f"preference.{name} must be at least {lowest}, not {getattr(self, name)}")
        if not 0 <= self.noise < 0.5:
            raise UsageError(f"preference.noise must be from 0 to below 0.5 (labels drawn by a coin), not {self.noise}")
        for name in ("learning_rate", "weight_decay", "clip_norm", "center"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"preference.{name} must be a number from 0, not {getattr(self, name)}")


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
    accuracy_true      share ordered as the true ranking has them; None where nobody knows it
    ceiling            1 - noise: the accuracy as labelled that a perfect ranking is expected to reach; None for a file
    labels_right       share of held-out labels that agree with the true ranking: the ceiling as it was drawn
    share_of_ceiling   accuracy / ceiling
    loss               mean Bradley-Terry loss of held-out pairs, nats
    calibration_error  mean over views of |predicted - observed| of their bin (expected calibration error)
    seconds            what sampling, training and measuring took when the model was made
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
        """What a person should know before anything trains on its scores."""
        allowed = "" if self.ceiling is None else f", {self.share_of_ceiling:.1%} of the {self.ceiling:.3f} that wrong "
        allowed += "labels allow" if allowed else ""
        true = "" if self.accuracy_true is None else f"; by the true ranking {self.accuracy_true:.3f}"
        return [
            f"reward model  orders {self.accuracy:.3f} of {self.heldout_pairs} held-out pairs as labelled{allowed}"
            f"{true}",
            f"              calibration error {self.calibration_error:.3f}; trained on {self.pairs} pairs",
        ]

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def bradley_terry(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Scalar loss = -mean log sigmoid(r_chosen - r_rejected), nats a pair; scores [M], [M] in reward units.

    P(a preferred to b) = sigmoid(r_a - r_b), so a constant added to all scores changes nothing. Raises ValueError for
    no pairs or unequal shapes. Source: Bradley and Terry (1952); for language models 2203.02155, equation 1.

    >>> bradley_terry(torch.tensor([0.0]), torch.tensor([0.0]))
    tensor(0.6931)
    """
    if chosen.shape != rejected.shape or chosen.dim() != 1 or not len(chosen):
        raise ValueError(f"pairs need two equal rows of scores [M], not {list(chosen.shape)}, {list(rejected.shape)}")
    return -F.logsigmoid(chosen - rejected).mean()


def reward_model(
    policy: Policy,
    chat: Chat,
    scorer: Scorer,
    sampling: Sampling,
    settings: PreferenceSettings,
    seed: int,
    cache: Path,
    path: Path | None = None,
    max_rows: int = 512,
    on_step: Callable[[int, int, float], None] = silent,
) -> Path:
    """The folder in `cache` of a policy's reward model and its report; made now if the same one was not before.

    The pairs come from the file `path`, or else are the policy's own completions of training prompts, ranked by the
    task's score. Held-out pairs come from other prompts of the same origin; the task's held-out split stays untouched.
    """
    file = None if path is None else hashlib.sha256(_bytes_of(path)).hexdigest()
    device = next(policy.model.parameters()).device.type
    code = [inspect.getsource(module) for module in (pairs_module, reward_module)]
    told = (*origin(policy), chat.settings, scorer.task, sampling, settings, seed, file, max_rows, device, *code)
    folder = cache / f"reward-{fingerprint(*told)}"
    make = partial(_make, policy, chat, scorer, sampling, settings, seed, path, max_rows, on_step)
    make_whole(folder, make, "the reward model")
    return folder


def train_reward_model(
    model: RewardModel,
    comparisons: Sequence[Comparison],
    settings: PreferenceSettings,
    seed: int,
    on_step: Callable[[int, int, float], None] = silent,
) -> int:
    """Train in place by AdamW on the Bradley-Terry loss -> updates made; the same seed gives the same bits.

    Raises ValueError for no pairs or too long ones, RunError where the loss is not finite.
    """
    if not comparisons:
        raise ValueError("a reward model needs at least one pair to train on")
    check_rows([row for pair in comparisons for row in _rows(pair)], model.positions)
    optimizer = AdamW(model.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    batches = list(_batches(len(comparisons), settings, seed))
    for step, batch in enumerate(batches, start=1):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * rate(step, len(batches))
        optimizer.zero_grad(set_to_none=True)
        loss = gradients(model, [comparisons[i] for i in batch], settings)
        norm = float(nn.utils.clip_grad_norm_(model.model.parameters(), settings.clip_norm or math.inf))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise RunError(f"reward model: loss {loss}, gradient {norm} at update {step}; lower the learning rate")
        optimizer.step()
        on_step(step, len(batches), loss)
    optimizer.zero_grad(set_to_none=True)
    return len(batches)


def gradients(model: RewardModel, batch: Sequence[Comparison], settings: PreferenceSettings) -> float:
    """Add the gradient of bradley_terry + center * mean((r_c + r_r)^2) over the batch; return that loss.

    However many microbatches it takes, the gradient is the same.
    """
    length = torch.tensor([max(map(len, _rows(pair))) for pair in batch])
    loss = 0.0
    for part in microbatches(length, settings.tokens_per_microbatch // 2):
        rows = [row for i in part.tolist() for row in _rows(batch[i])]
        chosen, rejected = model.forward(rows).view(-1, 2).unbind(1)
        share = bradley_terry(chosen, rejected) + settings.center * (chosen + rejected).square().mean()
        share = share * (len(part) / len(batch))
        share.backward()
        loss += share.item()
    return loss


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


def calibration(gap: Tensor, bins: int = BINS) -> tuple[Bin, ...]:
    """[M] score differences, chosen minus rejected -> `bins` equal bins of predicted P(first preferred).

    Each pair is seen both ways round: as sigmoid(gap) with the first preferred, and as sigmoid(-gap) with the second.
    """
    predicted = torch.cat([gap, -gap]).sigmoid()
    preferred = torch.cat([torch.ones_like(gap), torch.zeros_like(gap)])
    place = (predicted * bins).long().clamp(max=bins - 1)
    return tuple(_bin(i / bins, (i + 1) / bins, predicted[place == i], preferred[place == i]) for i in range(bins))


def calibration_error(bins: Sequence[Bin]) -> float:
    """sum of count * |predicted - observed| / sum of count (expected calibration error; Guo et al., 1706.04599)."""
    total = sum(b.count for b in bins)
    gaps = [b.count * abs(b.predicted - b.observed) for b in bins if b.predicted is not None and b.observed is not None]
    return math.fsum(gaps) / total


def rate(step: int, steps: int) -> float:
    """The factor on the learning rate at `step`, from 1 to `steps`: up over the first tenth, then down to near 0."""
    rising = max(1, steps // 10)
    return step / rising if step <= rising else (steps - step + 1) / (steps - rising + 1)


def read_report(path: Path) -> PreferenceReport:
    """A report as `as_json` wrote it."""
    told = json.loads(path.read_text(encoding="utf-8"))
    return PreferenceReport(**{**told, "calibration": tuple(Bin(**b) for b in told["calibration"])})


def origin(policy: Policy) -> tuple[str, ...]:
    """What of a policy decides its reward model: weights, ids of every token, ids that end an answer."""
    vocabulary = json.dumps(sorted(policy.tokenizer.get_vocab().items()))
    return digest(policy.model), hashlib.sha256(vocabulary.encode()).hexdigest(), repr(sorted(policy.eos))


def _make(
    policy: Policy,
    chat: Chat,
    scorer: Scorer,
    sampling: Sampling,
    settings: PreferenceSettings,
    seed: int,
    path: Path | None,
    max_rows: int,
    on_step: Callable[[int, int, float], None],
    folder: Path,
) -> None:
    began = time.perf_counter()
    if path is None:
        found = _sampled(policy, chat, scorer, sampling, settings, seed, max_rows)
        heldout, ceiling = settings.heldout_pairs, 1 - settings.noise
    else:
        found = encode_pairs(policy, read_pairs(path))
        heldout, ceiling = min(settings.heldout_pairs, max(1, int(len(found) * LARGEST_HELDOUT_SHARE))), None
    train, held = split_by_prompt(found, heldout, seed)
    model = reward_model_of(policy)
    updates = train_reward_model(model, train, settings, seed, on_step)
    report = report_on(model, held, ceiling, len(train), updates)
    report = dataclasses.replace(report, seconds=time.perf_counter() - began)
    model.save(folder)
    (folder / REPORT).write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")


def _sampled(
    policy: Policy,
    chat: Chat,
    scorer: Scorer,
    sampling: Sampling,
    settings: PreferenceSettings,
    seed: int,
    max_rows: int,
) -> list[Comparison]:
    """Training and held-out pairs together, all from the task's training problems."""
    prompts = Prompts(scorer.task.samples("train"), chat.encode, derive(seed, "preference"))
    count = settings.pairs + settings.heldout_pairs
    with closing(make_engine(policy=policy, settings=EngineSettings(max_rows=max_rows))) as engine:
        return sample_pairs(engine, scorer, prompts, sampling, settings.samples, count, settings.noise, seed)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as a file of pairs: {error.strerror}") from None


def _batches(count: int, settings: PreferenceSettings, seed: int) -> Iterator[list[int]]:
    """Every pair once an epoch, in an order of the epoch's own; the last batch of an epoch may be smaller."""
    for epoch in range(settings.epochs):
        order = torch.randperm(count, generator=stream(seed, "preference", epoch))
        yield from (part.tolist() for part in order.split(settings.batch_size))


def _rows(pair: Comparison) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (*pair.prompt, *pair.chosen), (*pair.prompt, *pair.rejected)


def _share_above(gap: Tensor) -> float:
    """The share of positive differences, ties counted half: the chance to be right if a tie is decided by a coin."""
    return float(((gap > 0).double() + 0.5 * (gap == 0).double()).mean())


def _bin(low: float, high: float, predicted: Tensor, preferred: Tensor) -> Bin:
    if not len(predicted):
        return Bin(low, high, 0, None, None)
    return Bin(low, high, len(predicted), float(predicted.mean()), float(preferred.mean()))
