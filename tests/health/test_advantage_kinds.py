"""Whether an advantage compares within a group is the part's own word, true of what it computes, and reaches health."""

from __future__ import annotations

import pytest
import torch

from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.settings import KINDS, algorithm
from groupwise.config.plan import algorithm_row
from groupwise.health.symptoms.base import History
from groupwise.reports.folder.facts import compares_within_group
from tests.health.health_rows import RECIPE

GROUPS = torch.tensor([0, 0, 1, 1])
MASK = torch.ones(4, 2, dtype=torch.bool)
ENDS = torch.tensor([[False, True]] * 4)
#: The first group is all right, the second mixed.
REWARD = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])


@pytest.mark.parametrize("kind", KINDS["advantage"])
def test_a_group_of_equal_rewards_has_no_advantage_exactly_where_the_part_compares_within_it(kind: str) -> None:
    part = KINDS["advantage"][kind]()
    states = (ENDS.long(),) if part.reads_states else ()
    advantage, _ = part(REWARD, torch.full((4, 2), 0.25), MASK, GROUPS, ENDS, *states)
    assert part.compares_within_group is bool((advantage[:2] == 0).all())
    assert (advantage[2:] != 0).any()


@pytest.mark.parametrize("name", CATALOG)
def test_health_learns_of_every_algorithm_what_its_part_says(name: str) -> None:
    row = algorithm(name)
    about = {"algorithm": algorithm_row(row)}
    assert compares_within_group(about) is row.advantage.compares_within_group
    history = History((), (), RECIPE, compares_within_group(about))
    assert history.tied_train_nothing is row.advantage.compares_within_group


@pytest.mark.parametrize(
    "about", [{}, {"algorithm": {"name": "grpo"}}, {"algorithm": {"compares_within_group": "yes"}}]
)
def test_a_run_from_before_it_was_written_is_not_known(about: dict[str, object]) -> None:
    assert compares_within_group(about) is None
