"""Tells an agent that is a function of what it is told from one that is not, when a session is played again.

A session is played again if its process was lost, or the run was killed and goes on. What was asked before is then
expected to be asked again, where the session was told the same until then. What is compared is kept in a file of the
run, a record for each request, written as it comes: a kill leaves it behind.
"""

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

#: The file in a run's folder.
ASKED = "asked.bin"
#: Requests that are remembered, the latest; bytes of each half of a record.
MOST, HALF = 2**16, 8


class ReadAfter(NamedTuple):
    """A request: names of its session and all that this was told until then, in any order, and of the ids it reads."""

    told: bytes
    read: bytes


class Again:
    """Requests of sessions that were played before.

    file  where requests are kept; None: only in memory
    """

    def __init__(self, file: Path | None) -> None:
        self._file, self._before, size = file, defaultdict[bytes, set[bytes]](set), 2 * HALF
        if file is not None:
            with file.open("ab") as kept:
                kept.truncate(kept.tell() // size * size)  # a kill may have cut the last one off
            content = file.read_bytes()[-MOST * size :]
            records = (content[at : at + size] for at in range(0, len(content), size))
            self.keep(ReadAfter(record[:HALF], record[HALF:]) for record in records)

    def write(self, asked: ReadAfter) -> None:
        """Keep a request for a run that goes on after a kill."""
        if self._file is not None and asked.read not in self._before.get(asked.told, ()):
            with self._file.open("ab") as file:
                file.write(asked.told + asked.read)

    def keep(self, requests: Iterable[ReadAfter]) -> None:
        """Expect what a session has asked: its process is lost, or it ended and is played again in an evaluation."""
        for asked in requests:
            self._before[asked.told].add(asked.read)
        while len(self._before) > MOST:
            del self._before[next(iter(self._before))]

    def differs(self, requests: Collection[ReadAfter]) -> bool:
        """Tell if a session that has ended did not ask what it asked before, where it was told the same."""
        read = {asked.read for asked in requests}
        return any(self._before.get(asked.told, set()) - read for asked in requests)


def name(numbers: Iterable[int]) -> bytes:
    """Name ids by eight bytes of their hash."""
    return hashlib.sha256(array("q", numbers).tobytes()).digest()[:HALF]
