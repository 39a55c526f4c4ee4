"""The text of single tokens."""

from collections.abc import Sequence
from typing import Any

#: How tokenizers of the sentencepiece kind mark a space in front of a word; decoding one word alone loses it.
SPACE = "▁"


class Spelling:
    """Ids to the text of each, special ones as they are written. An id is decoded once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        for token in set(tokens) - self._known.keys():
            self._known[token] = self._spell(token)
        return [self._known[token] for token in tokens]

    def _spell(self, token: int) -> str:
        """A token of no text, such as an id beyond the vocabulary, is shown as its number."""
        text = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if not text:
            return f"<{token}>"
        name = self._tokenizer.convert_ids_to_tokens(token)
        spaced = isinstance(name, str) and name.startswith(SPACE) and not text.startswith(" ")
        return f" {text}" if spaced else text
