"""The forms of an environment: what each is played like, and what becomes of what is wrong with one."""

from __future__ import annotations

import asyncio
import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from groupwise.core.environment import Reply, Says
from groupwise.core.errors import UsageError
from groupwise.core.samples import Cause, Sample
from groupwise.environments.adapt import LONGEST, begun, callable_tools, ended, has_step, playable, role_of
from groupwise.environments.calls import Call
from groupwise.environments.game import Game
from groupwise.environments.tools import unanswered
from tests.environments.environment_faults import Dice, half
from tests.environments.trl_examples import EchoToolEnv, IncrementEnv, async_add, multiply, reward_func

SAMPLE = Sample("k", "6 times 7?", "42", extra={"level": 3}, seed=5)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def play(kind: type | None, *turns: str, tools: Any = (), score: Any = None, reward: Any = None) -> list[Reply]:
    """The answers to the turns, the opening first."""
    episode: Any = playable(kind, {}, tools, score, reward)()
    try:
        return [begun(episode, SAMPLE), *(episode.reply(turn) for turn in turns)]
    finally:
        episode.close()


def stepping(result: Any) -> type:
    """A class whose `step` returns this."""
    return type("Mine", (), {"reset": lambda self, sample: None, "step": lambda self, text: result})


def texts(reply: Reply) -> list[str]:
    return [message.text for message in reply.messages]


def test_trls_documented_example_is_played_as_it_is() -> None:
    opening, echoed, again, last = play(EchoToolEnv, call("echo", message="hello"), call("echo", message="hi"), "Done.")
    assert opening == Reply()
    assert (echoed.messages, echoed.reward, echoed.done) == ((Says("tool", "hello"),), 0.5, False)
    assert (texts(again), again.done) == (["hi"], False)
    assert (last.messages, last.done) == ((), True)
    assert echoed.reward + again.reward + last.reward == pytest.approx(0.2), "the attribute as it is at the end"
    (schema,) = (tool.schema() for tool in callable_tools(EchoToolEnv, ()))
    assert schema["function"]["name"] == "echo"
    assert schema["function"]["parameters"] == {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "The message to echo"}},
        "required": ["message"],
    }


def test_plain_functions_alone_are_an_environment_with_the_tasks_score() -> None:
    def score(sample: Sample, text: str) -> float:
        return float(text == sample.answer)

    turns = (call("multiply", a=6, b=7), "42<|im_end|>\n")
    _, product, last = play(None, *turns, tools=[multiply], score=score)
    assert (texts(product), product.reward, product.done) == (["42"], 0.0, False)
    assert (last.reward, last.done, last.messages) == (1.0, True, ())
    assert play(None, "43", tools=[multiply], score=score)[-1].reward == 0.0
    assert play(None, "42", tools=[multiply])[-1].reward == 0.0


def test_get_reward_is_called_once_where_the_episode_ends() -> None:
    opening, wrong, right, last = play(Dice, call("guess", number=1), call("guess", number=0), "x")
    assert json.loads(texts(wrong)[0]) == {"error": "wrong"}
    assert (wrong.reward, right.reward, last.reward, last.done) == (0.0, 0.0, -0.5, True)
    assert play(Dice, call("guess", number=int(texts(opening)[0])), "x")[-1].reward == 0.75


def test_a_last_turn_that_calls_a_tool_still_brings_what_get_reward_says() -> None:
    episode = playable(Dice, {})()
    number = int(begun(episode, SAMPLE).messages[0].text)
    reply = episode.reply(call("guess", number=number))
    assert (reply.reward, ended(episode, reply).reward, ended(episode, reply).messages) == (0.0, 0.75, reply.messages)


def test_random_numbers_of_a_class_that_draws_them_are_the_samples() -> None:
    """TRL's classes draw from `random`; here an opening is every completion's of a prompt, and episodes are played
    again.
    """
    first, second = (play(Dice, call("roll"), call("roll")) for _ in range(2))
    assert list(map(texts, first)) == list(map(texts, second))
    assert texts(first[1]) != texts(first[2])


