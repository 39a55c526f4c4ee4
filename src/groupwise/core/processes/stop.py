"""Requests to stop a run: after the first it ends in order, after the second at once.

A signal raises only inside `Stop.leaving`, because a flag is not looked at inside a library that loads, downloads or
waits; elsewhere the step ends first.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from groupwise.core.errors import GroupwiseError

#: What asks a run to stop: Ctrl-C, what a cluster sends before it kills, and the end of the terminal of the run.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, Any], object]


class Stopped(KeyboardInterrupt):
    """A request to stop, raised in work of which nothing is half done where it is left."""


class Interrupted(KeyboardInterrupt):
    """An interrupt by whichever of the signals, `number`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class StoppedAtOnce(GroupwiseError):
    """End of a command by an interrupt that it does not obey in an order of its own."""

    def __init__(self, interrupted: KeyboardInterrupt) -> None:
        super().__init__("stopped at once; what was saved before is kept")
        self.exit_code = 128 + getattr(interrupted, "number", signal.SIGINT)


def interrupt(number: int, frame: object = None) -> NoReturn:
    """Raise Interrupted: a handler that makes the other signals what Ctrl-C is."""
    raise Interrupted(number)


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Inside, the handler gets the signals; in another thread than the main one nothing is changed.

    A run that was begun by nohup, which has it ignore the end of its terminal, goes on ignoring that.
    """
    before: dict[int, Any] = {}
    with suppress(ValueError):  # not in the main thread: whoever owns it decides about signals
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


class Stop:
    """Request to a run to stop. Signals arrive in the main thread, between two operations of Python.

    asked   whether a person, or what is called after a step, has asked
    number  the first signal; 0 where none came
    """

    def __init__(self) -> None:
        self.asked, self.number, self._leaves = False, 0, False

    def look(self) -> None:
        """Raise Stopped where the run was asked to stop."""
        if self.asked:
            raise Stopped

    @contextmanager
    def leaving(self, when: bool = True) -> Iterator[None]:
        """Inside, a signal raises Stopped at once: for work that can be left anywhere, and is made again later.

        when  False: the work cannot be left, and the request waits for its end
        """
        if when:
            self.look()
        self._leaves = when
        try:
            yield
        finally:
            self._leaves = False
        if when:
            self.look()  # code that takes every error for its own may have kept the one that was raised

    @contextmanager
    def listening(self, note: Callable[[str], None]) -> Iterator[None]:
        """Inside, a signal asks to stop, and `note` says how it is obeyed; a second one interrupts at once."""

        def hear(number: int, frame: object) -> None:
            if self.number:
                raise Interrupted(number)
            self.asked, self.number = True, number
            when = "now" if self._leaves else "after this step"
            note(f"stopping {when}, with everything saved; Ctrl-C again stops at once")
            if self._leaves:
                raise Stopped

        with handled_by(hear):
            yield
