"""A judge that is a real server in a thread: slow, wrong or failing as a test says, and it counts what it is asked."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from groupwise.core.samples import Cause

#: (status, body) of a reply.
Reply = tuple[int, bytes]
CRITERIA = {"clear": {"description": "Is it clear?"}, "right": {"description": "Is it right?", "weight": 3.0}}


def chat(content: object, ended: str = "stop", **message: Any) -> Reply:
    said = {"choices": [{"message": {"content": content, **message}, "finish_reason": ended}]}
    return 200, json.dumps({**said, "usage": {"total_tokens": 50}}).encode()


def scores(clear: float, right: float, reason: str = "As it is.") -> Reply:
    return chat(json.dumps({"reason": reason, "clear": clear, "right": right}))


#: Bad answers by what is wrong with them, and the fault that each is.
BAD: dict[str, tuple[Reply, Cause]] = {
    "prose": (chat("It is quite good."), Cause.NO_JSON),
    "broken": (chat('{"reason": "{\\"clear\\": 1}", "a": {"clear": 1, "right": 1}, oops'), Cause.NO_JSON),
    "deep": (chat('{"clear":' * 50_000), Cause.NO_JSON),
    "half": (chat('{"clear": 7}'), Cause.MISSING),
    "more": (chat('{"clear": 7, "right": 7, "kind": 7}'), Cause.UNKNOWN),
    "text": (chat('{"clear": "7", "right": 7}'), Cause.NOT_NUMBER),
    "truth": (chat('{"clear": true, "right": 7}'), Cause.NOT_NUMBER),
    "none": (chat('{"clear": null, "right": 7}'), Cause.NOT_NUMBER),
    "above": (chat('{"clear": 10.5, "right": 7}'), Cause.OUT_OF_RANGE),
    "below": (chat('{"clear": -1, "right": 7}'), Cause.OUT_OF_RANGE),
    "infinite": (chat('{"clear": Infinity, "right": 7}'), Cause.OUT_OF_RANGE),
    "nan": (chat('{"clear": NaN, "right": 7}'), Cause.NAN),
    "two": (chat('{"clear": 7, "right": 7} or {"clear": 1, "right": 1}'), Cause.SEVERAL),
    "twice": (chat('{"clear": 7, "right": 7, "clear": 1}'), Cause.SEVERAL),
    "empty": (chat(" \n"), Cause.EMPTY),
    "null": (chat(None), Cause.EMPTY),
    "html": ((200, b"<html><body>Welcome</body></html>"), Cause.NO_CHAT),
    "list": ((200, b"[1]"), Cause.NO_CHAT),
    "bytes": ((200, b"\xff\xfe\x00"), Cause.NO_CHAT),
    "refusal": (chat(None, refusal="I cannot grade this."), Cause.REFUSAL),
    "filter": (chat("", ended="content_filter"), Cause.REFUSAL),
    "long": (chat('{"reason": "It is', ended="length"), Cause.CUT_OFF),
    "unknown": ((404, b'{"error": "no such model"}'), Cause.REFUSED),
    "moved": ((302, b""), Cause.REFUSED),
    "down": ((503, b"overloaded"), Cause.UNREACHABLE),
}


@dataclass
class Served:
    """What the server has seen: questions, their headers, times, and the most at once."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    under_way: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def answer_of(body: dict[str, Any]) -> str:
    """What stands between the built-in template's marks of the completion."""
    found = re.search(r"<answer>\n(.*)\n</answer>", body["messages"][0]["content"], re.DOTALL)
    assert found
    return found[1]


@contextmanager
def judge_server(reply: Callable[[dict[str, Any], int], Reply], delay: float = 0.0) -> Iterator[Served]:
    """Serve what `reply` makes of (body, number of the request), `delay` seconds later."""
    served = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with served.lock:
                number = len(served.bodies)
                served.bodies.append(body)
                served.headers.append(dict(self.headers))
                served.times.append(time.monotonic())
                served.under_way += 1
                served.most = max(served.most, served.under_way)
            time.sleep(delay)
            status, content = reply(body, number) if self.path == "/v1/chat/completions" else (404, b"not here")
            with served.lock:
                served.under_way -= 1
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Let who gave up go."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