def test_trls_other_documented_example_draws_its_task_itself() -> None:
    opening = play(IncrementEnv)[0]
    target = int(texts(opening)[0].removeprefix("Increment the counter by ").removesuffix("."))
    assert 1 <= target <= 6
    openings = [begun(playable(IncrementEnv, {})(), replace(SAMPLE, seed=seed)) for seed in range(100)]
    assert len({text for one in openings for text in texts(one)}) == 6, "another sample, another target"
    right = (call("increment", step=target - 1) + call("increment", step=1), "Done.<|im_end|>")
    *_, counted, last = play(IncrementEnv, *right)
    assert (texts(counted), counted.reward, last.reward, last.done) == ([str(target - 1), str(target)], 0.0, 1.0, True)
    assert play(IncrementEnv, call("decrement", step=1), "Done.")[-1].reward == 0.0
    assert [tool.name for tool in callable_tools(IncrementEnv, (multiply, async_add))] == [
        "increment", "multiply", "async_add",
    ]  # fmt: skip
    both = call("async_add", a=2, b=3) + call("multiply", a=2, b=3) + call("increment", step=4)
    assert texts(play(IncrementEnv, both, tools=[multiply, async_add])[1]) == ["5", "6", "4"]


def test_a_reward_function_of_trls_reads_the_environment_at_the_end() -> None:
    turns = (call("echo", message="hello"), call("echo", message="hi"))
    _, first, second, last = play(EchoToolEnv, *turns, "Done.", reward=reward_func)
    assert (first.reward, second.reward, last.reward, last.done) == (0.0, 0.0, 0.2, True)
    episode = playable(EchoToolEnv, {}, (), None, reward_func)()
    begun(episode, SAMPLE)
    assert ended(episode, episode.reply(turns[0])).reward == 0.5

    seen: dict[str, Any] = {}

    def reads(environments: Any, prompts: Any, completions: Any, level: Any, **others: Any) -> list[float | None]:
        seen.update(prompts=prompts, completions=completions, level=level, others=others)
        return [len(environments[0].env.base_url) / 100]

    play(EchoToolEnv, turns[1], "Done.<|im_end|>", reward=reads)
    roles_ = [(message["role"], message["content"]) for message in seen["completions"][0]]
    assert roles_ == [("assistant", turns[1]), ("tool", "hi"), ("assistant", "Done.")]
    assert (seen["prompts"], seen["level"], seen["others"]["answer"]) == (["6 times 7?"], [3], ["42"])
    for wrong, cause in ((["x"], Cause.WRONG_TYPE), ([None], Cause.WRONG_TYPE), ([1, 2], Cause.WRONG_LENGTH)):
        assert play(EchoToolEnv, "Done.", reward=lambda environments, wrong=wrong: wrong)[-1].cause is cause


def test_get_reward_and_a_reward_function_are_added() -> None:
    target = int(texts(play(IncrementEnv)[0])[0].split()[-1].rstrip("."))
    turns = (call("increment", step=target), "Done.")
    reads = play(IncrementEnv, *turns, reward=lambda environments: [one.counter / 4 for one in environments])[-1]
    assert (reads.reward, play(IncrementEnv, *turns)[-1].reward) == (1 + target / 4, 1)


def test_turns_that_change_the_attribute_reward_add_up_to_it_exactly() -> None:
    """0.1 and 0.2 and 0.7 are not 1 in floating point, and 1 is what counts as solved."""

    class Climbs:
        def reset(self, **kwargs: object) -> None:
            self.reward = None

        def to(self, height: float) -> float:
            """
            Climbs.

            Args:
                height: how high
            """
            self.reward = height
            return height

    numbers = random.Random(0)
    for _ in range(200):
        heights = [round(numbers.random(), 2) for _ in range(numbers.randint(1, 6))]
        turns = [call("to", height=height) for height in [*heights, 1.0]]
        assert math.fsum(reply.reward for reply in play(Climbs, *turns, "there")) == 1.0


def test_columns_are_what_reset_is_called_with() -> None:
    seen: dict[str, Any] = {}

    class Takes:
        reward = 0.0

        def reset(self, level: int, answer: str, prompt: str, seed: int, nothing: str = "-") -> str:
            seen.update(level=level, answer=answer, prompt=prompt, seed=seed, nothing=nothing)
            return f"level {level}"

        def look(self) -> str:
            """Looks."""
            return "there"

    assert texts(play(Takes)[0]) == ["level 3"]
    assert seen == {"level": 3, "answer": "42", "prompt": "6 times 7?", "seed": 5, "nothing": "-"}


