"""Tools that do what tools of others do: answer, raise, take for ever, end their process."""

import os
import time


def double(n: int) -> int:
    """Double a number.

    Args:
        n: the number
    """
    return 2 * n


def broken(n: int) -> int:
    """Raise.

    Args:
        n: a number
    """
    raise ValueError("planted")


def slow(n: int) -> int:
    """Take longer than any deadline.

    Args:
        n: a number
    """
    time.sleep(600)
    return n


def crash(n: int) -> int:
    """End the process.

    Args:
        n: a number
    """
    os.abort()


async def waits(n: int) -> int:
    """Never come back from a coroutine.

    Args:
        n: a number
    """
    import asyncio

    await asyncio.sleep(600)
    return n


def unused(n: int) -> int:
    """Never be called.

    Args:
        n: a number
    """
    return n
