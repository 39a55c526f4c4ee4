"""An agent's session: the turns that the policy was asked for, and the episode that they are.

A request whose history begins with what was said before goes on from there: with the kept ids, and the text of the chat
template between (glue). Any other one opens a row of its own, whose prompt the policy reads with nothing before it:

    request    history                   reads                sampled    row
    1          p                         p                    a          1
    2          p, a, an answer to it     p a g                b          1
    3          p, a, another answer      p a h                c          2     (a fork)
    4          q                         q                    d          3     (a sub-agent, a compaction, an edit)

    the episode, behind the prompt p:    a g b [p a h] c [q] d       [...] is read anew (Span.anew)

Every sampled id trains once, in the row of its turn, behind the very ids that the policy read. In a row that forks or
is edited earlier turns are context. Request t of a session with seed s draws from (derive(s, "turn", t), i), the first
from (s, i), as turns of an environment's episode do (rollout/episodes.py): one that only goes on is such an episode.
"""

import dataclasses
import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from groupwise.core.engine import Request
from groupwise.core.environment import Before, Ended, EpisodeTurn
from groupwise.core.numbers.seeds import derive
from groupwise.core.records import Completion, Prompt, Span
from groupwise.core.samples import Cause, ScoreResult
from groupwise.rollout.episodes import finish_of, with_before
from groupwise.rollout.gateway.request import ModelAnswer, ModelRequest, Refusal, refuse
from groupwise.rollout.segments import joined


