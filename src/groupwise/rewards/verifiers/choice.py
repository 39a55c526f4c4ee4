"""Checker of multiple choice: a completion names the letter of the right option, and no other."""

import re
from dataclasses import dataclass
from string import ascii_uppercase

from groupwise.core.errors import UsageError
from groupwise.rewards.verifiers.marks import SAYS_NOTHING, Claim, by_marker, spoken
from groupwise.rewards.verifiers.spelling import untypeset


@dataclass(frozen=True)
class Choice:
    r"""Multiple choice: the one letter that the completion names is the gold one. Naming several is wrong.

    letters  the letters that exist

    >>> [Choice()(text, "B") for text in ("(B)", "B. Paris", "A is wrong. The answer is B", r"\boxed{\text{B}}")]
    [1.0, 1.0, 1.0, 1.0]
    >>> [Choice()(text, "B") for text in ("A or B", "A, B, C", "The answer is A or B", "The answer is not B", "C")]
    [0.0, 0.0, 0.0, 0.0, 0.0]
    >>> Choice()("The answer is B. Note that A is close.", "B"), Choice()(r"\boxed{\Delta E} Answer: B", "B")
    (1.0, 1.0)
    """

    letters: str = ascii_uppercase
    quick = True

    def __post_init__(self) -> None:
        if not (self.letters.isascii() and self.letters.isalpha() and self.letters.isupper()):
            raise UsageError(f"letters must be capital letters such as 'ABCD', not {self.letters!r}")

    def readable(self, answer: str) -> bool:
        """Tell whether the answer is one of the letters, bare or in brackets."""
        return self.letter(answer) != ""

    def __call__(self, completion: str, answer: str) -> float:
        gold, text, phrases = self.letter(answer), spoken(completion), False
        for marked in by_marker(text, numeric=False):
            if named := set().union(*map(self._claimed, marked)):
                return float(named == {gold})
            phrases = marked[-1].prose
        plain = untypeset(_BOX.sub(" ", text)).strip()
        last = self.letter(plain.rpartition("\n")[2])
        named = {last} if last else set[str]() if phrases else self._named(plain)
        return float(gold != "" and named == {gold})

    def letter(self, answer: str) -> str:
        """Read the letter that a text is, bare or in brackets; "" if it is none."""
        letter = untypeset(answer).strip("().:[]*<>`_ ").upper()
        letter = letter[1:-1] if letter[:1] in tuple("'\"‘“") else letter
        return letter if len(letter) == 1 and letter in self.letters else ""

    def _claimed(self, claim: Claim) -> set[str]:
        """Find the letters that a claim names, and those that the text behind it names instead; of a formula none."""
        plain = untypeset(claim.text)
        if alone := self.letter(plain):
            return {alone} | self._instead(untypeset(claim.later))
        start = _SAYS_SO.match(plain)
        plain = plain[start.end() :] if start else plain
        first = re.match(rf"\W*([{self.letters}])(?![\w'])\W?", plain)
        if first and _SETTLED.match(plain, first.end(1)) and not _LETTERS.fullmatch(plain, first.end()):
            return {first.group(1)} | self._instead(f"{plain[first.end(1) :]}\n{untypeset(claim.later)}")
        if _FORMULA.search(plain) or re.search(r"\d\s*[A-Z]\b", plain):
            return set()
        return self._in(plain) if first or _SAID_TO_BE.match(plain) else set()

    def _instead(self, behind: str) -> set[str]:
        """Find the letters that a text behind an answer puts in its place. If it calls several right, they explain what
        is false, and none of them counts.
        """
        turns, right = re.finditer(rf"{_TURNS_TO}{self._letter}(?={_SETTLES})", behind), self._right(behind)
        turned = {turn[1] for turn in turns if not _supposed(behind, turn.start())}
        return turned | right if len(right) == 1 else turned

    def _named(self, plain: str) -> set[str]:
        """Find the letters that an unmarked text names: at the start of a line, behind a word for one, or as right."""
        several = rf"{self._several}(?!\s*[=^+*/<>?])(?!\s+{_DENIES})"
        begun = rf"^(?:[^\w\n]|_){{0,20}}(?:(?:option|choice|definitely|clearly|obviously)\s+)?{several}(?:{_NAMES})"
        chains = re.finditer(rf"{_CUES}{several}(?!\s+\S*\d)|{begun}", plain, re.MULTILINE | re.IGNORECASE)
        named = [(chain[1] or chain[2], chain.start(1 if chain[1] else 2)) for chain in chains]
        return self._right(plain).union(*(self._in(chain) for chain, at in named if not _denied(plain, at)))

    def _right(self, plain: str) -> set[str]:
        """Find the letters of which a text says that they are right, and does not only suppose so."""
        found = re.finditer(rf"(?<![\w'(.]){self._several}{_RIGHT}", plain)
        return set().union(*(self._in(one[1]) for one in found if not _supposed(plain, one.start())))

    def _in(self, plain: str) -> set[str]:
        """Find the letters that stand alone in a text and are not denied."""
        return {
            match[1]
            for match in re.finditer(rf"(?<![\w']){self._letter}", plain)
            if not _denied(plain, match.start()) and not re.match(rf"\)?\s+{_DENIES}", plain[match.end(1) :])
        }

    @property
    def _letter(self) -> str:
        """Pattern of a letter, in brackets or not; an article or a pronoun (`A dog`, `I think`) is none."""
        return rf"\(?([{self.letters}])\)?(?![\w'+#])(?!(?<=[AI])\s+(?!or\b|and\b|is\b)[a-z])"

    @property
    def _several(self) -> str:
        """Pattern of one letter or more, with commas or words between them."""
        one = rf"\(?[{self.letters}]\)?(?![\w'+#])"
        return rf"({one}(?:(?:\s*[,/]\s*|\s*(?:,\s*)?(?:or|and)\s+|(?<=\))\s*(?=\()){one}){{0,9}})"


