"""What runs in an engine's process of a server: it is handed a run's connection, and serves that."""

import os
import socket

from groupwise.core.channel import Channel
from groupwise.engines.outside.server import Machine, Server


def main(channel: Channel, device: str, threads: int) -> None:
    """Serves the run whose connection comes over the channel."""
    os.dup2(2, 1)  # whatever is printed is the server's to show
    _, descriptors = channel.receive_with(1)
    Server(Channel(socket.socket(fileno=descriptors[0])), Machine(device, threads)).serve()
