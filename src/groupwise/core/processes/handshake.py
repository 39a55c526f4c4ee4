"""Handshake of two processes: both show that they have one key, which never travels, before anything else is said.

    whoever listens    {"challenge": C, ...}
    whoever connects   {"name": N, "challenge": D, "proof": digest of "caller", C, D, N}
    whoever listens    {"proof": digest of "listener", C, D, N}

Challenges are random, so that what was overheard once proves nothing again, and each side signs as what it is, so that
a proof cannot be sent back to its maker. Nothing is encrypted. The standard library only.
"""

import hmac
import json
import os
import re
import secrets
import shlex
import stat
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from groupwise.core.channel import Channel, FrameError

#: Bytes that a message may have while nothing is known of whoever sent it.
MOST = 512
#: Bytes of a key, at least and at most.
SHORTEST, LONGEST = 16, 4096
#: Letters of a token that are a name; the others are a key.
NAME = 16
_WORD = re.compile(r"[0-9A-Za-z_-]{1,64}")


class Refused(Exception):
    """Somebody at the other end whose key is not the one; the message says what is wrong, in words."""


class Greeting(NamedTuple):
    """First words of whoever listens.

    challenge  "" where no key is asked for
    said       what came with it
    """

    challenge: str
    said: Mapping[str, Any]


class Caller(NamedTuple):
    """Somebody who has connected and is known.

    name   as it was said
    proof  that this side has the key too
    """

    name: str
    proof: str


def key_in(file: str) -> bytes:
    """Read a key that nobody else can read. Raises ValueError, in words and with the remedy, for any other file."""
    try:
        key = private_content(file)
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise ValueError(
            f"{words}; a key is made by: (umask 077; openssl rand -hex 32 > {shlex.quote(file)})"
        ) from None
    if not SHORTEST <= len(key) <= LONGEST:
        raise ValueError(f"it holds {len(key)} bytes, where a key has {SHORTEST} to {LONGEST}")
    return key


def private_content(file: str) -> bytes:
    """Read a short file that nobody else can read, without the space around it. Raises OSError where it cannot be
    opened, and ValueError, in words and with the remedy, for any other file.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_uid not in (0, os.geteuid()):
            raise ValueError("it belongs to another user, who can change the key; make a copy of your own")
        if status.st_mode & 0o077:
            path = shlex.quote(file)
            raise ValueError(f"others may read it, so it keeps nobody out; make it yours alone: chmod 600 {path}")
        return os.read(descriptor, LONGEST + 1).strip()
    finally:
        os.close(descriptor)


def name_and_key(token: str) -> tuple[str, bytes]:
    """Return the two parts of a token: the name that a process gives itself, and the key that it has."""
    return token[:NAME], token[NAME:].encode()


def meet(
    channel: Channel, key_of: Callable[[str], bytes | None], seconds: float, said: Mapping[str, str], asks: bool = True
) -> Caller:
    """Greet whoever has connected, and hear who it is.

    key_of   (name) -> the key of whoever has that name; None for a name that is not known
    seconds  that each message may take
    said     what the greeting says besides
    asks     whether a key is asked for
    Raises Refused for a name that is not known and a key that is not the one, and else as Channel does.
    """
    ours = secrets.token_hex(16) if asks else ""
    channel.send({**said, "challenge": ours}, seconds=seconds)
    message = channel.receive(seconds, limit=MOST)
    name, theirs = _word(message.get("name")), message.get("challenge")
    if not asks:
        return Caller(name, "")
    theirs = _word(theirs)
    key = key_of(name) or secrets.token_bytes(SHORTEST)  # nobody has this one, and the time tells nothing of names
    if not hmac.compare_digest(_proof(key, "caller", ours, theirs, name), _word(message.get("proof"))):
        raise Refused("its key is not the one")
    return Caller(name, _proof(key, "listener", ours, theirs, name))


def greeted(channel: Channel, seconds: float) -> Greeting:
    """Hear the first words of whoever listens. Raises as Channel does, FrameError for what is no greeting."""
    said = channel.receive(seconds, limit=MOST)
    challenge = said.pop("challenge", "")
    return Greeting(_word(challenge) if challenge else "", said)


def introduce(channel: Channel, challenge: str, name: str, key: bytes | None, seconds: float) -> dict[str, Any]:
    """Say a name behind a greeting, with the proof that its key is here -> what is answered.

    key  None where none was asked for
    Raises Refused if whoever answers does not know the key, and says nothing of a refusal; else as Channel does.
    """
    ours = secrets.token_hex(16)
    signed = {} if key is None else {"proof": _proof(key, "caller", challenge, ours, name)}
    channel.send({"name": name, "challenge": ours, **signed}, seconds=seconds)
    answer = channel.receive(seconds, limit=MOST)
    if key is None or "refused" in answer:
        return answer
    if not hmac.compare_digest(_proof(key, "listener", challenge, ours, name), _word(answer.get("proof"))):
        raise Refused("what answers there does not have the key")
    return answer


def _proof(key: bytes, side: str, *said: str) -> str:
    return hmac.new(key, json.dumps([side, *said]).encode(), "sha256").hexdigest()


def _word(said: object) -> str:
    """Return a name, a challenge or a proof. Raises FrameError for what can be none of them."""
    if not isinstance(said, str) or not _WORD.fullmatch(said):
        raise FrameError("a message that is not of a handshake")
    return said
