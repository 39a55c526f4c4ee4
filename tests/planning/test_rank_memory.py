"""The plan of a run's memory over ranks: what is dealt, what each has whole, and what one machine holds of all."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from groupwise.planning import parts
from groupwise.planning.activations import MicrobatchBytes, without_memory
from groupwise.planning.memory import OTHER_RANKS, USABLE, MemoryPlan, fewest_ranks, plan
from groupwise.planning.parts import KEPT_INSIDE, KEPT_INSIDE_LARGE, WORKSPACES
from groupwise.planning.shard_groups import Groups, Weight, gathered, groups_of, summed, update_bytes
from groupwise.training.critic import CriticSettings
from tests.planning.made import CUT, HELD, MODEL, RANK_4, ROOM, WEIGHTS, experts, planned, run_of


def ranked(ranks: int, **run: Any) -> MemoryPlan:
    return planned(ranks=ranks, **CUT, **run)


@pytest.mark.parametrize("ranks", [2, 4])
def test_weights_moments_and_gradients_are_dealt(ranks: int) -> None:
    alone, over = ranked(1).parts, ranked(ranks).parts
    for part in ("weights", "moments", "gradients"):
        assert over[part] == pytest.approx(alone[part] / ranks, rel=0.02), part
    for part in ("engine's weights", "process", "batch", "activations", "engine's cache"):
        assert over[part] == alone[part], part


def test_a_rank_by_itself_gathers_nothing_and_has_no_other_phase() -> None:
    alone = ranked(1)
    assert (alone.parts["gathered weights"], alone.parts["a gathered weight"], alone.follower) == (0, 0, None)
    assert set(alone.phases) == {"generating", "updating", "loading weights"}
    assert alone.own_bytes("updating") == alone.bytes_of("updating")


def test_one_machine_holds_all_ranks() -> None:
    over = ranked(3)
    assert over.follower is not None
    for phase in over.phases:
        others = over.bytes_of(phase) - over.own_bytes(phase)
        assert others == 2 * over.follower.bytes_of(phase) == over.parts[f"{OTHER_RANKS}{phase}"]
        assert others > 2 * HELD, "each is a process"


@pytest.mark.parametrize(("given_back", "share"), [(1 << 28, KEPT_INSIDE), (0, KEPT_INSIDE_LARGE)])
def test_over_ranks_some_is_kept_inside_an_update_and_nothing_behind_it(given_back: int, share: float) -> None:
    with mock.patch.object(parts, "GIVEN_BACK", given_back):
        over, alone = ranked(2), ranked(1).parts
    most = over.parts["activations"] + over.parts["gathered weights"]
    assert (over.parts["freed blocks"], over.parts["freed inside an update"]) == (0, int(share * most))
    assert alone["freed inside an update"] == 0
    assert "freed inside an update" in over.phases["updating"]
    assert "freed inside an update" not in over.phases["generating"]


def test_another_rank_has_no_engine_and_its_own_rows() -> None:
    over = ranked(2)
    assert over.follower is not None
    own = over.follower.parts
    assert not {"engine's weights", "engine's cache", "drawing"} & {
        p for each in over.follower.phases.values() for p in each
    }
    assert own["batch"] < over.parts["batch"], "columns, and no completions"
    assert own["weights"] == over.parts["weights"]
    assert own["moments"] + over.parts["moments"] == 2 * WEIGHTS, "all rows between them"


def test_at_the_start_rank_0_has_all_models_whole_and_another_its_part_and_one_group() -> None:
    value = WEIGHTS - 4 * 5000 * 64 + 4 * 65  # a head of one number
    over = ranked(2, critic=CriticSettings(), reference=4)
    assert over.parts["models at the start"] == 2 * WEIGHTS + value
    assert "models at the start" in over.phases["starting"]
    assert over.follower is not None
    outer = 2 * 4 * 5000 * 64  # an untied head and embedding are one group
    arriving = over.follower.bytes_of("starting") - HELD
    assert arriving == pytest.approx((2 * WEIGHTS + value) / 2 + outer, rel=0.01)


def test_of_models_in_files_rank_0_has_at_the_start_what_another_rank_has() -> None:
    models: dict[str, Any] = {"critic": CriticSettings(), "reference": 4}
    every = ranked(2, **models, in_files=frozenset(("policy", "reference", "critic")))
    assert every.follower is not None
    assert every.parts["models at the start"] == every.follower.parts["models at the start"]
    few = ranked(2, **models, in_files=frozenset(("policy", "reference")))
    parts = [plan.parts["models at the start"] for plan in (every, few, ranked(2, **models))]
    assert parts == sorted(set(parts)), "a critic of a reward model is whole"
    mixture = without_memory(experts())
    start = [
        ranked(2, model=mixture, in_files=frozenset(files)).parts["models at the start"] for files in ([], ["policy"])
    ]
    assert start[0] == start[1], "its files have each expert by itself"


def test_rank_0_gathers_the_whole_policy_to_save_it_and_of_adapters_one_weight() -> None:
    assert ranked(2).parts["gathered to be saved"] == WEIGHTS
    assert ranked(2, adapter=RANK_4).parts["gathered to be saved"] == 5000 * 64 * 4


def test_a_critic_and_a_frozen_reference_are_dealt_alike() -> None:
    alone, over = (ranked(ranks, critic=CriticSettings(), reference=4) for ranks in (1, 2))
    for part in ("critic", "critic's gradients", "reference"):
        assert over.parts[part] == pytest.approx(alone.parts[part] / 2, rel=0.02), part
    assert over.parts["critic's gathered weights"] > 0


def test_a_reward_model_is_dealt_and_what_it_runs_is_gathered() -> None:
    alone, over = (ranked(ranks, reward_model=True) for ranks in (1, 2))
    assert over.parts["reward model"] == pytest.approx(alone.parts["reward model"] / 2, rel=0.02)
    assert over.parts["models at the start"] == WEIGHTS + alone.parts["reward model"], (
        "at the start it is whole on rank 0"
    )
    assert (alone.parts["gathered to score"], "scoring" in ranked(2).phases) == (0, False)
    assert over.parts["gathered to score"] > over.parts["reward model"]
    assert over.follower is not None
    own = over.follower.parts
    assert own["reward model"] == over.parts["reward model"]
    assert over.follower.bytes_of("scoring") - over.follower.bytes_of("generating") == (
        own["gathered to score"] + own["scored rows"]
    )


def test_each_gpu_holds_its_own_rank_alone() -> None:
    over = ranked(64, device="cuda")
    assert not any(part.startswith(OTHER_RANKS) for part in over.parts)
    assert over.parts["process"] == WORKSPACES
    assert over.parts["batch"] == over.parts["models at the start"] == 0
    assert over.own_bytes("updating") == over.bytes_of("updating")
    assert over.parts["moments"] == pytest.approx(2 * WEIGHTS / 64, rel=0.1)


def test_on_gpus_more_ranks_hold_less_each_and_on_one_machine_more_together() -> None:
    apart = [ranked(ranks, device="cuda").peak for ranks in (2, 4, 8, 16)]
    assert apart == sorted(apart, reverse=True)
    together = [ranked(ranks).peak for ranks in (1, 2, 4)]
    assert together == sorted(together)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 11, 2000])
def test_the_fewest_ranks_are_the_first_at_which_each_has_room(most: int) -> None:
    """Room for what each of so many ranks holds is too little for one rank less; for 2,000 none is tried."""
    run = run_of(device="cuda", **CUT)
    room = int(plan(run.over(most), 0, ROOM).peak / USABLE) + 1
    fewest = next((n for n in range(1, 17) if plan(run.over(n), 0, room).fits), None)
    assert fewest_ranks(run, 0, room) == fewest if most < 2000 else fewest_ranks(run, 0, 10**6) is None


LAYER = (Weight(rows=4, row=10),)
GROUPS = Groups((LAYER, LAYER), (Weight(rows=6, row=5),))
L, U = gathered(LAYER, 2), gathered(GROUPS.outer, 2)


@pytest.mark.parametrize(
    ("at", "most"),
    [
        ((10**6, 0, 0, 0), 10**6 + U + L),
        ((0, 10**6, 0, 0), 10**6 + 2 * U + 4 * L),
        ((0, 0, 10**6, 0), 10**6 + 2 * U + L),
        ((0, 0, 0, 0), max(2 * U + 4 * L, 3 * U)),
    ],
    ids=["head", "first", "last", "nothing"],
)
def test_what_is_gathered_at_each_time(at: tuple[int, ...], most: int) -> None:
    assert (summed(LAYER, 2), summed(GROUPS.outer, 2)) == (L, U), "in float32 gradients are as large as weights"
    update = update_bytes(GROUPS, 2, MicrobatchBytes(*at), tied=False, several=True, copies=True)
    assert update.activations == max(at)
    assert update.activations + update.gathered == most
    tied = update_bytes(GROUPS, 2, MicrobatchBytes(*at), tied=True, several=True, copies=True)
    assert tied.gathered <= update.gathered


def test_the_gradients_of_the_only_microbatch_come_while_its_activations_go() -> None:
    at = MicrobatchBytes(10**6, 0, 0, 0)
    one, several = (update_bytes(GROUPS, 2, at, False, several, True) for several in (False, True))
    part = sum(weight.part(2) * 4 for weight in GROUPS.every)
    assert several.activations - one.activations == part
    assert several.gathered == one.gathered


def test_in_bfloat16_layers_take_half() -> None:
    half = groups_of(MODEL, bf16=True)
    full = groups_of(MODEL)
    at = MicrobatchBytes(0, 10**6, 0, 0)
    sizes = [update_bytes(groups, 2, at, False, True, False).gathered for groups in (half, full)]
    layer = gathered(full.largest, 2)
    assert sizes[1] - sizes[0] == 3 * layer / 2, "a layer, the next one and gradients in bfloat16; sums are float32"
