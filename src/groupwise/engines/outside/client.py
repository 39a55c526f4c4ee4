"""The engine that a run sees where the real ones live in other processes: the same calls, the same completions to the
bit.

Of several, request i of a call goes to engine i mod N, but where it goes on from what an engine holds, to that engine.
What a completion is depends on weights, tokens, seed and number alone, so it is the same with any N; its
log-probabilities are up to rounding, for rows are computed beside others.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from torch import Tensor

from groupwise.core.engine import Finished, OnFinish, Request, Sampling
from groupwise.core.errors import GroupwiseError, ProcessLost, RunError, UsageError
from groupwise.core.machine.free_memory import give_back_card
from groupwise.core.numbers.precision import Precision
from groupwise.core.peer import PeerLost
from groupwise.core.records import Completion
from groupwise.engines.kinds import KINDS
from groupwise.engines.outside.connection import Reach
from groupwise.engines.outside.newest import NewestWeights
from groupwise.engines.outside.process import Declared, EngineProcess
from groupwise.engines.outside.spec import folder_writer, spec_of
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy

T = TypeVar("T")
#: How much slower than before the process of an engine may start again, on a machine that is busier by now.
SLOWER = 5.0
#: Says a line to whoever watches the run.
Note = Callable[[str], None]


class RemoteEngine:
    """An engine in a process of its own. Where that ends or stalls it is started again, loaded, and asked again: the
    same requests under the same weights are answered by the same completions.

    reach     makes the connection to such a process
    weights   where it gets its weights
    owns_weights  whether it closes them; several engines may share them
    device    where it computes; None: where the policy is
    restarts  how often it was started again
    library   what samples there, with its version, and whether that is one that is tested
    Raises UsageError if it does not start, or the engine refuses the policy.
    """

    def __init__(
        self,
        policy: Policy,
        settings: EngineSettings,
        routes: bool,
        note: Note,
        reach: Reach,
        weights: NewestWeights,
        owns_weights: bool = False,
        device: str | None = None,
    ) -> None:
        self._settings, self._note, self._reach = settings, note, reach
        self._spec, self._write_folder = spec_of(policy, settings, routes, device), folder_writer(policy)
        self._weights, self._owns_weights = weights, owns_weights
        self._process: EngineProcess | None = None
        self._closed = self._asleep = False
        self.version, self.restarts, self.tokens_run, self._silence = 0, 0, 0, 0.0
        try:
            declared = self._start(again=False)
        except PeerLost as lost:
            words = f"{settings.place_key}: the engine's process did not start: {lost}{lost.remedy}"
            raise _with_notes(UsageError(words), lost) from None
        finally:
            if self._process is None:
                self.close()
        self.routes, self.keeps_support, self.keeps_top = declared.routes, declared.keeps_support, declared.keeps_top
        self.options = frozenset(declared.options)
        self.precision: Precision = declared.precision
        self.remark = declared.remark
        known, self.library = KINDS[settings.name].tested, declared.library
        if not self.library.partition(" ")[2].startswith(known):
            self.library += f", which is not tested: {known} is"

    @property
    def pid(self) -> int | None:
        """The process that lives now; None if none does."""
        return self._process.pid if self._process else None

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[tuple[Completion, ...]]:
        """Return the completions of each request, in order; `on_finish` hears of each once, however often they are
        asked for.

        Raises what the engine raises, and RunError where its process is lost for good.
        """
        if self._asleep:
            self.take_weights(self.version)
        reported: set[tuple[int, int]] = set()

        def once(done: Finished) -> None:
            if on_finish is not None and (done.request, done.sample) not in reported:
                reported.add((done.request, done.sample))
                on_finish(done)

        hear, seconds = on_finish and once, self._settings.deadline
        answer = self._ask_with_restarts(lambda process: process.generate(list(requests), sampling, hear, seconds))
        self.tokens_run += answer.tokens_run
        return answer.groups

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace the weights there. Raises RunError if they do not arrive whole, or the process is lost for good.

        Where they are refused the engine keeps what it has, and a process that is lost then cannot be loaded again.
        """
        self._require_open()
        self._weights.write(weights, version)
        self.take_weights(version)

    def take_weights(self, version: int) -> None:
        """Load what was published last, which wakes the engine. Raises as `load_weights` does."""
        if self._asleep:
            give_back_card()  # what updates have freed, the engine is about to take
        loaded = self._ask_with_restarts(lambda process: process.load(self._weights, self._settings.deadline))
        if loaded != version:
            raise RunError(f"the engine's process was given weights of version {version} and says that it has {loaded}")
        self.version, self._asleep = version, False

    def sleep(self) -> None:
        """Have the engine give its memory back; a process that is started again for that sleeps too."""
        if not self._asleep:
            self._ask_with_restarts(lambda process: process.sleep(self._settings.deadline))
            self._asleep = True

    def close(self) -> None:
        """End the process and give memory of its own back. A second call does nothing."""
        self._closed = True
        self._end()
        if self._owns_weights:
            self._weights.close()

    def _ask_with_restarts(self, ask: Callable[[EngineProcess], T]) -> T:
        """Ask a process that lives; one that is lost is replaced, `settings.restarts` times in a row."""
        for lost_before in range(self._settings.restarts + 1):
            self._require_open()
            try:
                if self._process is None:
                    self._start(again=True)
                    self.restarts += 1
                assert self._process is not None
                return ask(self._process)
            except PeerLost as lost:
                self._give_up_or_note(lost, lost_before)
            finally:
                if self._process is not None and not self._process.answered:
                    self._end()  # what it still answers would be taken for the next answer
        raise AssertionError("the last loss is raised")

    def _give_up_or_note(self, lost: PeerLost, lost_before: int) -> None:
        most = self._settings.restarts
        if lost_before < most:
            again = f"it is started again ({lost_before + 1} of {most} in a row) and asked the same"
            waits = f"the run waits, up to {self._start_seconds(again=True):g} seconds without a sign of progress"
            self._note(f"engine       its process is lost: {lost}; {waits}; {again}")
            return
        times = f"{most + 1} times in a row" if most else "and engine.restarts = 0"
        gone = ProcessLost(f"the engine's process is lost, {times}: {lost}")
        raise _with_notes(gone, lost) from None

    def _start(self, again: bool) -> Declared:
        """Return a process with the engine in it; none where that fails."""
        line, explained = self._reach(again)
        process = EngineProcess(line, self._settings.place_key, explained)
        try:
            seconds = self._start_seconds(again)
            declared = process.start(self._spec, self._write_folder, self._weights, seconds)
        except BaseException:
            process.close()
            raise
        self._silence = max(self._silence, process.longest_silence)
        self._process = process
        return declared

    def _start_seconds(self, again: bool) -> float:
        """Return the seconds without a sign of progress after which a start counts as stalled: of one that has been
        seen to start, the engine's own, or as many times as long as it was silent then, if that is more.
        """
        longest = self._settings.start_deadline
        return min(longest, max(self._settings.deadline, SLOWER * self._silence)) if again else longest

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None

    def _require_open(self) -> None:
        if self._closed:
            raise RunError("the engine is closed")


