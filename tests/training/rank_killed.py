"""A rank that is killed while rank 0 writes a message to it: python -m tests.training.rank_killed RANK PORT FOLDER."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import torch

from groupwise.training.mesh import connect, rendezvous
from tests.training.made import told

#: Seconds that one rank waits for another here.
DEADLINE = 20.0
#: Bytes: many times what a connection takes at once.
SIZE = 32 << 20


def main() -> None:
    rank, port, folder = told()
    mesh = connect(rendezvous("127.0.0.1", port, 2, leads=False), rank, 2, seconds=DEADLINE)
    other = mesh.of_each(os.getpid())[1]
    ended: list[float] = []

    def kill() -> None:
        time.sleep(0.05 + 0.1 * random.random())
        os.kill(other, signal.SIGKILL)
        ended.append(time.monotonic())

    if mesh.leads:
        threading.Thread(target=kill).start()
    data = torch.zeros(SIZE, dtype=torch.uint8)
    try:
        while True:
            mesh.tensors({"x": data} if mesh.leads else {})
    except RuntimeError as error:
        (folder / "waited").write_text(f"{time.monotonic() - ended[0]:.1f} s: {error}")


if __name__ == "__main__":
    main()
