"""The marks of an answer in a completion (rules 1 and 2 of docs/answers.md, "Where the final answer is")."""

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from groupwise.rewards.verifiers.wording import LONGEST_CLAIM, SENTENCE, doubted, taken_back

#: Characters at the end of a longer completion that are read.
LONGEST_COMPLETION = 100_000
#: More markers than this are not answers: the last ones are read.
_MOST_BOXES = 64
#: So far in front of a phrase a doubt is looked for: characters.
_CLAUSE_LENGTH = 120
BRACE = re.compile(r"(?<!\\)[{}]")
_ANSWER_TAG = re.compile(r"<answer>([^<]*(?:<(?!/?answer>)[^<]*)*)</answer>", re.IGNORECASE)
_HASHES = re.compile(r"^[ \t]*#### *([^\n]+)$", re.MULTILINE)
_HEADING = re.compile(r"\d{1,3}[.):]\s+[A-Za-z]|[*_]|[A-Za-z]{2}")
#: It begins with one of two letters, which is found several times as fast as a letter in either case.
_PHRASE = re.compile(
    r"[Aa](?<!\w[Aa])(?i:ns|nswers?)\b\.?[\s*_\"]{0,4}(?:(?i:is|are|was)\b(?!(?i:n)['’](?i:t))|=|:)[\s*_:]*"
)
#: At the beginning of what a phrase marks: then it says what the answer is not.
_DENIED = re.compile(r"(?:not|never)\b(?!.*\bbut\b)")
#: The beginning of a later text that may be an answer.
_NEXT = re.compile(r"\d|\$|\\|\b[B-HJ-Z]\b")
#: The rest of a phrase if another begins behind it: `Final Answer: The final answer is`.
_LEAD = re.compile(r"\W*(?:(?:so|thus|hence|therefore|the|my|our|final|correct)\W*)*", re.IGNORECASE)


def spoken(completion: str) -> str:
    """Cut a completion to the part that is read: its end, without its thinking.

    >>> spoken("<think>16? no</think>It is 18."), spoken("<think>16? no")
    ('It is 18.', '')
    >>> spoken("It is 18. <think>Or 16?")
    ''
    """
    text = completion.rpartition("</think>")[2]
    return "" if "<think>" in text else text[-LONGEST_COMPLETION:]


class Claim(NamedTuple):
    """A text that a marker marks as the answer.

    prose  whether words mark it, and words may go on behind it
    later  what stands on the lines below it, up to the next one
    """

    text: str
    prose: bool = False
    later: str = ""


def claims(text: str, numeric: bool) -> list[Claim]:
    r"""Find what the markers of the highest kind that is present mark, in order; empty if there is no marker.

    numeric  whether an `answer is` without a digit ("the answer is below") marks nothing

    >>> [claim.text for claim in claims(r"The answer is 16. So \boxed{17} or \boxed{18}", numeric=True)]
    ['17', '18']
    >>> claims("48/2 = 24\n#### 24", numeric=True), claims("The answer is: $18.", numeric=True)
    ([Claim(text='24', prose=False, later='')], [Claim(text='$18.', prose=True, later='')])
    """
    return next(by_marker(text, numeric), [])


def by_marker(text: str, numeric: bool) -> Iterator[list[Claim]]:
    """Find what the markers of each kind that is present mark, the highest kind first."""
    for sign, find in (("box", boxed), ("</", _ANSWER_TAG.findall), ("####", _hashed)):
        if sign in text and (marked := [Claim(claim.strip()) for claim in find(text) if claim.strip()]):
            yield marked
    if marked := list(_phrases(text, numeric)):
        yield marked


def _hashed(text: str) -> list[str]:
    """Find what stands behind `####`, but for headings: those begin as one, and text follows."""
    marks = _HASHES.finditer(text)
    return [mark.group(1) for mark in marks if not (_HEADING.match(mark.group(1)) and text[mark.end() :].strip())]


def boxed(text: str) -> list[str]:
    r"""Find the insides of every `\boxed{...}` with balanced braces; of nested ones the innermost.

    >>> boxed(r"\boxed{\frac{1}{2}} and \boxed{} and \boxed{3")
    ['\\frac{1}{2}', '']
    """
    starts = [match.end() for match in re.finditer(r"\\f?box(?:ed)?\s?\{", text)][-_MOST_BOXES:]
    insides = [inside for start in starts if (inside := balanced(text, start)) is not None]
    return [inside for inside in insides if "\\boxed" not in inside]


def balanced(text: str, start: int, longest: int = LONGEST_CLAIM) -> str | None:
    """Find what an opened brace holds, from `start` on; None if it is not closed within `longest` characters."""
    depth = 1
    for brace in BRACE.finditer(text, start, start + longest):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : brace.start()]
    return None


def _phrases(text: str, numeric: bool) -> Iterator[Claim]:
    """Find what phrases mark; "?", which is no answer, for one taken back, or denied where nothing comes later."""
    phrases, last = list(_PHRASE.finditer(text)), 0
    for match, following in zip_longest(phrases, phrases[1:]):
        claim, _, later = text[match.end() : following.start() if following else len(text)].strip().partition("\n")
        before, last = max(last, match.start() - _CLAUSE_LENGTH), match.end()
        if '"' in match.group():  # JSON
            claim = claim.strip('" },')
        if not claim or (numeric and not re.search(r"\d", claim)):
            continue
        if taken_back(claim, later):
            yield Claim("?", prose=True)
        elif doubted(text[before : match.start()]) or _DENIED.match(claim):
            behind = SENTENCE.split(claim, maxsplit=1)[1:]
            if not following and not _NEXT.search("".join(behind) + later):
                yield Claim("?", prose=True)
        elif not (following and _LEAD.fullmatch(claim)):
            yield Claim(claim.strip(), True, later)
