"""docs/dev/floors.svg: the packages on their floors, and who imports whom; `make docs` writes it.

The floors are those of import-linter's contract in pyproject.toml, the arrows are read from the imports. An arrow that
others imply (loop -> training -> core implies loop -> core) is left out; a box says what the package's docstring says.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).parents[2]
WIDTH, ROW, TOP, BOX, LINE = 1180, 118, 16, 66, 15
#: Characters that fit into a box's text line, a pixel of box width.
CHARACTERS = 0.165


class Box(NamedTuple):
    """A package in the picture, in pixels."""

    name: str
    words: str
    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def floors() -> list[list[str]]:
    """The packages by floor, the highest first; what is not built yet is left out."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    rows = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    return [built for row in rows if (built := [name for name in row if not name.startswith("(")])]


def imports() -> dict[str, set[str]]:
    """Who imports whom, package by package, functions and type checking included."""
    graph = grimp.build_graph("groupwise")
    names = {name for row in floors() for name in row}
    arrows: dict[str, set[str]] = {name: set() for name in names}
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            above, below = (module.partition(".")[2].partition(".")[0] for module in (importer, imported))
            if above in names and below in names and above != below:
                arrows[above].add(below)
    return arrows


def reduced(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that no path of others implies.

    >>> reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    True
    """

    def reach(name: str) -> set[str]:
        return arrows[name] | {far for near in arrows[name] for far in reach(near)}

    return {name: below - {far for near in below for far in reach(near)} for name, below in arrows.items()}


def purpose(name: str) -> str:
    """The first line of the package's docstring."""
    folder = ROOT / "src" / "groupwise" / name
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]


def boxes() -> dict[str, Box]:
    """Every package at its place, the boxes of a floor as wide as they come."""
    placed = {}
    for number, row in enumerate(floors()):
        width = min(330.0, (WIDTH - 20 * (len(row) + 1)) / len(row))
        left = (WIDTH - len(row) * width - (len(row) - 1) * 20) / 2
        for place, name in enumerate(row):
            placed[name] = Box(name, purpose(name), left + place * (width + 20), TOP + number * ROW, width)
    return placed


def drawn(box: Box) -> str:
    """A box with its name and two lines of words."""
    lines = textwrap.wrap(box.words, int(box.width * CHARACTERS))
    lines = [*lines[:2], lines[2] + " ..."] if len(lines) > 3 else lines
    words = "".join(
        f'<text x="{box.middle:.0f}" y="{box.y + 33 + LINE * i:.0f}" class="words">{line.replace("&", "&amp;")}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{BOX + 6}" rx="6"/>'
        f'<text x="{box.middle:.0f}" y="{box.y + 17:.0f}" class="name">{box.name}</text>{words}'
    )


def arrow(above: Box, below: Box) -> str:
    """A line from the bottom of one box to the top of another."""
    start, end = above.y + BOX + 6, below.y - 3
    bend = min(40.0, (end - start) / 2)
    curve = f"M{above.middle:.0f},{start:.0f} C{above.middle:.0f},{start + bend:.0f}"
    return (
        f'<path d="{curve} {below.middle:.0f},{end - bend:.0f} {below.middle:.0f},{end:.0f}" marker-end="url(#tip)"/>'
    )


def picture() -> str:
    """The whole page."""
    placed, height = boxes(), TOP + ROW * len(floors()) - 20
    arrows = [
        arrow(placed[above], placed[below])
        for above, row in sorted(reduced(imports()).items())
        for below in sorted(row)
    ]
    style = (
        "rect{fill:#f6f8fa;stroke:#57606a}text{text-anchor:middle;font-family:sans-serif;fill:#1f2328}"
        ".name{font-size:14px;font-weight:bold}.words{font-size:11px}path{fill:none;stroke:#8c959f}"
    )
    tip = '<marker id="tip" markerWidth="7" markerHeight="6" refX="6" refY="3" orient="auto"><path d="M0,0L7,3L0,6z" '
    body = [*arrows, *(drawn(box) for box in placed.values())]
    size = f'width="{WIDTH}" height="{height}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>',
        f'<style>{style}</style><defs>{tip}style="fill:#8c959f"/></marker></defs>',
        f'<rect {size} style="fill:#ffffff;stroke:none"/>',
    ]
    return "\n".join([*head, *body, "</svg>\n"])


if __name__ == "__main__":
    (ROOT / "docs" / "dev" / "floors.svg").write_text(picture())
