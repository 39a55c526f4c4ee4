"""The page of a run that goes on: real sockets, real threads, real signals, over a source that grows by hand."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from groupwise.core.errors import UsageError
from groupwise.reports import live
from groupwise.reports.page.page import as_json
from groupwise.reports.records import Curves, Live, Page, RunPage, Status


class Growing:
    """A run of `rows` steps, an evaluation after each tenth; `gone` is why it cannot be read."""

    def __init__(self, rows: int = 0) -> None:
        self.rows, self.state, self.inside, self.most_inside = rows, "going", 0, 0
        self.gone: Exception | None = None

    def page(self) -> Page:
        with self._reading():
            return Page("run", "now", (), (), (RunPage("r", "r", self._status(), steps=steps(0, self.rows)),))

    def fresh(self, rollout: int) -> Page:
        return dataclasses.replace(self.page(), title=f"after {rollout}")

    def _status(self) -> Status:
        return Status(self.state, f"step {self.rows}")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if self.gone is not None:
            raise self.gone
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        yield
        self.inside -= 1


def steps(after: int, last: int) -> Curves:
    """What a step's row is made of: 60 columns."""
    made = list(range(after + 1, last + 1))
    return Curves(made, {f"column {i}": [s + i / 7 for s in made] for i in range(60)})


def html(page: Page) -> str:
    return f"<!doctype html><title>{page.title}</title>{dataclasses.asdict(page)}" + "é" * 2000


@contextmanager
def served(source: Growing, html: Callable[[Page], str] = html, **changes) -> Iterator[str]:
    """The address, host:port, while it is watched."""
    address: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    def tell(url: str) -> None:
        address.append(url)
        ready.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "html", html)
        thread = threading.Thread(target=live.watch, args=(source, 0, tell, stop), kwargs=changes)
        thread.start()
        assert ready.wait(30)
        try:
            yield address[0].removeprefix("http://").removesuffix("/")
        finally:
            stop.set()
            thread.join(30)
            assert not thread.is_alive()


