"""Episodes in processes that fail for real: a fault costs its own turn, and no other episode loses anything."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from groupwise.core.environment import Conversation, Reply, fingerprint
from groupwise.core.errors import UsageError
from groupwise.core.samples import Cause, Sample
from groupwise.environments.game import Game
from groupwise.environments.live import PoolEnvironments
from groupwise.rewards.pool.work import Limits
from groupwise.tasks.data.task import Data
from tests.environments.test_live import said
from tests.rewards.pool.test_reward_pool import left as left

linux = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and /proc are Linux's")

HERE = Path(__file__).parent
COUNTS = Game.of(f"{HERE / 'environment_faults.py'}:Counts", {}, ())
FAULTS = {"crash": Cause.CRASH, "exit": Cause.EXCEPTION, "huge": Cause.TOO_LARGE}
#: Seconds that no answer needs: on a busy machine a process may take a while to die.
MANY = 60.0


def play(environments: PoolEnvironments, *episodes: list[str]) -> list[list[Reply]]:
    """The answers of episodes that are played side by side, turn after turn, openings first."""
    talks = [Conversation(Sample(f"k{n}", "", "", seed=n + 1), n, 1) for n in range(len(episodes))]
    given = [[reply] for reply in environments.wait([environments.begin(talk) for talk in talks])]
    for number in range(max(map(len, episodes))):
        live = [n for n, turns in enumerate(episodes) if number < len(turns)]
        for n in live:
            talks[n] = said(talks[n], given[n][-1], episodes[n][number])
        for n, reply in zip(live, environments.wait([environments.begin(talks[n]) for n in live]), strict=True):
            given[n].append(reply)
    return given


def states(replies: list[Reply]) -> list[str]:
    return [reply.state for reply in replies]


@linux
@pytest.mark.parametrize(
    ("acts", "seconds"), [([*FAULTS, "flood", "leave"], MANY), (["hang"], 1.0)], ids=["faults", "hang"]
)
def test_every_fault_costs_its_own_turn_and_leaves_nothing(left, acts: list[str], seconds: float) -> None:  # type: ignore[no-untyped-def]
    plain = ["a", "b", "c"]
    episodes = [turns for act in acts for turns in (plain, ["a", act, "c"])]
    environments = PoolEnvironments(COUNTS, Limits(workers=2, seconds=seconds))
    try:
        given = play(environments, *episodes)
        assert left(), "the mark is not seen: this test would prove nothing"
    finally:
        environments.close()
    causes = {**FAULTS, "hang": Cause.TIMEOUT}
    for turns, replies in zip(episodes, given, strict=True):
        cause = causes.get(turns[1])
        assert [reply.cause for reply in replies] == [None, None, cause, None], (turns, replies)
        after = ["s0", "s1", "s2", "s3"] if cause is None else ["s0", "s1", "", "s2"]
        assert states(replies) == after, "played again without what it failed on, and only without that"
        assert [reply.reward for reply in replies] == [int(state[1:] or 0) / 4 if state else 0.0 for state in after]
    assert left() == []


@linux
@pytest.mark.parametrize(
    ("act", "seconds", "words"), [("hang", 0.5, "no score after 0.5 s"), ("crash", MANY, "killed by SIGABRT")]
)
def test_what_a_fault_says_is_the_users_own_lines(act: str, seconds: float, words: str) -> None:
    environments = PoolEnvironments(COUNTS, Limits(workers=1, seconds=seconds))
    try:
        ((_, fault),) = play(environments, [act])
    finally:
        environments.close()
    assert "environment_faults.py" in fault.detail
    assert fault.detail.endswith(words)


def test_what_cannot_be_played_is_said_before_any_process() -> None:
    start = time.monotonic()
    with pytest.raises(UsageError, match="has no reset"):
        PoolEnvironments(Game.of("collections:OrderedDict", {}, ()), Limits(workers=1))
    assert time.monotonic() - start < 5.0


def test_tools_with_the_score_of_the_data_task_are_played_in_processes(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "8 over 2?", "answer": "4"}\n' * 2)
    data = Data(path=str(rows), check="math")
    _ = data.samples("train")  # what a run has read by then stays where it is
    game = Game.of("", {}, (f"{HERE / 'environment_faults.py'}:half",), scorer=data)
    assert [schema["function"]["name"] for schema in game.schemas] == ["half"]
    sample = Sample("k", "8 over 2?", "4", seed=1)
    environments = PoolEnvironments(game, Limits(workers=1, seconds=MANY))
    try:
        talk = Conversation(sample, 0, 1)
        (opening,) = environments.wait([environments.begin(talk)])
        talk = said(talk, opening, '<tool_call>{"name": "half", "arguments": {"number": 8}}</tool_call>')
        (halved,) = environments.wait([environments.begin(talk)])
        ends = [said(talk, halved, text) for text in ("It is $\\boxed{4.0}$.<|im_end|>", "\\boxed{5}")]
        right, wrong = (environments.wait([environments.begin(one)])[0] for one in ends)
    finally:
        environments.close()
    assert [message.text for message in halved.messages] == ["4.0"]
    assert (right.reward, right.done, wrong.reward) == (1.0, True, 0.0)
    assert fingerprint(right) != fingerprint(wrong)
