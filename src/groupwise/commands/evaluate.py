"""Sample policies on held-out problems: of runs, or of any model; one alone, or several on the same problems."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.commands.build.build import sampled_heldout
from groupwise.commands.build.episodes import environments_of, sampler_of
from groupwise.commands.build.policies import policy_after
from groupwise.commands.build.pools import pool_of
from groupwise.commands.build.selected import chat_of, selected
from groupwise.commands.build.threads import threads, with_threads
from groupwise.config import recipe as recipes
from groupwise.config.given import RecipeLike, given
from groupwise.config.plan import REWARD_MODEL, Plan
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.core.machine.terminal import Terminal
from groupwise.core.numbers.change import SHARE, Change, change
from groupwise.core.numbers.measure import CORRECTNESS, Measure
from groupwise.core.numbers.statistics import Interval, pass_rate_interval, seen_mean_interval
from groupwise.core.records import Evaluation, Group
from groupwise.engines.make import make_engine, require_sampling
from groupwise.journal import code
from groupwise.journal.recipe_file import whole_recipe
from groupwise.journal.rollout_rows import completion_columns
from groupwise.models.chat.history import thinking_of
from groupwise.models.chat.template_checks import check_chat, require_no_fatal
from groupwise.models.load import Policy, load_policy, model_folder
from groupwise.models.reward import load_reward_model
from groupwise.rollout.collect import Judge, measured, problem_values
from groupwise.rollout.scoring import Scorer
from groupwise.training.start.initial_policy import HUB_ID
from groupwise.training.start.run_policy import RunPolicy, is_run, run_policy


@dataclass(frozen=True)
class PolicyResult:
    """One policy's answers.

    name     as it was asked for; of a run RUN:STEP
    measure  what they are measured by
    """

    name: str
    measure: Measure
    groups: Sequence[Group]
    evaluation: Evaluation

    @property
    def interval(self) -> Interval | None:
        """Around the pass rate; without a pass mark around the mean of what is measured, where there can be one."""
        e = self.evaluation
        if self.measure.pass_at is None:
            return seen_mean_interval(list(e.by_problem.values()))
        return pass_rate_interval(e.avg_at_k, e.problems, e.samples, e.standard_error)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every completion, as in completions.jsonl: policy, problem, sample, prompt, completion, score, ..."""
        return [
            {"policy": self.name, "problem": problem, "sample": sample, **completion_columns(group, one, self.measure)}
            for problem, group in enumerate(self.groups)
            for sample, one in enumerate(group.completions)
        ]


@dataclass(frozen=True)
class Difference:
    """Of two policies on the problems that both were asked, `second` - `first`: of pass rates, or without a pass mark
    of means in reward units. From `first` to `second` it rose, fell, or cannot be told (`change.verdict`).
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
    """What several policies come to under one plan, in the order they were asked for; differences are to the first."""

    plan: Plan
    policies: tuple[PolicyResult, ...]
    differences: tuple[Difference, ...]

    @property
    def evaluation(self) -> Evaluation:
        """The first policy's."""
        return self.policies[0].evaluation

    def __str__(self) -> str:
        return "\n".join(result_lines(self))


