"""Evaluation of policies on held-out problems, of runs or of any models, in words and in files."""

import dataclasses
import itertools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.commands.build.machine import plan_of, threads, with_threads
from groupwise.commands.build.policy import policy_after
from groupwise.commands.build.rollout import (
    chat_of,
    episodes_of,
    evaluation_of,
    players_of,
    pool_of,
    scorer_of,
    selected,
)
from groupwise.config import recipe as recipes
from groupwise.config.given import RecipeLike, given
from groupwise.config.plan import REWARD_MODEL, Plan
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.core.errors import RunError, UsageError
from groupwise.core.files import jsonl
from groupwise.core.files.atomic import make_folder, require_place
from groupwise.core.files.paths import location
from groupwise.core.machine.facts import where
from groupwise.core.machine.terminal import Terminal
from groupwise.core.numbers.change import SHARE, Change, change
from groupwise.core.numbers.measure import CORRECTNESS, Measure
from groupwise.core.numbers.statistics import Interval, pass_rate_interval, seen_mean_interval
from groupwise.core.records import Evaluation, Group
from groupwise.engines.make import make_engine, require_sampling
from groupwise.journal import kept
from groupwise.journal.kept import whole_recipe
from groupwise.journal.rollout_rows import completion_columns
from groupwise.journal.run_policy import RunPolicy, evaluated_run, is_run, run_policy
from groupwise.models.chat.template_checks import check_chat, require_no_fatal
from groupwise.models.load import Policy, load_policy, model_folder
from groupwise.models.scalar_heads import load_reward_model
from groupwise.rollout.collect import Judge, problem_values
from groupwise.rollout.segments import advance
from groupwise.training.start.initial_policy import HUB_ID

RESULTS, COMPLETIONS = "results.json", "completions.jsonl"
#: Where evaluations go that have no place of their own, in the current directory.
EVALUATIONS = Path("evaluations")
#: Characters of a policy in a folder's name.
LONGEST = 60


@dataclass(frozen=True)
class PolicyResult:
    """Answers of one policy.

    name     as it was asked for; of a run RUN:STEP
    measure  what the answers are measured by
    """

    name: str
    measure: Measure
    groups: Sequence[Group]
    evaluation: Evaluation

    @property
    def interval(self) -> Interval | None:
        """Interval around the pass rate; without a pass mark around the mean of what is measured, if there is one."""
        e = self.evaluation
        if self.measure.pass_at is None:
            return seen_mean_interval(list(e.by_problem.values()))
        return pass_rate_interval(e.avg_at_k, e.problems, e.samples, e.standard_error)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Completions, as in completions.jsonl: policy, problem, sample, prompt, completion, score, ..."""
        return [
            {"policy": self.name, "problem": problem, "sample": sample, **completion_columns(group, one, self.measure)}
            for problem, group in enumerate(self.groups)
            for sample, one in enumerate(group.completions)
        ]


@dataclass(frozen=True)
class Difference:
    """Difference `second` - `first` of two policies on the problems that both were asked: of pass rates, or without a
    pass mark of means in reward units; `change.verdict` says in words whether it is certain.
    """

    first: str
    second: str
    change: Change

    @property
    def problems(self) -> int:
        return self.change.problems

    @property
    def value(self) -> float:
        return self.change.value

    @property
    def interval(self) -> Interval | None:
        return self.change.interval


@dataclass(frozen=True)
class Results:
    """Answers of several policies under one plan, in the order they were asked for; differences are to the first."""

    plan: Plan
    policies: tuple[PolicyResult, ...]
    differences: tuple[Difference, ...]

    @property
    def evaluation(self) -> Evaluation:
        """The first policy's evaluation."""
        return self.policies[0].evaluation

    def __str__(self) -> str:
        return "\n".join(result_lines(self))


