"""Model card of a policy: what it was trained from, how, on what, and what was measured, as a hub shows it."""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.config.recipe_files import read_table
from groupwise.core.files.jsonl import flat
from groupwise.core.numbers.measure import CORRECTNESS
from groupwise.health.symptoms.base import Measured, is_number, measured
from groupwise.journal.journal import read_about, read_problems, sound_metrics
from groupwise.journal.kept import whole_recipe
from groupwise.journal.live import curve
from groupwise.reports.folder.columns import change_of, interval, spaced, with_problems
from groupwise.reports.folder.lines import table as as_table

Row = Mapping[str, Any]

#: A bar inside a cell of a table.
BAR = "\\|"
#: Rows that a table of the card has at most; characters that a line of bars has.
MOST_ROWS, BARS = 12, 60
#: What a row of training shows, where a run has it.
COLUMNS = {
    "reward_mean": "reward",
    "pass_rate": "pass rate",
    "length_mean": "length, tokens",
    "entropy_mean": "entropy, nats",
    "kl_mean": "KL, nats",
}


def card_of(run: Path, step: int, name: str) -> str:
    """Write the card of a run's policy after `step`; `name` is what it is loaded by."""
    path = whole_recipe(run)
    recipe, about = read_table(path), read_about(run)
    rows = [row for row in sound_metrics(run) if row["step"] <= step]
    parts = [
        _front_matter(recipe),
        f"# {name.rpartition('/')[2]}\n\n{_beginning(recipe, about, step)}",
        _use(name),
        _results(run, recipe, step),
        _training([row for row in rows if "evaluation" not in row]),
        _data(recipe, about),
        _algorithm(about),
        _versions(about),
        _recipe(path.read_text(encoding="utf-8")),
    ]
    return "\n".join(part for part in parts if part)


def _front_matter(recipe: Row) -> str:
    """Write what a hub reads of a card: YAML between two lines."""
    tags = ["groupwise", "reinforcement-learning", str(recipe.get("algorithm", {}).get("name", ""))]
    lines = ["library_name: transformers", "pipeline_tag: text-generation", "tags:"]
    lines += [f"- {tag}" for tag in tags if re.fullmatch(r"[\w-]+", tag)]
    model = str(recipe.get("model", ""))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model, re.ASCII) and not os.path.exists(model):
        lines.append(f"base_model: {model}")
    return "\n".join(["---", *lines, "---", ""])


def _beginning(recipe: Row, about: Row, step: int) -> str:
    algorithm = as_table(about.get("algorithm"))
    paper = f" ({algorithm['paper']})" if algorithm.get("paper") else ""
    name = algorithm.get("name", recipe.get("algorithm", {}).get("name", ""))
    return (
        f"Language model `{recipe.get('model', '')}`, trained by reinforcement learning with `{name}`{paper} for "
        f"{step} of {recipe.get('steps')} steps of {recipe.get('prompts_per_step')} prompts x "
        f"{recipe.get('samples_per_prompt')} completions, with groupwise {about.get('groupwise', '')}.\n"
    )


def _use(name: str) -> str:
    return f"""\
## How to load it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({name!r})
tokenizer = AutoTokenizer.from_pretrained({name!r})
```
"""


def _results(run: Path, recipe: Row, step: int) -> str:
    """Write the evaluations up to a step with their intervals, and the change between the first and the last."""
    rows = [row for row in sound_metrics(run) if "evaluation" in row and row["step"] <= step]
    with_problems(rows, read_problems(run))
    known = {row["step"]: row["evaluation"] for row in rows}
    if not known:
        return "## Results\n\nThe run evaluated nothing before this step.\n"
    settings = recipe.get("evaluation", {})
    metric = str(settings.get("metric", CORRECTNESS))
    what = measured(metric, metric == CORRECTNESS or settings.get("pass_at") is not None)
    steps = [list(known)[i] for i in spaced(len(known), MOST_ROWS)]
    first, last = known[steps[0]], known[steps[-1]]
    lines = [f"Held out: {last['problems']} problems x {last['samples']} samples."]
    if len(steps) > 1:
        change = change_of(first, last, what)
        lines.append(f"From step {steps[0]} to step {steps[-1]} the {what.words} {change}.")
    head = ("after step", what.words, "95 % interval", "length, tokens")
    return f"## Results\n\n{' '.join(lines)}\n\n{_table(head, (_result(at, known[at], what) for at in steps))}"


