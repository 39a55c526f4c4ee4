"""What a step passes between ranks, from shapes alone, is to the byte what torch's collectives are handed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from groupwise.planning.shard_groups import Groups, Weight
from groupwise.planning.traffic import Traffic, announced, forward_pass, training_pass, weights_sent
from groupwise.training.mesh import Message, Verb
from tests import two_ranks

#: The cases of traffic_acts.py, and the verbs of each.
POLICY = {"annotate", "update", "weights", "logprobs"}
LEARNERS = ("dense", "3 rows", "padded", "recomputed", "bfloat16", "some untrained", "adapters", "adapters above")
CASES = dict.fromkeys([*LEARNERS, "experts learner", "experts engine"], POLICY) | {
    "critic": {"values", "update critic"},
    "reward model": {"scores"},
    "reward model, 1 row": {"scores"},
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank wrote down, by case."""
    folder = tmp_path_factory.mktemp("traffic")
    done = two_ranks.ran("tests.planning.traffic_acts", [str(folder)], seconds=120)
    assert [d.returncode for d in done] == [0, 0], "\n".join(d.stdout[-3000:] for d in done)
    return [dict(map(json.loads, (folder / f"rank-{rank}.jsonl").read_text().splitlines())) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_each_verb_passes_what_its_closed_form_says(seen: list[dict[str, Any]], case: str) -> None:
    verbs = seen[0][case]
    assert set(verbs) == CASES[case]
    for verb, (counted, planned) in verbs.items():
        assert counted == planned, verb
        assert counted[-1] > 0, verb


@pytest.mark.slow
def test_the_cases_differ_where_they_should(seen: list[dict[str, Any]]) -> None:
    """Else a closed form could be right by not looking."""
    update = {case: seen[0][case]["update"][0] for case, verbs in CASES.items() if "update" in verbs}
    assert update["bfloat16"][0] < update["dense"][0]
    assert update["bfloat16"][1] == update["dense"][1], "gradients are added up in float32"
    assert update["recomputed"] == update["dense"]
    assert update["adapters above"][0] < update["adapters"][0]
    assert update["adapters"][1] < update["dense"][1]


@pytest.mark.slow
def test_each_rank_keeps_room_for_as_many_rows_and_holds_its_own(seen: list[dict[str, Any]]) -> None:
    for rank in (0, 1):
        counted, planned = seen[rank]["held"]["weights"]
        assert counted == planned
    assert seen[0]["held"]["weights"][0][1] > seen[1]["held"]["weights"][0][1], "the last rank has fewer rows"


@pytest.mark.slow
def test_a_thread_that_scores_takes_turns_with_the_one_that_trains(seen: list[dict[str, Any]]) -> None:
    same, asked = seen[0]["two threads"]["the same"]
    assert same == asked


LAYER = (Weight(rows=6, row=10), Weight(rows=6, row=1))
OUTER = (Weight(rows=15, row=4),)
GROUPS = Groups((LAYER, LAYER), OUTER)


def test_of_equal_parts_a_training_pass_moves_three_times_a_layer_and_twice_the_outer_group() -> None:
    layers, outer = 2 * 66 * 4, 15 * 4 * 4
    assert forward_pass(GROUPS, 3) == Traffic(gathered=layers + outer, calls=3)
    both = training_pass(GROUPS, 3)
    assert both == Traffic(gathered=2 * layers + outer, scattered=layers + outer, calls=8)
    assert both.gathered + both.scattered == 3 * layers + 2 * outer


def test_rows_that_fill_up_pass_too() -> None:
    """8 experts on 64 ranks are gathered as if there were 64."""
    experts = Groups(((Weight(rows=8, row=100),),), ())
    assert forward_pass(experts, 8).gathered == 8 * 100 * 4
    assert forward_pass(experts, 64).gathered == 64 * 100 * 4


def test_a_verb_without_a_batch_is_a_text_and_its_length() -> None:
    text = json.dumps({"verb": "weights", "others": {}, "batch": None})
    assert announced(Message(Verb.WEIGHTS)) == Traffic(sent=8 + len(text), calls=2)
    assert weights_sent(GROUPS, 2).gathered == 2 * 66 * 4 + 16 * 4 * 4


def test_a_ring_of_one_moves_nothing() -> None:
    assert Traffic(gathered=100, scattered=50, joined=8).received(1) == 0
