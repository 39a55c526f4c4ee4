"""Laws of the environment grid-world: goals that can be reached, walls that cost a turn and are known from then on."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from groupwise.config.recipe import load
from groupwise.config.resolve import resolve
from groupwise.core.engine import OnFinish, Request, Sampling
from groupwise.core.environment import Before, Conversation, Ended, EpisodeLimits, Spoken, fingerprint
from groupwise.core.records import Completion, Prompt, Span
from groupwise.core.samples import Sample
from groupwise.core.stream import Cohort
from groupwise.environments.adapt import playable
from groupwise.environments.live import InlineEnvironments, LiveEpisodes
from groupwise.rollout.episodes import Episodes
from groupwise.rollout.segments import Segment
from groupwise.tasks.environment import EnvironmentTask
from groupwise.tasks.make import ENVIRONMENTS
from groupwise.tasks.make import task as task_of
from recipes.grid_world import MOVES, Grid, GridWorld
from tests.tasks.made import SPLITS, both

SMALL = {"size": 3, "walls": 3, "distance": [2, 3], "turns": 5, "problems": 60, "heldout": 20}
WIDE = {"size": 9, "walls": 40, "distance": [5, 12], "turns": 16, "problems": 40, "heldout": 10}
SETTINGS: list[dict[str, Any]] = [{}, SMALL, WIDE]
every_setting = pytest.mark.parametrize("settings", SETTINGS, ids=["default", "small", "wide"])
#: Three moves lead to the goal: n, e and n.
BY_HAND = Sample("k", "a1 b3\n", "a1-b1 a2-a3")


class Says:
    """An engine that says one move after another, whatever it is given."""

    def __init__(self, moves: str) -> None:
        self._moves = iter(moves)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[tuple[Completion, ...]]:
        if not requests:
            return []
        said = ids(f"{next(self._moves)}\n")
        return [
            (Completion(said, (0.0,) * len(said), "stop", (Span(0, len(said), own=True, version=0),)),)
            for _ in requests
        ]


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def text_of(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def grown(sample: Sample, spoken: Sequence[Spoken]) -> Before:
    return Before(ids("".join(message.text for message in spoken[-1].messages)))


def problems(settings: dict[str, Any]) -> list[Sample]:
    return both(GridWorld(**settings))


def moves_to_the_goal(size: int, sample: Sample) -> int:
    """By widening circles of coordinates, without the environment's own grid. Fails where there is no way."""
    walls = {frozenset(map(coordinates, wall.split("-"))) for wall in sample.answer.split()}
    start, goal = map(coordinates, sample.prompt.split())
    reached = {start}
    for moves in range(size * size):
        if goal in reached:
            return moves
        beside = {(p, (p[0] + x, p[1] + y)) for p in reached for x, y in ((0, 1), (1, 0), (0, -1), (-1, 0))}
        inside = {(p, q) for p, q in beside if 0 <= q[0] < size and 0 <= q[1] < size}
        reached |= {q for p, q in inside if frozenset((p, q)) not in walls}
    raise AssertionError(f"{sample.key}: no way")


def coordinates(place: str) -> tuple[int, int]:
    return "abcdefghi".index(place[0]), int(place[1]) - 1


def walked(world: GridWorld, moves: str) -> list[tuple[str, float, bool]]:
    return [world.step(f"{move}\n") for move in moves]


@every_setting
def test_every_problem_is_solved_within_the_limit_by_its_shortest_path(settings: dict[str, Any]) -> None:
    world = GridWorld(**settings)
    for sample in problems(settings):
        start, goal = sample.prompt.split()
        grid = Grid(world.size, frozenset(sample.answer.split()))
        path = grid.shortest(start)[goal]
        assert len(path) == moves_to_the_goal(world.size, sample)
        assert world.distance[0] <= len(path) <= world.distance[1] <= world.turns
        world.reset(sample)
        *before, last = walked(world, path)
        assert last == ("", 1.0, True)
        assert all(re.fullmatch(r"[a-i][1-9]\n", text) for text, _, _ in before)
        assert {(reward, done) for _, reward, done in before} <= {(0.0, False)}


def test_no_catalog_row_ends_an_episode_before_the_environment_says() -> None:
    turns = task_of("grid-world").max_turns
    assert turns == ENVIRONMENTS["grid-world"]["max_turns"] == GridWorld().turns


@every_setting
def test_there_are_as_many_walls_as_the_setting_says_and_each_lies_between_neighbours(settings: dict[str, Any]) -> None:
    for sample in problems(settings):
        ends = [tuple(map(coordinates, wall.split("-"))) for wall in sample.answer.split()]
        assert len(set(ends)) == GridWorld(**settings).walls
        assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in ends)


@every_setting
def test_a_bump_changes_nothing_but_what_is_known(settings: dict[str, Any]) -> None:
    """Whatever is bumped into on the way, the same moves lead through the same places to the goal."""
    world, bumps = GridWorld(**settings), Counter[bool]()
    for sample in problems(settings)[:40]:
        start, goal = sample.prompt.split()
        grid = Grid(world.size, frozenset(sample.answer.split()))
        path, place = grid.shortest(start)[goal], start
        world.reset(sample)
        for move in path:
            for other in MOVES:
                if grid.after(place, other) is None:
                    assert world.step(f"{other}\n") == ("wall\n", 0.0, False)
                    assert world.state().split()[0] == place
                    bumps[grid.beside(place, other) is None] += 1
            place = grid.after(place, move) or "nowhere"
            answer = world.step(f"{move}\n")
            assert answer == (("", 1.0, True) if place == goal else (f"{place}\n", 0.0, False))
    assert min(bumps[True], bumps[False]) > 10, "walls and the edge have both been met"


