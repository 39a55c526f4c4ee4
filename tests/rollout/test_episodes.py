"""Episodes: ids that only grow, an environment that is heard and answered, ends and faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from groupwise.core.collate import collate
from groupwise.core.engine import OnFinish, Request, Sampling
from groupwise.core.environment import Before, Ended, EpisodeLimits, Says, Spoken
from groupwise.core.records import Completion, Prompt
from groupwise.core.samples import Sample
from groupwise.core.stream import Cohort
from groupwise.engines.local.engine import LocalEngine
from groupwise.environments.adapt import playable
from groupwise.environments.live import InlineEnvironments
from groupwise.rollout.collect import scored_groups
from groupwise.rollout.episodes import Episodes
from groupwise.rollout.scoring import Scorer
from groupwise.rollout.segments import Segment, advance
from tests.engines.local.made import EOS, build, build_moe
from tests.rollout.made import ARITHMETIC

SAMPLES = 4
SEEDS = (3, 8, 5)
PROMPTS = tuple(
    Prompt(Sample(str(i), "", "", seed=i), tuple(2 + (7 * i + j) % 20 for j in range(2 + i))) for i in range(3)
)
SAMPLING = Sampling(max_new_tokens=40)
TURN_TOKENS = 6


def decode(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def grown(sample: Sample, spoken: Sequence[Spoken]) -> Before:
    """Ids that tell what the environment said, after one that ends a turn."""
    return Before((1, *(2 + len(message.text) % 20 for message in spoken[-1].messages), 7))


class Echo:
    """Says how much it heard; over after a number of turns that the sample and the words decide."""

    def __init__(self, least: int = 1, reward: float = 0.5, fails_at: int = 0) -> None:
        self.least, self.reward, self.fails_at = least, reward, fails_at
        self.heard: list[str] = []

    def reset(self, sample: Sample) -> str | None:
        self.heard = []
        return None

    def step(self, text: str) -> tuple[str, float, bool]:
        self.heard.append(text)
        if len(self.heard) == self.fails_at:
            raise OSError("no such thing")
        words = [int(word) for word in " ".join(self.heard).split()]
        return (
            "x" * (sum(words) % 13 + 1),
            self.reward * len(self.heard),
            len(self.heard) >= self.least + sum(words) % 3,
        )

    def state(self) -> str:
        return f"after {len(self.heard)}"


class Listening:
    """An engine that keeps what it was asked and what it answered."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.calls: list[tuple[Sequence[Request], list[tuple[Completion, ...]]]] = []

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None) -> Any:
        answers = self.engine.generate(requests, sampling, on_finish)
        self.calls.append((requests, answers))
        return answers


def episodes(engine: Any, limits: EpisodeLimits | None = None, **echo: Any) -> Episodes:
    environments = InlineEnvironments(playable(Echo, echo))
    limits = limits or EpisodeLimits(turns=4, turn_tokens=TURN_TOKENS)
    return Episodes(engine, environments, grown, lambda sample: (2, 3), decode, limits)


def played(
    engine: Any, prompts: Sequence[Prompt] = PROMPTS, seeds: Sequence[int] = SEEDS, **how: Any
) -> list[Completion]:
    play = episodes(engine, **how)
    (cohort,) = play([Cohort(tuple(prompts), tuple(seeds))], Segment(SAMPLES, SAMPLING))
    return [completion for group in cohort.completions for completion in group]


def test_between_two_steps_nothing_is_held() -> None:
    """Of episodes that were over before their turns were used up a whole batch would be, beside the update."""
    local = LocalEngine(build(), EOS, pad=0)
    engine = Listening(local)
    episodes(engine, limits=EpisodeLimits(turns=9, turn_tokens=TURN_TOKENS), least=1)(
        [Cohort(PROMPTS, SEEDS)], Segment(SAMPLES, SAMPLING)
    )
    assert any(request.hold for request in [requests for requests, _ in engine.calls if requests][-1])
    assert len(local._held) == 0


