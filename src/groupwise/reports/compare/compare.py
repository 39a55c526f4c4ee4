"""Several run folders -> one page: seeds of a recipe as a mean and a band, final scores, what differs."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from groupwise.core.files.jsonl import flat
from groupwise.health.symptoms.base import PASS_RATE
from groupwise.reports.compare.apart import by_difference
from groupwise.reports.compare.members import (
    ENOUGH,
    HELD_OUT,
    Group,
    Member,
    band_words,
    differing,
    grouped,
    mean,
    measured,
    shown,
)
from groupwise.reports.compare.scores import (
    differences,
    final_scores,
    measures,
    per_run,
    score_of,
    scores_of,
)
from groupwise.reports.folder import columns, facts, lines
from groupwise.reports.folder.lines import table
from groupwise.reports.folder.read import read
from groupwise.reports.page.page import MOST_ROWS, now
from groupwise.reports.page.plots import SECTIONS, plots_for
from groupwise.reports.page.unchanged import folded
from groupwise.reports.records import (
    Curves,
    Number,
    Page,
    RunPage,
    Status,
    Table,
)

#: Rows of curves for each run: several runs share the page.
ROWS_TOGETHER = 4 * MOST_ROWS
#: More names than this in one note are no longer read.
MOST_NAMES = 8
#: Sections of a recipe, besides the task's, that change what an evaluation measures.
EVALUATED_BY = ("evaluation.", "chat.", "sampling.max_new_tokens", "max_prompt_tokens", "prompt_truncation")
ONLY_HOW_OFTEN = "evaluation.every"
#: A group has the state of its runs that comes first here.
STATES = ("going", "failed", "stopped", "empty", "finished")


def page(folders: Sequence[Path]) -> Page:
    """Make the page of runs side by side. Raises UsageError if one is no run, or given twice."""
    runs = [read(folder) for folder in folders]
    names = [run.name for run in runs]
    title = " · ".join(names) if len(names) <= 4 else f"{len(names)} runs: {names[0]} to {names[-1]}"
    rows = max(100, ROWS_TOGETHER // len(runs))
    members = [
        Member(run, columns.steps(run.step_rows, run.machine_rows, rows), columns.evaluations(run.evaluation_rows))
        for run in runs
    ]
    return comparison(members, title, now())


def comparison(members: Sequence[Member], title: str, written: str = "") -> Page:
    """Make the page of several runs, in whatever order they are given. Raises UsageError if one is given twice."""
    groups = grouped(members)
    steps = _all_columns(member.steps for group in groups for member in group.counted)
    evaluations = _all_columns(member.evaluations for group in groups for member in group.counted)
    runs = tuple(run_page(group, f"runs-{number}", steps) for number, group in enumerate(groups, start=1))
    plots, unchanged = folded(plots_for(steps, evaluations, ()), steps, evaluations)
    return Page(title, written, SECTIONS, by_difference(plots, runs), runs, tables(groups), unchanged=unchanged)


def tables(groups: Sequence[Group]) -> tuple[Table, ...]:
    """Make the tables of final scores, of differences if they mean anything, of what differs, and of every run."""
    unlike, words = comparable(groups)
    apart = None if unlike else differences(groups)
    every = (final_scores(groups, [*words, *_in_general(groups)]), apart, what_differs(groups), per_run(groups))
    return tuple(table for table in every if table is not None)


def run_page(group: Group, id: str, names: Collection[str] = ()) -> RunPage:
    """Show a group's curves, notes on them, and what its first run was; `names` are columns that any group has."""
    first, several = group.counted[0], len(group.members) > 1
    of = f": {first.label}, the first of them" if several else ""
    return RunPage(
        id,
        group.label,
        status(group.members),
        members=len(group.counted),
        notes=tuple(notes(group, names)),
        steps=mean([member.steps for member in group.counted]),
        evaluations=mean([member.evaluations for member in group.counted], HELD_OUT),
        tables=tuple(replace(table, title=table.title + of) for table in facts.tables(first.run)),
        texts=tuple(replace(text, title=text.title + of) for text in facts.texts(first.run)),
    )


def status(members: Sequence[Member]) -> Status:
    """Tell the status of one run; of several, the state that most wants a look, and how many have finished."""
    if len(members) == 1:
        return members[0].run.status
    others = [member for member in members if member.run.status.state != "finished"]
    state = min((member.run.status.state for member in members), key=STATES.index)
    words = "; ".join(f"{member.label}: {member.run.status.words}" for member in others)
    if not others:
        return Status(state, f"{len(members)} runs, all finished")
    return Status(state, f"{len(members) - len(others)} of {len(members)} runs have finished; {words}")


