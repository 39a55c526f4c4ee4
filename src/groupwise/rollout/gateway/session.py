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
is edited earlier turns are context.

Draws are a function of what is read: of an agent's requests any may come first. The row of the prompt has the session's
seed s, another one derive(s, "row", hash of what its first turn reads), a fork with the seed of the row it leaves in
place of s. Turn t of a row with seed r draws from (derive(r, "turn", t), i), the first from (r, i), as turns of an
environment's episode do (rollout/episodes.py): a session that only goes on is such an episode. What is asked once more
draws anew.

A session whose process is lost is played again. A request that was there before has the answer of before, so that an
agent which is a function of what it is told ends with the same bits, and the others wait for it in the same round.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

from groupwise.core.engine import Request
from groupwise.core.environment import Before, Ended, EpisodeTurn
from groupwise.core.numbers.seeds import derive
from groupwise.core.records import Completion, Prompt, Span
from groupwise.core.samples import Cause, ScoreResult
from groupwise.rollout.episodes import finish_of, with_before
from groupwise.rollout.gateway.again import ReadAfter, name
from groupwise.rollout.gateway.request import Choice, ModelAnswer, ModelRequest, Refusal, over, refuse
from groupwise.rollout.segments import goes_on, joined


@dataclass(eq=False)
class Draws:
    """Answers to a request, as far as they are drawn.

    row      seed of the row that the first one is in
    turn     number of the request in that row
    seed     that they are drawn with
    most     new tokens of an answer; 0 until sampling begins
    """

    row: int = 0
    turn: int = 0
    seed: int = 0
    most: int = 0
    answers: list[Completion | None] = field(default_factory=list)

    @property
    def unfinished(self) -> list[int]:
        """Numbers of the answers that have not ended."""
        return [i for i, one in enumerate(self.answers) if one is None or goes_on(one, self.most)]

    @property
    def whole(self) -> bool:
        """True if all answers have ended."""
        return bool(self.answers) and not self.unfinished

    def add(self, new: Sequence[Completion]) -> None:
        """Add what was drawn of each answer that had not ended."""
        for i, more in zip(self.unfinished, new, strict=True):
            before = self.answers[i]
            self.answers[i] = more if before is None else joined(before, more)


@dataclass(eq=False)
class Ask:
    """A request of an agent's.

    parent  the turn that it goes on from; None where it begins anew
    opens   whether its first answer opens a row
    """

    number: int
    asked: ModelRequest
    future: Future[ModelAnswer]
    parent: "Turn | None"
    context: tuple[int, ...]
    before: tuple[int, ...]
    opens: bool
    draws: Draws = field(default_factory=Draws)

    @property
    def waits(self) -> bool:
        """True unless it has its answer, or its client has gone away."""
        return not self.future.done()

    @cached_property
    def read(self) -> bytes:
        """The name of what it reads."""
        return name(self.context)

    @property
    def kind(self) -> tuple[object, ...]:
        """Values that its draws are a function of."""
        return self.read, self.asked.answers, self.asked.most, self.asked.stop, self.asked.seed


@dataclass(eq=False)
class Turn:
    """One answer of the policy's.

    number   among the answers to its request
    told     moment at which the agent was told
    seconds  until the agent went on from it
    """

    ask: Ask
    number: int
    sampled: Completion
    choice: Choice
    told: float
    seconds: float = 0.0

    @property
    def opens(self) -> bool:
        """True if it opens a row."""
        return self.ask.opens or self.number > 0

    @property
    def row(self) -> int:
        """The seed of its row."""
        return derive(self.ask.draws.row, "answer", self.number) if self.number else self.ask.draws.row

    @cached_property
    def said(self) -> bytes:
        """The name of what was sampled."""
        return name(self.sampled.tokens)

    @property
    def before(self) -> tuple[int, ...]:
        """Ids that it read behind the turn that it goes on from; all of them where it opens a row."""
        return self.ask.context if self.opens else self.ask.before

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """All ids that were read and said."""
        return self.ask.context + self.sampled.tokens

    @cached_property
    def history(self) -> tuple[str, ...] | None:
        """Words of all that was said, its own included; None of a prompt in ids."""
        return None if self.ask.asked.ids is not None else (*self.ask.asked.history, self.choice.words)


