"""Weights on a GPU that a process of an engine reads there: all of it but torch's two calls, for which memory of this
process stands; tests/gpu/test_card.py has the calls.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.core.errors import RunError
from groupwise.core.files.dataclass_json import from_json, to_json
from groupwise.engines.make import make_engine
from groupwise.engines.outside import wire
from groupwise.engines.outside.card import CardHandle, Unshareable, _bytes, _text, card_of, expandable
from groupwise.engines.outside.card_weights import CardParcel, CardReader, CardWeights, placed
from groupwise.engines.outside.newest import NewestWeights
from groupwise.engines.outside.server import Server
from groupwise.engines.outside.spec import EngineSpec, folder_writer, spec_of
from groupwise.engines.outside.wire import Message
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy
from tests.engines.outside.made import REQUESTS, SAMPLINGS, assert_same, weights
from tests.engines.outside.test_shared_weights import TENSORS

CPU, CARD = torch.device("cpu"), "GPU-1"
WAY = "engine       weights go to it through the machine's memory, not within the GPU"


class Memory:
    """What stands for CUDA's: handles of this process's tensors, those that were released, and how many were opened."""

    def __init__(self) -> None:
        self.buffers: dict[str, Tensor] = {}
        self.released: list[str] = []
        self.opened = 0

    def export(self, buffer: Tensor) -> CardHandle:
        name = _text(bytes([255, 0, len(self.buffers)]))
        self.buffers[name] = buffer
        return CardHandle(CARD, name, len(buffer), 0, _text(b"/torch_1"), 0, _text(bytes(64)), True)

    def open(self, handle: CardHandle, device: torch.device) -> Tensor:
        self.opened += 1
        return self.buffers[handle.memory]

    def release(self, handle: CardHandle) -> None:
        self.released.append(handle.memory)

    def weights(self) -> CardWeights:
        return CardWeights(CPU, self.export, self.release)

    def reader(self, card: str = CARD) -> CardReader:
        return CardReader(self.open, lambda device: card)


def sent(parcel: CardParcel) -> CardParcel:
    """What arrives of it."""
    return from_json(CardParcel, json.loads(json.dumps(to_json(parcel))))


def test_every_tensor_arrives_to_the_bit_where_it_lies_and_the_handle_is_opened_once() -> None:
    memory = Memory()
    there, reader = memory.weights(), memory.reader()
    for factor in (1, 2):
        tensors = {name: tensor.detach() * factor for name, tensor in TENSORS.items()}
        there.write(tensors)
        parcel = sent(there.parcel("one"))
        assert parcel == there.parcel("one")
        arrived = reader.read(parcel, CPU, version=factor)
        assert arrived.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert arrived[name].dtype == tensor.dtype
            assert torch.equal(arrived[name], tensor)
            assert arrived[name].data_ptr() % tensor.element_size() == 0
        assert torch.equal(there.tensors()["one"], tensors["one"])
    assert memory.opened == 1
    there.write({"other": torch.arange(9.0)})
    assert reader.read(sent(there.parcel("one")), CPU, 3)["other"].tolist() == list(range(9))
    assert memory.opened == 2


def test_bytes_cross_as_they_are() -> None:
    every = bytes(range(256))
    assert _bytes(json.loads(json.dumps(_text(every)))) == every
    assert base64.b64decode(_text(every)) == every


@pytest.mark.parametrize("name", [name for name, tensor in TENSORS.items() if tensor.numel()])
def test_a_bit_that_changed_is_found_and_its_tensor_named(name: str) -> None:
    memory = Memory()
    there, reader = memory.weights(), memory.reader()
    there.write(TENSORS)
    parcel = there.parcel("one")
    place = next(place for place in parcel.places if place.name == name)
    at = place.begin + place.size - 1
    memory.buffers[parcel.handle.memory][at] ^= 1
    with pytest.raises(RunError) as error:
        reader.read(parcel, CPU, version=7)
    assert str(error.value) == (
        f"the weights of version 7 did not arrive whole: the sum of {name} is another on the GPU than was sent, with "
        "those of 0 more"
    )
    memory.buffers[parcel.handle.memory][at] ^= 1
    reader.read(parcel, CPU, version=7)


def test_weights_of_another_version_are_not_taken_for_these() -> None:
    memory = Memory()
    there, reader = memory.weights(), memory.reader()
    there.write(TENSORS)
    old = there.parcel("one")
    there.write({name: (tensor.detach() * 3).to(tensor.dtype) for name, tensor in TENSORS.items()})
    with pytest.raises(RunError, match="did not arrive whole"):
        reader.read(old, CPU, version=1)
    reader.read(there.parcel("one"), CPU, version=2)


def test_each_reader_has_a_handle_of_its_own_that_is_released_once_when_it_has_gone() -> None:
    memory = Memory()
    there = memory.weights()
    there.write(TENSORS)
    handles = {reader: there.parcel(reader).handle.memory for reader in "abc"}
    assert len(set(handles.values())) == 3
    there.forget("b")
    there.forget("b")
    assert memory.released == [handles["b"]]
    there.close()
    there.close()


def test_places_lie_one_behind_the_other_at_multiples_that_sums_can_take() -> None:
    places, length = placed(TENSORS)
    for before, after in itertools.pairwise(places):
        assert before.begin + before.size <= after.begin < before.begin + before.size + 16
    assert not any(place.begin % 16 for place in places)
    assert length % 16 == 0
    assert length >= places[-1].begin + places[-1].size


def test_memory_that_grows_is_not_shared() -> None:
    """torch.cuda.memory_snapshot's segments, of which one grows."""
    segments = [
        {"address": 100, "total_size": 50, "is_expandable": False},
        {"address": 200, "total_size": 50, "is_expandable": True},
    ]
    found = [expandable(address, segments) for address in (99, 100, 149, 150, 200, 249, 250)]
    assert found == [False, False, False, False, True, True, False]


