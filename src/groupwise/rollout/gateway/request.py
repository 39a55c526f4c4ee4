"""Requests of agents in one form, whatever protocol they come in, their answers, and refusals.

A body is read strictly where it says what the policy reads and how much it writes. How tokens are drawn (temperature,
top_p, penalties) is the run's to say, because it trains on what was drawn: such keys of a request are not read, and the
log says so once.
"""

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import orjson

from groupwise.core.environment import ToolCall
from groupwise.core.errors import brief
from groupwise.environments.calls import Call

Value = TypeVar("Value")
#: Answers to one request at most.
MOST_ANSWERS = 64
#: Texts that a request may name to end an answer.
MOST_STOPS = 16
#: Names of functions that the policy may call.
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
#: Keys of how tokens are drawn.
OF_THE_RUN = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"
)  # fmt: skip
#: Keys whose effect nothing here has.
REFUSED = ("functions", "logit_bias", "audio", "previous_response_id", "response_format", "prompt", "echo", "suffix")


class Refusal(Exception):
    """Reason for which a request has no answer, in one line, and the status of HTTP that says so."""

    def __init__(self, status: int, line: str, code: str = "invalid_request_error") -> None:
        super().__init__(" ".join(line.split())[:1000])
        self.status, self.code = status, code


def over() -> Refusal:
    """Refuse what is asked with the key of a session that nobody plays any more."""
    return Refusal(410, "this session is over: its agent has ended", "session_over")


@dataclass(frozen=True)
class ModelRequest:
    """Request for answers of the policy.

    messages  the conversation: role, content, and tool_calls where there are any, as chat templates read them
    tools     JSON schemas of the functions that the policy may call, as chat templates read them
    calls     whether calls of them are looked for in answers
    ids       the prompt, where it is given in ids instead
    most      new tokens at most; None: as many as there is room for
    answers   how many are sampled, each by itself
    stop      texts that end an answer
    seed      of the client's own, which is mixed into the session's
    whole     whether ids and log-probabilities are told
    stream    whether the answer is wanted as events
    usage     whether one more event counts the tokens
    unread    its keys of how tokens are drawn
    left_out  types of tools that are not offered to the policy, as nobody here runs them
    counts    whether the tokens of its prompt are to be counted, and none sampled
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    calls: bool = False
    ids: tuple[int, ...] | None = None
    most: int | None = None
    answers: int = 1
    stop: tuple[str, ...] = ()
    seed: int | None = None
    whole: bool = False
    stream: bool = False
    usage: bool = False
    unread: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    counts: bool = False

    @cached_property
    def history(self) -> tuple[str, ...]:
        """Words of each message: equal where an agent means the same."""
        return tuple(map(words, self.messages))

    @property
    def tool_names(self) -> frozenset[str]:
        """Names of the functions that the policy may call."""
        return frozenset(tool["function"]["name"] for tool in self.tools if self.calls)

    @cached_property
    def offered(self) -> str:
        """The tools as one text."""
        return json.dumps(self.tools, sort_keys=True)


@dataclass(frozen=True)
class Choice:
    """One of the answers to a request.

    content  what is said besides calls of tools
    calls    those that an agent is told
    made     those that are measured, one that cannot be read among them
    finish   "stop", "length", or "tool_calls" where it calls tools
    stop     the text of the request's that ended it; "" where none did
    spelled  the text of each id
    """

    content: str
    calls: tuple[Call, ...]
    made: tuple[ToolCall, ...]
    finish: str
    stop: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spelled: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The answer as a history has it."""
        return words(assistant(self.content, [(call.name, call.arguments) for call in self.calls]))


@dataclass(frozen=True)
class ModelAnswer:
    """Answers to a request.

    number  of the request in its session: ids of answers and calls are made of it, so that an agent is told the same
            again when its session is played again
    prompt  tokens that the policy has read
    """

    number: int
    prompt: tuple[int, ...]
    choices: tuple[Choice, ...]

    def name(self, kind: str) -> str:
        """Name the answer."""
        return f"{kind}-{self.number}"

    def call_name(self, choice: int, call: int) -> str:
        """Name a call: nine letters and digits, as some chat templates require."""
        return f"c{self.number % 10**4:04d}{choice:02d}{call:02d}"

    @property
    def written(self) -> int:
        """Tokens of all answers."""
        return sum(len(choice.ids) for choice in self.choices)


