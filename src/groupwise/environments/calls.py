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
from functools import partial
from typing import Any

#: Calls of one turn that are read; behind them is one that says so. It bounds what reading a hostile text costs.
MOST_CALLS = 64

# A policy writes line breaks into its strings as they are.
_JSON = json.JSONDecoder(strict=False)
_VALUE = re.compile(r"[\s;,]*+(?=[{\[])")
_FUNCTION = re.compile(r"\s*+<function=([^>\s]+)>")
_NAMED = re.compile(r"\s*+([\w.-]++)\s*+(?:\[CALL_ID\]\s*+\w++)?\s*+(?:\[ARGS\])?\s*+(?=\{)")
_BARE = re.compile(r'\s*+\[?\s*+\{\s*+"(?:name|type|function)"\s*+:')
#: The special token that ends a turn, if those are written out, and its characters at most.
_END = re.compile(r"(?:<\|[a-zA-Z_]{1,40}\|>|<｜[^｜<>]{1,40}｜>|</s>|<eos>|<end_of_turn>|<turn\|>)$")
_LONGEST_END = 48
_ARGUMENTS = ("arguments", "parameters")
#: The beginning of the reason why a text that should be JSON is none.
_BROKEN = "the call is no JSON"


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
    """A text that begins as a call and is none, and why, in words for the policy."""

    why: str


#: (text, position) -> the calls that stand there, and the position behind them; None where the reader's form does not.
Reader = Callable[[str, int], tuple[list[Call | Malformed], int] | None]


def calls_in(text: str) -> list[Call | Malformed]:
    """Read the tool calls in what a policy said, in order; calls that it only thinks of are none.

    >>> calls_in('<think>add?</think><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    [Call(name='add', arguments={'a': 1}, texts=False)]
    >>> calls_in("It is 3."), calls_in('<tool_call>{"name": "add", </tool_call>')[0].why
    ([], 'the call is no JSON: Expecting property name enclosed in double quotes')
    """
    answer = _after_thoughts(text)
    for read in FORMATS:
        if (calls := read(answer)) is not None:
            more = Malformed(f"more than {MOST_CALLS} calls in one turn; the others were not made")
            return [*calls[:MOST_CALLS], *[more] * (len(calls) > MOST_CALLS)]
    return []


def without_end(text: str) -> str:
    """Remove the special tokens that end a turn from what was said.

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


def _marked(mark: str, readers: Sequence[Reader], text: str, inside: bool = False) -> list[Call | Malformed] | None:
    """Read the calls behind a mark each. What closes a call is not needed: the call says itself where it ends.

    inside  whether the mark is the beginning of the call itself
    """
    at = text.find(mark)
    if at < 0:
        return None
    calls: list[Call | Malformed] = []
    while at >= 0 and len(calls) <= MOST_CALLS:
        start = at if inside else at + len(mark)
        read = next((read for reader in readers if (read := reader(text, start))), None)
        these, end = read or ([Malformed(f"no call behind {mark}")], start)
        calls += these
        at = text.find(mark, max(end, at + 1))
    return calls


def _bare(text: str) -> list[Call | Malformed] | None:
    """Read a text that is nothing but calls in JSON: of a model that writes no tag, or whose tag is lost."""
    if not _BARE.match(text) or not any(f'"{key}"' in text for key in _ARGUMENTS):
        return None
    calls, _ = _values(text, 0) or ([], 0)
    broken = bool(calls) and isinstance(calls[0], Malformed) and calls[0].why.startswith(_BROKEN)
    return calls if broken or any(isinstance(one, Call) for one in calls) else None


def _after_thoughts(text: str) -> str:
    """Return what is said behind the thoughts, which may have been opened by the prompt."""
    thoughts, end, answer = text.partition("</think>")
    if text.lstrip().startswith("<think>"):
        return answer
    return answer if end and "<think>" not in thoughts and not _opens_a_call(thoughts) else text


def _opens_a_call(thoughts: str) -> bool:
    """Tell whether a text begins with a call: then `</think>` stands in an argument, and nothing was a thought."""
    start = thoughts.lstrip()
    return start.startswith(("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<function=")) or bool(_BARE.match(start))


def _values(text: str, at: int) -> tuple[list[Call | Malformed], int] | None:
    calls: list[Call | Malformed] = []
    while (begin := _VALUE.match(text, at)) and len(calls) <= MOST_CALLS:
        value, at = _decoded(text, begin.end())
        if isinstance(value, Malformed):
            return [*calls, value], at
        calls += [_call(one) for one in (value if isinstance(value, list) else [value])]
    return (calls, at) if calls else None


def _function(text: str, at: int) -> tuple[list[Call | Malformed], int] | None:
    begin = _FUNCTION.match(text, at)
    if begin is None:
        return None
    stop = text.find("</function>", begin.end())
    end = stop if stop >= 0 else len(text)
    body = text[begin.end() : end]
    if body.lstrip().startswith("{"):
        return [_with_arguments(begin[1], _decoded(body.lstrip(), 0)[0])], end
    parameters = (part.partition(">") for part in body.split("<parameter=")[1:])
    values = {key: value.partition("</parameter>")[0] for key, _, value in parameters}
    unframed = {key: value.removeprefix("\n").removesuffix("\n") for key, value in values.items()}
    return [Call(begin[1], unframed, texts=True)], end


def _named(text: str, at: int) -> tuple[list[Call | Malformed], int] | None:
    begin = _NAMED.match(text, at)
    if begin is None:
        return None
    value, end = _decoded(text, begin.end())
    return [_with_arguments(begin[1], value)], end


def _decoded(text: str, at: int) -> tuple[Any, int]:
    """Decode the JSON value that begins at a place -> the value, or Malformed; and where it ends, or begins."""
    try:
        return _JSON.raw_decode(text, at)
    except RecursionError:
        return Malformed(f"{_BROKEN}: it is nested too deep"), at
    except ValueError as error:
        return Malformed(f"{_BROKEN}: {getattr(error, 'msg', 'a number too long')}"), at


def _call(value: object) -> Call | Malformed:
    """Make a call of what JSON has: {"name", "arguments"}, also inside of {"function": ...}."""
    inner = value.get("function", value) if isinstance(value, Mapping) else value
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        return Malformed('a call must be {"name": ..., "arguments": {...}}')
    arguments = next((inner[key] for key in _ARGUMENTS if inner.get(key) is not None), {})
    if isinstance(arguments, str):  # JSON inside of JSON, as some servers have it
        arguments = _decoded(arguments.lstrip(), 0)[0]
    return _with_arguments(inner["name"], arguments)


def _with_arguments(name: str, arguments: object) -> Call | Malformed:
    if isinstance(arguments, Malformed):
        return arguments
    if isinstance(arguments, Mapping):
        return Call(name, arguments)
    return Malformed(f"the arguments of {name:.60} must be an object of names and values")


#: (what was said) -> its calls; None if nothing in it is of this format. The first that reads a text has it.
FORMATS: Sequence[Callable[[str], list[Call | Malformed] | None]] = (
    partial(_marked, "<tool_call>", (_function, _values)),
    partial(_marked, "<|python_tag|>", (_values,)),
    partial(_marked, "[TOOL_CALLS]", (_values, _named)),
    partial(_marked, "<function=", (_function,), inside=True),
    _bare,
)
