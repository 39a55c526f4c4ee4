"""Tokens that a tokenizer reads in text but that are no text: a text cut at them, or read as if they were words."""

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer

from groupwise.core.errors import UsageError
from groupwise.models.load import reading

#: Stands before a text that follows something else, and is taken off its ids again: a tokenizer may treat the first
#: text of all otherwise, say by a space in front. Code points that no text has a meaning for.
_BORDER = "\ue0f7\ue0f8\ue0f9"


@dataclass(frozen=True)
class Cut:
    """A text as plain texts with control tokens between them: texts[0] controls[0] texts[1] ... texts[-1]."""

    texts: tuple[str, ...]
    controls: tuple[int, ...] = ()

    def __add__(self, other: "Cut") -> "Cut":
        """Join two cut texts: the plain texts where they meet become one.

        >>> Cut(("a", "b"), (7,)) + Cut(("c",))
        Cut(texts=('a', 'bc'), controls=(7,))
        """
        texts = (*self.texts[:-1], self.texts[-1] + other.texts[0], *other.texts[1:])
        return Cut(texts, self.controls + other.controls)


class ControlTokens:
    """The control tokens of a tokenizer: its added tokens, special or not (<|im_end|>, <think>), less white space and
    less those that are words of its model as well.
    """

    def __init__(self, tokenizer: Any, ends: frozenset[int]) -> None:
        """`ends` are the ids that end a completion.

        Raises UsageError for a tokenizer that cannot read a control token's text as text.
        """
        self.tokenizer, self.ends = tokenizer, ends
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise UsageError(
                "the model's tokenizer has no tokenizer.json, so the text of a control token in an observation cannot "
                "be told from the token; use a model with a fast tokenizer"
            )
        added: dict[int, AddedToken] = dict(tokenizer.added_tokens_decoder)
        blank = {i: token for i, token in added.items() if token.content.isspace() and not token.special}
        whole = json.loads(tokenizer.backend_tokenizer.to_str())
        # One with no added tokens but white space, and nothing put around a text.
        nothing = {"truncation": None, "padding": None, "post_processor": None}
        rest = [token for token in whole["added_tokens"] if token["id"] in blank]
        self._plain = Tokenizer.from_str(json.dumps({**whole, **nothing, "added_tokens": rest}))
        self._plain.add_special_tokens([AddedToken(_BORDER, normalized=False)])
        self._blank = {self._plain.token_to_id(token.content): i for i, token in blank.items()}
        self.tokens = {i: token for i, token in added.items() if i not in blank}
        model = whole["model"]
        at = model.get("unk_id")  # a unigram's, whose vocabulary is a list of (piece, score)
        unknown = model.get("unk_token") if at is None else model["vocab"][at][0]
        words = {i for i, t in self.tokens.items() if t.content == unknown and i not in ends}
        words |= {i for i, t in self.tokens.items() if not t.special and self._read(t.content) == [i]}
        self.ids = frozenset(self.tokens) - words
        self._require_readable()

    def cut(self, text: str) -> Cut:
        """Return a text that may hold control tokens, such as a template's, cut at them as the tokenizer does.

        Raises UsageError if the tokenizer cannot read it.
        """
        with reading(""):
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        texts, controls, start = [], [], 0
        for i, (left, right) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            if i in self.ids:
                texts.append(text[start:left])
                controls.append(i)
                start = right
        return Cut((*texts, text[start:]), tuple(controls))

    def ids_of(self, cut: Cut) -> tuple[int, ...]:
        """Return a cut text's ids: its control tokens, and no other control token whatever the plain texts hold.

        Raises UsageError if the tokenizer cannot read it.
        """
        ids: list[int] = []
        before, after = (None, *cut.controls), (*cut.controls, None)
        for text, left, right in zip(cut.texts, before, after, strict=True):
            if left is not None:
                ids.append(left)
                text = text.lstrip() if self.tokens[left].rstrip else text  # such a token takes the space beside it
            ids.extend(self.plain(text.rstrip() if right is not None and self.tokens[right].lstrip else text))
        return tuple(ids)

    def plain(self, text: str) -> list[int]:
        """Return the ids of a text that goes on after others, the text of control tokens read as any other text.

        Raises UsageError if the tokenizer cannot read it.
        """
        return [i for i in self._read(text) if i not in self.ids]

    def _read(self, text: str) -> list[int]:
        with reading(""):
            ids = self._plain.encode(_BORDER + text, add_special_tokens=False).ids
        return [self._blank.get(i, i) for i in ids[1:] if i != ids[0]]

    def _require_readable(self) -> None:
        for i in sorted(self.ids):
            content = self.tokens[i].content
            try:
                missed = self.ids & set(self._read(content))
            except UsageError:
                continue  # a tokenizer that has no such characters cannot read the token from them
            if missed:
                raise UsageError(
                    f"the model's tokenizer reads {content} as a control token even in plain text, so an observation "
                    "could end a turn or speak for the policy; use a model with a byte-level tokenizer"
                )
