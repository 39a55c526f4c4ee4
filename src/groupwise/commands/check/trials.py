"""Completions whose worth is known beforehand, right ones and wrong ones, and how rewards score them."""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from groupwise.commands.check.findings import Remark, fault, graded, listed, note, ok
from groupwise.core.samples import TASK, Attempt, Cause, Reward, Sample, ScoreResult
from groupwise.core.task import KnowsGold, Task
from groupwise.rewards.functions.form import Format, Tags
from groupwise.rollout.scoring import Scorer

#: Trials that are scored together, and seconds after which no more are begun.
TOGETHER, SECONDS = 32, 20.0

#: A completion's text -> its ids, for rewards that read them.
Encode = Callable[[str], tuple[int, ...]]

_NUMBER = re.compile(r"([^\w-]{0,4})(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)([^\d]*)")


class Kind(StrEnum):
    """Kind of a completion."""

    GOLD = "gold completions"
    BARE = "gold answers alone"
    OTHER = "gold completions of another problem"
    MORE = "gold answers + 1"
    LESS = "gold answers - 1"
    EMPTY = "empty completions"
    PROMPT = "prompts in the place of completions"


#: Those that are wrong, and of them those that are off by one.
WRONG = (Kind.OTHER, Kind.MORE, Kind.LESS, Kind.EMPTY)
OFF_BY_ONE = (Kind.MORE, Kind.LESS)


@dataclass(frozen=True)
class Trial:
    """A sample with the completions that it is scored on."""

    sample: Sample
    completions: Mapping[Kind, str]


@dataclass(frozen=True)
class TrialScores:
    """Results of one reward by kind, a mapping each trial. After a timeout a reward is not tried further."""

    name: str
    results: Sequence[Mapping[Kind, ScoreResult]]

    def of(self, *kinds: Kind) -> list[ScoreResult]:
        """List all results of these kinds."""
        return [trial[kind] for trial in self.results for kind in kinds if kind in trial]

    def values(self, *kinds: Kind) -> list[float]:
        """List the scores of these kinds, those that are missing left out."""
        return [result.value for result in self.of(*kinds) if result.votes]

    def together(self, *kinds: Kind) -> list[tuple[float, ...]]:
        """List the scores of every trial that has one of each of these kinds."""
        complete = [[trial[kind] for kind in kinds] for trial in self.results if trial.keys() >= {*kinds}]
        return [tuple(r.value for r in results) for results in complete if all(r.votes for r in results)]


def gold_of(task: Task, sample: Sample) -> str:
    """Return a completion that should score 1.0, "" if none is known."""
    return task.gold(sample) if isinstance(task, KnowsGold) else sample.answer


def trials(task: Task, samples: Sequence[Sample]) -> list[Trial]:
    """Make trials of the samples whose gold completion is known, each with right and wrong ones."""
    golds = [(sample, gold) for sample in samples if (gold := gold_of(task, sample))]
    return [
        Trial(sample, _completions(sample, gold, [*golds[place + 1 :], *golds[:place]]))
        for place, (sample, gold) in enumerate(golds)
    ]


def ungraded_trials(samples: Sequence[Sample]) -> list[Trial]:
    """Make trials of texts that any data has, for rewards that no gold completion can be shown to."""
    return [Trial(sample, {Kind.PROMPT: sample.prompt, Kind.EMPTY: ""}) for sample in samples]


def _completions(sample: Sample, gold: str, others: Sequence[tuple[Sample, str]]) -> dict[Kind, str]:
    bare = sample.answer.strip()
    different = (text for s, text in others if s.answer != sample.answer and s.source == sample.source)
    completions = {
        Kind.GOLD: gold,
        Kind.BARE: bare if bare != gold.strip() else "",
        Kind.OTHER: next(different, ""),
        Kind.MORE: off_by(gold, bare, 1),
        Kind.LESS: off_by(gold, bare, -1),
    }
    return {**{kind: text for kind, text in completions.items() if text}, Kind.EMPTY: ""}


def off_by(completion: str, answer: str, step: int) -> str:
    """Put another number where a completion's answer stands last; "" if the answer is no single number.

    >>> off_by("24+48 = 72\\n#### 1,072", "1,072", 1), off_by("so it is x", "x", 1)
    ('24+48 = 72\\n#### 1,073', '')
    """
    wrong = shifted(answer, step)
    before, answered, after = completion.rpartition(answer) if wrong else ("", "", "")
    return before + wrong + after if answered else wrong


def shifted(answer: str, step: int) -> str:
    """Add `step` to a number as it is written; "" if there is no one number.

    >>> shifted("$1,999", 1), shifted("18.50", -1), shifted("-1", 1), shifted("3/4", 1)
    ('$2,000', '17.50', '0', '')
    """
    match = _NUMBER.fullmatch(answer)
    if match is None:
        return ""
    before, number, after = match.groups()
    value = Decimal(number.replace(",", "")) + step
    return f"{before}{value:{',' if ',' in number else ''}f}{after}"


