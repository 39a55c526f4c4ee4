"""What the problems alone show: how many, what was left out, and whether columns look swapped."""

from collections.abc import Iterator, Sequence
from statistics import median

from groupwise.commands.check.findings import Finding, fault, listed, note, ok
from groupwise.commands.check.trials import gold_of
from groupwise.core.samples import Sample
from groupwise.core.task import Notes, Task

#: A shorter text may stand in a prompt by chance: characters.
BY_CHANCE = 24
#: Answers are questions, and prompts none, where more than this share of answers asks and less of prompts does.
MOST, FEW = 0.5, 0.1


def counts(task: Task) -> list[Finding]:
    """How many problems there are, and the task's own notes on them."""
    sizes = f"{len(task.samples('train')):,} problems to train on, {len(task.samples('heldout')):,} held out"
    notes = task.notes() if isinstance(task, Notes) else []
    return [ok(sizes), *(note(line) for line in notes if not line.startswith(sizes))]


def text_of(sample: Sample) -> str:
    """All that the prompt says: of a conversation every turn."""
    return "\n".join(turn["content"] for turn in sample.messages) or sample.prompt


def columns(task: Task, samples: Sequence[Sample]) -> Iterator[Finding]:
    """Whether prompts and answers look like what they are called."""
    revealing = [s.key for s in samples if any(text in text_of(s) for text in _answers(task, s))]
    if revealing:
        share = f"{len(revealing)} of {len(samples)} problems ({listed(revealing)})"
        yield fault(f"the prompt holds the answer in {share}: look at task.prompt")
    answers, prompts = [s.answer for s in samples if s.answer], [text_of(s) for s in samples]
    if not answers:
        return
    asking = sum("?" in text for text in answers) / len(answers)
    long, short = median(map(len, answers)), median(map(len, prompts))
    if asking > MOST and sum("?" in text for text in prompts) / len(prompts) < FEW:
        swapped = f"{asking:.0%} of the gold answers are questions and the prompts are not"
        yield fault(f"{swapped}: task.prompt and task.answer look swapped")
    elif long > short:
        yield note(f"gold answers are longer than prompts (median {long:g} and {short:g} characters): is it meant?")


def _answers(task: Task, sample: Sample) -> Iterator[str]:
    """Gold texts that are too long to be in a prompt by chance: as they are shown, and as their columns hold them."""
    values = (sample.extra.get(str(getattr(task, key, ""))) for key in ("answer", "solution"))
    for text in (gold_of(task, sample), sample.answer, *values):
        if isinstance(text, str) and len(text.strip()) >= BY_CHANCE:
            yield text.strip()
