"""The forms that an environment may have, and how each is played: a class with `step`, TRL's classes whose public
methods are tools, and tools alone.
"""

import asyncio
import contextlib
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any, Protocol

from groupwise.core.environment import Reply, Says
from groupwise.core.errors import UsageError, one_line
from groupwise.core.files.json_text import writable
from groupwise.core.numbers.seeds import derive
from groupwise.core.samples import Attempt, Cause, Sample
from groupwise.core.task import Starting, Starts
from groupwise.environments.calls import calls_in, without_end
from groupwise.environments.tools import Tool, answer
from groupwise.environments.tools import tools as as_tools
from groupwise.rewards.functions.adapters import TRL, Bound, columns, prompt_of, score_result
from groupwise.rewards.functions.form import finisher

#: Characters that an environment says at once, at most.
LONGEST = 2**20
#: Public methods of a class that are no tools.
RESERVED = frozenset(("reset", "get_reward", "close", "samples", "demonstrations"))
#: (sample, what the policy said last) -> a score, reward units.
Score = Callable[[Sample, str], float]


class Playable(Protocol):
    """One episode, whatever form its class has.

    reset(sample)  begins it -> what is added to the prompt
    reply(text)    what the policy said -> the answer
    """

    def reset(self, sample: Sample) -> str | None: ...

    def reply(self, text: str) -> Reply: ...


def playable(
    kind: type | None,
    fields: Mapping[str, Any],
    tools: Sequence[Callable[..., Any]] = (),
    score: Score | None = None,
    reward: Callable[..., Any] | None = None,
) -> Callable[[], Playable]:
    """Return the maker of episodes of a class, or of tools alone. Raises UsageError if the class has none of the forms.

    fields  given to the class for each episode
    score   of a last turn, where there is no class that rewards it
    reward  a reward function of TRL's that reads `environments`
    """
    _require_form(kind, tools)
    if reward is not None:
        _require_reads(reward, kind)
    if kind is not None:
        _require_fields(kind, fields)
        if has_step(kind):
            shares = callable(getattr(kind, "fresh", None))
            return _OfOne(kind(**fields)) if shares else lambda: _Stepped(kind(**fields))
    names = _methods(kind)
    _tools(kind, tools)

    def begin() -> Playable:
        inner = None if kind is None else kind(**fields)
        own = [(getattr(inner, name), name) for name in names]
        return _Called(inner, as_tools([*own, *((tool, "task.tools") for tool in tools)]), score, reward)

    return begin


def callable_tools(kind: type | None, tools: Sequence[Callable[..., Any]]) -> tuple[Tool, ...]:
    """List the tools that the policy may call, methods first; none of a class with `step`. Raises UsageError."""
    _require_form(kind, tools)
    return () if has_step(kind) else _tools(kind, tools)


def has_step(kind: type | None) -> bool:
    """Tell whether an episode is played by `step`, which hears whatever the policy says, and not by calls of tools."""
    return callable(getattr(kind, "step", None))


def role_of(kind: type | None) -> str:
    """Return the role of the environment's messages."""
    return str(getattr(kind, "role", "user")) if has_step(kind) else "tool"


def begun(episode: Playable, sample: Sample) -> Reply:
    """Open an episode -> the answer before the first turn."""
    text = episode.reset(sample)
    if text is not None and not isinstance(text, str):
        return Reply(cause=Cause.WRONG_TYPE, detail=f"reset returned {_shape(text)}, not a text or None")
    state = episode.state() if isinstance(episode, _Stepped) else ""
    return _spoken((Says("user", text),) if text else (), 0.0, False, state)


def ended(episode: Playable, reply: Reply) -> Reply:
    """Add to the answer to an episode's last turn what the class gives at its end."""
    if isinstance(episode, _Called) and not reply.done and reply.cause is None:
        return episode.with_outcome(reply)
    return reply


class _Finish:
    """Waits for what is a coroutine, on one loop of an episode's own: sessions of a user's stay bound to it."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def __call__(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        self._runner = self._runner or asyncio.Runner()
        return finisher(self._runner)(value)

    def close(self, inner: Any) -> None:
        """Close what the episode holds."""
        close = getattr(inner, "close", None)
        try:
            if callable(close):
                self(close())
        finally:
            if self._runner is not None:
                self._runner.close()


class _Stepped:
    """An episode of a class with `step`: it hears whatever the policy says."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._finish = inner, _Finish()

    def reset(self, sample: Sample) -> str | None:
        return self._finish(self._inner.reset(sample))

    def reply(self, text: str) -> Reply:
        result = self._finish(self._inner.step(text))
        if not isinstance(result, tuple) or len(result) != 3:
            return _misshapen(result)
        observation, reward, done = result
        is_bool = isinstance(done, bool) or str(getattr(done, "dtype", "")) == "bool"  # numpy's
        if not isinstance(observation, str) or not is_bool:
            return _misshapen(result)
        messages = (Says(role_of(type(self._inner)), observation),) if observation else ()
        return _spoken(messages, reward, bool(done), self.state())

    def state(self) -> str:
        """Say where the episode stands; "" if the class names no states."""
        state = getattr(self._inner, "state", None)
        return str(self._finish(state())) if callable(state) else ""

    def close(self) -> None:
        self._finish.close(self._inner)


