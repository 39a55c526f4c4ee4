"""Final scores of groups of runs, and what differs between them: tables with confidence intervals, each by its name."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from groupwise.core.numbers.change import Change
from groupwise.core.numbers.statistics import (
    ONE_VOTE,
    OVER_PROBLEMS,
    Interval,
    paired,
    welch,
)
from groupwise.health.symptoms.base import PASS_RATE, History, is_number
from groupwise.reports.compare.members import ENOUGH, Group, Member, measured, seeds_interval, with_spread
from groupwise.reports.folder.columns import change_of, interval
from groupwise.reports.records import Table

#: Beyond so many pairs a table of differences is no longer read.
MOST_PAIRS = 6
ABOUT_INTERVALS = (
    "A 95 % interval over seeds (mean +- t s / sqrt(seeds)) is of a recipe's mean score over all seeds; one over "
    "problems is of this one run's score over all problems of the kind, and says nothing of other seeds."
)
ABOUT_ONE_VOTE = (
    "Where a run has not logged its standard error each problem has one vote, which makes the interval too wide rather "
    "than too narrow: samples of one problem are alike."
)
ABOUT_WELCH = (
    "Welch's interval takes the seeds of the two as unrelated; the paired one takes the difference seed by seed, where "
    "both have the same seeds. Nothing is corrected for looking at several pairs."
)


@dataclass(frozen=True)
class Score:
    """The scores of a run at its first evaluation and at the last so far.

    measure   what the run is measured by: pass rate, reward, learned score, ...
    interval  over problems; None if the evaluation does not say of how many
    change    from the first to the last evaluation; None if there is one alone
    """

    measure: str
    before: float
    after: float
    step: int
    interval: Interval | None
    change: Change | None
    length_before: object
    length_after: object


def score_of(member: Member) -> Score | None:
    """Sum up a run's evaluations; None if there is none with a number."""
    history = _history(member)
    what, rows = history.measured, history.evaluated
    if not rows:
        return None
    first, last = rows[0]["evaluation"], rows[-1]["evaluation"]
    return Score(
        what.words,
        before=float(first[what.column]),
        after=float(last[what.column]),
        step=rows[-1]["step"],
        interval=interval(last),
        change=change_of(first, last, what) if len(rows) > 1 else None,
        length_before=first.get("length_mean"),
        length_after=last.get("length_mean"),
    )


def _history(member: Member) -> History:
    return History(member.run.step_rows, member.run.evaluation_rows, member.run.recipe)


def scores_of(group: Group) -> dict[object, tuple[Member, Score]]:
    """Score the counted runs that were evaluated, by seed; a run without a seed goes by its folder."""
    scores = [(member, score_of(member)) for member in group.counted]
    return {member.key: (member, score) for member, score in scores if score is not None}


def _scores(group: Group) -> list[Score]:
    return [score for _, score in scores_of(group).values()]


def measures(groups: Sequence[Group]) -> list[str]:
    """Name what the groups are scored by."""
    return list(dict.fromkeys(score.measure for group in groups for score in _scores(group)))


def interval_of(group: Group) -> Interval | None:
    """Compute the interval over seeds, of a single run over problems; None for two seeds, or if all seeds are equal."""
    scores = _scores(group)
    if len(scores) == 1:
        return scores[0].interval
    seeds = seeds_interval([score.after for score in scores])
    shares = all(score.measure == PASS_RATE.words for score in scores)
    return seeds.clipped() if seeds and shares else seeds


def final_scores(groups: Sequence[Group], words: Sequence[str] = ()) -> Table:
    """Make a table of a row a group; `words` come before what is said of the intervals."""
    names = measures(groups) or [PASS_RATE.words]
    head = ("runs", "seeds", f"held-out {' or '.join(names)}", "95 % interval", "before", "length before")
    several = any(len(_scores(group)) > 1 for group in groups)
    head += (
        "length after",
        "steps",
        "seconds of training",
        *(("best seed", "worst seed") if several else ()),
        "status",
    )
    cells, how = _intervals([interval_of(group) for group in groups])
    cells = [_few_seeds(group) or cell for group, cell in zip(groups, cells, strict=True)]
    about = " ".join(filter(None, [*words, how, ABOUT_INTERVALS]))
    rows = tuple(_final_row(group, cell, several) for group, cell in zip(groups, cells, strict=True))
    return Table("Final scores", head, rows, about, numbers=tuple(range(2, 9)))


