"""A tokenizer's first texts, in a process that can be ended: its rules are programs, and come with a model.

What is tried is all that happens to a text before and after the vocabulary, which is large and only looked up. The
standard library and tokenizers only, so that the process starts in a moment.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from groupwise.core.channel import Channel
from groupwise.core.errors import one_line, shortened
from groupwise.core.processes.trial import TOO_LARGE, limit_memory, tried

#: The parts of tokenizer.json that hold rules.
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
#: Characters or ids that may become of one character.
GROWTH = 64
#: Rules that take a time, and give a text, in proportion to the text, wherever they stand; each once in a part.
PLAIN = {
    *("Sequence", "ByteLevel", "Digits", "Split", "Metaspace", "NFC", "Lowercase", "Replace", "Prepend", "Strip"),
    *("Fuse", "ByteFallback", "BPEDecoder", "TemplateProcessing"),
}
#: Regular expressions of groupwise's own tiny models, and of families of models; others are tried.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KNOWN = {r"[\s\S]", f"{_WORDS}|\\p{{N}}|{_REST}", f"{_WORDS}|\\p{{N}}{{1,3}}|{_REST}"}
#: Characters of all rules at most, and of a part beyond which it is tried.
LARGEST, _SHORT = 2**22, 4096
#: Texts: words, what comes in rows and then ends otherwise, and characters of every block.
TEXTS = (
    *("", "A few words: 1 + 1 = 2.\n", "<think>\n\tx = {'a': [1, 2.5]}  # \u00e9\u4e2d\U0001f642\n</think>"),
    *(f"{sign * 64}~" for sign in ("a", "1", " ", "\n", "!", "ab ", "\u00e9", "\u4e2d", "\U0001f642")),
    *("".join(map(chr, range(first, first + 128, 8))) for first in range(0, 0xD800, 128)),
)


def excess(fields: Mapping[str, Any]) -> str:
    """Tell what is wrong with a tokenizer.json whose rules take too much for a few texts; "" for others, also
    those that are no rules.

    Raises RunError if no process can be started.
    """
    parts = {name: fields[name] for name in PARTS if fields.get(name) is not None}
    text = json.dumps(parts)
    if len(text) > LARGEST:
        return f"is {len(text):,} characters long, above {LARGEST:,}"
    return "" if all(map(_is_plain, parts.values())) else _tried(text)


def _is_plain(part: Any) -> bool:
    rules = [rule for rule in _objects(part) if "type" in rule]
    kinds = [str(rule["type"]) for rule in rules if rule["type"] != "Sequence"]
    few = len(set(kinds)) == len(kinds) and len(json.dumps(part)) < _SHORT
    return few and PLAIN.issuperset(kinds) and all(map(_is_proportional, rules))


def _is_proportional(rule: Mapping[str, Any]) -> bool:
    pattern = rule.get("pattern") or {}
    known = pattern.get("Regex") in KNOWN if "Regex" in pattern else True
    texts = [piece["Sequence"] for piece in rule.get("single") or () if isinstance(piece, dict) and "Sequence" in piece]
    once = texts in ([], [{"id": "A", "type_id": 0}])  # there is no second text
    short = len(rule.get("content") or "") <= len(pattern.get("String") or " ") and len(rule.get("prepend") or "") <= 1
    return known and once and short


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(inner)


@lru_cache(maxsize=64)
def _tried(parts: str) -> str:
    return tried(__name__, {"parts": parts}, "the tokenizer")


def main(parent: Channel) -> None:
    """Say that it is ready, then what is wrong with the rules that it is sent."""
    from tokenizers import Tokenizer  # not at the top: whoever loads this module may have no use for it

    limit_memory()
    parent.send({})
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    parts = json.loads(parent.receive()["parts"])
    whole = {"version": "1.0", "added_tokens": [], **parts, "model": model}
    patterns = [rule["pattern"] for rule in _objects(parts) if isinstance(rule.get("pattern"), dict)]
    texts = (*TEXTS, *(str(pattern.get("String", "")) * 16 for pattern in patterns))
    wrong = ""
    try:
        tokenizer = Tokenizer.from_str(json.dumps(whole))
        grown = (size(tokenizer, text) / (len(text) + 16) for text in texts)
        wrong = next((f"makes {many:,.0f} characters or ids of one" for many in grown if many > GROWTH), "")
    except MemoryError:
        wrong = TOO_LARGE
    except Exception:  # what tokenizers refuses, it says where all of the tokenizer is loaded
        pass
    except BaseException as error:  # a panic, which is no Exception
        wrong = f"fails ({shortened(one_line(error), 100)})"
    parent.send({"excess": wrong})


def size(tokenizer: Any, text: str) -> int:
    """Count what becomes of a text: characters that the vocabulary is asked for, ids, or characters that come back."""
    given = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    cut = tokenizer.pre_tokenizer.pre_tokenize_str(given) if tokenizer.pre_tokenizer else [(given, ())]
    pieces = [piece for piece, _ in cut]
    back = tokenizer.decoder.decode(pieces) if tokenizer.decoder else ""
    ids = (tokenizer.encode(text, add_special_tokens=special).ids for special in (True, False))
    return max(sum(map(len, pieces)), *map(len, ids), len(back))
