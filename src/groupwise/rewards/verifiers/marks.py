"""Marks of an answer in a completion, and the words around it, which say that it is so, is not, or is taken back (rules
1, 2 and 6 of docs/reference/answers.md, "Where the final answer is").
"""

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

#: An answer is not longer: characters.
LONGEST_CLAIM = 1_000
#: So far in front of `that is wrong` what is meant is looked for: characters.
_FAR = 300
#: At the beginning of a clause: what stands before it is taken back; on a later line only at that of a sentence.
_WITHDRAWS = (
    r"(?:(?:oh|but|or|and|well|so|no)\b,?\s+)*(?:(?:wait|actually(?!\W*\Z)|correction|(?:scratch|strike) that|h+m+"
    r"|sorry|oops|nope|my (?:mistake|bad)|hold on|recompute|on (?:second (?:thoughts?|look)|reflection|closer|checking)"
    r"|i (?:meant|mis\w+|forgot|was wrong(?!-)|take (?:that|it) back|changed my mind|made an? (?:mistake|error)))\b"
    r"|better:|~~)"
)
#: Such words with the end of what comes before.
_WITHDRAWN = re.compile(
    rf"(?:^(?!actually)|[-.!?,;:…–—(])[\s*_]{{0,9}}{_WITHDRAWS}|[.!?,;…]\s+no[,.:]\s+\w", re.IGNORECASE
)
_WITHDRAWN_LATER = re.compile(rf"(?:^|[.!?…]\s|\n)[\s*_]{{0,9}}{_WITHDRAWS}", re.IGNORECASE)
#: Words that say that something is wrong, which `_another` finds.
_WRONG = re.compile(
    r"\b(?:that|this|it|which|but)(?:(?:['’]s| is| was)? (?:wrong|not (?:right|correct|it|so)|incorrect|false"
    r"|impossible|an? (?:mistake|error)|it is)| can(?:no|['’])t be (?:right|correct|it|so))\b(?! (?:(?:only )?if|to)\b)"
    r"|\bcontradict\w+",
    re.IGNORECASE,
)
#: A text that may be an answer: a formula, a number, a letter that is no article and no pronoun.
_CANDIDATE = re.compile(r"\$[^$\n]+\$|\d+(?:[.,]\d+)*|\b[A-HJ-Z]\b(?!(?<=A)\s+(?!and|or|is|but|looks|seems)[a-z])")
_INSTEAD_OF = re.compile(rf"\b(?:not|instead of|rather than)\s+[($]*?({_CANDIDATE.pattern})")
#: In front of a phrase, in its clause: then it does not say what the answer is.
DOUBTED = re.compile(
    r"(?:n['’]t|\bnot|\bnever|(?<!no )(?<!without )(?<!without a )\bdoubt\w*|\bdeny|\bfalse|\bwrong|\bincorrect"
    r"|\bimpossible|\bunlikely|\bcannot|\bmistake\w*|\bif|\bsuppos\w+|\bassum\w+|\bthought"
    r"|\b(?:might|may|could|would)\s+(?:think|say|guess|believe)|\bwithout(?! (?:a )?doubt\b))\b[^.,;:!?\n]*\Z",
    re.IGNORECASE,
)
#: A line break that follows no blank is one end, as `backwards` asks.
SENTENCE = re.compile(r"\n|(?<=[.!?])(?<![ap]\.m\.)\s+|(?<=[.!?]\$)\s+")
#: Between a number and what stands before it: then the number is not what is stated.
_NEGATED = re.compile(
    r"\b(?:not|never|neither|nor|cannot|without|except|exclud\w+|below|above|beyond|under|half|twice|double|over|nearly)\b"
    r"|n['’]t\b|\b(?:suppos\w+|assum\w+|guess\w*|doubt\w*|wrong|false|incorrect)\b"
    r"|\b(?:less|more|greater|fewer|lower|higher|larger|smaller|other|rather|different) (?:than|from)\b"
    r"|\b(?:instead of|at (?:least|most)|no longer|anything|everything|almost|close to|up to|no (?:less|more))\b"
    r"|\b(?:nobody|exceeds?|unlikely|unknown)\b"
    r"|\b(?:add|room|step|problem|question|page|line|row|section|equation|example|exercise|chapter|figure|case)\s*\(?$"
    r"|\b(?:minus|negative|(?:root|square|cube|logarithm|log|reciprocal|inverse|opposite|factorial|third) of)\s*$",
    re.IGNORECASE,
)
#: A formula between its delimiters.
SPAN = re.compile(r"\$\$[^$]+\$\$|\$(?!\d[\d.,]*\s[A-Za-z ]{3,}\$)[^$\n]+\$|\\\([^\n]+?\\\)|\\\[[^\]]+?\\\]")
_WORDY_ASIDE = re.compile(
    r"[,;]\s+i\.e\b|[,;]\s+(?!or\b|and\b|maybe\b|perhaps\b)(?=[A-Za-z]{2,})(?![A-Z][a-z]+\s\d)"
    r"|\b(?:because|since|as|where|which)\b|\s+and not\b|\s\((?=[A-Za-z]{3,})"
)
#: In front of an answer: words that cannot change it.
SAYS_NOTHING = (
    r"(?:that|equal(?:s| to)|given by|exactly|simply|just|only|indeed|actually|really|therefore|thus|so|hence|then|now"
    r"|clearly|unquestionably|undoubtedly|certainly|definitely|obviously)"
)
_SAYS = re.compile(rf"^(?:{SAYS_NOTHING}\s+|[:\s]+)+", re.IGNORECASE)
_GOES_ON = re.compile(
    r"\s*(?:(?:square |cubic )?units?\b|[.,;:!?)*(]|$|(?:because|since|where|for|as|so|which|when|by|that|if|in)\b)"
)
#: In front of a formula: then it is a part of what is said.
_APPLIED = re.compile(
    r"\b(?:derivative|integral|inverse|product|quotient|difference|reciprocal|negative|square|root|half|third|multiple"
    r"|factor|divisor|opposite|complement|subset|power) of\s*$|\b(?:times|modulo|divided by|multiplied by)\s*$",
    re.IGNORECASE,
)
#: One formula is denied, and another one said.
_NOT_BUT = re.compile(rf"\Anot\s+(?:{SPAN.pattern}),?\s+but\s+")
_ALTERNATIVE = re.compile(r"\s*,?\s*(?:or|and|maybe|perhaps)\b")


