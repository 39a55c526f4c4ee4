"""Request of a sweep: every run of it checked before the first one starts, and the folder known for its own."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.commands.sweep import grid
from groupwise.commands.sweep.grid import Cell, Over, Values
from groupwise.config.given import given
from groupwise.config.plan import Plan
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_files import find
from groupwise.config.resolve import resolve
from groupwise.config.validate import require_offloadable
from groupwise.core.code.user_code import Source
from groupwise.core.errors import UsageError, brief, shortened
from groupwise.core.files.atomic import open_regular
from groupwise.core.files.json_text import json_value
from groupwise.core.files.jsonl import encoded, flat
from groupwise.core.machine.facts import cores
from groupwise.journal.journal import LOCK

#: Files in the folder of a sweep, beside the folders of its runs.
CSV, JSON, SECONDS, PAGE = "sweep.csv", "sweep.json", "seconds.csv", "comparison.html"
#: The mark of a sweep.json; another number where it is written in another form.
VERSION = 1
#: The one key that a sweep sets where nobody does: with another number of threads a run has other bits.
THREADS = "threads"


@dataclass(frozen=True)
class Request:
    """Sweep as it was asked for, checked.

    recipe    a name or a path
    settings  dotted keys that are laid over it in every run
    over      the values of each key that runs differ in
    base      flat keys of the recipe with the settings laid over it, but those of `over`
    code      files of the user's own that runs are made of: their name, and a hash
    threads   of each run; None leaves that to the recipe
    """

    recipe: str
    settings: Values
    over: Over
    base: Values
    code: Mapping[str, str]
    threads: int | None

    def cells(self) -> Iterator[Cell]:
        """List the runs."""
        return grid.cells(self.over, taken={CSV, JSON, SECONDS, PAGE})

    def keys_of(self, cell: Cell, folder: Path) -> dict[str, object]:
        """List what is laid over the recipe in one run."""
        threads = {} if self.threads is None else {THREADS: self.threads}
        return {**threads, **self.settings, **cell.values, "name": cell.name, "runs": str(folder)}

    def table(self) -> dict[str, Any]:
        """Write down what makes this sweep another than others, as sweep.json has it."""
        asked = {"recipe": self.recipe, "base": self.base, "over": self.over, "code": self.code}
        return {"groupwise_sweep": VERSION, **asked, THREADS: self.threads}


def request(recipe: str, settings: Values, over: Over, at_once: int) -> Request:
    """Check a recipe with each combination of values. Raises UsageError, one line, for the first that could not run."""
    for key in settings:
        grid.require_free(key, "--set")
    base = given(recipe, settings).recipe
    plans = [_checked(recipe, settings, cell) for cell in grid.cells(over, taken=())]
    sources = {source.path: source for plan in plans for source in plan.code}
    table = base.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude=set(grid.OWN))
    own = {key: value for key, value in flat(table).items() if not any(f"{key}.".startswith(f"{k}.") for k in over)}
    keys = {key: _by_name(value, sources) for key, value in own.items()}
    code = {source.path.name: source.sha256[:16] for source in sources.values()}
    on_cpu = all(plan.recipe.device == "cpu" for plan in plans)
    free = base.threads == "auto" and THREADS not in over and on_cpu
    threads = max(1, cores() // (at_once * base.learner.ranks)) if free else None
    return Request(recipe, settings, over, keys, code, threads)


def _checked(recipe: str, settings: Values, cell: Cell) -> Plan:
    """Resolve one run. The values that are named in a refusal are those without which there is none."""
    plan, refusal = _tried(recipe, {**settings, **cell.values})
    if plan is not None:
        return plan
    if refusal == _tried(recipe, settings)[1]:
        raise UsageError(refusal)
    alone = [{key: value} for key, value in cell.values.items()]
    blamed = next((one for one in alone if _tried(recipe, {**settings, **one})[1] == refusal), cell.values)
    message = refusal.removeprefix(f"{find(recipe).name}: ")
    raise UsageError(f"--over {grid.options(blamed)}: {message}")


def _tried(recipe: str, overrides: Values) -> tuple[Plan | None, str]:
    try:
        one = given(recipe, overrides)
        loaded, files = one.placed(one.recipe)
        plan = resolve(loaded, files=files)
        require_offloadable(plan.recipe)
        plan.recipe.engine.require_device(plan.recipe.device)
    except UsageError as refused:
        return None, str(refused)
    return plan, ""


def _by_name(value: object, sources: Mapping[Path, Source]) -> object:
    """Write `path.py:Name` as `name.py:Name` where the file has a hash in the request."""
    path, colon, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{Path(path).name}{colon}{name}" if colon and Path(path) in sources else value


def default_folder(recipe: str, settings: Values) -> Path:
    """Choose the folder of a sweep that none is given for: beside the recipe's own runs, by its name."""
    loaded: Recipe = given(recipe, settings).recipe
    return Path(loaded.runs) / f"{loaded.name}-sweep"


def read_asked(folder: Path) -> dict[str, Any] | None:
    """Read the sweep.json of a folder; None if nothing was begun there.

    Raises UsageError if the folder holds something else, or another version.
    """
    if not os.path.lexists(folder):
        return None
    if not folder.is_dir():
        raise UsageError(f"--out {folder}: this is no folder; choose another")
    if not os.path.lexists(folder / JSON):
        others = [name for name in sorted(os.listdir(folder)) if name != LOCK and not name.startswith(".partial-")]
        if others:
            raise UsageError(
                f"{folder}: this holds {brief(others[0])} and no {JSON}, so it is no sweep's; choose another with --out"
            )
        return None
    try:
        with open_regular(folder / JSON) as file:
            table = json_value(file.read(), str(folder / JSON))
    except OSError as error:
        raise UsageError(f"{folder / JSON}: cannot be read: {error.strerror}; choose another with --out") from None
    if not isinstance(table, dict) or "groupwise_sweep" not in table:
        raise UsageError(f"{folder / JSON}: this is no sweep's; choose another folder with --out")
    if table["groupwise_sweep"] != VERSION:
        version = brief(table["groupwise_sweep"])
        raise UsageError(f"{folder / JSON}: of version {version}, this is {VERSION}; choose another folder with --out")
    return table


def require_same(asked: Request, before: Mapping[str, Any], folder: Path) -> None:
    """Raise UsageError naming what differs if the folder is another sweep's."""
    now = json.loads(encoded(asked.table()))
    for part, title in (("over", "--over "), ("base", ""), ("code", "the file ")):
        old, new = (_part(table, part) for table in (before, now))
        keys = [key for key in dict.fromkeys([*new, *old]) if old.get(key) != new.get(key)]
        if keys or list(old) != list(new):
            there, here = (_value(table, keys[0], part) if keys else ", ".join(table) for table in (old, new))
            raise UsageError(
                f"{folder}: this is the folder of another sweep: {title}{keys[0] if keys else 'the order'} is {there} "
                f"there and {here} here; choose another with --out"
            )


def _part(table: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    found = table.get(part)
    return found if isinstance(found, Mapping) else {}


def _value(table: Mapping[str, Any], key: str, part: str) -> str:
    if key not in table:
        return "not set"
    value = table[key]
    listed = ",".join(map(grid.shown, value)) if part == "over" and isinstance(value, list) else grid.shown(value)
    return shortened(listed, 80)
