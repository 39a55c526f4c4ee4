"""A run's reward model, trained on preference pairs by the Bradley-Terry loss: its settings, its training, how good it
is on held-out pairs (accuracy, its ceiling, calibration), and the cache where it lies.
"""

import dataclasses
import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from pydantic import Field, TypeAdapter
from torch import Tensor
from torch.optim import AdamW

from groupwise.core.collate import microbatches
from groupwise.core.engine import Sampling
from groupwise.core.errors import RunError, UsageError, one_line
from groupwise.core.files.dataclass_json import to_json
from groupwise.core.numbers.reproducible import reproducible
from groupwise.core.numbers.seeds import derive, stream
from groupwise.core.settings import Location, Settings
from groupwise.engines.make import make_engine, require_sampling
from groupwise.engines.settings import EngineSettings
from groupwise.models import reward
from groupwise.models.chat.prompts import Chat
from groupwise.models.context import positions
from groupwise.models.load import Policy, digest, save_policy
from groupwise.models.reward import RewardModel, check_rows, reward_model_of
from groupwise.rollout.collect import Prompts
from groupwise.rollout.scoring import Scorer
from groupwise.training.checkpoint import cached_folder
from groupwise.training.optimizer import OnStep, Optimizer, silent
from groupwise.training.start import pairs
from groupwise.training.start.pairs import Comparison, encode_pairs, read_pairs, sample_pairs, split_by_prompt
from groupwise.training.start.warm_start import fingerprint

#: Where pairs come from without a file.
SAMPLED_PAIRS = "pairs of the policy's own completions, ranked by the task"
#: Keys of [preference] that only sampled pairs have: a file's are what they are.
SAMPLING_KEYS = {"pairs", "noise", "samples"}
#: Of a file of pairs, at most this share is held out.
LARGEST_HELDOUT_SHARE = 0.2
REPORT = "preference.json"
BINS = 10


