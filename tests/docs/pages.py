"""What the pages hold: their blocks, the commands in them, and the names that they speak of."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What people read; the log tells what was, by the names of its day.
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "log.md")]
_BLOCK = re.compile(
    r"^```(?P<kind>\w*)\n(?P<fenced>.*?)^```$|(?<=\n\n)(?P<indented>(?:    [^\n]*\n|\n(?=    ))+)", re.M | re.S
)
_COMMANDS = ("groupwise ", "make ", "python ")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    kind  "commands", "python", "toml", or "" for what nobody runs, such as an equation
    name  of the file that it is, from its first line `# NAME`; "" if it is none
    """

    kind: str
    name: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its commands, a continued line as one, without what a comment says."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.partition("  #")[0].strip() for line in lines if line.startswith(_COMMANDS)]


def blocks(text: str) -> list[Block]:
    """The blocks of a page, fenced or indented, in order."""
    found = []
    for match in _BLOCK.finditer(text):
        inside = match["fenced"] if match["indented"] is None else re.sub(r"^    ", "", match["indented"], flags=re.M)
        name = re.match(r"# ([\w-]+\.(?:py|toml|jsonl))\n", inside)
        found.append(Block(_kind(match["kind"] or "", inside), name[1] if name else "", inside))
    return found


def _kind(fence: str, text: str) -> str:
    if fence in ("python", "toml"):
        return fence
    if text.startswith(_COMMANDS):
        return "commands"
    if fence in ("", "bash", "console"):
        if re.match(r"\[[\w.]+\]", text) and "=" in text and _is_toml(text):
            return "toml"
        if re.search(r"\bgroupwise\.\w+\(", text):
            return "python"
    return ""


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def first_example(text: str) -> list[Block]:
    """The first block that could be run, with those before its first command if it is a file of a user's."""
    runnable = [block for block in blocks(text) if block.kind]
    files: list[Block] = []
    for block in runnable:
        if not block.name:
            return [*files, block] if not files or block.kind == "commands" else files
        files.append(block)
    return files


def commands(text: str) -> Iterator[list[str]]:
    """Every command `groupwise VERB ...` of a page, in blocks and in running text, as words."""
    lines = [line for block in blocks(text) for line in block.commands]
    inline = re.findall(r"`(groupwise [a-z][^`\n]*)`", text)
    for line in (*lines, *inline):
        if line.startswith("groupwise "):
            try:
                yield shlex.split(line, comments=True)[1:]
            except ValueError:  # a quotation mark of a sentence
                yield line.split()[1:]
