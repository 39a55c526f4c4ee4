"""A teacher at an address says what the teacher held here says; what goes wrong on the way there is one line.

One server listens for the whole file, on this machine, with the teacher in a real process behind a real connection.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import groupwise
from groupwise.commands.serve import TEACHER
from groupwise.commands.train.train import resume
from groupwise.core.collate import collate
from groupwise.core.engine import Sampling
from groupwise.core.errors import ProcessLost, RunError, UsageError
from groupwise.core.processes.network import Address
from groupwise.core.records import Batch, Completion, Support
from groupwise.engines.outside import connection
from groupwise.engines.outside import serving as outside_serving
from groupwise.engines.outside.connection import reach_address
from groupwise.engines.outside.process import EngineProcess
from groupwise.engines.outside.wire import Message
from groupwise.journal.journal import read_metrics
from groupwise.models.forward.adjustment import adjustment_of
from groupwise.models.load import Policy, load_policy
from groupwise.training.learner import Learner, LearnerSettings
from groupwise.training.reference import ReferenceSettings
from groupwise.training.teachers.address import TeacherAtAddress
from groupwise.training.teachers.teaching import held
from tests.engines.outside.made import KEY, listening, made_key, process_of
from tests.laws.test_teaching import made
from tests.refusals import refused
from tests.runs.test_run import assert_same_run
from tests.runs.tiny_runs import cut_back, tiny_policy, tiny_run
from tests.warm import warm_starts

SAMPLING = Sampling(temperature=0.7, max_new_tokens=4)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("teacher") / "model", 3, layers=2)


def serving(teacher: Path, **named: Any) -> Any:
    return listening(module=TEACHER, said={"model": str(teacher)}, **named)


@pytest.fixture(scope="module")
def policy(teacher: Path) -> Policy:
    return load_policy(teacher)


@pytest.fixture(scope="module")
def there(teacher: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, warm_starts(), serving(teacher) as there:
        for module in (connection, outside_serving):  # the first process that is forked waits for its imports
            patch.setattr(module, "PATIENCE", 120.0)
        yield there


def free(there: Any) -> str:
    """The server's address, once the run before has left it."""
    end = time.monotonic() + 20
    while there.server._child is not None and time.monotonic() < end:
        time.sleep(0.01)
    return there.address


def reached(there: Any, policy: Policy, sampling: Sampling = SAMPLING, **named: Any) -> TeacherAtAddress:
    note = named.pop("note", pytest.fail)
    address = there if isinstance(there, str) else free(there)
    return TeacherAtAddress(ReferenceSettings(address=address, **named), sampling, policy.eos, note)


@pytest.fixture
def remote(there: Any, policy: Policy) -> Iterator[TeacherAtAddress]:
    remote = reached(there, policy)
    yield remote
    remote.close()


def batch_of(policy: Policy, supported: bool = False) -> Batch:
    """More rows than a question has; with supports, of which a token's own id is always one."""

    def with_support(completion: Completion) -> Completion:
        own = [completion.tokens[i] for s in completion.spans if s.own for i in range(s.start, s.stop)]
        ids = torch.tensor([i for token in own for i in sorted({token, 3, 5})], dtype=torch.int32)
        sizes = torch.tensor([0, *(len({token, 3, 5}) for token in own)])
        return dataclasses.replace(completion, support=Support(ids, sizes.cumsum(0)))

    groups = made(policy) * 20
    if supported:
        groups = [dataclasses.replace(g, completions=tuple(map(with_support, g.completions))) for g in groups]
    return collate(groups, policy.pad)


@pytest.mark.parametrize("change", [{}, {"top_k": 3, "logit_bias": {4: 1.5}}])
def test_it_says_what_the_teacher_held_here_says(there, policy: Policy, change: dict[str, Any]):
    sampling = Sampling(temperature=0.7, max_new_tokens=4, **change)
    adjustment = adjustment_of(sampling, policy.eos, policy.model.config.vocab_size)
    learner = Learner(copy.deepcopy(policy.model), None, LearnerSettings(), 0.7, 1, adjustment=adjustment)
    remote, batch = reached(there, policy, sampling), batch_of(policy, "top_k" in change)
    found, expected = remote.begin(batch)(), held(learner, policy.model)(batch)()
    remote.close()
    assert not found[~batch.mask].any()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_teacher_that_is_killed_is_reached_again_and_asked_the_same(there, policy: Policy):
    notes: list[str] = []
    remote, batch = reached(there, policy, note=notes.append), batch_of(policy)
    before = remote.begin(batch)()
    os.kill(process_of(there.server), signal.SIGKILL)
    assert torch.equal(remote.begin(batch)(), before)
    remote.close()
    assert [("its process is lost" in note, "asked the same" in note) for note in notes] == [(True, True)]


