"""Stop strings: which sampled token completes one, exactly in ids, whatever the split of the text into tokens.

The text of a completion is what rewards see: its ids decoded together. A token completes a stop string where the text
with it holds one that ends in what the token brought. Decoding a row at every step would cost more than a small model,
so two questions come first, each of which may only err by yes: can this id complete one at all (asked once for each
id), and does it in the text of the last few tokens?
"""

from collections.abc import Callable, Sequence

from groupwise.core.errors import UsageError
from groupwise.models.load import Policy, text_ids

Decode = Callable[[tuple[int, ...]], str]

#: What part of a character decodes to.
PARTIAL = "\ufffd"
#: Tokens that the last few have beyond the bytes of the longest stop string: their first ones may be cut characters.
MARGIN = 8


class StopStrings:
    """The stop strings of a sampling, for a tokenizer that `decode` stands for.

    >>> stops = StopStrings(("ab", "c"), decode=lambda ids: "".join(map(chr, ids)))
    >>> [stops.completed(tuple(map(ord, text))) for text in ("xab", "abx", "xa", "xc")]
    ['ab', '', '', 'c']
    """

    def __init__(self, texts: Sequence[str], decode: Decode) -> None:
        self.texts, self._decode = tuple(texts), decode
        self._reach = max(len(text.encode()) for text in texts) + MARGIN
        self._can_complete: dict[int, bool] = {}
        self._silent: set[int] = set()

    def rows(self, tokens: Sequence[int]) -> list[int]:
        """Tell which of the tokens can complete a stop string, by their place."""
        known = self._can_complete
        for token in set(tokens) - known.keys():
            known[token] = self._look_at(token)
        return [row for row, token in enumerate(tokens) if known[token]]

    def completed(self, tokens: tuple[int, ...]) -> str:
        """Return the stop string that the last of a completion's tokens completes, the first to end; "" for none."""
        spelled = tuple(token for token in tokens if token not in self._silent)[-self._reach :]
        return self._completed_in(tokens) if self._completed_in(spelled) else ""

    def _completed_in(self, tokens: tuple[int, ...]) -> str:
        before, text = self._decode(tokens[:-1]), self._decode(tokens)
        new = _common(before, text)  # what is before it stays as it was
        begin = {stop: text.find(stop, max(0, new - len(stop) + 1)) for stop in self.texts}
        ends = {stop: at + len(stop) for stop, at in begin.items() if at >= 0}
        return min(ends, key=ends.__getitem__, default="")

    def _look_at(self, token: int) -> bool:
        """Tell whether the token can complete a stop string, after whatever text."""
        alone, twice = self._decode((token,)), self._decode((token, token))
        later = twice[len(alone) :]  # a tokenizer may leave out a space at a text's beginning
        if not alone and not later:
            self._silent.add(token)
        return any(_can_end(stop, text) for stop in self.texts for text in (alone, later))


def require_spelled(policy: Policy, texts: Sequence[str]) -> None:
    """Raise UsageError for a stop string that no completion's text can hold, such as a special token's."""
    for text in texts:
        ids = tuple(text_ids(policy.tokenizer, [text], f"stop = {text!r}: ")[0])
        if text not in policy.decode(ids * 2):  # twice: a space at a text's beginning may be left out
            special = [i for i in ids if not policy.decode((i,)) and i != policy.tokenizer.unk_token_id]
            remedy = f"it is special: set stop_ids = {special}" if special else "take it out"
            raise UsageError(f"stop = {text!r}: no text of this model's tokens can hold it; {remedy}")


def _common(one: str, other: str) -> int:
    places = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in places if a != b), min(len(one), len(other)))


def _can_end(stop: str, text: str) -> bool:
    """Tell whether what a token brings can end the stop string: it holds it, or begins with its end."""
    if PARTIAL in text and not stop.isascii():
        return True
    return stop in text or any(text.startswith(stop[-size:]) for size in range(1, min(len(stop), len(text)) + 1))
