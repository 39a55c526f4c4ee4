"""What a completion gives as its final answer, by the rules of docs/answers.md ("Where the final answer is").

`spoken` is rule 1, `claims` rule 2, `ending` rules 3 and 4.
"""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise, zip_longest

from groupwise.rewards.verifiers.numerals import Number, clean, read, scan

#: Of a longer completion the end is read: characters.
LONGEST_COMPLETION = 100_000
#: Of an unmarked completion the end is read: characters.
LONGEST_ENDING = 4_000
#: An answer is not longer: characters.
LONGEST_CLAIM = 1_000
#: More markers than this are not answers: the last ones are read.
_MOST_BOXES = 64

BRACE = re.compile(r"(?<!\\)[{}]")
_ANSWER_TAG = re.compile(r"<answer>([^<]*(?:<(?!/?answer>)[^<]*)*)</answer>", re.IGNORECASE)
_HASHES = re.compile(r"^[ \t]*#### *([^\n]+)$", re.MULTILINE)
_HEADING = re.compile(r"\d{1,3}[.):]\s+[A-Za-z]|[A-Za-z*_]")
_PHRASE = re.compile(r"\banswers?\b[\s*_]{0,4}(?:is|are|was|=|:)[\s*_:]*", re.IGNORECASE)
_SENTENCE = re.compile(r"\n|(?<=[.!?])\s+")
_CLAUSE = re.compile(r"\n|(?<=[.!?])\s+|[,;]\s+|\bor\b|\band\b", re.IGNORECASE)
_ASIDE = re.compile(r"[,;]\s+(?!or\b|and\b|maybe\b|perhaps\b|[$£€\d-])|\b(?:because|since)\b|\s\(")

# Between two numbers: nothing but what separates the entries of a list, or an "or" anywhere.
_LISTED = re.compile(
    r"[\s,;/|&.()\[\]%$-]*(?:(?:and|to|then|maybe|perhaps|possibly)\b[\s,;:-]*)*|.*\bor\b.*", re.IGNORECASE | re.DOTALL
)
_OPERATOR = "+-*/×÷^(<>!≤≥"
_ALGEBRA = re.compile(
    r"\\[A-Za-z]|[\^_π√]|[<>!]\s?=|[<>≤≥]|\d(?![mglLshCFKVWJN]\b)[A-Za-z]\b|\d\s?[a-z]+illion\b|\d\s?(?:hundred|thousand)\b"
)
_ENDING = re.compile(r"[\s.,;:!?)\]\"'$%°€£*]*")
_NUMERAL = re.compile(r"[+-]?[$£€]?\d[\d,]*(?:\.\d+)?")


def spoken(completion: str) -> str:
    """The part of a completion that is read: its end, without its thinking.

    >>> spoken("<think>16? no</think>It is 18."), spoken("<think>16? no")
    ('It is 18.', '')
    """
    text = completion[-LONGEST_COMPLETION:].rpartition("</think>")[2]
    return text.partition("<think>")[0]


def claims(text: str, numeric: bool) -> list[str]:
    r"""What the markers of the highest kind that is present mark, in order; empty where there is no marker.

    numeric  where a `answer is` without a digit ("the answer is below") marks nothing

    >>> claims(r"The answer is 16. So \boxed{17} or \boxed{18}", numeric=True)
    ['17', '18']
    >>> claims("48/2 = 24\n#### 24", numeric=True), claims("The answer is: $18.", numeric=True)
    (['24'], ['$18.'])
    """
    kinds: tuple[Callable[[], list[str]], ...] = (
        lambda: boxed(text),
        lambda: _ANSWER_TAG.findall(text),
        lambda: [claim for claim in _HASHES.findall(text) if not _HEADING.match(claim)],
        lambda: list(_phrases(text, numeric)),
    )
    for kind in kinds:
        marked = [claim.strip() for claim in kind() if claim.strip()]
        if marked:
            return marked
    return []


def boxed(text: str) -> list[str]:
    r"""The insides of every `\boxed{...}` with balanced braces; of nested ones the innermost.

    >>> boxed(r"\boxed{\frac{1}{2}} and \boxed{} and \boxed{3")
    ['\\frac{1}{2}', '']
    """
    starts = [match.end() for match in re.finditer(r"\\f?boxed\s?\{", text)][-_MOST_BOXES:]
    insides = [inside for start in starts if (inside := balanced(text, start)) is not None]
    return [inside for inside in insides if "\\boxed" not in inside]


