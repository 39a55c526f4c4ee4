"""Tells an agent that is a function of what it is told from one that is not, when a session is played again.

A session is played again if its process was lost, or the run was killed and goes on. Its request is then expected to
read the ids that it read before, where it was told the same until then. What is compared is kept in a file of the run,
16 bytes a request, written as it comes: a kill leaves it behind.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

#: The file in a run's folder.
ASKED = "asked.bin"
#: Requests that are remembered, the latest; bytes of each half of a record.
MOST, HALF = 2**17, 8


class Again:
    """Requests as they were, by what came before each.

    file  where they are kept; None: only in memory
    """

    def __init__(self, file: Path | None) -> None:
        self._file, self._known = file, OrderedDict[bytes, bytes]()
        content = file.read_bytes() if file is not None and file.is_file() else b""
        whole = len(content) - len(content) % (2 * HALF)  # a kill may have cut the last one off
        for at in range(max(0, whole - MOST * 2 * HALF), whole, 2 * HALF):
            self._known[content[at : at + HALF]] = content[at + HALF : at + 2 * HALF]
        if file is not None and whole < len(content):
            file.write_bytes(content[:whole])

    def differs(self, session: Sequence[object], told: Sequence[Sequence[int]], read: Sequence[int]) -> bool:
        """Tell if a request reads other ids than it did before, where the session was told the same."""
        name, value = _hash(*session, *map(tuple, told)), _hash(tuple(read))
        before = self._known.get(name)
        if before is None:
            self._known[name] = value
            if len(self._known) > MOST:
                self._known.popitem(last=False)
            if self._file is not None:
                with self._file.open("ab") as file:
                    file.write(name + value)
        return before not in (None, value)


def _hash(*what: object) -> bytes:
    return hashlib.sha256(repr(what).encode()).digest()[:HALF]