@dataclass(eq=False)
class Session:
    """One that is played, or was.

    sample   its number among the sessions of its group
    prompt   of its group
    key      of the process that plays it; "" if none does
    begun    moment at which that process began
    asks     all its requests
    asked    what each of them reads, and what was told before
    draws    those of lost processes too, by kind of request and its number among those of the kind
    seeds    all that draws have
    tokens   that its episode has so far
    cut      why a request was refused that would have gone beyond a limit of the session, and `refused` in words
    """

    sample: int
    prompt: Prompt
    seed: int
    key: str = ""
    begun: float = 0.0
    turns: list[Turn] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    asked: list[ReadAfter] = field(default_factory=list)
    draws: dict[tuple[object, int], Draws] = field(default_factory=dict)
    seeds: set[int] = field(default_factory=set)
    tokens: int = 0
    cut: Ended | None = None
    refused: str = ""

    @property
    def waiting(self) -> list[Ask]:
        """Requests that wait for their answers."""
        return [ask for ask in self.asks if ask.waits]

    @property
    def awaited(self) -> int:
        """Tokens set aside for what it waits for: all that an answer may have, one where sampling has not begun."""
        return sum(ask.asked.answers * max(1, ask.draws.most) for ask in self.waiting)

    def begin(self, key: str) -> None:
        """Begin it in a process that has this key. What was asked and said in a process before is no part of it."""
        self.end()
        self.begun = time.monotonic()
        self.key, self.turns, self.asks, self.asked, self.tokens, self.cut = key, [], [], [], 0, None

    def refuse(self, cut: Ended, words: str, code: str) -> NoReturn:
        """Refuse a request that would go beyond a limit."""
        if self.cut is None:
            self.cut, self.refused = cut, words
        raise Refusal(400, words, code)

    def end(self) -> None:
        """Answer nothing more."""
        self.key = ""
        for ask in self.waiting:
            refuse(ask.future, over())

    def take(self, ask: Ask) -> ReadAfter:
        """Take a request, which has what was drawn for it in a process before."""
        told = b"".join(sorted(turn.said for turn in self.turns))
        self.asked.append(ReadAfter(name((self.seed, self.sample, *told)), ask.read))
        self.tokens += self.cost(ask)
        key = ask.kind, sum(other.kind == ask.kind for other in self.asks)
        self.asks.append(ask)
        if ask.parent is not None:
            ask.parent.seconds = ask.parent.seconds or time.monotonic() - ask.parent.told
        if key not in self.draws:
            self.draws[key] = self._new_draws(ask)
        ask.draws = self.draws[key]
        return self.asked[-1]

    def _new_draws(self, ask: Ask) -> Draws:
        row = self.seed if ask.parent is None else ask.parent.row
        if ask.opens and ask.context != self.prompt.tokens:
            row = derive(row, "row", ask.read.hex())
        turn = 0 if ask.opens or ask.parent is None else ask.parent.ask.draws.turn + 1
        seed = derive(row, "turn", turn) if turn else row
        seed = seed if ask.asked.seed is None else derive(seed, "asked", ask.asked.seed)
        while seed in self.seeds:
            seed = derive(seed, "again")
        self.seeds.add(seed)
        return Draws(row, turn, seed)

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
            and turn.ask.asked.offered == asked.offered
            and len(turn.history) < len(asked.history)
            and asked.history[: len(turn.history)] == turn.history
            and all(message["role"] != "assistant" for message in asked.messages[len(turn.history) :])
        ]
        return max(told, key=lambda pair: pair[0])[1] if told else None

    def opens(self, parent: Turn | None) -> bool:
        """Tell whether a request opens a row: nothing else may go on from where its parent's row ends."""
        taken = [turn.ask.parent for turn in self.turns if not turn.opens]
        taken += [ask.parent for ask in self.waiting if not ask.opens]
        return parent is None or any(parent is other for other in taken)

    def cost(self, ask: Ask) -> int:
        """Count the tokens that a request adds to the episode before anything is sampled."""
        first = not self.turns and not self.waiting and ask.context == self.prompt.tokens
        own = 0 if first else len(ask.context) if ask.opens else len(ask.before)
        return own + (ask.asked.answers - 1) * len(ask.context)

    def requests(self, ask: Ask, most: int, piece: int) -> list[Request]:
        """Return what the engine is asked next, a request for each answer that has not ended.

        most   tokens of an answer, where sampling of it begins
        piece  new tokens of each request; of a long answer a quarter of what there is, as each request is remembered
        """
        draws = ask.draws
        draws.most, draws.answers = draws.most or most, draws.answers or [None] * ask.asked.answers
        asked = []
        for i in draws.unfinished:
            own, begun = derive(draws.seed, "answer", i) if i else draws.seed, draws.answers[i]
            drawn = () if begun is None else begun.tokens
            tokens, limit = ask.context + drawn, min(max(piece, len(drawn) // 4), draws.most - len(drawn))
            held = len(tokens) if drawn else 0 if ask.parent is None else len(ask.parent.ids)
            asked.append(Request(tokens, 1, own, limit, self.sample, len(drawn), hold=True, held=held))
        return asked

    def add(self, ask: Ask, told: Sequence[Choice]) -> None:
        """Keep the answers to a request."""
        for number, (completion, choice) in enumerate(zip(ask.draws.answers, told, strict=True)):
            assert completion is not None
            self.turns.append(Turn(ask, number, completion, choice, time.monotonic()))
            self.tokens += len(completion.tokens)

    @property
    def now(self) -> dict[str, object]:
        """State of the session, for whoever watches the run."""
        calls = [call.tool or call.failure for turn in self.turns for call in turn.choice.made]
        return {
            "problem": self.prompt.sample.key,
            "sample": self.sample,
            "requests": len(self.asks),
            "tokens": self.tokens,
            "tools": calls[-3:],
            "seconds": round(time.monotonic() - self.begun, 1),
            "waits": bool(self.waiting),
        }

    def episode(self, result: ScoreResult, version: int) -> Completion:
        """Return the record of the session, whose agent ended with this; `version` of weights if none was asked for.

        An agent that fails after it was refused more than its session may have was cut off by that, and is worth 0.
        """
        if self.cut is not None and result.cause in (Cause.EXCEPTION, Cause.CRASH):
            result, ended = ScoreResult(0.0), self.cut
        else:
            ended = Ended.DONE if result.cause is None else Ended.FAULT
        if not self.turns and result.cause is None:
            why = f"; what it asked was refused: {self.refused}" if self.cut else ""
            result = ScoreResult(
                cause=Cause.EMPTY, detail=f"the agent has ended without one answer of the policy's{why}"
            )
            ended = Ended.FAULT
        episode, turns = self._rows()
        if episode is None:
            episode, turns = Completion((), (), "stop", (Span(0, 0, True, version),)), [EpisodeTurn(0, 0.0)]
        reward = 0.0 if math.isnan(result.value) else result.value
        fault = "" if result.cause is None else str(result.cause)
        turns = (*turns[:-1], dataclasses.replace(turns[-1], reward=reward, fault=fault, detail=result.detail))
        steps = tuple((turn.stop - 1, turn.reward) for turn in turns if turn.stop)
        return dataclasses.replace(episode, turns=turns, steps=steps, ended=ended, finish=finish_of(ended))

    def _rows(self) -> tuple[Completion | None, list[EpisodeTurn]]:
        """Return all rows one after another, and their turns without a reward."""
        rows: list[list[Turn]] = []
        for turn in self.turns:
            if turn.opens:
                rows.append([turn])
            else:
                next(row for row in rows if row[-1] is turn.ask.parent).append(turn)
        episode, turns = None, list[EpisodeTurn]()
        for turn in (turn for row in rows for turn in row):
            episode = self._with_turn(episode, turn)
            each = turn.seconds / max(1, len(turn.choice.made))  # of calls at once nobody says how long each took
            calls = tuple(dataclasses.replace(call, seconds=each) for call in turn.choice.made)
            turns.append(EpisodeTurn(len(episode.tokens), 0.0, calls=calls))
        return episode, turns

    def _with_turn(self, episode: Completion | None, turn: Turn) -> Completion:
        own, before, begin = turn.sampled, turn.before, len(turn.before)
        if episode is not None:
            return joined(with_before(episode, Before(before, anew=turn.opens)), own)
        if before == self.prompt.tokens:
            return own
        spans = [dataclasses.replace(span, start=span.start + begin, stop=span.stop + begin) for span in own.spans]
        first, logp = Span(0, begin, False, own.version, anew=True), (0.0,) * begin + own.logp_engine
        return dataclasses.replace(own, tokens=before + own.tokens, logp_engine=logp, spans=(first, *spans))