@pytest.mark.parametrize(
    ("moves", "turns", "ended"),
    [("nen", 3, Ended.DONE), ("enen", 4, Ended.DONE), ("enen", 3, Ended.TURNS), ("ewnen", 4, Ended.TURNS)],
)
def test_a_bump_costs_a_turn(moves: str, turns: int, ended: Ended) -> None:
    """Played as a run plays it: who bumps comes to the same goal so many turns later, and may have none left."""
    environments = InlineEnvironments(playable(GridWorld, SMALL))
    play = Episodes(Says(moves), environments, grown, lambda sample: ids(sample.prompt), text_of, EpisodeLimits(turns))
    prompt = Prompt(BY_HAND, ids(BY_HAND.prompt))
    (cohort,) = play([Cohort((prompt,), (1,))], Segment(1, Sampling(max_new_tokens=80)))
    ((episode,),) = cohort.completions
    assert episode.ended is ended
    assert sum(reward for _, reward in episode.steps) == float(ended is Ended.DONE)
    assert len(episode.turns) == min(len(moves), turns)


@pytest.mark.parametrize("text", ["", "\n", "north\n", "ne\n", "N\n", "5\n", "a2\n", "wall\n", "ｎ\n", "x" * 10_000])
def test_what_is_no_move_is_answered_so_and_leaves_all_as_it_was(text: str) -> None:
    world = GridWorld(**SMALL)
    world.reset(BY_HAND)
    before = world.state()
    assert world.step(text) == ("no move\n", 0.0, False)
    assert world.state() == before
    assert set("no move\n") <= set(world.alphabet)


@every_setting
def test_no_layout_is_in_both_splits_or_twice(settings: dict[str, Any]) -> None:
    world = GridWorld(**settings)
    train, heldout = ([sample.answer for sample in world.samples(split)] for split in SPLITS)
    assert (len(train), len(heldout)) == (world.problems, world.heldout)
    assert len({*train, *heldout}) == len(train) + len(heldout)


def test_a_prompt_does_not_say_where_the_walls_are() -> None:
    """A prompt is a start and a goal, and most have several layouts."""
    samples = GridWorld().samples("train")
    assert all(re.fullmatch(r"[a-d][1-4] [a-d][1-4]\n", sample.prompt) for sample in samples)
    layouts = Counter(sample.prompt for sample in samples)
    assert sum(layouts[sample.prompt] > 1 for sample in samples) > 0.9 * len(samples)


def test_the_state_is_the_place_and_the_walls_that_were_bumped_into() -> None:
    world = GridWorld(**SMALL)
    world.reset(BY_HAND)
    states = [world.state()]
    for move in "wenneses":
        world.step(f"{move}\n")
        states.append(world.state())
    assert states[:3] == ["a1", "a1", "a1 a1-b1"], "the edge is no news, a wall is"
    assert states[3:5] == ["a2 a1-b1", "a2 a1-b1 a2-a3"]
    assert states[5:8] == ["b2 a1-b1 a2-a3", "b1 a1-b1 a2-a3", "c1 a1-b1 a2-a3"]
    assert states[8] == states[7], "the edge again"


def test_the_state_does_not_depend_on_the_way_and_is_forgotten_with_the_episode() -> None:
    world = GridWorld(**SMALL)
    ends = []
    for moves in ("nes", "enes", "nesnwes"):
        world.reset(BY_HAND)
        walked(world, moves)
        ends.append(world.state())
    assert ends == ["b1", "b1 a1-b1", "b1"]


def test_an_episode_that_is_played_again_elsewhere_answers_the_same() -> None:
    sample = GridWorld().samples("heldout")[0]
    here = LiveEpisodes(playable(GridWorld, {}))
    conversation = Conversation(sample, 0, 1)
    replies, rng = [here.answer(conversation)], random.Random(3)
    for _ in range(9):
        answered = (*conversation.answered, fingerprint(replies[-1]))
        said = (*conversation.said, f"{rng.choice(list(MOVES))}\n")
        conversation = replace(conversation, said=said, answered=answered)
        replies.append(here.answer(conversation))
    elsewhere = LiveEpisodes(playable(GridWorld, {})).answer(conversation)
    assert replace(elsewhere, seconds=0.0) == replace(replies[-1], seconds=0.0)
    assert all(reply.cause is None for reply in replies)
    assert len({reply.state for reply in replies}) > 2


@every_setting
def test_demonstrations_are_walks_of_random_moves_that_bumps_shorten(settings: dict[str, Any]) -> None:
    world = GridWorld(**settings)
    prompts = {sample.prompt for sample in world.samples("train")}
    turns = world.demonstrations(300, seed=1)
    walks = [len(turn.prompt.splitlines()) // 2 + 1 for turn in turns]
    assert set(walks) == set(range(1, world.turns + 1))
    assert all(after in (1, before + 1) for before, after in pairwise(walks))
    assert {turn.prompt.splitlines(keepends=True)[0] for turn in turns} <= prompts
    shares = Counter(turn.completion for turn in turns)
    assert set(shares) == {f"{move}\n" for move in MOVES}
    assert all(abs(share / len(turns) - 1 / 4) < 0.05 for share in shares.values())


def test_the_catalog_row_is_an_environment_task_with_its_settings() -> None:
    task = task_of("grid-world", {"settings": SMALL})
    assert isinstance(task, EnvironmentTask)
    assert task.game.quick
    assert [s.answer for s in task.samples("heldout")] == [s.answer for s in GridWorld(**SMALL).samples("heldout")]


@pytest.mark.parametrize("kind", ["turn-to-go", "gigpo", "group-zscore"])
def test_the_recipe_takes_every_credit_that_the_page_compares(kind: str) -> None:
    assert kind in resolve(load("grid-world", {"algorithm.advantage": {"kind": kind}})).describe()
