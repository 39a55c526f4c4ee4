"""What goes between the run and the processes that score: replies are JSON with their length before them.

Objects go one way only, from the run to the workers; from there back come numbers and text.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!I")


def frame(message: object) -> bytes:
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def frames(buffer: bytearray) -> list[dict[str, Any]]:
    """The complete messages at the front of `buffer`, taken out of it.

    >>> held = bytearray(frame({"done": 1}) + frame({"done": 2})[:3])
    >>> frames(held), len(held)
    ([{'done': 1}], 3)
    """
    found = []
    while len(buffer) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            break
        found.append(json.loads(bytes(buffer[_LENGTH.size : end])))
        del buffer[:end]
    return found


def received(sock: socket.socket, buffer: bytearray) -> bool:
    """Takes what has come into `buffer` without waiting; False once the other side is gone."""
    try:
        while data := sock.recv(1 << 16, socket.MSG_DONTWAIT):
            buffer += data
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
