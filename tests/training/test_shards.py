"""A model goes into shards, to an engine and back from a checkpoint without being whole on any rank but the first, and
on none where its weights are in files.

Real processes over gloo; rank 0 alone has weights at the start. The bits are those of the whole model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import two_ranks

Seen = list[dict[str, Any]]


def ran(folder: Path, ranks: int) -> Seen:
    done = two_ranks.ran("tests.training.shard_acts", [str(folder), f"--size={ranks}"], seconds=120, ranks=ranks)
    assert [d.returncode for d in done] == [0] * ranks, "\n".join(d.stdout[-3000:] for d in done)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each rank saw, by case."""
    return ran(tmp_path_factory.mktemp("shards"), request.param)


@pytest.mark.parametrize("case", ["dense", "tied", "experts"])
def test_a_rank_without_weights_gets_its_part_of_each_and_is_never_near_two_whole_models(seen: Seen, case: str) -> None:
    """A policy and a reference: parts of both, and beside them one layer, or what is around the layers."""
    for rank in seen:
        of_one = rank[case]
        assert of_one["same"], "to the bit"
        assert of_one["same_reference"]
        assert of_one["packs"], "tried by rank 0, which has weights"
        assert of_one["tied"] == (case == "tied")
        assert of_one["peak"] < 2 * max(one[case]["share"] for one in seen) + 0.13
    assert sum(rank[case]["share"] for rank in seen) == pytest.approx(1.0)


def test_weights_that_stay_in_files_come_to_each_rank_and_none_is_near_a_whole_model(seen: Seen) -> None:
    """A policy, a reference of half as many bytes and a critic: parts of all, and beside them one group of weights."""
    for rank in seen:
        of_one = rank["of files"]
        assert of_one["same"], "to the bit"
        assert of_one["packs"], "tried by rank 0, layer by layer"
        assert of_one["peak"] < 2.5 * max(one["of files"]["share"] for one in seen) + 0.13
    assert sum(rank["of files"]["share"] for rank in seen) == pytest.approx(1.0)


def test_every_rank_refuses_to_renew_a_reference_by_a_weight_that_it_cannot_hold(seen: Seen) -> None:
    for rank in seen:
        words = "reference.precision = 'fp16': model.layers.7.mlp.down_proj.weight has a number of size 70000, and"
        assert rank["not renewed"]["words"].startswith(words)
        assert rank["not renewed"]["same"], "nothing is half-changed"


def test_adapters_and_a_critic_arrive_with_the_numbers_of_rank_0(seen: Seen) -> None:
    every = {"same": True, "same_base": True, "digest": True, "frozen": True}
    for rank in seen:
        assert rank["adapters"] == every
        assert rank["critic"] == {"same": True}


@pytest.mark.parametrize("way", ["inside", "shared"])
def test_on_their_way_to_an_engine_one_parameter_at_a_time_is_whole(seen: Seen, way: str) -> None:
    """Beside it are what it was gathered in, and the rank's padded part; the next is not gathered before it is gone."""
    for rank in seen:
        of_one = rank["streams"][way]
        assert of_one["largest"] <= of_one["peak"] < 3.1 * of_one["largest"] < 0.1
        assert of_one["between"] == 0
        assert of_one["count"] == 8 * 11 + 3


def test_a_checkpoint_comes_back_by_rows_where_its_files_have_the_models_names(seen: Seen) -> None:
    for rank in seen:
        assert rank["back"] == {"peak": 0.0, "largest": rank["back"]["largest"], "read": True, "same": True}


def test_files_of_experts_each_by_itself_are_read_by_rank_0_and_told(seen: Seen) -> None:
    for rank in seen:
        assert not rank["experts back"]["read"], "the model has all of a layer in one tensor"
        assert rank["experts back"]["same"]
