"""Tracebacks: of a user's own code, and of an error that was not foreseen, which a person is told in one line."""

import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

from groupwise.core.errors import one_line, shortened
from groupwise.core.files.atomic import open_to_append
from groupwise.core.files.json_text import writable

#: Files of this package, and the machinery of the standard library between them and a user's code.
OURS = (str(Path(__file__).parents[2]), "<frozen ", "/asyncio/", "/importlib/", "<string>")
TAIL = 4096


def ours(filename: str) -> bool:
    return any(part in filename for part in OURS)


def own_traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it, frames of this package left out, its last 4,096 characters at most."""
    report = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = report
    while link is not None:
        link.stack = traceback.StackSummary.from_list([f for f in link.stack if not ours(f.filename)])
        link = link.__cause__ or link.__context__
    return writable("".join(report.format()).strip()[-TAIL:])


def own_lines(output: str) -> str:
    """Return what a dying process printed, without the lines in which faulthandler names frames of this package.

    >>> own_lines('Fatal Python error: Segmentation fault\\n  File "mine.py", line 3 in f\\n  File "<string>", line 1')
    'Fatal Python error: Segmentation fault\\n  File "mine.py", line 3 in f'
    """
    lines = [line for line in output.splitlines() if not (line.startswith("  File ") and ours(line))]
    return "\n".join(lines).strip()[-TAIL:]


def place(error: BaseException) -> str:
    """Return `file.py, line 3` of the innermost frame that is not ours; "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not ours(f.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


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
