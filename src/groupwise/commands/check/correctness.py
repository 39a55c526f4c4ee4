"""Check that rewards can tell right from wrong, from the results of trials."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from groupwise.commands.check.findings import Remark, fault, graded, listed, note, ok
from groupwise.commands.check.trials import OFF_BY_ONE, WRONG, Kind, Trial, TrialScores, mean
from groupwise.core.reward import Reward
from groupwise.rewards.functions.form import Format, Tags

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