def notes(group: Group, names: Collection[str] = ()) -> Iterable[str]:
    """Tell what is to be known of a group's curves, line by line; a run by itself keeps its own notes."""
    several = len(group.members) > 1
    if words := band_words(len(group.counted)):
        held = measures([group]) or [PASS_RATE.words]
        enough = len(group.counted) >= ENOUGH
        around = "Student's 95 % interval over seeds" if enough else "their range too: two seeds are not an interval"
        yield f"{words} The band of the held-out {held[0]} is {around}."
    ends = [member.last for member in group.counted]
    if min(ends) < max(ends):
        lengths = _listed([str(end) for end in ends])
        over = f"After step {min(ends)} the mean is over those that have the step."
        yield f"The runs differ in length: {lengths} steps. {over}"
    for member in (member for member in group.members if member not in group.counted):
        yield (
            f"{member.label} has the seed of another run here ({member.seed}), and the same seed gives the same run: "
            "left out of means, bands and intervals."
        )
    yield from (f"{member.label}: {note}" if several else note for member in group.members for note in member.run.notes)
    for key in ("groupwise", "machine", "versions.torch"):
        if len(values := _values(group, key)) > 1:
            yield f"The runs differ in {key}: {', '.join(values)}."
    own = {name for member in group.counted for name in measured(member.steps)}
    if own and (missing := [name for name in names if name not in own]):
        yield f"Not measured here, though in another run on this page: {_listed(missing)}."


def comparable(groups: Sequence[Group]) -> tuple[bool, list[str]]:
    """Tell if the scores are of different things altogether, and in words what makes them so, or may."""
    known = [group for group in groups if group.recipe]
    keys = differing([group.recipe for group in known])
    remarks: list[str] = []
    unlike = "task.name" in keys or len(measures(groups)) > 1
    if "task.name" in keys:
        names = dict.fromkeys(shown(group.recipe, "task.name") for group in known)
        remarks.append(f"Tasks differ: {', '.join(names)}: their scores are not comparable.")
    elif tasks := [key for key in keys if key.startswith("task.")]:
        remarks.append(f"Settings of the task differ ({_listed(tasks)}): the held-out problems may not be the same.")
    ways = [key for key in keys if key.startswith(EVALUATED_BY) and key != ONLY_HOW_OFTEN]
    if ways and "task.name" not in keys:
        remarks.append(f"Evaluations differ ({_listed(ways)}): scores differ by that too.")
    if len(measures(groups)) > 1:
        remarks.append(f"Measures differ: {', '.join(measures(groups))}: scores are not comparable.")
    if missing := [member.label for group in groups if not group.recipe for member in group.members]:
        remarks.append(f"Without a recipe, so that it is not known what was run: {', '.join(missing)}.")
    return unlike, remarks


def _in_general(groups: Sequence[Group]) -> Iterable[str]:
    """Tell what the scores are, and of which runs they are not the last word."""
    if measures(groups) == [PASS_RATE.words]:
        yield "Pass rate: mean over held-out problems of the share of samples that pass, at a run's last evaluation."
    else:
        yield f"{_listed([name.capitalize() for name in measures(groups)])}: mean over held-out problems, at the end."
    for member in (member for group in groups for member in group.counted):
        if member.run.status.state == "finished":
            continue
        score = score_of(member)
        where = f"its score is that of step {score.step}" if score else "it has no evaluation"
        yield f"{member.label} has not finished: {where}."
    for group in groups:
        if 0 < len(scores_of(group)) < len(group.counted):
            yield f"{group.label}: scores of {len(scores_of(group))} of {len(group.counted)} seeds."


def what_differs(groups: Sequence[Group]) -> Table | None:
    """List what differs key by key, a column a group; None for one group."""
    if len(groups) < 2:
        return None
    recipes = [group.recipe for group in groups]
    rows = [(key, *(shown(recipe, key) for recipe in recipes)) for key in differing(recipes)]
    facts = [_facts(group) for group in groups]
    for key in dict.fromkeys(key for each in facts for key in each):
        values = [each.get(key, "not known") for each in facts]
        if len(set(values)) > 1:
            rows.append((key, *values))
    words = "All that differs between the recipes; runs of one column differ in their seed only." if rows else ""
    return Table("What differs", ("key", *(group.label for group in groups)), tuple(rows), words)


def _facts(group: Group) -> dict[str, str]:
    """Gather from about.json the algorithm's equations slot by slot, and what the runs were made with."""
    algorithm = table(group.counted[0].run.about.get("algorithm"))
    facts = {"objective": str(algorithm.get("objective", ""))} if algorithm else {}
    for part in lines.tables(algorithm.get("parts")):
        facts[f"{part.get('slot', '')}, equation"] = str(part.get("equation", ""))
    abouts = [flat(member.run.about) for member in group.members]
    versions = dict.fromkeys(key for about in abouts for key in about if key.startswith("versions."))
    made_with = {key: ", ".join(_values(group, key)) for key in ("groupwise", "machine", *versions)}
    return facts | {key: value for key, value in made_with.items() if value}


def _values(group: Group, key: str) -> list[str]:
    values = (flat(member.run.about).get(key) for member in group.members)
    return list(dict.fromkeys(str(value) for value in values if value is not None))


def _all_columns(tables: Iterable[Curves]) -> dict[str, list[Number]]:
    columns: dict[str, list[Number]] = {}
    for curves in tables:
        for name, values in measured(curves).items():
            columns.setdefault(name, []).extend(values)
    return columns


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