def evaluate_policies(
    names: Sequence[str],
    recipe: RecipeLike | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Results:
    """Samples each policy on the held-out problems of a recipe, with the same random numbers.

    names   runs (RUN, or RUN:STEP), folders of models, or ids of a hub
    recipe  a recipe, or a run; None is the first policy's own, where that is a run
    Raises UsageError where there is nothing to evaluate, or no recipe.
    """
    note = Terminal(stderr=True).print
    plan = _plan(names[0], recipe, overrides or {}, note)
    if not plan.evaluated:
        raise UsageError("evaluation.problems = 0: there is nothing to evaluate; --set evaluation.problems=64")
    plan.recipe.engine.require_place()
    with threads(plan.recipe):
        results = tuple(_evaluated(plan, name, note) for name in names)
    return Results(plan, results, tuple(difference(results[0], other) for other in results[1:]))


def difference(first: PolicyResult, second: PolicyResult) -> Difference:
    """`second` - `first` over the problems that both have answered.

    Raises UsageError where there is none, as where max_prompt_tokens leaves each tokenizer other problems.
    """
    bounds = None if first.measure.pass_at is None else SHARE
    before, after = (problem_values(result.groups, result.measure) for result in (first, second))
    apart = change(before, after, bounds)
    if not apart.problems:
        raise UsageError(f"{first.name} and {second.name} have no problem in common: raise max_prompt_tokens")
    return Difference(first.name, second.name, apart)


def with_step(names: Sequence[str], step: int | None) -> list[str]:
    """The names, the only one with the step of `--step`. Raises UsageError where that says nothing clear."""
    if step is None:
        return list(names)
    source = run_policy(names[0])
    if len(names) > 1 or source is None or source.step is not None:
        raise UsageError(f"--step {step}: of one run; among several policies write RUN:STEP, such as runs/NAME:{step}")
    return [str(RunPolicy(source.run, step))]


def _plan(name: str, recipe: RecipeLike | None, overrides: Mapping[str, object], note: Callable[[str], None]) -> Plan:
    """What is asked, and how: by a recipe, or by a run's own, with values laid over it."""
    source = run_policy(name)
    if recipe is None and source is None:
        raise UsageError(f"{name}: no run folder; to evaluate a model say on which task: --recipe RECIPE")
    task_of = source.run if recipe is None and source is not None else recipe
    assert task_of is not None
    if not isinstance(task_of, (str, os.PathLike)) or not is_run(os.fspath(task_of)):
        of_program = given(task_of, overrides)
        loaded, files = of_program.placed(_with_threads(of_program.recipe, note))
        return resolve(loaded, files=files)
    run = Path(task_of)
    for line in code.differences(run):
        note(line)
    return resolve(_with_threads(recipes.load(str(whole_recipe(run)), overrides), note), place=run.resolve())


def _with_threads(recipe: recipes.Recipe, note: Callable[[str], None]) -> recipes.Recipe:
    chosen, notes = with_threads(recipe)
    for line in notes:
        note(line)
    return chosen


def _evaluated(plan: Plan, name: str, note: Callable[[str], None]) -> PolicyResult:
    """One policy, loaded, asked and let go."""
    named, policy = _policy(name, plan.recipe.device, note)
    engine = make_engine(policy=policy, settings=plan.recipe.engine, note=note)
    chat = chat_of(plan, policy.tokenizer)
    environments = environments_of(plan)
    with (
        closing(engine),
        pool_of(plan) or nullcontext() as pool,
        closing(environments) if environments else nullcontext(),
    ):
        require_sampling(engine, policy, plan.evaluation_sampling, "evaluation")
        selection = selected(plan, chat)
        require_no_fatal(check_chat(chat, policy.eos, selection.heldout))
        turns = chat.template is not None
        scorer = Scorer(plan.task, policy.decode, plan.mix, pool, thinking=thinking_of(chat), turns=turns)
        sample = sampler_of(plan, policy, chat, engine, environments)
        answers = sampled_heldout(plan, sample, scorer, selection, _judge(plan))()
    return PolicyResult(named, plan.measure, answers.groups, measured(answers, plan.measure, scorer.has_answers))


def _policy(name: str, device: str, note: Callable[[str], None]) -> tuple[str, Policy]:
    """A policy, and its name; of a run with the step that it is of."""
    source = run_policy(name)
    if source is None:
        if not Path(name).is_dir() and not HUB_ID.fullmatch(name):
            raise UsageError(f"{name}: there is no such run (RUN or RUN:STEP), folder of a model, or id of a hub")
        return name, load_policy(model_folder(name), device=device, sampled_only=True)
    after = policy_after(source.run, source.step, note, device)
    return str(RunPolicy(source.run, after.step)), after.policy


def result_lines(results: Results) -> list[str]:
    """The results in words."""
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


def _judge(plan: Plan) -> Judge | None:
    """What the run's reward model scores with. Raises UsageError where there is none, and the evaluation reads it."""
    folder = plan.folder / REWARD_MODEL
    if plan.recipe.preference is None:
        return None
    if folder.is_dir():
        return load_reward_model(folder, device=plan.recipe.device).scores
    if plan.measure.metric != CORRECTNESS:
        raise UsageError(
            f"evaluation.metric = {plan.measure.metric!r}: it takes the reward model, and {folder} is not there; "
            "evaluate a run that has one"
        )
    return None
