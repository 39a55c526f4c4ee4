"""Messages between two processes over one socket: JSON objects with their length before them, and file descriptors.

The standard library only: the sandbox's processes use this too, where nothing else is installed.
"""

import fcntl
import importlib
import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Bytes that a message may have unless the receiver says otherwise.
LIMIT = 2**30
_LENGTH = 4  # bytes of the length before each message


class FrameError(ValueError):
    """Something came that is no message within the limit."""


def pack(message: Mapping[str, Any]) -> bytes:
    """Return one frame: four bytes of length (big endian), then JSON."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(_LENGTH, "big") + body


def unpack(buffer: bytearray, limit: int = LIMIT) -> dict[str, Any] | None:
    """Take the message of the first frame out of the buffer; None while the frame is not complete.

    Raises FrameError for a frame above `limit` bytes and for one that is not a JSON object.

    >>> buffer = bytearray(pack({"done": 1}) + pack({"done": 2})[:5])
    >>> unpack(buffer), unpack(buffer), len(buffer)
    ({'done': 1}, None, 5)
    """
    end = _end(buffer)
    if end > limit + _LENGTH:
        raise FrameError(f"a message above {limit} bytes")
    if len(buffer) < end:
        return None
    body = bytes(buffer[_LENGTH:end])
    del buffer[:end]
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise FrameError("a message that is not JSON") from None
    if type(message) is not dict:
        raise FrameError("a message that is not an object")
    return message


def _end(buffer: bytearray) -> int:
    """Return the end of the first frame, or that of its length while the length has not come."""
    return _LENGTH + (int.from_bytes(buffer[:_LENGTH], "big") if len(buffer) >= _LENGTH else 0)


class Channel:
    """One end of a connection, for one thread at a time. After an exception it is of no further use."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = (), seconds: float | None = None) -> None:
        """Send the message and copies of the descriptors. Raises TimeoutError, or OSError where the peer is gone."""
        data = pack(message)
        self.connection.settimeout(seconds)
        sent = socket.send_fds(self.connection, [data], list(descriptors)) if descriptors else 0
        if sent < len(data):  # to send nothing fails where the peer has read the message and ended
            self.connection.sendall(data[sent:])

    def receive(self, seconds: float | None = None, limit: int = LIMIT) -> dict[str, Any]:
        """Receive the next message, of at most `limit` bytes: one above is not read.

        Raises TimeoutError, FrameError, and EOFError or OSError where the peer is gone.
        """
        return self.receive_with(0, seconds, limit)[0]

    def receive_with(
        self, count: int, seconds: float | None = None, limit: int = LIMIT
    ) -> tuple[dict[str, Any], list[int]]:
        """Receive the next message and, to be closed by the caller, at most `count` descriptors that came with it."""
        until = None if seconds is None else time.monotonic() + seconds
        buffer, descriptors = bytearray(), []
        while (message := unpack(buffer, limit)) is None:
            self._require_time(until)
            # never beyond this message: descriptors come with the first byte of the one that they belong to
            data, passed, _, _ = socket.recv_fds(self.connection, max(_LENGTH, _end(buffer)) - len(buffer), count)
            if not data:
                raise EOFError
            buffer += data
            descriptors += passed
        return message, descriptors

    def send_raw(self, data: memoryview | bytes, seconds: float | None = None) -> None:
        """Send bytes as they are, behind a message that says how many. Raises as `send` does."""
        self.connection.settimeout(seconds)
        self.connection.sendall(data)

    def receive_raw(self, count: int, seconds: float | None = None) -> bytearray:
        """Receive the `count` bytes that follow a message which said so. Raises TimeoutError, EOFError and OSError."""
        until = None if seconds is None else time.monotonic() + seconds
        data = bytearray(count)
        rest = memoryview(data)
        while rest:
            self._require_time(until)
            received = self.connection.recv_into(rest)
            if not received:
                raise EOFError
            rest = rest[received:]
        return data

    def close(self) -> None:
        self.connection.close()

    def _require_time(self, until: float | None) -> None:
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)


def run_module(module: str, connection: int, lifeline: int, options: Mapping[str, Any]) -> None:
    """Live the life of a process that children.Child started: `module.main(channel to the parent, **options)`.

    connection, lifeline  descriptors: the socket, and the end of a pipe that the parent alone can write to
    """
    end_with(lifeline)
    importlib.import_module(module).main(Channel(socket.socket(fileno=connection)), **options)


def serve(run: Channel, count: int, do: Callable[[dict[str, Any], list[int]], Mapping[str, Any] | None]) -> None:
    """Do each order, with the descriptors that came with it, until the run is gone, and send the reply if there is one.

    count  descriptors at most; they are closed here once the order is done
    """
    while True:
        try:
            order, descriptors = run.receive_with(count)
        except (EOFError, OSError):
            return
        try:
            reply = do(order, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if reply is not None:
            run.send(reply)


def fork(begin: Callable[[], object]) -> int:
    """Fork a process that lives as long as the call of `begin`, and never goes on as what made it -> its number."""
    process = os.fork()
    if process == 0:
        try:
            begin()
        finally:
            os._exit(1)
    return process


def end_with(lifeline: int) -> None:
    """End this process when the last writer of the pipe is gone.

    Then the kernel sends SIGIO, whose default action ends even a process inside C code that never comes back.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(0)  # the writer was gone before