def _with_notes(error: GroupwiseError, lost: PeerLost) -> GroupwiseError:
    for note in getattr(lost, "__notes__", ()):
        error.add_note(note)
    return error


T = TypeVar("T")


class Replicas:
    """N engines of one kind, each of which answers part of the requests. They work side by side.

    members  at least one
    weights  where every member takes them from; closed with the members
    Raises what an engine raises; of several that do, the first one's.
    """

    def __init__(self, members: Sequence[RemoteEngine], weights: NewestWeights) -> None:
        self._members, self._weights = tuple(members), weights
        self._workers = ThreadPoolExecutor(len(members), thread_name_prefix="engine")
        self._holds: dict[int, int] = {}
        first = members[0]
        self.routes, self.keeps_support, self.keeps_top = first.routes, first.keeps_support, first.keeps_top
        self.options = first.options
        self.precision: Precision = first.precision

    @property
    def remark(self) -> str:
        return next((engine.remark for engine in self._members if engine.remark), "")

    @property
    def version(self) -> int:
        return self._members[0].version

    @property
    def restarts(self) -> int:
        return sum(engine.restarts for engine in self._members)

    @property
    def tokens_run(self) -> int:
        return sum(engine.tokens_run for engine in self._members)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[tuple[Completion, ...]]:
        """Return the completions of each request, in order; `on_finish` is called by one engine at a time."""
        shares = self._shares(requests)
        lock = threading.Lock()

        def hear(share: Sequence[int], done: Finished) -> None:
            if on_finish is not None:
                with lock:
                    on_finish(done._replace(request=share[done.request]))

        asks = [
            partial(engine.generate, [requests[i] for i in share], sampling, on_finish and partial(hear, share))
            for engine, share in zip(self._members, shares, strict=True)
        ]
        groups: list[tuple[Completion, ...]] = [()] * len(requests)
        for share, answers in zip(shares, self._side_by_side(asks), strict=True):
            for i, answer in zip(share, answers, strict=True):
                groups[i] = answer
        self._holds = {
            hash(request.tokens + completion.tokens): number
            for number, share in enumerate(shares)
            for request, group in ((requests[i], groups[i]) for i in share)
            if request.hold
            for completion in group
        }
        return groups

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Publish them once, and have every engine take them."""
        self._weights.write(weights, version)
        self._holds = {}
        self._side_by_side([partial(engine.take_weights, version) for engine in self._members])

    def sleep(self) -> None:
        """Have every engine give its memory back."""
        self._side_by_side([engine.sleep for engine in self._members])

    def close(self) -> None:
        """End every engine. A second call does nothing."""
        for engine in self._members:
            engine.close()
        self._workers.shutdown()
        self._weights.close()

    def _shares(self, requests: Sequence[Request]) -> list[list[int]]:
        shares: list[list[int]] = [[] for _ in self._members]
        for i, request in enumerate(requests):
            held = self._holds.get(hash(request.tokens[: request.held])) if request.held else None
            shares[i % len(shares) if held is None else held].append(i)
        return shares

    def _side_by_side(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        futures = [self._workers.submit(call) for call in calls]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]