class PreferenceSettings(Settings):
    """The section [preference]: a reward model, ready or made from pairs that are a file's, or sampled and ranked.

    model          the folder of a ready one; nothing else is read then
    path           a file of pairs; the keys of SAMPLING_KEYS are not read then
    pairs          training pairs to sample; a file of pairs is used whole
    heldout_pairs  pairs of other prompts that measure the model; of a file, at most a fifth
    noise          chance that a sampled pair's label is swapped; a file's labels stay as they are
    samples        completions of each prompt that pairs are taken from
    epochs         passes over the training pairs
    batch_size     pairs in an optimizer update
    learning_rate  AdamW's, after a linear warmup over the first tenth and before a linear decay to zero
    weight_decay   AdamW's, times the learning rate
    clip_norm      gradients are scaled down to this norm; 0 leaves them alone
    center         weight of mean((r_chosen + r_rejected)^2), which settles the constant that the loss leaves free
    tokens_per_microbatch  padded tokens held at once; the gradient does not depend on it
    """

    model: Location | None = None
    path: Location | None = None
    pairs: int = Field(default=2000, ge=1, le=10**7)
    heldout_pairs: int = Field(default=500, ge=1, le=10**7)
    noise: float = Field(default=0.1, ge=0, lt=0.5)
    samples: int = Field(default=4, ge=2, le=2**16)
    epochs: int = Field(default=3, ge=1, le=10**6)
    batch_size: int = Field(default=64, ge=1, le=2**20)
    learning_rate: float = Field(default=1e-3, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    clip_norm: float = Field(default=1.0, ge=0)
    center: float = Field(default=0.01, ge=0)
    tokens_per_microbatch: int = Field(default=8192, ge=1)

    @property
    def source(self) -> str:
        """Source of the model or its pairs: a folder, a file, or the policy's own completions."""
        return self.model or self.path or SAMPLED_PAIRS

    @property
    def unread(self) -> set[str]:
        """The keys that nothing reads, given where the model or its pairs come from."""
        if self.model is not None:
            return set(type(self).model_fields) - {"model"}
        return SAMPLING_KEYS if self.path is not None else set()


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
    """Quality of a reward model on held-out pairs, whose prompts it has not been trained on. Ties count half.

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


def cached_reward_model(
    policy: Policy,
    chat: Chat,
    scorer: Scorer,
    sampling: Sampling,
    settings: PreferenceSettings,
    seed: int,
    cache: Path,
    engine_settings: EngineSettings = EngineSettings(),
    on_step: OnStep = silent,
    note: Callable[[str], None] = print,
) -> Path:
    """Return the folder in `cache` of a policy's reward model and its report; made if it is not there yet, or,
    with a line by `note`, if it is damaged.

    The pairs come from the file `settings.path`, or else are the policy's own completions of training prompts, ranked
    by the task's score. Held-out pairs come from other prompts of the same origin; the task's held-out split stays
    untouched.
    """
    from_file = None if settings.path is None else read_pairs(Path(settings.path))
    device = next(policy.model.parameters()).device.type
    code = [inspect.getsource(module) for module in (pairs, reward, sys.modules[__name__])]
    how = settings.replace(path=None)  # a file is known by its pairs, wherever it lies
    # Of the policy count its weights, the ids of every token, and those that end an answer.
    vocabulary = sorted(policy.tokenizer.get_vocab().items())
    policy_parts = (digest(policy.model), vocabulary, sorted(policy.eos), chat.settings)
    sources = (*policy_parts, scorer.task, sampling, how, seed, from_file, engine_settings, device, *code)
    folder = cache / f"reward-{fingerprint(*sources)}"

    def sampled() -> list[Comparison]:
        prompts = Prompts(scorer.task.samples("train"), chat.encode, derive(seed, "preference"))
        count = settings.pairs + settings.heldout_pairs
        with closing(make_engine(policy=policy, settings=engine_settings, note=note)) as engine:
            require_sampling(engine, policy, sampling, "sampling")
            return sample_pairs(engine, scorer, prompts, sampling, settings.samples, count, settings.noise, seed)

    def write(target: Path) -> None:
        began = time.perf_counter()
        if from_file is None:
            comparisons, heldout, ceiling = sampled(), settings.heldout_pairs, 1 - settings.noise
        else:
            comparisons, ceiling = encode_pairs(policy, from_file), None
            heldout = min(settings.heldout_pairs, max(1, int(len(comparisons) * LARGEST_HELDOUT_SHARE)))
        train, held = split_by_prompt(comparisons, heldout, seed)
        model = reward_model_of(policy)
        updates = train_reward_model(model, train, settings, seed, on_step)
        report = report_on(model, held, ceiling, len(train), updates)
        report = dataclasses.replace(report, seconds=time.perf_counter() - began)
        save_policy(model.model, model.tokenizer, target)
        (target / REPORT).write_text(json.dumps(to_json(report), indent=2) + "\n", encoding="utf-8")

    cached_folder(folder, write, "the reward model", note)
    return folder


def train_reward_model(
    model: RewardModel,
    comparisons: Sequence[Comparison],
    settings: PreferenceSettings,
    seed: int,
    on_step: OnStep = silent,
) -> int:
    """Train in place by AdamW on the Bradley-Terry loss -> the number of updates; the same seed gives the same bits.

    Raises ValueError for no pairs or too long ones, RunError where the loss is not finite.
    """
    if not comparisons:
        raise ValueError("a reward model needs at least one pair to train on")
    check_rows([row for pair in comparisons for row in _rows(pair)], positions(model.model.config))
    # Every pair once an epoch, in an order of the epoch's own; the last batch of an epoch may be smaller.
    orders = (
        torch.randperm(len(comparisons), generator=stream(seed, "preference", epoch))
        for epoch in range(settings.epochs)
    )
    batches = [part.tolist() for order in orders for part in order.split(settings.batch_size)]
    adamw = AdamW(model.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)

    def learning_rate(update: int) -> float:
        return settings.learning_rate * rate(update + 1, len(batches))

    optimizer = Optimizer(model.model, adamw, learning_rate, settings.clip_norm)
    for step, batch in enumerate(batches, start=1):
        optimizer.begin()
        loss = gradients(model, [comparisons[i] for i in batch], settings)
        outcome = optimizer.finish(loss)
        if not outcome.applied:
            norm = outcome.gradient_norm
            raise RunError(f"reward model: loss {loss}, gradient {norm} at update {step}; lower the learning rate")
        on_step(step, len(batches), loss)
    adamw.zero_grad(set_to_none=True)
    return len(batches)


def gradients(model: RewardModel, batch: Sequence[Comparison], settings: PreferenceSettings) -> float:
    """Add the gradient of bradley_terry + center * mean((r_c + r_r)^2) over the batch; return that loss.

    However many microbatches it takes, the gradient is the same.
    """
    length = torch.tensor([max(map(len, _rows(pair))) for pair in batch])
    loss = 0.0
    for part in microbatches(length, settings.tokens_per_microbatch // 2):
        rows = [row for i in part.tolist() for row in _rows(batch[i])]
        with reproducible(model.model.device):
            chosen, rejected = model.forward(rows).view(-1, 2).unbind(1)
            share = bradley_terry(chosen, rejected) + settings.center * (chosen + rejected).square().mean()
            share = share * (len(part) / len(batch))
            share.backward()
        loss += share.item()
    return loss


def rate(step: int, steps: int) -> float:
    """Return the learning rate's factor at `step` of 1 to `steps`: up over the first tenth, then down to near 0."""
    rising = max(1, steps // 10)
    return step / rising if step <= rising else (steps - step + 1) / (steps - rising + 1)


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
    """Sort [M] score differences, chosen minus rejected, into BINS equal bins of predicted P(first preferred).

    Each pair is seen both ways round: as sigmoid(gap) with the first preferred, and as sigmoid(-gap) with the second.
    """
    predicted = torch.cat([gap, -gap]).sigmoid()
    preferred = torch.cat([torch.ones_like(gap), torch.zeros_like(gap)])
    place = (predicted * BINS).long().clamp(max=BINS - 1)
    bins = []
    for i in range(BINS):
        inside = place == i
        means = (float(x[inside].mean()) if inside.any() else None for x in (predicted, preferred))
        bins.append(Bin(i / BINS, (i + 1) / BINS, int(inside.sum()), *means))
    return tuple(bins)


def calibration_error(bins: Sequence[Bin]) -> float:
    """Compute sum of count * |predicted - observed| / sum of count (expected calibration error; 1706.04599)."""
    total = sum(b.count for b in bins)
    gaps = [b.count * abs(b.predicted - b.observed) for b in bins if b.predicted is not None and b.observed is not None]
    return math.fsum(gaps) / total


def read_report(path: Path) -> PreferenceReport:
    """Return the report beside a reward model. Raises UsageError if it is damaged."""
    try:
        return TypeAdapter(PreferenceReport).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: damaged: {one_line(error)[:200]}; take the file away, or bring its copy") from None


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


def _share_above(gap: Tensor) -> float:
    return float(((gap > 0).double() + 0.5 * (gap == 0).double()).mean())


def _rows(pair: Comparison) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (*pair.prompt, *pair.chosen), (*pair.prompt, *pair.rejected)
