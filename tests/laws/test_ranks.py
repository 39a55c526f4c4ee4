"""A learner over two ranks is the learner of one process: two real processes over gloo, beside the same in one.

Both ranks are started once, and run every case of rank_cases.py; here is what has to hold of what they saw.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.algorithms.settings import CATALOG
from groupwise.core.collate import idle_rows
from tests import two_ranks
from tests.laws.rank_cases import ALIKE, DIFFERENT, FLOAT32, LONG, bare_batch

SAME = {"same_columns": True, "same_seen": True}
#: Relative, of a gradient that is added up in another order.
ROUNDING = {"float64": 1e-9, "float32": 1e-6}


#: Cases that are run over three ranks too.
OVER_THREE = ("updates tied", "updates untied", "1 row", "saved")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ran(tmp_path_factory.mktemp("ranks"), 2)


def ran(folder: Path, ranks: int, *options: str) -> list[dict[str, Any]]:
    done = two_ranks.ran("tests.laws.rank_cases", [str(folder), f"--size={ranks}", *options], seconds=120, ranks=ranks)
    assert [d.returncode for d in done] == [0] * ranks, "\n".join(d.stdout[-3000:] for d in done)
    return [by_case(folder / f"rank-{rank}.jsonl") for rank in range(ranks)]


def by_case(path: Path) -> dict[str, Any]:
    return dict(map(json.loads, path.read_text().splitlines()))


def require(measured: dict[str, Any], rounding: float = 1e-9) -> None:
    """The columns and what an update saw are the same to the bit, the gradient up to the order of its sums."""
    assert {name: measured[name] for name in SAME} == SAME
    assert measured["gradient"] < rounding
    assert measured["loss"] < rounding
    assert measured["norm"] > 1e-3, "there is a gradient to compare"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_rows_of_the_catalog_have_the_gradient_and_the_columns_of_one_process(seen, dtype, rank):
    measured = seen[rank][f"catalog {dtype}"]
    assert list(measured) == list(DIFFERENT if dtype == "float64" else FLOAT32)
    for row in measured.values():
        require(row, ROUNDING[dtype])


@pytest.mark.slow
def test_the_rest_of_the_catalog_has_them_too(tmp_path):
    assert {*ALIKE, *DIFFERENT} == {*CATALOG}
    for measured in ran(tmp_path, 2, "--only", LONG):
        assert list(measured[LONG]) == list(ALIKE)
        for row in measured[LONG].values():
            require(row, ROUNDING["float64"])


@pytest.mark.parametrize("rank", [0, 1])
def test_supervised_rows_over_ranks_are_those_of_one_process(seen, rank):
    measured = seen[rank]["supervised"]
    assert max(measured[name] for name in ("losses", "norms", "weights", "logprobs")) < 1e-8
    assert measured["own_distribution"] > 1e-3, "the temperature of sampling has no part in it"


@pytest.mark.parametrize("case", ["3 rows", "1 row", "padded rows", "supported"])
def test_however_the_rows_are_run_and_dealt(seen, case):
    for rank in (0, 1):
        require(seen[rank][case])


@pytest.mark.parametrize("case", ["updates tied", "updates untied"])
def test_clipped_updates_move_every_row_of_an_uneven_vocabulary_on_both_ranks(seen, case):
    """The last rank holds a row less of a head that is the embedding, too: its update must not be lost."""
    for rank in (0, 1):
        measured = seen[rank][case]
        assert measured["weights"] < 1e-9
        assert measured["norms"] < 1e-9
        assert measured["clipped"] > 0.1, "the norm was above its limit"
        assert measured["least_moved_row"] > 1e-3
        assert measured["engine"], "what goes to an engine is every parameter, whole"


@pytest.mark.parametrize("case", ["experts learner", "experts engine"])
def test_routes_are_recorded_and_replayed_and_the_routers_losses_add_up(seen, case):
    for rank in (0, 1):
        require(seen[rank][case])
        assert seen[rank][case]["same_routes"]
        assert seen[rank][case]["same_own"]
        assert seen[rank][case]["losses"] < 1e-9


def test_bfloat16_is_that_of_one_process_over_float32_masters(seen):
    for rank in (0, 1):
        require(seen[rank]["rounded"], rounding=1e-6)
        assert seen[rank]["rounded"]["rounding"] > 1e-4, "it computes in bfloat16"
        assert seen[rank]["rounded"]["masters"]


def test_rounding_is_measured_to_the_bits_of_one_process(seen):
    """The limits of a run's checks are measured on weights that are gathered, as they are when they are measured."""
    for rank in (0, 1):
        measured = seen[rank]["measured"]
        assert measured["same_live"]
        assert measured["same_exact"], "the probe's float32"
        assert measured["same_tolerance"]
        assert measured["rounding"] > 1e-4
        assert measured["apart_from_live"] > 1e-4, "float32 is not what the learner computes in"


