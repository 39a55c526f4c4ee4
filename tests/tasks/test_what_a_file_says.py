"""A prompt and a gold answer are what the file says; else the row is refused, or a note says it and counts the rows."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.core.errors import UsageError
from groupwise.core.samples import Attempt, Sample
from groupwise.rewards.functions.adapters import TRL, VERL
from groupwise.tasks.data import formats
from groupwise.tasks.data.task import Data
from groupwise.tasks.environment import EnvironmentTask
from tests.tasks import made
from tests.tasks.made import by_key, refused

CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"zone": {"type": "string"}}}}
CALL = {"type": "function", "function": {"name": "clock", "arguments": {"zone": "UTC"}}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **others}


def rows(count: int = 4, **columns: Any) -> list[dict[str, Any]]:
    """Rows of different prompts; a callable makes the value of its row."""
    each = {"prompt": lambda i: f"{i}?", "answer": lambda i: str(i), **columns}
    return [{name: make(i) if callable(make) else make for name, make in each.items()} for i in range(count)]


def data(tmp_path: Path, lines: list[dict[str, Any]], **keys: Any) -> Data:
    return made.data(tmp_path / "rows.jsonl", lines, **{"heldout_share": 0.0, "check": "none", **keys})


def first(task: Any) -> Sample:
    return by_key(task)[0]


def changes(task: Data) -> list[str]:
    return [note for note in task.notes()[1:-1] if "(first: " in note]


# Gold answers.

GOLDS: list[tuple[Any, str]] = [
    (["Paris", "paris"], '["Paris", "paris"]'),
    ([[1, 2], [3]], "[[1, 2], [3]]"),
    ("  1 2\n", "1 2"),
    ({"is": "Größe", "or": None}, '{"is": "Größe", "or": null}'),
    ([], "[]"),
    (True, "true"),
    (18, "18"),
    (0.1, "0.1"),
    (10**60, str(10**60)),
]


@pytest.mark.parametrize(("value", "text"), GOLDS)
@pytest.mark.parametrize("again", [False, True])
def test_rewards_get_the_gold_answer_that_the_file_holds(
    value: Any, text: str, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if again:
        monkeypatch.setattr(formats, "SMALL_FILE", 0)  # the row is read a second time
    sample = first(data(tmp_path, rows(answer=value)))
    assert sample.answer == text
    given = {**TRL.arguments([Attempt(sample, "")]), **VERL.arguments([Attempt(sample, "")])}
    assert (given["answer"], given["ground_truth"]) == ([value], value)
    assert given["label"] == [value]
    nested = first(data(tmp_path, rows(answer=lambda i: {"is": value}), answer="answer.is"))
    assert VERL.arguments([Attempt(nested, "")])["ground_truth"] == value


def test_what_a_row_lacks_is_none_and_told_and_what_no_row_has_is_not_offered(tmp_path: Path) -> None:
    lines = rows(6)
    lines[0]["answer"], lines[1]["answer"], lines[2]["answer"] = None, "", float("nan")
    del lines[3]["answer"]
    task = data(tmp_path, lines)
    given = {s.key[-1]: TRL.arguments([Attempt(s, "")])["solution"] for s in task.samples("train")}
    assert [given[number] for number in "12456"] == [[None], [""], [None], ["4"], ["5"]]
    told = "\n".join(task.notes())
    assert "1 row: no gold answer in the column 'answer': rewards get None (first: " in told
    assert "1 row: no column 'answer' of a gold answer: rewards get None" in told
    bare = first(data(tmp_path, [{"prompt": row["prompt"], "gold": "1"} for row in rows()]))
    assert not {"answer", "solution", "ground_truth"} & TRL.arguments([Attempt(bare, "")]).keys()
    assert "ground_truth" not in VERL.arguments([Attempt(bare, "")])


@pytest.mark.parametrize("again", [False, True])
def test_a_column_that_some_rows_lack_is_none_there_and_told(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the run would end at the first of these rows, however late it comes."""
    if again:
        monkeypatch.setattr(formats, "SMALL_FILE", 0)
    lines = rows(6)
    for number in (1, 2, 4):
        lines[number]["solution"] = f"so {number}"
    lines[5]["level"] = 3
    task = data(tmp_path, lines, answer="")
    given = {s.key[-1]: TRL.arguments([Attempt(s, "")]) for s in task.samples("train")}
    assert [given[number]["solution"] for number in "123456"] == [[None], ["so 1"], ["so 2"], [None], ["so 4"], [None]]
    assert [given[number]["level"] for number in "56"] == [[None], [3]]
    path = tmp_path / "rows.jsonl"
    assert f"3 rows: no column 'solution': rewards get None (first: {path}, line 1)" in task.notes()
    assert f"5 rows: no column 'level': rewards get None (first: {path}, line 1)" in task.notes()
    whole = data(tmp_path, rows(3, solution="x"))
    assert not any("no column" in note for note in whole.notes())