def _few_seeds(group: Group) -> str:
    """Tell what stands in place of an interval that too few seeds, or equal ones, do not make; "" if there is one."""
    ends = [score.after for score in _scores(group)]
    if len(ends) < 2 or interval_of(group):
        return ""
    return f"none: {min(ends):.3f} and {max(ends):.3f}" if len(ends) < ENOUGH else f"none: all {ends[0]:.3f}"


def _final_row(group: Group, interval: str, extremes: bool) -> tuple[str, ...]:
    """Make a row of the table; `extremes` has the best and the worst seed in it, which one seed does not have."""
    scores = _scores(group)
    ended = [member.last for member in group.members]
    states = [member.run.status.state for member in group.members]
    finished = states.count("finished")
    return (
        group.label,
        ", ".join(_seed(member) for member in group.counted),
        f"{fmean(score.after for score in scores):.3f}" if scores else "no evaluation",
        interval,
        f"{fmean(score.before for score in scores):.3f}" if scores else "",
        _mean([score.length_before for score in scores], ".1f"),
        _mean([score.length_after for score in scores], ".1f"),
        f"{min(ended)} to {max(ended)}" if min(ended) < max(ended) else str(max(ended)),
        _seconds(group),
        *(_extremes(group) if extremes else ()),
        states[0] if len(states) in (1, finished) else f"{finished} of {len(states)} finished",
    )


def _extremes(group: Group) -> tuple[str, str]:
    scores = scores_of(group)
    if len(scores) < 2:
        return "", ""
    ordered = sorted(scores.values(), key=lambda pair: pair[1].after)
    best, worst = (f"{score.after:.3f} (seed {_seed(member)})" for member, score in (ordered[-1], ordered[0]))
    return best, worst


def _seconds(group: Group) -> str:
    """Tell the mean over seeds of the seconds of all training steps, and their range."""
    columns = [measured(member.steps).get("seconds_total", []) for member in group.counted]
    each = [sum(filter(is_number, column)) for column in columns if column]
    if not each:
        return ""
    return f"{fmean(each):.0f}" + (f" ({min(each):.0f} to {max(each):.0f})" if len(each) > 1 else "")


def per_run(groups: Sequence[Group]) -> Table:
    """Make a table of a row a run."""
    runs = [(group, member, score_of(member)) for group in groups for member in group.members]
    cells, how = _intervals([score and score.interval for _, _, score in runs])
    rows = tuple(
        (
            str(member.run.folder),
            group.label,
            _seed(member),
            f"{score.before:.3f}" if score else "",
            f"{score.after:.3f}" if score else "no evaluation",
            cell,
            str(score.change) if score and score.change else "",
            str(score.step) if score else "",
            member.run.status.words,
        )
        for (group, member, score), cell in zip(runs, cells, strict=True)
    )
    head = ("folder", "runs", "seed", "before", "final", "95 % interval", "from before to final", "at step", "status")
    return Table("Per run", head, rows, how, numbers=(2, 3, 4, 5, 7))