def test_the_ids_of_a_turn_are_those_of_the_next_one_and_those_that_train() -> None:
    engine = Listening(LocalEngine(build(), EOS, pad=0))
    (cohort,) = episodes(engine)([Cohort(PROMPTS, SEEDS)], Segment(SAMPLES, SAMPLING))
    requests = [request for asked, _ in engine.calls for request in asked]
    answers = [answer for _, got in engine.calls for answer in got]
    several = 0
    for p, group in enumerate(cohort.completions):
        for i, episode in enumerate(group):
            whole = (*PROMPTS[p].tokens, *episode.tokens)
            begin, sampled = len(PROMPTS[p].tokens), 0
            for turn in episode.turns:
                own = [
                    answer[i - request.first].tokens
                    for request, answer in zip(requests, answers, strict=True)
                    if request.tokens == whole[:begin] and 0 <= i - request.first < request.samples
                ]
                end = len(PROMPTS[p].tokens) + turn.stop
                assert whole[begin:end] in own, "the engine was given these ids, and answered with those"
                sampled += end - begin
                begin = end + len(grown(PROMPTS[p].sample, [Spoken((), (Says("user", ""),))]).ids)
            assert episode.length == sampled
            edges = [edge for turn in episode.turns for edge in (turn.stop,)]
            assert [span.stop for span in episode.spans if span.own] == edges
            assert [index for index, _ in episode.steps] == [turn.stop - 1 for turn in episode.turns]
            several += len(episode.turns) > 1
    assert several >= 6
    for earlier, later in zip(engine.calls, engine.calls[1:], strict=False):
        before = {(*r.tokens, *c.tokens) for r, got in zip(*earlier, strict=True) for c in got}
        assert all(request.tokens[: request.held] in before for request in later[0]), "what it may still hold"


@pytest.mark.parametrize("limits", [EpisodeLimits(turns=1), EpisodeLimits(turns=4)])
def test_an_episode_of_one_turn_is_a_plain_completion(limits: EpisodeLimits) -> None:
    """Ids and log-probabilities, to the bit: the environment changes nothing of what it only hears."""

    class Once(Echo):
        def step(self, text: str) -> tuple[str, float, bool]:
            return "never heard", 1.0, True

    engine = LocalEngine(build(), EOS, pad=0)
    play = replace(episodes(engine, limits), environments=InlineEnvironments(playable(Once, {})))
    (one,) = play([Cohort(PROMPTS, SEEDS)], Segment(SAMPLES, SAMPLING))
    (plain,) = advance(engine, [Cohort(PROMPTS, SEEDS)], Segment(SAMPLES, SAMPLING))
    for ours, theirs in zip(sum(one.completions, ()), sum(plain.completions, ()), strict=True):
        assert (ours.tokens, ours.spans, ours.logp_engine) == (theirs.tokens, theirs.spans, theirs.logp_engine)
        assert (ours.ended, ours.steps) == (Ended.DONE, ((len(ours.tokens) - 1, 1.0),))


def test_an_episode_is_the_same_beside_others_and_alone() -> None:
    engine = LocalEngine(build(), EOS, pad=0)
    every = played(engine)
    for p in range(3):
        alone = played(engine, PROMPTS[p : p + 1], SEEDS[p : p + 1])
        for one, other in zip(every[SAMPLES * p : SAMPLES * (p + 1)], alone, strict=True):
            assert (one.tokens, one.turns, one.ended) == (other.tokens, other.turns, other.ended)
            assert one.logp_engine == pytest.approx(other.logp_engine, abs=1e-5)


def test_an_environments_tokens_have_no_log_probability_no_mask_and_no_route_of_a_draw() -> None:
    engine = LocalEngine(build_moe(), EOS, pad=0, routes=True)
    play = episodes(engine)
    groups = scored_groups(play, Scorer(ARITHMETIC, decode), PROMPTS, SEEDS, SAMPLES, SAMPLING)
    batch = collate(groups, pad=0)
    assert batch.step_end is not None
    for row, completion in enumerate(c for group in groups for c in group.completions):
        start = int(batch.length[row]) - len(completion.tokens)
        own = {start + at for span in completion.spans if span.own for at in range(span.start, span.stop)}
        assert set(batch.mask[row].nonzero()[:, 0].tolist()) == own
        assert set(batch.logp_engine[row].nonzero()[:, 0].tolist()) <= own
        assert batch.step_end[row].sum() == len(completion.turns)
        assert completion.routes is not None
        assert len(completion.routes) == start + len(completion.tokens) - 1
        assert completion.score == pytest.approx(sum(turn.reward for turn in completion.turns))
        assert completion.turns[0].state == "after 0"


