"""Check of the problems alone: how many, swapped columns, gold answers, and problems that come more than once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from string import ascii_uppercase
from typing import Any
from unicodedata import normalize

from groupwise.commands.build.rollout import selected, too_long
from groupwise.commands.check.findings import Remark, ShownProblem, fault, graded, listed, note, ok
from groupwise.commands.check.trials import Encode, gold_of
from groupwise.config.recipe import Recipe
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import LeavesOut, Notes, PlaysTurns, Task
from groupwise.models.chat.prompts import Chat
from groupwise.models.context import positions_in_words
from groupwise.models.load import text_ids
from groupwise.rewards.verifiers.answers import gold_answer
from groupwise.rewards.verifiers.choice import Choice
from groupwise.rewards.verifiers.kinds import Answer, Kind
from groupwise.rewards.verifiers.symbolic import parsed
from groupwise.tasks.data.conversations import frame, question
from groupwise.tasks.data.problems import disputes

#: A shorter text may stand in a prompt by chance: characters.
BY_CHANCE = 24
#: Answers are questions, and prompts none, where more than this share of answers asks and less of prompts does.
MOST, FEW = 0.5, 0.1
#: So many problems of each split are compared with each other.
COMPARED = 20_000
#: Words that can be an answer; of more, another wording is as right.
MOST_WORDS = 4


def counts(task: Task) -> list[Remark]:
    """Count the problems, and add the task's own notes on them."""
    sizes = f"{len(task.samples('train')):,} problems to train on, {len(task.samples('heldout')):,} held out"
    notes = task.notes() if isinstance(task, Notes) else []
    disputed = disputes(task.disputed) if isinstance(task, LeavesOut) and task.disputed else sizes  # a fault further on
    return [ok(sizes), *(note(line) for line in notes if not line.startswith((sizes, disputed)))]


def text_of(sample: Sample) -> str:
    """Return all that the prompt says: of a conversation every turn."""
    return "\n".join(turn["content"] for turn in sample.messages) or sample.prompt


def columns(task: Task, samples: Sequence[Sample]) -> Iterator[Remark]:
    """Check that prompts and answers look like what they are called."""
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


def duplicates(task: Task) -> list[Remark]:
    """Find what the task left out because it came again, then what is still there twice."""
    train, heldout = (task.samples(split) for split in ("train", "heldout"))
    compared = f"the first {COMPARED:,} of each split" if max(len(train), len(heldout)) > COMPARED else "all problems"
    hidden, alike = isinstance(task, PlaysTurns), getattr(task, "repeats", False)
    findings = [*_left_out(task), *_remaining(train[:COMPARED], heldout[:COMPARED], hidden, alike)]
    return findings or [ok(f"no problem comes twice, none is in both splits ({compared} compared)")]


def _answers(task: Task, sample: Sample) -> Iterator[str]:
    """List gold texts too long to be in a prompt by chance: as they are shown, and as their columns hold them."""
    values = (sample.extra.get(str(getattr(task, key, ""))) for key in ("answer", "solution"))
    for text in (gold_of(task, sample), sample.answer, *values):
        if isinstance(text, str) and len(text.strip()) >= BY_CHANCE:
            yield text.strip()


def _left_out(task: Task) -> Iterator[Remark]:
    if not isinstance(task, LeavesOut):
        return
    if leaked := len(task.leaked):
        yield fault(f"{_shared(leaked)} ({_keys(task.leaked)}): not held out, but the files leak")
    if repeated := len(task.repeated):
        rows = f"{repeated:,} rows repeat a problem" if repeated > 1 else "1 row repeats a problem"
        yield note(f"{rows} of their own split ({_keys(task.repeated)}): the first is kept")
    if task.disputed:
        yield fault(disputes(task.disputed))


def _remaining(train: Sequence[Sample], heldout: Sequence[Sample], hidden: bool, alike: bool) -> Iterator[Remark]:
    """Find problems that are still there twice, but for white space, then but for capital letters.

    hidden  whether an environment may hide what differs, so that answers are compared too
    alike   whether problems may be alike, which is no fault then
    """
    for fold, difference in ((False, "white space"), (True, "capital letters")):
        trained = {_normal(s, fold, hidden): s.key for s in train}
        pairs = [f"{s.key} is {trained[text]}" for s in heldout if (text := _normal(s, fold, hidden)) in trained]
        if pairs:
            what = f"{_shared(len(pairs))}, but for {difference} ({listed(pairs)})"
            yield note(what) if fold or alike else fault(what)
            break
    for split, samples in (("training", train), ("held-out", heldout)):
        frames = [frame([dict(turn) for turn in s.messages], s.tools) for s in samples]
        different = {(_normal(s, False, hidden), framed) for s, framed in zip(samples, frames, strict=True)}
        repeated = len(samples) - len(different)
        if repeated:
            yield note(f"{repeated:,} of {len(samples):,} {split} problems come again in their split")


def _shared(count: int) -> str:
    if count == 1:
        return "1 held-out problem is a training problem too"
    return f"{count:,} held-out problems are training problems too"


