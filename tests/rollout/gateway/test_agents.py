"""Agents in processes: a fault costs its own session, and a session that is played again is the same one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from groupwise.core.engine import Sampling
from groupwise.core.environment import ENVIRONMENT, Ended, EpisodeLimits
from groupwise.core.errors import UsageError
from groupwise.core.records import Completion
from groupwise.environments.agent import Agent
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.work import Limits
from groupwise.rollout.gateway.again import Again, ReadAfter, name
from groupwise.tasks.agent import AgentTask
from tests.rollout.gateway.made import Listening, played

linux = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and /proc are Linux's")
FILE = Path(__file__).parent / "agents_that_fail.py"
#: Seconds that no session needs: on a busy machine a process may take a while to die.
MANY = 60.0


def each(
    agent: Agent, texts: list[str], workers: int = 4, engine: Listening | None = None, patience: float = 0.2
) -> list[Completion]:
    """The episode of one session of each prompt."""
    agents = Pool({ENVIRONMENT: agent}, Limits(workers=workers))
    limits, sampling = EpisodeLimits(turns=8, turn_tokens=4), Sampling(max_new_tokens=90)
    return [
        group[0] for group in played(agents, engine, 1, limits, sampling, texts, patience=patience, at_once=workers)
    ]


@linux
def test_every_fault_costs_its_own_session_and_is_no_zero() -> None:
    faults = {"raise": "exception", "exit": "exception", "crash": "crash", "none": "wrong type", "text": "wrong type"}
    acts = [act for fault in faults for act in ("fine", fault)]
    episodes = each(Agent.of(f"{FILE}:run", (), MANY), acts)
    for act, episode in zip(acts, episodes, strict=True):
        assert len(episode.turns) == 1
        assert episode.turns[0].fault == faults.get(act, "")
        assert episode.ended is (Ended.FAULT if act in faults else Ended.DONE)
    assert "ValueError: of its own" in episodes[1].turns[0].detail


@linux
def test_a_session_that_hangs_ends_at_its_time() -> None:
    hangs, fine = each(Agent.of(f"{FILE}:run", (), 3.0), ["hang", "fine"])
    assert (hangs.ended, hangs.turns[0].fault) == (Ended.FAULT, "timeout")
    assert fine.ended is Ended.DONE


@linux
def test_a_session_whose_process_is_lost_is_played_again_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told again what it was told, of which nothing is sampled twice, and no other session notices."""
    monkeypatch.setenv("GATEWAY_TEST_FOLDER", str(tmp_path))
    engines, agent = (Listening(), Listening()), Agent.of(f"{FILE}:killed_once", (), MANY)
    killed, whole = (each(agent, ["a", "b"], engine=engine, patience=MANY) for engine in engines)
    assert len(list(tmp_path.iterdir())) == 2  # each was killed, in the first of the two
    assert [episode.turns[-1].reward for episode in killed] == [1.0, 1.0]
    assert [engine.sizes for engine in engines] == [[2, 2, 0], [2, 2, 0]]
    assert [(c.tokens, c.logp_engine, c.spans) for c in killed] == [(c.tokens, c.logp_engine, c.spans) for c in whole]


@linux
def test_a_program_is_told_where_the_policy_is_and_its_reward_is_read(tmp_path: Path) -> None:
    texts = ["file", "line", "flood", "fails", "words"]
    agent = Agent.of("", (sys.executable, str(FILE)), MANY)
    episodes = each(agent, texts)
    assert [episode.turns[-1].reward for episode in episodes] == [0.75, 0.5, 0.5, 0.0, 0.0]
    assert [episode.turns[-1].fault for episode in episodes] == ["", "", "", "exception", "wrong type"]
    assert "no luck\n" in episodes[3].turns[-1].detail
    assert "the last line that it prints is 'well done', not a number" in episodes[4].turns[-1].detail


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "task.use is missing: a function"),
        ({"use": f"{FILE}:run", "command": ("a",)}, "two agents"),
        ({"use": f"{FILE}:asked_", "path": "x"}, "has no 'asked_'; did you mean 'asked'?"),
        ({"use": f"{FILE}:sys", "path": "x"}, "must be a function run"),
        ({"use": f"{FILE}:run"}, "agents_that_fail.py:run has no samples(split) beside it"),
        ({"command": ("a",)}, "task.path is missing: a file of problems"),
        ({"use": f"{FILE}:run", "prompt": "x"}, "task.prompt: set, but without task.path"),
        ({"use": f"{FILE}:run", "path": "x", "sessions": 0}, "task.sessions 1 to 1024"),
        ({"use": f"{FILE}:run", "path": "x", "seconds": 0.0}, "must be more than 0"),
    ],
)
def test_a_task_that_cannot_be_played_is_refused(keys: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        AgentTask(**keys)  # type: ignore[arg-type]


@linux
@pytest.mark.parametrize(("function", "said"), [("killed_once", 0), ("killed_and_another", 1)])
def test_an_agent_that_asks_something_else_when_it_is_played_again_is_told_of(
    function: str, said: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_TEST_FOLDER", str(tmp_path))
    agent, heard = Agent.of(f"{FILE}:{function}", (), MANY), list[str]()
    agents = Pool({ENVIRONMENT: agent}, Limits(workers=2))
    sampling = Sampling(max_new_tokens=90)
    played(
        agents, None, 1, EpisodeLimits(turns=8, turn_tokens=4), sampling, ["a", "b"], patience=0.2, note=heard.append
    )
    assert sum("did not ask what it asked before, though it was told the same" in line for line in heard) == said


def test_what_was_asked_is_known_after_a_kill_and_only_where_the_same_was_told(tmp_path: Path) -> None:
    def asked(told: bytes, read: int) -> ReadAfter:
        return ReadAfter(name([*told]), name([read]))

    file = tmp_path / "asked.bin"
    first = Again(file)
    for one in (asked(b"", 1), asked(b"", 2), asked(b"a", 3)):
        first.write(one)
    file.write_bytes(file.read_bytes() + b"cut off")
    after = Again(file)
    assert not after.differs([asked(b"", 2), asked(b"", 1), asked(b"a", 3)])  # whichever comes first
    assert not after.differs([asked(b"", 1), asked(b"a", 2), asked(b"a", 3)])  # one of two at once came late
    assert not after.differs([asked(b"", 1), asked(b"", 2), asked(b"b", 4)])  # it was told something else
    assert not after.differs([asked(b"of another session", 9)])
    assert not after.differs([])
    assert after.differs([asked(b"", 1)])
    assert after.differs([asked(b"", 1), asked(b"", 2), asked(b"a", 4)])
    after.write(asked(b"", 2))
    after.write(asked(b"b", 4))
    assert file.stat().st_size == 4 * 16
    assert Again(file).differs([asked(b"b", 5)])
    after.keep([asked(b"c", 6)])
    assert after.differs([asked(b"c", 7)])
