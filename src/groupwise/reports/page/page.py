"""A page as one HTML file: template, styles, scripts, plotly and the data, all inlined; nothing is fetched.

The data stands in an element that the browser does not execute, with every character escaped that could end it. Scripts
run only if they are, byte for byte, the ones written here: the page's policy names their hashes and nothing else.
"""

import base64
import hashlib
import html as markup
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path

import orjson

from groupwise.core.files.atomic import whole_file
from groupwise.reports.records import Fresh, Page

#: In the order they load: each builds on those before it.
SCRIPTS = (
    "core.js",
    "traces.js",
    "plots.js",
    "words.js",
    "page.js",
    "heat.js",
    "tokens.js",
    "group.js",
    "filters.js",
    "rollouts.js",
    "live.js",
)
STYLES = ("page.css", "rollouts.css", "heat.css")
#: What could end the element that holds the data, or a line of script; all of it occurs only inside JSON strings.
ESCAPED = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}


def write(page: Page, path: Path) -> None:
    """Writes the page to `path`; one that was there before is replaced in one move. Raises OSError."""
    with whole_file(path) as file:
        file.write(html(page).encode("utf-8", "replace"))


def html(page: Page) -> str:
    """The whole page as text."""
    scripts = (plotly(), *map(_asset, SCRIPTS))
    parts = {
        "title": markup.escape(page.title),
        "policy": policy(scripts, watched=page.live is not None),
        "style": "\n".join(map(_asset, STYLES)),
        "data": embedded(page),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def embedded(page: Page) -> str:
    r"""The page's data as JSON that can stand inside a script element.

    >>> from groupwise.reports.records import Page
    >>> embedded(Page("</script>", "", (), (), ()))[:40]
    '{"title":"\\u003c/script\\u003e","written"'
    """
    text = as_json(page)
    for character, escape in ESCAPED.items():
        text = text.replace(character, escape)
    return text.decode()


def policy(scripts: Sequence[str], watched: bool) -> str:
    """What the browser may do for this page: run exactly these scripts; ask the page's own server if it is watched.

    >>> policy(["1"], watched=False)[:74]
    "default-src 'none'; script-src 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5"
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    own = "'self'" if watched else "'none'"
    rules = (
        "default-src 'none'",
        f"script-src {allowed}",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        f"connect-src {own}",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


@cache
def plotly() -> str:
    """Plotly's own script, as its package brings it."""
    return _script(files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8"))


@cache
def _asset(name: str) -> str:
    text = files("groupwise.reports.page").joinpath("assets", name).read_text(encoding="utf-8")
    return _script(text) if name.endswith(".js") else text


def _script(text: str) -> str:
    """A script as the browser will see it between the tags; refused where it would end there."""
    if re.search(r"</script|<!--", text, re.IGNORECASE):
        raise ValueError("a script holds </script or <!--, which would end it inside the page")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def as_json(content: Page | Fresh) -> bytes:
    """What a page is drawn from, or what came after; a character that is none, as a file's name may hold, is a "?"."""
    try:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # half a surrogate pair, which no file of text can hold
        text = json.dumps(asdict(content), ensure_ascii=False).encode("utf-8", "replace")
        return orjson.dumps(json.loads(text))