def mean(values: Sequence[float]) -> float:
    """Return the mean, NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def score_trials(scorer: Scorer, trials: Sequence[Trial], encode: Encode) -> list[TrialScores]:
    """Try every reward on every trial, the task's own score first, as far as time allows."""
    return [TrialScores(name, list(_results(scorer, name, trials, encode))) for name in (TASK, *scorer.rewards.own)]


def _results(
    scorer: Scorer, name: str, trials: Sequence[Trial], encode: Encode
) -> Iterator[Mapping[Kind, ScoreResult]]:
    started = time.perf_counter()
    # The first alone: where a reward hangs on it, nothing else is waited for.
    for chunk in (trials[:1], *(trials[at : at + TOGETHER] for at in range(1, len(trials), TOGETHER))):
        texts = [(trial.sample, text) for trial in chunk for text in trial.completions.values()]
        results = _score(scorer, name, [Attempt(sample, text, "stop", encode(text)) for sample, text in texts])
        remaining = iter(results)
        yield from ({kind: next(remaining) for kind in trial.completions} for trial in chunk)
        late = any(result.cause is Cause.TIMEOUT for result in results)
        if late or time.perf_counter() - started > SECONDS:
            return


def _score(scorer: Scorer, name: str, attempts: Sequence[Attempt]) -> list[ScoreResult]:
    if name in scorer.slow:
        assert scorer.pool is not None
        return scorer.pool.wait(scorer.pool.submit(name, attempts))
    return scorer.quick_results(attempts, [None] * len(attempts))[name]


#: How a prompt ends that opens a tag.
_OPENED = re.compile(r"<(\w+)>\s*$")
#: A completion that scores this much is solved.
SOLVED = 1 - 1e-6
#: The least share of gold completions that must be solved, and the largest of wrong ones.
GOLD_LIMIT, WRONG_LIMIT = 0.95, 0.05
#: Scores closer than this are equal.
EQUAL = 1e-6


def task_findings(scores: TrialScores, trials: Sequence[Trial]) -> Iterator[Remark]:
    """Judge what the task's own score, which evaluation measures, makes of right and wrong completions."""
    for kind in Kind:
        values = scores.values(kind)
        if not values:
            continue
        solved = sum(value >= SOLVED for value in values)
        share, what = solved / len(values), f"task: {_solved(kind, solved, values)}"
        if kind is Kind.GOLD:
            yield ok(what) if share >= GOLD_LIMIT else fault(f"{what}: {_unsolved(scores, trials)}")
        elif kind is Kind.BARE:
            yield ok(what) if share >= GOLD_LIMIT else note(what)
        elif share > WRONG_LIMIT:
            why = "it scores 1 on answers that are off by one" if kind in OFF_BY_ONE else "these are wrong"
            yield fault(f"{what}: the reward cannot tell right from wrong, {why}")
        else:
            yield graded(share, WRONG_LIMIT, what)


def own_reward_findings(scores: TrialScores) -> list[Remark]:
    """Judge what a reward of the recipe makes of them; its scale and meaning are its own, so that differences count."""
    if not scores.values(Kind.GOLD):
        return []
    kinds = [(kind, values) for kind in (Kind.GOLD, *WRONG) if (values := scores.values(kind))]
    means = f"{scores.name}: mean {', '.join(f'{mean(values):.3f} on {kind}' for kind, values in kinds)}"
    faults = [*_off_by_one(scores), *_upside_down(scores)]
    if not faults and scores.values(Kind.OTHER) and not _depends(scores):
        return [note(f"{means}: it does not depend on correctness; as a reward for form that is right")]
    return [ok(means), *faults]


def ungraded_findings(scores: TrialScores) -> list[Remark]:
    """Judge a reward on texts of which nobody knows how good they are: that it answers, and not always alike."""
    kinds = [(kind, values) for kind in Kind if (values := scores.values(kind))]
    results = scores.of(*Kind)
    tried, silent = len(results), sum(result.cause is None and not result.votes for result in results)
    if silent == tried:
        return [note(f"{scores.name}: returns None for all {tried} completions tried, so it has no vote on them")]
    if not kinds:
        return []
    means = f"{scores.name}: mean {', '.join(f'{mean(values):.3f} on {kind}' for kind, values in kinds)}"
    votes = [f"it has a vote on {tried - silent} of {tried}, and returns None for the others"] * bool(silent)
    if _range(scores) <= EQUAL:
        return [note("; ".join([means, *votes, "all the same: is it to tell completions apart by what these lack?"]))]
    return [ok("; ".join([means, *votes]))]


def unscored_findings(scores: TrialScores, limit: float) -> list[Remark]:
    """Count completions that the reward failed on, by cause; on empty ones alone that is a note."""
    results = scores.of(*Kind)
    failed = [result for result in results if result.cause is not None]
    if not failed:
        return []
    on_text = scores.of(*(kind for kind in Kind if kind is not Kind.EMPTY))
    share = sum(result.cause is not None for result in on_text) / len(on_text)
    counts = Counter(str(result.cause) for result in failed)
    causes = ", ".join(f"{count} {cause}" for cause, count in sorted(counts.items()))
    only = " (all of them empty)" if not share else ""
    lines = failed[0].detail.strip().splitlines() or [""]
    what = (
        f"{scores.name}: {len(failed)} of {len(results)} completions could not be scored{only}: {causes}; {lines[-1]}"
    )
    return [fault(what) if share > limit else note(what)]


