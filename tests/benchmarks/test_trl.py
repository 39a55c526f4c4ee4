"""The benchmark against TRL: lengths that a model has by construction, operations, and which runs are done again."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3ForCausalLM

Module = Callable[[str], ModuleType]


@pytest.mark.parametrize(("mean", "limit"), [(22, 48), (53, 192), (5, 8)])
def test_the_end_has_the_probability_that_gives_the_mean_length(module: Module, mean: int, limit: int) -> None:
    end = module("prepare").end_probability(mean, limit)
    survives = [(1 - end) ** tokens for tokens in range(limit)]  # a token is sampled while none before it was the end
    assert sum(survives) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("vocabulary", [15, 64])
def test_a_model_ends_as_often_as_its_case_says(module: Module, vocabulary: int, tmp_path: Path) -> None:
    prepare, cases = module("prepare"), module("cases")
    for mean_length, share in ((5.0, prepare.end_probability(5.0, 8)), (0.0, 0.0)):
        case = replace(cases.SMOKE, model=cases.Shape(2, 64, vocabulary), mean_length=mean_length)
        prepare.build(case, case.model, tmp_path / case.model_name)
        model = Qwen3ForCausalLM.from_pretrained(tmp_path / case.model_name)
        words = torch.randint(2, vocabulary, (64, 8), generator=torch.manual_seed(1))
        with torch.no_grad():
            probabilities = model(words).logits.softmax(-1).mean((0, 1))
        assert float(probabilities[prepare.END]) == pytest.approx(share, rel=0.05, abs=1e-12)
        assert float(probabilities[prepare.PAD]) < 1e-12
        frequent = probabilities[prepare.END + 1 :][: prepare.FREQUENT].sum() / probabilities[prepare.END + 1 :].sum()
        expected = prepare.SHARE if vocabulary == 64 else prepare.FREQUENT / (vocabulary - 2)
        assert float(frequent) == pytest.approx(expected, rel=0.1)


def test_every_prompt_and_the_one_held_out_are_as_long_as_the_case_says(module: Module, tmp_path: Path) -> None:
    prepare, cases = module("prepare"), module("cases")
    case = replace(cases.CASES["prompts-512"], name="short", prompts=2, samples=2)
    (tmp_path / case.model_name).mkdir()
    (tmp_path / case.model_name / "config.json").touch()  # the model is there already
    prepare.main(case, tmp_path)
    files = (tmp_path / "short.jsonl", tmp_path / "short-heldout.jsonl")
    rows, heldout = ([json.loads(line)["prompt"] for line in file.read_text().splitlines()] for file in files)
    assert (len(rows), len(heldout)) == (case.prompts * case.steps, 1)
    assert len({*rows, *heldout}) == len(rows) + 1
    assert {len(text.split()) for text in (*rows, *heldout)} == {case.prompt_tokens}


def test_our_side_runs_a_case_and_writes_its_row(module: Module, tmp_path: Path) -> None:
    case = module("cases").SMOKE
    module("prepare").main(case, tmp_path)
    module("ours").main(case, tmp_path, tmp_path / "row.json")
    row = json.loads((tmp_path / "row.json").read_text())
    assert row["prompt_tokens"] == case.prompt_tokens
    assert 0 < row["completion_tokens"] <= case.limit
    assert len(row["steps"]) == case.timed


def test_the_operations_of_a_pass_are_those_that_torch_counts(module: Module) -> None:
    prepare, cases, operations = module("prepare"), module("cases"), module("operations")
    model = Qwen3ForCausalLM(prepare.configuration(cases.Shape(2, 64, 100), 16))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.ones(3, 1, dtype=torch.long))
    config = model.config.to_dict()
    counted = operations.forward(config, operations.Sampled(prompts=0, prompt_tokens=0, completions=3, tokens=1))
    attention = 4 * operations.heads_width(config) * config["num_hidden_layers"] * 3 / 2  # half a pair at one token
    assert counted - attention == pytest.approx(counter.get_total_flops(), abs=2 * attention)
    assert attention < 0.01 * counted


def test_a_block_has_each_side_twice_in_turns(module: Module) -> None:
    run, cases = module("run"), module("cases")
    sides = [(block, side) for block, _, side in run.order(replace(cases.SMOKE, blocks=2))]
    assert sides == [(block, side) for block in (0, 1) for side in ("ours", "theirs", "theirs", "ours")]


def test_a_run_that_has_its_row_is_not_run_again(module: Module, tmp_path: Path) -> None:
    run, file = module("run"), tmp_path / "rows.jsonl"
    key = {"kind": "step", "case": "smoke", "source": "a"}
    file.write_text(json.dumps({**key, "steps": []}) + "\n")
    bench = run.Bench(file, tmp_path, "a", threads=1)
    assert bench.run(key, "ours", "no-such-program.py", "smoke")
    assert not bench.run({**key, "source": "b"}, "ours", "no-such-program.py", "smoke")
    assert len(file.read_text().splitlines()) == 1


def row(case: Any, side: str, block: int, source: str, *seconds: float) -> dict[str, Any]:
    steps = [{"step": one, "generate": one / 4, "update": one / 2} for one in seconds]
    key = {"kind": "step", "case": case.name, "digest": case.digest, "source": source, "side": side, "block": block}
    return {**key, "steps": steps, "memory_mib": 100.0 + block}


def test_a_ratio_is_that_of_medians_over_the_newest_source(module: Module) -> None:
    evidence, case = module("evidence"), module("cases").SMOKE
    rows = [
        row(case, "ours", 0, "old", 9.0, 9.0),
        row(case, "ours", 0, "new", 1.0, 1.0, 2.0),
        row(case, "theirs", 0, "new", 4.0, 4.0, 2.0),
        row(case, "theirs", 1, "new", 8.0, 8.0, 8.0),
        row(case, "ours", 1, "new", 2.0, 2.0, 2.0),
    ]
    (pair,) = evidence.pairs(rows, [case])
    assert pair.ratio == pytest.approx(6.0 / 2.0)
    assert pair.block_ratios() == [4.0, 4.0]
    assert pair.of("ours", "memory_mib", max) == 101.0
    assert [*evidence.pairs(rows, [replace(case, limit=9)])] == [], "a case that has changed was not timed"


def test_what_is_timed_is_what_was_fastest_in_the_trial(module: Module) -> None:
    evidence, case = module("evidence"), module("cases").SMOKE
    key = {"kind": "tune", "digest": case.digest}
    tried = [{**key, "rows_at_once": n, "steps": [{"step": seconds}]} for n, seconds in ((16, 3.0), (4, 2.0))]
    assert evidence.fastest_rows(tried, case) == 4
    assert evidence.fastest_rows([], case) is None