def test_another_gpu_or_none_is_told_and_nothing_is_opened() -> None:
    memory = Memory()
    there = memory.weights()
    there.write(TENSORS)
    with pytest.raises(Unshareable, match=r"^the engine is on another GPU than the run$"):
        memory.reader("GPU-2").read(there.parcel("one"), CPU, 1)
    with pytest.raises(Unshareable, match=r"^torch finds no GPU there$"):
        CardReader(memory.open).read(there.parcel("one"), CPU, 1)
    with pytest.raises(Unshareable, match=r"^torch finds no GPU there$"):
        card_of(CPU)
    assert memory.opened == 0


def no_export(buffer: Tensor) -> CardHandle:
    raise Unshareable("planted")


@pytest.mark.parametrize(
    ("export", "shares_memory", "why"),
    [(None, False, "an engine's process is no child of the run"), (no_export, True, "planted")],
)
def test_what_cannot_be_shared_on_the_gpu_goes_through_memory_with_one_line(
    export: Any, shares_memory: bool, why: str
) -> None:
    memory, notes = Memory(), list[str]()
    card = CardWeights(CPU, export or memory.export, memory.release)
    newest = NewestWeights({"kept": torch.ones(3)}, card, notes.append)
    newest.write({"weight": torch.arange(4.0)}, version=5)
    for _ in range(2):
        parcel = newest.parcel("one", shares_memory)
        assert "card" not in parcel.content
        assert parcel.content["stamp"] == to_json(newest._host.stamp)
        assert newest.stamp.version == 5
        assert bool(parcel.descriptors) == shares_memory != bool(parcel.arrays)
    assert notes == [f"{WAY}: {why}"]
    newest.write({"weight": torch.arange(4.0)}, version=6)
    assert newest.stamp.version == 6
    newest.close()
    newest.close()


class Serving:
    """A server whose verbs are called in this process, beside what the run would send."""

    def __init__(self, memory: Memory, newest: NewestWeights) -> None:
        self.server, self.newest = Server(None), newest  # type: ignore[arg-type]
        self.server._card, self.server._send = memory.reader(), lambda *_: None  # type: ignore[method-assign]
        self.files: Any = {}

    def ask(self, verb: str, **content: Any) -> Message:
        parcel = self.newest.parcel(self, shares_memory=True)
        said = json.loads(json.dumps({"verb": verb, **content, **parcel.content}))
        return self.server._verbs[verb](Message(said, self.files), parcel.descriptors)


@pytest.fixture
def serving(experts: Policy, tmp_path: Any) -> Iterator[Serving]:
    memory = Memory()
    buffers = {name: buffer.detach().clone() for name, buffer in experts.model.named_buffers()}
    newest = NewestWeights(buffers, memory.weights())
    newest.write(weights(experts, 1.0), 0)
    one = Serving(memory, newest)
    folder_writer(experts)(tmp_path)
    one.files = wire.files_in(tmp_path)
    threads = torch.get_num_threads()
    yield one
    torch.set_num_threads(threads)
    newest.close()


def test_an_engine_that_is_loaded_on_the_gpu_samples_as_the_one_inside(serving: Serving, experts: Policy) -> None:
    settings, plain = EngineSettings(), SAMPLINGS["plain"]
    inside = make_engine(policy=experts, settings=settings, routes=True)
    spec = dataclasses.replace(spec_of(experts, settings, routes=True), threads=torch.get_num_threads())
    assert serving.ask("start", spec=to_json(spec)).content["version"] == 0
    for version, scale in ((1, 1.0), (2, 0.9)):
        serving.newest.write(weights(experts, scale), version)
        assert serving.ask("load").content == {"version": version}
        inside.load_weights(weights(experts, scale).items(), version)
        assert_same(serving.server._started.generate(REQUESTS, plain), inside.generate(REQUESTS, plain))
    assert len(serving.newest._card._handles) == 1, "a handle for the life of a reader"  # type: ignore[union-attr]


def test_a_handle_that_comes_over_a_network_is_never_opened(serving: Serving, experts: Policy) -> None:
    serving.server._machine = ("cpu", 1)
    spec: EngineSpec = spec_of(experts, EngineSettings(), routes=True)
    with pytest.raises(Unshareable, match=r"^it is at an address, where a handle is as good as whoever sent it$"):
        serving.ask("start", spec=to_json(spec))
