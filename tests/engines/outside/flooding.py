"""The server of the child, in a process whose libraries never stop printing, on both streams."""

from __future__ import annotations

import os
import threading
import time

from groupwise.core.channel import Channel
from groupwise.engines.outside import server


def main(run: Channel) -> None:
    threading.Thread(target=flood, daemon=True).start()
    server.main(run)


def flood() -> None:
    while True:
        for stream in (1, 2):
            os.write(stream, b"a library's line\n" * 1000)
        time.sleep(0.002)
