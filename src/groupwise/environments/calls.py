"""Tool calls in what a policy said, in the formats that models write them in.

    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>      Hermes, Qwen, SmolLM2 (a list of calls too)
    <tool_call><function=add><parameter=a>1</parameter></function></tool_call>      Qwen 3.5, Nemotron 3
    <|python_tag|>{"name": "add", "parameters": {"a": 1}}              Llama 3, with the tag or without
    [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]               Mistral
    [TOOL_CALLS]add[ARGS]{"a": 1}                                      Mistral, later
    <function=add>{"a": 1}</function>                                  Llama 3.1, where its prompt says so

Some of the tags are special tokens, so the text must have those written out. Without them a text that is nothing but
calls in JSON is still read.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: Calls of one turn that are read; behind them is one that says so. It bounds what reading a hostile text costs.
MOST_CALLS = 64

# A policy writes line breaks into its strings as they are.
_JSON = json.JSONDecoder(strict=False)
_BETWEEN = re.compile(r"[\s;,]*")
_FUNCTION = re.compile(r"\s*+<function=([^>\s]+)>")
_NAMED = re.compile(r"\s*+([\w.-]++)\s*+(?:\[CALL_ID\]\s*+\w++)?\s*+(?:\[ARGS\])?\s*+(?=\{)")
_BARE = re.compile(r'\s*+\[?\s*+\{\s*+"(?:name|type|function)"\s*+:')
#: What chat templates end a turn with, where special tokens are written out, and how long it is at most.
_END = re.compile(r"(?:<\|[a-zA-Z_]{1,40}\|>|<｜[^｜<>]{1,40}｜>|</s>|<eos>|<end_of_turn>|<turn\|>)$")
_LONGEST_END = 48
_ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True)
class Call:
    """A tool call.

    texts  whether every argument is text as the policy wrote it: what type it is of, only the function knows
    """

    name: str
    arguments: Mapping[str, Any]
    texts: bool = False


@dataclass(frozen=True)
class Malformed:
    """What begins as a call and is none, and why, in words for the policy."""

    why: str


#: (text, position) -> the calls that stand there, and the position behind them; None where the reader's form does not.
Reader = Callable[[str, int], tuple[list[Call | Malformed], int] | None]


class Format(Protocol):
    """(what was said) -> its calls; None where nothing in it is of this format."""

    def __call__(self, text: str) -> list[Call | Malformed] | None: ...


def calls_in(text: str) -> list[Call | Malformed]:
    """The tool calls in what a policy said, in order; those that it only thinks of are none.

    >>> calls_in('<think>add?</think><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    [Call(name='add', arguments={'a': 1}, texts=False)]
    >>> calls_in("It is 3."), calls_in('<tool_call>{"name": "add", </tool_call>')[0].why
    ([], 'the call is no JSON: Expecting property name enclosed in double quotes')
    """
    answer = _after_thoughts(text)
    for form in FORMATS:
        if (calls := form(answer)) is not None:
            return calls
    return []


def without_end(text: str) -> str:
    """What was said, without the special tokens that end a turn.

    >>> without_end("It is 3.<|im_end|> "), without_end("a < b | c")
    ('It is 3.', 'a < b | c')
    """
    end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        last = _END.search(text[max(0, end - _LONGEST_END) : end])
        if last is None:
            return text[:end]
        end -= len(last[0])


@dataclass(frozen=True)
class Marked:
    """Calls that stand behind a mark each. What closes one is not needed: a call says itself where it ends.

    inside  whether the mark is the beginning of the call itself
    """

    mark: str
    readers: Sequence[Reader]
    inside: bool = False

    def __call__(self, text: str) -> list[Call | Malformed] | None:
        at = text.find(self.mark)
        if at < 0:
            return None
        calls_so_far: list[Call | Malformed] = []
        while at >= 0 and len(calls_so_far) <= MOST_CALLS:
            start = at if self.inside else at + len(self.mark)
            read = next((read for reader in self.readers if (read := reader(text, start))), None)
            calls, end = read or ([Malformed(f"no call behind {self.mark}")], start)
            calls_so_far += calls
            at = text.find(self.mark, max(end, at + 1))
        return _bounded(calls_so_far)


@dataclass(frozen=True)
class Bare:
    """A text that is nothing but calls in JSON: of a model that writes no tag, or whose tag is lost."""

    def __call__(self, text: str) -> list[Call | Malformed] | None:
        if not _BARE.match(text) or not any(f'"{key}"' in text for key in _ARGUMENTS):
            return None
        calls, _ = _values(text, 0) or ([], 0)
        plain = [one for one in calls if isinstance(one, Call)]
        return _bounded(calls) if plain or _is_broken(calls) else None


def _after_thoughts(text: str) -> str:
    """What is said behind the thoughts, which may have been opened by the prompt."""
    thoughts, end, answer = text.partition("</think>")
    if text.lstrip().startswith("<think>"):
        return answer
    return answer if end and "<think>" not in thoughts and not _opens_a_call(thoughts) else text


def _opens_a_call(thoughts: str) -> bool:
    """Whether it begins with a call: then `</think>` stands in an argument, and nothing was a thought."""
    start = thoughts.lstrip()
    return start.startswith(("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<function=")) or bool(_BARE.match(start))


def _values(text: str, at: int) -> tuple[list[Call | Malformed], int] | None:
    """JSON values, one after the other."""
    calls_so_far: list[Call | Malformed] = []
    at = _behind(_BETWEEN, text, at)
    while text[at : at + 1] in ("{", "[") and len(calls_so_far) <= MOST_CALLS:
        try:
            value, at = _JSON.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            return [*calls_so_far, _no_json(error)], at
        calls_so_far += [_call(one) for one in (value if isinstance(value, list) else [value])]
        at = _behind(_BETWEEN, text, at)
    return (calls_so_far, at) if calls_so_far else None


def _function(text: str, at: int) -> tuple[list[Call | Malformed], int] | None:
    """`<function=name>`, with JSON or with tagged parameters inside."""
    begin = _FUNCTION.match(text, at)
    if begin is None:
        return None
    stop = text.find("</function>", begin.end())
    end = stop if stop >= 0 else len(text)
    body = text[begin.end() : end]
    if body.lstrip().startswith("{"):
        return [_with_arguments(begin[1], body)], end
    parameters = (part.partition(">") for part in body.split("<parameter=")[1:])
    values = {key: value.partition("</parameter>")[0] for key, _, value in parameters}
    return [Call(begin[1], {key: _unframed(value) for key, value in values.items()}, texts=True)], end


def _named(text: str, at: int) -> tuple[list[Call | Malformed], int] | None:
    """`name[ARGS]{...}`."""
    begin = _NAMED.match(text, at)
    if begin is None:
        return None
    try:
        value, end = _JSON.raw_decode(text, begin.end())
    except (ValueError, RecursionError) as error:
        return [_no_json(error)], begin.end()
    return [_of(begin[1], value)], end


def _with_arguments(name: str, body: str) -> Call | Malformed:
    """A call whose arguments are JSON of their own."""
    try:
        return _of(name, _JSON.raw_decode(body.lstrip())[0])
    except (ValueError, RecursionError) as error:
        return _no_json(error)


def _call(value: object) -> Call | Malformed:
    """A call as JSON has it, {"name", "arguments"}, also inside of {"function": ...}."""
    inner = value.get("function", value) if isinstance(value, Mapping) else value
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        return Malformed('a call must be {"name": ..., "arguments": {...}}')
    arguments = next((inner[key] for key in _ARGUMENTS if inner.get(key) is not None), {})
    if isinstance(arguments, str):  # JSON inside of JSON, as some servers have it
        return _with_arguments(inner["name"], arguments)
    return _of(inner["name"], arguments)


def _of(name: str, arguments: object) -> Call | Malformed:
    if isinstance(arguments, Mapping):
        return Call(name, arguments)
    return Malformed(f"the arguments of {name:.60} must be an object of names and values")


def _is_broken(calls: Sequence[Call | Malformed]) -> bool:
    return bool(calls) and isinstance(calls[0], Malformed) and calls[0].why.startswith(_BROKEN)


def _no_json(error: Exception) -> Malformed:
    words = "it is nested too deep" if isinstance(error, RecursionError) else getattr(error, "msg", "a number too long")
    return Malformed(f"{_BROKEN}: {words}")


def _bounded(calls: list[Call | Malformed]) -> list[Call | Malformed]:
    if len(calls) <= MOST_CALLS:
        return calls
    return [*calls[:MOST_CALLS], Malformed(f"more than {MOST_CALLS} calls in one turn; the others were not made")]


def _behind(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _unframed(value: str) -> str:
    """Without the line break that the format has on each side."""
    return value.removeprefix("\n").removesuffix("\n")


_BROKEN = "the call is no JSON"

#: The first that something in a text is of reads it.
FORMATS: Sequence[Format] = (
    Marked("<tool_call>", (_function, _values)),
    Marked("<|python_tag|>", (_values,)),
    Marked("[TOOL_CALLS]", (_values, _named)),
    Marked("<function=", (_function,), inside=True),
    Bare(),
)