def repeated_findings(scores: TrialScores) -> list[Remark]:
    """Count completions that got a score only when the reward was called for each alone."""
    alone = [result for result in scores.of(*Kind) if result.cause is None and result.detail]
    if not alone:
        return []
    lines = alone[0].detail.strip().splitlines()
    why = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    what = f"{len(alone)} completions got a score only when it was called for each alone, after a {why}"
    return [fault(f"{scores.name}: {what}; it must return one number for each of many completions")]


def opening_findings(prompt: str, rewards: Mapping[str, Reward]) -> Iterator[Remark]:
    """Find rewards for form that expect a tag which the prompt already opens, or the other way round."""
    opened = _OPENED.search(prompt)
    for name, reward in rewards.items():
        if isinstance(reward, Tags) and (reward.opened is not (opened is not None and opened[1] == reward.tags[0])):
            right = "".join(f"<{tag}>...</{tag}>" for tag in reward.tags)
            score = reward.worth(right if reward.opened else right.removeprefix(f"<{reward.tags[0]}>"))
            what = "end" if opened and not reward.opened else "do not end"
            yield fault(
                f"{name}: the prompts {what} with <{reward.tags[0]}> and the right form scores {score:g}; "
                f"set rewards.{name}.opened = {str(not reward.opened).lower()}"
            )
        if isinstance(reward, Format) and opened and re.match(rf"\^?(\\s[*+]?)?{opened[0].strip()}", reward.pattern):
            what = f"the prompts end with {opened[0].strip()}, which its pattern wants of the completion again"
            yield fault(f"{name}: {what}; take it out of rewards.{name}.pattern")


def _unsolved(scores: TrialScores, trials: Sequence[Trial]) -> str:
    golds = [(trial, results[Kind.GOLD]) for trial, results in zip(trials, scores.results, strict=False)]
    unsolved = [
        f"{trial.sample.key} scores {gold.value:g} for {_short(trial.completions[Kind.GOLD])}, answer "
        f"{_short(trial.sample.answer)}"
        for trial, gold in golds
        if gold.cause is None and gold.value < SOLVED
    ]
    why = "the reward does not recognise the data's own answers: swapped columns, or another task.check?"
    return f"{why} {listed(unsolved)}"


def _off_by_one(scores: TrialScores) -> list[Remark]:
    """Find a reward that tells a problem's gold from another's, and not from a number that is off by one."""
    triples = [triple for kind in OFF_BY_ONE for triple in scores.together(Kind.GOLD, Kind.OTHER, kind)]
    pairs = [(gold, wrong) for gold, other, wrong in triples if gold > other + EQUAL]
    fooled = [wrong for gold, wrong in pairs if wrong >= gold - EQUAL]
    if not fooled or len(fooled) <= WRONG_LIMIT * len(pairs) or not _depends(scores):
        return []
    what = (
        f"{scores.name}: scores {mean(fooled):g} on answers that are off by one ({len(fooled)} of {len(pairs)} get as "
        "much as the gold ones): the reward cannot tell right from wrong"
    )
    return [fault(what)]


def _upside_down(scores: TrialScores) -> list[Remark]:
    """Find wrong numbers that earn more than right ones, by more than form could explain."""
    for kind in OFF_BY_ONE:
        pairs = scores.together(Kind.GOLD, kind)
        more = [wrong for gold, wrong in pairs if wrong > gold + EQUAL]
        gain = mean([wrong - gold for gold, wrong in pairs])
        if pairs and len(more) > len(pairs) / 2 and gain > WRONG_LIMIT * _range(scores):
            right = mean([gold for gold, _ in pairs])
            what = (
                f"{scores.name}: scores {mean(more):g} on answers that are off by one ({kind}) and {right:g} on the "
                "right ones: the reward has them the wrong way round"
            )
            return [fault(what)]
    return []


def _depends(scores: TrialScores) -> bool:
    """Tell whether gold completions earn more than on other problems: equal texts, so that form cannot be why."""
    gaps = [gold - other for gold, other in scores.together(Kind.GOLD, Kind.OTHER)]
    centre = mean(gaps)
    if not gaps or centre <= WRONG_LIMIT * _range(scores):
        return False
    spread = math.sqrt(mean([(gap - centre) ** 2 for gap in gaps]))
    return centre > 2 * spread / math.sqrt(len(gaps))


def _range(scores: TrialScores) -> float:
    values = scores.values(*Kind)
    return max(values) - min(values)


def _solved(kind: Kind, count: int, values: Sequence[float]) -> str:
    average = f", mean {mean(values):.3f}" if any(value not in (0.0, 1.0) for value in values) else ""
    return f"{count} of {len(values)} {kind} score 1{average}"


def _short(text: str, longest: int = 40) -> str:
    """Shorten a text to its end, where its answer stands."""
    line = " ".join(text.split())
    return repr(line if len(line) <= longest else "..." + line[-longest:])
