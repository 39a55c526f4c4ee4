"""Laws of the calculator: problems that need the tool, and an episode that is worth what its last turn states."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from groupwise.core.samples import Sample
from groupwise.environments.adapt import begun, ended
from groupwise.models.chat.prompts import Chat, ChatSettings
from groupwise.models.chat.turn_checks import check_turns
from groupwise.models.files.gguf import packaged_model, tool_use_template
from groupwise.tasks.make import task
from recipes.calculator import EXAMPLES, Calculator
from tests.models.turn_templates import SCHEMA, SMOLLM2_MAKE, ends_of, tokenizer_of

TOOL_USE = tool_use_template(packaged_model("smollm2"))


def pairs(split: str) -> list[frozenset[int]]:
    return [frozenset(map(int, sample.key.split("x"))) for sample in Calculator().samples(split)]


def rewards(sample: Sample, *turns: str) -> list[float]:
    """What each turn brings; the last one ends the episode, whatever it says."""
    episode = task("calculator").game.load()()  # type: ignore[attr-defined]
    assert not begun(episode, sample).messages
    replies = [episode.reply(turn) for turn in turns]
    return [reply.reward for reply in (*replies[:-1], ended(episode, replies[-1]))]


def test_a_pair_of_factors_is_in_one_split_once_and_in_no_example() -> None:
    train, heldout = pairs("train"), pairs("heldout")
    assert (len(train), len(heldout)) == (512, 64)
    assert len({*train, *heldout, *map(frozenset, EXAMPLES)}) == 512 + 64 + len(EXAMPLES)


def test_an_episode_is_worth_what_its_last_turn_states() -> None:
    for sample in Calculator().samples("heldout")[:8]:
        a, b = map(int, sample.key.split("x"))
        call = f"<tool_call>{json.dumps({'name': 'multiply', 'arguments': {'a': a, 'b': b}})}</tool_call>"
        assert rewards(sample, call, f"{a * b}<|im_end|>") == [0.0, 1.0]
        assert rewards(sample, call, f"{a} times {b} is {a * b}.") == [0.0, 1.0]
        assert rewards(sample, call, str(a * b + 1)) == [0.0, 0.0]
        assert rewards(sample, str(a * b)) == [1.0], "a policy that knows it needs no tool"
        assert rewards(sample, call, call) == [0.0, 0.0], "the tool says the product, the policy does not"


def test_the_worked_problems_before_a_question_are_what_an_episode_looks_like() -> None:
    """A policy that copies them is right: their calls are answered what they say, by a template that appends."""
    sample = Calculator().samples("train")[0]
    episode = task("calculator").game.load()()  # type: ignore[attr-defined]
    begun(episode, sample)
    messages = list(sample.messages)
    for before, after in pairwise(messages):
        if after["role"] == "tool":
            assert [message.text for message in episode.reply(before["content"]).messages] == [after["content"]]
    tokenizer = tokenizer_of(SMOLLM2_MAKE)
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": TOOL_USE}
    chat = Chat(tokenizer, tools=[SCHEMA])
    assert check_turns(chat, ends_of(tokenizer), ("tool",), "refuse") == []
    assert json.dumps(SCHEMA["function"]["name"]) in chat.text(sample)


def test_smollm2s_template_for_tools_is_its_own_where_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "tool_use.jinja").write_text(TOOL_USE)
    settings = ChatSettings(template=str(tmp_path / "tool_use.jinja"))
    talk = [{"role": role, "content": f"{role} says this"} for role in ("system", "user", "assistant", "user")]
    own = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    for messages in (talk, talk[1:]):
        sample = Sample("q", talk[-1]["content"], "", messages=messages)
        expected = Chat(tokenizer_of(SMOLLM2_MAKE)).text(sample).replace("You help.", own)
        assert Chat(tokenizer_of(SMOLLM2_MAKE), settings).text(sample) == expected
