"""TEMPORARY: replaced by the tools branch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from groupwise.core.environment import Reply, Says
from groupwise.core.reward import Cause
from groupwise.core.samples import Sample


class Playable(Protocol):
    def reset(self, sample: Sample) -> str | None: ...

    def reply(self, text: str) -> Reply: ...

    def state(self) -> str: ...


class _Own:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def reset(self, sample: Sample) -> str | None:
        return self.inner.reset(sample)

    def state(self) -> str:
        return str(self.inner.state()) if hasattr(self.inner, "state") else ""

    def reply(self, text: str) -> Reply:
        answer = self.inner.step(text)
        if not (isinstance(answer, tuple) and len(answer) == 3):
            return Reply(cause=Cause.WRONG_TYPE, detail=f"step returned {answer!r:.200}")
        observation, reward, done = answer
        messages = (Says("user", observation),) if observation else ()
        return Reply(messages, float(reward), bool(done), self.state())


def playable(kind: type, fields: Mapping[str, Any], tools: Sequence[Callable[..., Any]] = ()) -> Callable[[], Playable]:
    return lambda: _Own(kind(**fields))
