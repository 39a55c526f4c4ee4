"""The runs that claims share differ in what trains, not only in what their keys say."""

from __future__ import annotations

from itertools import combinations

from groupwise.claims import experiments
from groupwise.claims.experiments import Experiment
from groupwise.config.recipe import load
from groupwise.config.resolve import resolve, resolved_recipe


def conditions() -> dict[str, Experiment]:
    every = [*vars(experiments).values(), *experiments.LADDER]
    return {each.name: each for each in every if isinstance(each, Experiment)}


def resolved(experiment: Experiment) -> dict[str, object]:
    _, recipe, keys, _ = experiment.measure.args  # type: ignore[attr-defined]
    return resolved_recipe(resolve(load(str(recipe), keys)))


def test_no_two_conditions_resolve_to_the_same_run() -> None:
    """As kl-loss and grpo did, while the recipe's beta of 0 stood over the row's 0.04."""
    runs = {name: resolved(each) for name, each in conditions().items()}
    assert len(runs) >= 23
    assert [(a, b) for a, b in combinations(runs, 2) if runs[a] == runs[b]] == []
