"""How a run's engine and learner are compared: what rounding may do, measured or read again, and the probe."""

import dataclasses
from collections.abc import Sequence
from functools import partial

from pydantic import ValidationError

from groupwise.config.plan import Plan
from groupwise.core.engine import Engine
from groupwise.core.files.atomic import open_regular
from groupwise.core.records import Group, Prompt
from groupwise.diagnostics.checks import Probe
from groupwise.diagnostics.tolerance import FLOAT32, Limits, Tolerance
from groupwise.journal.journal import Journal
from groupwise.models.load import Policy
from groupwise.rollout.collect import Prompts
from groupwise.training.learner import Learner
from groupwise.training.rounding import (
    PROMPTS,
    SAMPLES,
    Precisions,
    float32_logprobs,
    measured_tolerance,
    sampled_completions,
)

#: The tolerance's place in the run folder: a run that goes on has the limits that it had.
TOLERANCE = "tolerance.json"
#: The probe after a weight load: prompts, completions of each, tokens of each at most.
PROBE_PROMPTS, PROBE_SAMPLES, PROBE_TOKENS = 4, 2, 4
#: Tokens of each of its prompts at most: a cache of prefixes keeps blocks of 16 to 128 tokens, and one that is served
#: under new weights must show.
PROBE_PROMPT_TOKENS = 128


def run_limits(
    plan: Plan, policy: Policy, engine: Engine, learner: Learner, prompts: Prompts, journal: Journal
) -> Limits:
    """The run's tolerance, as its folder has it, else measured on its first prompts; and how it is measured again."""
    each = precisions(plan, engine)

    def keep(tolerance: Tolerance) -> None:
        journal.replace(TOLERANCE, tolerance.model_dump())

    def measure(groups: Sequence[Group]) -> Tolerance:
        few = [(group.prompt, group.completions[:SAMPLES]) for group in groups[:PROMPTS]]
        return measured_tolerance(policy, learner, each, *zip(*few, strict=True))

    if each.exact:
        return Limits(FLOAT32, measure, keep)
    tolerance = _read(journal)
    if tolerance is None:
        tolerance = tolerance_on(plan, policy, engine, learner, [prompts.draw(i) for i in range(PROMPTS)])
        keep(tolerance)
    return Limits(tolerance, measure, keep)


def tolerance_on(plan: Plan, policy: Policy, engine: Engine, learner: Learner, prompts: Sequence[Prompt]) -> Tolerance:
    """What rounding does under the weights as they are, on short completions of these prompts."""
    each = precisions(plan, engine)
    if each.exact:
        return FLOAT32
    completions = sampled_completions(engine, prompts, plan.recipe.sampling, plan.recipe.seed)
    return measured_tolerance(policy, learner, each, prompts, completions)


def precisions(plan: Plan, engine: Engine) -> Precisions:
    """What each side of the run's comparisons computes in."""
    recipe = plan.recipe
    reference = "bf16" if recipe.reference.precision == "bf16" else "fp32"
    return Precisions(recipe.learner.precision, engine.precision, reference if plan.algorithm.needs_reference else None)


def make_probe(plan: Plan, engine: Engine, learner: Learner, prompts: Prompts, pad: int, limits: Limits) -> Probe:
    """The fixed questions that engine and learner are both asked after each weight load, of the first training prompts.

    A float32 engine is answered in float32, whatever the policy is trained in: the probe compares weights.
    """
    recipe = plan.recipe
    exact = learner.bf16 and engine.precision == "fp32"
    logprobs = float32_logprobs(learner) if exact else learner.completion_logprobs
    return Probe(
        engine,
        logprobs=partial(logprobs, pad=pad),
        prompts=shortened([prompts.draw(i) for i in range(PROBE_PROMPTS)], PROBE_PROMPT_TOKENS),
        samples=PROBE_SAMPLES,
        tokens=PROBE_TOKENS,
        seed=recipe.seed,
        sampling=recipe.sampling,
        limits=limits,
    )


def shortened(prompts: Sequence[Prompt], most: int) -> list[Prompt]:
    """The prompts with `most` tokens at most: the first, which may be a BOS, and those from where they differ on.

    Ids 1 7 7 5 6 and 1 7 7 8 9 with at most 3 tokens -> 1 5 6 and 1 8 9.
    """
    differ = shared_by_all([prompt.tokens for prompt in prompts])
    return [dataclasses.replace(prompt, tokens=_part(prompt.tokens, differ, most)) for prompt in prompts]


def _part(tokens: tuple[int, ...], start: int, most: int) -> tuple[int, ...]:
    """The first token and those from `start` on, or as many of the last as there may be."""
    if len(tokens) <= most:
        return tokens
    start = max(1, min(start, len(tokens) - (most - 1)))
    return (*tokens[:1], *tokens[start : start + most - 1])


def shared_by_all(rows: Sequence[Sequence[int]]) -> int:
    """How many ids all rows begin with.

    >>> shared_by_all([(1, 2, 3), (1, 2, 4)]), shared_by_all([(1, 2), (1, 2)])
    (2, 2)
    """
    return next((at for at, ids in enumerate(zip(*rows, strict=False)) if len(set(ids)) > 1), min(map(len, rows)))


def _read(journal: Journal) -> Tolerance | None:
    """As an earlier process of the run measured it; None where there is none that can be read."""
    try:
        with open_regular(journal.folder / TOLERANCE) as file:
            return Tolerance.model_validate_json(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        journal.log(f"{journal.folder / TOLERANCE} cannot be read: it is measured again")
        return None
