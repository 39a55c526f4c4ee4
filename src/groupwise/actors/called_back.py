"""The program of a process that an actor has started: it calls the run, and then does its own work.

The standard library only, as in groupwise.core.channel.
"""

import importlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from groupwise.core import VERSION
from groupwise.core.channel import Channel
from groupwise.core.processes.handshake import greeted, introduce, name_and_key
from groupwise.core.processes.network import keep_alive

#: Seconds in which the actor must have said whom to call, and the run be reached.
PATIENCE = 30.0


def main(actor: Channel, module: str, options: Mapping[str, Any]) -> None:
    """Run `module.main(channel to the run, **options)`.

    The address and the token come over the actor's channel, so that no command line shows the token.
    """
    call = actor.receive(PATIENCE)
    connection = socket.create_connection((call["host"], call["port"]), timeout=PATIENCE)
    keep_alive(connection)
    run = Channel(connection)
    introduce(run, greeted(run, PATIENCE).challenge, *name_and_key(call["token"]), PATIENCE)
    run.send({"groupwise": VERSION, "node": call["node"], "pid": os.getpid()})
    importlib.import_module(module).main(run, **options)
