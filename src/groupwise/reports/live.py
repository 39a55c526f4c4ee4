"""A run's page on loopback, fresh while the run goes on: one page, one address that says what is new, nothing else."""

import gzip
import hashlib
import hmac
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs

from groupwise.core.errors import GroupwiseError, UsageError
from groupwise.core.processes.stop import handled_by
from groupwise.reports.folder.read import (
    HELDOUT,
    LOCK,
    LOG,
    MACHINE,
    METRICS,
    PROBLEMS,
    ROLLOUTS,
    SESSIONS,
    SUMMARY,
    RunFolder,
    is_held,
    read,
)
from groupwise.reports.folder.sample import sample, with_heldout
from groupwise.reports.page.page import as_json, html, page_of, with_contrasts
from groupwise.reports.records import Live, Page, Rollouts

HOST = "127.0.0.1"
#: A page asks this often, in seconds.
SECONDS = 2.0
#: Names by which a browser may call this server. Any other is a foreign name that was made to point here, by whoever
#: wants to read the page from a site of their own. The port may differ: ssh -L gives it another one.
LOCAL = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.IGNORECASE)
#: What is new, below the path of the page.
FRESH = "fresh"
#: Smaller answers are sent as they are.
WORTH_PACKING = 1400
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
}
#: Connections at a time; for one more the oldest goes. Seconds after which one that could not be had is tried again.
MOST_CONNECTIONS, PAUSE = 64, 0.05
#: Groups that are kept for pages that ask late.
MOST_GROUPS = 200
#: Groups that one look adds at most, and their bytes.
NEW_GROUPS, NEW_BYTES = 40, 200_000
#: Making the page anew while the run goes on takes at most this share of a core, however long the run is.
SHARE = 1 / 10


