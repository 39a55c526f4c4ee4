"""The conversation of a row: its turns, and the functions that may be called in it, as a chat template reads them; or
the reason why they are none, in one line.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from groupwise.core.errors import UsageError, brief, listed
from groupwise.core.files.json_text import json_value
from groupwise.tasks.data.formats import kind_of

#: Notes on what is changed on the way.
WRITTEN = "a conversation, or calls of tools, written as text: read as JSON"
WRITTEN_AGAIN = "a conversation written as text that was encoded as JSON again: read as JSON each time"
PARTS = "what a turn says comes in parts: put together into one text, one a line"
NULLS = "arguments of a tool's call that are nothing (null): left out"
FUNCTIONS_WRITTEN = "functions that the policy may call, written as text: read as JSON"
FUNCTION_NULLS = "what the schema of a function holds as nothing (null): left out"
#: The beginning of a conversation that was written into one column as text.
_BEGINS = re.compile(r"""\s*\[\s*\{\s*["'](?:role|content)["']\s*:""")
#: The speaker near the beginning of such a text if another key comes first, or it is one object.
_SPEAKER = re.compile(r"""["'](?:role|from)["']\s*:\s*["'](?:system|developer|user|human|assistant|gpt|tool)["']""")
_NEAR = 2_000
#: Python's spelling of such a list, which is no JSON.
_OF_PYTHON = re.compile(r"\s*\[?\s*\{\s*'")
#: Keys in a part of a content that is no text.
_MEDIA = re.compile(r"image|video|audio|file|url|bytes")

Turn = dict[str, Any]


def has_turns(value: object) -> bool:
    """Tell if a prompt is a conversation: a list of objects, one at least, or such a list written as text, also as
    text that was encoded again.

    >>> has_turns([{"role": "user", "content": "1 + 1?"}]), has_turns('[{"role": "user"'), has_turns("[1]")
    (True, True, False)
    """
    if isinstance(value, str):
        value = _unquoted(value)
        whole = value.strip()[:1] + value.strip()[-1:] in ("[]", "{}")
        return _BEGINS.match(value) is not None or (whole and _SPEAKER.search(value[:_NEAR]) is not None)
    return isinstance(value, list) and bool(value) and all(isinstance(turn, dict) for turn in value)


def _unquoted(text: str) -> str:
    """Return the text inside a text that is one JSON string, however often it was encoded; a text that is none as it
    stands.

    >>> _unquoted(json.dumps(json.dumps("[]"))), _unquoted('"One" or "two"?')
    ('[]', '"One" or "two"?')
    """
    while text.strip()[:1] == '"':
        try:
            inner = json.loads(text)
        except ValueError:
            return text
        text = inner
    return text


def conversation(value: object, where: str, key: str) -> tuple[list[Turn], list[str]]:
    """Return the turns, and what was changed. A last one of the assistant's is the beginning of the answer.

    A turn keeps every key that holds something. Raises UsageError, beginning with the row's place `where` and the
    recipe's `key`, where a text model cannot read one.
    """
    place = f"{where}: {key}"
    read, changes = turns_of(value, place)
    asked = without_prefill(read)
    if not asked:
        _refuse(place, "the assistant's alone")
    if asked[-1]["role"] == "user" and not asked[-1]["content"].strip():
        raise UsageError(f"{place}: what the user says last is empty; fill it or take the row out")
    if len(asked) < len(read) and "tool_calls" in read[-1]:
        raise UsageError(f"{place}: ends with a call of a tool; add the tool's turn, or take the last turn out")
    return read, list(dict.fromkeys(changes))


def turns_of(value: object, place: str) -> tuple[list[Turn], list[str]]:
    """Return the turns of a conversation that anybody may begin and end, and what was changed."""
    changes = list[str]()
    if has_turns(value) and isinstance(value, str):
        inner = _unquoted(value)
        changes.append(WRITTEN if inner == value else WRITTEN_AGAIN)
        try:
            value = json_value(inner.encode(errors="surrogatepass"), f"{place}, a conversation written as text")
        except UsageError as error:
            of_python = "; this is Python's spelling: write it with json.dumps" * bool(_OF_PYTHON.match(inner))
            raise UsageError(f"{error}{of_python}") from None
    turns = value if isinstance(value, list) else []
    if not has_turns(turns):
        _refuse(place, kind_of(value) + inside(value))
    return [_turn(turn, f"{place}: turn {number}", changes) for number, turn in enumerate(turns, start=1)], changes


def functions(value: object, place: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the schemas of functions that a row holds, and what was changed. None if it holds nothing.

    Raises UsageError, beginning with `place`, where it holds something else.

    >>> functions('[{"name": "clock"}]', "line 1")[0], functions(None, "line 2")
    ([{'name': 'clock'}], ([], []))
    """
    changes = list[str]()
    if isinstance(value, str) and value.strip():
        value = json_value(value.encode(errors="surrogatepass"), f"{place}, functions written as text")
        changes.append(FUNCTIONS_WRITTEN)
    if value is None or value in ("", []) or (isinstance(value, str) and not value.strip()):
        return [], []
    if not isinstance(value, list) or not all(isinstance(_name(schema), str) for schema in value):
        raise UsageError(
            f'{place}: must hold a list of functions, {{"name": ..., "parameters": ...}} each, or such a table under '
            f'"function"; this is {kind_of(value)}'
        )
    kept = _without_nulls(value)
    return kept, changes + [FUNCTION_NULLS] * (kept != value)


def _name(schema: object) -> object:
    own = schema.get("function", schema) if isinstance(schema, dict) else None
    return own.get("name") if isinstance(own, dict) else None


def without_prefill(turns: list[Turn]) -> list[Turn]:
    """Return the turns without a last one of the assistant's."""
    return turns[:-1] if turns[-1]["role"] == "assistant" else turns


def frame(turns: list[Turn], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Write what stands around the question: the system prompt, the beginning of the answer, what turns hold beside
    what they say, and the functions that may be called; "" if there is none of these.
    """
    asked = without_prefill(turns) if turns else []
    around = [turn for turn in asked if turn["role"] in _SYSTEM] + turns[len(asked) :]
    beside = [{key: turn[key] for key in turn if key not in _ASKED} for turn in asked if turn["role"] not in _SYSTEM]
    around += [*filter(None, beside), *tools]
    return json.dumps(around, ensure_ascii=False) if around else ""


_SYSTEM = ("system", "developer")
#: The keys of a turn that say what is asked; ids, names and times do not.
_ASKED = ("role", "content", "tool_calls")


def question(turns: list[Turn]) -> str:
    """Write what a conversation asks, whatever its system prompt and the beginning of its answer: of one turn its text.

    >>> user = {"role": "user", "content": "1 + 1?"}
    >>> question([user]), question([{"role": "system", "content": "Be brief."}, user])
    ('1 + 1?', '1 + 1?')
    """
    asked = [turn for turn in without_prefill(turns) if turn["role"] not in _SYSTEM] or turns
    said = [{key: turn[key] for key in _ASKED if key in turn} for turn in asked]
    alone = len(said) == 1 and not said[0].get("tool_calls")
    return said[0]["content"] if alone else json.dumps(said, ensure_ascii=False)


def inside(value: object) -> str:
    """Say what a list that is no conversation holds, as a message goes on; "" of anything else.

    >>> inside([]), inside([[]]), inside(["1 + 1?"]), inside(3)
    ('; it is empty', '; its first entry is a list', '', '')
    """
    if not isinstance(value, list) or (value and isinstance(value[0], str)):
        return ""
    return f"; its first entry is {kind_of(value[0])}" if value else "; it is empty"


def _refuse(place: str, what: str) -> NoReturn:
    raise UsageError(
        f'{place}: must hold a list of {{"role": ..., "content": ...}}, both text, '
        f"with a turn before the assistant's; this is {what}"
    )


def _turn(turn: Mapping[str, Any], place: str, changes: list[str]) -> Turn:
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str):
        rename = "; rename from and value, and their human and gpt to user and assistant" * ("from" in turn)
        raise UsageError(f'{place}: must have a "role", as text, and a "content"; it has {listed(turn)}{rename}')
    others = {name: entry for name, entry in turn.items() if name not in ("role", "content") and entry is not None}
    if "tool_calls" in others:
        others["tool_calls"] = _calls(others["tool_calls"], place, changes)
    if content is None and others.get("tool_calls"):
        content = ""
    if isinstance(content, list):
        content = _joined(content, place, changes)
    if not isinstance(content, str):
        remedy = "fill it or take the row out" if content is None else "write it as text or take the row out"
        raise UsageError(f"{place} ({brief(role)}): its content is {kind_of(content)}, not text; {remedy}")
    return {"role": role, "content": content, **others}


def _joined(parts: Sequence[Any], place: str, changes: list[str]) -> str:
    texts = list[str]()
    for part in parts:
        own = part if isinstance(part, dict) else {"type": "text", "text": part}
        text, kind = own.get("text"), own.get("type") or "text"
        media = [name for name, entry in own.items() if entry is not None and _MEDIA.search(name)]
        if media or not str(kind).endswith("text"):
            of_text = str(kind).endswith("text")
            what = f"holds a part {f'with {listed(media)}' if of_text else f'of type {brief(kind)}'}"
            raise UsageError(f"{place}: {what}; a text model reads text alone: take the row out")
        if not isinstance(text, str):
            raise UsageError(f"{place}: the text of a part is {kind_of(text)}; fill it or take the row out")
        texts.append(text)
    changes.append(PARTS)
    return "\n".join(texts)


def _calls(calls: object, place: str, changes: list[str]) -> list[dict[str, Any]]:
    if isinstance(calls, str):
        calls = json_value(calls.encode(errors="surrogatepass"), f"{place}: tool_calls")
        changes.append(WRITTEN)
    every = calls if isinstance(calls, list) else [calls]
    functions = [call.get("function", call) if isinstance(call, dict) else call for call in every]
    if every is not calls or not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in functions):
        raise UsageError(f'{place}: tool_calls must be a list of {{"function": {{"name": ..., "arguments": ...}}}}')
    kept = _without_nulls(calls)
    changes += [NULLS] * (kept != calls)
    return kept


def _without_nulls(value: Any) -> Any:
    """Leave out the keys that hold nothing: in a table of an Arrow file every row has the keys of all rows."""
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value
