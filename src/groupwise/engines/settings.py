"""Settings of the engine that samples: its kind, where it lives, and how many completions it holds at once."""

import math
import shutil
import subprocess
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from groupwise.core.errors import UsageError
from groupwise.core.machine.free_memory import card_memory
from groupwise.core.processes.handshake import key_in
from groupwise.core.settings import Changeable, Location, Settings
from groupwise.engines.kinds import KINDS, LOCAL, EngineKind, Sleep, sleeps
from groupwise.engines.outside.connection import AddressText, addresses_of, connect
from groupwise.models.precision import WeightPrecision

GIB = 2**30
#: Where an engine lives.
Lives = Literal["inside", "child", "address"]
#: The keys that only an engine in a child reads.
OF_A_CHILD = frozenset({"count", "python", "deadline", "start_deadline", "restarts"})
#: The keys that an engine at an address leaves unread: its own machine says these.
OF_THIS_MACHINE = frozenset({"process", "count", "python", "sleep"})


def _known(name: object) -> object:
    """Raise for what is no engine, in the words that pydantic has for a choice."""
    if not isinstance(name, str) or name not in KINDS:
        *others, last = map(repr, KINDS)
        choices = {"expected": f"{', '.join(others)} or {last}"}
        raise PydanticCustomError("literal_error", "Input should be {expected}", choices)
    return name


#: The name of an engine; a choice, for whoever lists keys.
EngineName = Annotated[str, PlainValidator(_known), WithJsonSchema({"enum": list(KINDS), "type": "string"})]


