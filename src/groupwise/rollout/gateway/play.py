"""Plays sessions of agents: gathers what they ask, samples it together, and makes an episode of each.

    agents     in processes        ask over HTTP, get answers, return a reward
    server     a thread            reads requests and writes answers (server.py)
    this       the run's thread    ids, seeds and limits of each request, the engine, the record (session.py)

A round is sampled when every session that is being played waits for an answer. Rounds are then the same ones whoever
is faster, and so are the bits, as long as agents do the same for the same answers. A session that lets the others wait
for more than `patience` seconds is left to a later round.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import Empty

from groupwise.core.engine import Engine, OnFinish, Request, Sampling
from groupwise.core.environment import Ended, EpisodeLimits, Visit
from groupwise.core.records import Completion
from groupwise.core.samples import ScoreResult
from groupwise.core.stream import Cohort
from groupwise.environments.agent import Agents
from groupwise.rollout.gateway.again import Again
from groupwise.rollout.gateway.request import ModelAnswer, ModelRequest, Refusal
from groupwise.rollout.gateway.server import Server
from groupwise.rollout.gateway.session import Ask, Session
from groupwise.rollout.gateway.writing import Writing
from groupwise.rollout.segments import Segment

#: What is said of an agent that is no function of what it is told.
ODD = (
    "is another one than before, though its agent was told the same: played again after a kill, this run does not "
    "come to the same bits"
)
#: Requests of one session that may wait at once.
MOST_AT_ONCE = 32


@dataclass
class Sessions:
    """Plays the sessions of cohorts to their ends.

    patience  seconds that a round waits for a session which does not ask
    note      hears of what agents ask for and do not get
    again     tells agents that ask something else when a session is played again
    forget    hears of requests whose answers train nothing, as their session is played again
    """

    engine: Engine
    agents: Agents
    server: Server
    writing: Writing
    limits: EpisodeLimits
    patience: float
    note: Callable[[str], None] = print
    tools: Sequence[str] = ()
    again: Again = field(default_factory=lambda: Again(None))
    forget: Callable[[Sequence[Request]], None] = lambda requests: None
    _told: set[str] = field(default_factory=set)

    def __call__(self, cohorts: Sequence[Cohort], segment: Segment, on_finish: OnFinish | None = None) -> list[Cohort]:
        """Play all sessions of the cohorts."""
        sessions = [
            Session((c, p, i), prompt, seed, self.server.new_key())
            for c, cohort in enumerate(cohorts)
            for p, (prompt, seed) in enumerate(zip(cohort.prompts, cohort.seeds, strict=True))
            for i in range(segment.samples)
        ]
        try:
            episodes = self._played(sessions, segment.sampling)
        finally:
            for session in sessions:
                self.server.leave(session.key)
                session.refuse_all()
        self.engine.generate([], segment.sampling)  # lets go of what is held of the last turns
        return [
            Cohort(cohort.prompts, cohort.seeds, _groups(episodes, [s for s in sessions if s.place[0] == c], cohort))
            for c, cohort in enumerate(cohorts)
        ]

    def close(self) -> None:
        """End the agents' processes, and the server."""
        self.agents.close()
        self.server.close()

    def _played(self, sessions: Sequence[Session], sampling: Sampling) -> dict[str, Completion]:
        """Play sessions, so many at once -> their episodes by key."""
        waiting, played, episodes = deque(sessions), list[Session](), dict[str, Completion]()

        def ended(session: Session, done: Future[ScoreResult]) -> None:
            episodes[session.key] = session.episode(done.result(), self.engine.version)
            self.server.leave(session.key)
            session.refuse_all()
            played.remove(session)

        while waiting or played:
            while waiting and len(played) < self.agents.at_once:
                session = waiting.popleft()
                played.append(session)
                url = self.server.enter(
                    session.key, partial(self._asked, played, session, sampling), partial(self._restart, session)
                )
                visit = Visit(session.prompt.sample, url, session.key)
                self.agents.begin(visit, partial(self._later, partial(ended, session)))
            if all(session.waits for session in played) or not self._took_what_came(played):
                self._round(played, sampling)
        return episodes

    def _later(self, event: Callable[[Future[ScoreResult]], None], done: Future[ScoreResult]) -> None:
        self.server.events.put(partial(event, done))

    def _took_what_came(self, played: Sequence[Session]) -> bool:
        """Take the next thing that comes; False if sessions wait, and for too long nothing has come."""
        some_wait = any(session.waits for session in played)
        try:
            self.server.events.get(timeout=self.patience if some_wait else None)()
        except Empty:
            return False
        return True

    def _asked(
        self,
        played: Sequence[Session],
        session: Session,
        sampling: Sampling,
        asked: ModelRequest,
        future: Future[ModelAnswer],
    ) -> None:
        """Take a request. Raises Refusal if it cannot be answered."""
        if session not in played:
            raise Refusal(410, "this session is over: its agent has ended", "session_over")
        session.asks = [ask for ask in session.asks if ask.waits]
        if len(session.asks) >= MOST_AT_ONCE:
            raise Refusal(429, f"{MOST_AT_ONCE} requests of this session wait already", "too_many_requests")
        if session.number >= self.limits.turns:
            session.cut = session.cut or Ended.TURNS
            raise Refusal(400, f"task.max_turns = {self.limits.turns}: the session has asked as often", "max_turns")
        self._tell(asked)
        parent = session.said_before(asked)
        before = self.writing.before(asked, parent)
        if not before:
            raise Refusal(400, "the prompt is empty")
        context = before if parent is None else parent.ids + before
        ask = Ask(session.number, asked, future, parent, context, before, session.opens(parent))
        cost = session.cost(ask)
        try:
            _ended_by(sampling, asked.stop)
        except ValueError:
            words = f"stop: with the {len(sampling.stop)} texts of sampling.stop these are more than a request may have"
            raise Refusal(400, words) from None
        if len(context) >= self.writing.positions:
            session.cut = session.cut or Ended.TOKENS
            words = (
                f"the prompt has {len(context)} tokens, and the model takes {self.writing.positions} with the answer"
            )
            raise Refusal(400, words, "context_length_exceeded")
        if session.tokens + cost + session.awaited + asked.answers > sampling.max_new_tokens:
            session.cut = session.cut or Ended.TOKENS
            words = f"{session.tokens} of the session's {sampling.max_new_tokens} tokens (sampling.max_new_tokens) are"
            words = f"{words} used, and {cost} more of the prompt leave no room for an answer"
            raise Refusal(400, words, "context_length_exceeded")
        self._compare(session, ask)
        session.asks.append(ask)
        session.number += 1
        session.tokens += cost

    def _restart(self, session: Session) -> None:
        self.forget(session.requested)
        session.restart()

    def _compare(self, session: Session, ask: Ask) -> None:
        """Say once if an agent asks something else than it did when it was told the same."""
        told = [turn.sampled.tokens for turn in session.turns]
        differs = self.again.differs((session.seed, session.place[2], ask.number), told, ask.context)
        if differs and ODD not in self._told:
            self._told.add(ODD)
            self.note(f"agents       {session.prompt.sample.key}: request {ask.number + 1} {ODD}")

    def _tell(self, asked: ModelRequest) -> None:
        """Say once of each key of how tokens are drawn that it is not read."""
        if new := [key for key in asked.unread if key not in self._told]:
            self._told.update(new)
            self.note(f"agents       set {', '.join(new)}: not read, as [sampling] says how tokens are drawn")

    def _round(self, played: Sequence[Session], sampling: Sampling) -> None:
        """Sample what waits, and answer; requests with stop texts of their own are sampled by themselves."""
        asks = [(session, ask) for session in played for ask in session.asks if ask.waits]
        rooms = _rooms(asks, sampling.max_new_tokens)
        for stop, some in itertools.groupby(sorted(asks, key=lambda pair: pair[1].asked.stop), _stop_of):
            own = [(session, ask, self._requests(session, ask, rooms[session.key])) for session, ask in some]
            asked = [request for *_, requests in own for request in requests]
            each = iter(self.engine.generate(asked, _ended_by(sampling, stop)))
            for session, ask, requests in own:
                self._answer(session, ask, [next(each)[0] for _ in requests])

    def _requests(self, session: Session, ask: Ask, room: int) -> list[Request]:
        limits = (room, self.limits.turn_tokens, ask.asked.most, self.writing.positions - len(ask.context))
        return session.requests(ask, min(limit for limit in limits if limit))

    def _answer(self, session: Session, ask: Ask, sampled: Sequence[Completion]) -> None:
        """Keep and tell what was sampled; nothing of a request whose client has gone away meanwhile."""
        told = [self.writing.choice(ask.asked, completion) for completion in sampled]
        session.asks.remove(ask)
        if ask.future.set_running_or_notify_cancel():
            session.add(ask, sampled, [words for _, words in told])
            ask.future.set_result(ModelAnswer(ask.number, ask.context, tuple(choice for choice, _ in told)))


def _rooms(asks: Sequence[tuple[Session, Ask]], limit: int) -> dict[str, int]:
    """Return how many tokens each answer of a session, by its key, may have in a round: what is left, shared out."""
    answers = Counter[str]()
    for session, ask in asks:
        answers[session.key] += ask.asked.answers
    return {session.key: (limit - session.tokens) // answers[session.key] for session, _ in asks}


def _ended_by(sampling: Sampling, stop: Sequence[str]) -> Sampling:
    """Add texts that end an answer. Raises ValueError for more than there may be."""
    return sampling.replace(stop=(*sampling.stop, *(text for text in stop if text not in sampling.stop)))


def _stop_of(pair: tuple[Session, Ask]) -> tuple[str, ...]:
    return pair[1].asked.stop


def _groups(
    episodes: dict[str, Completion], sessions: Sequence[Session], cohort: Cohort
) -> tuple[tuple[Completion, ...], ...]:
    return tuple(
        tuple(episodes[session.key] for session in sessions if session.place[1] == p)
        for p in range(len(cohort.prompts))
    )
