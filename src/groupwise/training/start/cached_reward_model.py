"""A run's reward model in the cache, made if it is not there: preference pairs, read from a file or sampled and ranked,
and how good the model is on held-out ones (accuracy, its ceiling, calibration).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor

from groupwise.core.engine import Engine, Sampling
from groupwise.core.errors import RunError, UsageError, one_line
from groupwise.core.files.dataclass_json import to_json
from groupwise.core.files.json_text import encoded, json_value
from groupwise.core.files.paths import require_regular
from groupwise.core.numbers.seeds import derive, stream
from groupwise.core.records import Group
from groupwise.engines.make import make_engine, require_sampling
from groupwise.engines.settings import EngineSettings
from groupwise.models import scalar_heads
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import Policy, digest, prompt_ids, save_policy, text_ids
from groupwise.models.scalar_heads import RewardModel, reward_model_of
from groupwise.rollout.collect import Prompts, scored_groups
from groupwise.rollout.scoring import Scorer
from groupwise.rollout.segments import advance
from groupwise.training.checkpoint import cached_folder
from groupwise.training.optimizer import OnStep, silent
from groupwise.training.start import reward_model
from groupwise.training.start.reward_model import Comparison, PreferenceSettings, bradley_terry, train_reward_model
from groupwise.training.start.warm_start import fingerprint

KEYS = ("prompt", "chosen", "rejected")
#: Prompts drawn for each pair wanted, after which sampling gives up.
DRAWS_PER_PAIR = 10
#: Prompts of one round of generation, at least and at most.
LEAST_ROUND, ROUND = 32, 512

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """A labelled pair as text: `chosen` is preferred to `rejected`."""

    prompt: str
    chosen: str
    rejected: str


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a JSONL file, one object a line with the texts prompt, chosen and rejected; other keys are
    ignored.

    Raises UsageError, naming file and line, if a line is not that, or where both completions are the same.
    """
    require_regular(path, f"{path}: cannot be read as a file of pairs")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as a file of pairs: {error.strerror}") from None
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip()]
    if not lines:
        raise UsageError(f"{path}: holds no pairs; expected a line of JSON with {', '.join(KEYS)} for each")
    return [_read_line(line, f"{path}, line {number}") for number, line in lines]


def encode_pairs(policy: Policy, pairs: Sequence[Pair]) -> list[Comparison]:
    """Encode pairs as the policy would have sampled them: prompt and completion apart, the end id appended.

    Raises UsageError, naming the pair by its number from 1, if a text cannot be tokenised or is too long.
    """
    end = policy.tokenizer.eos_token_id
    end = min(policy.eos) if end is None else end
    comparisons = []
    for number, pair in enumerate(pairs, start=1):
        where = f"pair {number}: "
        prompt = prompt_ids(policy.tokenizer, [pair.prompt], where)[0]
        texts = text_ids(policy.tokenizer, [pair.chosen, pair.rejected], where)
        chosen, rejected = [(*ids, end) for ids in texts]
        longest = len(prompt) + max(len(chosen), len(rejected))
        if longest > policy.positions:
            raise UsageError(f"pair {number}: {longest} tokens, but the model takes {policy.positions}; take it out")
        comparisons.append(Comparison(tuple(prompt), chosen, rejected))
    return comparisons


