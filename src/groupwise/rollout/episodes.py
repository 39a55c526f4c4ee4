"""Episodes: turns of the policy's and answers of an environment's, all episodes side by side.

    engine        | turn 1 of all | turn 2 of those that live | ...
    environments  |    answers to what has ended   |  answers  ...

The ids only grow, unless the task has the history rewritten. With prompt p, what the policy sampled in its turns
a_1, a_2, ... and the ids g_t of what the environment wrote after turn t, with the text of the chat template around it:

    the engine is given   p,   p a_1 g_1,   p a_1 g_1 a_2 g_2,   ...      and the episode is   a_1 g_1 a_2 ... a_T

so the ids of a turn are a prefix of those of the next one, and the sampled ids are those that train. With a history
that is rewritten h_t, a whole prompt, stands in the place of g_t, and the engine is given h_t alone. Turn t of
completion i of a prompt with seed s draws the random numbers of (derive(s, "turn", t), i), those of the first turn
(s, i): what an episode is depends on weights, sample and seed alone, and one of one turn is a plain completion.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from groupwise.core.engine import Engine, Finished, OnFinish, Request
from groupwise.core.environment import (
    Before,
    Conversation,
    Ended,
    Environments,
    EpisodeLimits,
    EpisodeTurn,
    Reply,
    Says,
    Spoken,
    fingerprint,
)
from groupwise.core.errors import UsageError
from groupwise.core.numbers.seeds import derive
from groupwise.core.records import Completion, Prompt, Span
from groupwise.core.samples import Cause, Sample
from groupwise.core.stream import Cohort
from groupwise.environments.calls import calls_in, without_end
from groupwise.environments.tools import unanswered
from groupwise.rollout.segments import Sampler, Segment, joined

#: (the sample with the environment's opening, the turns so far) -> the ids that come before the next turn.
Onward = Callable[[Sample, Sequence[Spoken]], Before]
#: Ends that come between two turns, whatever the environment answered.
CUT_OFF = (Ended.TOKENS, Ended.SECONDS)


class Plays(Sampler, Protocol):
    """Sampler whose completions are episodes.

    tools  the names of the tools that the policy may call
    """

    @property
    def tools(self) -> Sequence[str]: ...

    def close(self) -> None: ...


@dataclass
class Episode:
    """One that is being played.

    place         (cohort, prompt, sample)
    conversation  what was said, for the environment
    completion    the policy's turns so far, with what stands between them
    spoken        the turns so far that were answered
    state         of the environment, after its last answer
    request       of its present turn
    ticket        of the environment's answer to it
    """

    place: tuple[int, int, int]
    prompt: Prompt
    seed: int
    conversation: Conversation
    opening: Reply
    completion: Completion | None = None
    spoken: tuple[Spoken, ...] = ()
    state: str = ""
    seconds: float = 0.0
    request: Request | None = None
    ticket: int | None = None

    @property
    def turns(self) -> tuple[EpisodeTurn, ...]:
        return self.completion.turns if self.completion is not None else ()

    @property
    def live(self) -> bool:
        """True if it goes on."""
        return self.completion is None or self.completion.ended is None


@dataclass
class Episodes:
    """Plays the episodes of cohorts to their ends.

    onward  what comes before a turn
    encode  a sample -> the ids of its prompt
    decode  the ids of a turn -> its text, as the environment hears it
    """

    engine: Engine
    environments: Environments
    onward: Onward
    encode: Callable[[Sample], tuple[int, ...]]
    decode: Callable[[tuple[int, ...]], str]
    limits: EpisodeLimits
    _rounds: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self, cohorts: Sequence[Cohort], segment: Segment, on_finish: OnFinish | None = None) -> list[Cohort]:
        """Play all episodes of the cohorts."""
        episodes = self._opened(cohorts, segment)
        while live := [episode for episode in episodes if episode.live]:
            self._turn(live, segment)
        self.engine.generate([], segment.sampling)  # lets go of what is held of the last turns
        return [_cohort(number, cohort, episodes) for number, cohort in enumerate(cohorts)]

    @property
    def tools(self) -> Sequence[str]:
        """The names of the tools that the policy may call."""
        return self.environments.tools

    def close(self) -> None:
        """End the processes that episodes live in."""
        self.environments.close()

    def _opened(self, cohorts: Sequence[Cohort], how: Segment) -> list[Episode]:
        """Begin all episodes, `how.samples` of each prompt, with the environment's opening in it."""
        round_ = next(self._rounds)
        places = [(c, p) for c, cohort in enumerate(cohorts) for p in range(len(cohort.prompts))]
        begun = [
            [Conversation(cohorts[c].prompts[p].sample, next(self._numbers), round_) for _ in range(how.samples)]
            for c, p in places
        ]
        openings = self.environments.wait([self.environments.begin(each[0]) for each in begun])
        episodes = []
        for (c, p), conversations, opening in zip(places, begun, openings, strict=True):
            prompt = self._with_opening(cohorts[c].prompts[p], opening)
            answered = (fingerprint(opening),)
            episodes += [
                Episode(
                    (c, p, i),
                    prompt,
                    cohorts[c].seeds[p],
                    replace(one, answered=answered),
                    opening,
                    state=opening.state,
                )
                for i, one in enumerate(conversations)
            ]
        return episodes

    def _with_opening(self, prompt: Prompt, opening: Reply) -> Prompt:
        text = "".join(message.text for message in opening.messages)
        if not text:
            return prompt
        sample = with_text(prompt.sample, text)
        return Prompt(sample, self.encode(sample))

    def _turn(self, live: Sequence[Episode], how: Segment) -> None:
        """Play one turn of each episode; environments answer what has ended while other episodes are being sampled."""
        requests: list[tuple[Request, list[Episode]]] = []
        for _, group in itertools.groupby(live, key=lambda episode: episode.place[:2]):
            of_prompt = list(group)  # their first turn is one request
            for together in [[one] for one in of_prompt] if of_prompt[0].turns else [of_prompt]:
                requests.append((_request(together[0], how, self.limits, samples=len(together)), together))

        def hears(done: Finished) -> None:
            self._say(requests[done.request][1][done.sample], done.tokens)

        answers = self.engine.generate([request for request, _ in requests], how.sampling, hears)
        for (_, episodes), completions in zip(requests, answers, strict=True):
            for episode, completion in zip(episodes, completions, strict=True):
                if episode.ticket is None:  # an engine need not tell of completions as they end
                    self._say(episode, completion.tokens)
                before = episode.completion
                episode.completion = completion if before is None else joined(before, completion)
        waiting = [(episode, episode.ticket) for episode in live if episode.ticket is not None]
        replies = self.environments.wait([ticket for _, ticket in waiting])
        for (episode, _), reply in zip(waiting, replies, strict=True):
            self._take(episode, reply, how)
        self._close(live)

    def _say(self, episode: Episode, tokens: tuple[int, ...]) -> None:
        last = len(episode.turns) + 1 == self.limits.turns
        before = episode.conversation
        episode.conversation = replace(before, said=(*before.said, self.decode(tokens)), last=last)
        episode.ticket = self.environments.begin(episode.conversation)

    def _take(self, episode: Episode, reply: Reply, how: Segment) -> None:
        """Turn what the environment answered into the end of the episode, or into ids before its next turn."""
        assert episode.completion is not None
        if episode.opening.cause is not None:
            reply = episode.opening
        if reply.cause is not None and not reply.calls:
            tools, said = self.environments.tools, episode.conversation.said
            calls = calls_in(without_end(said[-1])) if tools and said else []
            reply = replace(reply, calls=unanswered(calls, tools, reply))
        episode.seconds += reply.seconds if reply.cause is None else 0.0
        ended, before = self._why_over(episode, reply), Before(())
        if ended is None:
            reply, before = self._between_turns(episode, reply)
            full = len(episode.completion.tokens) + len(before.ids) >= how.sampling.max_new_tokens
            ended = Ended.FAULT if not before.ids else Ended.TOKENS if full else None
        completion = _answered(episode.completion, reply, episode.state)
        answered = "" if reply.cause is not None else fingerprint(reply)
        episode.conversation = replace(episode.conversation, answered=(*episode.conversation.answered, answered))
        if ended is not None:
            episode.completion = replace(completion, ended=ended, finish=finish_of(ended))
            return
        episode.completion = with_before(completion, before)
        episode.state, episode.ticket = reply.state or episode.state, None

    def _close(self, live: Sequence[Episode]) -> None:
        """Add what the environment says at the end of episodes that end where it took them to go on."""
        cut_off = [
            (episode, completion)
            for episode in live
            if (completion := episode.completion) and completion.ended in CUT_OFF and not episode.conversation.last
        ]
        ends = [replace(episode.conversation, last=True, cut_off=True) for episode, _ in cut_off]
        replies = self.environments.wait([self.environments.begin(end) for end in ends])
        for (episode, completion), reply in zip(cut_off, replies, strict=True):
            episode.completion = _with_outcome(completion, reply)

    def _why_over(self, episode: Episode, reply: Reply) -> Ended | None:
        """Say why the episode is over with this answer; None if it goes on as long as there are tokens."""
        limits = self.limits
        if reply.cause is not None and (limits.on_fault == "mask" or episode.opening.cause is not None):
            return Ended.FAULT
        if reply.done:
            return Ended.DONE
        if len(episode.turns) + 1 == limits.turns:
            return Ended.TURNS
        return Ended.SECONDS if limits.seconds and episode.seconds > limits.seconds else None

    def _between_turns(self, episode: Episode, reply: Reply) -> tuple[Reply, Before]:
        """Return the answer, and the ids that come before the next turn; a fault and none where it is a text that
        cannot be read, as one of other characters than a tiny policy knows.
        """
        assert episode.completion is not None
        messages = reply.messages if reply.cause is None else (Says("user", f"error: {reply.cause}"),)
        last = episode.completion.spans[-1]
        turn = Spoken(episode.completion.tokens[last.start : last.stop], tuple(messages))
        episode.spoken = (*episode.spoken, turn)
        try:
            return reply, self.onward(episode.prompt.sample, episode.spoken)
        except UsageError as error:
            return Reply(cause=Cause.WRONG_TYPE, detail=f"what it says cannot be read: {error}"), Before(())


