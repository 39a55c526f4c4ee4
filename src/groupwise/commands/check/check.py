"""Check of a recipe before a run, section by section: what is cheap and certain first, the model last."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from groupwise.algorithms.algorithm import Algorithm
from groupwise.commands.build.machine import plan_of, threads
from groupwise.commands.build.rollout import pool_of, reward_forms
from groupwise.commands.check.findings import CheckSection, Remark, fault, note, ok
from groupwise.commands.check.model import ModelFiles, file_findings, loaded_findings, model_path, read_files
from groupwise.commands.check.problems import (
    columns,
    completion_encoder,
    counts,
    duplicates,
    kinds,
    lengths,
    shown_problems,
)
from groupwise.commands.check.trials import (
    opening_findings,
    own_reward_findings,
    repeated_findings,
    score_trials,
    task_findings,
    trials,
    ungraded_findings,
    ungraded_trials,
    unscored_findings,
)
from groupwise.config.given import RecipeLike, RewardsLike, given
from groupwise.config.plan import Plan
from groupwise.config.resolve import resolved_recipe
from groupwise.config.usual import unusual
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Task
from groupwise.rollout.scoring import Scorer

#: Problems that rewards are tried on, and that lengths are measured on; half of them from each split.
TRIED, MEASURED = 200, 2000
#: Problems that the chat template and the model are tried on.
LOOKED_AT = 64


@dataclass(frozen=True)
class Checked:
    """Findings of a check, section by section."""

    sections: tuple[CheckSection, ...]

    @property
    def findings(self) -> list[Remark]:
        """Findings, each with a level, ok, note or fault, and what it says."""
        return [finding for section in self.sections for finding in section.findings]

    @property
    def faults(self) -> list[str]:
        """Lines about what is to be put right, the section first; empty if a run may begin."""
        return [line for section in self.sections for line in section.faults]


def check(
    recipe: RecipeLike,
    overrides: Mapping[str, object] | None = None,
    *,
    algorithm: Algorithm | None = None,
    rewards: RewardsLike | None = None,
    rows: int = 3,
    model: bool = True,
) -> Checked:
    """Look at a recipe's problems, rewards, lengths and model; `groupwise.train` takes the same. Trains nothing.

    rows   problems that are shown as the model will see them
    model  whether the model is loaded too, and the engine's interpreter or address looked for
    Raises UsageError if the recipe is wrong, or a reward cannot be called.
    """
    return Checked(tuple(check_sections(recipe, overrides, algorithm, rewards, rows, model)))


def check_sections(
    recipe: RecipeLike,
    overrides: Mapping[str, object] | None = None,
    algorithm: Algorithm | None = None,
    rewards: RewardsLike | None = None,
    rows: int = 3,
    model: bool = True,
) -> Iterator[CheckSection]:
    """Check as `check` does, and give each section as soon as it is known."""
    given_recipe = given(recipe, overrides, algorithm, rewards)
    plan, notes = plan_of(given_recipe, given_recipe.recipe)
    if model:
        plan.recipe.engine.require_place()
        plan.recipe.engine.require_device(plan.recipe.device)
    with threads(plan.recipe):
        yield from _sections(plan, rows, model, notes)


def _sections(plan: Plan, shown: int, with_model: bool, notes: Sequence[str]) -> Iterator[CheckSection]:
    """Check a plan, section by section; `shown` problems are printed, and `notes` stand under the plan.

    Trains nothing and writes nothing that stays. Raises UsageError if a reward cannot be loaded or called, as a run
    would; what else is wrong is a fault of its section.
    """
    recipe, task = plan.recipe, plan.task
    yield CheckSection("plan", [note(line) for line in (*notes, *unusual(resolved_recipe(plan)))], text=plan.describe())
    looks = (*columns(task, _samples(task, TRIED)), *kinds(task, _samples(task, MEASURED)))
    yield CheckSection("problems", [*counts(task), *looks])
    yield CheckSection("duplicates and leakage", duplicates(task))
    with TemporaryDirectory() as folder:
        try:
            files = read_files(model_path(recipe, task, Path(folder)), recipe, task)
        except UsageError as error:
            yield CheckSection("rewards", _rewards(plan, None))
            yield CheckSection("model", [fault(f"{error}; so neither lengths nor rows can be shown")])
            return
        yield CheckSection("rewards", _rewards(plan, files))
        findings, longest = lengths(recipe, task, files.chat, files.config, _samples(task, MEASURED))
        yield CheckSection("lengths", findings)
        try:
            yield CheckSection("rows", problems=shown_problems(files.chat, task, task.samples("train")[:shown]))
        except UsageError as error:
            yield CheckSection("rows", [fault(str(error))])
        yield CheckSection("model", _model(plan, files, longest, with_model))


def _samples(task: Task, count: int) -> list[Sample]:
    return [sample for split in ("train", "heldout") for sample in task.samples(split)[: count // 2]]


def _rewards(plan: Plan, files: ModelFiles | None) -> list[Remark]:
    samples = _samples(plan.task, TRIED)
    known = trials(plan.task, samples)
    encode = completion_encoder(files.chat) if files else lambda text: ()
    with pool_of(plan.recipe, plan.slow_rewards) or nullcontext() as pool:
        findings = [ok(" ".join(line.split())) for line in reward_forms(plan.task, pool)]
        if files:
            with suppress(UsageError):  # what does not render is a fault of the lengths
                findings += [
                    found for one in samples[:1] for found in opening_findings(files.chat.text(one), plan.rewards.own)
                ]
        tried, of_own = (known, own_reward_findings) if known else (ungraded_trials(samples), ungraded_findings)
        scorer = Scorer(plan.task, str, plan.rewards, pool)
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


def _model(plan: Plan, files: ModelFiles, longest: int, with_model: bool) -> list[Remark]:
    samples = plan.task.samples("heldout")[:LOOKED_AT] or plan.task.samples("train")[:LOOKED_AT]
    findings = file_findings(plan.task, files, samples)
    if not with_model:
        return [*findings, note("the model itself is not loaded (--no-model)")]
    return findings + loaded_findings(plan, files, samples, longest)
