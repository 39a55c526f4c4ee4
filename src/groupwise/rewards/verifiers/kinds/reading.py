"""What kind of answer a text is.

    text -> `spelled` -> `read` -> Answer(kind, parts) -> `same.Judge` -> right or wrong

Each reader knows one kind; the first that reads a text has it. A text that none reads is a formula: it is compared
letter by letter, so that nothing in it is overlooked.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from groupwise.rewards.verifiers import formula
from groupwise.rewards.verifiers.kinds import many, relations, sets, signs, values
from groupwise.rewards.verifiers.kinds.answer import Answer, Kind, Read
from groupwise.rewards.verifiers.numerals import measure
from groupwise.rewards.verifiers.spelling import outer, spelled


@lru_cache(maxsize=8192)
def read(text: str) -> Answer:
    r"""The answer that a text is.

    >>> [str(read(text).kind) for text in ("1,000", "x+1", "x + y = 5", "x < 3", r"\{1, 2\}", "(1, 2)", "1, 2")]
    ['number', 'expression', 'equation', 'interval', 'set', 'tuple', 'list']
    >>> [str(read(text).kind) for text in ("11:30 a.m.", r"3 \pmod 5", "2516_8", "(B) 12", "Evelyn", "f'(x)")]
    ['time of day', 'congruence', 'number in a base', 'letter of an option', 'words', 'formula']
    """
    if said := signs.date(text):
        return said
    measured = measure(text)
    if measured is not None:
        name = values.name_of(spelled(outer(text)).rpartition("=")[0]) if measured.name else ""
        letters = (
            str(measured.value)
            if measured.unit is None and not measured.words
            else " ".join(formula.tokens(spelled(text)))
        )
        if name or not measured.name:
            return Answer(Kind.NUMBER, letters, name, number=measured.value, unit=measured.unit, words=measured.words)
    text = spelled(text)
    letters = " ".join(formula.tokens(text))
    if "\\not" in text.replace("\\notin", ""):
        return Answer(Kind.FORMULA, letters)
    for reader in _READERS:
        if answer := reader(text, read):
            return replace(answer, letters=answer.letters or letters)
    return Answer(Kind.FORMULA, letters)


_READERS: tuple[Callable[[str, Read], Answer | None], ...] = (
    signs.letter,
    signs.time_of_day,
    signs.congruence,
    signs.in_a_base,
    sets.set_of,
    sets.matrix,
    many.side_by_side,
    sets.union,
    many.entries_of,
    relations.relation,
    sets.tuple_of,
    many.ratio,
    values.expression,
    values.words_of,
)
