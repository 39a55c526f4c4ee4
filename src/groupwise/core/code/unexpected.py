"""Errors that were not foreseen: one line for a person, and the traceback in a file."""

import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

from groupwise.core.errors import one_line, shortened
from groupwise.core.files.atomic import open_to_append

_PACKAGE = Path(__file__).parents[2]
#: Characters of a traceback that are kept.
_LONGEST = 200_000
#: A note of this kind on an error says where its traceback is.
_NOTE = "groupwise wrote this traceback to "


def unexpected(error: BaseException, doing: str) -> str:
    """Return one line: what was being done, the error, its place in groupwise's code, and where the traceback is."""
    line = f"unexpected, in {shortened(doing)}: {type(error).__name__}"
    with suppress(Exception):  # what an error says of itself may raise, and memory may be full
        line += shortened(f": {one_line(error)}")
    with suppress(Exception):
        line += f" at {_place(error)}"
    file = save_traceback(error)
    return f"{line}; the traceback is in {file}" if file else line


def save_traceback(error: BaseException, log: Path | None = None) -> str:
    """Write the traceback at the end of `log`, else to a new file -> that file; "" if no disk takes it.

    A second call writes nothing and names the same file.
    """
    with suppress(Exception):
        for note in getattr(error, "__notes__", ()):
            if note.startswith(_NOTE):
                return note.removeprefix(_NOTE)
        text = shortened("".join(traceback.format_exception(error)), _LONGEST).encode(errors="backslashreplace")
        file = _appended(log, text) or _written(text)
        error.add_note(_NOTE + file)
        return file
    return ""


def _appended(log: Path | None, text: bytes) -> str:
    """Append to the log -> its name; "" if nothing could be put at its end."""
    if log is not None:
        with suppress(OSError), open_to_append(log) as file:
            file.write(text)
            return str(log)
    return ""


def _written(text: bytes) -> str:
    handle, name = tempfile.mkstemp(prefix="groupwise-", suffix=".log")
    with open(handle, "wb") as file:
        file.write(text)
    return name


def _place(error: BaseException) -> str:
    places = [(Path(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    path, line = [place for place in places if place[0].is_relative_to(_PACKAGE)][-1]
    return f"{path.relative_to(_PACKAGE.parent)}:{line}"
