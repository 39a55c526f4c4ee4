"""Every class of language models: engine and learner have the model's own numbers, or one line refuses it."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from benchmarks.architectures.build import kinds, save_small, small_config, small_model
from benchmarks.architectures.kinds import OTHERS
from benchmarks.architectures.page import MARK, REASONS, page, reason, short, works
from benchmarks.architectures.trial import EXACT, apart

from groupwise.core.errors import GroupwiseError
from groupwise.core.files import jsonl
from groupwise.models.files.folder import quiet
from groupwise.models.load import load_policy

ROOT = Path(__file__).parents[2]
PAGE, ROWS = ROOT / "docs/reference/models.md", ROOT / "docs/evidence/models.jsonl"
NAMES = kinds()
#: The third of the kinds that the suite tries; another transformers has another third, and make test-slow all.
THIRD = int(transformers.__version__.split(".")[1]) % 3
ROW_OF = {row["kind"]: row for row in jsonl.rows(ROWS)}


def drawn() -> list[Any]:
    parts = " ".join(OTHERS.values()).split()
    fast = [kind for kind in NAMES if kind not in parts][THIRD::3]
    return [kind if kind in fast else pytest.param(kind, marks=pytest.mark.slow) for kind in NAMES]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", drawn())
def test_engine_and_learner_have_the_models_own_numbers_or_one_line_refuses_it(kind: str, tmp_path: Path) -> None:
    row = ROW_OF.get(kind, {"stages": {}})
    if row["stages"].get("builds"):
        pytest.skip(row["stages"]["builds"])
    folder = save_small(kind, tmp_path / "model")
    with quiet():
        own = getattr(transformers, NAMES[kind]).from_pretrained(folder, dtype=torch.float32).eval()
    with nullcontext() if row["stages"].get("samples") == "" else suppress(GroupwiseError):
        assert max(apart(load_policy(folder), own, asked=((3, 1), (20, 2)), answer=6)) < EXACT


@pytest.mark.parametrize("kind", ["gemma3_text", "qwen3_next", "deepseek_v3"])
def test_a_small_model_has_no_weight_where_it_starts_and_one_seed_gives_the_same_bits(kind: str) -> None:
    weights, again, other = (small_model(kind, seed).state_dict() for seed in (0, 0, 1))
    for name, weight in weights.items():
        assert torch.equal(weight, again[name]), name
        assert not torch.equal(weight, other[name]), name
        assert weight.numel() < 2 or float(weight.std()) > 0, name


@pytest.mark.parametrize(("kind", "name"), [("gemma3_text", "layer_types"), ("kimi_linear", "layer_types")])
def test_a_small_model_has_layers_of_every_kind_that_its_class_names(kind: str, name: str) -> None:
    whole = transformers.CONFIG_MAPPING[kind]()
    assert {*getattr(small_config(kind), name)} == {*getattr(whole, name)}


def test_the_page_is_written_from_its_rows_and_has_no_traceback() -> None:
    text = PAGE.read_text()
    assert text == page(text, ROW_OF)
    assert "traceback" not in text.partition(MARK)[2].lower()
    assert text.partition(MARK)[0].count("\n") <= 40


def test_every_class_is_in_a_table_and_every_reason_is_short() -> None:
    named = Counter(re.findall(r"\w+ \(([\w-]+)\)", PAGE.read_text().partition(MARK)[2]))
    for kind, row in ROW_OF.items():
        assert named[kind] == 1 + (works(row) and bool(row["stages"].get("routes"))), kind
        assert reason(row) not in row["stages"].values() or works(row), reason(row)
        assert len(reason(row)) < 90, reason(row)


def test_every_pattern_of_a_reason_is_printed_by_a_trial() -> None:
    printed = "\n".join(words for row in ROW_OF.values() for words in row["stages"].values())
    assert [pattern for pattern in REASONS if not re.search(pattern, printed)] == []


def test_words_without_a_known_reason_stay_as_they_are() -> None:
    assert short("it fails | in a new way") == "it fails \\| in a new way"