def test_a_server_that_is_gone_is_one_line(there, teacher: Path, policy: Policy):
    notes: list[str] = []
    with serving(teacher) as gone:
        remote = reached(gone, policy, note=notes.append)
    remote._reach = reach_address(Address.of(gone.address), 1.0, None, "reference")
    with refused("it is lost, 3 times in a row: reference.address = ", ProcessLost):
        remote.begin(batch_of(policy))()
    remote.close()


NO_NUMBERS = "numbers that are no log-probabilities of what was asked"
SPOILT: list[tuple[Callable[[np.ndarray], np.ndarray | None], str]] = [
    (lambda logp: logp[:-1], "torch.float32 of shape (63, 7) for (64, 7) tokens"),
    (lambda logp: logp.astype(np.float64), "torch.float64 of shape (64, 7) for (64, 7) tokens"),
    (lambda logp: logp * np.nan, NO_NUMBERS),
    (lambda logp: -logp, NO_NUMBERS),
    (lambda logp: logp - 1, NO_NUMBERS),
    (lambda logp: None, "KeyError"),
]


def test_what_is_no_answer_is_one_line(remote: TeacherAtAddress, policy: Policy, monkeypatch: pytest.MonkeyPatch):
    real = EngineProcess.ask
    for spoilt, words in SPOILT:

        def ask(self: EngineProcess, *given: Any, spoilt: Any = spoilt) -> Message:
            logp = spoilt(real(self, *given).arrays["logp"])
            return Message({}, {} if logp is None else {"logp": logp})

        monkeypatch.setattr(EngineProcess, "ask", ask)
        with refused(words, RunError):
            remote.begin(batch_of(policy))()


def test_ids_that_the_teacher_does_not_have_are_refused_there(remote: TeacherAtAddress, policy: Policy):
    batch = batch_of(policy)
    with refused("ids beyond the teacher's 15", RunError):
        remote.begin(dataclasses.replace(batch, tokens=batch.tokens + 12))()


def test_what_serves_no_teacher_is_refused_in_one_line(there, teacher: Path, policy: Policy, tmp_path: Path):
    with listening() as engine, refused("an engine is served there; start another server: groupwise serve PORT --te"):
        reached(engine, policy)
    with refused("nothing listens there; start it on that machine: groupwise serve 1 --teacher MODEL"):
        reached("127.0.0.1:1", policy)
    with serving(teacher, key=KEY) as keyed:
        with refused("it asks for a key; set reference.key_file to a file with the key of its --key-file"):
            reached(keyed, policy)
        reached(keyed, policy, key_file=str(made_key(tmp_path / "key"))).close()
    with refused("reference.key_file = 'none': "):
        reached(there, policy, key_file="none")
    with refused("a teacher is served there; start another server: groupwise serve PORT"):
        groupwise.train("quickstart", tiny_run(tmp_path, engine__address=there.address))


def test_a_run_is_that_with_the_teacher_held_here_and_goes_on(there, teacher: Path, tmp_path: Path):
    few = partial(tiny_run, tmp_path, algorithm__name="opd", checks__witness="stop", checks__witness_every=1)
    here = groupwise.train("quickstart", few(reference__model=str(teacher), name="here")).folder
    away = groupwise.train("quickstart", few(reference__address=free(there), name="away")).folder
    gaps = [[row["kl_reward_mean"] for row in read_metrics(run) if "kl_reward_mean" in row] for run in (here, away)]
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-5)
    whole = away.rename(away.with_name("whole"))
    cut = Path(shutil.copytree(whole, away))
    cut_back(cut, 2)
    with refused("nothing listens there"):
        resume(cut, {"reference.address": "127.0.0.1:1"})
    assert resume(cut, {"reference.address": free(there)}).finished
    assert_same_run(whole, cut)


def test_a_teacher_that_does_not_fit_is_refused_before_the_run(there, tmp_path: Path):
    other = tiny_policy(tmp_path / "model")
    template = load_policy(other).tokenizer
    template.chat_template = "{% for m in messages %}{{ m.content|replace('?', '') }}+{% endfor %}"
    template.save_pretrained(tmp_path / "templated")
    few = partial(tiny_run, tmp_path, algorithm__name="opd", reference__address=free(there))
    for changes, words in (
        ({"chat.template": "tokenizer"}, "the model's tokenizer has no chat template"),
        ({"reference.template": "{answer}" * 60}, "are beyond its 64 positions; lower max_new_tokens"),
        ({"reference.address": f"{free(there)},127.0.0.1:9"}, "several addresses; one teacher is served at one"),
        ({"reference.model": str(other)}, "reference.model"),
    ):
        with pytest.raises(UsageError) as told:
            groupwise.train("quickstart", {**few(), **changes})
        assert words in str(told.value)
        assert "\n" not in str(told.value)
