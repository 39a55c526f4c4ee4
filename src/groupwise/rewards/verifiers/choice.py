"""Whether a completion names the letter of the right option, and no other."""

import re
from dataclasses import dataclass
from string import ascii_uppercase

from groupwise.core.errors import UsageError
from groupwise.rewards.verifiers.marks import by_marker, spoken
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
        """Whether the answer is one of the letters, bare or in brackets."""
        return self._alone(answer) != ""

    def __call__(self, completion: str, answer: str) -> float:
        gold, text, phrases = self._alone(answer), spoken(completion), False
        for marked in by_marker(text, numeric=False):
            if named := set().union(*(self._claimed(claim.text) for claim in marked)):
                return float(named == {gold})
            phrases = marked[-1].prose
        plain = untypeset(_BOX.sub(" ", text)).strip()
        last = self._alone(plain.rpartition("\n")[2])
        named = {last} if last else set[str]() if phrases else self._named(plain)
        return float(gold != "" and named == {gold})

    def _alone(self, answer: str) -> str:
        letter = untypeset(answer).strip("().:[]*<>`_ ").upper()
        letter = letter[1:-1] if letter[:1] in tuple("'\"‘“") else letter
        return letter if len(letter) == 1 and letter in self.letters else ""

    def _claimed(self, text: str) -> set[str]:
        """The letters that a marked text names; of a formula none."""
        plain = untypeset(text)
        if alone := self._alone(plain):
            return {alone}
        start = _SAYS_SO.match(plain)
        plain = plain[start.end() :] if start else plain
        first = re.match(rf"\W*([{self.letters}])(?![\w'])\W?", plain)
        if first and _SETTLED.match(plain, first.end(1)) and not _LETTERS.fullmatch(plain, first.end()):
            return {first.group(1)}
        if _FORMULA.search(plain) or re.search(r"\d\s*[A-Z]\b", plain):
            return set()
        return self._in(plain) if first or _SAID_TO_BE.match(plain) else set()

    def _named(self, plain: str) -> set[str]:
        """The letters that an unmarked text names: at the beginning of a line, or behind a word for an option."""
        letter = rf"\(?[{self.letters}]\)?(?![\w'+#])"
        several = (
            rf"({letter}(?:(?:\s*[,/]\s*|\s*(?:,\s*)?(?:or|and)\s+|(?<=\))\s*(?=\()){letter})*)"
            rf"(?!\s*[=^+*/<>?])(?!\s+{_DENIES})"
        )
        begun = rf"^(?:[^\w\n]|_){{0,20}}(?:option\s+|choice\s+)?{several}(?:{_NAMES})"
        chains = re.finditer(rf"{_CUES}{several}(?!\s+\S*\d)|{begun}", plain, re.MULTILINE | re.IGNORECASE)
        named = [(chain.group(1) or chain.group(2), chain.start(1 if chain.group(1) else 2)) for chain in chains]
        said = [chain for chain, at in named if not _DENIED.search(plain, max(0, at - 60), at)]
        return set().union(*(self._in(chain) for chain in said))

    def _in(self, plain: str) -> set[str]:
        """The letters that stand alone in a text and are not denied; an article (`A dog`, `I think`) is none."""
        token = re.compile(
            rf"\(([{self.letters}])\)|(?<![\w'])([{self.letters}])(?![\w'+#])(?!(?<=[AI])\s+(?!or\b|and\b|is\b)[a-z])"
        )
        return {
            match.group(1) or match.group(2)
            for match in token.finditer(plain)
            if not _DENIED.search(plain, max(0, match.start() - 60), match.start())
            and not re.match(rf"\)?\s+{_DENIES}", plain[match.end() :])
        }


#: In front of a letter: then it is an option.
_CUES = (
    r"\b(?:(?:option|choice|answer|choose|chose|pick|select|is|be|with|only)(?:\s+is)?|(?<=['’])s"
    r"|(?:so|thus|hence|therefore)(?=,?\s+\S{1,4}\.?$))[,:]?\s+(?:[-–—]\s+)?[\"'*]*"
)
#: Behind a letter at the beginning of a line: then it is an option.
_NAMES = r"[.:)\]!](?!\w)|(?<=\))|\s*$|\s+[-–—]\s|,?\s+(?:because|since|as)\b|,?\s+(?:is|are)\s+(?:right|correct|the)\b"
_SAYS_SO = re.compile(
    r"(?:\W*(?:option|choice|answer|letter|clearly|therefore|definitely|simply|just|indeed|certainly|obviously|that)\b)*\W*",
    re.IGNORECASE,
)
_SAID_TO_BE = re.compile(
    r"(?:it|this|the (?:right|correct|best)? ?(?:one|option|choice|answer))(?:['’]s| is| must be)\b", re.IGNORECASE
)
_BOX = re.compile(r"\\f?box(?:ed)?\s?\{(?:[^{}]|\{[^{}]*\})*\}")
#: What stands behind a letter that is settled: the end of its mark, or a reason.
_SETTLED = re.compile(
    r"[*_]*\)?[.:)\]](?!\w)|\)?\s*(?:(?<=\s)\(|$|\n|[-–—]\s|!|['\"’”]|,?\s+(?:because|since|as|is|not|which)\b)"
)
_LETTERS = re.compile(r"[\W_]*(?:[A-Z](?![\w'])[\W_]*|(?:and|or)[\W_]+)+")
_FORMULA = re.compile(r"[=^_\\<>+*/]|\d\.\d")
_DENIED = re.compile(
    r"(?:\bnot|\bcannot|n't|n’t|\bnor|\bneither|\bexcept|\bnever|\bthan|\banything but|\bno longer)\s+"
    r"(?:think\s+(?:that\s+)?(?:it(?:['’]s|\s+is)|the\s+(?:right\s+|correct\s+)?answer\s+is)\s+)?"
    r"(?:option\s+|choice\s+|answer\s+|be\s+)?\(?\Z",
    re.IGNORECASE,
)
_DENIES = (
    r"(?:(?:is|was|are|were)\s*(?:n't|n’t|\bnot\b|\bwrong|\bincorrect|\bfalse|\bout\b|\bimpossible)"
    r"|cannot\b|(?:can|may|could)\s+be\b)"
)