def evaluate(
    *policies: str | os.PathLike[str],
    recipe: RecipeLike | None = None,
    overrides: Mapping[str, object] | None = None,
    step: int | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Results:
    """Sample policies on the held-out problems of a recipe, with the same random numbers; print it to read it.

    groupwise.evaluate(run, overrides={"evaluation.samples": 8}).policies[0].interval

    policies  a Run or its folder, RUN:STEP, a model's folder or a hub's id; or several, each compared with the first
    recipe    whose task is asked: a recipe, or a run; None is the first policy's own, where that is a run
    step      of the only policy, a run, the step of its checkpoint; None is its newest
    out       a new folder for results.json and completions.jsonl; None keeps nothing
    Raises UsageError if there is nothing to evaluate, or no recipe.
    """
    if not policies:
        raise UsageError("evaluate: name a run, the folder of a model, or several")
    names = with_step([str(location(policy, "policy")) for policy in policies], step)
    if out is None:
        return evaluate_policies(names, recipe, overrides)
    place = location(out, "out")
    require_place_for(place)
    results = evaluate_policies(names, recipe, overrides)
    write_results(results, place)
    return results


def evaluate_policies(
    names: Sequence[str],
    recipe: RecipeLike | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Results:
    """Sample each policy as `evaluate` does; `names` are runs (RUN, RUN:STEP), folders of models, or ids of a hub."""
    note = Terminal(stderr=True).print
    plan = _plan(names[0], recipe, overrides or {}, note)
    if not plan.evaluated:
        raise UsageError("evaluation.problems = 0: there is nothing to evaluate; --set evaluation.problems=64")
    plan.recipe.engine.require_place()
    plan.recipe.engine.require_device(plan.recipe.device)
    with threads(plan.recipe):
        results = tuple(_evaluated(plan, name, note) for name in names)
    return Results(plan, results, tuple(difference(results[0], other) for other in results[1:]))


def difference(first: PolicyResult, second: PolicyResult) -> Difference:
    """Subtract `first` from `second` over the problems that both have answered.

    Raises UsageError if there is none, as when max_prompt_tokens leaves each tokenizer other problems.
    """
    bounds = None if first.measure.pass_at is None else SHARE
    before, after = (problem_values(result.groups, result.measure) for result in (first, second))
    apart = change(before, after, bounds)
    if not apart.problems:
        raise UsageError(f"{first.name} and {second.name} have no problem in common: raise max_prompt_tokens")
    return Difference(first.name, second.name, apart)


def with_step(names: Sequence[str], step: int | None) -> list[str]:
    """Add the step of `--step` to the only name. Raises UsageError if there are several, or it is no run."""
    if step is None:
        return list(names)
    source = run_policy(names[0])
    if len(names) > 1 or source is None or source.step is not None:
        raise UsageError(f"--step {step}: of one run; among several policies write RUN:STEP, such as runs/NAME:{step}")
    return [str(RunPolicy(source.run, step))]


def _plan(name: str, recipe: RecipeLike | None, overrides: Mapping[str, object], note: Callable[[str], None]) -> Plan:
    """Resolve what is asked, and how: a recipe, or a run's own, with values laid over it."""
    task_of = evaluated_run(name) if recipe is None else recipe
    if not isinstance(task_of, (str, os.PathLike)) or not is_run(os.fspath(task_of)):
        of_program = given(task_of, overrides)
        plan, notes = plan_of(of_program, of_program.recipe)
    else:
        run = Path(task_of)
        for line in kept.differences(run):
            note(line)
        loaded, notes = with_threads(recipes.load(str(whole_recipe(run)), overrides))
        plan = resolve(loaded, place=run.resolve())
    for line in notes:
        note(line)
    return plan


def _evaluated(plan: Plan, name: str, note: Callable[[str], None]) -> PolicyResult:
    recipe, task = plan.recipe, plan.task
    named, policy = named_policy(name, recipe.device, note)
    engine = make_engine(policy=policy, settings=recipe.engine, note=note)
    chat = chat_of(recipe, task, policy.tokenizer)
    players = players_of(recipe, task)
    with (
        closing(engine),
        pool_of(recipe, plan.slow_rewards) or nullcontext() as pool,
        closing(players) if players else nullcontext(),
    ):
        require_sampling(engine, policy, recipe.evaluation_sampling, "evaluation")
        selection = selected(recipe, task, chat)
        require_no_fatal(check_chat(chat, policy.eos, selection.heldout))
        scorer = scorer_of(task, plan.rewards, policy, chat, pool)
        episodes = episodes_of(recipe, task, policy, chat, engine, players, note)
        sample = episodes or partial(advance, engine)
        judge = _judge(recipe, plan.folder / REWARD_MODEL)
        evaluation, groups = evaluation_of(recipe, sample, scorer, selection, judge)()
    return PolicyResult(named, recipe.measure, groups, evaluation)


def named_policy(name: str, device: str, note: Callable[[str], None]) -> tuple[str, Policy]:
    """Load a policy; its name, for a run with the step that was loaded, and the policy."""
    source = run_policy(name)
    if source is None:
        if not Path(name).is_dir() and not HUB_ID.fullmatch(name):
            raise UsageError(f"{name}: there is no such run (RUN or RUN:STEP), folder of a model, or id of a hub")
        return name, load_policy(model_folder(name), device=device, sampled_only=True)
    step, policy = policy_after(source.run, source.step, note, device)
    return str(RunPolicy(source.run, step)), policy


def result_lines(results: Results) -> list[str]:
    """Say the results in words."""
    several = len(results.policies) > 1
    lines = [line for result in results.policies for line in _policy_lines(result, several)]
    return lines + [_difference_line(apart) for apart in results.differences]


def _policy_lines(result: PolicyResult, named: bool) -> list[str]:
    e, around = result.evaluation, f" (95 % {result.interval})" if result.interval else ""
    mean = f"mean  {e.measured_mean:.4f}{around}; set evaluation.pass_at for pass rates"
    return [
        *([result.name] if named else []),
        f"{e.problems} held-out problems x {e.samples} samples",
        f"avg@{e.samples}  {e.avg_at_k:.4f}{around}" if e.pass_at_k else mean,
        *(f"pass@{k}  {value:.4f}" for k, value in e.pass_at_k.items()),
        f"mean length {e.length_mean:.1f} tokens, {e.truncated_share:.1%} cut off at the limit",
        *(f"reward {name}  mean {mean:.4f}" for name, mean in e.rewards.items()),
        *(_source_line(source, row, e.samples) for source, row in e.by_source.items()),
        *([f"{e.unscored} completions have no score; they do not pass, and no mean counts them"] if e.unscored else []),
    ]


def _source_line(source: str, row: Mapping[str, float], samples: int) -> str:
    rate = f"avg@{samples} {row['avg_at_k']:.4f}, " if "avg_at_k" in row else ""
    return f"{source}  {rate}mean {row['measured_mean']:.4f}"


def _difference_line(apart: Difference) -> str:
    seen, problems = apart.change, f"{apart.problems} problem{'s' * (apart.problems > 1)}"
    around = f" (95 % {seen.interval})" if seen.interval else ", of which no interval can be made"
    words = f"{apart.second} - {apart.first}: {apart.value:+.4f} on the same {problems}{around}"
    return f"{words}: {seen.verdict}{seen.remarks}"


def _judge(recipe: recipes.Recipe, folder: Path) -> Judge | None:
    """Load the run's reward model. Raises UsageError if there is none, and the evaluation reads it."""
    if recipe.preference is None:
        return None
    if folder.is_dir():
        return load_reward_model(folder, device=recipe.device).scores
    if recipe.measure.metric != CORRECTNESS:
        raise UsageError(
            f"evaluation.metric = {recipe.measure.metric!r}: it takes the reward model, and {folder} is not there; "
            "evaluate a run that has one"
        )
    return None


def require_place_for(out: Path | None) -> None:
    """Raise UsageError, before anything is sampled, if the folder exists or cannot be made."""
    if out is not None and os.path.lexists(out):
        raise UsageError(f"--out {out}: it exists already, and is not written over; name another folder")
    require_place(out or EVALUATIONS / "new", size=0)


def write_results(results: Results, out: Path | None) -> Path:
    """Write both files into `out`, or a new folder of EVALUATIONS; the folder appears whole or not at all."""
    folder = out or _free_folder("-against-".join(_label(result.name) for result in results.policies[:2]))

    def write(place: Path) -> None:
        place.mkdir()
        (place / RESULTS).write_bytes(jsonl.encoded(_results(results), indent=True) + b"\n")
        with (place / COMPLETIONS).open("wb") as file:
            file.writelines(jsonl.encoded(row) + b"\n" for result in results.policies for row in result.rows)

    try:
        make_folder(folder, write, "the evaluation")
    except RunError:
        with suppress(OSError):  # it is of use to others where it is not empty
            EVALUATIONS.rmdir()
        raise
    return folder


def _results(results: Results) -> dict[str, Any]:
    return {
        "policies": [
            {"name": each.name, **each.evaluation.row, "interval": _interval(each.interval)}
            for each in results.policies
        ],
        "differences": [
            {"first": d.first, "second": d.second, **d.change.row, "interval": _interval(d.interval)}
            for d in results.differences
        ],
        "recipe": resolved_recipe(results.plan),
        "ended": round(time.time(), 3),
        **where(results.plan.recipe.device),
    }


def _interval(around: Interval | None) -> dict[str, Any] | None:
    return None if around is None else dataclasses.asdict(around)


def _label(name: str) -> str:
    """Turn a policy's name into a folder's.

    >>> _label("models/smollm2/"), _label("Qwen/Qwen3-0.6B")
    ('smollm2', 'Qwen3-0.6B')
    """
    source = run_policy(name)
    text = f"{source.run.resolve().name}-step-{source.step}" if source else Path(name).resolve().name
    return re.sub(r"[^\w.+-]+", "-", text)[:LONGEST].strip(".-") or "policy"


def _free_folder(label: str) -> Path:
    names = itertools.chain([label], (f"{label}-{number}" for number in itertools.count(2)))
    return next(EVALUATIONS / name for name in names if not os.path.lexists(EVALUATIONS / name))
