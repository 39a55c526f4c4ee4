"""Tells an agent that is a function of what it is told from one that is not, when a session is played again.

A session is played again if its process was lost, or the run was killed and goes on. Its request is then expected to
read the ids that it read before, where it was told the same until then. What is compared is kept in a file of the run,
a record for each request, written as it comes: a kill leaves it behind.
"""

import hashlib
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
        self._file, content, size = file, b"", 2 * HALF
        if file is not None:
            with file.open("ab") as kept:
                kept.truncate(kept.tell() // size * size)  # a kill may have cut the last one off
            content = file.read_bytes()[-MOST * size :]
        self._known = {content[at : at + HALF]: content[at + HALF : at + size] for at in range(0, len(content), size)}

    def differs(self, session: Sequence[object], told: Sequence[Sequence[int]], read: Sequence[int]) -> bool:
        """Tell if a request reads other ids than it did before, where the session was told the same."""
        name, value = _hash(*session, *map(tuple, told)), _hash(tuple(read))
        if name not in self._known and self._file is not None:
            with self._file.open("ab") as file:
                file.write(name + value)
        before = self._known.setdefault(name, value)
        if len(self._known) > MOST:
            del self._known[next(iter(self._known))]
        return before != value


def _hash(*what: object) -> bytes:
    return hashlib.sha256(repr(what).encode()).digest()[:HALF]