def _keys(samples: Sequence[Sample]) -> str:
    return listed([samples[i].key for i in range(min(len(samples), 4))])


def _normal(sample: Sample, fold: bool, hidden: bool) -> str:
    asked = question([dict(turn) for turn in sample.messages]) if sample.messages else sample.prompt
    text = " ".join([*normalize("NFC", asked).split(), *(["->", sample.answer] if hidden else [])])
    return text.casefold() if fold else text


def kinds(task: Task, samples: Sequence[Sample]) -> Iterator[Remark]:
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


def _options(golds: Sequence[str], letters: str) -> Iterator[Remark]:
    """Count how often each letter is right, and name the setting that takes no others for options."""
    counts = Counter(golds)
    yield ok(f"gold letters: {', '.join(f'{counts[letter]:,} {letter}' for letter in sorted(counts))}")
    if counts and letters == ascii_uppercase:
        options = ascii_uppercase[: ascii_uppercase.index(max(counts)) + 1]
        yield note(
            f"any capital letter may be an option: letters = {options!r} under [task] takes no other for one; name all "
            f"options that the problems have, also one that is never right"
        )


def safe(gold: Answer) -> bool:
    """Tell whether another form of a gold answer is recognised, as of no unreadable formula and no sentence.

    >>> from groupwise.rewards.verifiers.reading import read
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


#: The largest share of gold completions that may be cut off at the limit.
CUT_LIMIT = 0.05
#: A shown text is cut in its middle beyond this many characters.
SHOWN = 3000


def completion_encoder(chat: Chat) -> Encode:
    """Make what turns a completion's text into its ids and the end id, as a warm start trains them.

    It raises UsageError if the tokenizer cannot read the text.
    """
    tokenizer, end = chat.tokenizer, chat.tokenizer.eos_token_id
    return lambda text: (*text_ids(tokenizer, [text], f"completion {text!r:.60}: ")[0], *([] if end is None else [end]))


def lengths(recipe: Recipe, task: Task, chat: Chat, config: Any, samples: Sequence[Sample]) -> tuple[list[Remark], int]:
    """Compare lengths with limits; findings, and the tokens of the longest prompt used, 0 if none can be encoded."""
    try:
        prompts = sorted(len(chat.encode(sample)) for sample in samples)
    except UsageError as error:
        return [fault(str(error))], 0
    spread, golds = (
        ok(f"prompts: {_spread(prompts)}"),
        _gold_lengths(recipe.sampling.max_new_tokens, task, chat, samples),
    )
    try:
        selection = selected(recipe, task, chat)
    except UsageError as error:
        return [spread, fault(str(error)), *golds], prompts[-1]
    longest = selection.longest
    wrong = too_long(recipe, config, longest)
    both = f"the longest prompt, {longest} tokens, and {recipe.sampling.max_new_tokens} new ones"
    room = fault(wrong) if wrong else ok(f"{both} fit {positions_in_words(config)}")
    return [spread, *map(note, selection.notes), room, *golds], longest


def shown_problems(chat: Chat, task: Task, samples: Sequence[Sample]) -> list[ShownProblem]:
    """Show samples as the model will see them, each with a completion that should score 1.0, if one is known."""

    def text(ids: Sequence[int]) -> str:
        return _cut(chat.tokenizer.decode(ids, skip_special_tokens=False))

    encode = completion_encoder(chat)
    golds = [gold_of(task, sample) for sample in samples]
    pairs = [(s.key, chat.encode(s), encode(gold) if gold else ()) for s, gold in zip(samples, golds, strict=True)]
    return [ShownProblem(key, text(prompt), text(gold), len(prompt), len(gold)) for key, prompt, gold in pairs]


def _gold_lengths(limit: int, task: Task, chat: Chat, samples: Sequence[Sample]) -> list[Remark]:
    encode = completion_encoder(chat)
    try:
        sizes = sorted(len(encode(gold)) for sample in samples if (gold := gold_of(task, sample)))
    except UsageError as error:
        return [fault(str(error))]
    if not sizes:
        return []
    over = sum(size > limit for size in sizes)
    what = f"{over} of {len(sizes)} gold completions are longer than sampling.max_new_tokens = {limit}"
    cut = ", such answers would be cut off" if over else ""
    return [ok(f"gold completions: {_spread(sizes)}"), graded(over / len(sizes), CUT_LIMIT, what + cut)]


def _spread(sizes: Sequence[int]) -> str:
    """Say how sorted sizes spread.

    >>> _spread([1, 2, 3])
    '1 to 3 tokens, median 2, 95 % at most 3 (3 looked at)'
    """
    middle, most = sizes[len(sizes) // 2], sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))]
    return f"{sizes[0]} to {sizes[-1]} tokens, median {middle}, 95 % at most {most} ({len(sizes):,} looked at)"


def _cut(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN // 2]} [{len(text) - SHOWN:,} characters] {text[-SHOWN // 2 :]}"
