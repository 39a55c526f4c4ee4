"""What a child process does in test_children: whatever its messages say."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

from groupwise.core.channel import Channel


def main(parent: Channel, greeting: str = "") -> None:
    parent.send({"pid": os.getpid(), "greeting": greeting})
    while True:
        message, descriptors = parent.receive_with(4)
        act = message.get("act", "echo")
        if act == "echo":
            parent.send(message)
        elif act == "read":
            parent.send({"texts": [os.read(descriptor, 100).decode() for descriptor in descriptors]})
        elif act == "sleep":
            time.sleep(600)
        elif act == "hang":
            re.match(r"(a+)+$", "a" * 64 + "b")  # C code that never comes back to Python
        elif act == "close":
            parent.close()
            time.sleep(600)
        elif act == "garbage":
            parent.connection.sendall(message["bytes"].encode("latin-1"))
        elif act == "grandchild":
            parent.send({"pid": os.fork() or _wait()})
        elif act == "exit":
            sys.exit(message["code"])
        elif act == "kill":
            os.kill(os.getpid(), signal.Signals[message["signal"]])


def _wait() -> int:
    time.sleep(600)
    return 0
