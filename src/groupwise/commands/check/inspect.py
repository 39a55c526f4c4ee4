"""The order of an inspection: what is cheap and certain first, the model last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from groupwise.commands.build import pool_of, reward_forms
from groupwise.commands.check.golds import gold_of, probes
from groupwise.commands.check.lengths import ending, lengths, rows
from groupwise.commands.check.model import Paper, bring, loaded, on_paper, read
from groupwise.commands.check.problems import counts, mapping
from groupwise.commands.check.remarks import Remark, Section, fault, note, ok
from groupwise.commands.check.repeats import repeats
from groupwise.commands.check.rewards import of_own, of_task, without_score
from groupwise.commands.check.scores import tried
from groupwise.config.plan import Blueprint
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.rollout.scoring import Scorer

#: Problems that rewards are tried on, and that lengths are taken of; half of them from each split.
TRIED, MEASURED = 200, 2000


def inspect(plan: Blueprint, shown: int = 3, with_model: bool = True) -> Iterator[Section]:
    """The sections of an inspection, as they become known; `shown` is how many rows are printed.

    Trains nothing and writes nothing that stays. Raises UsageError where a reward cannot be loaded or called, as a run
    would; what else is wrong is a fault of its section.
    """
    yield Section("plan", text=plan.plan())
    yield Section("problems", [*counts(plan.task), *mapping(plan.task, _some(plan, TRIED))])
    yield Section("duplicates and leakage", repeats(plan.task))
    with TemporaryDirectory() as made:
        paper, wrong = _paper(plan, Path(made))
        yield Section("rewards", _rewards(plan, paper))
        longest = 0
        if paper is not None:
            remarks, longest = _lengths(plan, paper)
            yield Section("lengths", remarks)
            yield _rows(plan, paper, shown)
        yield Section("model", [*wrong, *(_model(plan, paper, longest, with_model) if paper else [])])


def _some(plan: Blueprint, count: int) -> list[Sample]:
    """The first problems of both splits."""
    return [sample for split in ("train", "heldout") for sample in plan.task.samples(split)[: count // 2]]


def _paper(plan: Blueprint, into: Path) -> tuple[Paper | None, list[Remark]]:
    try:
        return read(bring(plan, into), plan), []
    except UsageError as error:
        return None, [fault(f"{error}; so neither lengths nor rows can be shown")]


def _rewards(plan: Blueprint, paper: Paper | None) -> list[Remark]:
    found = probes(plan.task, _some(plan, TRIED))
    encode = ending(paper.chat) if paper else lambda text: ()
    with pool_of(plan) or nullcontext() as pool:
        remarks = [ok(" ".join(line.split())) for line in reward_forms(plan, pool)]
        if not found:
            return [*remarks, note("no problem shows a gold completion, so no reward can be tried")]
        scorer = Scorer(plan.task, str, plan.mix, pool)
        first, *own = tried(scorer, found, encode)
    limit = plan.scoring.fault_limit
    if scorer.judged:
        remarks.append(note("a reward model scores, and nobody knows the right answers: nothing to try it on"))
    else:
        remarks += [*of_task(first, found), *without_score(first, limit)]
    return remarks + [remark for one in own for remark in (*of_own(one), *without_score(one, limit))]


def _lengths(plan: Blueprint, paper: Paper) -> tuple[list[Remark], int]:
    try:
        return lengths(plan, paper.chat, paper.positions, _some(plan, MEASURED))
    except UsageError as error:
        return [fault(str(error))], 0


def _rows(plan: Blueprint, paper: Paper, shown: int) -> Section:
    first: Sequence[Sample] = plan.task.samples("train")[:shown]
    try:
        return Section("rows", rows=rows(paper.chat, first, partial(gold_of, plan.task)))
    except UsageError as error:
        return Section("rows", [fault(str(error))])


def _model(plan: Blueprint, paper: Paper, longest: int, with_model: bool) -> list[Remark]:
    samples = plan.task.samples("heldout")[: plan.evaluation_problems]
    remarks = on_paper(paper, samples)
    if not with_model:
        return [*remarks, note("the model itself is not loaded (--no-model)")]
    return remarks + loaded(plan, paper, samples[:64], longest)