def test_every_end_says_why() -> None:
    engine = LocalEngine(build(), EOS, pad=0)
    by_turns = played(engine, limits=EpisodeLimits(turns=2, turn_tokens=2), least=9)
    assert {(c.ended, len(c.turns), c.finish) for c in by_turns} == {(Ended.TURNS, 2, "stop")}
    by_tokens = played(engine, limits=EpisodeLimits(turns=99, turn_tokens=5), least=99)
    assert {(c.ended, c.finish) for c in by_tokens} == {(Ended.TOKENS, "length")}
    assert all(len(c.tokens) <= SAMPLING.max_new_tokens and c.spans[-1].own for c in by_tokens)
    by_seconds = played(engine, limits=EpisodeLimits(turns=99, turn_tokens=2, seconds=1e-9), least=99)
    assert {(c.ended, len(c.turns)) for c in by_seconds} == {(Ended.SECONDS, 1)}


class Looks:
    """TRL's form: what an episode is worth is known at its end."""

    def __init__(self, worth: float | None = 2.0) -> None:
        self.worth = worth
        self.looks = 0

    def reset(self) -> str | None:
        return None

    def look(self) -> str:
        """Look."""
        self.looks += 1
        return "x" * self.looks

    def get_reward(self) -> float | None:
        return None if self.worth is None else self.worth + self.looks


CUT_OFF = {
    Ended.TOKENS: EpisodeLimits(turns=99, turn_tokens=5),
    Ended.SECONDS: EpisodeLimits(turns=99, turn_tokens=5, seconds=1e-9),
    Ended.TURNS: EpisodeLimits(turns=2, turn_tokens=5),
}


@pytest.mark.parametrize("why", CUT_OFF)
@pytest.mark.parametrize("worth", [2.0, None])
def test_an_episode_is_worth_what_get_reward_says_wherever_it_ends(why: Ended, worth: float | None) -> None:
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    inline = InlineEnvironments(playable(Looks, {"worth": worth}))
    engine = LocalEngine(build(), EOS, pad=0)
    play = Episodes(engine, inline, grown, lambda sample: (2, 3), lambda tokens: call, CUT_OFF[why])
    (cohort,) = play([Cohort(PROMPTS, SEEDS)], Segment(SAMPLES, SAMPLING))
    for episode in [completion for group in cohort.completions for completion in group]:
        if worth is None:
            assert episode.ended is Ended.FAULT
            assert "None, no number" in episode.turns[-1].detail
            continue
        assert episode.ended is why
        assert [turn.reward for turn in episode.turns] == [0.0] * (len(episode.turns) - 1) + [2.0 + len(episode.turns)]
        assert episode.steps == tuple((turn.stop - 1, turn.reward) for turn in episode.turns)


def test_a_fault_ends_its_episode_alone_or_is_what_the_policy_is_answered() -> None:
    engine = LocalEngine(build(), EOS, pad=0)

    def score(*limits: EpisodeLimits, **echo: Any) -> list[Completion]:
        play = episodes(engine, *limits, least=2, **echo)
        groups = scored_groups(play, Scorer(ARITHMETIC, decode), PROMPTS, SEEDS, SAMPLES, SAMPLING)
        return [c for group in groups for c in group.completions]

    masked, clean = score(fails_at=2), score()
    assert {c.ended for c in masked} == {Ended.FAULT}
    assert all(math.isnan(c.score) and c.fault == "exception in environment" for c in masked)
    assert all("OSError: no such thing" in c.turns[-1].detail for c in masked)
    assert [c.tokens[: c.turns[0].stop] for c in masked] == [c.tokens[: c.turns[0].stop] for c in clean]
    answer = EpisodeLimits(turns=4, turn_tokens=TURN_TOKENS, on_fault="answer")
    answered = score(answer, fails_at=2)
    # What it failed on it is taken not to have heard, so that it fails on the next turn as well.
    assert {tuple(turn.fault for turn in c.turns) for c in answered} == {("", "exception", "exception", "exception")}
    assert {(c.ended, c.score) for c in answered} == {(Ended.TURNS, 0.5)}
    assert {len(c.spans) for c in answered} == {7}