BY_REWARDS = "or let rewards read it, task.check = 'none'; of 4"


@pytest.mark.parametrize(
    ("answer", "keys", "words"),
    [
        (lambda i: bool(i % 2), {"check": "exact"}, f"line 1: False; |; write true and false as text, {BY_REWARDS}"),
        (str, {"answer_boxed": True}, "; task.answer_boxed = true, and the first has no \\boxed{}; of 4"),
        (str, {"answer_after": "####"}, "; task.answer_after = '####', which the first has not; of 4"),
        (lambda i: ["1", i], {}, f"line 1: ['1', 0]; |name one entry, as task.answer = 'answer.0', {BY_REWARDS}"),
    ],
)
def test_an_answer_that_is_no_text_to_compare_with_is_refused_with_what_to_do(
    answer: Any, keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    line = refused(data(tmp_path, rows(answer=answer), **{"check": "math", **keys}))
    assert all(part in line for part in words.split("|"))


def test_an_entry_of_a_list_can_be_the_answer(tmp_path: Path) -> None:
    entry = data(tmp_path, rows(answer=lambda i: ["1", i]), check="numeric", answer="answer.1")
    assert first(entry).answer == "0"


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_float_of_any_width_is_the_decimal_that_was_written(kind: str, saved: bool, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    written = [0.1, 6.1, 2.5, 1e-3, None]
    own = pa.array(written, pa.type_for_alias(kind))
    lists = pa.array([[{"x": value}] for value in written], pa.list_(pa.struct([("x", own.type)])))
    maps = pa.array([[("x", value)] for value in written], pa.map_(pa.string(), own.type))
    columns = {"prompt": [f"{i}?" for i in range(5)], "answer": own, "inside": lists}
    table = pa.table(columns if saved else {**columns, "map": maps})  # the library `datasets` knows no maps
    path = tmp_path / ("folder" if saved else "rows.parquet")
    if saved:
        made = pytest.importorskip("datasets").Dataset(table)
        made.set_format("numpy")
        made.save_to_disk(str(path))
    else:
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    samples = by_key(Data(path=str(path), check="none", heldout_share=0.0))
    assert [sample.answer for sample in samples] == ["0.1", "6.1", "2.5", "0.001", ""]
    assert [sample.extra["inside"] for sample in samples] == [[{"x": value}] for value in written]
    assert saved or [sample.extra["map"] for sample in samples] == [[["x", value]] for value in written]


def test_dates_and_decimals_are_text_and_bytes_are_told(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "prompt": ["1?", "2?"],
        "answer": [decimal.Decimal("1.10")] * 2,
        "day": [datetime.date(2024, 1, 2)] * 2,
        "picture": [{"bytes": b"\x89PNG", "path": "a.png"}, None],
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    task = Data(path=str(tmp_path / "a.parquet"), heldout_share=0.0)
    sample = first(task)
    assert (sample.answer, sample.extra["day"]) == ("1.10", "2024-01-02")
    assert sample.extra["picture"] == {"bytes": None, "path": "a.png"}
    (told,) = changes(task)
    assert told.startswith("1 row: bytes, or what else is no text, in the column 'picture': left out, rewards get None")
    for keys in ({"prompt": "picture"}, {"prompt": "{prompt} {picture}"}, {"answer": "picture"}):
        assert "has bytes there" in refused(Data(path=str(tmp_path / "a.parquet"), **keys))


# Prompts.


def test_what_a_template_lacks_is_left_empty_and_told(tmp_path: Path) -> None:
    lines = rows(more=lambda i: None if i % 2 else "So:", choices=["a", True, {"b": 1.5}])
    task = data(tmp_path, lines, prompt="{prompt} {more}\n{choices}")
    samples = by_key(task)
    assert samples[1].prompt == '1? \nA. a\nB. true\nC. {"b": 1.5}'
    assert "null" not in "".join(sample.prompt for sample in samples)
    (told,) = changes(task)
    assert told == (
        "2 rows: nothing (null) in the column 'more' of task.prompt: left empty there "
        f"(first: {tmp_path / 'rows.jsonl'}, line 2)"
    )
    padded = data(tmp_path, rows(choices=["a", None]), prompt="{prompt}\n{choices}")
    assert first(padded).prompt == "0?\nA. a\nB. "
    assert changes(padded)[0].startswith("4 rows: nothing (null) in the column 'choices'")
    assert "empty; fill it" in refused(data(tmp_path, rows(more=None), prompt="{more}"))


def test_a_row_without_a_source_has_the_files_name_and_not_the_word_none(tmp_path: Path) -> None:
    task = data(tmp_path, rows(origin=lambda i: None if i else "web"), source="origin")
    assert {sample.source for sample in task.samples("train")} == {"web", "rows"}
    assert changes(task)[0].startswith("3 rows: nothing (null) in the column 'origin': 'rows' is their source")


def test_turns_keep_what_else_they_hold(tmp_path: Path) -> None:
    turns = [
        user("What time is it?"),
        assistant(None, tool_calls=[CALL], reasoning_content="I ask.", name=None),
        {"role": "tool", "content": "12:00", "tool_call_id": "1"},
    ]
    task = data(tmp_path, rows(prompt=lambda i: [*turns, user(f"And {i} later?")]))
    kept = first(task).messages
    assert kept[1] == assistant("", tool_calls=[CALL], reasoning_content="I ask.")
    assert kept[2] == turns[2]
    assert len(task.samples("train")) == 4
    assert not changes(task)


def of_other(name: str, inside: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", inside: {"city": name}}}


@pytest.mark.parametrize("of", ["calls", "schemas"])
def test_the_columns_of_a_table_do_not_leave_nulls(of: str, tmp_path: Path) -> None:
    """Every row of an Arrow file has the keys of all rows."""
    parquet, table = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow").Table
    if of == "calls":
        held, words = [[CALL], [of_other("Rome", "arguments")]], "arguments of a tool's call that are nothing (null)"
        chats = [[user("?"), assistant("", tool_calls=each), {"role": "tool", "content": "1"}] for each in held]
        lines = rows(2, prompt=lambda i: chats[i])
    else:
        held, words = [[CLOCK], [of_other("string", "parameters")]], "what the schema of a function holds as nothing"
        lines = rows(2, tools=lambda i: held[i])
    parquet.write_table(table.from_pylist(lines), tmp_path / "a.parquet")
    task = Data(path=str(tmp_path / "a.parquet"), check="none", heldout_share=0.0)
    samples = by_key(task)
    assert [list(s.messages[1]["tool_calls"] if of == "calls" else s.tools) for s in samples] == held
    assert changes(task)[0].startswith(f"2 rows: {words}")


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("prompt", ["What time is it?", [user("What time is it?")]])
def test_functions_that_a_row_offers_are_in_its_sample_and_tell_rows_apart(
    prompt: Any, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if again:
        monkeypatch.setattr(formats, "SMALL_FILE", 0)
    offered = [[CLOCK], json.dumps([{"name": "clock"}]), None, [], "", [CLOCK]]
    task = data(
        tmp_path, rows(6, prompt=prompt, answer="x", tools=lambda i: offered[i], worked="12"), solution="worked"
    )
    samples = by_key(task)
    assert [list(sample.tools) for sample in samples] == [[CLOCK], [{"name": "clock"}], []], "three problems, in frames"
    assert samples[0].extra["tools"] == [CLOCK], "rewards get the column too"
    assert {json.dumps(d.tools) for d in task.demonstrations(40, 0)} == {json.dumps(list(s.tools)) for s in samples}
    assert [note.partition(" (first")[0] for note in changes(task)] == [
        "1 row: functions that the policy may call, written as text: read as JSON"
    ]
    without = data(tmp_path, rows(6, prompt=prompt, answer="x", tools=lambda i: offered[i]), functions="")
    assert [sample.tools for sample in without.samples("train")] == [()]
    assert task.contents != without.contents


@pytest.mark.parametrize("value", ["hammer", ["hammer"], [{"type": "function"}], {"name": "clock"}, 3, [[]]])
def test_a_column_of_tools_that_holds_no_functions_is_told_or_refused_where_it_was_named(
    value: Any, tmp_path: Path
) -> None:
    task = data(tmp_path, rows(3, tools=value))
    assert first(task).tools == ()
    told = "3 rows: no list of functions in the column 'tools': not in the prompt, rewards get it as it is (first: "
    assert changes(task)[0].startswith(told)
    assert "line 1: task.functions = 'own'" in refused(data(tmp_path, rows(3, own=value), functions="own"))
    assert "task.functions = 'own': " in refused(data(tmp_path, rows(3), functions="own"))


def test_a_prompt_that_shows_the_functions_itself_offers_none(tmp_path: Path) -> None:
    task = data(tmp_path, rows(1, tools=[[CLOCK]]), prompt="{prompt} Use {tools}")
    assert first(task).tools == ()
    assert "clock" in first(task).prompt


def test_keywords_for_the_template_are_told_where_a_row_has_some(tmp_path: Path) -> None:
    task = data(tmp_path, rows(3, chat_template_kwargs=lambda i: [{"enable_thinking": False}, {}, None][i]))
    assert [note.partition(" (first")[0] for note in changes(task)] == [
        "1 row: 'chat_template_kwargs' is not given to the chat template, which reads chat.thinking of the recipe for "
        "every row"
    ]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"tools": [CLOCK]}, "functions of its own that the policy may call, and no environment answers such"),
        ({"prompt": [user("2 + 2?"), assistant("It is")]}, "its prompt begins the policy's turn, which no environment"),
    ],
)
def test_no_environment_plays_what_it_does_not_answer(columns: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = data(tmp_path, rows(**columns)).path
    keys = {"use": "recipes/guess_number.py:GuessNumber", "path": path, "check": "none"}
    assert words in refused(EnvironmentTask(**keys))
    assert "tools" not in columns or EnvironmentTask(**keys, functions="").samples("train")


def test_a_prompt_that_ends_with_the_assistant_is_continued_and_a_whole_conversation_is_not(tmp_path: Path) -> None:
    turns = [user("2 + 2?"), assistant("It is ")]
    prefilled = data(tmp_path, rows(1, prompt=turns, answer="4"), check="numeric", instruction=" Briefly.")
    sample = first(prefilled)
    assert list(sample.messages) == [user("2 + 2? Briefly."), turns[1]]
    assert (sample.prompt, sample.prefill) == ("2 + 2? Briefly.", "It is ")
    assert prefilled.score(sample, "4.") == prefilled.score(sample, prefilled.gold(sample)) == 1.0
    words = data(tmp_path, rows(1, prompt=[turns[0], assistant("It is")], answer="4"), check="numeric")
    assert words.gold(first(words)) == " 4"
    assert words.score(first(words), " 4") == 1.0
    assert changes(prefilled)[0].startswith("1 row: the prompt ends with the assistant's turn: the policy continues it")
    thought = data(tmp_path, rows(1, prompt=[turns[0], assistant("So", reasoning_content="2 and 2", name=None)]))
    lost = "1 row: the assistant's turn that ends the prompt holds reasoning_content beside its content: not read"
    assert changes(thought)[0].startswith(lost)
    whole = data(tmp_path, rows(1, chat=turns), messages="chat")
    assert list(first(whole).messages) == [turns[0]]
    assert changes(whole)[0].startswith("1 row: the conversation ends with the assistant's turn: left out")
    unfinished = data(tmp_path, rows(1, prompt=[user("2?"), assistant("<think>")], answer="5"), check="numeric")
    assert unfinished.score(first(unfinished), "2 + 3 = 5") == 0.0


def test_an_instruction_goes_to_the_user_and_not_into_what_a_tool_said(tmp_path: Path) -> None:
    turns = [user("What time is it?"), assistant("", tool_calls=[CALL]), {"role": "tool", "content": "12:00"}]
    sample = first(data(tmp_path, rows(1, prompt=turns), instruction=" Briefly."))
    assert list(sample.messages) == [user("What time is it? Briefly."), *turns[1:]]
    assert sample.prompt == "12:00"
    ended = [user("Hm?"), {"role": "system", "content": "Answer."}]
    assert first(data(tmp_path, rows(1, prompt=ended), instruction=" Go.")).messages[0] == user("Hm? Go.")


def test_files_of_verl_that_a_model_judges_have_no_gold_answers(tmp_path: Path) -> None:
    path = data(tmp_path, rows(prompt=lambda i: [user(f"{i}?")], reward_model={"style": "model"}, data_source="a")).path
    task = groupwise.task("verl", {"path": path, "check": "none", "heldout_share": 0.0})
    assert "ground_truth" not in VERL.arguments([Attempt(first(task), "")])
    some = [{"style": "rule", "ground_truth": "4"}, {"style": "model"}]
    path = data(tmp_path, rows(2, reward_model=lambda i: some[i], data_source="a")).path
    task = groupwise.task("verl", {"path": path, "check": "none", "heldout_share": 0.0})
    assert [VERL.arguments([Attempt(s, "")])["ground_truth"] for s in sorted(task.samples("train"), key=str)] == [
        "4",
        None,
    ]
    assert "1 row: no column 'reward_model.ground_truth' of a gold answer: rewards get None" in task.notes()
    assert "has no 'ground_truth'" in refused(groupwise.task("verl", {"path": path}))


def test_a_demonstration_is_of_the_whole_conversation(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, user("2 + 2?"), assistant("It is")]
    task = data(tmp_path, rows(1, prompt=turns, worked="It is 4."), solution="worked")
    (shown,) = task.demonstrations(1, seed=0)
    assert (list(shown.messages), shown.completion) == (turns, " 4.")


def test_a_conversation_written_as_text_is_read_and_told(tmp_path: Path) -> None:
    turns = [user("2 + 2?")]
    for keys in ({}, {"messages": "prompt"}):
        task = data(tmp_path, rows(2, prompt=lambda i: json.dumps([*turns, assistant("4"), user(f"{i}?")])), **keys)
        assert list(first(task).messages) == [*turns, assistant("4"), user("0?")]
        assert changes(task)[0].startswith("2 rows: a conversation, or calls of tools, written as text: read as JSON")
    for text in ("[0] is what?", '{"role": "knight"}', '[{"id": 0}]', 'Is [{"role": "user"}] JSON?'):
        assert first(data(tmp_path, rows(1, prompt=text))).prompt == text
    numbered = data(tmp_path, rows(1, prompt=json.dumps([{"id": 7, **user("2 + 2?")}])))
    assert list(first(numbered).messages) == [{**user("2 + 2?"), "id": 7}]
    called = assistant("", tool_calls=json.dumps([CALL]))
    task = data(tmp_path, rows(prompt=[*turns, called, {"role": "tool", "content": "1"}]))
    assert first(task).messages[1]["tool_calls"] == [CALL]


@pytest.mark.parametrize("times", [2, 3])
def test_a_conversation_that_was_encoded_again_is_read_and_told(times: int, tmp_path: Path) -> None:
    written: Any = [user("2 + 2?")]
    for _ in range(times):
        written = json.dumps(written)
    task = data(tmp_path, rows(2, prompt=written))
    assert list(first(task).messages) == [user("2 + 2?")]
    assert changes(task)[0].startswith("2 rows: a conversation written as text that was encoded as JSON again: read as")
    for text in ('"Two" or "2"?', json.dumps("2 + 2?"), json.dumps('Is [{"role": "user"}] JSON?')):
        assert first(data(tmp_path, rows(1, prompt=text))).prompt == text
    with pytest.raises(UsageError, match="a conversation written as text: not JSON"):
        data(tmp_path, rows(1, prompt=json.dumps(str([user("2?")])))).samples("train")


def test_parts_of_text_are_one_text_and_told(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "2 + 2"}, {"type": "input_text", "text": "is?"}]
    task = data(tmp_path, rows(1, prompt=[user(parts)]))
    assert first(task).prompt == "2 + 2\nis?"
    assert changes(task)[0].startswith("1 row: what a turn says comes in parts: put together into one text")


def test_a_prompt_that_shows_what_a_column_holds_is_refused_and_a_mark_alone_is_text(tmp_path: Path) -> None:
    for column, held in (("images", ["a.png"]), ("image", "a.png")):
        for prompt in ("<image>2 + 2?", [user("<image>2 + 2?")]):
            with pytest.raises(
                UsageError, match=f"line 1: the prompt shows <image>, and the column '{column}' holds it"
            ):
                data(tmp_path, rows(1, prompt=prompt, **{column: held})).samples("train")
    assert first(data(tmp_path, rows(1, prompt="<image>2 + 2?", images=[]))).prompt == "<image>2 + 2?"
    assert first(data(tmp_path, rows(1, prompt="2 + 2?", images=["a.png"]))).prompt == "2 + 2?"


REFUSED: dict[str, tuple[Any, str]] = {
    "picture": ([user([{"type": "image_url", "image_url": "a"}])], "turn 1: holds a part of type 'image_url'; a text"),
    "null": ([user(None)], "turn 1 ('user'): its content is nothing (null), not text"),
    "number": ([user("2?"), assistant(4), user("3?")], "turn 2 ('assistant'): its content is a number, not text"),
    "other keys": (
        [{"from": "human", "value": "?"}],
        'turn 1: must have a "role", as text, and a "content"; it has from',
    ),
    "empty": ([user("2?"), assistant("4"), user(" ")], "what the user says last is empty"),
    "no turn": ([], "a list, neither text nor a conversation; it is empty"),
    "a list of lists": ([[user("2?")]], "a list, neither text nor a conversation; its first entry is a list"),
    "answer alone": ([assistant("4")], "this is the assistant's alone"),
    "call last": ([user("2?"), assistant("", tool_calls=[CALL])], "ends with a call of a tool"),
    "call of nothing": (
        [user("2?"), assistant("", tool_calls=[{}]), user("3?")],
        "turn 2: tool_calls must be a list of",
    ),
    "picture beside a text": ([user([{"type": "text", "text": "2?", "image": "a.png"}])], "a part with image; a text"),
    "picture without a type": ([user([{"text": "2?", "image_url": {"url": "a"}}])], "holds a part with image_url; a"),
    "part without its text": ([user([{"type": "text", "text": None}])], "the text of a part is nothing (null); fill"),
    "ShareGPT's as text": (json.dumps([{"from": "human", "value": "2?"}]), "it has from, value; rename from and value"),
    "a turn as text": (json.dumps(user("2?")), "this is an object"),
    "a table of turns as text": (json.dumps({"messages": [user("2?")]}), "this is an object"),
    "Python's, another key first": (str([{"id": 1, **user("2?")}]), "this is Python's spelling: write it with json."),
    "Python's": (str([user("2?")]), "task.prompt = 'prompt', a conversation written as text: not JSON: Expecting"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_turn_that_no_text_model_reads_is_refused_by_its_row(name: str, tmp_path: Path) -> None:
    prompt, words = REFUSED[name]
    told = refused(data(tmp_path, [*rows(1), *rows(1, prompt=prompt)]))
    assert told.startswith(f"{tmp_path / 'rows.jsonl'}, line 2: task.prompt = 'prompt'")
    assert words in told


# One problem in two rows.


@pytest.mark.parametrize(
    "other",
    [
        "Café: 1 + 1?",
        "Cafe\u0301:  1 + 1?",
        [user("Café: 1 + 1?")],
        [{"role": "system", "content": "Be brief."}, user("Café: 1 + 1?")],
        [{"role": "developer", "content": "Be brief."}, user("Café: 1 + 1?"), assistant("It is")],
        json.dumps([user("Café: 1 + 1?")]),
        [user("Café: 1 + 1?") | {"id": "c81", "name": "ann"}],
        [user([{"type": "text", "text": "Café: 1 + 1?"}]) | {"tool_calls": []}],
    ],
)
def test_a_leak_is_found_behind_any_frame(other: Any, tmp_path: Path) -> None:
    held = data(tmp_path, rows(1, prompt="Café: 1 + 1?")).path
    path = Path(held).rename(tmp_path / "held.jsonl")
    task = data(tmp_path, [*rows(3), *rows(1, prompt=other)], heldout=str(path))
    assert len(task.samples("heldout")) == 0
    assert len(task.leaked) == 1


def test_rows_of_one_question_whose_turns_hold_other_things_stay_apart(tmp_path: Path) -> None:
    thoughts = [[user("2?"), assistant("4", reasoning_content=text), user("Sure?")] for text in ("a", "b", "b")]
    task = data(tmp_path, rows(3, prompt=lambda i: thoughts[i]))
    assert (len(task.samples("train")), len(task.repeated)) == (2, 1)


def test_one_question_in_two_frames_is_two_rows_of_one_split(tmp_path: Path) -> None:
    def framed(number: int, frame: int) -> list[dict[str, Any]]:
        return [{"role": "system", "content": f"Frame {frame}."}, user(f"What is {number} + 1?")]

    lines = [row for k in range(3) for row in rows(60, prompt=lambda i, k=k: framed(i, k))]
    task = data(tmp_path, lines, heldout_share=0.3)
    train, heldout = ({s.prompt for s in task.samples(split)} for split in ("train", "heldout"))
    assert len(task.samples("train")) + len(task.samples("heldout")) == 180
    assert len(train) + len(heldout) == 60
    assert heldout


def test_a_problem_with_two_answers_is_told_with_both(tmp_path: Path) -> None:
    lines = rows(6)
    lines[2:4] = [{"prompt": "1 ?", "answer": "6"}, {"prompt": "1 ?", "answer": "7"}]
    task = data(tmp_path, lines, check="numeric")
    (told,) = task.disputed
    assert told == "rows.jsonl:3: '6', rows.jsonl:4: '7'"
    assert f"1 problem has different gold answers ({told}): the first is kept; take the wrong rows out" in task.notes()
    lines[3]["answer"] = "6.0"
    assert not data(tmp_path, lines, check="numeric").disputed
    assert not data(tmp_path, lines, check="numeric", repeats=True).disputed


# Filters.


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({"ok": True}, 2),
        ({"ok": "TRUE"}, 1),
        ({"level": 3}, 1),
        ({"level": [1, 2.0]}, 2),
        ({"level": "3.0"}, 1),
        ({"id": 9007199254740993}, 1),
        ({"id": 12}, 0),
    ],
)
def test_a_filter_compares_what_the_text_of_a_csv_file_spells(wanted: Any, left: int, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    table = ["TRUE,3.0,9007199254740993", "false,2.0,9007199254740992", "true,1.0,1_2", "False,0.0,x"]
    path.write_text("prompt,answer,ok,level,id\n" + "".join(f"{i}?,1,{row}\n" for i, row in enumerate(table)))
    task = groupwise.task("data", {"path": str(path), "filter": wanted, "heldout_share": 0.0})
    if left:
        assert len(task.samples("train")) == left
        return
    with pytest.raises(UsageError, match="leaves none of the 4 rows; 'id' holds '9007199254740993', '9007"):
        task.samples("train")
