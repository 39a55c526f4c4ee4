"""Talk with a policy: turns that remember, answers that are the same streamed or not, and ends in order."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.cli import __main__ as cli
from groupwise.commands.chat import ChatOptions, Conversation, answer, opened, prompts_of, talk
from groupwise.core.errors import UsageError
from groupwise.core.machine.terminal import Terminal
from groupwise.core.processes.stop import Interrupted
from groupwise.models.tiny import ByteSpec, TinySpec
from tests.conftest import SMALL


@pytest.fixture(scope="module")
def with_template(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("chat") / "model"
    ByteSpec(chat=True, max_length=300).build("", folder, seed=0)
    return str(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plain") / "model"
    TinySpec(max_length=40).build("0123456789+-=", folder, seed=0)
    return str(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = {
        "runs": str(tmp_path_factory.mktemp("runs")),
        "warm_start.steps": 1,
        "steps": 2,
        "sampling.temperature": 0.5,
    }
    return groupwise.train("quickstart", overrides={**SMALL, **place}, quiet=True).folder


class Heard(list[str]):
    """Lines or pieces that were shown."""

    def __call__(self, text: str) -> None:
        self.append(text)

    @property
    def text(self) -> str:
        return "".join(self)


@contextmanager
def prompts_to(conversation: Conversation, sizes: list[int] | None = None) -> Iterator[list[str]]:
    """The prompts that the engine is given, as text, less what it has drawn of an answer; `sizes` get their tokens."""
    seen: list[str] = []
    generate = conversation.engine.generate

    def hear(requests: Any, *others: Any) -> Any:
        for request in requests:
            if sizes is not None:
                sizes.append(len(request.tokens) - request.drawn)
            text = conversation.policy.decode_all(request.tokens[: len(request.tokens) - request.drawn])
            seen.extend([text] if text not in seen else [])
        return generate(requests, *others)

    conversation.engine.generate = hear  # type: ignore[method-assign]
    yield seen


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.7, marks=pytest.mark.slow), 1.0])
def test_an_answer_is_the_same_streamed_or_at_once(temperature: float, with_template: str) -> None:
    """Bytes are tokens here: characters of several bytes are cut by pieces all the time, and shown whole."""
    for seed in range(5):
        options = ChatOptions(temperature, max_tokens=30 + seed, seed=seed)
        with opened(with_template, options, Heard()) as once, opened(with_template, options, Heard()) as streamed:
            for turn in ("2 + 3 = ?", "why?"):
                pieces = Heard()
                assert streamed.say(turn, pieces) == once.say(turn) == pieces.text
                assert len(pieces) > 1 or len(pieces.text) < 12


def test_a_turn_has_those_before_it_in_its_prompt(with_template: str) -> None:
    with opened(with_template, ChatOptions(max_tokens=8), Heard()) as conversation, prompts_to(conversation) as seen:
        first = conversation.say("one")
        conversation.say("two", Heard())
        conversation.answers("three")
    assert seen[1].startswith(seen[0])
    assert seen[1] == f"{seen[0]}{first}<|im_end|>\n" + seen[0].replace("one", "two")
    assert seen[2] == seen[0].replace("one", "three"), "an answer by itself knows of no conversation"


def test_without_a_template_a_prompt_is_continued_by_itself_and_that_is_said(plain: str) -> None:
    notes = Heard()
    with opened(plain, ChatOptions(max_tokens=8), notes) as conversation, prompts_to(conversation) as seen:
        conversation.say("1+1=")
        conversation.say("2+2=")
    assert seen == ["1+1=", "2+2="]
    assert conversation.messages == []
    assert notes == [f"{plain} has no chat template: each prompt is continued as plain text"]


def test_the_oldest_turns_go_where_the_model_has_no_room(with_template: str) -> None:
    notes, sizes = Heard(), list[int]()
    with (
        opened(with_template, ChatOptions(max_tokens=40), notes) as conversation,
        prompts_to(conversation, sizes) as seen,
    ):
        for turn in range(14):
            conversation.say(f"turn {turn}" + "." * (13 * turn % 50))
    assert "turn 0" not in seen[-1]
    assert "turn 13" in seen[-1]
    assert "left out: the model takes 300 tokens" in notes.text
    assert max(sizes) + 40 <= 300, "an answer of any length has room"


def test_an_answer_to_a_long_prompt_has_the_room_that_is_left(with_template: str) -> None:
    with opened(with_template, ChatOptions(max_tokens=200), Heard()) as conversation:
        assert [len(conversation.answers("x" * 250, count)) for count in (1, 3)] == [1, 3]
        conversation.say("x" * 250, Heard())
        assert conversation.messages[0]["content"] == "x" * 250


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("x" * 400, "the model takes 300 with the answer; shorten the prompt"),
        ("\udcff", "the prompt: the model's tokenizer cannot"),
    ],
)
def test_a_prompt_that_cannot_be_asked_is_one_line(prompt: str, words: str, with_template: str) -> None:
    with opened(with_template, ChatOptions(), Heard()) as conversation, pytest.raises(UsageError, match=words):
        conversation.say(prompt)


def test_the_seed_decides_the_answers(with_template: str) -> None:
    def said(seed: int, count: int = 3) -> str:
        shown = Heard()
        answer(with_template, ["hello"], count, ChatOptions(max_tokens=12, seed=seed), shown, Heard())
        return shown.text

    assert said(1) == said(1) != said(2)
    assert said(1).startswith("--- 1 of 3\n")
    assert "\n--- 3 of 3\n" in said(1)
    assert said(1, count=1) == said(1).partition("\n--- 2")[0].removeprefix("--- 1 of 3\n") + "\n"


def test_each_line_of_a_pipe_is_a_prompt() -> None:
    lines = io.BytesIO(b"\xef\xbb\xbfone\r\n\n  \ntwo words\nlast")
    assert list(prompts_of(lines)) == ["one", "two words", "last"]
    with pytest.raises(UsageError, match="stdin, line 2: not UTF-8 at byte 1; save it as UTF-8"):
        list(prompts_of([b"good\n", b"b\xffd\n"]))


def asks(*turns: str | BaseException) -> Callable[[str], str]:
    left = iter(turns)

    def ask(shown: str) -> str:
        turn = next(left)
        if isinstance(turn, BaseException):
            raise turn
        return turn

    return ask


@pytest.mark.parametrize("end", [EOFError(), KeyboardInterrupt(), Interrupted(signal.SIGINT)], ids=repr)
def test_a_conversation_goes_on_after_a_refused_turn_and_ends_in_order(end: BaseException, plain: str) -> None:
    shown, notes = Heard(), Heard()
    talk(plain, ChatOptions(max_tokens=4), asks("1+1=", "", "words", "2+2=", end), shown, notes)
    assert [note for note in notes if "cannot read it" in note] == notes[2:]
    assert shown.text.endswith("\n\n")
    assert shown.text.count("\n") == 3


def test_another_signal_ends_it_as_it_ends_every_command(plain: str) -> None:
    with pytest.raises(Interrupted) as ended:
        talk(plain, ChatOptions(), asks(Interrupted(signal.SIGTERM)), Heard(), Heard())
    assert ended.value.number == signal.SIGTERM


def test_a_run_is_asked_as_it_samples(run: Path) -> None:
    notes = Heard()
    with opened(f"{run}:1", ChatOptions(max_tokens=5), notes) as conversation:
        assert (conversation.sampling.temperature, conversation.sampling.max_new_tokens) == (0.5, 5)
        [line] = notes
        prompt = line.partition("look like ")[2].strip("'")
        assert line.startswith(f"{run}:1 has no chat template: ")
        assert len(conversation.answers(prompt, 3)) == 3
    with opened(str(run), ChatOptions(temperature=0.0), Heard()) as conversation:
        assert (conversation.sampling.temperature, conversation.sampling.max_new_tokens) == (0.0, 12)


def test_a_value_out_of_bounds_is_refused_before_the_model_loads() -> None:
    with (
        pytest.raises(UsageError, match=r"sampling.temperature = 0.001: must be 0, which is greedy, or at least 0.01"),
        opened("no/where", ChatOptions(temperature=0.001), Heard()),
    ):
        pass


def test_what_steers_a_terminal_is_shown_and_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().write("red \x1b[31m ")
    Terminal().write("end")
    assert capsys.readouterr().out == "red \\x1b[31m end"


class Stdin(io.BytesIO):
    """Standard input, of a person or a pipe."""

    def __init__(self, content: bytes, person: bool) -> None:
        super().__init__(content)
        self.buffer, self.person = self, person

    def isatty(self) -> bool:
        return self.person


def call(monkeypatch: pytest.MonkeyPatch, capfd: Any, *words: str, stdin: Stdin) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["groupwise", "chat", *words])
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    return int(leaving.value.code or 0), *capfd.readouterr()


def test_the_command(plain: str, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    few = ("--max-tokens", "3", "--temperature", "0")
    pipe, person = Stdin(b"1+1=\n2+2=\n", person=False), Stdin(b"", person=True)
    code, out, _ = call(monkeypatch, capfd, plain, *few, stdin=pipe)
    assert (code, out.count("\n")) == (0, 2)
    code, once, err = call(monkeypatch, capfd, plain, "-p", "1+1=", *few, stdin=person)
    assert (code, once, err.count("\n")) == (0, out.partition("\n")[0] + "\n", 1)
    code, several, _ = call(monkeypatch, capfd, plain, "-p", "1+1=", "-n", "2", *few, stdin=person)
    assert several == f"--- 1 of 2\n{once}--- 2 of 2\n{once}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("model", "-n", "2"), "give a prompt with -p"),
        (("model", "-p", " "), "the prompt is empty"),
        (("model", "-n", "0"), "-n"),
        (("model", "--seed", "-1"), "--seed"),
        (("x" * 5000, "-p", "1+1="), "File name too long"),
        (("x/" * 3000, "-p", "1+1="), "File name too long"),
        (("", "-p", "1+1="), "an empty path"),
    ],
)
def test_wrong_use_is_one_line(words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    code, out, err = call(monkeypatch, capfd, *words, stdin=Stdin(b"", person=True))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err
