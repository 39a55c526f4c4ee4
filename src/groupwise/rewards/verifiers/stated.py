"""Number that a text states in words (rules 3 and 4 of docs/reference/answers.md, "Where the final answer is")."""

import re
from fractions import Fraction
from itertools import islice, pairwise

from groupwise.rewards.verifiers.marks import LONGEST_CLAIM, SAYS_NOTHING, SENTENCE, backwards, denied
from groupwise.rewards.verifiers.numerals import SIZES, Number, clean, read, scan, unit

#: Characters at the end of an unmarked completion that are read.
LONGEST_ENDING = 4_000
_SIGN = re.compile(r"(?<![\d)]\s)(?<!\b[A-Za-z]\s)\b(?:minus|negative)\s+(?=[$€£]?\.?\d)", re.IGNORECASE)
CLAUSE = re.compile(r"\n|(?<=[.!?])\s+|[,;]\s+|\bor\b|\band\b", re.IGNORECASE)
#: In brackets behind a number: a factor.
_SIZES = rf"(?:{'|'.join(SIZES)})s?\)"
_ASIDE = re.compile(
    r"[,;]\s+(?!so\b|or\b|and\b|maybe\b|perhaps\b|rem(?:ainder)?\b|[$£€\d-])|\b(?:because|since|if I)\b"
    rf"|\s+and not\b|\s\((?!or\b|{_SIZES})"
    r"|\s+[-–—]\s+(?=[A-Za-z]{2})|\s+(?:and nothing else|without (?:any |a )?doubt)\b"
    r"|\s+[\u2600-\u27bf\U0001f000-\U0001faff]"
)
#: In front of a marked number: words that cannot change it.
_SAYS_SO = re.compile(
    rf"\A(?:[\s:*_]+|not \S+ but\b|(?:{SAYS_NOTHING}|a total of|in total|found to be|about|approximately|still|also"
    r"|the (?:number|integer|value))\b"
    r"|(?:[a-z]*(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|teen|ty|hundred|thousand)"
    r"(?:\s+|-(?=[a-z])))+\(?)*",
    re.IGNORECASE,
)
#: Behind a number: more of what is counted, no other number.
_COUNTED = re.compile(r"(?<=\d)\s+(?:(?:more|fewer)(?=\s+(?!than\b)[a-z]{3,}\W*\Z)|times(?=\W*\Z))")
#: A marked number with its unit, and behind them what cannot change it: a circumstance or a reason without a number.
_BEHIND = re.compile(
    r"(\S+(?:\s+(?!at\b|of\b)[A-Za-z]+){0,3}?)"
    r"((?:\s+(?:of|for|in|per|each|every|from|on|because|since|as|left|to|when|if|where|that|after|during|with|altogether)\b"
    rf"|\s*[(](?!{_SIZES}))[^\d=]*)\Z"
)
# Between two numbers: nothing but what separates the entries of a list, or an "or" anywhere.
_LISTED = re.compile(
    r"[\s,;/|&.()\[\]%$-]*(?:(?:and|to|then|maybe|perhaps|possibly)\b[\s,;:-]*)*|.*(?:\bor\b|\([b-e]\)).*",
    re.IGNORECASE | re.DOTALL,
)
_SAID_TO_BE = re.compile(
    r"[A-Za-z' ]*\b(?:is|are|makes?|earns?|gets?|has|have|equals?|total|answer|year|number|value)\b:?\s+([^A-Za-z].*)",
    re.IGNORECASE,
)
#: Behind a number: then it is not what is stated, or not alone.
_REJECTED = re.compile(
    r"\s+(?:squared|cubed|factorial|(?:less|more|fewer|greater) than [b-z])\b"
    r"|\s+(?:is|are|was)\s+(?:not|too|wrong|incorrect|impossible|no|my (?:first )?guess)\b"
    r"|[\s,]*(?:or|maybe|perhaps)\b|[\s,]*(?:R|r|remainder|rem)\.?\s?\d"
    r"|\s(?:[A-Za-z]+\s){0,2}and (?:an?|one|two|three)[\s-](?:half|halves|thirds?|quarters?|fourths?|fifths?|tenths?)\b"
    r"|\s+(?:(?:is|does|did|was|do|would|will)(?:n['’]t|\s+not)|cannot)\b"
    r"|\s+(?:[A-Za-z]+\s+)?(?:below|above|at most|at least|modulo)\b",
    re.IGNORECASE,
)
#: A letter that is no unit of the number before it, and two terms of which one is such a letter: `x + y`, `2x - 3`.
_LETTER = r"(?:\d+(?:\.\d+)?(?![mglLshCFVWJN]))?[A-Za-z]"
_TERM = rf"(?:{_LETTER}|\d+(?:\.\d+)?)"
#: Behind a calculation: a clause of words that ends with a number, which is what the sentence states.
_LATER = re.compile(r"[,;]\s+([A-Za-z][^,;=]*?[A-Za-z]\s+[$€£-]?\d[\d.]*[^\w=,;]*)\Z")
_UNKNOWN = re.compile(
    rf"(?<![\w'’.])(?:{_LETTER}\s?[-+*/^]\s?{_TERM}|{_TERM}\s?[-+*/^]\s?{_LETTER})(?:\s?[-+*/^]\s?{_TERM})*\s*$"
)
_TIMES = re.compile(r"(?<=\s)[xX](?=\s?[\d.($])|/\s?[mglLsh]\b")
_OPERATORS = "+*/×÷^<>!≤≥"
_ALGEBRA = re.compile(
    r"\d[²³⁴-⁹]|-\s?\(\s?-?\d|(?<![A-Za-z])[A-Za-z]'*\(\d|\\[A-Za-z]|[\^_π√≠≡{}|]|[<>!]\s?=|[<>≤≥]|\d(?![mglLshCFKVWJN]\b)[A-Za-z]\b|\d\s?[a-z]+illion\b|\d\s?(?:hundred|thousand)\b"
)
#: A clause such as `of those who do not ...`, up to the verb of the sentence.
_RELATIVE = re.compile(r"\b(?:who|which|that)\s+\w+(?:\s+not|n['’]t)\s+[A-Za-z]+\b[^\d]*(?=\b(?:is|are|was|were)\s*$)")
_ENDING = re.compile(r"[\s.,;:!?)\]\"'$%°€£*]*")
_NUMERAL = re.compile(r"[+-]?[$£€]?\d[\d,]*(?:\.\d+)?")


