"""The hub of models and data sets: whether it can be reached is asked once.

Its libraries try again and again for half a minute, with a line for each try.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Thread

#: Seconds that the hub has to answer, its name's look-up included.
PATIENCE = 5.0


@cache
def address() -> str:
    """Return where the hub is asked for, which HF_ENDPOINT of its library sets."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


@cache
def reachable() -> bool:
    """Tell whether the hub answers anything at all; asked once in a process. Its library's offline mode is a no."""
    from huggingface_hub.utils import get_session

    answered: list[bool] = []

    def ask() -> None:
        try:
            get_session().head(address(), timeout=PATIENCE)
            answered.append(True)
        except Exception:  # whatever the client below it raises: no name, no route, no certificate, offline mode
            return

    # A look-up of a name heeds no timeout.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return bool(answered)


@contextmanager
def caches_alone_if_unreachable() -> Iterator[None]:
    """Let the hub's libraries look into their caches alone inside, if the hub cannot be reached."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not reachable()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def unreachable_words() -> str:
    """Say that the hub cannot be reached and what to do; "" if it can be."""
    return "" if reachable() else f"{address()} cannot be reached from here, and no cache has it"
