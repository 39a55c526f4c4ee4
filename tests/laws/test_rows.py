"""Every catalog row: what it says of itself, and settings to parts and back."""

from __future__ import annotations

import re

import pytest
import torch

import groupwise
from groupwise.algorithms.settings import CATALOG, KIND_KEY, KINDS, describe, settings
from groupwise.core.errors import UsageError

ROWS = sorted(CATALOG)
CHOICES = [(slot, kind) for slot, kinds in KINDS.items() for kind in kinds]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_its_name_what_it_is_and_where_it_is_from(name):
    row = groupwise.algorithm(name)
    assert row.name == name
    assert len(row.summary.split()) > 5
    assert re.search(r"\w.*, (\d{4}\.\d{5}|no arXiv id)$", row.paper)
    assert row.parts.keys() == {*KINDS, "kl"}


@pytest.mark.parametrize("name", ROWS)
def test_settings_are_the_inverse_of_algorithm_whatever_part_is_swapped_in(name):
    refused = []
    for slot, kind in CHOICES:
        chosen = {
            f"{slot}.{KIND_KEY.get(slot, 'kind')}": kind,
            **({"aggregate.limit": 7} if kind == "constant" else {}),
        }
        try:
            row = groupwise.algorithm(name, chosen)
        except UsageError as error:
            refused.append(str(error))
            continue
        assert type(getattr(row, slot)) is KINDS[slot][kind]
        assert groupwise.algorithm(name, settings(row)) == row
        assert describe(getattr(row, slot)).startswith(kind)
    known = re.compile(r"algorithm\.((mismatch|rejection|advantage|trust)\.kind|kl\.place) \(")
    assert len(refused) < len(CHOICES) / 2
    assert [words for words in refused if not known.match(words)] == []


def test_true_and_false_are_settings_and_numbers_are_not_in_their_place():
    assert groupwise.algorithm("reinforce", {"advantage.whiten": True}).advantage.whiten is True
    assert groupwise.algorithm("ppo", {"advantage": {"whiten": False}}).advantage.whiten is False
    for value in (1, 0.0, "true"):
        with pytest.raises(UsageError, match=r"algorithm\.advantage\.whiten = .*: must be true or false"):
            groupwise.algorithm("ppo", {"advantage.whiten": value})
    with pytest.raises(UsageError, match=r"algorithm\.advantage\.lam = True: must be a number"):
        groupwise.algorithm("ppo", {"advantage.lam": True})


def test_a_limit_is_laid_over_dr_grpos_own():
    assert groupwise.algorithm("dr-grpo").aggregate.limit == 3000
    assert groupwise.algorithm("dr-grpo", {"aggregate.limit": 64}).aggregate.limit == 64


def test_a_cap_and_an_epsilon_for_one_ceiling_are_refused_in_the_recipes_words():
    with pytest.raises(UsageError, match=r"algorithm\.trust\.cap = 5\.0 and epsilon_high = 4\.0: set one of them"):
        groupwise.algorithm("cispo", {"trust.epsilon_high": 4.0})
    assert groupwise.algorithm("cispo", {"trust.epsilon_high": 4.0, "trust.cap": 0.0}).trust.epsilon_high == 4.0


def test_what_a_row_needs():
    def those(question: str) -> set[str]:
        return {name for name in ROWS if getattr(groupwise.algorithm(name), question)}

    assert {name for name in ROWS if groupwise.algorithm(name).advantage.reads_value} == {"ppo"}
    assert those("needs_old") == {"ppo", "rloo", "reinforce++", "opd"}
    pulled = {"ppo", "rloo", "reinforce++", "reinforce++-baseline", "grpo", "grpo-process", "deepseek-v3.2", "opd"}
    assert those("needs_reference") == pulled
    assert those("reads_steps") == {"ppo", "grpo-process"}
    assert {name: groupwise.algorithm(name).passes for name in ROWS} == {n: 4 if n == "ppo" else 1 for n in ROWS}


@pytest.mark.parametrize("kind", ["gae", "td", "monte-carlo"])
def test_advantages_that_need_a_critic_point_to_gae(kind):
    with pytest.raises(ValueError, match=r"^ppo: .*groupwise\.gae"):
        groupwise.algorithm("ppo", {"advantage.kind": kind}).advantages(torch.ones(2), torch.zeros(2, dtype=torch.long))


def test_with_a_mask_whitening_is_over_tokens_and_without_one_over_completions():
    """Lengths 1 and 3 with rewards 1 and 0: the mean is 1/2 over completions and 1/4 over tokens."""
    rewards, groups = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.zeros(2, dtype=torch.long)
    mask = torch.tensor([[True, False, False, False], [True, False, True, True]])
    algo = groupwise.algorithm("reinforce++")
    plain = algo.advantages(rewards, groups)
    torch.testing.assert_close(plain, (rewards - 0.5) / (0.5 + 1e-8) ** 0.5, rtol=1e-12, atol=0)
    found = algo.advantages(rewards, groups, mask)
    torch.testing.assert_close(found, (rewards - 0.25) / (0.25 + 1e-8) ** 0.5, rtol=1e-12, atol=0)
