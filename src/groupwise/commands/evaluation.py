"""Evaluate policies, and keep what it came to: what the Python surface calls."""

import os
from collections.abc import Mapping

from groupwise.commands.evaluate import Results, evaluate_policies, with_step
from groupwise.commands.evaluation_files import require_place_for, write_results
from groupwise.config.given import RecipeLike
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import location


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
    Raises UsageError where there is nothing to evaluate, or no recipe.
    """
    if not policies:
        raise UsageError("evaluate: name a run, the folder of a model, or several")
    names = with_step([str(location(policy, "policy")) for policy in policies], step)
    place = None if out is None else location(out, "out")
    if place is not None:
        require_place_for(place)
    results = evaluate_policies(names, recipe, overrides)
    if place is not None:
        write_results(results, place)
    return results
