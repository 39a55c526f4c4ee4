"""Plays sessions of agents: gathers what they ask, samples it together, and makes an episode of each.

    agents     in processes        ask over HTTP, get answers, return a reward
    server     a thread            reads requests and writes answers (server.py)
    this       the run's thread    ids, seeds and limits of each request, the engine, the record (session.py)

A round is sampled when every session that is being played waits for an answer. Rounds are then the same ones whoever
is faster, and so are the bits, as long as agents do the same for the same answers. A session that lets the others wait
for more than `patience` seconds is left to a later round. With a patience of 0 nothing waits: what is asked is sampled
PIECE tokens at a time, more of a long answer, and what comes meanwhile joins the next piece. Draws are the same, and
rounding is by chance.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty

from groupwise.core.engine import Engine, OnFinish, Request, Sampling
from groupwise.core.environment import ENVIRONMENT, Ended, EpisodeLimits, Visit
from groupwise.core.records import Completion
from groupwise.core.samples import ScoreResult
from groupwise.core.stream import Cohort
from groupwise.rewards.pool.pool import Pool
from groupwise.rollout.gateway.again import Again
from groupwise.rollout.gateway.request import ModelAnswer, ModelRequest, Refusal, over
from groupwise.rollout.gateway.server import Server
from groupwise.rollout.gateway.session import Ask, Session
from groupwise.rollout.gateway.writing import Writing
from groupwise.rollout.segments import Segment

#: What is said of an agent that is no function of what it is told.
ODD = (
    "played again, its agent did not ask what it asked before, though it was told the same: after a kill this run does "
    "not come to the same bits"
)
#: Seconds between two looks at the sessions.
SECONDS = 1.0
#: Requests of one session that may wait at once; tokens of a piece.
MOST_AT_ONCE, PIECE = 32, 32
#: Requests that are refused, of which the log says why.
REASONS = 8


@dataclass
class Sessions:
    """Plays the sessions of cohorts to their ends.

    agents    the processes that play, one session each at a time
    at_once   sessions that are played at once
    patience  seconds that a round waits for a session which does not ask; 0: there are no rounds
    note      hears of what agents ask for and do not get
    again     tells agents that ask something else when a session is played again
    show      is told, each SECONDS at most, what every session that is played does; and of none when all have ended
    """

    engine: Engine
    agents: Pool
    at_once: int
    server: Server
    writing: Writing
    limits: EpisodeLimits
    patience: float
    note: Callable[[str], None] = print
    again: Again = field(default_factory=lambda: Again(None))
    show: Callable[[Sequence[Mapping[str, object]]], None] = lambda sessions: None
    _told: set[str] = field(default_factory=set)
    _tools: set[str] = field(default_factory=set)
    _reasons: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.server.refused = self._refused

    @property
    def tools(self) -> Sequence[str]:
        """Names of the tools that agents have offered."""
        return sorted(self._tools)

    def __call__(self, cohorts: Sequence[Cohort], segment: Segment, on_finish: OnFinish | None = None) -> list[Cohort]:
        """Play all sessions of the cohorts."""
        sessions = [
            Session(number, prompt, seed)
            for cohort in cohorts
            for prompt, seed in zip(cohort.prompts, cohort.seeds, strict=True)
            for number in range(segment.samples)
        ]
        try:
            episodes = self._played(sessions, segment.sampling)
        finally:
            self.show(())
            for session in sessions:
                self._end(session)
        self.engine.generate([], segment.sampling)  # lets go of what is held of the last turns
        each = map(episodes.__getitem__, sessions)
        groups = (tuple(itertools.islice(each, segment.samples)) for _ in sessions)
        return [replace(cohort, completions=tuple(itertools.islice(groups, len(cohort.prompts)))) for cohort in cohorts]

    def close(self) -> None:
        """End the agents' processes, and the server."""
        self.agents.close()
        self.server.close()

    def _played(self, sessions: Sequence[Session], sampling: Sampling) -> dict[Session, Completion]:
        """Play sessions, so many at once -> their episodes."""
        waiting, played, episodes = deque(sessions), list[Session](), dict[Session, Completion]()

        def ended(session: Session, done: Future[ScoreResult]) -> None:
            self._compare(session, done.result())
            episodes[session] = session.episode(done.result(), self.engine.version)
            self._end(session)
            played.remove(session)

        def begin(session: Session) -> None:
            played.append(session)
            self.agents.play(
                ENVIRONMENT,
                partial(self._visit, session, sampling),
                lambda done: self.server.events.put(partial(ended, session, done)),
            )

        shown = 0.0
        late: Session | None = None  # who was seen not to wait: of many sessions not all are looked at each time
        while waiting or played:
            while waiting and len(played) < self.at_once:
                begin(waiting.popleft())
            if played and time.monotonic() - shown >= SECONDS:
                self.show([session.now for session in played])
                shown = time.monotonic()
            if late not in played or late.waiting:
                late = next((session for session in played if not session.waiting), None)
            if late is None or not self._took_what_came(played):
                self._round(played, sampling)
        return episodes

    def _visit(self, session: Session, sampling: Sampling) -> Visit:
        """Begin a session, in the pool's thread. Its key is new: what is left of a process before can ask no more."""
        url, key = self.server.enter(partial(self._asked, session, sampling))
        self.server.events.put(partial(self._begin, session, key))
        return Visit(session.prompt.sample, url, key)

    def _begin(self, session: Session, key: str) -> None:
        self._end(session)
        self.again.keep(session.asked)
        session.begin(key)

    def _end(self, session: Session) -> None:
        self.server.leave(session.key)
        session.end()

    def _took_what_came(self, played: Sequence[Session]) -> bool:
        """Take the next thing that comes; False if sessions wait, and for too long nothing has come."""
        some_wait = any(session.waiting for session in played)
        try:
            self.server.events.get(timeout=self.patience if some_wait else None)()
        except Empty:
            return False
        return True

    def _asked(
        self, session: Session, sampling: Sampling, key: str, asked: ModelRequest, future: Future[ModelAnswer]
    ) -> None:
        """Take a request. Raises Refusal if it cannot be answered."""
        if session.key != key:
            raise over()
        self._tell(asked)
        parent = session.said_before(asked)
        before = self.writing.before(asked, parent)
        if not before:
            raise Refusal(400, "the prompt is empty")
        context = before if parent is None else parent.ids + before
        if asked.counts:
            if future.set_running_or_notify_cancel():
                future.set_result(ModelAnswer(0, context, ()))
            return
        if len(session.waiting) >= MOST_AT_ONCE:
            raise Refusal(429, f"{MOST_AT_ONCE} requests of this session wait already", "too_many_requests")
        if len(session.asks) >= self.limits.turns:
            words = f"task.max_turns = {self.limits.turns}: the session has asked as often"
            session.refuse(Ended.TURNS, words, "max_turns")
        self._tools |= asked.tool_names
        ask = Ask(len(session.asks), asked, future, parent, context, before, session.opens(parent))
        try:
            _ended_by(sampling, asked.stop)
        except ValueError:
            words = f"stop: with the {len(sampling.stop)} texts of sampling.stop these are more than a request may have"
            raise Refusal(400, words) from None
        self._require_room(session, ask, sampling.max_new_tokens)
        self.again.write(session.take(ask))
        if ask.draws.whole:
            self._answer(session, ask)

    def _require_room(self, session: Session, ask: Ask, limit: int) -> None:
        """Raise Refusal if the model or the session has no room for an answer."""
        read, most, cost = len(ask.context), self.writing.positions, session.cost(ask)
        words = ""
        if read >= most:
            words = f"the prompt has {read} tokens, and the model takes {most} with the answer"
        elif session.tokens + cost + session.awaited + ask.asked.answers > limit:
            words = f"{session.tokens} of the session's {limit} tokens (sampling.max_new_tokens) are used, and {cost}"
            words = f"{words} more of the prompt leave no room for an answer"
        if words:
            session.refuse(Ended.TOKENS, words, "context_length_exceeded")

    def _compare(self, session: Session, result: ScoreResult) -> None:
        """Say once if an agent did not ask what it asked before, though it was told the same."""
        if result.cause is None and ODD not in self._told and self.again.differs(session.asked):
            self._told.add(ODD)
            self.note(f"agents       {session.prompt.sample.key}: {ODD}")
        self.again.keep(session.asked)

    def _tell(self, asked: ModelRequest) -> None:
        """Say once of each key of how tokens are drawn, and of each type of tools, that it is not read."""
        if new := [key for key in asked.unread if key not in self._told]:
            self._told.update(new)
            self.note(f"agents       set {', '.join(new)}: not read, as [sampling] says how tokens are drawn")
        if new := sorted({*asked.left_out} - self._told):
            self._told.update(new)
            self.note(
                f"agents       offer tools of type {', '.join(new)}: left out, as the policy calls functions alone"
            )

    def _refused(self, refusal: Refusal) -> None:
        """Say why, once for each of the first few reasons: many a client tells its user the status alone."""
        begun = str(refusal)[:40]
        if begun not in self._reasons and len(self._reasons) < REASONS:
            self._reasons.add(begun)
            self.note(f"agents       had no answer ({refusal.status}): {refusal}")

    def _round(self, played: Sequence[Session], sampling: Sampling) -> None:
        """Sample what waits, and answer; requests with stop texts of their own are sampled by themselves."""
        asks = [(session, ask) for session in played for ask in session.waiting]
        for stop, some in itertools.groupby(sorted(asks, key=_stop_of), _stop_of):
            own = [(session, ask, self._requests(session, ask, sampling.max_new_tokens)) for session, ask in some]
            asked = [request for *_, requests in own for request in requests]
            each = iter(self.engine.generate(asked, _ended_by(sampling, stop)))
            for session, ask, requests in own:
                ask.draws.add([next(each)[0] for _ in requests])
                if ask.draws.whole:
                    self._answer(session, ask)

    def _requests(self, session: Session, ask: Ask, limit: int) -> list[Request]:
        new = sum(one.asked.answers for one in session.waiting if not one.draws.most)
        room = (limit - session.tokens - session.awaited + new) // max(1, new)
        limits = (room, self.limits.turn_tokens, ask.asked.most, self.writing.positions - len(ask.context))
        return session.requests(ask, min(each for each in limits if each), limit if self.patience else PIECE)

    def _answer(self, session: Session, ask: Ask) -> None:
        """Tell what was sampled; nothing of a request whose client has gone away meanwhile."""
        told = [
            self.writing.choice(ask.asked, completion) for completion in ask.draws.answers if completion is not None
        ]
        if ask.future.set_running_or_notify_cancel():
            session.add(ask, told)
            ask.future.set_result(ModelAnswer(ask.number, ask.context, tuple(told)))


def _ended_by(sampling: Sampling, stop: Sequence[str]) -> Sampling:
    """Add texts that end an answer. Raises ValueError for more than there may be."""
    return sampling.replace(stop=(*sampling.stop, *(text for text in stop if text not in sampling.stop)))


def _stop_of(pair: tuple[Session, Ask]) -> tuple[str, ...]:
    return pair[1].asked.stop
