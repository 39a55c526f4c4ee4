"""The entry point. Exit code 0 if it went well, 1 if it failed, 2 for usage, and one line that says why.

`torchrun -m groupwise.cli` runs it too.
"""

import sys
from contextlib import suppress
from typing import NoReturn

import typer

# Importing them registers their commands, in the order that --help has.
from groupwise.cli import train, runs, learn, serve  # noqa: F401  # isort: skip
from groupwise.cli.app import app
from groupwise.config import answers
from groupwise.core.code.unexpected import unexpected
from groupwise.core.errors import LONGEST_MESSAGE, GroupwiseError, shortened
from groupwise.core.machine.terminal import Terminal, clean
from groupwise.core.processes.stop import StoppedAtOnce, handled_by, interrupt


@handled_by(interrupt)
def main() -> None:
    """Run the `groupwise` command."""
    try:
        if code := app(standalone_mode=False):
            _leave(code)
        _flush()
    except GroupwiseError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt as interrupted:
        _fail(str(error := StoppedAtOnce(interrupted)), error.exit_code)
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
    except BrokenPipeError:  # whoever read the output has gone
        _leave(1)
    except SystemExit:
        raise
    except BaseException as error:  # typer's own usage errors say what is wrong; Rust's panics are no Exception
        if hasattr(error, "format_message"):
            message = error.format_message()  # type: ignore[attr-defined]
            if not message:  # no command was given, and the help was shown
                sys.exit(0)
            known = getattr(getattr(error, "ctx", None), "command", app)
            options = {option for parameter in getattr(known, "params", ()) for option in parameter.opts}
            near = answers.in_words(sys.argv[1:], options)
            _fail(f"{shortened(message)}{near and '; '}{near}", 2)
        end = error.__cause__ if isinstance(error, typer.Abort) and error.__cause__ else error  # an EOFError
        _fail(unexpected(end, " ".join(sys.argv[1:])), 1)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    with suppress(Exception):  # stderr may be closed
        Terminal(stderr=True).print(f"groupwise: {shortened(clean(message), LONGEST_MESSAGE)}")  # escapes are longer
    _leave(code)


def _leave(code: int) -> NoReturn:
    try:
        _flush()
    except OSError:
        sys.stdout = None  # Python would try once more, and complain at length
    sys.exit(code)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


if __name__ == "__main__":
    main()
