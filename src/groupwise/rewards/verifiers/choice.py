"""Whether a completion names the letter of the right option, and no other."""

import re
from dataclasses import dataclass
from string import ascii_uppercase

from groupwise.core.errors import UsageError
from groupwise.rewards.verifiers.extract import by_marker, spoken
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
        gold, text = self._alone(answer), spoken(completion)
        for marked in by_marker(text, numeric=False):
            if named := set().union(*(self._claimed(claim.text) for claim in marked)):
                return float(named == {gold})
        plain = untypeset(_BOX.sub(" ", text))
        return float(gold != "" and ({self._alone(plain)} - {""} or self._named(plain)) == {gold})

    def _alone(self, answer: str) -> str:
        letter = untypeset(answer).strip("().:[]* ").upper()
        return letter if len(letter) == 1 and letter in self.letters else ""

    def _claimed(self, text: str) -> set[str]:
        """The letters that a marked text names; of a formula none."""
        plain = untypeset(text)
        if alone := self._alone(plain):
            return {alone}
        first = re.match(rf"\W*([{self.letters}])(?![\w'])\W?", plain)
        if first and _SETTLED.match(plain, first.end(1)) and not _LETTERS.fullmatch(plain, first.end()):
            return {first.group(1)}
        return set() if _FORMULA.search(plain) else self._named(plain)

    def _named(self, plain: str) -> set[str]:
        """The letters that stand alone in a text and are not denied; an article (`A dog`, `I think`) is none."""
        token = re.compile(
            rf"\(([{self.letters}])\)|(?<![\w'])([{self.letters}])(?![\w'+#])(?!(?<=[AI])\s+(?!or\b|and\b|is\b)[a-z])"
        )
        return {
            match.group(1) or match.group(2)
            for match in token.finditer(plain)
            if not _DENIED.search(plain, max(0, match.start() - 60), match.start())
            and not _DENIES.match(plain, match.end())
        }


_BOX = re.compile(r"\\f?box(?:ed)?\s?\{(?:[^{}]|\{[^{}]*\})*\}")
#: What stands behind a letter that is settled: the end of its mark, or a reason.
_SETTLED = re.compile(r"\)?[.:)\]](?!\w)|\)?\s*(?:\(|$|\n|[-–—]\s|,?\s+(?:because|since|as|is|not|which)\b)")
_LETTERS = re.compile(r"[\W_]*(?:[A-Z](?![\w'])[\W_]*|(?:and|or)[\W_]+)+")
_FORMULA = re.compile(r"[=^_\\<>+*/]|\d\.\d")
_DENIED = re.compile(
    r"(?:\bnot|\bcannot|n't|n’t|\bnor|\bneither|\bexcept|\bnever|\bthan|\banything but|\bno longer)\s+"
    r"(?:think\s+(?:that\s+)?(?:it(?:['’]s|\s+is)|the\s+(?:right\s+|correct\s+)?answer\s+is)\s+)?"
    r"(?:option\s+|choice\s+|answer\s+|be\s+)?\(?\Z",
    re.IGNORECASE,
)
_DENIES = re.compile(r"\)?\s+(?:is|was|are)\s*(?:n't|n’t|\snot|\swrong|\sincorrect|\sfalse|\sout\b)|\)?\s+cannot\b")
