"""What the run folder's files hold, line by line: columns per token, texts of any kind, and cutting back."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from groupwise.commands.train.resume import resumed
from groupwise.config import recipe
from groupwise.config.plan import about
from groupwise.config.resolve import resolve
from groupwise.core.collate import collate, minibatches
from groupwise.core.files import jsonl
from groupwise.core.machine.facts import machine_row
from groupwise.core.numbers.metrics import read
from groupwise.core.numbers.seeds import stream
from groupwise.core.records import Batch, Completion, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.stream import RolloutResult
from groupwise.core.updates import UpdateRecord
from groupwise.diagnostics.updates import engine_gap, loss_metrics
from groupwise.journal.journal import Journal, read_about, read_metrics
from groupwise.journal.per_token import PerToken, expand, packed
from groupwise.journal.rollout_rows import Spelling, rollout_rows
from groupwise.models.load import Policy


def completion(length: int, score: float = 1.0, text: str = "x", version: int = 0) -> Completion:
    tokens = tuple(range(3, 3 + length))
    return Completion.of_one_turn(tokens, tuple(-0.5 * t for t in tokens), "stop", version, text=text, score=score)


def group(*completions: Completion, prompt: int = 2) -> Group:
    return Group(Prompt(Sample("key", "prompt", "answer"), tuple(range(prompt))), completions)


def harvest(*groups: Group) -> RolloutResult:
    return RolloutResult(groups, groups, 0, 0, (), 1)


def credited(batch: Batch) -> Batch:
    """Every token's advantage says where it stands: 100 row + column."""
    place = 100.0 * torch.arange(len(batch))[:, None] + torch.arange(batch.tokens.shape[1])
    return batch.add(advantage=place, reward=torch.zeros(batch.mask.shape))


@pytest.mark.parametrize("seed", range(5))
def test_a_packed_column_has_every_bit_of_what_was_packed(seed: int):
    draw = np.random.default_rng(seed)
    column = draw.normal(size=(20, 9)).astype(np.float32) * 10.0 ** draw.integers(-30, 30, size=(20, 9))
    column = column.astype(np.float32)
    start = draw.integers(0, 4, size=20).tolist()
    stop = [s + int(n) for s, n in zip(start, draw.integers(1, 6, size=20), strict=True)]
    for row, first, last in zip(column[::3], start[::3], stop[::3], strict=True):
        row[first:last] = row[first]
    column[:, 0] = np.nan if seed == 4 else column[:, 0]
    told = orjson.loads(orjson.dumps(packed(column, start, stop), option=orjson.OPT_SERIALIZE_NUMPY))
    alone = 0
    for row, first, last, value in zip(column, start, stop, told, strict=True):
        alone += not isinstance(value, list)
        assert np.array_equal(np.array(expand(value, last - first), dtype=np.float32), row[first:last], equal_nan=True)
    assert 5 <= alone < 20
    with pytest.raises(ValueError, match="a column of 2 numbers for 3 tokens"):
        expand([1.0, 2.0], 3)


def test_what_an_update_saw_comes_back_to_its_completion():
    """Minibatches are shuffled and narrower than the batch; every number still says its own place."""
    groups = [group(completion(1 + g), completion(4 - g % 3), prompt=2 + g) for g in range(4)]
    batch = credited(collate(groups, pad=0))
    tokens = PerToken(batch, 10**6)
    order = []
    for number, part in enumerate(minibatches(batch, 2, stream(0, "x")), start=1):
        order += part.need("row").tolist()
        zeros = torch.zeros(part.mask.shape)
        seen = UpdateRecord(part.need("advantage") + number / 2, zeros, zeros, zeros, None)
        tokens.update(part.add(weight=zeros.double() + 1 / 3), seen)
    assert order != sorted(order)
    assert sorted(order) == list(range(8))
    for place, packed_row in tokens.rows().items():
        told = json.loads(jsonl.encoded(packed_row))
        prompt, length = 2 + place // 2, len(groups[place // 2].completions[place % 2].tokens)
        there = [100.0 * place + prompt + t for t in range(length)]
        assert expand(told["per_token"]["advantage"], length) == there
        assert expand(told["per_token"]["logp_engine"], length) == [-0.5 * (3 + t) for t in range(length)]
        (update,) = told["updates"]
        assert expand(update["logp_live"], length) == [x + update["update"] / 2 for x in there]
        assert update["weight"] == 1 / 3
        assert "kl" not in update
        assert "logp_old" not in told["per_token"]


@pytest.mark.parametrize(("budget", "rows"), [(0, 0), (2, 0), (3, 2), (7, 2), (8, 4), (9, 4), (10, 6)])
def test_the_budget_takes_whole_groups_in_order(budget: int, rows: int):
    groups = [group(completion(n), completion(m)) for n, m in ((1, 2), (4, 1), (1, 1))]
    assert len(PerToken(credited(collate(groups, pad=0)), budget).rows()) == rows