def with_text(sample: Sample, text: str) -> Sample:
    """Return the sample with a text added to what its prompt, or the last message of it, says.

    >>> with_text(Sample("k", "1 to 9.", ""), " Guess.").prompt
    '1 to 9. Guess.'
    """
    if not sample.messages:
        return replace(sample, prompt=sample.prompt + text)
    *before, last = sample.messages
    return replace(sample, prompt=sample.prompt + text, messages=(*before, {**last, "content": last["content"] + text}))


def _request(episode: Episode, how: Segment, limits: EpisodeLimits, samples: int) -> Request:
    number, before, prompt = len(episode.turns), episode.completion, episode.prompt.tokens
    left = how.sampling.max_new_tokens - (0 if before is None else len(before.tokens))
    grows = before is None or not before.spans[-1].anew
    return Request(
        prompt if before is None else before.read_after(prompt),
        samples,
        derive(episode.seed, "turn", number) if number else episode.seed,
        min(left, limits.turn_tokens or left),
        first=episode.place[2],
        hold=grows and number + 1 < limits.turns,
        held=len(prompt) + episode.turns[-1].stop if number and grows else 0,
        top=how.top,
    )


def _answered(completion: Completion, reply: Reply, state: str) -> Completion:
    """Return an episode whose last turn has brought this; `state` is the environment's before it."""
    end = len(completion.tokens)
    fault = "" if reply.cause is None else str(reply.cause)
    turn = EpisodeTurn(end, reply.reward, state, fault, reply.detail, tuple(reply.calls))
    steps = (*completion.steps, (end - 1, reply.reward))
    return replace(completion, turns=(*completion.turns, turn), steps=steps)


