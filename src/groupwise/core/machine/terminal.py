"""Text on a terminal: whatever stands in data is shown and steers nothing. The one place that makes a console."""

import re
from io import StringIO
from typing import Any

from rich.console import Console
from rich.text import Text

#: What steers a terminal or turns a line around: control characters but newline and tab, and bidirectional marks.
_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

#: A text, or a text with its style.
Part = str | tuple[str, str]


def clean(text: str, encoding: str = "utf-8") -> str:
    r"""Return the text with escapes for what steers a terminal, and for what the encoding cannot say.

    >>> print(clean("\x1b[2J red" + chr(0xDC80)))
    \x1b[2J red\udc80
    """
    shown = _STEERS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


class Terminal:
    """Prints cleaned text, without markup, highlighting or breaks of its own; `options` are those of rich's Console."""

    def __init__(self, stderr: bool = False, **options: Any) -> None:
        # In a notebook rich would show each line as an HTML page of its own, and a file or a pipe gets text.
        self.console = Console(stderr=stderr, highlight=False, soft_wrap=True, force_jupyter=False, **options)

    @property
    def coloured(self) -> bool:
        return self.console.is_terminal and not self.console.no_color

    @property
    def has_panels(self) -> bool:
        """True if a panel can stay in place and its bars can be drawn."""
        console = self.console
        return console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")

    @property
    def in_notebook(self) -> bool:
        """True if what is printed stands in a notebook."""
        return Console().is_jupyter

    def html(self, renderable: Any) -> str:
        """Return a table or a panel, as `render` makes them for a terminal, as HTML."""
        page = Console(file=StringIO(), record=True, width=84, force_terminal=True, force_jupyter=False)
        page.print(renderable)
        style = "font-family: Menlo, 'DejaVu Sans Mono', Consolas, monospace; line-height: 1.2"
        return page.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')

    def print(self, *parts: Part) -> None:
        """Print the parts, one behind the other, and the end of a line."""
        self.console.print(self.text(*parts))

    def write(self, text: str) -> None:
        """Write a part of a line as it is, cleaned, and show it at once."""
        self.console.file.write(clean(text, self.console.encoding))
        self.console.file.flush()

    def text(self, *parts: Part) -> Text:
        """Return what `print` prints, for a table or a panel."""
        pairs = ((part, "") if isinstance(part, str) else part for part in parts)
        return Text.assemble(*((clean(text, self.console.encoding), style) for text, style in pairs))
