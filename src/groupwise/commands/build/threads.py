"""The threads of a run: picked once, at its start, because the bits that are computed depend on them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from groupwise.config.recipe import Recipe
from groupwise.core.machine.load import cores, free_threads, held_cores
from groupwise.training.optimizer import AUTO


def with_threads(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """The recipe with a number of threads, and what the plan says of it; nothing where all cores are free."""
    usual = max(1, torch.get_num_threads() // recipe.learner.ranks)
    if recipe.device == "cuda" or max(usual, 1 if recipe.threads == AUTO else recipe.threads) == 1:
        return recipe.replace(threads=usual if recipe.threads == AUTO else recipe.threads), []
    held = held_cores()
    free = free_threads(usual, held, among=cores())
    busy = f"other work holds {held:.1f} of {cores()} cores"
    if recipe.threads == AUTO:
        words = f"threads      {free} instead of {usual}: {busy}, and steps with more may take many times as long"
        return recipe.replace(threads=free), [words] * (free < usual)
    slow = f"threads      {recipe.threads}, as the recipe says: {busy}, so steps may take many times as long"
    return recipe, [slow] * (free < min(usual, recipe.threads))


@contextmanager
def threads(recipe: Recipe) -> Iterator[None]:
    """Inside, torch has the recipe's threads."""
    before = torch.get_num_threads()
    if recipe.threads != AUTO:
        torch.set_num_threads(recipe.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
