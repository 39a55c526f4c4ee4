"""Episodes that live in a process: an answer is a function of the conversation, wherever the episode was before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from groupwise.core.environment import Conversation, Reply, fingerprint
from groupwise.core.samples import Cause, Sample
from groupwise.environments.adapt import playable
from groupwise.environments.live import LiveEpisodes
from tests.environments.environment_faults import Counts, Dice, Moody

SAMPLE = Sample("k", "", "", seed=7)


def begin(number: int = 0, round: int = 1) -> Conversation:
    return Conversation(SAMPLE, number, round)


def said(conversation: Conversation, before: Reply, text: str, last: bool = False) -> Conversation:
    """The conversation after an answer, with what the policy says to it."""
    seen = "" if before.cause is not None else fingerprint(before)
    answered = (*conversation.answered, seen)
    return replace(conversation, said=(*conversation.said, text), answered=answered, last=last)


def play(live: LiveEpisodes, *turns: str, number: int = 0) -> tuple[list[Reply], Conversation]:
    conversation = begin(number)
    replies = [live.answer(conversation)]
    for turn in turns:
        conversation = said(conversation, replies[-1], turn)
        replies.append(live.answer(conversation))
    return replies, conversation


def same(one: Reply, other: Reply) -> bool:
    return replace(one, seconds=0.0) == replace(other, seconds=0.0)


@pytest.mark.parametrize("kind", [Counts, Dice])
@pytest.mark.parametrize("turns", [["a"], ["a", "b", "c"], ["a", "raise", "b", "raise", "c"]])
def test_an_episode_is_played_again_where_it_has_never_been(kind: type, turns: list[str]) -> None:
    live = LiveEpisodes(playable(kind, {}))
    replies, conversation = play(live, *turns)
    elsewhere = LiveEpisodes(playable(kind, {}))
    assert same(elsewhere.answer(conversation), replies[-1])
    following = said(conversation, replies[-1], "d")
    assert same(elsewhere.answer(following), live.answer(following))


def test_what_a_fault_heard_is_left_out_when_it_is_played_again() -> None:
    replies, _ = play(LiveEpisodes(playable(Counts, {})), "a", "raise", "b")
    assert [reply.state for reply in replies] == ["s0", "s1", "", "s2"]
    assert replies[2].cause is Cause.EXCEPTION
    assert replies[2].detail.endswith("KeyError: 'a key of mine'")
    assert "groupwise/environments" not in replies[2].detail


def test_an_episode_that_answers_otherwise_the_second_time_is_a_fault_that_says_so() -> None:
    replies, conversation = play(LiveEpisodes(playable(Moody, {})), "a", "b")
    assert [reply.cause for reply in replies] == [None, None, None]
    again = LiveEpisodes(playable(Moody, {})).answer(conversation)
    assert again.cause is Cause.EXCEPTION
    assert "its answer number 1 is another than before" in again.detail
    assert "sample.seed" in again.detail


def test_episodes_of_an_earlier_round_are_over_and_closed() -> None:
    closed = []

    class Holds(Counts):
        def close(self) -> None:
            closed.append(self.turns)

    live = LiveEpisodes(playable(Holds, {}))
    play(live, "a", number=0)
    play(live, "a", "b", number=1)
    assert closed == []
    live.answer(begin(2, round=2))
    assert closed == [1, 2]
    _, conversation = play(LiveEpisodes(playable(Holds, {})), "end")
    assert closed == [1, 2, 1], "with its last answer"
    live.answer(replace(conversation, episode=2, round=2, said=("a",), last=True))
    assert closed == [1, 2, 1, 1], "with the last turn it may have"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_get_reward_counts_where_the_turns_are_used_up_and_where_an_episode_is_cut_off(elsewhere: bool) -> None:
    live = LiveEpisodes(playable(Dice, {}))
    opening = live.answer(begin())
    right = f'<tool_call>{{"name": "guess", "arguments": {{"number": {opening.messages[0].text}}}}}</tool_call>'
    assert live.answer(said(begin(1), live.answer(begin(1)), right, last=True)).reward == 0.75
    turn = said(begin(), opening, right)
    answer = live.answer(turn)
    assert answer.reward == 0.0
    end = replace(turn, answered=(*turn.answered, fingerprint(answer)), last=True, cut_off=True)
    asked = LiveEpisodes(playable(Dice, {})) if elsewhere else live
    assert same(asked.answer(end), Reply(reward=0.75))
    assert asked._episodes == {}, "and is over with it"


def test_sys_exit_is_a_fault_like_others() -> None:
    replies, _ = play(LiveEpisodes(playable(Counts, {})), "exit", "a")
    assert [reply.cause for reply in replies] == [None, Cause.EXCEPTION, None]
    assert replies[2].state == "s1"