def test_rows_that_do_not_train_have_nothing_per_token():
    lost, cut = completion(2, math.nan), dataclasses.replace(completion(2), finish="length")
    batch = credited(collate([group(completion(2), lost, cut)], pad=0, mask_truncated=True))
    rows = list(rollout_rows(1, harvest(group(completion(2), lost, cut)), batch, PerToken(batch, 99), lambda t: ["a"]))
    columns = {"pieces", "per_token", "updates"}
    assert [columns & row.keys() for row in rows] == [columns, set(), set()]
    assert all(list(row)[:3] == ["step", "group", "fate"] for row in rows)


def test_texts_of_any_kind_are_written_and_read_back(tmp_path: Path):
    """Half a surrogate pair, which JSON in UTF-8 cannot hold, becomes the replacement character."""
    texts = ["a\nb\u2028c", '"}\n{"step":9,', "\ud83d", "\U0001f600", "\x00\x1b[1m", "\ud83d\ude00", "</script>"]
    told = group(*(completion(1, text=text) for text in texts))
    batch = credited(collate([told], pad=0))
    book = Journal.create(tmp_path / "run", "")
    book.rollouts(rollout_rows(1, harvest(told), batch, PerToken(batch, 99), lambda tokens: ["\udc00"]))
    book.log("half \ud83d")
    book.close()
    rows = [json.loads(x) for x in (tmp_path / "run" / "rollouts.jsonl").read_text("utf-8").split("\n") if x]
    assert [r["completion"] for r in rows] == [*texts[:2], "\ufffd", texts[3], texts[4], "\U0001f600", texts[6]]
    assert {tuple(r["pieces"]) for r in rows} == {("\ufffd",)}
    assert list(jsonl.rows(tmp_path / "run" / "rollouts.jsonl")) == rows
    assert (tmp_path / "run" / "log.txt").read_text() == "half \\ud83d\n"


GOOD = [
    b'{"step":0,"evaluation":{"pass_at_k":{"1":0.5}}}\n',
    b'{"step": 1, "text": "as it was \\"{\\"step\\":7\\" before"}\n',
    b'{"step":2,"parts":{"step":0.5}}\n',
    b'{"loss":1,"step":3}\n',
    b'{"step":10}\n',
]
BAD = [
    b'{"step":2,"half a li\n',
    b'{"step":1,"half{"step":1,"whole":2}\n',
    b"\n",
    b"5\n",
    b'{"no step":1}\n',
    b"\xff\xfe}\n",
    b'{"step":"2"}\n',
]


@pytest.mark.parametrize("last", [-1, 0, 1, 2, 3, 9, 10])
@pytest.mark.parametrize("end", [b"", b'{"step":1}', b'{"step":1', b'{"step":1,"a":{}', b'{"step":1,"a'])
def test_cutting_keeps_whole_rows_up_to_the_step_and_nothing_else(last: int, end: bytes, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(a + b for a, b in zip(GOOD, BAD, strict=False)) + b"".join(BAD) + end)
    jsonl.cut(path, last)
    steps = [0, 1, 2, 3, 10]
    kept = [line for line, step in zip(GOOD, steps, strict=True) if step <= last]
    whole = [b'{"step":1}\n'] if end == b'{"step":1}' and last >= 1 else []
    assert path.read_bytes() == b"".join([*kept, *whole])
    assert [row["step"] for row in jsonl.rows(path)] == [json.loads(x)["step"] for x in kept + whole]
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