def _with_outcome(completion: Completion, reply: Reply) -> Completion:
    """Add the environment's last word to an episode's last turn; a fault there ends the episode in one."""
    *before, last = completion.turns
    if reply.cause is not None:
        last = replace(last, fault=str(reply.cause), detail=reply.detail)
        return replace(completion, turns=(*before, last), ended=Ended.FAULT, finish=finish_of(Ended.FAULT))
    last = replace(last, reward=math.fsum((last.reward, reply.reward)))
    steps = (*completion.steps[:-1], (last.stop - 1, last.reward))
    return replace(completion, turns=(*before, last), steps=steps)


def with_before(completion: Completion, before: Before) -> Completion:
    end = len(completion.tokens)
    span = Span(end, end + len(before.ids), False, completion.spans[-1].version, before.anew)
    return replace(
        completion,
        tokens=completion.tokens + before.ids,
        logp_engine=completion.logp_engine + (0.0,) * len(before.ids),
        spans=(*completion.spans, span),
    )


def finish_of(ended: Ended) -> str:
    """Return how an episode finished: it was cut off if its tokens or seconds were used up."""
    return "length" if ended in CUT_OFF else "stop"


def _cohort(number: int, cohort: Cohort, episodes: Sequence[Episode]) -> Cohort:
    own = [episode for episode in episodes if episode.place[0] == number]
    groups = [list(group) for _, group in itertools.groupby(own, key=lambda episode: episode.place[1])]
    return replace(
        cohort,
        prompts=tuple(group[0].prompt for group in groups),
        completions=tuple(tuple(e.completion for e in group if e.completion is not None) for group in groups),
    )
