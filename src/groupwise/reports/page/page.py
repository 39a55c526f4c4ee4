"""A run folder -> its page, and a page -> one HTML file: template, styles, scripts, plotly and data, all inlined.

The data stands in an element that the browser does not execute, with every character escaped that could end it. Scripts
run only if they are, byte for byte, the ones written here: the page's policy names their hashes and nothing else.
"""

import base64
import hashlib
import html as markup
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import orjson

from groupwise.core.files.atomic import whole_file
from groupwise.health.symptoms.base import History
from groupwise.health.watch import findings
from groupwise.reports.folder import columns, facts
from groupwise.reports.folder.contrast import contrasts
from groupwise.reports.folder.events import events
from groupwise.reports.folder.read import HELDOUT, ROLLOUTS, RunFolder, read
from groupwise.reports.folder.sample import points, sample, with_heldout
from groupwise.reports.page.answers import Known, answers, check_lines
from groupwise.reports.page.plots import SECTIONS, plots_for
from groupwise.reports.page.unchanged import folded
from groupwise.reports.records import Page, RolloutGroup, Rollouts, RunPage

#: Rows of curves that a page holds; of a longer run, rows spread evenly.
MOST_ROWS = 4000
#: In the order they load: each builds on those before it.
_ROLLOUTS = "rollouts/heat rollouts/tokens rollouts/group rollouts/filters rollouts/rollouts"
_NAMES = f"core traces marks plots spark words csv page {_ROLLOUTS} live"
SCRIPTS = tuple(f"{name}.js" for name in _NAMES.split())
STYLES = ("page.css", "parts.css", "rollouts/rollouts.css", "rollouts/heat.css")
#: What could end the element that holds the data, or a line of script; all of it occurs only inside JSON strings.
ESCAPED = {mark.encode(): f"\\u{ord(mark):04x}".encode() for mark in "<>&\u2028\u2029"}


def page_of_run(folder: Path) -> Page:
    """Make the page of one run. Raises UsageError if the folder is none of a run."""
    run = read(folder)
    rollouts, _ = sample(run.folder / ROLLOUTS)
    return page_of(run, rollouts.groups, with_contrasts(with_heldout(rollouts, run.folder / HELDOUT), run.folder))


def with_contrasts(rollouts: Rollouts, folder: Path) -> Rollouts:
    """Add first against last completions."""
    found, words = contrasts(folder)
    return replace(rollouts, contrasts=found, contrast_words=words)


def page_of(run: RunFolder, groups: Sequence[RolloutGroup], shown: Rollouts | None) -> Page:
    """Make the page of a run that was read.

    groups  a sample of its rollouts, for an example and for the plots of points
    shown   the rollouts that the browser holds
    """
    notes = run.notes
    if len(run.step_rows) > MOST_ROWS:
        notes += (f"the plots show {MOST_ROWS:,} of the run's {len(run.step_rows):,} steps, spread evenly",)
    compares = facts.compares_within_group(run.about)
    history = History(run.step_rows, run.evaluation_rows, run.recipe, compares, run.machine_rows)
    seen = findings(history)
    content = RunPage(
        id="run-1",
        label=run.name,
        status=run.status,
        notes=notes,
        answers=answers(Known(history, run.summary is not None, groups, seen)),
        checks=check_lines(run.step_rows, run.machine_rows),
        findings=seen,
        steps=columns.steps(run.step_rows, run.machine_rows, MOST_ROWS),
        evaluations=columns.evaluations(run.evaluation_rows),
        points=points(groups),
        rollouts=shown,
        tables=facts.tables(run),
        texts=facts.texts(run),
        events=events(run),
    )
    steps, evaluations = content.steps.columns, content.evaluations.columns
    plots, unchanged = folded(plots_for(steps, evaluations, tuple(content.points)), steps, evaluations)
    return Page(run.name, now(), SECTIONS, plots, (content,), unchanged=unchanged)


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M")


def write(page: Page, path: Path) -> None:
    """Write the page to `path`; one that was there before is replaced in one move. Raises OSError."""
    with whole_file(path) as file:
        file.write(html(page).encode("utf-8", "replace"))


def html(page: Page) -> str:
    """Render the whole page as one HTML text."""
    scripts = (plotly(), *map(asset, SCRIPTS))
    parts = {
        "title": markup.escape(page.title),
        "policy": policy(scripts, watched=page.live is not None),
        "style": "\n".join(map(asset, STYLES)),
        "data": embedded(page),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], asset("page.html"))


def embedded(page: Page) -> str:
    r"""Write the page's data as JSON that can stand inside a script element.

    >>> from groupwise.reports.records import Page
    >>> embedded(Page("</script>", "", (), (), ()))[:40]
    '{"title":"\\u003c/script\\u003e","written"'
    """
    text = as_json(page)
    for character, escape in ESCAPED.items():
        text = text.replace(character, escape)
    return text.decode()


def policy(scripts: Sequence[str], watched: bool) -> str:
    """Tell the browser what it may do for this page: run these scripts alone; ask the page's own server if watched.

    >>> policy(["1"], watched=False)[:74]
    "default-src 'none'; script-src 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5"
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    own = "'self'" if watched else "'none'"
    shown = "style-src 'unsafe-inline'; img-src data: blob:"
    return f"default-src 'none'; script-src {allowed}; {shown}; connect-src {own}; base-uri 'none'; form-action 'none'"


@cache
def plotly() -> str:
    """Read plotly's own script from its package."""
    return _script(files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8"))


@cache
def asset(name: str) -> str:
    """Read a file of the page's own, a script as the browser sees it."""
    text = files("groupwise.reports.page").joinpath("assets", name).read_text(encoding="utf-8")
    return _script(text) if name.endswith(".js") else text


def _script(text: str) -> str:
    """Write a script as the browser sees it between the tags. Raises ValueError if it would end there."""
    if re.search(r"</script|<!--", text, re.IGNORECASE):
        raise ValueError("a script holds </script or <!--, which would end it inside the page")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def as_json(content: Page) -> bytes:
    """Encode what a page is drawn from; half a character, as a file's name may hold it, becomes a "?"."""
    try:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # half a surrogate pair, which no file of text can hold
        text = json.dumps(asdict(content), ensure_ascii=False).encode("utf-8", "replace")
        return orjson.dumps(json.loads(text))
