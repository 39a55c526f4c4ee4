"""Functions that a policy may call: what they are in the prompt, and what a call of one is answered."""

import inspect
import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from groupwise.core.environment import Reply, ToolCall
from groupwise.core.errors import UsageError, brief, listed, one_line, shortened
from groupwise.core.files.json_text import writable
from groupwise.environments.calls import Call, Malformed

#: JSON's names of Python's types.
JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", list: "array", dict: "object"}
#: The failure of what begins as a call and is none.
MALFORMED = "malformed"
#: That of a call in a turn without an answer that another call, or nobody knows which, is at fault for.
UNANSWERED = "unanswered"
#: A frame of a traceback: its file, a comma where Python wrote it and not faulthandler, the function.
_FRAME = re.compile(r'File "([^"\n]*)", line \d+(,?) in (\w+)$', re.MULTILINE)
#: Files of Python itself, whose functions are called run, search and read as tools are.
_OF_PYTHON = re.compile(r"[/\\]lib[/\\]python3[^/\\]*[/\\](?!site-packages|dist-packages)|^<")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_EXAMPLE = 'write """What it does.\\n\\nArgs:\\n    NAME: what it is\\n"""'


@dataclass(frozen=True)
class Tool:
    """A function, or a method of an environment, that the policy may call by its name."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """The type of each argument."""
        return {name: hint for name, hint in get_type_hints(self.function).items() if name in self._parameters}

    def answer(self, call: Call, finish: Callable[[Any], Any]) -> tuple[str, str]:
        """Answer a call -> the result, or {"error": ...} where the arguments are wrong or it raises; and the failure,
        as ToolCall has it.

        finish  (awaitable) -> its result, for a function that is async
        What is no mistake of the policy's comes through: no memory, sys.exit, a result that is no text.
        """
        failure = "arguments"
        try:
            arguments = self._arguments(call)
            failure = "exception"
            result = self.function(**arguments)
            result = finish(result) if inspect.isawaitable(result) else result
        except MemoryError:
            raise
        except Exception as error:
            return error_text(one_line(error)), failure
        return as_text(result, self.name), ""

    def schema(self) -> dict[str, Any]:
        """Describe the function as chat templates take it, from its type hints and its docstring.

        Raises UsageError if transformers cannot make it.
        """
        from transformers.utils.chat_template_utils import get_json_schema  # of runs with tools only: it loads torch

        try:
            return get_json_schema(self.function)
        except Exception as error:
            raise UsageError(f"tool {self.name}: {one_line(error)}") from None

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        parameters = dict(inspect.signature(self.function).parameters)
        first = next(iter(parameters.values()), None)
        if first is not None and first.name in ("self", "cls") and first.annotation is first.empty:
            del parameters[first.name]  # of a method that is looked at before there is an instance
        return parameters

    def _arguments(self, call: Call) -> dict[str, Any]:
        if not isinstance(call.arguments, Mapping):
            raise ValueError(f"the arguments of {self.name} must be an object of names and values")
        for name in call.arguments:
            if name not in self._parameters:
                known = listed(self._parameters) or "no arguments"
                raise ValueError(f"{self.name} has no argument {shortened(name, 60)!r}; it takes {known}")
        for name, parameter in self._parameters.items():
            if parameter.default is parameter.empty and name not in call.arguments:
                raise ValueError(f"{self.name} needs the argument {name!r}")
        values = {name: self._value(name, value, call.texts) for name, value in call.arguments.items()}
        for name, value in values.items():
            if not fits(value, self.hints[name]):
                wanted = JSON_TYPES.get(self.hints[name], str(self.hints[name]).replace("typing.", ""))
                raise ValueError(f"{self.name}: {name} must be {wanted}, not {brief(value)}")
        return values

    def _value(self, name: str, value: Any, is_text: bool) -> Any:
        """Read the value of an argument; one that was written as text is JSON where that fits better than the text."""
        if not is_text or self.hints[name] is str:
            return value
        try:
            read = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return read if fits(read, self.hints[name]) else value


def tool(function: Any, what: str) -> Tool:
    """Make a tool of a function. Raises UsageError, `what` first, with the first thing that a policy could not know."""
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise UsageError(f"{what}: a {type(function).__name__}, not a function; a tool is a function or a method")
    one = Tool(function)
    if not (one.function.__doc__ or "").strip():
        raise UsageError(f"{what}: {one.name} has no docstring, so the policy cannot know what it does; {_EXAMPLE}")
    for name, parameter in one._parameters.items():
        if parameter.kind not in _BY_NAME:
            raise UsageError(f"{what}: {one.name} takes {parameter}; every argument of a tool needs a name of its own")
        if parameter.annotation is parameter.empty:
            raise UsageError(f"{what}: the argument {name!r} of {one.name} has no type hint; write {name}: int or so")
    try:
        _ = one.hints
    except Exception as error:
        raise UsageError(f"{what}: a type hint of {one.name} cannot be read: {one_line(error)}") from None
    return one


def tools(functions: Sequence[tuple[Any, str]]) -> tuple[Tool, ...]:
    """Make a tool of each (function, what it is in a message). Raises UsageError for the first that is none or there
    twice.
    """
    every = {}
    for function, what in functions:
        one = tool(function, what)
        if one.name in every:
            raise UsageError(f"{what}: there is a tool {one.name} already; give one of them another name")
        every[one.name] = one
    return tuple(every.values())


def answer(call: Call | Malformed, known: Mapping[str, Tool], finish: Callable[[Any], Any]) -> tuple[str, ToolCall]:
    """Answer one call, whatever is wrong with it -> the answer and its record.

    >>> answer(Call("sub", {}), {}, lambda awaitable: None)
    ('{"error": "there is no tool \\'sub\\'; known: "}', ToolCall(tool='', failure='unknown tool', seconds=0.0))
    """
    if isinstance(call, Malformed):
        return error_text(call.why), ToolCall("", MALFORMED)
    if call.name not in known:
        words = f"there is no tool {shortened(call.name, 60)!r}; known: {listed(known)}"
        return error_text(words), ToolCall("", "unknown tool")
    start = time.monotonic()
    text, failure = known[call.name].answer(call, finish)
    return text, ToolCall(call.name, failure, time.monotonic() - start)


def unanswered(calls: Sequence[Call | Malformed], known: Collection[str], fault: Reply) -> list[ToolCall]:
    """Record the calls of a turn that has no answer: the one at fault, the outermost that the fault's traceback names,
    has its cause; what became of the others nobody heard.

    >>> from groupwise.core.samples import Cause
    >>> fault = Reply(cause=Cause.TIMEOUT, detail='File "tools.py", line 3 in wait', seconds=10.0)
    >>> unanswered([Call("add", {}), Call("wait", {})], ("add", "wait"), fault)
    [ToolCall(tool='add', failure='unanswered', seconds=0.0), ToolCall(tool='wait', failure='timeout', seconds=10.0)]
    """
    named = [call.name if isinstance(call, Call) and call.name in known else "" for call in calls]
    first = next((name for name in _functions(fault.detail) if name in named), "")
    guilty = [i for i, name in enumerate(named) if name and name == first] or [0] * (len(named) == 1)
    return [
        ToolCall(name, str(fault.cause), fault.seconds) if i in guilty[:1] else ToolCall(name, UNANSWERED)
        for i, name in enumerate(named)
    ]


def _functions(detail: str) -> list[str]:
    r"""List the functions of a traceback, those of Python itself left out, the outermost first.

    >>> _functions('File "t.py", line 2, in find\n  File "/usr/lib/python3.11/re/__init__.py", line 176, in search')
    ['find']
    """
    frames = _FRAME.findall(detail)
    by_python = bool(frames) and bool(frames[0][1])  # faulthandler has the most recent call first
    return [name for file, _, name in (frames if by_python else frames[::-1]) if not _OF_PYTHON.search(file)]


def as_text(result: Any, name: str) -> str:
    """Write a result as the policy reads it: text as it is, blocks of text joined, anything else as JSON.

    Raises TypeError for a picture: observations are text.

    >>> as_text("won", "f"), as_text({"left": 2, "open": True}, "f"), as_text(None, "f")
    ('won', '{"left": 2, "open": true}', 'null')
    """
    if isinstance(result, str):
        return writable(result)
    if isinstance(result, list) and result and all(isinstance(part, Mapping) and "type" in part for part in result):
        if any(part["type"] not in ("text",) for part in result):
            raise TypeError(f"{name} returned {listed(str(part['type']) for part in result)}; observations are text")
        return writable("".join(str(part.get("text", "")) for part in result))
    try:
        return writable(json.dumps(result, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):  # keys that are no names, a circle
        return writable(str(result))


def error_text(words: str) -> str:
    """Write a mistake as the policy reads it."""
    return json.dumps({"error": writable(shortened(words, 1_000))}, ensure_ascii=False)


def fits(value: Any, hint: Any) -> bool:
    """Tell whether a value of JSON is one of a type, as the schema of the type says.

    >>> fits(1, float), fits(True, int), fits([1, 2], list[int]), fits(None, int | None), fits("up", Literal["up"])
    (True, False, True, True, True)
    """
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return True
    if kind in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if kind is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return any(type(value) is type(one.value) and value == one.value for one in kind)
    if kind in (list, tuple):
        each = inner[:1] * len(value) if kind is list and isinstance(value, list) else inner
        return isinstance(value, list) and (not inner or (len(value) == len(each) and all(map(fits, value, each))))
    if kind is dict:
        return isinstance(value, Mapping) and (len(inner) < 2 or all(fits(one, inner[1]) for one in value.values()))
    if kind is float:
        return type(value) in (int, float)
    return type(value) is (NoneType if kind is None else kind)