def signed(text: str) -> str:
    """Return the text with `minus` and `negative` in front of a number as its sign; between two numbers it is an
    operation.

    >>> signed("It is minus 3, or negative $5: 9 minus 4")
    'It is -3, or -$5: 9 minus 4'
    """
    return _SIGN.sub("-", text) if "minus" in text or "negative" in text else text


def ending(text: str) -> Fraction | None:
    """Return the number that an unmarked completion ends by stating; None if it states none, or lists guesses.

    >>> str(ending("She has 16 eggs, eats 3.\\nSo she earns 9 * 2 = $18 every day. Great!"))
    '18'
    >>> [ending(text) for text in ("16, 17, 18", "it is 16 or 17 or 18", "It is 17. It is 18.", "x = 17\\nx = 18")]
    [None, None, None, None]
    """
    text = signed(clean(text[-LONGEST_ENDING:]))
    last = next(filter(_NUMERAL.search, backwards(SENTENCE, text)), None)
    return None if last is None or _repeats(text) else stated(last)


def stated(sentence: str) -> Fraction | None:
    """Return the number that one sentence states: after its last `=`, its only one, or the one at its end.

    >>> [str(stated(text)) for text in ("So 48+24 = 72 clips.", "He is 18 now.", "After 3 days she has 18.")]
    ['72', '18', '18']
    >>> [stated(text) for text in ("She has 18 in 3 jars", "9 * 2", "from 16 to 18", "the area is 2π")]
    [None, None, None, None]
    """
    number = read(sentence)
    if number is not None:
        return number
    left, equals, text = clean(sentence).rpartition("=")
    numbers = scan(text)
    if not equals and (measured := _measured(text, numbers)) is not None:
        return measured
    if _ALGEBRA.search(text) or (equals and _unknown(left.rpartition("=")[2])):
        return None
    if equals and (left.rstrip()[-1:] in tuple("!<>") or _unequal(left.rpartition("=")[2], text)):
        return None
    if equals and (later := _LATER.search(text)) and text[: later.start()].strip():
        return stated(later.group(1))
    if not equals and text.rstrip("*_ )\"'").endswith("?"):
        return None
    return None if not numbers or listed(text, numbers) else _picked(text, numbers, equals != "")


def _unequal(left: str, right: str) -> bool:
    """Tell whether two sides are whole numbers, and not the same: `6 = 36` states nothing."""
    sides = [read(side) for side in (left, right)] if re.fullmatch(r"[\s$€£\d,]*", left) else []
    return len(set(sides)) == 2 and all(side is not None and side.denominator == 1 for side in sides)


