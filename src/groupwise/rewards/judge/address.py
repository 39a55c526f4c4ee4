"""Requests to a judge's address: some at once, and again where one fails."""

import contextlib
import fcntl
import hashlib
import http.client
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from groupwise.core.errors import brief, one_line
from groupwise.core.samples import Cause
from groupwise.rewards.judge.answer import Unjudged

#: Seconds of the first pause before a request is sent again, which then doubles, and of the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0
#: Seconds between two looks for whether another request may be sent.
LOOK = 0.01
#: Bytes of a reply at most.
LARGEST = 1 << 24


@dataclass(frozen=True)
class Address:
    """Address that is asked; in `folder` all processes agree on how many requests are under way."""

    url: str
    key: str
    timeout: float
    retries: int
    at_once: int
    folder: Path

    def ask(self, body: bytes) -> tuple[bytes, int]:
        """Send a request until there is a reply -> it, and how often it was sent. Raises Unjudged if there is none."""
        chance = random.Random(body)  # or requests that failed together would come again together
        for sent in range(1, self.retries + 2):
            after = 0.0
            try:
                with self._turn():
                    status, after, reply = self._post(body)
            except TimeoutError:
                words = f"no reply within {self.timeout:g} s"
            except (OSError, http.client.HTTPException) as error:
                words = getattr(error, "strerror", None) or brief(one_line(error))
            else:
                if status == 200:
                    return reply, sent
                words = f"HTTP {status}: {brief(reply.decode(errors='replace'))}"
                if status != 429 and status < 500:
                    raise Unjudged(Cause.REFUSED, words, sent)
            if sent <= self.retries:
                pause = FIRST_PAUSE * 2 ** (sent - 1) * chance.uniform(1.0, 1.5)
                time.sleep(min(max(pause, after), LONGEST_PAUSE))
        raise Unjudged(Cause.UNREACHABLE, f"{words} (the last of {sent} requests)", sent)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold one of the places for requests; the kernel gives a killed process's back."""
        places = self.folder / f"at_once-{hashlib.sha256(self.url.encode()).hexdigest()[:16]}"
        places.mkdir(exist_ok=True)
        while True:
            for number in range(self.at_once):
                with (places / str(number)).open("ab") as file:
                    if _locks(file.fileno()):
                        yield
                        return
            time.sleep(LOOK)

    def _post(self, body: bytes) -> tuple[int, float, bytes]:
        """Send one request -> status, seconds after which the next is welcome, content."""
        parts, end = urlsplit(self.url), time.monotonic() + self.timeout
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        key = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        headers = {"Content-Type": "application/json", "User-Agent": "groupwise", **key}
        with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=self.timeout)) as connection:
            connection.request("POST", f"{parts.path.rstrip('/')}/chat/completions", body, headers)
            response, content = connection.getresponse(), b""
            while part := response.read1(1 << 16):
                content += part
                if time.monotonic() > end:  # the socket's own timeout begins again with every byte
                    raise TimeoutError
                if len(content) > LARGEST:
                    raise http.client.HTTPException(f"a reply of more than {LARGEST:,} bytes")
            after = response.getheader("Retry-After") or ""
            return response.status, float(after) if after.isdecimal() else 0.0, content


def _locks(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
