"""What torchrun tells a process, and what is refused before anything is loaded."""

from __future__ import annotations

import pytest

import groupwise
from groupwise.commands.train.torchrun import disagreement, with_given_ranks
from groupwise.config import recipe
from groupwise.core.errors import UsageError
from groupwise.training.ranks.followers import GivenRanks, given_ranks

TOLD = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.fixture
def rank_0_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torchrun had started this process."""
    for name, value in TOLD.items():
        monkeypatch.setenv(name, value)


def test_a_process_that_torchrun_has_not_started_has_no_ranks_given() -> None:
    assert given_ranks({}) is None
    assert given_ranks({**TOLD, "WORLD_SIZE": "1"}) is None
    assert given_ranks({name: value for name, value in TOLD.items() if name != "MASTER_PORT"}) is None
    assert with_given_ranks(recipe.load("quickstart")).learner.ranks == 1


@pytest.mark.parametrize("other", [{"TORCHELASTIC_USE_AGENT_STORE": ""}, {"RANK": "first"}, {"MASTER_PORT": "-1"}])
def test_variables_of_somebody_else_are_refused(other: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"^RANK = .*: these variables are set, and not by torchrun; start the ranks"):
        given_ranks({**TOLD, **other})


def test_a_meeting_point_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^torchrun's meeting point 127.0.0.1:1 cannot be reached: ") as refused:
        GivenRanks(0, 2, "127.0.0.1", 1).store(seconds=1)
    assert "\n" not in str(refused.value)


def test_the_run_takes_the_ranks_that_it_is_given(rank_0_of_2: None) -> None:
    assert with_given_ranks(recipe.load("quickstart")).learner.ranks == 2
    assert with_given_ranks(recipe.load("quickstart", {"learner.ranks": 2})).learner.ranks == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learner.ranks": 3}, r"^learner.ranks = 3: torchrun has started 2 processes; set it to 2, or start 3 with "),
        ({"learner.ranks": 1}, r"^learner.ranks = 1: torchrun has started 2 processes; set it to 2, or start 1 with "),
        ({"placement.restarts": 1}, r"^placement.restarts = 1: torchrun's processes cannot be started again from here"),
    ],
)
def test_a_recipe_that_says_otherwise_is_refused(
    rank_0_of_2: None, changes: dict[str, object], words: str, tmp_path
) -> None:
    with pytest.raises(UsageError, match=words):
        groupwise.train("quickstart", {**changes, "runs": str(tmp_path)})
    assert not list(tmp_path.iterdir())


def test_a_program_on_another_rank_does_not_train_a_run_of_its_own(
    rank_0_of_2: None, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UsageError, match=r"^rank 1 of torchrun's: a program trains on rank 0 alone"):
        groupwise.train("quickstart", {"runs": str(tmp_path)})
    assert not list(tmp_path.iterdir())


def test_ranks_that_disagree_are_told_apart() -> None:
    own = {"version": "1.0", "recipe": {"steps": 3, "learner": {"learning_rate": 0.1}}}
    assert disagreement(own, 1, own) == ""
    older = {**own, "version": "0.9"}
    assert disagreement(own, 2, older) == ("rank 2 has groupwise 0.9, and rank 0 has 1.0: install the same everywhere")
    other = {"version": "1.0", "recipe": {"steps": 3, "learner": {"learning_rate": 0.2}}}
    assert disagreement(own, 1, other) == (
        "rank 1 was asked for another run than rank 0: learner.learning_rate 0.1 -> 0.2; give all the same"
    )
    assert disagreement(own, 1, {"error": "recipe 'x': there is no such recipe"}) == (
        "rank 1: recipe 'x': there is no such recipe"
    )