def test_calls_of_one_turn_are_answered_in_order_whatever_is_wrong_with_one() -> None:
    turn = call("multiply", a=2, b=3) + "<tool_call>{</tool_call>" + call("divide", a=1) + call("multiply", a=2, b="3")
    (_, reply) = play(None, turn + call("multiply", a=5, b=5), tools=[multiply])
    first, *wrong, last = texts(reply)
    assert (first, last, reply.done) == ("6", "25", False)
    assert [next(iter(json.loads(one))) for one in wrong] == ["error"] * 3
    assert "no JSON" in wrong[0]
    assert "divide" in wrong[1]
    assert "integer" in wrong[2]


def test_async_classes_are_played_on_one_loop() -> None:
    loops = set()

    class Waits:
        async def reset(self, sample: Sample) -> str:
            loops.add(id(asyncio.get_running_loop()))
            self._lock = asyncio.Lock()
            return "go"

        async def step(self, text: str) -> tuple[str, float, bool]:
            async with self._lock:
                loops.add(id(asyncio.get_running_loop()))
                return text, 1.0, True

        async def close(self) -> None:
            loops.add("closed")  # type: ignore[arg-type]

    episode: Any = playable(Waits, {})()
    assert texts(begun(episode, SAMPLE)) == ["go"]
    assert episode.reply("a") == Reply((Says("user", "a"),), 1.0, True)
    episode.close()
    assert len(loops) == 2
    assert "closed" in loops

    async def later(a: int) -> int:
        """
        Waits.

        Args:
            a: a number
        """
        await asyncio.sleep(0)
        return a

    assert texts(play(None, call("later", a=3), tools=[later])[1]) == ["3"]


