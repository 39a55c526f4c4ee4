"""Sessions of agents: the game is that of an environment, to the bit, and every trained id is a sampled one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from groupwise.core.collate import collate
from groupwise.core.engine import Sampling
from groupwise.core.environment import Ended, EpisodeLimits, Visit
from groupwise.core.numbers.measure import Measure
from groupwise.core.records import Completion, Group
from groupwise.core.samples import Sample, ScoreResult
from groupwise.core.stream import Cohort
from groupwise.diagnostics.groups import episode_metrics
from groupwise.environments.adapt import playable
from groupwise.environments.live import InlineEnvironments
from groupwise.rollout.episodes import Episodes
from groupwise.rollout.gateway import play
from groupwise.rollout.segments import Segment
from tests.rollout.gateway.made import (
    LIMITS,
    SEEDS,
    InThreads,
    Listening,
    chat,
    glue,
    played,
    policy,
    post,
    prompts,
    user,
)

TURNS = 4


class Echo:
    """Says how much it heard; over after a number of turns that the words decide."""

    def reset(self, sample: Sample) -> None:
        self.heard: list[str] = []

    def step(self, text: str) -> tuple[str, float, bool]:
        self.heard.append(text)
        return answered(self.heard), 0.0, over(self.heard)


def answered(heard: list[str]) -> str:
    return "x" * (sum(map(len, heard)) % 5 + 1)


def over(heard: list[str]) -> bool:
    return len(heard) >= TURNS or (len(heard) > 1 and sum(map(ord, heard[-1])) % 3 == 0)


def echo(visit: Visit) -> float:
    """The same game as an agent."""
    messages: list[dict[str, Any]] = [user(visit.sample.prompt)]
    heard: list[str] = []
    while True:
        message = chat(visit, messages)["choices"][0]["message"]
        heard.append(message["content"])
        messages += [message, user(answered(heard))]
        if over(heard):
            return 0.5


def inside(engine: Any, sampling: Sampling) -> list[tuple[Completion, ...]]:
    environments = InlineEnvironments(playable(Echo, {}))
    own = glue()
    play = Episodes(engine, environments, own.onward, own.chat.encode, policy().decode, LIMITS)
    (cohort,) = play([Cohort(prompts(), SEEDS[:3])], Segment(3, sampling))
    return list(cohort.completions)


def bits(completions: list[tuple[Completion, ...]]) -> list[Any]:
    return [(c.tokens, c.logp_engine, c.spans, [t.stop for t in c.turns]) for group in completions for c in group]


@pytest.mark.parametrize("at_once", [64, 4])
def test_a_game_through_the_gateway_has_the_bits_of_the_same_game_inside(at_once: int) -> None:
    sampling = Sampling(max_new_tokens=200)
    own = inside(Listening(), sampling)
    through = played(echo, sampling=sampling, at_once=at_once)
    assert [len(c.turns) for group in own for c in group] == [len(c.turns) for group in through for c in group]
    assert max(len(c.turns) for group in own for c in group) > 2
    if at_once == 64:
        assert bits(through) == bits(own)
    else:  # other rounds: the same draws, and sums in another order
        assert [c.tokens for group in through for c in group] == [c.tokens for group in own for c in group]
    assert all(c.ended is Ended.DONE and c.turns[-1].reward == 0.5 for group in through for c in group)


def wild(visit: Visit) -> float:
    """Asks in every way: goes on, forks, retries, edits, begins anew, streams, in ids, several answers at once."""
    first = chat(visit, [user(visit.sample.prompt)])["choices"][0]["message"]
    draw = random.Random(f"{visit.sample.key} {first['content']}")
    histories: list[list[dict[str, Any]]] = [[user(visit.sample.prompt), first, user("go on")]]
    ids: list[list[int]] = []
    for _ in range(draw.randrange(2, 7)):
        how = draw.choice(("go", "go", "fork", "edit", "anew", "ids", "several", "stream"))
        history = draw.choice(histories) if how in ("fork", "edit") else histories[-1]
        if how == "anew":
            history = [{"role": "system", "content": "other"}, user("again")]
        if how == "edit" and len(history) > 1:
            history = [*history[:1], {"role": "assistant", "content": "edited"}, *history[2:]]
        if how == "ids":
            asked = [44, 45, 46, draw.randrange(40, 50)]
            asked = [*draw.choice(ids), 40, 41] if ids and draw.random() < 0.7 else asked
            status, answer = post(visit, "/inference/v1/generate", {"token_ids": asked, "sampling_params": {"n": 2}})
            assert status == 200
            ids += [asked + choice["token_ids"] for choice in answer["choices"]]
            continue
        if how == "stream":
            body = {"messages": history, "stream": True}
            status, events = post(visit, "/v1/chat/completions", body)
            assert (status, events[-16:]) == (200, "\n\ndata: [DONE]\n\n")
            continue
        answer = chat(visit, history, n=2 if how == "several" else 1, max_tokens=draw.choice((2, 5, None)))
        said = [choice["message"] for choice in answer["choices"]]
        histories += [[*history, message, user(draw.choice(("more", "no")))] for message in said]
    return 1.0


class Restarted(InThreads):
    """Each session is begun a second time after what `first` asks, as if its process had been lost."""

    def __init__(self, first: Callable[[Visit], Any], agent: Callable[[Visit], Any]) -> None:
        super().__init__(agent)
        self.first = first

    def play(self, name: str, begin: Callable[[], Visit], then: Callable[[Future[ScoreResult]], None]) -> None:
        def again() -> Visit:
            lost = begin()
            self.first(lost)
            own = begin()
            status, answer = post(lost, "/v1/chat/completions", {"messages": [user("of a process that was lost")]})
            assert (status, answer["error"]["code"]) == (410, "session_over")
            return own

        super().play(name, again, then)


@pytest.mark.parametrize("agent", [wild, Restarted(wild, wild)], ids=["once", "begun again"])
def test_every_trained_id_is_a_sampled_id_behind_what_the_policy_read(agent: Any) -> None:
    engine = Listening()
    limits = EpisodeLimits(turns=32, turn_tokens=6)
    episodes = played(agent, engine, samples=8, limits=limits, sampling=Sampling(max_new_tokens=2000))
    episodes = [tuple(replace(c, score=1.0) for c in group) for group in episodes]
    batch = collate([Group(p, g) for p, g in zip(prompts(), episodes, strict=True)], pad=0)
    assert batch.read_from is not None
    own: list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]] = []
    rows = [(prompt, episode) for prompt, group in zip(prompts(), episodes, strict=True) for episode in group]
    for row, (prompt, episode) in enumerate(rows):
        assert episode.ended is Ended.DONE, episode.turns[-1].detail
        for span in (span for span in episode.spans if span.own):
            start, stop = len(prompt.tokens) + span.start, len(prompt.tokens) + span.stop
            assert bool(batch.mask[row, start:stop].all())
            read = tuple(batch.tokens[row, int(batch.read_from[row, start]) : start].tolist())
            at = slice(span.start, span.stop)
            own.append((read, episode.tokens[at], episode.logp_engine[at]))
        assert int(batch.mask[row].sum()) == episode.length
    sampled = [(request.tokens, answer.tokens, answer.logp_engine) for request, answer in engine.calls]
    assert sorted(own) == sorted(sampled)
    assert len({(request.seed, request.first) for request, _ in engine.calls}) == len(engine.calls)
    assert sum(span.anew for group in episodes for c in group for span in c.spans) > 10
    read = [len(set(batch.read_from[row][batch.mask[row]].tolist())) for row in range(len(rows))]
    told = episode_metrics([episode for _, episode in rows], Measure())["rows_mean"].read()
    assert told == pytest.approx(sum(read) / len(read))
    assert told > 2


def test_a_session_that_begins_with_a_prompt_of_its_own_is_one_row() -> None:
    def play(visit: Visit) -> float:
        chat(visit, [user("another question")])
        return 1.0

    episodes = [episode for group in played(play) for episode in group]
    assert all(episode.spans[0].anew for episode in episodes)
    assert episode_metrics(episodes, Measure())["rows_mean"].read() == 1.0


def test_the_same_agents_ask_again_and_get_the_same_bits_whoever_is_faster() -> None:
    def at_its_own_pace(visit: Visit) -> float:
        time.sleep(random.random() / 20)
        return echo(visit)

    one, other = Listening(), Listening()
    assert bits(played(at_its_own_pace, one)) == bits(played(at_its_own_pace, other))
    assert one.sizes == other.sizes  # rounds of all sessions that go on
    assert one.sizes[:2] == [9, 9]


def some(visit: Visit) -> None:
    """Ask twice as the game does."""
    first = chat(visit, [user(visit.sample.prompt)])["choices"][0]["message"]
    chat(visit, [user(visit.sample.prompt), first, user(answered([first["content"]]))])


def test_a_session_that_begins_again_has_the_same_answers_and_the_process_before_is_not_heard() -> None:
    whole, again = Listening(), Listening()
    sampling = Sampling(max_new_tokens=200)
    assert bits(played(echo, whole, sampling=sampling)) == bits(played(Restarted(some, echo), again, sampling=sampling))
    assert again.sizes == whole.sizes


def test_an_agent_that_asks_something_else_when_it_begins_again_draws_no_number_twice() -> None:
    def another(visit: Visit) -> None:
        chat(visit, [user(visit.sample.prompt)])
        chat(visit, [user("another question")])
        chat(visit, [user("and another")], n=2)

    engine, limits = Listening(), EpisodeLimits(turns=32, turn_tokens=6)
    episodes = played(Restarted(another, wild), engine, limits=limits, sampling=Sampling(max_new_tokens=2000))
    draws = [(request.seed, request.first, request.drawn) for request, _ in engine.calls]
    assert len(set(draws)) == len(draws) > 9 * 4
    assert all(episode.ended is Ended.DONE for group in episodes for episode in group)


def at_once(visit: Visit) -> float:
    """Ask three sub-agents at the same time, each of which goes on once, in any order; then tell their words on."""

    def sub_agent(number: int) -> str:
        time.sleep(random.random() / 50)
        asked = [{"role": "system", "content": f"sub-agent {number}"}, user(first["content"])]
        said = chat(visit, asked)["choices"][0]["message"]
        time.sleep(random.random() / 50)
        return chat(visit, [*asked, said, user("go on")])["choices"][0]["message"]["content"]

    first = chat(visit, [user(visit.sample.prompt)])["choices"][0]["message"]
    with ThreadPoolExecutor(3) as threads:
        heard = list(threads.map(sub_agent, range(3)))
    chat(visit, [user(visit.sample.prompt), first, user(" ".join(heard))])
    return 1.0


def asks_at_once_and_is_lost(visit: Visit) -> None:
    first = chat(visit, [user(visit.sample.prompt)])["choices"][0]["message"]
    for number in random.sample(range(3), 2):
        chat(visit, [{"role": "system", "content": f"sub-agent {number}"}, user(first["content"])])


@pytest.mark.parametrize("agent", [at_once, Restarted(asks_at_once_and_is_lost, at_once)], ids=["once", "begun again"])
def test_of_requests_at_the_same_time_any_may_come_first(agent: Any) -> None:
    """An agent that asks several things at once has the same draws each time, and is a function of what it is told."""
    heard, sampling, limits = list[str](), Sampling(max_new_tokens=2000), EpisodeLimits(turns=32, turn_tokens=6)
    one, other = (
        {
            (group, number): set(turns_of(episode))
            for group, episodes in enumerate(played(who, sampling=sampling, limits=limits, note=heard.append))
            for number, episode in enumerate(episodes)
        }
        for who in (at_once, agent)
    )
    assert one == other
    assert {len(turns) for turns in one.values()} == {8}
    assert heard == []


def turns_of(episode: Completion) -> list[tuple[int, ...]]:
    """The sampled ids of each turn."""
    return [episode.tokens[span.start : span.stop] for span in episode.spans if span.own]


def test_without_patience_a_session_goes_on_while_another_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws are those of rounds, and of two sessions the one with short answers does not wait for the other."""
    monkeypatch.setattr(play, "PIECE", 4)
    engine, sampling, limits = Listening(), Sampling(max_new_tokens=200), EpisodeLimits(turns=8, turn_tokens=30)
    through = played(echo, engine, sampling=sampling, limits=limits, patience=0.0)
    rounds = played(echo, sampling=sampling, limits=limits)
    assert [c.tokens for group in through for c in group] == [c.tokens for group in rounds for c in group]
    assert [c.spans for group in through for c in group] == [c.spans for group in rounds for c in group]
    assert {request.max_new_tokens for request, _ in engine.calls if request.drawn < 20} == {4}
    assert all((request.max_new_tokens or 0) <= max(4, request.drawn // 4) for request, _ in engine.calls)

    ends: list[str] = []

    def long_or_short(visit: Visit) -> float:
        for _ in range(1 if visit.sample.prompt == "long" else 3):
            chat(visit, [user("q")], max_tokens=160 if visit.sample.prompt == "long" else 1)
        ends.append(visit.sample.prompt)
        return 1.0

    texts, limits = ["long", "short"], EpisodeLimits(turns=8)
    played(
        long_or_short,
        samples=1,
        limits=limits,
        sampling=Sampling(max_new_tokens=400, min_new_tokens=200),
        texts=texts,
        patience=0.0,
    )
    assert ends == ["short", "long"]
