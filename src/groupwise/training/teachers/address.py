"""A teacher behind an address (`groupwise serve PORT --teacher MODEL`), which may be larger than what the run holds."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.core.engine import Sampling
from groupwise.core.errors import ProcessLost, UsageError
from groupwise.core.peer import PeerLost
from groupwise.core.processes.network import Address
from groupwise.core.records import Batch
from groupwise.engines.outside.connection import reach_address
from groupwise.engines.outside.process import ROUNDING, EngineProcess
from groupwise.engines.outside.wire import Arrays, Message
from groupwise.training.mesh import columns_of
from groupwise.training.reference import ReferenceSettings

#: Rows of a question, for each of which there is the whole deadline, and tries after a loss in a row.
ROWS, AGAIN = 64, 2
#: Columns that a teacher reads, beside those that every batch has.
COLUMNS = ("tokens", "mask", "length", "group", "score", "version", "logp_engine", "read_from", "support")


@dataclass(frozen=True)
class Declared:
    """Properties of a teacher: hash of its vocabulary, ids that have embeddings, its tokenizer's chat template,
    the most tokens it takes, and the digest of its weights.
    """

    vocabulary: str
    embeddings: int
    template: str | None
    positions: int
    digest: str


class TeacherAtAddress:
    """The run's end of a teacher in another process. One that is lost is reached again, started and asked the same.

    declared  what it said of itself
    Raises UsageError if there is no teacher at the address.
    """

    def __init__(
        self, settings: ReferenceSettings, sampling: Sampling, eos: Iterable[int], note: Callable[[str], None]
    ) -> None:
        self._where, self._seconds, self._note = f"reference.address = {settings.address!r}", settings.deadline, note
        self._reach = reach_address(Address.of(settings.address), settings.deadline, settings.key, "reference")
        said = {"sampling": sampling.model_dump(mode="json"), "eos": sorted(eos), "precision": settings.precision}
        self._start = {"verb": "start", **said}
        self._process: EngineProcess | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="teacher")
        try:
            self.declared = self._reached(again=False)
        except PeerLost as lost:
            raise UsageError(f"{self._where}: it did not start: {lost}{lost.remedy}") from None

    def begin(self, batch: Batch) -> Callable[[], Tensor]:
        """Begin to score a batch, at once and beside the run; what is returned waits for its nats [N,T].

        Raises ProcessLost if the teacher is lost for good, RunError for what is no answer.
        """
        return self._worker.submit(self._scores, batch).result

    def close(self) -> None:
        """Leave the teacher. A second call does nothing."""
        self._worker.shutdown(cancel_futures=True)
        self._end()

    def _scores(self, batch: Batch) -> Tensor:
        logp = torch.zeros(batch.mask.shape)
        for rows in torch.arange(len(batch)).split(ROWS):
            part = batch.rows(rows)
            logp[rows, : part.mask.shape[1]] = self._score(part)
        return logp

    def _score(self, part: Batch) -> Tensor:
        lengths, tensors = columns_of(Batch(**{name: getattr(part, name) for name in COLUMNS}))
        arrays = {name: x.contiguous().numpy() for name, x in tensors.items()}
        answer = self._asked({"verb": "score", "lengths": lengths}, arrays)
        assert self._process is not None
        with self._process.no_answer():
            logp = torch.tensor(answer.arrays["logp"])
            if logp.shape != part.mask.shape or logp.dtype is not torch.float32:
                raise ValueError(f"{logp.dtype} of shape {tuple(logp.shape)} for {tuple(part.mask.shape)} tokens")
            if not bool((logp.isfinite() & (logp <= ROUNDING) & ((logp == 0) | part.mask)).all()):
                raise ValueError("numbers that are no log-probabilities of what was asked")
        return logp

    def _asked(self, content: dict[str, Any], arrays: Arrays) -> Message:
        """Ask a teacher that lives; one that is lost is reached again, a few times in a row."""
        for lost_before in range(AGAIN + 1):
            try:
                if self._process is None and self._reached(again=True).digest != self.declared.digest:
                    raise UsageError(f"{self._where}: another teacher is served there than at the run's start")
                assert self._process is not None
                return self._process.ask(content, self._seconds, arrays)
            except PeerLost as lost:
                self._end()
                if lost_before == AGAIN:
                    raise ProcessLost(f"{self._where}: it is lost, {AGAIN + 1} times in a row: {lost}") from None
                self._note(f"reference    its process is lost: {lost}; it is reached again and asked the same")
        raise AssertionError("the last loss is raised")

    def _reached(self, again: bool) -> Declared:
        line, explained = self._reach(again)
        self._process = EngineProcess(line, self._where, explained)
        try:
            answer = self._process.ask(self._start, self._seconds)
            with self._process.no_answer():
                return _declared(answer.content)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None


def vocabulary_of(tokenizer: Any) -> str:
    """Return a hash of a tokenizer's vocabulary, each text with its id."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def _declared(content: Mapping[str, Any]) -> Declared:
    """Read what a teacher says of itself. Raises ValueError, TypeError or KeyError for what none says."""
    declared = Declared(**content)
    kinds = (str, int, str | None, int, str)
    if not all(isinstance(value, kind) for value, kind in zip(vars(declared).values(), kinds, strict=True)):
        raise ValueError("what it says of itself is not what a teacher says")
    return declared