class EngineSettings(Settings):
    """Inference engine that samples completions.

    name            groupwise's own engine, or vLLM in a child process
    process         "inside": the run's own process; "child": a child process, restarted if it ends or stalls
    count           child processes that share a step's prompts; only the last bits of log-probabilities depend on it
    python          Python interpreter of the child; default: the run's, or .venv-vllm/bin/python for vLLM
                    (docs/howto/engines.md)
    address         "HOST:PORT" of a remote engine (`groupwise serve`), or several: "HOST:PORT, HOST:PORT"
    key_file        private file with the key of `groupwise serve --key-file`, never sent; default: trust any server
    deadline        seconds without progress before a child counts as stalled
    start_deadline  seconds for a child to start, or an address to answer again
    restarts        restarts of a child in a row; 0: the run stops
    max_rows        completions sampled at once, per child
    precision       precision of the engine's weights; "same": the learner's master weights. "fp16" rounds less than
                    "bf16" but ends at 65,504
    compile         compile the local engine's layers with torch.compile on a GPU: fewer kernels, a minute at the start
    cache_mib       vLLM's KV cache, MiB; default: what max_rows needs, at most 1024
    memory_share    share of GPU memory for all of vLLM (weights, workspace, cache), instead of cache_mib
    sleep           free GPU memory while the learner trains (weights and cache in vLLM, cache and graphs in the local
                    engine); "auto": only vLLM on the run's GPU
    """

    name: EngineName = LOCAL.name
    process: Literal["inside", "child"] = "inside"
    count: int = Field(default=1, ge=1, le=64)
    python: Location | None = None
    address: Changeable[AddressText | None] = None
    key_file: Changeable[Location | None] = None
    deadline: Changeable[float] = Field(default=120.0, ge=0.1, le=86_400)
    start_deadline: Changeable[float] = Field(default=600.0, ge=0.1, le=86_400)
    restarts: Changeable[int] = Field(default=2, ge=0, le=1000)
    max_rows: Changeable[int] = Field(default=512, ge=1)
    precision: WeightPrecision = "same"
    compile: Changeable[bool] = False
    cache_mib: int | None = Field(default=None, ge=1, le=2**24)
    memory_share: float | None = Field(default=None, gt=0, le=1)
    sleep: Changeable[Sleep] = "auto"

    @model_validator(mode="after")
    def _one_size(self) -> "EngineSettings":
        if self.cache_mib is not None and self.memory_share is not None:
            raise ValueError(
                f"cache_mib = {self.cache_mib} and memory_share = {self.memory_share:g} are two sizes of one cache; "
                "take one of them out"
            )
        if self.memory_share is not None and self.count > 1:
            raise ValueError(
                f"memory_share = {self.memory_share:g} with count = {self.count}: each would measure what it takes by "
                "what is free, and so what others take at that moment; set cache_mib in its place, or count = 1"
            )
        return self

    @property
    def kind(self) -> EngineKind:
        """The row of the engine in the table of kinds."""
        return KINDS[self.name]

    @property
    def unread(self) -> set[str]:
        """The keys that nothing reads: those of other engines, and without a child those that are about it."""
        of_others = set[str]().union(*(kind.keys for kind in KINDS.values())) - self.kind.keys
        if self.address:
            return of_others | OF_THIS_MACHINE
        in_child = self.process == "child" or not self.kind.build_inside
        return of_others | {"key_file"} | (set() if in_child else OF_A_CHILD)

    @property
    def place(self) -> Lives:
        """The place that it lives in."""
        return "address" if self.address else self.process

    @property
    def place_key(self) -> str:
        """The key that says where it lives, with its value."""
        if self.address:
            return f"engine.address = {self.address!r}"
        return f"engine.python = {self.python!r}" if self.python else f"engine.process = {self.process!r}"

    @property
    def key(self) -> bytes | None:
        """Key of the servers at its address, read from its file. Raises UsageError if that holds no secret key."""
        if self.key_file is None:
            return None
        try:
            return key_in(self.key_file)
        except ValueError as error:
            raise UsageError(f"engine.key_file = {self.key_file!r}: {error}") from None

    def sleeps(self, on_gpu: bool, beside: bool) -> bool:
        """Decide if it sleeps while the learner trains.

        on_gpu  whether its children are on the GPU that the run computes on
        beside  whether it samples meanwhile
        """
        return self.place != "address" and sleeps(self.sleep, self.kind, on_gpu and self.place == "child", beside)

    def placed(self) -> "EngineSettings":
        """Add what follows from the name: an engine that cannot live inside lives in a child.

        Raises UsageError if it is to live inside.
        """
        kind = self.kind
        if kind.build_inside or self.address:
            return self
        if self.process == "inside" and "process" in self.model_fields_set:
            raise UsageError(
                f"engine.process = 'inside': {kind.title} needs libraries of its own, so it lives in a process of its "
                "own; take the key out"
            )
        return self.replace(process="child", python=self.python or kind.python)

    def require_device(self, device: str, card: Callable[[], tuple[int, int]] = card_memory) -> None:
        """Raise UsageError if a key asks of the run's device what it cannot give.

        card  counts the bytes of the GPU that an engine's process can take, and all that it has
        """
        if self.address:
            return
        share = self.memory_share
        if device == "cpu":
            if self.sleep is True and not self.kind.sleeps_on_cpu:
                raise UsageError(f"engine.sleep = true: on a CPU {self.kind.title} gives nothing back; take it out")
            if share is not None:
                raise UsageError(
                    f"engine.memory_share = {share:g}: it is a share of a GPU's memory, and the run computes on a CPU; "
                    "set engine.cache_mib in its place"
                )
        elif share is not None:
            free, whole = card()
            if share * whole > free:
                most = math.floor(100 * free / whole) / 100
                remedy = f"set it to at most {most:g}, or end what holds memory there" if most else "end what holds it"
                raise UsageError(
                    f"engine.memory_share = {share:g}: that is {share * whole / GIB:.1f} of the GPU's "
                    f"{whole / GIB:.1f} GiB, and {free / GIB:.1f} are free; {remedy}"
                )

    def require_place(self) -> None:
        """Raise UsageError if no program `python` has the engine's library, or no engine answers at the address."""
        if self.address:
            for address in addresses_of(self.address):
                connect(address, self.key).channel.close()
        if self.python is None or self.address:
            return
        if shutil.which(self.python) is None:
            remedy = self.kind.install or "name one that has groupwise's libraries"
            raise UsageError(f"engine.python = {self.python!r}: there is no such program; {remedy}")
        if self.kind.install and not _has(self.python, self.kind.library):
            raise UsageError(
                f"engine.name = {self.name!r}: the interpreter {self.python} has no {self.kind.title}; "
                f"{self.kind.install}"
            )

    def __str__(self) -> str:
        if self.address:
            return f"{self.name}, at {self.address}"
        interpreter = f", run by {self.python}" if self.python else ""
        if self.process != "child":
            return self.name
        where = "a child process" if self.count == 1 else f"{self.count} child processes"
        return f"{self.name}, in {where}{interpreter}"


def _has(python: str, module: str) -> bool:
    """Ask an interpreter whether it finds a module; one that does not answer within a minute has none."""
    question = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        return subprocess.run([python, "-c", question], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