def _result(step: int, evaluation: Row, what: Measured) -> tuple[str, ...]:
    around = interval(evaluation)
    length = _number(evaluation.get("length_mean"), 1)
    return str(step), _number(evaluation.get(what.column)), str(around) if around else "none", length


def _training(rows: Sequence[Row]) -> str:
    """Write the curve of each number of training, as a line of bars, and its values at steps spread evenly."""
    names = [name for name in COLUMNS if any(is_number(row.get(name)) for row in rows)]
    if not names:
        return ""
    shown = [rows[i] for i in spaced(len(rows), MOST_ROWS)]
    cells = ((str(row["step"]), *(_number(row.get(name)) for name in names)) for row in shown)
    bars = "".join(f"{_curve(rows, name)}  {COLUMNS[name]}\n" for name in names)
    words = f"Steps {rows[0]['step']} to {rows[-1]['step']}, each line between its own smallest and largest value:"
    table = _table(("step", *(COLUMNS[name] for name in names)), cells)
    return f"## Training\n\n{words}\n\n```\n{bars}```\n\n{table}"


def _curve(rows: Sequence[Row], name: str) -> str:
    values = [row.get(name) for row in rows]
    return curve([value if is_number(value) else math.nan for value in values], BARS).ljust(min(BARS, len(rows)))


def _data(recipe: Row, about: Row) -> str:
    """Write which problems were asked: the task with its keys."""
    task = flat(recipe.get("task", {}))
    rewards = ", ".join(recipe.get("rewards") or {})
    told = f"Task `{about.get('task', task.get('name', ''))}`" + (f"; rewards: {rewards}" if rewards else "")
    cells = ((f"task.{key}", str(value)) for key, value in task.items())
    return f"## Data\n\n{told}.\n\n{_table(('key', 'value'), cells)}"


def _algorithm(about: Row) -> str:
    """Write the parts of the algorithm, and what it climbs."""
    algorithm = as_table(about.get("algorithm"))
    parts = [part for part in _listed(algorithm.get("parts")) if isinstance(part, Mapping)]
    if not parts:
        return ""
    cells = ([str(part.get(key, "")) for key in ("slot", "kind", "value", "equation")] for part in parts)
    table = _table(("part", "kind", "values", "equation"), cells)
    return f"## Algorithm\n\n```\n{algorithm.get('objective', '')}\n```\n\n{table}"


def _versions(about: Row) -> str:
    versions = {"groupwise": about.get("groupwise", ""), **as_table(about.get("versions"))}
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    resumed = len(about.get("resumed", []))
    again = f" The run was resumed {resumed} time{'s' * (resumed != 1)}." if resumed else ""
    return f"## Versions\n\n{told}; {about.get('machine', '')}.{again}\n"


def _recipe(text: str) -> str:
    """Write the recipe whole, between fences that are longer than any in it."""
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("`+", text) or [""]))
    return (
        "## Recipe\n\n`groupwise train recipe.toml` trains by it again, with the files that it names.\n\n"
        f"{fence}toml\n{text.rstrip()}\n{fence}\n"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of Markdown, whose cells hold no line breaks and no bars."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(' '.join(cell.split()).replace('|', BAR) for cell in line)} |\n" for line in lines)


def _number(value: object, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if is_number(value) else "-"


def _listed(value: object) -> list[Any]:
    """Take a list; empty for what a damaged file has in its place."""
    return value if isinstance(value, list) else []