@dataclass(frozen=True, eq=False)
class Turn:
    """One answer of the policy's.

    context  all ids that it read
    before   those behind the turn that it goes on from; all of them where it opens a row
    opens    whether it opens a row
    history  what was said, its own words included, and `offered` the tools; None of a prompt in ids
    """

    parent: "Turn | None"
    context: tuple[int, ...]
    before: tuple[int, ...]
    opens: bool
    history: tuple[str, ...] | None
    offered: str
    sampled: Completion

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids that were read and said."""
        return self.context + self.sampled.tokens


@dataclass(eq=False)
class Ask:
    """A request that waits for its answer.

    parent  the turn that it goes on from; None where it begins anew
    opens   whether its first answer opens a row
    """

    number: int
    asked: ModelRequest
    future: Future[ModelAnswer]
    parent: Turn | None
    context: tuple[int, ...]
    before: tuple[int, ...]
    opens: bool

    @property
    def waits(self) -> bool:
        """True unless it has its answer, or its client has gone away."""
        return not self.future.done()


@dataclass(eq=False)
class Session:
    """One that is played, or was.

    place    (cohort, prompt, sample)
    prompt   of its group
    asks     requests that wait
    tokens   that its episode has so far
    requested  all that the engine was asked
    cut      why a request was refused that would have gone beyond a limit of the session
    """

    place: tuple[int, int, int]
    prompt: Prompt
    seed: int
    key: str
    turns: list[Turn] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    requested: list[Request] = field(default_factory=list)
    number: int = 0
    tokens: int = 0
    cut: Ended | None = None

    @property
    def waits(self) -> bool:
        """True if it waits for an answer."""
        return any(ask.waits for ask in self.asks)

    @property
    def awaited(self) -> int:
        """Answers that it waits for."""
        return sum(ask.asked.answers for ask in self.asks if ask.waits)

    def restart(self) -> None:
        """Forget what was asked and said: it is played from its beginning."""
        self.refuse_all()
        self.turns, self.requested, self.number, self.tokens, self.cut = [], [], 0, 0, None

    def refuse_all(self) -> None:
        """Answer nothing that waits."""
        for ask in self.asks:
            refuse(ask.future, Refusal(410, "this session is over: its agent has ended", "session_over"))
        self.asks = []

    def said_before(self, asked: ModelRequest) -> Turn | None:
        """Find the turn that a request goes on from: the one that holds most of its history; None for none."""
        if asked.ids is not None:
            ids = asked.ids
            fits = [turn for turn in self.turns if len(turn.ids) < len(ids) and ids[: len(turn.ids)] == turn.ids]
            return max(fits, key=lambda turn: len(turn.ids), default=None)
        told = [
            (len(turn.history), turn)
            for turn in self.turns
            if turn.history is not None
            and turn.offered == asked.offered
            and len(turn.history) < len(asked.history)
            and asked.history[: len(turn.history)] == turn.history
            and all(message["role"] != "assistant" for message in asked.messages[len(turn.history) :])
        ]
        return max(told, key=lambda pair: pair[0])[1] if told else None

    def opens(self, parent: Turn | None) -> bool:
        """Tell whether a request opens a row: nothing else may go on from where its parent's row ends."""
        taken = [turn.parent for turn in self.turns if not turn.opens]
        taken += [ask.parent for ask in self.asks if not ask.opens]
        return parent is None or any(parent is other for other in taken)

    def cost(self, ask: Ask) -> int:
        """Count the tokens that a request adds to the episode before anything is sampled."""
        first = not self.turns and self.asks[:1] in ([], [ask]) and ask.context == self.prompt.tokens
        own = 0 if first else len(ask.context) if ask.opens else len(ask.before)
        return own + (ask.asked.answers - 1) * len(ask.context)

    def requests(self, ask: Ask, most: int) -> list[Request]:
        """Return what the engine is asked, a request an answer, each of `most` new tokens at most."""
        seed = derive(self.seed, "turn", ask.number) if ask.number else self.seed
        seed = seed if ask.asked.seed is None else derive(seed, "asked", ask.asked.seed)
        held = 0 if ask.parent is None else len(ask.parent.ids)
        seeds = [seed, *(derive(seed, "answer", number) for number in range(1, ask.asked.answers))]
        asked = [Request(ask.context, 1, each, most, first=self.place[2], hold=True, held=held) for each in seeds]
        self.requested += asked
        return asked

    def add(self, ask: Ask, sampled: Sequence[Completion], said: Sequence[str]) -> None:
        """Keep the answers to a request; `said` are their words, as a history has them."""
        for number, (completion, own) in enumerate(zip(sampled, said, strict=True)):
            opens = ask.opens or number > 0
            history = None if ask.asked.ids is not None else (*ask.asked.history, own)
            before = ask.context if opens else ask.before
            turn = Turn(ask.parent, ask.context, before, opens, history, ask.asked.offered, completion)
            self.turns.append(turn)
            self.tokens += len(completion.tokens)

    def episode(self, result: ScoreResult, version: int) -> Completion:
        """Return the record of the session, whose agent ended with this; `version` of weights if none was asked for.

        An agent that fails after it was refused more than its session may have was cut off by that, and is worth 0.
        """
        if self.cut is not None and result.cause in (Cause.EXCEPTION, Cause.CRASH):
            result, ended = ScoreResult(0.0), self.cut
        else:
            ended = Ended.DONE if result.cause is None else Ended.FAULT
        if not self.turns and result.cause is None:
            refused = {Ended.TOKENS: "sampling.max_new_tokens", Ended.TURNS: "task.max_turns"}
            why = f"; what it asked was refused, see {refused[self.cut]}" if self.cut else ""
            result = ScoreResult(
                cause=Cause.EMPTY, detail=f"the agent has ended without one answer of the policy's{why}"
            )
            ended = Ended.FAULT
        episode, stops = self._rows()
        if episode is None:
            episode, stops = Completion((), (), "stop", (Span(0, 0, True, version),)), [0]
        reward = 0.0 if math.isnan(result.value) else result.value
        fault = "" if result.cause is None else str(result.cause)
        last = EpisodeTurn(stops[-1], reward, fault=fault, detail=result.detail)
        turns = (*(EpisodeTurn(stop, 0.0) for stop in stops[:-1]), last)
        steps = tuple((turn.stop - 1, turn.reward) for turn in turns if turn.stop)
        return dataclasses.replace(episode, turns=turns, steps=steps, ended=ended, finish=finish_of(ended))

    def _rows(self) -> tuple[Completion | None, list[int]]:
        """Return all rows one after another, and where each turn ends."""
        rows: list[list[Turn]] = []
        for turn in self.turns:
            if turn.opens:
                rows.append([turn])
            else:
                next(row for row in rows if row[-1] is turn.parent).append(turn)
        episode, stops = None, list[int]()
        for turn in (turn for row in rows for turn in row):
            episode = self._with_turn(episode, turn)
            stops.append(len(episode.tokens))
        return episode, stops

    def _with_turn(self, episode: Completion | None, turn: Turn) -> Completion:
        if episode is not None:
            return joined(with_before(episode, Before(turn.before, anew=turn.opens)), turn.sampled)
        if turn.context == self.prompt.tokens:
            return turn.sampled
        own, begin = turn.sampled, len(turn.context)
        spans = tuple(dataclasses.replace(span, start=span.start + begin, stop=span.stop + begin) for span in own.spans)
        return dataclasses.replace(
            own,
            tokens=turn.context + own.tokens,
            logp_engine=(0.0,) * begin + own.logp_engine,
            spans=(Span(0, begin, False, own.version, anew=True), *spans),
        )