def test_adapters_train_alone_and_are_merged_to_the_bits_of_one_process(seen):
    for rank in (0, 1):
        require(seen[rank]["adapted"], ROUNDING["float32"])
        assert seen[rank]["adapted"]["same_merged"]


@pytest.mark.parametrize("case", ["distilled full", "distilled top", "distilled adapters"])
def test_a_teacher_in_shards_teaches_what_it_teaches_in_one_process(seen, case):
    for rank in (0, 1):
        require(seen[rank][case])
        assert seen[rank][case]["same_top"]


@pytest.mark.parametrize("case", ["saved", "adapted"])
def test_a_checkpoint_of_ranks_has_the_tensors_of_one_process_and_either_goes_back_into_either(seen, case):
    for rank in (0, 1):
        measured = seen[rank][case]
        assert measured["same_policy"], "its files are those of one process, to the byte"
        assert measured["same_moments"]
        assert measured["moments"] > 9
        assert measured["hashed"] == {f"optimizer.0000{n}-of-00002.safetensors": True for n in (1, 2)}
        assert measured["largest_file"] < 0.8, "each rank writes about half, and a header"
        assert measured["same_restored"]
        assert measured["same_again"], "at the same number of ranks the bits are the same"
        assert measured["same_from_one"], "whoever wrote it"
        assert measured["elsewhere"] < 1e-6, "at another they are the same up to rounding"


def test_the_critic_is_sharded_alike(seen):
    for rank in (0, 1):
        measured = seen[rank]["critic"]
        assert measured["same_columns"]
        assert measured["same_held"]
        assert measured["same_restored"]
        assert max(measured["loss"], measured["gradient"], measured["weights"]) < 1e-9


def test_a_reward_model_in_shards_scores_with_the_bits_of_one_process(seen):
    for rank in (0, 1):
        measured = seen[rank]["reward model"]
        assert measured["same"]
        assert measured["batches"] % 2 == 1, "one rank is idle in the end"
        assert measured["spread"] > 0.1, "a model that says one thing would pass this"


@pytest.mark.slow
def test_three_ranks_are_one_process_too(tmp_path):
    """Widths of 20 and 27 and a vocabulary of 15 are dealt in parts of which the last is the smallest, or empty."""
    seen = ran(tmp_path, 3, "--only", *OVER_THREE)
    assert seen[0] == seen[1] == seen[2]
    measured = seen[0]
    for case in ("updates tied", "updates untied"):
        assert max(measured[case]["weights"], measured[case]["norms"]) < 1e-9
        assert measured[case]["least_moved_row"] > 1e-3
        assert measured[case]["engine"]
    require(measured["1 row"])
    saved = measured["saved"]
    assert saved["hashed"] == {f"optimizer.0000{n}-of-00003.safetensors": True for n in (1, 2, 3)}
    assert saved["same_policy"]
    assert saved["same_moments"]
    assert saved["same_restored"]
    assert saved["same_again"]
    assert saved["same_from_one"]


def test_what_is_not_finite_on_one_rank_is_skipped_on_both(seen):
    for rank in (0, 1):
        assert seen[rank]["not finite"] == {"on_rank_1": True, "applied": False, "still": True, "goes_on": True}


def test_each_rank_holds_half_of_weights_gradients_and_optimizer_and_of_a_reward_model(seen):
    for name in ("weights", "gradients", "optimizer", "reward model"):
        shares = [seen[rank]["held"][name] for rank in (0, 1)]
        assert sum(shares) == pytest.approx(1)
        assert shares == pytest.approx([0.5, 0.5], rel=0.1)


def test_both_ranks_saw_the_same(seen):
    own = [{case: measured for case, measured in rank.items() if case != "held"} for rank in seen]
    assert own[0] == own[1]


def test_an_idle_microbatch_trains_nothing():
    idle = idle_rows(bare_batch())
    assert len(idle) == 1
    assert not idle.mask.any()
    assert torch.equal(idle.length, torch.tensor([2]))
