"""Which kinds the gold answers of a data set have, and which verdicts of them are not safe."""

from collections import Counter
from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from groupwise.commands.check.findings import Finding, listed, note, ok
from groupwise.core.samples import Sample
from groupwise.core.task import Task
from groupwise.rewards.verifiers.answers import gold_answer
from groupwise.rewards.verifiers.choice import Choice
from groupwise.rewards.verifiers.kinds.answer import Answer, Kind
from groupwise.rewards.verifiers.symbolic import parsed

#: Words that can be an answer; of more, another wording is as right.
MOST_WORDS = 4


def kinds(task: Task, samples: Sequence[Sample]) -> Iterator[Finding]:
    """Tell the kinds of gold answers that are compared by mathematics, and those that no verdict is safe for; for
    options their letters.
    """
    if getattr(task, "check", "") == "choice":
        letters = [letter for sample in samples if (letter := Choice().letter(sample.answer))]
        yield from _options(letters, getattr(task, "letters", ascii_uppercase))
    if getattr(task, "check", "") != "math":
        return
    golds = [(sample, gold) for sample in samples if (gold := gold_answer(sample.answer)) is not None]
    counts = Counter(gold.kind for _, gold in golds)
    yield ok(f"kinds of gold answers: {', '.join(f'{count:,} {kind}' for kind, count in counts.most_common())}")
    unsafe = [sample for sample, gold in golds if not safe(gold)]
    if unsafe:
        what = f"{len(unsafe):,} of {len(golds):,} gold answers are compared letter by letter"
        why = "a right answer in another form scores 0"
        yield note(f"{what}, so {why}: {listed([f'{s.key} {_short(s.answer)}' for s in unsafe])}")


def _options(golds: Sequence[str], letters: str) -> Iterator[Finding]:
    """How often each letter is right, and the setting that takes no others for options."""
    counts = Counter(golds)
    yield ok(f"gold letters: {', '.join(f'{counts[letter]:,} {letter}' for letter in sorted(counts))}")
    if counts and letters == ascii_uppercase:
        options = ascii_uppercase[: ascii_uppercase.index(max(counts)) + 1]
        yield note(
            f"any capital letter may be an option: letters = {options!r} under [task] takes no other for one; name all "
            f"options that the problems have, also one that is never right"
        )


def safe(gold: Answer) -> bool:
    """Whether another form of a gold answer is recognised: it is no formula that cannot be read, and no sentence.

    >>> from groupwise.rewards.verifiers.kinds.reading import read
    >>> [safe(read(text)) for text in ("5", "x+1", "(1, x)", "Evelyn", "f'(x)", "1/2x", "(1, f')")]
    [True, True, True, True, False, False, False]
    """
    if gold.kind is Kind.FORMULA:
        return False
    if gold.kind is Kind.TEXT:
        return len(gold.letters.split()) <= MOST_WORDS
    if gold.kind is Kind.EXPRESSION and not gold.infinite:
        return parsed(gold.letters) is not None
    return all(safe(part) for part in gold.parts)


def _short(answer: str, longest: int = 40) -> str:
    return repr(answer if len(answer) <= longest else answer[: longest - 3] + "...")
