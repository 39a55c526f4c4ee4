"""What passes between two ranks arrives as it was; one that does not come is not waited for; one alone needs nobody."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from groupwise.core.errors import UsageError
from groupwise.training.mesh import ALONE, ENDS_WORK, INTERFACES, NCCL_ERRORS, PIECE, Mesh, connect, rendezvous
from tests import two_ranks
from tests.training.rank_acts import DEADLINE, TENSORS


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder: Path = tmp_path_factory.mktemp("mesh")
    done = two_ranks.ran("tests.training.rank_acts", [str(folder)], seconds=60)
    assert [d.returncode for d in done] == [0, 0], "\n".join(d.stdout[-3000:] for d in done)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


#: What a rank that has the number `rank` sees of each act.
SEEN = {
    "sums": lambda rank: [pytest.approx(0.3), 1],
    "not_finite": lambda rank: True,
    "of_a_card": lambda rank: [[2.0], True, [0, 1], True, "cpu"],
    "joined": lambda rank: dict.fromkeys(TENSORS, True),
    "arrived": lambda rank: dict.fromkeys(TENSORS, True),
    "plain": lambda rank: True,
    "all_agree": lambda rank: [True, False, False],
    "dealt": lambda rank: ([10, 12], [11, None])[rank],
    "of_each": lambda rank: [{"rank": 0, "text": "é"}, {"rank": 1, "text": "éé"}],
    "listens": lambda rank: [],
    "refused": lambda rank: "Is a directory (rank 1)",
}


@pytest.mark.parametrize("act", SEEN)
def test_what_two_ranks_do_together_is_one_thing_on_both_to_the_bit(ranks, act):
    """Rank 0 has an attempt behind it that failed, after which torch would count groups from another number."""
    assert [rank[act] for rank in ranks] == [SEEN[act](0), SEEN[act](1)]


def test_a_rank_that_does_not_come_is_waited_for_until_the_deadline(ranks):
    assert DEADLINE <= ranks[0]["late"] < DEADLINE + 1.4


@pytest.mark.parametrize("attempt", range(3))
def test_a_rank_killed_in_the_middle_of_a_message_is_noticed_within_seconds(attempt: int, tmp_path: Path):
    """gloo forgets a message if writing it fails half-way, and waits for it; by chance about one in three does."""
    done = two_ranks.ran("tests.training.rank_killed", [str(tmp_path)], seconds=60)
    assert [d.returncode for d in done] == [0, -signal.SIGKILL], done[0].stdout[-3000:]
    waited = (tmp_path / "waited").read_text()
    assert float(waited.split(" s: ")[0]) < 10, waited


def test_no_message_is_larger_than_what_a_connection_takes_at_once(monkeypatch: pytest.MonkeyPatch):
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "broadcast", lambda piece, source, group: sent.append(piece))
    data = torch.arange(2 * PIECE + 3, dtype=torch.int32)
    Mesh(rank=0, size=2).tensors({"x": data})
    assert max(len(piece) for piece in sent) == PIECE
    assert torch.equal(torch.cat(sent[2:]), data.view(torch.uint8))


def test_a_process_by_itself_sends_nothing():
    """There is no group of processes, which everything else would need."""
    tensor = torch.tensor([1.0, math.nan])
    assert not dist.is_initialized()
    assert ALONE.joined(tensor) is tensor
    assert ALONE.sums([1.0, 2.0]) == [1.0, 2.0]
    assert ALONE.plain({"a": 1}) == {"a": 1}
    assert ALONE.tensors({"a": tensor})["a"] is tensor
    assert ALONE.all_agree(True)
    assert not ALONE.all_agree(False)
    assert list(ALONE.dealt("abc")) == ["a", "b", "c"]
    ALONE.close()


def test_the_ranks_meeting_point_can_be_reached_at_its_host_alone():
    """Every address of 127.0.0.0/8 is this machine's, and only one of them is the meeting point's."""
    store = rendezvous("127.0.0.1", 0, 2, leads=True, seconds=5)
    rendezvous("127.0.0.1", store.port, 2, leads=False, seconds=5).set("a", "b")
    assert store.get("a") == b"b"
    with socket.socket() as stranger, pytest.raises(ConnectionRefusedError):
        stranger.connect(("127.0.0.2", store.port))


def test_a_port_that_is_taken_and_ranks_that_do_not_come_are_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^the ranks' meeting point 127.0.0.1:{port} cannot be kept: "):
            rendezvous("127.0.0.1", port, 2, leads=True, seconds=1)
    store = rendezvous("127.0.0.1", 0, 2, leads=True, seconds=1)
    with pytest.raises(UsageError, match=r"^rank 0 of 2 did not find the others: .") as refused:
        connect(store, 0, 2, seconds=1)
    assert "\n" not in str(refused.value)
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("cards", "backend", "bound"),
    [(("GPU-a", "GPU-b"), "cpu:gloo,cuda:nccl", torch.device("cuda:1")), (("GPU-a", "GPU-a"), "gloo", None)],
)
def test_a_rank_takes_its_card_before_it_meets_the_others_over_nccl_or_gloo(cards, backend, bound, monkeypatch):
    """torch is asked for this, and no further: there is no GPU here."""
    asked: list[object] = []

    def starts(name, **options):
        asked.append((name, options["device_id"], options["rank"]))
        asked.append([os.environ.get(name) for name in INTERFACES])
        raise RuntimeError("no GPU here")

    monkeypatch.setenv(NCCL_ERRORS, "")  # so that it is gone again behind this test
    monkeypatch.delenv(NCCL_ERRORS)
    monkeypatch.setenv(INTERFACES[1], "eth7")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=cards[1]))
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(dist, "init_process_group", starts)
    store = dist.HashStore()
    store.set("rank 0", cards[0])
    with pytest.raises(UsageError, match=r"^rank 1 of 2 did not find the others: no GPU here"):
        connect(store, 1, 2, "cuda:1", seconds=5, interface="lo")
    assert asked == ["cuda:1", (backend, bound, 1), ["lo", "eth7"]], "what the environment says is not changed"
    assert [os.environ.get(name) for name in INTERFACES] == [None, "eth7"]
    assert os.environ[NCCL_ERRORS] == ENDS_WORK