def test_reading_passes_over_what_is_no_row(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_bytes(b"".join([*BAD, *GOOD, b'{"step":11,"cu']))
    assert [r.get("step") for r in read_metrics(tmp_path)] == [None, "2", 0, 1, 2, 3, 10]
    assert read_metrics(tmp_path / "nowhere") == []


def test_each_token_is_spelled_by_itself(policy: Policy):
    spell = Spelling(policy.tokenizer)
    ids = policy.tokenizer("12+3=", add_special_tokens=False)["input_ids"]
    end = policy.tokenizer.eos_token_id
    assert spell([*ids, end]) == ["1", "2", "+", "3", "=", policy.tokenizer.eos_token]
    assert spell([10**6]) == ["<1000000>"]


def test_a_space_in_front_of_a_word_is_spelled():
    words = Tokenizer(models.WordLevel({"▁so": 0, "it": 1, "<s>": 2}, unk_token="<s>"))
    words.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>")
    assert Spelling(tokenizer)([0, 1, 0, 2]) == [" so", "it", " so", "<s>"]


def test_the_ratios_of_an_update_have_their_quantiles():
    """Tokens 1, 2, 4 and 1, 1/4 of two completions: the geometric means are 2 and 1/2."""
    mask = torch.tensor([[False, True, True, True], [True, True, False, False]])
    gap = torch.tensor([[9.0, 1.0, 2.0, 4.0], [1.0, 0.25, 9.0, 9.0]]).log()
    batch = dataclasses.replace(
        collate([group(completion(1), completion(1))], pad=0),
        mask=mask,
        logp_old=torch.full((2, 4), -2.0),
        advantage=torch.zeros(2, 4),
        weight=mask.double(),
    )
    zeros = torch.zeros(2, 4)
    seen = UpdateRecord(gap - 2, zeros, zeros, zeros, None)
    found = read(loss_metrics(batch, seen))
    # In order 1/4, 1, 1, 2, 4: place q stands at 4 q.
    expected = {"01": 0.25 + 0.04 * 0.75, "10": 0.25 + 0.4 * 0.75, "50": 1.0, "90": 2 + 0.6 * 2, "99": 2 + 0.96 * 2}
    for place, value in expected.items():
        assert found[f"ratio_token_p{place}"] == pytest.approx(value, rel=1e-6)
    for place, at in (("01", 0.01), ("10", 0.1), ("50", 0.5), ("90", 0.9), ("99", 0.99)):
        assert found[f"ratio_sequence_p{place}"] == pytest.approx(0.5 + at * 1.5, rel=1e-6)
    alone = read(loss_metrics(dataclasses.replace(batch, logp_old=None), seen))
    assert {v for k, v in alone.items() if k.startswith(("ratio_token_p", "ratio_sequence_p"))} == {1.0}
    nothing = read(loss_metrics(dataclasses.replace(batch, mask=mask & False), seen))
    assert math.isnan(nothing["ratio_token_p50"])
    assert math.isnan(nothing["ratio_sequence_p50"])


def test_the_engines_mismatch_is_told_as_a_factor():
    """k = 2 and 1/2 on the newest rows; what older weights sampled is left out."""
    groups = [group(completion(2, version=3), completion(2, version=2))]
    batch = collate(groups, pad=0)
    logp = batch.logp_engine + torch.tensor([[0.0, 0.0, math.log(2), -math.log(2)], [0.0, 0.0, 5.0, 5.0]])
    newest = batch.mask & (batch.version == 3)[:, None]
    found = read(engine_gap(logp, batch.logp_engine, newest))
    assert found["engine_probability_error"] == pytest.approx(2, rel=1e-6)
    assert found["engine_effective_sample_share"] == pytest.approx(2.5**2 / (2 * 4.25), rel=1e-6)
    assert found["engine_gap_max"] == pytest.approx(math.log(2), rel=1e-6)
    none = read(engine_gap(logp, batch.logp_engine, newest & False))
    assert math.isnan(none["engine_probability_error"])
    assert math.isnan(none["engine_effective_sample_share"])


def test_the_machine_is_told_as_it_is():
    before = machine_row(3)
    held = torch.ones(2**25)  # 128 MiB
    after = machine_row(4)
    assert held.sum() == 2**25
    assert after["memory_peak_mib"] >= before["memory_peak_mib"] > 50
    assert after["memory_peak_mib"] < 2**20
    assert after["time"] >= before["time"] > 1.7e9
    assert list(before) == ["step", "time", "memory_peak_mib"]


def test_a_run_says_what_it_is(tmp_path: Path):
    plan = resolve(recipe.load("quickstart", {"algorithm.name": "dapo", "device": "cpu"}))
    told = json.loads(jsonl.encoded(about(plan, 12.0)))
    assert (told["started"], told["task"], told["resumed"]) == (12.0, "arithmetic", [])
    assert told["algorithm"]["objective"].startswith("J = sum_it")
    parts = {part["slot"]: part for part in told["algorithm"]["parts"]}
    assert parts["trust"]["kind"] == "clip"
    assert parts["trust"]["value"] == "epsilon_low=0.2, epsilon_high=0.28, dual_clip=0.0"
    assert parts["kl"] == {"slot": "kl", "kind": "off", "value": "", "equation": "no penalty"}
    assert {"shaping", "filter", "advantage", "ratio", "mismatch", "aggregate", "entropy", "passes"} < parts.keys()
    again = resumed(resumed(told, 3, 20.0, "cpu"), 5, 30.0, "cpu")
    assert [(r["step"], r["started"]) for r in again["resumed"]] == [(3, 20.0), (5, 30.0)]
    assert again["resumed"][0]["versions"] == told["versions"]
    assert {k: v for k, v in again.items() if k != "resumed"} == {k: v for k, v in told.items() if k != "resumed"}
    assert read_about(tmp_path) == {}
    (tmp_path / "about.json").write_text("{half")
    assert read_about(tmp_path) == {}