class _OfOne:
    """Episodes of a class with `fresh`: of one instance, which each of them shares what took long to make with."""

    def __init__(self, first: Any) -> None:
        self._first = first

    def __call__(self) -> Playable:
        return _Stepped(self._first.fresh())

    def start_inside(self, starting: Starting) -> None:
        """Let what episodes share start inside of `starting()`, if it says that it starts something."""
        if isinstance(self._first, Starts):
            self._first.start_inside(starting)


class _Called:
    """An episode that is played by calling tools, and is over with a turn that calls none.

    Its reward is what is known at the end where there is such a thing: what the class's `get_reward` returns, what a
    reward function of TRL's says of this environment, of both the sum. Else, of a class with the attribute `reward`, it
    is by how much each turn has changed it, so that the turns' rewards add up to what it is at the end, wherever that
    is; else `score` of the last turn.
    """

    def __init__(
        self, inner: Any, tools: Sequence[Tool], score: Score | None, reward: Callable[..., Any] | None
    ) -> None:
        self._inner, self._score, self._finish = inner, score, _Finish()
        self._reward = None if reward is None else Bound(reward, TRL, "task.reward")
        self._tools = {tool.name: tool for tool in tools}
        self._sample, self._answers = Sample("", "", ""), 0
        self._messages: list[dict[str, str]] = []
        self._rewards: list[float] = []

    def reset(self, sample: Sample) -> str | None:
        self._sample = sample
        if self._inner is None:
            return None
        with self._random_numbers():
            return self._finish(self._inner.reset(**_taken(self._inner.reset, sample)))

    def reply(self, text: str) -> Reply:
        said = without_end(text)
        calls = calls_in(said)
        with self._random_numbers():
            answers = [answer(call, self._tools, self._finish) for call in calls]
            messages = tuple(Says("tool", words) for words, _ in answers)
            spoken = ({"role": message.role, "content": message.text} for message in messages)
            self._messages += [{"role": "assistant", "content": said}, *spoken]
            reply = replace(self._rewarded(messages, said), calls=tuple(made for _, made in answers))
            return reply if calls or reply.cause is not None else self.with_outcome(replace(reply, done=True))

    def with_outcome(self, reply: Reply) -> Reply:
        """Complete the last answer with what is known at the end."""
        results = [score_result(self._finish(self._inner.get_reward()))] if self._rewards_itself else []
        if self._reward is not None:  # a function of TRL's, which is asked about the only episode of its batch
            episode = {"environments": [self._inner], "completions": [self._messages]}
            attempt = Attempt(self._sample, self._messages[-1]["content"] if self._messages else "")
            ((result,),) = replace(self._reward, settings=episode).score([attempt], self._finish)
            results.append(result)
        wrong = next((one for one in results if one.cause is not None or not one.votes), None)
        if wrong is not None:
            detail = f"its reward: {wrong.detail or 'None, no number'}"
            return Reply(cause=wrong.cause or Cause.WRONG_TYPE, detail=detail, calls=reply.calls)
        return replace(reply, reward=math.fsum([reply.reward, *(one.value for one in results)]))

    def close(self) -> None:
        self._finish.close(self._inner)

    @property
    def _rewards_itself(self) -> bool:
        return callable(getattr(self._inner, "get_reward", None))

    def _rewarded(self, messages: Sequence[Says], said: str) -> Reply:
        if self._rewards_itself or self._reward is not None:
            return _spoken(messages, 0.0, False, "")
        if hasattr(self._inner, "reward") and not callable(self._inner.reward):
            value = self._inner.reward
            return self._changed(messages, math.fsum(self._rewards) if value is None and messages else value)
        if messages:
            return _spoken(messages, 0.0, False, "")
        if self._score is None and self._inner is not None:
            name = type(self._inner).__name__
            words = f"{name} has no reward: set task.reward to a function of its environments, or give it get_reward()"
            return Reply(cause=Cause.WRONG_TYPE, detail=words)
        return _spoken((), 0.0 if self._score is None else self._score(self._sample, said), False, "")

    def _changed(self, messages: Sequence[Says], value: Any) -> Reply:
        """Make the answer with what is missing in the turns' rewards until they add up to `value`."""
        now = _spoken(messages, value, False, "")
        if now.cause is not None:
            return now
        # In one sum, without what rounding has left out: a final 1 is a sum of exactly 1, which counts as solved.
        change = math.fsum([now.reward, *(-reward for reward in self._rewards)])
        self._rewards.append(change)
        return replace(now, reward=change)

    @contextlib.contextmanager
    def _random_numbers(self) -> Iterator[None]:
        """Make numbers of the module `random`, inside, a function of the sample and of how many answers there were."""
        before = random.getstate()
        random.seed(derive(self._sample.seed, "random", self._answers))
        self._answers += 1
        try:
            yield
        finally:
            random.setstate(before)