def sample_pairs(
    engine: Engine,
    scorer: Scorer,
    prompts: Prompts,
    sampling: Sampling,
    per_prompt: int,
    count: int,
    noise: float,
    seed: int,
) -> list[Comparison]:
    """Sample `count` pairs of completions, ranked by the task's score; each label is wrong with chance `noise`.

    Every prompt gets `per_prompt` completions and gives as many pairs as it has completions of different scores to put
    together, the best with the worst. The same seed gives the same pairs. Raises RunError if the completions of
    10 * count prompts differ too seldom.
    """
    distinct: dict[Comparison, None] = {}  # ordered, and a pair that comes again counts once
    drawn = tied = 0
    while len(distinct) < count and drawn < DRAWS_PER_PAIR * count:
        draws = range(drawn, drawn + min(max(count - len(distinct), LEAST_ROUND), ROUND))
        seeds = [derive(seed, "pairs", i) for i in draws]
        groups = scored_groups(
            partial(advance, engine), scorer, [prompts.draw(i) for i in draws], seeds, per_prompt, sampling
        )
        by_group = [ranked(group) for group in groups]
        drawn, tied = drawn + len(groups), tied + sum(not pairs for pairs in by_group)
        distinct |= dict.fromkeys(pair for pairs in by_group for pair in pairs)
    if len(distinct) < count:
        raise RunError(
            f"reward model: {drawn} prompts x {per_prompt} completions gave {len(distinct)} of {count} different "
            f"pairs; {tied} prompts had completions of one score only; raise the samples a prompt or the temperature, "
            "ask for fewer pairs, or change the warm start"
        )
    return flip(list(distinct)[:count], noise, seed)


def ranked(group: Group) -> list[Comparison]:
    """Pair the group's best completion with its worst, the next best with the next worst, ... while scores differ."""
    scored = sorted((c for c in group.completions if not math.isnan(c.score)), key=lambda c: c.score, reverse=True)
    return [
        Comparison(group.prompt.tokens, best.tokens, worst.tokens, right=True)
        for best, worst in zip(scored, reversed(scored), strict=True)
        if best.score > worst.score
    ]


def flip(comparisons: Sequence[Comparison], noise: float, seed: int) -> list[Comparison]:
    """Return each label swapped with chance `noise`, a fixed draw of `seed`."""
    draws = torch.rand(len(comparisons), generator=stream(seed, "label noise"), dtype=torch.float64)
    return [pair.swapped() if draw < noise else pair for pair, draw in zip(comparisons, draws.tolist(), strict=True)]


def split_by_prompt(
    comparisons: Sequence[Comparison], heldout: int, seed: int
) -> tuple[list[Comparison], list[Comparison]]:
    """Split pairs into those for training and `heldout` held out or more: whole prompts, drawn by `seed`.

    No prompt has pairs in both. Raises UsageError if one of the two would be empty.
    """
    pairs_of = Counter(pair.prompt for pair in comparisons)
    prompts = list(pairs_of)  # in the order of their first pairs
    held: set[Tokens] = set()
    count = 0
    for index in torch.randperm(len(prompts), generator=stream(seed, "held-out pairs")).tolist():
        if count >= heldout:
            break
        held.add(prompts[index])
        count += pairs_of[prompts[index]]
    train = [pair for pair in comparisons if pair.prompt not in held]
    if not train or not held:
        raise UsageError(
            f"{len(comparisons)} pairs of {len(prompts)} prompts cannot be split into training pairs and {heldout} "
            "held-out pairs of other prompts; give pairs of more prompts"
        )
    return train, [pair for pair in comparisons if pair.prompt in held]


def _read_line(line: bytes, where: str) -> Pair:
    row = json_value(line, where)
    if not isinstance(row, dict):
        raise UsageError(f"{where}: expected an object with {', '.join(KEYS)}")
    for key in KEYS:
        if not isinstance(row.get(key), str) or not row[key]:
            raise UsageError(f"{where}: {key!r} is missing, empty or no text; every pair needs {', '.join(KEYS)}")
        encoded(row[key], where)
    if row["chosen"] == row["rejected"]:
        raise UsageError(f"{where}: chosen and rejected are the same text, which says nothing; take the line out")
    return Pair(**{key: row[key] for key in KEYS})


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
    code = [inspect.getsource(module) for module in (scalar_heads, reward_model, sys.modules[__name__])]
    how = settings.replace(path=None, offload=False)  # a file is known by its pairs, wherever it lies
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