def _measured(text: str, numbers: list[Number]) -> Fraction | None:
    """Return the one number of a sentence, which ends with its unit: also with a quotient or a power of units."""
    if not numbers or _ALGEBRA.search(text[: numbers[0].start]) or unit(text[numbers[0].end :].strip(" .!")) is None:
        return None
    return _picked(text[: numbers[0].end], numbers[:1], after_equals=False)


def listed(text: str, numbers: list[Number]) -> bool:
    """Tell whether two of its numbers that follow each other in a cleaned text are alternatives, or entries of a list.

    >>> [listed(text, scan(text)) for text in ("17 or 18", "16, 17", "After 3 days she has 18")]
    [True, True, False]
    """
    return any(_LISTED.fullmatch(text[number.end : following.start]) for number, following in pairwise(numbers))


def claimed(claim: str, prose: bool = True) -> Fraction | None:
    """Return the number that a marked text gives: the text itself, or what its first clause states.

    prose  whether words mark it: then it may stand in brackets, or behind an equals sign

    >>> [str(claimed(text)) for text in ("$18.", "18, since 9 * 2 = 18 eggs", "that she makes 18 dollars. Done")]
    ['18', '18', '18']
    >>> claimed("16, 17, 18"), claimed("17 or 18"), claimed("not 18"), claimed("18, remainder 1"), claimed("18 BC")
    (None, None, None, None, None)
    >>> str(claimed("gcd(a, b) = 18")), claimed("gcd(a, b) = 18", prose=False)
    ('18', None)
    """
    first = SENTENCE.split(signed(clean(claim.strip())[:LONGEST_CLAIM]), maxsplit=1)[0]
    first = _COUNTED.sub("", _SAYS_SO.sub("", first, count=1)).strip(" []" if prose else " ")
    if first.count("(") < first.count(")"):
        first = first.rstrip(" .)")
    head = _ASIDE.split(first, maxsplit=1)[0]
    if not _NUMERAL.search(head):
        head = first
    if (number := read(head)) is not None:
        return number
    if "=" in head:
        return stated(head) if prose else None
    if _NUMERAL.match(head):
        behind = _BEHIND.match(head)
        return read(behind.group(1)) if behind and not denied(behind.group(2)) else None
    return stated(head) if _SAID_TO_BE.match(head) else None


def _picked(text: str, numbers: list[Number], after_equals: bool) -> Fraction | None:
    """Pick a sentence's only number, the one right behind its equals sign, or the one at its end."""
    several = len({number.value for number in numbers}) > 1
    pick = numbers[0 if several and after_equals else -1]
    apart = text[: pick.start].strip() if after_equals else not _ENDING.fullmatch(text[pick.end :])
    if (several and apart) or _REJECTED.match(text, pick.end):
        return None
    before = next((number.end for number in reversed(numbers) if number.end < pick.start), 0)
    clause = re.split(r"[,;]\s", text[before : pick.start])[-1]
    return None if _calculates(text, pick) or denied(_RELATIVE.sub("", clause)) else pick.value


def _unknown(side: str) -> bool:
    """Tell whether a side of an equation ends in an expression with an unknown: then the other side is no answer.

    >>> _unknown("so x + y "), _unknown("that is 60 x .75 "), _unknown("400 m + 500 m")
    (True, False, False)
    """
    return _UNKNOWN.search(_TIMES.sub("*", side)) is not None or re.fullmatch(r"\s*\d+[A-Za-z]\s*", side) is not None


def _calculates(text: str, pick: Number) -> bool:
    """Tell whether a number is a part of a calculation or a comparison."""
    before, after = text[: pick.start].rstrip(), text[pick.end :]
    if re.search(r"[A-Za-z]{2}", before) and re.fullmatch(r"!+\s*", after):
        return False  # the end of a sentence
    joined = after.lstrip()[:1] in ("-", *_OPERATORS) and not re.match(r"-[A-Za-z]|/[A-Za-z]{2}|\s+-\s", after)
    return joined or before[-1:] in tuple(_OPERATORS)


def _repeats(text: str) -> bool:
    """Tell whether the last two clauses with a number say the same of two different ones. A calculation is no guess."""
    clauses = list(islice(filter(_NUMERAL.search, backwards(CLAUSE, text)), 2))[::-1]
    if len(clauses) < 2 or any(re.search(r"\d[^=]*=", clause) for clause in clauses):
        return False
    shapes = [" ".join(re.findall(r"\w+|#", _NUMERAL.sub("#", clause.lower()))) for clause in clauses]
    return shapes[0] == shapes[1] and clauses[0].strip(" .") != clauses[1].strip(" .")
