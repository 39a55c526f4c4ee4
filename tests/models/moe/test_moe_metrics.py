"""Numbers of routing, by hand; routes that are kept, brought back and refused."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

from groupwise.core.collate import collate
from groupwise.core.errors import RunError
from groupwise.core.files.dataclass_json import from_json, to_json
from groupwise.core.numbers.metrics import merge, read
from groupwise.core.records import Completion, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.stream import StreamState
from groupwise.diagnostics.checks import CheckVerdict, replayed_are_used
from groupwise.models.moe.metrics import (
    at_trained,
    comparable,
    difference,
    drift_metrics,
    engine_metrics,
    load_metrics,
    replay_metrics,
)
from groupwise.models.moe.record import Router
from groupwise.models.moe.settings import RoutingSettings
from groupwise.training.microbatch import routes_to_replay

#: Two layers, two experts a token: three tokens' old choices, and the live ones.
OLD = torch.tensor([[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[4, 5], [6, 7]]])
LIVE = torch.tensor([[[1, 0], [2, 3]], [[0, 2], [2, 3]], [[6, 7], [6, 0]]])


def group(routes: list[torch.Tensor | None]) -> Group:
    """Completions of a prompt of two tokens, as long as their routes say; two tokens where they say nothing."""
    sample = Sample(key="a", prompt="1+", answer="1")
    lengths = [2 if row is None else len(row) - 1 for row in routes]
    made = [
        Completion.of_one_turn((3,) * n, (-1.0,) * n, "stop", 0, score=1.0, routes=row)
        for n, row in zip(lengths, routes, strict=True)
    ]
    return Group(Prompt(sample, (2, 3)), tuple(made))


def row(tokens: int, first: int) -> torch.Tensor:
    """[tokens,1,1], counting up."""
    return torch.arange(first, first + tokens, dtype=torch.uint8)[:, None, None]


def test_drift_by_hand():
    """Layer 0: 0, 1/2 and 1 of two choices; layer 1: 0, 0 and 1/2. Tokens 2 and 3 changed somewhere."""
    found = read(drift_metrics(LIVE, OLD, torch.tensor([5.0, 1.0, 4.0]), after=3))
    assert found["routing.changed.layer_0"] == 0.5
    assert found["routing.changed.layer_1"] == pytest.approx(1 / 6)
    assert found["routing.changed"] == found["routing.changed_mean"] == pytest.approx(1 / 3)
    assert found["routing.changed_after.3"] == found["routing.changed"]
    assert found["routing.changed_in.layer_1.after_3"] == found["routing.changed.layer_1"]
    assert found["log_ratio_variance_changed"] == 2.25
    assert found["log_ratio_variance_same"] == 0


def test_the_mean_over_updates_leaves_the_first_out_and_the_others_are_the_last_updates():
    gap = torch.zeros(3)
    told = [drift_metrics(live, OLD, gap, after) for after, live in enumerate((LIVE, LIVE, OLD))]
    found = read(merge(told))
    assert found["routing.changed_mean"] == pytest.approx(1 / 6)
    assert found["routing.changed"] == found["routing.changed_after.2"] == 0
    assert found["routing.changed_after.1"] == pytest.approx(1 / 3)
    assert "routing.changed_after.0" not in found
    assert math.isnan(found["log_ratio_variance_changed"]), "no token changed"
    assert math.isnan(read(merge(told[:1]))["routing.changed_mean"])


def test_load_by_hand():
    """Layer 0 of OLD falls on experts 0, 1 twice and 4, 5 once, of 8: shares 1/3, 1/3, 1/6, 1/6."""
    found = read(load_metrics(OLD, [8, 8]))
    entropy = (2 / 3 * math.log(3) + 1 / 3 * math.log(6)) / math.log(8)
    assert found["routing.load_entropy.layer_0"] == pytest.approx(entropy)
    assert found["routing.load_max.layer_0"] == pytest.approx(8 / 3)
    assert found["routing.dead_experts.layer_0"] == 4
    even = read(load_metrics(torch.arange(8).view(4, 1, 2), [8]))
    assert even == {
        "routing.load_entropy.layer_0": pytest.approx(1),
        "routing.load_max.layer_0": 1,
        "routing.dead_experts.layer_0": 0,
    }


def test_what_replay_removed_by_hand():
    found = read(merge([replay_metrics(LIVE, OLD, live=3), replay_metrics(LIVE, OLD, live=4)]))
    assert found["routing.removed.layer_0"] == 0.5
    assert found["routing.removed"] == pytest.approx(1 / 3)
    assert found["routing.replayed_live_positions"] == 7


def test_a_trained_tokens_route_is_that_of_the_token_before_it():
    rows = (row(3, 10), row(2, 20))
    mask = torch.tensor([[False, False, True, True], [False, True, False, False]])
    assert at_trained(rows, mask).flatten().tolist() == [11, 12, 20]


def test_agreement_with_the_engine_is_of_the_newest_rows_that_say():
    own = (row(3, 0), row(3, 10), row(3, 20))
    batch = collate([group([row(3, 0), row(3, 11), None])], pad=0)
    assert read(engine_metrics(own, batch, newest=0)) == {
        "routing.engine_changed": 0.5,
        "routing.engine_changed.layer_0": 0.5,
    }
    stale = dataclasses.replace(batch, version=torch.tensor([0, 1, 1]))
    assert read(engine_metrics(own, stale, newest=1))["routing.engine_changed"] == 1
    assert engine_metrics(own, stale, newest=2) == {}
    assert engine_metrics(own, dataclasses.replace(batch, routes_engine=None), newest=0) == {}


def test_difference_counts_every_token_that_was_run():
    assert difference((row(2, 0), row(3, 5)), (row(2, 0), row(3, 5))) == 0
    assert difference((row(2, 0), row(3, 5)), (row(2, 1), row(3, 5))) == pytest.approx(2 / 5)
    assert difference((torch.tensor([[[0, 1]]]),), (torch.tensor([[[1, 0]]]),)) == 0, "their order does not count"


def test_rows_that_chose_alike_are_compared_and_a_fault_in_most_of_them_is_not_hidden():
    mask = torch.ones(3, 4, dtype=torch.bool)
    rows = (row(3, 0), row(3, 0), row(3, 0))
    one, two = (row(3, 0), row(3, 1), row(3, 0)), (row(3, 0), row(3, 1), row(3, 1))
    assert comparable(mask, rows, one).any(-1).tolist() == [True, False, True]
    assert comparable(mask, rows, two).all()
    assert comparable(mask & torch.tensor([[True], [True], [False]]), rows, two).any(-1).tolist() == [
        True,
        False,
        False,
    ]
    assert comparable(mask, rows, (row(3, 0), None, None)).all()
    assert comparable(mask, rows, None) is mask
    assert comparable(mask, None, rows) is mask


def test_one_choice_that_was_not_replayed_fails_the_check():
    assert replayed_are_used(0.0).verdict is CheckVerdict.PASS
    assert replayed_are_used(1e-9).verdict is CheckVerdict.FAIL


def test_routes_of_completions_become_a_column_that_goes_with_its_rows():
    batch = collate([group([row(3, 0), None]), group([row(5, 7)])], pad=0)
    assert batch.routes_engine is not None
    turned = batch.rows([2, 0]).routes_engine
    assert turned is not None
    assert [None if r is None else r.flatten().tolist() for r in turned] == [[7, 8, 9, 10, 11], [0, 1, 2]]
    assert collate([group([None, None])], pad=0).routes_engine is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_routes_of_waiting_groups_come_back_bit_for_bit(dtype):
    whole = torch.arange(100, 124).to(dtype).view(4, 3, 2)
    told = whole if dtype == torch.uint8 else whole * 200
    state = StreamState(surplus=(group([told, None, told[1:]]),))
    again = from_json(StreamState, json.loads(json.dumps(to_json(state)))).surplus[0].completions
    assert [None if c.routes is None else (c.routes.dtype, c.routes.tolist()) for c in again] == [
        (dtype, told.tolist()),
        None,
        (dtype, told[1:].tolist()),
    ]


def test_a_waiting_group_of_an_older_checkpoint_has_no_routes():
    data = json.loads(json.dumps(to_json(StreamState(surplus=(group([None]),)))))
    del data["surplus"][0]["completions"][0]["routes"]
    assert from_json(StreamState, data).surplus[0].completions[0].routes is None


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ([None, row(3, 0)], r"1 of 2 completions came without routes, .*Completion\.routes"),
        ([None, None], "2 of 2 completions came without routes"),
        ([row(3, 0), torch.zeros(3, 2, 1, dtype=torch.uint8)], r"shape \(3, 2, 1\) came .* needs \(3, 1, 1\)"),
    ],
)
def test_routes_that_cannot_be_replayed_stop_the_run_in_one_line(routes, words):
    batch = collate([group(routes)], pad=0)
    with pytest.raises(RunError, match=words) as told:
        routes_to_replay(batch, "routes_engine", found())
    assert "\n" not in str(told.value)


def test_routes_of_another_length_than_the_completion_stop_the_run():
    batch = collate([group([row(3, 0)])], pad=0)
    with pytest.raises(RunError, match=r"shape \(2, 1, 1\) came with a prompt and completion of 4 tokens"):
        routes_to_replay(dataclasses.replace(batch, routes_engine=(row(2, 0),)), "routes_engine", found())


def found() -> tuple[Router, ...]:
    return (Router("gate", torch.nn.Identity(), chosen=1, experts=8),)


def test_settings_in_words():
    assert str(RoutingSettings(load_balance=0.01)) == 'replay "none", balance_loss x 0.01'
    assert RoutingSettings().changed == {}
