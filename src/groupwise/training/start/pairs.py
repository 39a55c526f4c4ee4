"""Preference pairs: of one prompt's two completions, which is preferred. Read from a file, or sampled and ranked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from groupwise.core.engine import Engine, Sampling
from groupwise.core.errors import RunError, UsageError
from groupwise.core.files.json_text import encoded, json_value
from groupwise.core.files.paths import require_regular
from groupwise.core.numbers.seeds import derive, stream
from groupwise.core.records import Group
from groupwise.models.load import Policy, prompt_ids, text_ids
from groupwise.rollout.collect import Prompts, scored_groups
from groupwise.rollout.scoring import Scorer
from groupwise.rollout.segments import advance
from groupwise.training.start.reward_model import Comparison

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
