"""Tracebacks of a user's own code, without the frames of this package."""

import traceback
from pathlib import Path

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
