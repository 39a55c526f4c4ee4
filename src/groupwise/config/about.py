"""about.json: the algorithm in its own words, and where and when it ran. Everything else is in recipe.toml."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.explain import lines, objective
from groupwise.config.changes import Change
from groupwise.config.plan import Plan
from groupwise.core import VERSION
from groupwise.core.machine import facts as machine


def about(plan: Plan, started: float) -> dict[str, Any]:
    """What a run says of itself at its start; `started` in unix seconds."""
    return {
        "groupwise": VERSION,
        "started": round(started, 3),
        **where(plan.recipe.device),
        "algorithm": algorithm_row(plan.algorithm),
        "task": plan.recipe.task.get("name") or type(plan.task).__name__,
        **({"code": [{"path": str(one.path), "sha256": one.sha256} for one in plan.code]} if plan.code else {}),
        "resumed": [],
    }


def resumed(
    before: Mapping[str, Any],
    step: int,
    now: float,
    device: str,
    changes: Sequence[Change] = (),
    rollbacks: Sequence[Mapping[str, Any]] = (),
    lost: str = "",
) -> dict[str, Any]:
    """The same, going on after `step` at `now`, unix seconds; `changes` are those of its recipe, `rollbacks` the
    returns that the checkpoint has, `lost` the process after whose loss it goes on by itself.
    """
    entry: dict[str, Any] = {"step": step, "started": round(now, 3), **where(device)}
    if lost:
        entry["lost"] = lost
    if changes:
        entry["changed"] = {change.key: [change.before, change.after] for change in changes}
    rest = {key: value for key, value in before.items() if key != "rolled_back"}
    returns = {"rolled_back": [*rollbacks]} if rollbacks else {}
    return {**rest, "resumed": [*before.get("resumed", []), entry], **returns}


def where(device: str) -> dict[str, Any]:
    """The machine and the libraries."""
    return {"machine": machine.words(device), "versions": machine.versions()}


def algorithm_row(row: Algorithm) -> dict[str, Any]:
    """The row of parts, each with its kind, its values and its equation."""
    parts = [
        {"slot": slot, **_kind_and_value(description), "equation": equation}
        for slot, description, equation in lines(row)
    ]
    return {
        "name": row.name,
        "paper": row.paper,
        "watch": row.watch,
        "objective": objective(row),
        "compares_within_group": row.advantage.compares_within_group,
        "parts": parts,
    }


def _kind_and_value(description: str) -> dict[str, str]:
    """A part as `describe` says it, in two.

    >>> _kind_and_value("clip(epsilon_low=0.2)"), _kind_and_value("k3 in the loss, beta=0.04"), _kind_and_value("0")
    ({'kind': 'clip', 'value': 'epsilon_low=0.2'}, {'kind': 'k3', 'value': 'in the loss, beta=0.04'},
     {'kind': '', 'value': '0'})
    """
    if description[0].isdigit():
        return {"kind": "", "value": description}
    kind, _, value = description.partition("(" if description.endswith(")") else " ")
    return {"kind": kind, "value": value.removesuffix(")") if description.endswith(")") else value}