def backwards(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Split a text as `pattern.split` does, its end first: most readers need the last part alone.

    pattern  its first alternative is a line break, and another one may hold a line break only behind a blank, a comma
             or a semicolon, so that a part may begin behind any other line break

    >>> list(backwards(SENTENCE, "One. Two,\\nthree.\\nFour! Five"))
    ['Five', 'Four!', 'three.', 'Two,', 'One.']
    """
    end = len(text)
    while end >= 0:
        start = text.rfind("\n", 0, end)
        while start > 0 and (text[start - 1] in ",;" or text[start - 1].isspace()):
            start = text.rfind("\n", 0, start)
        yield from reversed(pattern.split(text[start + 1 : end]))
        end = start


def doubted(before: str) -> bool:
    """Tell whether the clause before a phrase such as `answer is` says that it does not hold.

    >>> doubted("I do not think that the "), doubted("If the "), doubted("It is not 5, so the ")
    (True, True, False)
    """
    # The clause alone is searched. Of the line before it, `might` may belong to `might think`.
    line = before.rfind("\n")
    wrapped = len(before[:line].rstrip()) - len("might") if line >= 0 else 0
    return DOUBTED.search(before, max(wrapped, 1 + max(map(before.rfind, ".,;:!?")))) is not None


def taken_back(claim: str, later: str = "") -> bool:
    """Tell whether what stands behind a phrase, or on later lines, says that it is wrong: it, and not another answer.

    >>> taken_back("18. Wait, that is wrong"), taken_back("18, since 2 * 9 = 18"), taken_back("18.", "Sorry, it is 17.")
    (True, False, True)
    >>> taken_back("C. D looks good but is wrong"), taken_back("C. But that is wrong"), taken_back("18", "17, not 18.")
    (False, True, True)
    """
    if _WITHDRAWN.search(claim) or _WITHDRAWN_LATER.search(later):
        return True
    text, first = f"{claim}\n{later}", _CANDIDATE.search(claim)
    own = first.group() if first else ""
    if first and own in (rejected[1] for rejected in _INSTEAD_OF.finditer(text, first.end())):
        return True
    wrongs = (text[max(0, wrong.start() - _FAR) : wrong.start()] for wrong in _WRONG.finditer(text))
    return any(not _another(before, own) for before in wrongs)


def _another(before: str, own: str) -> bool:
    """Tell whether `that is wrong` behind a text is about another candidate than `own`: one in its sentence, or the
    letter named last.
    """
    named = _CANDIDATE.findall(SENTENCE.split(before)[-1])
    letters = [one for one in _CANDIDATE.findall(before) if one.isalpha()] if own.isalpha() else []
    return own not in named if named else bool(letters) and letters[-1] != own


def statement(text: str) -> str:
    r"""Find what words mark, without the words around it; "" if they deny it.

    >>> statement("$x = 5$, since it is odd."), statement("that $x^2$ holds. So"), statement("not $x$")
    ('$x = 5$', '$x^2$', '')
    >>> statement("$1$ or $2$."), statement("the set $\\{1\\}$ (see above)")
    ('$1$ or $2$.', '$\\{1\\}$')
    """
    first = _NOT_BUT.sub("", text.strip()[:LONGEST_CLAIM])
    spans = list(SPAN.finditer(first))
    ends = (end.start() for end in SENTENCE.finditer(first))
    first = first[: next((end for end in ends if not any(s.start() < end < s.end() for s in spans)), None)]
    spans = [span for span in spans if span.end() <= len(first)]
    before = first[: spans[0].start()] if spans else first
    if spans and _APPLIED.search(before):
        return ""
    if denied(before if spans else _WORDY_ASIDE.split(first, maxsplit=1)[0]):
        return ""
    if not spans:
        return _SAYS.sub("", _WORDY_ASIDE.split(first, maxsplit=1)[0]).lstrip(" *_").rstrip(" *_.")
    behind = first[spans[-1].end() :]
    if len(spans) > 1 and re.match(
        r"[\s,;(]*(?:and\s+)?(?:not|rather than|instead of|for (?:all|any|every)|because|since|where)\b",
        first[spans[0].end() :],
    ):
        return spans[0].group()
    if len(spans) == 1 and (before.strip(" *_") or _GOES_ON.match(behind)) and not _ALTERNATIVE.match(behind):
        return spans[0].group()
    return first


def denied(before: str) -> bool:
    """Tell whether the words before a formula say that it is not so.

    >>> denied("It is not "), denied("It is ")
    (True, False)
    """
    return _NEGATED.search(before) is not None


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
    r"""Find the texts behind answer markers, in order, of the strongest kind that occurs; empty if there is no marker.

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
