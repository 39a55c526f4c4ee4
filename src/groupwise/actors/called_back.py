"""What runs in a process that an actor has started: it calls the run, and does there what it was started for.

The standard library only, as in groupwise.core.channel.
"""

import importlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from groupwise.core import VERSION
from groupwise.core.channel import Channel
from groupwise.core.processes.address import keep_alive

#: Seconds in which the actor must have said whom to call, and the run be reached.
PATIENCE = 30.0


def main(actor: Channel, module: str, options: Mapping[str, Any]) -> None:
    """`module.main(channel to the run, **options)`. Where to call comes over the channel, so that nobody else sees the
    token in the command line.
    """
    call = actor.receive(PATIENCE)
    connection = socket.create_connection((call["host"], call["port"]), timeout=PATIENCE)
    keep_alive(connection)
    connection.sendall(call["token"].encode())
    run = Channel(connection)
    run.send({"groupwise": VERSION, "node": call["node"], "pid": os.getpid()})
    importlib.import_module(module).main(run, **options)
