"""A run's reward model in the cache, made if it is not there, and how good it is on held-out pairs: accuracy, its
ceiling and calibration.
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
from pydantic import TypeAdapter
from torch import Tensor

from groupwise.core.engine import Sampling
from groupwise.core.errors import UsageError, one_line
from groupwise.core.files.dataclass_json import to_json
from groupwise.core.numbers.seeds import derive
from groupwise.engines.make import make_engine, require_sampling
from groupwise.engines.settings import EngineSettings
from groupwise.models import scalar_heads
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import Policy, digest, save_policy
from groupwise.models.scalar_heads import RewardModel, reward_model_of
from groupwise.rollout.collect import Prompts
from groupwise.rollout.scoring import Scorer
from groupwise.training.checkpoint import cached_folder
from groupwise.training.optimizer import OnStep, silent
from groupwise.training.start import pairs, reward_model
from groupwise.training.start.pairs import encode_pairs, read_pairs, sample_pairs, split_by_prompt
from groupwise.training.start.reward_model import Comparison, PreferenceSettings, bradley_terry, train_reward_model
from groupwise.training.start.warm_start import fingerprint

#: Of a file of pairs, at most this share is held out.
LARGEST_HELDOUT_SHARE = 0.2
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
    code = [inspect.getsource(module) for module in (pairs, scalar_heads, reward_model, sys.modules[__name__])]
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


def _share_above(gap: Tensor) -> float:
    return float(((gap > 0).double() + 0.5 * (gap == 0).double()).mean())
