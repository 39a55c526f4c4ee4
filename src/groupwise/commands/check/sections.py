"""The sections of a check in their order: what is cheap and certain first, the model last."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from groupwise.commands.build.build import reward_forms
from groupwise.commands.build.pools import pool_of
from groupwise.commands.check.correctness import (
    opening_findings,
    own_reward_findings,
    repeated_findings,
    task_findings,
    ungraded_findings,
    unscored_findings,
)
from groupwise.commands.check.findings import Finding, Section, fault, note, ok
from groupwise.commands.check.golds import kinds
from groupwise.commands.check.lengths import completion_encoder, lengths, shown_problems
from groupwise.commands.check.model import ModelFiles, file_findings, loaded_findings, model_path, read_files
from groupwise.commands.check.problems import columns, counts, duplicates
from groupwise.commands.check.trials import score_trials, trials, ungraded_trials
from groupwise.config.plan import Plan
from groupwise.config.resolve import resolved_recipe
from groupwise.config.usual import unusual
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.rollout.scoring import Scorer

#: Problems that rewards are tried on, and that lengths are measured on; half of them from each split.
TRIED, MEASURED = 200, 2000
#: Problems that the chat template and the model are tried on.
LOOKED_AT = 64


def sections(plan: Plan, shown: int = 3, with_model: bool = True, notes: Sequence[str] = ()) -> Iterator[Section]:
    """The sections of a check, as they become known; `shown` is how many problems are printed; `notes` stand
    under the plan.

    Trains nothing and writes nothing that stays. Raises UsageError where a reward cannot be loaded or called, as a run
    would; what else is wrong is a fault of its section.
    """
    yield Section("plan", [note(line) for line in (*notes, *unusual(resolved_recipe(plan)))], text=plan.describe())
    looks = (*columns(plan.task, _samples(plan, TRIED)), *kinds(plan.task, _samples(plan, MEASURED)))
    yield Section("problems", [*counts(plan.task), *looks])
    yield Section("duplicates and leakage", duplicates(plan.task))
    with TemporaryDirectory() as folder:
        try:
            files = read_files(model_path(plan, Path(folder)), plan)
        except UsageError as error:
            yield Section("rewards", _rewards(plan, None))
            yield Section("model", [fault(f"{error}; so neither lengths nor rows can be shown")])
            return
        yield Section("rewards", _rewards(plan, files))
        findings, longest = lengths(plan, files.chat, files.config, _samples(plan, MEASURED))
        yield Section("lengths", findings)
        yield _rows(plan, files, shown)
        yield Section("model", _model(plan, files, longest, with_model))


def _samples(plan: Plan, count: int) -> list[Sample]:
    """The first problems of both splits."""
    return [sample for split in ("train", "heldout") for sample in plan.task.samples(split)[: count // 2]]


def _rewards(plan: Plan, files: ModelFiles | None) -> list[Finding]:
    samples = _samples(plan, TRIED)
    known = trials(plan.task, samples)
    encode = completion_encoder(files.chat) if files else lambda text: ()
    with pool_of(plan) or nullcontext() as pool:
        findings = [ok(" ".join(line.split())) for line in reward_forms(plan, pool)]
        if files:
            findings += _openings(plan, files, samples[:1])
        tried, of_own = (known, own_reward_findings) if known else (ungraded_trials(samples), ungraded_findings)
        scorer = Scorer(plan.task, str, plan.mix, pool)
        try:
            encoded = {text: encode(text) for trial in tried for text in trial.completions.values()}
        except UsageError as error:
            return [*findings, fault(str(error))]
        task, *own = score_trials(scorer, tried, encoded.__getitem__)
    limit = plan.recipe.scoring.fault_limit
    if not known:
        tried_on = "rewards are tried on prompts and on empty texts" if own else "no reward can be tried"
        findings.append(note(f"no problem shows a gold completion, so {tried_on}"))
    elif not scorer.has_answers:
        findings.append(note("there are no right answers: what scores is tried on what the rows hold"))
    else:
        findings += [*task_findings(task, known), *unscored_findings(task, limit)]
    found = [(of_own(one), unscored_findings(one, limit), repeated_findings(one)) for one in own]
    return [*findings, *(finding for each in found for part in each for finding in part)]


def _openings(plan: Plan, files: ModelFiles, samples: Sequence[Sample]) -> list[Finding]:
    try:
        return [finding for one in samples for finding in opening_findings(files.chat.text(one), plan.mix.own)]
    except UsageError:  # what does not render is a fault of the lengths
        return []


def _rows(plan: Plan, files: ModelFiles, shown: int) -> Section:
    try:
        return Section("rows", problems=shown_problems(files.chat, plan.task, plan.task.samples("train")[:shown]))
    except UsageError as error:
        return Section("rows", [fault(str(error))])


def _model(plan: Plan, files: ModelFiles, longest: int, with_model: bool) -> list[Finding]:
    samples = plan.task.samples("heldout")[:LOOKED_AT] or plan.task.samples("train")[:LOOKED_AT]
    findings = file_findings(plan, files, samples)
    if not with_model:
        return [*findings, note("the model itself is not loaded (--no-model)")]
    return findings + loaded_findings(plan, files, samples, longest)
