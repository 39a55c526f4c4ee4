"""A run whose chat template writes earlier turns anew: trained behind what was read, resumed to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
from groupwise.core.errors import UsageError
from tests.models.turn_templates import QWEN3_MAKE, tokenizer_of
from tests.runs.test_environment_run import CHANGES
from tests.runs.test_run import assert_goes_on
from tests.runs.tiny_runs import rollouts, step_rows
from tests.tiny_models import causal

ENVIRONMENT = '''
import groupwise


class Letters:
    """Each turn is worth the share of its characters that are letters."""

    alphabet = "abcdefghijklmnopqrstuvwxyzS0123456789 ."

    def samples(self, split):
        return [groupwise.Sample(f"{split}{n}", f"Say {n}.", "") for n in range(8)]

    def reset(self, sample):
        self.turn = 0

    def step(self, text):
        self.turn += 1
        return f"turn {self.turn}", sum(map(str.isalpha, text)) / max(1, len(text)), len(text) % 4 == 0
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy with a template of Qwen3's make: thinking that is off stands in the last prompt alone."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tokenizer_of(QWEN3_MAKE)
    torch.manual_seed(0)
    ends = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    causal("qwen3", max_position_embeddings=1024, initializer_range=0.02, **ends).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def changes(model: Path, runs: Path, history: str = "rewrite", **more: Any) -> dict[str, Any]:
    own = runs / "letters.py"
    own.write_text(ENVIRONMENT, encoding="utf-8")
    task = {"name": "environment", "use": f"{own}:Letters", "max_turns": 3, "turn_tokens": 4, "history": history}
    chat = {"chat.thinking": "off", "sampling.stop": [], "sampling.max_new_tokens": 256}
    return {**CHANGES, "model": str(model), "runs": str(runs), "task": task, **chat, **more}


def test_each_turn_is_trained_behind_the_prompt_that_it_read_and_a_resume_has_the_same_bits(
    model: Path, tmp_path: Path
) -> None:
    whole = groupwise.train("quickstart", changes(model, tmp_path, name="whole")).folder
    lines = rollouts(whole)
    assert max(len(line["turns"]) for line in lines) == 3
    later = [span for line in lines for span in line.get("spans", []) if not span["own"]]
    assert later
    assert all(span["anew"] for span in later)
    steps = step_rows(whole)
    for row in steps:
        assert row["checks"]["learner = engine"]["verdict"] == "pass"
        assert row["groups_signal_share"] == 1
    assert_goes_on(whole, 2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"algorithm.name": "ppo", "algorithm.shaping.kind": "steps"}, "a critic reads an episode as one text"),
        ({"model": "tiny-moe"}, "a policy with experts"),
    ],
)
def test_what_reads_a_row_as_one_text_is_refused(model: Path, tmp_path: Path, more: dict[str, Any], words: str) -> None:
    settings = (
        changes(model, tmp_path)
        | ({"chat.thinking": "", "sampling.max_new_tokens": 64} if "model" in more else {})
        | more
    )
    with pytest.raises(UsageError, match=words) as refused:
        groupwise.train("quickstart", settings)
    assert "\n" not in str(refused.value)


def test_the_refusal_of_such_a_template_names_the_key(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'task\.history = "rewrite"'):
        groupwise.train("quickstart", changes(model, tmp_path, history="refuse"))