@dataclass(frozen=True)
class Body:
    """A request's body, read key by key. Every reader raises Refusal with the key and what is wrong."""

    content: Mapping[str, Any]
    where: str = field(default="")

    @classmethod
    def of(cls, raw: bytes) -> "Body":
        """Read JSON, whose texts must be such as UTF-8 can write: a half of a surrogate pair has no ids."""
        try:
            content = orjson.loads(raw)
        except ValueError as error:
            raise Refusal(400, f"the body is no JSON: {error}") from None
        if not isinstance(content, dict):
            raise Refusal(400, "the body must be a JSON object")
        return cls(content)

    def wrong(self, key: str, what: str) -> Refusal:
        """Refuse the value of a key."""
        return Refusal(400, f"{self.where}{key} = {brief(self.content.get(key))}: {what}")

    def value(self, key: str, kind: type[Value], what: str) -> Value:
        """Return a value of a type, or an empty one where it is not there."""
        value = self.content.get(key)
        if value is not None and type(value) is not kind:
            raise self.wrong(key, f"must be {what}")
        return kind() if value is None else value

    def number(self, *keys: str, least: int = 0, most: int = 2**62) -> int | None:
        """Return the whole number of the first key that is there; None where none is."""
        for key in (key for key in keys if self.content.get(key) is not None):
            if type(self.content[key]) is not int or not least <= self.content[key] <= most:
                raise self.wrong(key, f"must be a whole number from {least} to {most}")
            return self.content[key]
        return None

    def flag(self, key: str) -> bool:
        """Return true or false; false where it is not there."""
        return self.value(key, bool, "true or false")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, of which one may stand alone."""
        value = self.content.get(key) or []
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or len(listed) > MOST_STOPS or not all(map(_is_stop, listed)):
            raise self.wrong(key, f"must be a text or a list of at most {MOST_STOPS}, of 256 characters")
        return tuple(listed)

    def tables(self, key: str) -> list["Body"]:
        """Return the objects of a list, empty where it is not there."""
        listed = self.value(key, list, "a list")
        for at, each in enumerate(listed):
            if not isinstance(each, dict):
                raise Refusal(400, f"{self.where}{key}[{at}] = {brief(each)}: must be an object")
        return [Body(each, f"{self.where}{key}[{at}].") for at, each in enumerate(listed)]

    def table(self, key: str) -> "Body":
        """Return an object, empty where it is not there."""
        return Body(self.value(key, dict, "an object"), f"{self.where}{key}.")

    def text(self, key: str) -> str:
        """Return the text of a content: one text, or parts of type text."""
        value = self.content.get(key)
        return value if isinstance(value, str) else "".join(part.part() for part in self.tables(key))

    def part(self) -> str:
        """Return the text of this part of a content."""
        kind, text = self.content.get("type"), self.content.get("text")
        if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            raise self.wrong("type", "this policy reads text alone")
        return text

    def name(self, key: str) -> str:
        """Return a text that must be there."""
        if not (name := self.value(key, str, "text")):
            raise self.wrong(key, "must be text")
        return name

    def role(self, known: Mapping[str, str]) -> str:
        """Return the role of a message as chat templates name it."""
        if (role := self.name("role")) not in known:
            raise self.wrong("role", f"must be one of {', '.join(known)}")
        return known[role]

    def tool_name(self) -> str:
        """Return the name of a function that may be called."""
        if not TOOL_NAME.fullmatch(name := self.name("name")):
            raise self.wrong("name", "must be letters, digits, _, - and ., at most 128")
        return name

    def function(self, schema: str) -> dict[str, Any]:
        """Return a tool as chat templates read it; its arguments' schema is under the key `schema`."""
        said, parameters = self.content.get("description"), self.content.get(schema)
        own = {"name": self.tool_name(), "description": said if isinstance(said, str) else ""}
        return {
            "type": "function",
            "function": {**own, "parameters": parameters if isinstance(parameters, dict) else {}},
        }

    def tools(self, own: str) -> tuple[list["Body"], tuple[str, ...]]:
        """Return the tools that a client runs, of the type `own`, and the types of others, which a server would run."""
        every = [(tool, tool.value("type", str, "text") or own) for tool in self.tables("tools")]
        return [tool for tool, kind in every if kind == own], tuple(kind for _, kind in every if kind != own)

    def require_plain(self) -> None:
        """Refuse keys that ask for what is not done here."""
        for key in REFUSED:
            if self.content.get(key) not in (None, "", [], {}, False, {"type": "text"}):
                raise self.wrong(key, "this policy is sampled without it; take it out")

    def unread(self) -> tuple[str, ...]:
        """List the keys that say how tokens are drawn, which is the run's to say."""
        return tuple(key for key in OF_THE_RUN if self.content.get(key) is not None)

    def may_call(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        """Tell whether tools may be called. Refuses a choice that would force a call, which sampling cannot."""
        choice = self.content.get("tool_choice")
        kind = choice.get("type") if isinstance(choice, dict) else choice
        if kind not in (None, "auto", "none"):
            raise self.wrong("tool_choice", "a call cannot be forced; set it to auto or none")
        return bool(tools) and kind != "none"


def refuse(future: "Future[ModelAnswer]", refusal: Refusal) -> None:
    """Answer with a refusal, if anyone still waits for an answer."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(refusal)


def assistant(content: str, calls: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return what the policy said, as chat templates read it; arguments are JSON, or the object that it is of."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": _decoded(arguments)}}
            for name, arguments in calls
        ]
    return message


def words(message: Mapping[str, Any]) -> str:
    """Return a message as one text, without white space around what it says and without names of its calls."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return json.dumps([message["role"], message["content"].strip(), calls], sort_keys=True)


def _decoded(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _is_stop(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= 256 and "\ufffd" not in text