def _spoken(messages: Sequence[Says], reward: Any, done: bool, state: str) -> Reply:
    """Make an answer of checked parts: harmless texts that are not too long, and a finite reward."""
    longest = max((len(message.text) for message in messages), default=0)
    if longest > LONGEST:
        return Reply(cause=Cause.TOO_LARGE, detail=f"it says {longest:,} characters at once; {LONGEST:,} are the most")
    result = score_result(reward)
    if result.cause is not None or not result.votes:
        return Reply(cause=result.cause or Cause.WRONG_TYPE, detail=f"its reward: {result.detail or 'None, no number'}")
    harmless = tuple(Says(message.role, writable(message.text)) for message in messages)
    return Reply(harmless, result.value, done, writable(state))


def _misshapen(result: Any) -> Reply:
    return Reply(
        cause=Cause.WRONG_TYPE,
        detail=f"step returned {_shape(result)}; it must return (text, reward, whether it was the last turn)",
    )


def _shape(value: Any) -> str:
    """Say what a value is: `(str, float)`.

    >>> _shape(("", 1.0)), _shape(None)
    ('(str, float)', 'NoneType')
    """
    if isinstance(value, tuple):
        return f"({', '.join(type(one).__name__ for one in value[:8])}{', ...' if len(value) > 8 else ''})"
    return type(value).__name__


def _taken(reset: Callable[..., Any], sample: Sample) -> dict[str, Any]:
    """Choose the columns of a sample's row that `reset` takes: all of them where it has **kwargs."""
    row = {"prompt": prompt_of(sample), "seed": sample.seed, **columns(sample)}
    parameters = inspect.signature(reset).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return row
    return {name: value for name, value in row.items() if name in parameters}


def _methods(kind: type | None) -> dict[str, Callable[..., Any]]:
    """Find the public methods of a class that are tools, as an instance has them."""
    if kind is None:
        return {}
    every = inspect.getmembers_static(
        kind, lambda member: inspect.isfunction(member) or isinstance(member, classmethod)
    )
    return {
        name: getattr(kind, name) if isinstance(member, classmethod) else MethodType(member, object())
        for name, member in every
        if not name.startswith("_") and name not in RESERVED
    }


def _tools(kind: type | None, tools: Sequence[Callable[..., Any]]) -> tuple[Tool, ...]:
    what = "" if kind is None else f"task.use: {kind.__name__} has no step(text), so its public methods are tools"
    own = [(method, what) for method in _methods(kind).values()]
    return as_tools([*own, *((tool, "task.tools") for tool in tools)])


def _require_form(kind: type | None, tools: Sequence[Callable[..., Any]]) -> None:
    if kind is None:
        if not tools:
            raise UsageError("task.use and task.tools are both missing: name a class, or functions that are tools")
        return
    if not callable(getattr(kind, "reset", None)):
        raise UsageError(f"task.use: {kind.__name__} has no reset; an episode begins with reset(sample)")
    if has_step(kind) and tools:
        raise UsageError(f"task.tools: set, but {kind.__name__} has a step(text) that hears all calls; take one out")
    if not (has_step(kind) or tools or _methods(kind)):
        raise UsageError(
            f"task.use: {kind.__name__} has neither step(text) -> (text, reward, done) nor public methods, to be tools"
        )


def _require_reads(reward: Callable[..., Any], kind: type | None) -> None:
    if kind is None or has_step(kind):
        why = "tools alone have no environment" if kind is None else f"{kind.__name__} rewards its turns in step(text)"
        raise UsageError(f"task.reward: set, but {why}; a reward of texts is a table [rewards.NAME]")
    if not callable(reward) or "environments" not in inspect.signature(reward).parameters:
        name = getattr(reward, "__name__", type(reward).__name__)
        raise UsageError(
            f"task.reward: {name} has no parameter `environments`; a reward of texts is a table [rewards.NAME]"
        )


def _require_fields(kind: type, fields: Mapping[str, Any]) -> None:
    with contextlib.suppress(ValueError):  # a class of a library without a signature
        try:
            inspect.signature(kind).bind(**fields)
        except TypeError as error:
            raise UsageError(f"task.settings: {kind.__name__} cannot be made with them: {one_line(error)}") from None
