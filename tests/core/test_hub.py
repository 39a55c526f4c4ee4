"""The hub is asked once whether it can be reached; where it cannot, its libraries look into their caches alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from groupwise.core.errors import UsageError
from groupwise.core.machine import hub
from groupwise.models.load import model_folder


class Hub(HTTPServer):
    """A hub that answers nothing but that it is there, and counts how often it is asked."""

    asked = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        assert isinstance(self.server, Hub)
        self.server.asked += 1
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    forget()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
    forget()


@pytest.fixture
def nowhere(there: Hub) -> str:
    """The address of a hub that is gone."""
    there.shutdown()
    there.server_close()
    return hub.address()


def forget() -> None:
    hub.reachable.cache_clear()
    hub.address.cache_clear()


def test_a_hub_that_answers_anything_is_reachable_and_is_asked_once(there: Hub) -> None:
    assert hub.reachable()
    assert hub.reachable()
    assert hub.unreachable_words() == ""
    with hub.caches_alone_if_unreachable():
        assert not constants.HF_HUB_OFFLINE
    assert there.asked == 1


def test_where_it_is_gone_the_caches_alone_are_looked_into(nowhere: str) -> None:
    assert not hub.reachable()
    with hub.caches_alone_if_unreachable():
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    assert hub.unreachable_words() == f"{nowhere} cannot be reached from here, and no cache has it"


def test_a_model_that_cannot_be_downloaded_is_one_line(nowhere: str) -> None:
    with pytest.raises(
        UsageError, match=r"^model = 'nobody/none': no such folder, and no .* no cache has it; set model"
    ):
        model_folder("nobody/none")


def test_a_hub_that_does_not_answer_in_time_is_not_waited_for(there: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE", 0.05)
    monkeypatch.setattr(Handler, "do_HEAD", lambda self: threading.Event().wait(0.3))
    assert not hub.reachable()
