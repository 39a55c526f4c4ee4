"""`torchrun -m groupwise.cli train ...`: rank 0 trains, and the others follow it to the end of the run."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from groupwise.commands.build.learner import take_part
from groupwise.commands.train.resume import differences
from groupwise.config import recipe as recipes
from groupwise.config.recipe import Recipe
from groupwise.core import VERSION
from groupwise.core.errors import GroupwiseError, UsageError
from groupwise.core.processes.stop import SIGNALS
from groupwise.training.ranks.followers import given_ranks, join_given

#: Seconds that a rank which has nothing to say waits for the end of rank 0, so that torchrun does not end that first.
ENDS = 20.0
#: What rank 0 says where all were asked for the same.
AGREED = "yes"
#: What a rank says to the others before anything is loaded.
Request = dict[str, Any]


def follows(recipe: str | None, resume: Path | None, overrides: Mapping[str, object]) -> bool:
    """Follow rank 0 to the end of the run if this process is another rank of torchrun's; whether it is.

    recipe, resume, overrides  what it was asked to train, which is to be the same on every rank
    Raises UsageError, on rank 0 alone, if it is not; then the others end in silence.
    """
    given = given_ranks()
    if given is None:
        return False
    store, asked = given.store(), partial(_request, recipe, resume, overrides)
    if given.rank == 0:
        _require_agreement(store, given.size, asked)
        return False
    _agree(store, given.rank, asked)
    mesh = join_given(given)
    for number in SIGNALS:
        with suppress(ValueError):  # not in the main thread
            signal.signal(number, signal.SIG_IGN)  # rank 0 hears it too, ends its step, and says when to stop
    take_part(mesh)
    return True


def with_given_ranks(recipe: Recipe) -> Recipe:
    """Give a recipe as many ranks as torchrun has started, if it has.

    Raises UsageError if the recipe says another number, or this process is to follow and not to train.
    """
    given = given_ranks()
    if given is None:
        return recipe
    if given.rank:
        raise UsageError(
            f"rank {given.rank} of torchrun's: a program trains on rank 0 alone, and has no other ranks; "
            "start it with torchrun -m groupwise.cli train RECIPE"
        )
    learner, restarts = recipe.learner, recipe.placement.restarts
    if "ranks" in learner.model_fields_set and learner.ranks != given.size:
        raise UsageError(
            f"learner.ranks = {learner.ranks}: torchrun has started {given.size} processes; set it to {given.size}, or "
            f"start {learner.ranks} with --nproc-per-node"
        )
    if restarts:
        raise UsageError(
            f"placement.restarts = {restarts}: torchrun's processes cannot be started again from here; set it to 0"
        )
    return recipe.replace(learner=learner.replace(ranks=given.size))


def disagreement(own: Request, rank: int, others: Request) -> str:
    """Say what another rank was asked for that this one was not; "" if both were asked for the same.

    >>> disagreement({"version": "1.0", "recipe": {"steps": 3}}, 1, {"version": "1.0", "recipe": {"steps": 4}})
    'rank 1 was asked for another run than rank 0: steps 3 -> 4; give all the same'
    """
    if others.get("error"):
        return f"rank {rank}: {others['error']}"
    if own["version"] != others["version"]:
        return (
            f"rank {rank} has groupwise {others['version']}, and rank 0 has {own['version']}: install the same "
            "everywhere"
        )
    changes = differences(own["recipe"], others["recipe"])
    words = "; ".join(map(str, changes[:3]))
    return f"rank {rank} was asked for another run than rank 0: {words}; give all the same" if changes else ""


def _require_agreement(store: Store, size: int, asked: Callable[[], Request]) -> None:
    """Compare, on rank 0, what all were asked for, and tell the others whether it is the same."""
    wrong = "rank 0 cannot begin"
    try:
        own = asked()
        others = [json.loads(store.get(f"asked {rank}")) for rank in range(1, size)]
        wrong = next((words for rank, one in enumerate(others, 1) if (words := disagreement(own, rank, one))), "")
    finally:
        store.set("agreed", wrong or AGREED)
    if wrong:
        raise UsageError(wrong)


def _agree(store: Store, rank: int, asked: Callable[[], Request]) -> None:
    """Say, on another rank, what it was asked for; end in silence if that is something else, for rank 0 says it."""
    try:
        request = asked()
    except GroupwiseError as error:
        request = {"error": str(error)}
    store.set(f"asked {rank}", json.dumps(request))
    if store.get("agreed") != AGREED.encode():
        time.sleep(ENDS)
        sys.exit(UsageError.exit_code)


def _request(recipe: str | None, resume: Path | None, overrides: Mapping[str, object]) -> Request:
    if resume is not None:
        table: dict[str, Any] = {"resume": os.path.realpath(resume), **overrides}
    else:
        table = recipes.load(str(recipe), overrides).model_dump(mode="json", exclude_none=True)
    return {"version": VERSION, "recipe": table}
