"""Texts of requests to ids, and sampled ids to the texts of answers, by the run's own chat template."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from groupwise.core.environment import Says, ToolCall
from groupwise.core.errors import UsageError
from groupwise.core.records import Completion
from groupwise.core.samples import Sample
from groupwise.environments.calls import Call, Malformed, calls_in, without_end
from groupwise.models.chat.later_turns import Glue
from groupwise.models.load import Policy
from groupwise.rollout.gateway.request import Choice, ModelRequest, Refusal
from groupwise.rollout.gateway.session import Turn

#: What a call of a tool begins with; what is said before it is no part of it.
MARKS = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<function=")


@dataclass(frozen=True)
class Writing:
    """Texts and ids of one run.

    glue    of its chat template, whose chat puts a first prompt
    policy  whose tokenizer reads and writes
    """

    glue: Glue
    policy: Policy

    @cached_property
    def positions(self) -> int:
        """Tokens of a prompt and its answer together at most."""
        return self.policy.positions

    def before(self, asked: ModelRequest, parent: Turn | None) -> tuple[int, ...]:
        """Return the ids that come behind a turn, or a whole prompt where there is none. Raises Refusal."""
        if asked.ids is not None:
            vocabulary = self.policy.model.config.get_text_config().vocab_size
            if any(not 0 <= token < vocabulary for token in asked.ids):
                raise Refusal(400, f"token_ids: an id is not among the model's {vocabulary}")
            return asked.ids if parent is None else asked.ids[len(parent.ids) :]
        try:
            if parent is None:
                return self._first(asked)
            new = asked.messages[len(parent.history or ()) :]
            return self.glue.glue(parent.sampled.tokens, [Says(m["role"], m["content"]) for m in new])
        except UsageError as error:
            raise Refusal(400, str(error).replace("sample request: ", "")) from None

    def choice(self, asked: ModelRequest, sampled: Completion) -> Choice:
        """Return an answer as it is told."""
        text, ids = self.policy.decode(sampled.tokens), sampled.tokens
        stop = sampled.stop if sampled.stop in asked.stop else ""
        content, calls, made = text[: text.rfind(stop)] if stop else text, (), ()
        if asked.calls:
            whole = without_end(self.policy.decode_all(ids))
            read = [one if _is_plain(one) else Malformed("JSON has no such value") for one in calls_in(whole)]
            content, calls = _with_calls(content, whole, read)
            made = tuple(_made(call, asked.tool_names) for call in read)
        finish = "tool_calls" if calls else sampled.finish
        spelled = tuple(self.policy.decode_all((token,)) for token in ids) if asked.whole else ()
        return Choice(content, calls, made, finish, stop, ids, sampled.logp_engine, spelled)

    def _first(self, asked: ModelRequest) -> tuple[int, ...]:
        """Return the ids of a conversation: of the very code that puts a problem to the policy."""
        for place, message in enumerate(asked.messages):
            controls = self.glue.controls
            for token in controls.cut(message["content"]).controls:
                if controls.tokens[token].special:
                    name = controls.tokens[token].content
                    raise Refusal(400, f"messages[{place}]: holds the control token {name}, which no text may")
        if self.glue.chat.template is None and asked.tools:
            raise UsageError("there is no chat template to write tools; set chat.template to a Jinja file")
        text = asked.messages[-1]["content"]
        return self.glue.chat.encode(Sample("request", text, "", messages=asked.messages, tools=asked.tools))


def _with_calls(content: str, text: str, read: Sequence[Call | Malformed]) -> tuple[str, tuple[Call, ...]]:
    """Return what is said besides calls of tools, and these; with a call that cannot be read all is said as it is."""
    calls = [one for one in read if isinstance(one, Call)]
    if len(calls) < len(read) or not calls:
        return content, ()
    begin = min((at for mark in MARKS if (at := text.find(mark)) >= 0), default=0)
    return text[:begin].rstrip(), tuple(calls)


def _is_plain(call: Call | Malformed) -> bool:
    """Tell whether strict JSON has the arguments: no NaN, and no half of a surrogate pair."""
    try:
        return isinstance(call, Malformed) or bool(
            json.dumps(call.arguments, ensure_ascii=False, allow_nan=False).encode()
        )
    except ValueError:
        return False


def _made(call: Call | Malformed, known: Collection[str]) -> ToolCall:
    if isinstance(call, Malformed):
        return ToolCall("", "malformed")
    return ToolCall(call.name) if call.name in known else ToolCall("", "unknown tool")