def _denied(plain: str, at: int) -> bool:
    return _DENIED.search(plain, max(0, at - 60), at) is not None


def _supposed(plain: str, at: int) -> bool:
    """Tell whether the clause in front of a letter supposes it and does not state it: `if B`, `some might say B`."""
    return _SUPPOSED.search(plain, max(0, at - 80), at) is not None


#: In front of a letter, behind an answer: then the letter takes its place.
_TURNS_TO = (
    r"(?i:(?:\b(?:it|that|this|answer|one|option|choice)"
    r"(?:['’]s|\s+(?:is|was|(?:must|should|has\s+to|would|(?:could|may|might)\s+also)\s+be))"
    r"|\bI(?:['’](?:d|ll))?\s+(?:now\s+|will\s+|would\s+)?(?:choose|chose|pick|select|mean|meant|go\s+with)"
    r"|\b(?:change|switch)\b[^.\n]{0,20}\bto|\b(?:so|hence|thus|therefore),?"
    r"|(?:^|[.;!?\n])\s{0,9}(?:or|rather|instead)(?:\s+\w+){0,2},?)"
    r"\s+(?:actually\s+|really\s+|rather\s+)?(?:option\s+|choice\s+|letter\s+)?)"
)
#: Behind such a letter: an end, or a reason.
_SETTLES = r"\)?\s*(?:[.,;:!?)\n]|$|(?:because|since|as|and|not|which|that)\b)"
#: Behind a letter: then it is right.
_RIGHT = (
    r"\)?,?\s+(?:is|was|are|were)\s+(?:(?:actually|really|in fact|indeed|also|both)\s+)*"
    r"(?:right|correct|better|the\s+(?:answer|(?:(?:right|correct|best|better|true|actual|only)\b)))(?! (?:only )?if)"
)
#: In front of a letter, in its clause: then it is only thought of.
_SUPPOSED = re.compile(
    r"(?:\b(?:if|whether|unless|might|may|could|not|never|mistake|tempt\w+|think|thought|say|claim\w*"
    r"|suppos\w+|assum\w+|nobody|no one|doubt\w*)|n['’]t)\b[^.;:!?\n]*\Z",
    re.IGNORECASE,
)
#: In front of a letter: then it is an option.
_CUES = (
    r"\b(?:(?:option|choice|answer|choose|chose|pick|select|is|be|with|only|also|leaves|(?:response|solution)(?=:))"
    r"(?:\s+is)?(?:\s+letter)?|(?<=['’])s"
    r"|(?:so|thus|hence|therefore)(?=,?\s+\S{1,4}\.?$))[,:]?\s+(?:[-–—]\s+)?[\"'*]*"
)
#: Behind a letter at the beginning of a line: then it is an option.
_NAMES = (
    r"[.:)\]!](?!\w)|(?<=\))|\s*$|\s+[-–—]\s|,?\s+(?:because|since|as)\b"
    r"|(?:\s+\([^()\n]*\)|,?\s+(?:obviously|clearly|of course|it is))\W*$"
)
_SAYS_SO = re.compile(rf"(?:\W*(?:option|choice|answer|letter|{SAYS_NOTHING})\b)*\W*", re.IGNORECASE)
_SAID_TO_BE = re.compile(
    r"(?:it|this|the (?:right|correct|best)? ?(?:one|option|choice|answer))(?:['’]s| is| must be)\b", re.IGNORECASE
)
_BOX = re.compile(r"\\f?box(?:ed)?\s?\{(?:[^{}]|\{[^{}]*\})*\}")
#: The text behind a letter that is settled: the end of its mark, or a reason.
_SETTLED = re.compile(
    r"[*_]*\)?[.:;)\]](?!\w)|\)?\s*(?:(?<=\s)\(|$|\n|[-–—]\s|!|['\"’”]|,?\s+(?:because|since|as|is|not|which)\b)"
)
_LETTERS = re.compile(r"[\W_]*(?:[A-Z](?![\w'])[\W_]*|(?:and|or)[\W_]+)+")
_FORMULA = re.compile(r"[=^_\\<>+*/]|\d\.\d")
_DENIED = re.compile(
    r"(?:\bnot|\bcannot|n't|n’t|\bnor|\bneither|\bexcept|\bnever|\bthan|\banything but|\bno longer)\s+"
    r"(?:think\s+(?:that\s+)?(?:it(?:['’]s|\s+is)|the\s+(?:right\s+|correct\s+)?answer\s+is)\s+)?"
    r"(?:option\s+|choice\s+|answer\s+|be\s+)?\(?\Z|\b(?:nobody|no one|doubt\w*)\b[^.;:!?\n]*\Z",
    re.IGNORECASE,
)
_DENIES = (
    r"(?:(?:is|was|are|were)\s*(?:n't|n’t|\bnot\b|\bwrong|\bincorrect|\bfalse|\bout\b|\bimpossible)"
    r"|cannot\b|(?:can|may|could)\s+be\b)"
)