def differences(groups: Sequence[Group]) -> Table | None:
    """Make a table of a row a pair of groups that were evaluated, at most MOST_PAIRS; None if there is no pair."""
    scored = [group for group in groups if scores_of(group)]
    pairs = list(combinations(scored, 2))
    words = [ABOUT_WELCH] if any(len(scores_of(group)) > 1 for group in scored) else []
    if len(pairs) > MOST_PAIRS:
        ranked = sorted(scored, key=lambda group: fmean(score.after for score in _scores(group)))
        words.insert(0, f"{MOST_PAIRS} of {len(pairs)} pairs: the highest score against the next.")
        pairs = [(other, ranked[-1]) for other in ranked[-2 : -MOST_PAIRS - 2 : -1]]
    if not pairs:
        return None
    head = ("pair", "difference", "95 % interval", "paired by seed", "in words")
    rows = tuple(_difference(first, second) for first, second in pairs)
    return Table("Differences", head, rows, " ".join(words), numbers=(1, 2, 3))


def _difference(first: Group, second: Group) -> tuple[str, ...]:
    ones, others = scores_of(first), scores_of(second)
    first_after, second_after = ({seed: score.after for seed, (_, score) in each.items()} for each in (ones, others))
    apart = fmean(second_after.values()) - fmean(first_after.values())
    by_seed = with_spread(paired(first_after, second_after)) if len(ones) >= ENOUGH else None
    name = f"{second.label} against {first.label}"
    if len(ones) == len(others) == 1:
        (run, _), (other, _) = *ones.values(), *others.values()
        what, rows = _history(run).measured, _history(other).evaluated
        between = change_of(_history(run).evaluated[-1]["evaluation"], rows[-1]["evaluation"], what)
        words = f"{between}; over problems alone, another seed may say otherwise"
        found = between.interval
        over = found and replace(found, name=f"{found.name} {between.problems:,} problems")
        return name, f"{apart:+.3f}", _cell(over, with_name=True), "none", words
    enough = min(len(ones), len(others)) >= ENOUGH
    between = with_spread(welch(list(first_after.values()), list(second_after.values()))) if enough else None
    both = [seed for seed in first_after if seed in second_after]
    seeds = [f"{second_after[seed] - first_after[seed]:+.3f}" for seed in both]
    words = in_words(apart, between, by_seed, seeds)
    return name, f"{apart:+.3f}", _cell(between, with_name=True), _cell(by_seed, with_name=False), words


def in_words(apart: float, between: Interval | None, by_seed: Interval | None, seeds: Sequence[str] = ()) -> str:
    """Say a difference over seeds plainly; `seeds` are the differences of each seed that both have.

    >>> in_words(0.016, Interval(0.004, 0.028, ""), None)
    'higher by 0.016, interval 0.004 to 0.028: excludes 0'
    """
    size = f"{'higher' if apart > 0 else 'lower'} by {abs(apart):.3f}" if apart else "equal"
    if between is None:
        each = f" (seed by seed {', '.join(seeds)})" if seeds else ""
        return f"{size}{each}; without an interval: it takes {ENOUGH} seeds of each that differ, to tell more"
    words = f"{size}, interval {between}: {_verdict(between)}"
    if by_seed and (0 in by_seed) != (0 in between):
        words += f"; paired by seed, {by_seed}: {_verdict(by_seed)}"
    return words


def _verdict(interval: Interval) -> str:
    return "includes 0, so these runs do not tell them apart" if 0 in interval else "excludes 0"


def _intervals(intervals: Sequence[Interval | None]) -> tuple[list[str], str]:
    """Make a cell for each, and words on how they are computed: once for all, or in each cell if they differ."""
    names = list(dict.fromkeys(each.name for each in intervals if each))
    words = [f"Intervals: {names[0]}."] if len(names) == 1 else []
    if OVER_PROBLEMS + ONE_VOTE in names:
        words.append(ABOUT_ONE_VOTE)
    return [_cell(each, with_name=len(names) > 1) for each in intervals], " ".join(words)


def _cell(interval: Interval | None, with_name: bool) -> str:
    if interval is None:
        return "none"
    return f"{interval} ({interval.name})" if with_name else str(interval)


def _mean(values: Sequence[object], form: str) -> str:
    known = [value for value in values if is_number(value)]
    return format(fmean(known), form) if known else ""


def _seed(member: Member) -> str:
    return "not set" if member.seed is None else str(member.seed)