def balanced(text: str, start: int, longest: int = LONGEST_CLAIM) -> str | None:
    """What an opened brace holds, from `start` on; None where it is not closed within `longest` characters."""
    depth = 1
    for brace in BRACE.finditer(text, start, start + longest):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : brace.start()]
    return None


def ending(text: str) -> Fraction | None:
    """The number that an unmarked completion ends by stating; None where it states none, or lists guesses.

    >>> str(ending("She has 16 eggs, eats 3.\\nSo she earns 9 * 2 = $18 every day. Great!"))
    '18'
    >>> [ending(text) for text in ("16, 17, 18", "it is 16 or 17 or 18", "It is 17. It is 18.", "x = 17\\nx = 18")]
    [None, None, None, None]
    """
    text = clean(text[-LONGEST_ENDING:])
    sentences = [sentence for sentence in _SENTENCE.split(text) if _NUMERAL.search(sentence)]
    return None if not sentences or _repeats(text) else stated(sentences[-1])


def stated(sentence: str) -> Fraction | None:
    """The number that one sentence states: after its last `=`, its only one, or the one at its end.

    >>> [str(stated(text)) for text in ("So 48+24 = 72 clips.", "He is 18 now.", "After 3 days she has 18.")]
    ['72', '18', '18']
    >>> [stated(text) for text in ("She has 18 in 3 jars", "9 * 2", "from 16 to 18", "the area is 2π")]
    [None, None, None, None]
    """
    number = read(sentence)
    if number is not None:
        return number
    _, equals, text = clean(sentence).rpartition("=")
    if _ALGEBRA.search(text):
        return None
    numbers = scan(text)
    return None if not numbers or listed(text) else _picked(text, numbers, equals != "")


def listed(text: str) -> bool:
    """Whether two numbers that follow each other in a cleaned text are alternatives, or entries of a list.

    >>> listed("17 or 18"), listed("16, 17"), listed("After 3 days she has 18")
    (True, True, False)
    """
    return any(_LISTED.fullmatch(text[number.end : following.start]) for number, following in pairwise(scan(text)))


def claimed(claim: str) -> Fraction | None:
    """The number that a marked text gives: the text itself, or what its first clause states.

    >>> [str(claimed(text)) for text in ("$18.", "18, since 9 * 2 = 18 eggs", "that she makes 18 dollars. Done")]
    ['18', '18', '18']
    >>> claimed("16, 17, 18"), claimed("17 or 18")
    (None, None)
    """
    number = read(claim)
    if number is not None:
        return number
    first = _SENTENCE.split(clean(claim.strip())[:LONGEST_CLAIM], maxsplit=1)[0]
    head = _ASIDE.split(first, maxsplit=1)[0]
    return stated(head if _NUMERAL.search(head) else first)


def _picked(text: str, numbers: list[Number], after_equals: bool) -> Fraction | None:
    if len({number.value for number in numbers}) == 1:
        pick = numbers[-1]
    elif after_equals:
        pick = numbers[0]
        if text[: pick.start].strip():
            return None
    else:
        pick = numbers[-1]
        if not _ENDING.fullmatch(text[pick.end :]):
            return None
    return None if _calculates(text, pick) else pick.value


def _calculates(text: str, pick: Number) -> bool:
    before, after = text[: pick.start].rstrip(), text[pick.end :]
    joined = after.lstrip()[:1] in tuple(_OPERATOR.replace("(", "")) and not re.match(
        r"-[A-Za-z]|/[A-Za-z]{2}|\s+-\s", after
    )
    return joined or (before[-1:] in tuple(_OPERATOR.replace("-", "")) and before[-1:] != "(")


def _repeats(text: str) -> bool:
    """Whether the last two clauses with a number say the same of two different ones. A calculation is no guess."""
    clauses = [clause for clause in _CLAUSE.split(text) if _NUMERAL.search(clause)][-2:]
    if len(clauses) < 2 or any(re.search(r"\d[^=]*=", clause) for clause in clauses):
        return False
    shapes = [" ".join(re.findall(r"\w+|#", _NUMERAL.sub("#", clause.lower()))) for clause in clauses]
    return shapes[0] == shapes[1] and clauses[0].strip(" .") != clauses[1].strip(" .")


def _phrases(text: str, numeric: bool) -> Iterator[str]:
    phrases = list(_PHRASE.finditer(text))
    for match, following in zip_longest(phrases, phrases[1:]):
        claim = text[match.end() : following.start() if following else len(text)].lstrip().split("\n", 1)[0]
        if not numeric or re.search(r"\d", claim):
            yield claim
