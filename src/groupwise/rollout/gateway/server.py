"""HTTP in a thread of the run: who may ask, how much, and in which protocol; what is asked goes to the run's thread.

Each session has a key of its own, which comes as `Authorization: Bearer KEY`, as `x-api-key`, or in the path
(/s/KEY/v1/...). A key is good while its session is played, and no other run knows it.
"""

import asyncio
import json
import secrets
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from groupwise.core.environment import MODEL
from groupwise.core.errors import UsageError, brief, one_line
from groupwise.core.processes.network import LOOPBACK, Address
from groupwise.rollout.gateway import chat, generate, messages, responses
from groupwise.rollout.gateway.request import Body, ModelAnswer, ModelRequest, Refusal, over, refuse

#: Bytes of a request's body, seconds in which it must have come, and connections at once, all at most.
LARGEST, BODY_SECONDS, CONNECTIONS = 2**23, 60.0, 2048
#: Keys of sessions that are over which are known as such; of an older one nothing is known.
REMEMBERED = 2**14
#: Seconds in which the thread ends; and after which a stream that has nothing to say yet says so.
FAREWELL, SILENT = 5.0, 10.0
#: (what is asked, its answer when it comes): called in the run's thread. Raises Refusal.
Take = Callable[[ModelRequest, "Future[ModelAnswer]"], object]


@dataclass(frozen=True)
class Protocol:
    """Form of requests and answers.

    read    a body -> what is asked
    whole   an answer -> its body
    events  an answer -> server-sent events
    wait    event that says nothing: clients give up on a stream in which nothing comes
    """

    read: Callable[[Body], ModelRequest]
    whole: Callable[[ModelRequest, ModelAnswer], dict[str, Any]]
    events: Callable[[ModelRequest, ModelAnswer], Iterator[str]]
    wait: str = ": sampling\n\n"


PROTOCOLS = {
    "/v1/chat/completions": Protocol(chat.read, chat.whole, chat.events),
    "/v1/messages": Protocol(messages.read, messages.whole, messages.events, messages.WAIT),
    "/v1/messages/count_tokens": Protocol(messages.read_to_count, messages.counted, messages.events),
    "/v1/responses": Protocol(responses.read, responses.whole, responses.events),
    "/inference/v1/generate": Protocol(generate.read, generate.whole, generate.events),
}