class Watched:
    """A run's page, made anew while the run goes on: `page` begins a page, `fresh` tells how it is now.

    The groups of a step are shown once the step has its row in metrics.jsonl. Pages of one edition show one run without
    a break; a resume, which cuts the run's files back, begins another, and older pages have to be loaded again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._edition = folder, 0
        self._seen: tuple[dict[str, tuple[int, int]], bool] = {}, False
        self.page()

    def page(self) -> Page:
        """Begin a page. Raises UsageError if the folder is none of a run, or no longer."""
        self._is_new()
        run = read(self.folder)
        self._first, self._end = sample(self.folder / ROLLOUTS, last=_last_whole(run))
        self._groups = self._first.groups[-MOST_GROUPS:]
        self._page, self._next = self._made(run), 0.0
        return _showing(self._page, with_contrasts(with_heldout(self._first, self.folder / HELDOUT), self.folder))

    def fresh(self, rollout: int) -> Page:
        """Tell how the page is now, with the groups of steps after step `rollout` alone; -1 is all of them."""
        if not self.folder.is_dir():
            raise UsageError(f"{self.folder}: the run folder is gone")
        if time.monotonic() >= self._next and self._is_new():
            began = time.thread_time()
            run = read(self.folder)
            more, self._end = sample(self.folder / ROLLOUTS, NEW_BYTES, NEW_GROUPS, _last_whole(run), self._end)
            self._groups = [*self._groups, *more.groups][-MOST_GROUPS:]
            self._page = self._made(run)
            self._next = time.monotonic() + (time.thread_time() - began) / SHARE
        late = [group for group in self._groups if group.step > rollout]
        return _showing(self._page, Rollouts(self._first.words, late) if late else None)

    def _is_new(self) -> bool:
        """Look if the run went on; a file of rows that was cut back or replaced begins an edition."""
        before, self._seen = self._seen, (_files(self.folder), is_held(self.folder / LOCK))
        old, new = before[0], self._seen[0]
        kept = [(old[name], new[name]) for name in (METRICS, ROLLOUTS) if name in old and name in new]
        self._edition += any(inode != was or size < had for (was, had), (inode, size) in kept)
        return self._seen != before

    def _made(self, run: RunFolder) -> Page:
        return replace(page_of(run, self._first.groups or self._groups, None), edition=self._edition)


def watch(
    source: Watched,
    port: int,
    ready: Callable[[str], None],
    stop: threading.Event | None = None,
    seconds: float = SECONDS,
    key: str = "",
) -> None:
    """Serve the page on 127.0.0.1 until `stop` is set, or a signal asks to stop; `ready` gets the address.

    Port 0 is any free one. With a key the page is shown to whoever has it: it is part of the address.
    Raises UsageError if the port is taken or not allowed.
    """
    serve(Desk(source, seconds, f"/{key}/" if key else "/"), port, ready, stop)


def serve(desk: "Replies", port: int, ready: Callable[[str], None], stop: threading.Event | None = None) -> None:
    """Serve a desk on 127.0.0.1 as `watch` does a page."""
    stopped = stop or threading.Event()
    with _listen(port, desk) as server, _signals() as signals:
        ready(f"http://{HOST}:{server.server_port}{desk.root}")
        while not signals and not stopped.is_set():
            server.handle_request()


@dataclass(frozen=True)
class HttpReply:
    """An answer; `tag` names its content, so that the same need not be sent twice."""

    code: int
    kind: str
    body: bytes
    tag: str = ""


class Replies(Protocol):
    """The answers to requests; `root` is the path of the page, which nobody is told."""

    root: str

    def reply(self, target: str) -> HttpReply: ...


class Desk:
    """The answers to requests, one at a time; knows nothing of sockets.

    root  the path of the page, which nobody is told
    """

    def __init__(self, source: Watched, seconds: float, root: str = "/") -> None:
        self.source, self.seconds, self.root = source, seconds, root
        self._one_at_a_time = threading.Lock()

    def reply(self, target: str) -> HttpReply:
        """Answer a request's target. An error, as of a folder that is gone, is one line of text."""
        path, _, query = target.partition("?")
        root, name = path[: len(self.root)], path[len(self.root) :]
        if not hmac.compare_digest(root.encode(), self.root.encode()) or name not in ("", FRESH):
            return self.nothing(path, self.root)
        try:
            # Also while it is written out: a source may go on with the lists that it handed over.
            with self._one_at_a_time:
                return self._fresh(query) if name else self._page()
        except (GroupwiseError, OSError) as error:
            return line(503, str(error))
        except Exception as error:  # the server outlives whatever one answer ran into, and the page says what it was
            return line(500, f"{type(error).__name__}: {error}")

    @staticmethod
    def nothing(path: str, root: str) -> HttpReply:
        """Say that there is nothing at a path."""
        where = "at /" if root == "/" else "at the address that was printed where it is served"
        return line(404, f"{path[:80]}: there is nothing here; the page is {where}")

    def _page(self) -> HttpReply:
        page = replace(self.source.page(), live=Live(self.root + FRESH, self.seconds))
        return HttpReply(200, "text/html; charset=utf-8", html(page).encode("utf-8", "replace"))

    def _fresh(self, query: str) -> HttpReply:
        try:
            rollout = int(parse_qs(query, keep_blank_values=True).get("rollout", ["-1"])[-1])
        except ValueError:
            return line(400, "fresh?rollout=J: a whole number, the last step whose groups are known, or -1")
        body = as_json(self.source.fresh(rollout))
        return HttpReply(200, "application/json", body, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"')


class _Server(ThreadingHTTPServer):
    allow_reuse_port = False  # else a second server would take the port without a word
    request_queue_size = MOST_CONNECTIONS
    timeout = 0.2  # of handle_request: how soon a stop is noticed

    def __init__(self, port: int, desk: Replies) -> None:
        self.desk = desk
        self._lock, self._open = threading.Lock(), dict[socket.socket, None]()  # the oldest first
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind without looking the server's own name up, which takes seconds if there is no name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; what the system has no room for now is tried again a moment later."""
        try:
            connection, address = super().get_request()
        except OSError:
            self._send_oldest_away(MOST_CONNECTIONS // 2)
            time.sleep(PAUSE)
            raise
        self._send_oldest_away(MOST_CONNECTIONS - 1)
        with self._lock:
            self._open[connection] = None
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that has its answer."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def _send_oldest_away(self, most: int) -> None:
        with self._lock:
            for connection in list(self._open)[: max(0, len(self._open) - most)]:
                del self._open[connection]
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a browser that left in the middle, and one for which there is no thread."""
        if not isinstance(sys.exception(), OSError | RuntimeError):  # RuntimeError: the system has no thread for it
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request a connection, as HTTP/1.0 does: nothing is left open when the server ends."""

    timeout = 60
    server: _Server  # type: ignore[assignment]

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        local = len(hosts) == 1 and LOCAL.fullmatch(hosts[0].strip())
        self._send(self.server.desk.reply(self.path) if local else line(403, "only for localhost and 127.0.0.1"))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what could not be read as a request, and other methods than GET."""
        self.request_version = self.protocol_version  # else what was no request is answered without a head
        method = code == 501
        self._send(line(405 if method else code, "only GET is answered here" if method else message or "refused"))

    def _send(self, reply: HttpReply) -> None:
        # What was refused may have been no request: it has no headers, or still those of the one before.
        headers = self.headers if reply.code == 200 else {}
        unchanged = bool(reply.tag) and headers.get("If-None-Match") == reply.tag
        packed = not unchanged and len(reply.body) > WORTH_PACKING and "gzip" in headers.get("Accept-Encoding", "")
        body = b"" if unchanged else gzip.compress(reply.body, 1) if packed else reply.body
        self.send_response(304 if unchanged else reply.code)
        fields = dict(HEADERS)
        if not unchanged:
            fields |= {"Content-Type": reply.kind, "Content-Length": str(len(body))}
        fields |= {"Content-Encoding": "gzip"} if packed else {}
        fields |= {"ETag": reply.tag} if reply.tag else {}
        fields |= {"Allow": "GET"} if reply.code == 405 else {}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "groupwise"

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the terminal is the user's."""


def line(code: int, text: str) -> HttpReply:
    """Reply with one line of text, whatever was in it."""
    body = (" ".join(text.split())[:1000] + "\n").encode("utf-8", "replace")
    return HttpReply(code, "text/plain; charset=utf-8", body)


def _listen(port: int, desk: Replies) -> _Server:
    try:
        return _Server(port, desk)
    except OverflowError:
        words = "a port is a number from 0 to 65535"
    except OSError as error:
        words = error.strerror or str(error)
    raise UsageError(f"--port {port}: {words}; choose another, or 0 for any that is free")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect Ctrl-C and its like in a list that is looked at; nothing is done inside a signal handler."""
    signals: list[int] = []
    with handled_by(lambda number, _: signals.append(number)):
        yield signals


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Find inode and size of each file that a page is made of."""
    found = {}
    for name in (METRICS, ROLLOUTS, MACHINE, PROBLEMS, LOG, SUMMARY, SESSIONS):
        with suppress(OSError):  # not written yet, or gone
            status = (folder / name).stat()
            found[name] = status.st_ino, status.st_size
    return found


def _last_whole(run: RunFolder) -> int | None:
    """Find the last step whose rollouts are all written; None if nothing more is written."""
    if run.status.state != "going":
        return None
    return run.step_rows[-1]["step"] if run.step_rows else 0


def _showing(page: Page, rollouts: Rollouts | None) -> Page:
    return replace(page, runs=tuple(replace(run, rollouts=rollouts) for run in page.runs))
