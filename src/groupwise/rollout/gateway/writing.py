"""Texts of requests to ids, and sampled ids to the texts of answers, by the run's own chat template."""

import json
from collections.abc import Callable, Collection, Sequence

from groupwise.core.environment import Says, ToolCall
from groupwise.core.errors import UsageError
from groupwise.core.records import Completion
from groupwise.core.samples import Sample
from groupwise.environments.calls import Call, Malformed, calls_in, without_end
from groupwise.models.chat.later_turns import Glue
from groupwise.rollout.gateway.request import Choice, ModelRequest, Refusal, ToolUse, assistant, words
from groupwise.rollout.gateway.session import Said, Turn

Decode = Callable[[tuple[int, ...]], str]
#: What a call of a tool begins with; what is said before it is no part of it.
MARKS = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<function=")


class Writing:
    """Texts and ids of one run.

    glue        of its chat template, whose chat puts a first prompt
    decode      ids -> their text, without special tokens
    decode_all  ids -> their text, with special tokens written out
    positions   prompt and answer together at most
    vocabulary  ids are below this
    """

    def __init__(self, glue: Glue, decode: Decode, decode_all: Decode, positions: int, vocabulary: int) -> None:
        self._glue, self._chat = glue, glue.chat
        self._decode, self._decode_all = decode, decode_all
        self.positions, self._vocabulary = positions, vocabulary

    def before(self, asked: ModelRequest, parent: Turn | None) -> tuple[int, ...]:
        """Return the ids that come behind a turn, or a whole prompt where there is none. Raises Refusal."""
        if asked.ids is not None:
            if any(not 0 <= token < self._vocabulary for token in asked.ids):
                raise Refusal(400, f"token_ids: an id is not among the model's {self._vocabulary}")
            return asked.ids if parent is None else asked.ids[len(parent.ids) :]
        try:
            if parent is None:
                return self._first(asked)
            new = asked.messages[len(parent.history or ()) :]
            return self._glue.glue(parent.sampled.tokens, [Says(m["role"], m["content"]) for m in new])
        except UsageError as error:
            raise Refusal(400, str(error).replace("sample request: ", "")) from None

    def choice(self, asked: ModelRequest, sampled: Completion) -> tuple[Choice, Said]:
        """Return an answer as it is told, and as its session keeps it."""
        text, ids = self._decode(sampled.tokens), sampled.tokens
        stop = sampled.stop if sampled.stop in asked.stop else ""
        content, calls, made = text[: text.rfind(stop)] if stop else text, (), ()
        if asked.calls:
            whole = without_end(self._decode_all(ids))
            read = calls_in(whole)
            content, calls = _with_calls(content, whole, read)
            made = tuple(_made(call, asked.tool_names) for call in read)
        finish = "tool_calls" if calls else sampled.finish
        spelled = tuple(self._decode_all((token,)) for token in ids) if asked.whole else ()
        told = words(assistant(content, [(call.name, call.arguments) for call in calls]))
        return Choice(content, calls, finish, stop, ids, sampled.logp_engine, spelled), Said(told, made)

    def _first(self, asked: ModelRequest) -> tuple[int, ...]:
        """Return the ids of a conversation: of the very code that puts a problem to the policy."""
        for place, message in enumerate(asked.messages):
            controls = self._glue.controls
            for token in controls.cut(message["content"]).controls:
                if controls.tokens[token].special:
                    name = controls.tokens[token].content
                    raise Refusal(400, f"messages[{place}]: holds the control token {name}, which no text may")
        if self._chat.template is None and asked.tools:
            raise UsageError("there is no chat template to write tools; set chat.template to a Jinja file")
        text = asked.messages[-1]["content"]
        return self._chat.encode(Sample("request", text, "", messages=asked.messages, tools=asked.tools))


def _with_calls(content: str, text: str, read: Sequence[Call | Malformed]) -> tuple[str, tuple[ToolUse, ...]]:
    """Return what is said besides calls of tools, and these; with a call that cannot be read all is said as it is."""
    calls = [ToolUse(one.name, json.dumps(dict(one.arguments))) for one in read if isinstance(one, Call)]
    if len(calls) < len(read) or not calls:
        return content, ()
    begin = min((at for mark in MARKS if (at := text.find(mark)) >= 0), default=0)
    return text[:begin].rstrip(), tuple(calls)


def _made(call: Call | Malformed, known: Collection[str]) -> ToolCall:
    if isinstance(call, Malformed):
        return ToolCall("", "malformed")
    return ToolCall(call.name) if call.name in known else ToolCall("", "unknown tool")
