"""What can be told from the problems alone: how many, what was left out, and whether columns look swapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from groupwise.commands.check.golds import gold_of
from groupwise.commands.check.remarks import Remark, fault, listed, note, ok
from groupwise.core.samples import Sample
from groupwise.core.task import Notes, Task

#: A shorter text may stand in a prompt by chance: characters.
BY_CHANCE = 24
#: Answers are questions, and prompts none, where more than this share of answers asks and less of prompts does.
MOST, FEW = 0.5, 0.1


def counts(task: Task) -> list[Remark]:
    """How many problems there are, and what the task itself has to say of them."""
    told = f"{len(task.samples('train')):,} problems to train on, {len(task.samples('heldout')):,} held out"
    own = [line for line in (task.notes() if isinstance(task, Notes) else []) if not line.startswith(told)]
    return [ok(told), *(note(line) for line in own)]


def mapping(task: Task, samples: Sequence[Sample]) -> list[Remark]:
    """Whether prompts and answers look like what they are called."""
    return [*_holds_answer(task, samples), *_swapped(samples)]


def text_of(sample: Sample) -> str:
    """All that is asked: of a conversation every turn."""
    return "\n".join(turn["content"] for turn in sample.messages) or sample.prompt


def _holds_answer(task: Task, samples: Sequence[Sample]) -> list[Remark]:
    found = [s.key for s in samples if any(text in text_of(s) for text in _answers(task, s))]
    if not found:
        return []
    what = f"the prompt holds the answer in {len(found)} of {len(samples)} problems ({listed(found)})"
    return [fault(f"{what}: look at task.prompt")]


def _answers(task: Task, sample: Sample) -> Iterator[str]:
    """Gold texts that are too long to be in a prompt by chance: as they are shown, and as their columns hold them."""
    columns = (sample.extra.get(str(getattr(task, key, ""))) for key in ("answer", "solution"))
    for text in (gold_of(task, sample), sample.answer, *columns):
        if isinstance(text, str) and len(text.strip()) >= BY_CHANCE:
            yield text.strip()


def _swapped(samples: Sequence[Sample]) -> list[Remark]:
    answers, prompts = [s.answer for s in samples if s.answer], [text_of(s) for s in samples]
    if not answers:
        return []
    asking = sum("?" in text for text in answers) / len(answers)
    if asking > MOST and sum("?" in text for text in prompts) / len(prompts) < FEW:
        what = f"{asking:.0%} of the gold answers are questions and the prompts are not: task.prompt and task.answer"
        return [fault(f"{what} look swapped")]
    long, short = median(map(len, answers)), median(map(len, prompts))
    if long > short:
        return [note(f"gold answers are longer than prompts (median {long:g} and {short:g} characters): is it meant?")]
    return []
