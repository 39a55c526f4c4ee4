"""Answers of a judge: one JSON object in a chat completion, with a number for each criterion; all else is a fault."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.core.errors import brief
from groupwise.core.files.json_text import writable
from groupwise.core.samples import Cause

#: The judge's own words, beside the criteria.
REASON = "reason"


class Unjudged(Exception):
    """A judgement that did not come about: its cause, in words what came in its place, and requests that were sent."""

    def __init__(self, cause: Cause, words: str, sent: int = 0) -> None:
        super().__init__(words)
        self.cause, self.words, self.sent = cause, words, sent


@dataclass(frozen=True)
class Answer:
    """A score for each criterion, and the judge's reason for them."""

    scores: Mapping[str, float]
    reason: str


def schema(names: Sequence[str], highest: float) -> dict[str, Any]:
    """Make the JSON schema of an answer; the reason comes first, so that the numbers follow from it."""
    number = {"type": "number", "minimum": 0, "maximum": highest}
    properties = {REASON: {"type": "string"}, **dict.fromkeys(names, number)}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def text_of(reply: bytes) -> tuple[str, int | None]:
    """Take the text out of a chat completion, and its tokens where they are given. Raises Unjudged."""
    try:
        said = json.loads(reply)
        choice = said["choices"][0]
        message, ended, usage = choice["message"], choice.get("finish_reason"), said.get("usage")
        content, refusal = message.get("content"), message.get("refusal")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Unjudged(Cause.NO_CHAT, f"the address sent {brief(reply.decode(errors='replace'))}") from None
    if refusal or ended == "content_filter":
        raise Unjudged(Cause.REFUSAL, f"the judge refused: {brief(refusal or ended)}")
    if ended == "length":
        raise Unjudged(Cause.CUT_OFF, f"the answer ends at the limit of its tokens: {brief(content)}")
    if not isinstance(content, str) or not content.strip():
        raise Unjudged(Cause.EMPTY, f"the answer's text is {brief(content)}")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    return writable(content), tokens if type(tokens) is int else None


def read_answer(text: str, names: Sequence[str], highest: float) -> Answer:
    """Read the scores of the criteria out of an answer, each from 0 to `highest`. Raises Unjudged.

    >>> read_answer('My verdict: {"reason": "Short.", "clear": 7}', ["clear"], 10.0)
    Answer(scores={'clear': 7.0}, reason='Short.')
    """
    said = _only_object(text)
    if missing := [name for name in names if name not in said]:
        raise Unjudged(Cause.MISSING, f"the answer has no {missing[0]!r}: {brief(text)}")
    if unknown := [name for name in said if name not in (REASON, *names)]:
        raise Unjudged(Cause.UNKNOWN, f"the answer has {brief(unknown[0])}, which is no criterion: {brief(text)}")
    return Answer({name: _number(name, said[name], highest) for name in names}, str(said.get(REASON, "")))


def _only_object(text: str) -> dict[str, Any]:
    """Parse from the first brace to the last, so that an object inside of a broken one is never taken for it."""
    try:
        return json.loads(text[max(text.find("{"), 0) : text.rfind("}") + 1], object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        cause = Cause.SEVERAL if error.msg == "Extra data" else Cause.NO_JSON
    except (ValueError, RecursionError):  # a number of thousands of digits, or nesting without end
        cause = Cause.NO_JSON
    raise Unjudged(cause, f"the judge answered {brief(text)}") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    said = dict(pairs)
    if len(said) < len(pairs):
        raise Unjudged(Cause.SEVERAL, f"the answer has a name twice: {brief(pairs)}")
    return said


def _number(name: str, value: object, highest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unjudged(Cause.NOT_NUMBER, f"{name} is {brief(value)}, not a number")
    if math.isnan(value):
        raise Unjudged(Cause.NAN, f"{name} is NaN")
    if not 0 <= value <= highest:
        raise Unjudged(Cause.OUT_OF_RANGE, f"{name} is {brief(value)}, not from 0 to {highest:g}")
    return float(value)