class Server:
    """Listens at an address.

    events   what came, to be called in the run's thread
    refused  hears there why a request has no answer
    """

    def __init__(self, address: Address) -> None:
        """Begin to listen. Raises UsageError if that cannot be done at this address."""
        self.events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.refused: Callable[[Refusal], None] = lambda refusal: None
        self._takes: dict[str, Take] = {}
        self._left: OrderedDict[str, None] = OrderedDict()
        self._socket = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((address.host, address.port))
            self._socket.listen(CONNECTIONS)  # before the thread has begun: a client may be faster
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"rollout.gateway = {str(address)!r}: {error.strerror}; choose another port, or 0"
            ) from None
        everywhere = address.host in ("0.0.0.0", "::")
        self.address = Address(LOOPBACK if everywhere else address.host, self._socket.getsockname()[1])
        config = uvicorn.Config(
            self._app(), log_config=None, access_log=False, lifespan="off", ws="none", http="h11", loop="asyncio",
            limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._uvicorn = uvicorn.Server(config)
        serve = partial(self._uvicorn.run, sockets=[self._socket])
        self._thread = Thread(target=serve, name="gateway", daemon=True)
        self._thread.start()

    def enter(self, take: Callable[[str, ModelRequest, "Future[ModelAnswer]"], object]) -> tuple[str, str]:
        """Let a session ask -> the address that its agent is given, and a new key, which `take` is told too."""
        key = secrets.token_urlsafe(24)
        self._takes[key] = partial(take, key)
        return f"http://{self.address}/v1", key

    def leave(self, key: str) -> None:
        """Let nothing be asked with a key any more."""
        if self._takes.pop(key, None):
            self._left[key] = None
        while len(self._left) > REMEMBERED:
            self._left.popitem(last=False)

    def close(self) -> None:
        """End the thread. A second call does nothing."""
        self._uvicorn.should_exit = True
        self._thread.join(FAREWELL)
        self._socket.close()

    def _app(self) -> Starlette:
        routes = [Route("/v1/models", self._models)]
        for path, protocol in PROTOCOLS.items():
            answer = partial(self._answer, protocol)
            # Libraries put the whole path behind the address that they are given, which ends in /v1 for OpenAI's.
            for one in (path, f"/v1{path}"):
                routes.append(Route(one, answer, methods=["POST"]))
        own = [Route(f"/s/{{key}}{route.path}", route.endpoint, methods=route.methods) for route in routes]
        return Starlette(routes=[*routes, *own], exception_handlers=dict.fromkeys((HTTPException, Refusal), _refused))

    async def _models(self, request: Request) -> Response:
        self._take(request)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "groupwise"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _answer(self, protocol: Protocol, request: Request) -> Response:
        """Answer a request, or say in one line why not."""
        try:
            take = self._take(request)
            body = Body.of(await _body(request))
            model = body.content.get("model")
            if model not in (None, MODEL):
                raise Refusal(
                    404, f"model = {brief(model)}: there is no such model; this run has {MODEL!r}", "model_not_found"
                )
            asked = protocol.read(body)
            answer = asyncio.ensure_future(self._asked(take, asked, request))
            if not asked.stream or asked.counts:
                return JSONResponse(protocol.whole(asked, await answer))
            await asyncio.wait({answer}, timeout=SILENT)  # what is refused by then has its status
            how: dict[str, Any] = {"media_type": "text/event-stream", "headers": {"cache-control": "no-cache"}}
            if not answer.done():
                return StreamingResponse(self._late(protocol, asked, answer), **how)
            return Response("".join(protocol.events(asked, answer.result())), **how)
        except Refusal as refusal:
            if refusal.status not in (401, 410):  # of sessions that are played
                self.events.put(partial(self.refused, refusal))
            raise
        except (ClientDisconnect, asyncio.CancelledError):
            return Response(status_code=499)
        except Exception as error:
            raise _fault(error) from None

    async def _late(
        self, protocol: Protocol, asked: ModelRequest, answer: "asyncio.Task[ModelAnswer]"
    ) -> AsyncIterator[str]:
        """Yield signs of life until there is an answer, and its events."""
        try:
            while not answer.done():
                yield protocol.wait
                await asyncio.wait({answer}, timeout=SILENT)
            for event in protocol.events(asked, answer.result()):
                yield event
        except ClientDisconnect:
            return
        except Exception as error:
            refusal = error if isinstance(error, Refusal) else _fault(error)
            self.events.put(partial(self.refused, refusal))
            yield f"event: error\ndata: {json.dumps(_said(refusal))}\n\n"
        finally:
            answer.cancel()

    async def _asked(self, take: Take, asked: ModelRequest, request: Request) -> ModelAnswer:
        """Hand a request to the run's thread and wait; one whose client goes away meanwhile is taken back."""
        future: Future[ModelAnswer] = Future()

        def event() -> None:
            try:
                take(asked, future)
            except Refusal as refusal:
                refuse(future, refusal)
            except Exception as error:  # of the run's thread, which other sessions wait for
                refuse(future, _fault(error))

        self.events.put(event)
        answer, gone = asyncio.wrap_future(future), asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientDisconnect
            return answer.result()
        finally:
            gone.cancel()
            answer.cancel()

    def _take(self, request: Request) -> Take:
        """Find what takes a request, by the key of its session. Raises Refusal."""
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        own = bearer.strip() if kind.lower() == "bearer" else ""
        key = request.path_params.get("key") or own or request.headers.get("x-api-key", "")
        if take := self._takes.get(key):
            return take
        if key in self._left:
            raise over()
        words = "it is of no session of this run" if key else "there is none: give the session's as a bearer token"
        raise Refusal(401, f"the key: {words}", "invalid_api_key")


async def _body(request: Request) -> bytes:
    """Read a body. One that is too long is read to its end, so that the client hears why it is refused."""
    content, size = bytearray(), 0
    with suppress(TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                content += chunk if size <= LARGEST else b""
            if size > LARGEST:
                raise Refusal(413, f"the body has {size} bytes; {LARGEST} are the most", "too_large")
            return bytes(content)
    raise Refusal(408, f"the body has not come within {BODY_SECONDS:g} seconds", "timeout")


async def _gone(request: Request) -> None:
    """Wait until the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _fault(error: Exception) -> Refusal:
    return Refusal(500, f"{type(error).__name__}: {one_line(error)}", "server_error")


async def _refused(request: Request, error: Exception) -> Response:
    """Write why there is no answer, so that OpenAI's and Anthropic's libraries read it."""
    if not isinstance(error, Refusal):
        status = error.status_code if isinstance(error, HTTPException) else 500
        known = ", ".join(["GET /v1/models", *(f"POST {path}" for path in PROTOCOLS)])
        error = Refusal(status, f"{request.method} {request.url.path[:100]}: no such request; known: {known}")
    return JSONResponse(_said(error), status_code=error.status)


def _said(refusal: Refusal) -> dict[str, Any]:
    content = {"type": refusal.code, "code": refusal.code, "message": str(refusal)}
    return {"type": "error", "error": content}