def get(address: str, target: str, **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection(address, timeout=30)
    connection.request("GET", target, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def raw(address: str, request: bytes) -> bytes:
    """Everything that comes back on a connection which the server is to close."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_the_page_knows_where_to_ask_and_is_the_same_packed():
    shown: list[Page] = []

    def remember(page: Page) -> str:
        shown.append(page)
        return html(page)

    with served(Growing(3), html=remember, seconds=0.5) as address:
        plain, body = get(address, "/")
        packed, small = get(address, "/", Accept_Encoding="gzip, br")
    assert shown[0].live == Live("/fresh", 0.5)
    told = [(each.getheader("Content-Type"), each.getheader("Content-Encoding")) for each in (plain, packed)]
    assert told == [("text/html; charset=utf-8", None), ("text/html; charset=utf-8", "gzip")]
    assert len(small) < len(body)
    assert gzip.decompress(small) == body == html(shown[0]).encode()


def test_the_page_as_it_is_now():
    source = Growing()
    with served(source) as address:
        for rows in (0, 2, 17):
            source.rows = rows
            answer, body = get(address, f"/fresh?rollout={rows}")
            assert answer.getheader("Content-Type") == "application/json"
            page = json.loads(body)
            assert page == json.loads(as_json(source.fresh(rows)))
            assert page["runs"][0]["steps"] == {"step": list(range(1, rows + 1)), "columns": steps(0, rows).columns}
        assert json.loads(get(address, "/fresh")[1])["title"] == "after -1"


def test_a_name_that_is_no_text_is_shown_all_the_same():
    source = Growing(1)
    source.state = os.fsdecode(b"run\xff")  # as a folder may be called
    with served(source, html=lambda page: page.runs[0].status.state) as address:
        assert get(address, "/")[1] == b"run?"
        assert json.loads(get(address, "/fresh")[1])["runs"][0]["status"]["state"] == "run?"


def test_nothing_new_is_said_in_an_empty_body():
    source = Growing(12)
    with served(source) as address:
        target = "/fresh?rollout=12"
        first, body = get(address, target)
        tag = first.getheader("ETag") or ""
        again, empty = get(address, target, If_None_Match=tag)
        assert (again.status, empty, again.getheader("ETag")) == (304, b"", tag)
        source.state = "finished"
        told, news = get(address, target, If_None_Match=tag)
        assert told.status == 200
    assert json.loads(news)["runs"][0]["status"]["state"] == "finished"
    assert json.loads(body)["runs"][0]["steps"]["step"] == list(range(1, 13))


ELSEWHERE = ("/recipe.toml", "/../recipe.toml", "/fresh/", "/.", "/%2e%2e/", "http://a/")
NUMBERS = ("rollout=x", "rollout=1.5", "rollout=", "rollout=" + "9" * 5000, "rollout=1&rollout=b")


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        *((target, 404, b"there is nothing here; the page is at /\n") for target in ELSEWHERE),
        *((f"/fresh?{query}", 400, b"fresh?rollout=J: a whole number, the last ") for query in NUMBERS),
    ],
)
def test_any_other_path_and_what_is_no_number_are_one_line(target, code, words):
    with served(Growing(1)) as address:
        answer = raw(address, f"GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.0 {code} ".encode())
    assert words in body
    assert body.count(b"\n") == 1


def test_only_whoever_has_the_key_in_the_address_reads_a_page_that_has_one():
    shown = []

    def page(made: Page) -> str:
        shown.append(made.live.url)
        return html(made)

    with served(Growing(1), page, key="s3cret-key") as address:
        place, _, root = address.partition("/")
        assert root == "s3cret-key"
        for target in ("/", "/fresh", "/s3cret-ke/", "/s3cret-key", "/S3cret-key/", "/x3cret-key/fresh"):
            answer, body = get(place, target)
            assert answer.status == 404
            assert b"the page is at the address that was printed where it is served" in body
        assert get(place, "/s3cret-key/")[0].status == 200
        assert shown == ["/s3cret-key/fresh"]
        assert json.loads(get(place, shown[0])[1])["title"] == "after -1"


def test_connections_that_ask_nothing_keep_nobody_out_and_the_oldest_go():
    with served(Growing(1)) as address:
        host, port = address.split(":")
        idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(live.MOST_CONNECTIONS + 9)]
        assert get(address, "/fresh")[0].status == 200
        assert [connection.recv(1) for connection in idle[:9]] == [b""] * 9
        for connection in idle:
            connection.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "HEAD", "get"])
def test_only_get_is_answered(method):
    with served(Growing(1)) as address:
        sent = f"{method} / HTTP/1.1\r\nHost: {address}\r\nContent-Length: 5\r\n\r\nGET /"
        head, _, body = raw(address, sent.encode()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 405 ")
    assert b"\r\nAllow: GET" in head
    assert body == (b"" if method == "HEAD" else b"only GET is answered here\n")


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("Host: {address}", 200),
        ("Host: localhost", 200),
        ("host: LOCALHOST:9000", 200),
        ("Host: 127.0.0.1:1", 200),
        ("Host: evil.example", 403),
        ("Host: 127.0.0.1.evil.example", 403),
        ("Host: localhost:80@evil.example", 403),
        ("Host: 127.0.0.2", 403),
        ("Host: ", 403),
        ("X: y", 403),
        ("Host: localhost\r\nHost: evil.example", 403),
    ],
)
def test_a_foreign_name_that_points_here_reads_nothing(host, code):
    with served(Growing(1)) as address:
        for target in ("/", "/fresh?rollout=0"):
            sent = f"GET {target} HTTP/1.1\r\n{host.format(address=address)}\r\nConnection: close\r\n\r\n"
            head, _, body = raw(address, sent.encode()).partition(b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.0 {code} ".encode())
            assert (body == b"only for localhost and 127.0.0.1\n") == (code == 403)


def test_no_answer_is_kept_or_shared_with_other_sites():
    with served(Growing(1)) as address:
        for target in ("/", "/fresh", "/nowhere"):
            answer, _ = get(address, target, Origin="http://evil.example")
            assert answer.getheader("Cache-Control") == "no-store"
            assert answer.getheader("X-Frame-Options") == "DENY"
            assert answer.getheader("X-Content-Type-Options") == "nosniff"
            assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
            assert not [name for name, _ in answer.getheaders() if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("runs/x: it is\n gone"), 503, b"runs/x: it is gone\n"),
        (FileNotFoundError(2, "No such file"), 503, b"[Errno 2] No such file\n"),
        (KeyError("step"), 500, b"KeyError: 'step'\n"),
    ],
)
def test_a_folder_that_is_gone_is_told_and_may_come_back(error, code, line, capfd):
    source = Growing(5)
    with served(source) as address:
        source.gone = error
        for target in ("/", "/fresh?rollout=1"):
            answer, body = get(address, target)
            assert (answer.status, body) == (code, line)
        source.gone = None
        assert get(address, "/fresh?rollout=1")[0].status == 200
    assert capfd.readouterr().err == ""


def test_a_source_is_asked_one_question_at_a_time():
    class Slow(Growing):
        def _status(self) -> Status:
            time.sleep(0.02)
            return super()._status()

    source = Slow(5)
    with served(source) as address:
        asking = [threading.Thread(target=get, args=(address, "/fresh")) for _ in range(8)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
    assert source.most_inside == 1


def test_a_browser_that_leaves_in_the_middle_leaves_no_trace(capfd):
    source = Growing(5)
    with served(source, html=lambda page: "x" * 30_000_000) as address:
        host, port = address.split(":")
        for _ in range(5):
            connection = socket.create_connection((host, int(port)))
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
            connection.recv(1000)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        for noise in (b"\x16\x03\x01 what is this", b"\xe9" * 900, b"GET / HTTP/9.9"):
            assert raw(address, noise + b"\r\n\r\n").partition(b"\r\n\r\n")[2].count(b"\n") == 1
        assert get(address, "/fresh")[0].status == 200
    assert capfd.readouterr().err == ""


def test_a_port_that_cannot_be_had_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken, served(Growing()) as address:
        ports = (taken.getsockname()[1], int(address.split(":")[1]))
        told = dict.fromkeys(ports, "Address already in use") | {70_000: "0 to 65535"}
        for port, words in told.items():
            with pytest.raises(UsageError, match=rf"^--port {port}: .*{words}.*; choose another") as refused:
                live.watch(Growing(), port, print, threading.Event())
            assert "\n" not in str(refused.value)


def test_the_end_leaves_nothing_open():
    with served(Growing(1)) as address:
        host, port = address.split(":")
        silent = socket.create_connection((host, int(port)), timeout=30)
        get(address, "/fresh")
    silent.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


WATCHED = """
from tests.reports.test_watch import Growing, html
from groupwise.reports import live
live.html = html
live.watch(Growing(5), 0, lambda url: print(url, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_and_well(number):
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "src")])
    told = {"cwd": root, "env": {**os.environ, "PYTHONPATH": path}, "text": True}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WATCHED], **pipes, **told) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        kept = HTTPConnection(url.removeprefix("http://").removesuffix("/"), timeout=30)
        kept.request("GET", "/fresh")
        kept.getresponse().read()
        process.send_signal(number)
        try:
            code = process.wait(30)
        finally:
            process.kill()
        kept.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert code == 0


def test_signals_are_given_back_to_whoever_had_them():
    stop, numbers = threading.Event(), (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    during = []

    def ready(url: str) -> None:
        during.extend(signal.getsignal(number) for number in numbers)
        stop.set()

    live.watch(Growing(), 0, ready, stop)
    assert [signal.getsignal(number) for number in numbers] == before
    assert not set(during) & set(before)
