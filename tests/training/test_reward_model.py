"""The reward model end to end: files of pairs, sampled pairs, training to the ceiling, the cache."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from groupwise.core.engine import Sampling
from groupwise.core.errors import RunError, UsageError
from groupwise.core.files.dataclass_json import to_json
from groupwise.core.samples import Sample
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import Policy, prompt_ids
from groupwise.models.scalar_heads import RewardModel, load_reward_model, reward_model_of
from groupwise.rollout.collect import Prompts
from groupwise.rollout.scoring import Scorer
from groupwise.training.start.cached_reward_model import (
    REPORT,
    Comparison,
    Pair,
    PreferenceReport,
    cached_reward_model,
    encode_pairs,
    flip,
    read_pairs,
    read_report,
    report_on,
    sample_pairs,
    split_by_prompt,
)
from groupwise.training.start.reward_model import PreferenceSettings, train_reward_model

GOOD = {"prompt": "1+2=", "chosen": "3", "rejected": "4"}
SETTINGS = PreferenceSettings(pairs=24, heldout_pairs=8, epochs=1, batch_size=8)
SHORT = Sampling(max_new_tokens=6)


class Remainder:
    """A task that any text has a score in: the sum of its characters modulo 3."""

    alphabet = "0123456789+-="
    quick = True

    def __init__(self, spread: int = 3) -> None:
        self.spread = spread

    def __repr__(self) -> str:
        return f"Remainder({self.spread})"

    def samples(self, split: str) -> list[Sample]:
        assert split == "train", "the held-out split stays untouched"
        return [Sample(str(i), f"{i}=", "") for i in range(60)]

    def score(self, sample: Sample, completion: str) -> float:
        return float(sum(map(ord, completion)) % self.spread)


def cached(
    policy: Policy, cache: Path, settings: PreferenceSettings = SETTINGS, task: Any = None, seed: int = 0, **how: Any
) -> Path:
    scorer, sampling = Scorer(task or Remainder(), policy.decode), how.pop("sampling", SHORT)
    return cached_reward_model(policy, Chat(policy.tokenizer), scorer, sampling, settings, seed, cache, **how)


def sevens(count: int, seed: int) -> list[Pair]:
    """Pairs that anybody can rank: the chosen completion has more sevens."""
    rng = random.Random(seed)
    pairs: list[Pair] = []
    while len(pairs) < count:
        texts = sorted(("".join(rng.choices("01247", k=6)) for _ in range(2)), key=lambda text: text.count("7"))
        if texts[0].count("7") < texts[1].count("7"):
            pairs.append(Pair(f"{rng.randrange(10**6)}=", texts[1], texts[0]))
    return pairs


def trained(policy: Policy, noise: float, seed: int = 0, count: int = 600) -> tuple[RewardModel, PreferenceReport]:
    known = [replace(p, right=True) for p in encode_pairs(policy, sevens(count + 300, seed=1))]
    train, held = split_by_prompt(flip(known, noise, seed=5), 300, seed=0)
    model = reward_model_of(policy)
    train_reward_model(model, train, PreferenceSettings(learning_rate=3e-3, epochs=4), seed)
    return model, report_on(model, held, 1 - noise, len(train))


def write(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
    )
    return path


def sampled(policy: Policy, count: int = 20, noise: float = 0.0, seed: int = 0, spread: int = 3) -> list[Comparison]:
    engine = LocalEngine(policy.model, policy.eos, policy.pad)
    task = Remainder(spread)
    prompts = Prompts(task.samples("train"), Chat(policy.tokenizer).encode, 0)
    return sample_pairs(engine, Scorer(task, policy.decode), prompts, SHORT, 4, count, noise, seed)


@pytest.mark.slow
def test_decidable_pairs_are_learned_and_noise_lowers_the_labelled_accuracy_to_the_ceiling_alone(policy):
    _, report = trained(policy, noise=0.0)
    assert report.accuracy == report.accuracy_true > 0.9
    assert report.calibration_error < 0.1
    _, report = trained(policy, noise=0.2, count=1200)
    assert report.accuracy_true is not None
    assert report.labels_right is not None
    assert report.accuracy_true > 0.9
    assert report.labels_right == pytest.approx(0.8, abs=0.08)
    assert report.accuracy == pytest.approx(report.labels_right, abs=0.08)
    assert json.loads(json.dumps(to_json(report)))["ceiling"] == 0.8


def test_a_seed_gives_the_same_bits_whatever_the_global_stream_and_another_seed_others(policy):
    torch.manual_seed(1)
    first, report = trained(policy, 0.0, count=100)
    torch.manual_seed(2)
    again, same = trained(policy, 0.0, count=100)
    other, _ = trained(policy, 0.0, seed=1, count=100)
    weights = [m.model.state_dict() for m in (first, again, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["score.weight"], weights[2]["score.weight"])
    assert same == report


def test_training_that_blows_up_stops_with_a_line(policy):
    model = reward_model_of(policy)
    with torch.no_grad():
        model.model.score.weight.fill_(float("inf"))
    with pytest.raises(RunError, match="at update 1; lower the learning rate"):
        train_reward_model(model, encode_pairs(policy, [Pair(**GOOD)]), SETTINGS, 0)


def test_sampled_pairs_are_ranked_by_the_task_and_keep_their_ids(policy):
    pairs = sampled(policy, count=40)
    assert len(set(pairs)) == 40
    task = Remainder()
    sample = task.samples("train")[0]
    for pair in pairs:
        better, worse = (task.score(sample, policy.decode(ids)) for ids in (pair.chosen, pair.rejected))
        assert better > worse
        assert pair.right
    assert any(pair.chosen[-1] in policy.eos for pair in pairs)


def test_the_same_seed_samples_the_same_pairs_and_noise_only_swaps_them(policy):
    pairs = sampled(policy, count=40)
    assert sampled(policy, count=40) == pairs != sampled(policy, count=40, seed=1)
    noisy = sampled(policy, count=40, noise=0.3)
    assert [n if n.right else n.swapped() for n in noisy] == pairs != noisy


def test_completions_that_never_differ_in_score_end_with_a_line(policy):
    with pytest.raises(RunError, match=r"prompts x 4 completions gave 0 of 5 .* 64 prompts had completions of one sc"):
        sampled(policy, count=5, spread=1)


def test_a_file_of_pairs_is_read_and_ended_like_sampled_completions(policy, tmp_path):
    pairs = read_pairs(write(tmp_path / "pairs.jsonl", GOOD, "", {**GOOD, "chosen": "1\u2028", "note": 3}))
    assert pairs == [Pair("1+2=", "3", "4"), Pair("1+2=", "1\u2028", "4")]
    (found,) = encode_pairs(policy, pairs[:1])
    end = policy.tokenizer.eos_token_id
    assert tuple(prompt_ids(policy.tokenizer, ["1+2="])[0]) == found.prompt
    assert (found.chosen[-1], found.rejected[-1]) == (end, end)
    assert policy.decode(found.chosen) == "3"
    assert found.right is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: expected an object"),
        ({"prompt": "1", "chosen": "2"}, "line 2: 'rejected' is missing"),
        ({**GOOD, "chosen": 3}, "line 2: 'chosen' is missing, empty or no text"),
        ({**GOOD, "prompt": ""}, "line 2: 'prompt' is missing, empty"),
        ({**GOOD, "chosen": "4"}, "line 2: chosen and rejected are the same"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, told):
    path = write(tmp_path / "pairs.jsonl", GOOD, line)
    with pytest.raises(UsageError) as caught:
        read_pairs(path)
    assert f"{path}, {told}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "told"), [(b"\n\n", "holds no pairs"), (b"\xff\xfe", "line 1: byte 1 ")])
def test_a_file_without_pairs_is_named(tmp_path, content, told):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"pairs\.jsonl[:,] {told}"):
        read_pairs(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_pairs(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(("text", "told"), [("x", "tokenizer cannot read it"), ("1" * 300, "the model takes 256")])
def test_a_pair_the_model_cannot_take_is_named(policy, text, told):
    with pytest.raises(UsageError, match=f"pair 2: .*{told}"):
        encode_pairs(policy, [Pair(**GOOD), Pair("1=", text, "2")])


@pytest.mark.parametrize(
    "wrong", [{"noise": 0.5}, {"pairs": 0}, {"samples": 1}, {"center": -1.0}, {"learning_rate": float("nan")}]
)
def test_impossible_settings_are_refused_by_name(wrong):
    (name,) = wrong
    with pytest.raises(ValidationError, match=name):
        PreferenceSettings(**wrong)


def test_the_cache_gives_the_same_model_and_report_without_training_and_nothing_half_made(policy, tmp_path):
    told: list[int] = []

    def interrupt(step: int, steps: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(policy, tmp_path, on_step=interrupt)
    assert list(tmp_path.iterdir()) == []
    folder = cached(policy, tmp_path, on_step=lambda step, steps, loss: told.append(step))
    model, report = load_reward_model(folder), read_report(folder / REPORT)
    assert told == list(range(1, report.updates + 1)) != []
    assert report.pairs + report.heldout_pairs == 32
    assert report.seconds > 0
    assert cached(policy, tmp_path, on_step=interrupt) == folder
    assert model.scores([(5, 6)], [(7, 1)]) != [0.0]


def test_a_sampling_that_the_policy_cannot_follow_is_refused_before_pairs_are_drawn(policy, tmp_path):
    drawn: list[str] = []

    class Watched(Remainder):
        def score(self, sample: Sample, completion: str) -> float:
            drawn.append(completion)
            return super().score(sample, completion)

    with pytest.raises(UsageError, match=r"sampling\.stop"):
        cached(policy, tmp_path, task=Watched(), sampling=SHORT.replace(stop=["Q"]))
    assert drawn == []


def test_whatever_changes_the_model_has_a_place_of_its_own(policy, tmp_path):
    data = write(tmp_path / "pairs.jsonl", *(vars(pair) for pair in sevens(20, seed=0)))
    cache = tmp_path / "cache"

    def count(settings: PreferenceSettings = SETTINGS, seed: int = 0, path: Path | None = data, spread: int = 3) -> int:
        cached(policy, cache, settings.replace(path=path and str(path)), Remainder(spread), seed)
        return len(list(cache.iterdir()))

    assert count() == count() == 1
    assert count(SETTINGS.replace(center=0.5)) == 2
    assert count(seed=1) == 3
    assert count(spread=4) == 4
    write(data, *(vars(pair) for pair in sevens(20, seed=1)))
    assert count() == 5
    with torch.no_grad():
        policy.model.lm_head.weight[3, 3] += 1
    assert count() == 6
    assert count(path=data.rename(tmp_path / "moved.jsonl")) == 6
    assert count(path=None) == 7


def test_a_file_is_held_out_in_part_and_has_no_ceiling(policy, tmp_path):
    data = write(tmp_path / "pairs.jsonl", *(vars(pair) for pair in sevens(50, seed=0)))
    folder = cached(policy, tmp_path, SETTINGS.replace(heldout_pairs=500, path=str(data)))
    report = read_report(folder / REPORT)
    assert (report.pairs, report.heldout_pairs) == (40, 10)
    assert report.ceiling is report.accuracy_true is report.share_of_ceiling is None


def test_a_folder_that_is_no_reward_model_is_named(policy_folder, tmp_path):
    with pytest.raises(UsageError, match=r"no config\.json"):
        load_reward_model(tmp_path)