WRONG = {
    "a text alone": ("seen", Cause.WRONG_TYPE, "returned str;"),
    "gymnasium's five": (("", 0.0, False, False, {}), Cause.WRONG_TYPE, "(str, float, bool, bool, dict)"),
    "no observation": ((None, 1.0, True), Cause.WRONG_TYPE, "(NoneType, float, bool)"),
    "another order": (("", True, 1.0), Cause.WRONG_TYPE, "(str, bool, float)"),
    "no reward": (("", None, True), Cause.WRONG_TYPE, "None"),
    "a text as reward": (("", "1", True), Cause.WRONG_TYPE, "str '1'"),
    "nan": (("", math.nan, True), Cause.NAN, "nan"),
    "infinite": (("", -math.inf, False), Cause.NAN, "inf"),
    "too long": (("x" * (LONGEST + 1), 0.0, False), Cause.TOO_LARGE, "1,048,577"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_a_fault_that_says_what_came(name: str) -> None:
    result, cause, words = WRONG[name]
    reply = play(stepping(result), "a")[1]
    assert (reply.cause, reply.messages, reply.reward) == (cause, (), 0.0)
    assert words in reply.detail


def test_texts_that_cannot_be_encoded_become_harmless() -> None:
    reply = play(stepping(("a\ud800b", 0, False)), "a")[1]
    assert texts(reply) == ["a\ufffdb"]
    assert texts(play(stepping(("x" * LONGEST, 0, False)), "a")[1])[0] == "x" * LONGEST


def test_an_opening_is_checked_like_answers() -> None:
    kind = type("Mine", (), {"reset": lambda self, sample: 5, "step": lambda self, text: ("", 0.0, True)})
    assert play(kind)[0].cause is Cause.WRONG_TYPE


def test_a_class_that_names_no_reward_says_what_to_write() -> None:
    class Silent:
        def reset(self, **kwargs: object) -> None: ...

        def look(self) -> str:
            """Looks."""
            return "there"

    _, looked, last = play(Silent, call("look"), "done")
    assert looked.cause is None
    assert last.cause is Cause.WRONG_TYPE
    assert "get_reward" in last.detail


class NoReset:
    def step(self, text: str) -> tuple[str, float, bool]:
        return "", 0.0, True


class OnlyReset:
    def reset(self, sample: Sample) -> None: ...


class NoHints(OnlyReset):
    def guess(self, number) -> str:  # type: ignore[no-untyped-def]
        """Guesses."""
        return ""


class NoDocstring(OnlyReset):
    def guess(self, number: int) -> str:
        return ""


class Undescribed(OnlyReset):
    def guess(self, number: int) -> str:
        """Guesses."""
        return ""


REFUSED = {
    "nothing": (None, (), {}, "both missing"),
    "no reset": (NoReset, (), {}, "NoReset has no reset"),
    "neither": (OnlyReset, (), {}, "neither step(text)"),
    "no hints": (NoHints, (), {}, "'number' of guess has no type hint"),
    "no docstring": (NoDocstring, (), {}, "guess has no docstring"),
    "no description": (Undescribed, (), {}, "guess"),
    "a tool beside step": (stepping(0), (half,), {}, "has a step(text) that hears all calls"),
    "one name twice": (None, (half, half), {}, "half"),
    "no function": (None, (3,), {}, "not a function"),
    "unknown settings": (Dice, (), {"sides": 6}, "'sides'"),
}


@pytest.mark.parametrize(
    ("kind", "reward", "words"),
    [
        (stepping(("", 0.0, True)), reward_func, "Mine rewards its turns in step(text)"),
        (None, reward_func, "tools alone have no environment"),
        (EchoToolEnv, multiply, "multiply has no parameter `environments`"),
        (EchoToolEnv, 3, "int has no parameter `environments`"),
    ],
)
def test_a_reward_function_that_has_nothing_to_read_is_refused(kind: type | None, reward: Any, words: str) -> None:
    with pytest.raises(UsageError) as error:
        playable(kind, {}, [] if kind else [multiply], None, reward)
    assert words in str(error.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_played_is_one_clear_line(name: str) -> None:
    kind, tools, fields, words = REFUSED[name]
    with pytest.raises(UsageError) as error:  # noqa: PT012
        playable(kind, fields, tools)  # type: ignore[arg-type]
        [tool.schema() for tool in callable_tools(kind, tools)]  # type: ignore[arg-type]
    assert words in str(error.value)


def test_what_a_chat_must_know_of_each_form() -> None:
    own = stepping(("", 0.0, True))
    assert (callable_tools(own, ()), role_of(own), has_step(own)) == ((), "user", True)
    own.role = "system"  # type: ignore[attr-defined]
    assert role_of(own) == "system"
    assert [tool.name for tool in callable_tools(Dice, (half,))] == ["guess", "roll", "half"]
    assert (role_of(Dice), has_step(None)) == ("tool", False)
    game = Game(use=f"{Dice.__module__}:Dice", tools=(f"{half.__module__}:half",))
    assert game.schemas == [tool.schema() for tool in callable_tools(Dice, (half,))]
    assert game.tool_names == ("guess", "roll", "half")
    assert game.with_special
    assert game.roles == ("tool",)


BY_PYTHON = """Traceback (most recent call last):
  File "/home/a/tools.py", line 9, in look_up
    search(page)
  File "/home/a/tools.py", line 4, in search
    re.search(pattern, page)
  File "/usr/lib/python3.11/re/__init__.py", line 176, in search
SystemExit: 3"""
BY_FAULTHANDLER = """Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/subprocess.py", line 550 in run
  File "/home/a/site/lib/python3.11/site-packages/shell.py", line 3 in call
  File "/home/a/tools.py", line 9 in look_up
  File "/usr/lib/python3.11/asyncio/runners.py", line 118 in run"""


@pytest.mark.parametrize(("detail", "guilty"), [(BY_PYTHON, "look_up"), (BY_FAULTHANDLER, "look_up")])
@pytest.mark.parametrize("first", [True, False])
def test_a_turn_without_an_answer_is_charged_to_the_tool_that_was_called(detail: str, guilty: str, first: bool) -> None:
    """And not to another one that it calls in its turn, or that has the name of a function of Python."""
    names = ["look_up", "search", "run", "call"]
    calls = [Call(name, {}) for name in (names if first else names[::-1])]
    fault = Reply(cause=Cause.TIMEOUT, detail=detail, seconds=10.0)
    records = unanswered(calls, names, fault)
    assert {record.tool: record.failure for record in records} == {
        name: "timeout" if name == guilty else "unanswered" for name in names
    }


def test_frames_of_an_installed_package_of_tools_count() -> None:
    detail = BY_FAULTHANDLER.replace("look_up", "helper")
    (_, record) = unanswered(
        [Call("run", {}), Call("call", {})], ["run", "call"], Reply(cause=Cause.TIMEOUT, detail=detail)
    )
    assert record.failure == "timeout"
