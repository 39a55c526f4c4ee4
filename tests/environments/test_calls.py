"""Tool calls in what policies say: the formats, and text that is hostile to whoever reads it."""

import json
import time

import pytest

from groupwise.environments.calls import MOST_CALLS, Call, Malformed, calls_in, without_end

NESTED = {"a": {"b": {"c": "}}</tool_call>{"}}, "s": 'say "hi"\n', "l": [1, [2]]}
PLAIN = json.dumps({"name": "f", "arguments": NESTED})
LLAMA = json.dumps({"name": "f", "parameters": NESTED})


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{PLAIN}\n</tool_call>",
        f"I will call f.\n<tool_call>{PLAIN}</tool_call><|im_end|>",
        f"<tool_call>[{PLAIN}]</tool_call>",
        f"<tool_call>{PLAIN}",
        f"<think>\n<tool_call>{{}}</tool_call>\n</think>\n\n<tool_call>{PLAIN}</tool_call>",
        f"as the prompt opened it</think><tool_call>{PLAIN}</tool_call>",
        LLAMA,
        f"<|python_tag|>{LLAMA}<|eom_id|>",
        f"{LLAMA}<|eot_id|>",
        f"[TOOL_CALLS][{PLAIN}]</s>",
        f"[TOOL_CALLS] f[ARGS]{json.dumps(NESTED)}</s>",
        f"[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{json.dumps(NESTED)}",
        f"[{PLAIN}]",
        f"<function=f>{json.dumps(NESTED)}</function>",
        "<tool_call>" + json.dumps({"type": "function", "function": {"name": "f", "arguments": json.dumps(NESTED)}}),
    ],
)
def test_every_format_says_the_same_call(text: str) -> None:
    assert calls_in(text) == [Call("f", NESTED)]


def test_tagged_parameters_are_texts() -> None:
    text = (
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\n two\n\nlines <b> \n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>"
    )
    assert calls_in(text) == [Call("f", {"a": "1", "s": " two\n\nlines <b> "}, True), Call("g", {}, True)]


@pytest.mark.parametrize("between", ["</tool_call>\n<tool_call>", "\n", ";", "</tool_call> and <tool_call>"])
def test_two_calls_are_in_their_order(between: str) -> None:
    one, two = (json.dumps({"name": name, "arguments": {"x": x}}) for name, x in (("f", 1), ("g", 2)))
    assert calls_in(f"<tool_call>{one}{between}{two}</tool_call>") == [Call("f", {"x": 1}), Call("g", {"x": 2})]
    assert calls_in(f"{one}; {two}") == [Call("f", {"x": 1}), Call("g", {"x": 2})]


def test_a_line_break_inside_of_a_string_is_part_of_it() -> None:
    assert calls_in('<tool_call>{"name": "run", "arguments": {"code": "a\nb"}}') == [Call("run", {"code": "a\nb"})]


def test_no_arguments_are_none() -> None:
    assert calls_in('<tool_call>{"name": "f"}</tool_call>') == [Call("f", {})]
    assert calls_in('<tool_call>{"name": "f", "arguments": null}</tool_call>') == [Call("f", {})]


@pytest.mark.parametrize(
    "text",
    ["", "It is 3.", '{"answer": 3}', '{"name": "Bob", "age": 3}', "[1, 2]", "{", "if x < y: {}",
     '<think>call <tool_call>{"name": "f"}</tool_call>?', "<think>f</think> 3", "[TOOL] f", "tool_call f"],
)  # fmt: skip
def test_what_is_no_call(text: str) -> None:
    assert calls_in(text) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<tool_call>{"name": "f", "arguments": {</tool_call>', "no JSON"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}', "no JSON"),
        ("<tool_call>f(1)</tool_call>", "no call behind <tool_call>"),
        ("<tool_call>", "no call behind <tool_call>"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name"'),
        ('<tool_call>{"name": 3}</tool_call>', '"name"'),
        ("<tool_call>[1]</tool_call>", '"name"'),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "object"),
        ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', "no JSON"),
        ('<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>', "object"),
        ("<|python_tag|>print(1)", "no call behind"),
        ('{"name": "f", "parameters": {"a": 1}', "no JSON"),
        ("[TOOL_CALLS]f[ARGS]{1}", "no JSON"),
        ("<tool_call>" + "[" * 100_000, "nested too deep"),
        ('<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 10_000 + "}}", "number too long"),
    ],
)
def test_what_is_meant_as_a_call_and_is_none(text: str, why: str) -> None:
    (call,) = calls_in(text)
    assert isinstance(call, Malformed)
    assert why in call.why


def test_a_broken_call_does_not_take_the_next_one_with_it() -> None:
    first, second = calls_in('<tool_call>{"name": </tool_call><tool_call>{"name": "f"}</tool_call>')
    assert isinstance(first, Malformed)
    assert second == Call("f", {})


@pytest.mark.parametrize(
    "piece",
    ["<tool_call>", '<tool_call>["', "<function=f>", "<function=f><parameter=a>", "[TOOL_CALLS]", "{", '{"name":',
     "[", "<think>", "</think>", "<|python_tag|>{", '<tool_call>{"name": "f"}', " ", "f[ARGS]", "[TOOL_CALLS]f ",
     "<|im_end|>", "<|im_end|> "],
)  # fmt: skip
def test_a_long_hostile_text_is_read_in_no_time(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    start = time.process_time()
    calls = [*calls_in(without_end(text)), *calls_in(text + "x")]
    assert time.process_time() - start < 1
    assert len(calls) <= 2 * (MOST_CALLS + 1)


def test_more_calls_than_are_read_are_said_to_be_so() -> None:
    calls = calls_in('<tool_call>{"name": "f"}</tool_call>' * (MOST_CALLS + 1))
    assert calls[:MOST_CALLS] == [Call("f", {})] * MOST_CALLS
    assert isinstance(calls[-1], Malformed)
    assert "more than 64 calls" in calls[-1].why


@pytest.mark.parametrize(
    "end", ["<|im_end|>", "<|eot_id|>\n", "</s>", "<|im_end|>\n<|endoftext|>", "<end_of_turn>", ""]
)
def test_special_tokens_that_end_a_turn_are_not_said(end: str) -> None:
    assert without_end(f"It is <|3|>.{end}") == "It is <|3|>."
