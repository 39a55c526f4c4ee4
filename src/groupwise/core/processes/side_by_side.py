"""Work that waits for processes, so many at once."""

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")


def side_by_side(
    wanted: Sequence[Work], do: Callable[[Work], Result], at_once: int
) -> Iterator[tuple[Work, Result | None]]:
    """Do each, so many at once, and yield it twice: with None where it begins, and with its result where it is done.

    do       returns something; what it raises is raised here, and with one at once it is called in this thread
    at_once  threads, each of which waits for a process; they end with this process, and with them what they wait for
             (children.py)
    """
    if at_once == 1:
        for each in wanted:
            yield each, None
            yield each, do(each)
        return
    waiting = iter(wanted)
    heard: SimpleQueue[tuple[Work, Result | None] | BaseException] = SimpleQueue()

    def work_off() -> None:
        try:
            for each in waiting:  # a sequence's iterator gives each to one thread
                heard.put((each, None))
                heard.put((each, do(each)))
        except BaseException as raised:
            heard.put(raised)

    for _ in range(min(at_once, len(wanted))):
        Thread(target=work_off, daemon=True).start()
    for _ in range(2 * len(wanted)):
        step = heard.get()
        if isinstance(step, BaseException):
            raise step
        yield step
