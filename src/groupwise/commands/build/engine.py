"""Engine of a run, and how it is compared with the learner: the tolerance, measured or read again, and the probe."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from pydantic import ValidationError

from groupwise.config.recipe import Recipe
from groupwise.core.engine import Engine
from groupwise.core.files.atomic import open_regular
from groupwise.core.machine.cards import Cards
from groupwise.core.processes.place import HERE, Place
from groupwise.core.records import Group, Prompt
from groupwise.diagnostics.checks import Probe
from groupwise.diagnostics.tolerance import FLOAT32, Limits, Tolerance
from groupwise.engines.make import make_engine, require_engine_support, require_engine_top, require_sampling
from groupwise.journal.journal import Journal
from groupwise.models.load import Policy
from groupwise.models.moe.record import Router
from groupwise.models.moe.settings import require_engine_routes
from groupwise.rollout.collect import Prompts
from groupwise.training.learner import Learner
from groupwise.training.numerical_noise import (
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


def training_engine(
    recipe: Recipe,
    policy: Policy,
    routers: Sequence[Router],
    note: Callable[[str], None] = lambda line: None,
    place: Place = HERE,
    cards: Cards | None = None,
    top: int = 0,
) -> Engine:
    """Start an engine for the policy. Raises UsageError if it does not return what training needs.

    cards  GPUs that several engines in children take; None: all take the policy's device
    top    the sampler's most likely ids that the loss reads of each token
    """
    settings, devices = recipe.engine.replace(sleep=recipe.engine_sleeps), engine_devices(recipe, cards)
    if settings.place == "inside" and policy.model.device.type != recipe.device:  # it is to be sharded from the host
        policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model).to(recipe.device))
    engine = make_engine(
        policy=policy, settings=settings, routes=bool(routers), note=note, place=place, devices=devices
    )
    try:
        require_engine_routes(engine, recipe.routing)
        require_engine_support(engine, recipe.sampling)
        require_engine_top(engine, top)
        require_sampling(engine, policy, recipe.sampling, "sampling")
        require_sampling(engine, policy, recipe.evaluation_sampling, "evaluation")
    except BaseException:
        engine.close()
        raise
    return engine


def engine_devices(recipe: Recipe, cards: Cards | None) -> list[str]:
    """Name the device of each engine in a child; none if there is no such engine, or all are where the policy is."""
    if recipe.device == "cpu" or recipe.engine.place != "child":
        return []
    numbers = cards.engines if cards else (0,) * recipe.engine.count  # an actor of Ray's sees its own GPU alone
    return [f"{recipe.device}:{number}" for number in numbers]


def run_limits(
    recipe: Recipe,
    each: Precisions,
    policy: Policy,
    engine: Engine,
    learner: Learner,
    prompts: Prompts,
    journal: Journal,
) -> Limits:
    """Read the run's tolerance from its folder, else measure it on its first prompts.

    each  what the sides of the comparison compute in
    """

    def keep(tolerance: Tolerance) -> None:
        journal.replace(TOLERANCE, tolerance.model_dump())

    def measure(groups: Sequence[Group]) -> Tolerance:
        few = [(group.prompt, group.completions[:SAMPLES]) for group in groups[:PROMPTS]]
        return measured_tolerance(policy, learner, each, *zip(*few, strict=True))

    if each.exact:
        return Limits(FLOAT32, measure, keep)
    tolerance = _read(journal)
    if tolerance is None:
        first = [prompts.draw(i) for i in range(PROMPTS)]
        tolerance = tolerance_on(recipe, each, policy, engine, learner, first)
        keep(tolerance)
    return Limits(tolerance, measure, keep)


def tolerance_on(
    recipe: Recipe, each: Precisions, policy: Policy, engine: Engine, learner: Learner, prompts: Sequence[Prompt]
) -> Tolerance:
    """Measure numerical noise under the weights as they are, on short completions of these prompts."""
    if each.exact:
        return FLOAT32
    completions = sampled_completions(engine, prompts, recipe.sampling, recipe.seed)
    return measured_tolerance(policy, learner, each, prompts, completions)


def precisions(recipe: Recipe, engine: Engine, needs_reference: bool) -> Precisions:
    """Say what each side of the run's comparisons computes in."""
    of_copy = recipe.reference.precision
    reference = "fp32" if of_copy == "same" else of_copy
    return Precisions(recipe.learner.precision, engine.precision, reference if needs_reference else None)


def make_probe(recipe: Recipe, engine: Engine, learner: Learner, prompts: Prompts, pad: int, limits: Limits) -> Probe:
    """Fix the questions that engine and learner are both asked after each weight load, of the first training prompts.

    A float32 engine is answered in float32, whatever the policy is trained in: the probe compares weights.
    """
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
    """Shorten prompts to `most` tokens: the first, which may be a BOS, and those from the first difference on.

    Ids 1 7 7 5 6 and 1 7 7 8 9 with at most 3 tokens -> 1 5 6 and 1 8 9.
    """
    differ = shared_by_all([prompt.tokens for prompt in prompts])

    def part(tokens: tuple[int, ...]) -> tuple[int, ...]:
        if len(tokens) <= most:
            return tokens
        start = max(1, min(differ, len(tokens) - (most - 1)))  # near the end as many of the last as there may be
        return (*tokens[:1], *tokens[start : start + most - 1])

    return [dataclasses.replace(prompt, tokens=part(prompt.tokens)) for prompt in prompts]


def shared_by_all(rows: Sequence[Sequence[int]]) -> int:
    """Count the ids that all rows begin with.

    >>> shared_by_all([(1, 2, 3), (1, 2, 4)]), shared_by_all([(1, 2), (1, 2)])
    (2, 2)
    """
    return next((at for at, ids in enumerate(zip(*rows, strict=False)) if len(set(ids)) > 1), min(map(len, rows)))


def _read(journal: Journal) -> Tolerance | None:
    """Read what an earlier process of the run measured; None if there is none that can be read."""
    try:
        with open_regular(journal.folder / TOLERANCE) as file:
            return Tolerance.model_validate_json(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        journal.log(f"{journal.folder / TOLERANCE} cannot be read: it is measured again")
        return None
