"""Templates of several makes, looked at for episodes of many turns: which can be appended to, and what others hear."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from groupwise.core.environment import Says
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.models.chat.later_turns import Glue
from groupwise.models.chat.prompts import Chat, ChatSettings
from groupwise.models.chat.template_checks import TemplateFinding
from groupwise.models.chat.turn_checks import check_turns
from groupwise.models.tiny import ByteSpec
from tests.models.turn_templates import (
    COUNTS,
    DATED,
    HOSTILE,
    LLAMA3_MAKE,
    PLAIN_MAKE,
    QWEN3_MAKE,
    REFUSES_TOOLS,
    SCHEMA,
    SMOLLM2,
    SMOLLM2_MAKE,
    Make,
    ends_of,
    tokenizer_of,
)

ROOT = Path(__file__).parents[2]
BOTH = ("user", "tool")


def findings(
    make: Make | str, roles: tuple[str, ...] = BOTH, history: str = "refuse", thinking: str = ""
) -> list[TemplateFinding]:
    """Of a make, or of a template with SmolLM2's tokens."""
    whole = Make(make, SMOLLM2_MAKE.special, "<|im_end|>") if isinstance(make, str) else make
    tokenizer = tokenizer_of(whole)
    return check_turns(Chat(tokenizer, ChatSettings(thinking=thinking)), ends_of(tokenizer), roles, history)  # type: ignore[arg-type]


@pytest.mark.parametrize("history", ["refuse", "grow"])
def test_templates_that_append_have_no_findings(history: str) -> None:
    for make in (LLAMA3_MAKE, SMOLLM2_MAKE, PLAIN_MAKE):
        assert findings(make, history=history) == []
    tiny = ByteSpec(max_length=512, chat=True).tokenizer("")
    assert check_turns(Chat(tiny), ends_of(tiny), BOTH, history) == []


@pytest.mark.skipif(not (ROOT / "models" / "smollm2").exists(), reason="models/smollm2 is not here")
def test_the_real_smollm2_can_be_appended_to() -> None:
    real = AutoTokenizer.from_pretrained(ROOT / "models" / "smollm2")
    assert check_turns(Chat(real), ends_of(real), BOTH, "refuse") == []


@pytest.mark.parametrize("history", ["refuse", "grow"])
@pytest.mark.parametrize(
    ("template", "words"),
    [
        (HOSTILE, "renders earlier turns anew after a message of role user: "),
        (SMOLLM2.replace("m.content +", "(m.content if loop.revindex < 4 else '...') +"), "renders earlier turns anew"),
        ("{{ messages | length }} messages\n" + SMOLLM2, "renders earlier turns anew"),
        (COUNTS, "writes other text between later turns than between the first two"),
        (DATED, "writes today's date"),
        (SMOLLM2.replace("m.content +", "(m.content if m.role == 'user' else '') +"), "drops or changes earlier"),
        (REFUSES_TOOLS + SMOLLM2, "does not go on after a message of role tool: .* no tool here"),
    ],
    ids=["hostile", "forgets", "counts messages", "numbers turns", "dated", "drops answers", "refuses tools"],
)
def test_a_template_that_rewrites_is_refused_with_the_remedy(template: str, words: str, history: str) -> None:
    first = findings(template, history=history)[0]
    assert first.fatal
    assert re.search(words, str(first))
    assert "chat.template to" in first.remedy
    assert "\n" not in str(first)


def test_only_the_roles_that_the_environment_has_are_looked_at() -> None:
    assert findings(REFUSES_TOOLS + SMOLLM2, ("user",)) == []
    crowd = SMOLLM2.replace("{% for m", "{% for m", 1) + (
        "{% for m in messages %}{% if m.role == 'tool' and loop.previtem.role == 'tool' %}"
        "{{ raise_exception('one tool at a time') }}{% endif %}{% endfor %}"
    )
    assert findings(crowd, ("user",)) == []
    assert "after tool and tool messages" in str(findings(crowd, ("tool",))[0])


@pytest.mark.parametrize("thinking", ["", "on", "off"])
def test_thoughts_taken_out_of_earlier_turns_are_fatal_unless_episodes_grow(thinking: str) -> None:
    (fatal,) = findings(QWEN3_MAKE, ("user",), thinking=thinking)
    assert fatal.fatal
    assert "takes the thinking out of earlier turns" in fatal.what
    assert 'task.history = "grow"' in fatal.remedy
    assert "chat.template to one that only appends" in fatal.remedy
    (note,) = findings(QWEN3_MAKE, ("user",), history="grow", thinking=thinking)
    assert not note.fatal
    assert note.what == fatal.what


@pytest.mark.parametrize(("thinking", "fatal"), [("", 0), ("on", 0), ("off", 1)])
def test_thoughts_stay_between_the_answers_of_tools_and_empty_ones_do_not(thinking: str, fatal: int) -> None:
    """An empty thought that the prompt opens and closes is not in the next prompt, whoever speaks."""
    assert sum(finding.fatal for finding in findings(QWEN3_MAKE, ("tool",), thinking=thinking)) == fatal


def test_a_template_that_takes_out_more_than_thoughts_is_refused_also_where_episodes_grow() -> None:
    both = QWEN3_MAKE.template or ""
    shorter = Make(both.replace("+ said +", "+ said[:3] +"), QWEN3_MAKE.special, "<|im_end|>", QWEN3_MAKE.tags)
    for history in ("refuse", "grow"):
        assert findings(shorter, ("user",), history)[0].fatal


@pytest.mark.parametrize(
    ("make", "roles"),
    [(QWEN3_MAKE, BOTH), (COUNTS, BOTH), ("{{ messages | length }} messages\n" + SMOLLM2, BOTH), (SMOLLM2_MAKE, BOTH)],
    ids=["takes out thoughts", "numbers turns", "counts messages", "appends"],
)
@pytest.mark.parametrize("thinking", ["", "on", "off"])
def test_where_each_prompt_is_rendered_anew_these_pass(make: Make | str, roles: tuple[str, ...], thinking: str) -> None:
    thinking = thinking if make is QWEN3_MAKE else ""
    assert findings(make, roles, history="rewrite", thinking=thinking) == []
    for first in findings(make, roles, thinking=thinking)[:1]:
        assert not first.fatal or 'task.history = "rewrite"' in first.remedy


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (HOSTILE, "drops earlier turns"),
        (DATED, "today's date"),
        (SMOLLM2.replace("m.role +", "m.role + ('!' if 'y' in m.content else '') +"), "by what"),
    ],
    ids=["hostile", "dated", "by its words"],
)
def test_a_template_whose_turns_depend_on_their_words_is_refused_where_prompts_are_rendered_anew_too(
    template: str, words: str
) -> None:
    first = findings(template, history="rewrite")[0]
    assert first.fatal
    assert words in first.what
    assert all('task.history = "rewrite"' not in finding.remedy for finding in findings(template))


def test_what_refuses_a_run_is_said_before_what_is_only_noted() -> None:
    template = REFUSES_TOOLS + (QWEN3_MAKE.template or "")
    both = findings(Make(template, QWEN3_MAKE.special, "<|im_end|>", QWEN3_MAKE.tags), ("user", "tool"), history="grow")
    assert [finding.fatal for finding in both] == [True, False]


def test_a_tokenizer_that_cannot_tell_text_from_control_tokens_is_refused() -> None:
    chat = Chat(tokenizer_of(SMOLLM2_MAKE))

    class Slow:
        backend_tokenizer = None

    chat.tokenizer = Slow()
    (finding,) = check_turns(chat, frozenset({1}), BOTH, "grow")
    assert finding.fatal
    assert "tokenizer.json" in finding.what


def test_what_passes_is_what_an_episode_really_is() -> None:
    """The claim of the check itself: the prompts of a template without findings are those that glue grows."""
    for make in (LLAMA3_MAKE, SMOLLM2_MAKE):
        tokenizer = tokenizer_of(make)
        chat, end = Chat(tokenizer), tokenizer.eos_token_id
        glue, question = Glue(chat, ends_of(tokenizer)), Sample("q", "Guess.", "")
        ids, talk = list(chat.encode(question)), list(chat.messages(question))
        for t in range(5):
            turn = [*tokenizer(f"Is it {t}?", add_special_tokens=False)["input_ids"], end]
            ids += [*turn, *glue.glue(turn, [Says("user", "higher")])]
            talk += [{"role": "assistant", "content": f"Is it {t}?"}, {"role": "user", "content": "higher"}]
            assert tuple(ids) == chat.ids(chat.render(talk))


def test_every_message_of_the_page_is_said() -> None:
    """docs/howto/chat.md quotes each finding of "Turns" as it is printed, and says whether it stops the run."""
    said = [
        (str(finding), finding.fatal)
        for found in (
            findings(HOSTILE),
            findings(COUNTS),
            findings(DATED),
            findings(REFUSES_TOOLS + SMOLLM2, ("tool",)),
            findings(QWEN3_MAKE, ("user",)),
            findings(QWEN3_MAKE, ("user",), history="grow"),
            findings(HOSTILE, ("user",), history="rewrite"),
        )
        for finding in found
    ]
    with pytest.raises(UsageError) as refused:
        Chat(tokenizer_of(SMOLLM2_MAKE), None, [SCHEMA])
    said.append((str(refused.value), True))
    page = (
        (ROOT / "docs" / "howto" / "chat.md")
        .read_text(encoding="utf-8")
        .partition("\n## Turns\n")[2]
        .partition("\n## ")[0]
    )
    shown = re.findall(r"^\| `([^`]+)` \| (error|warning) \|", page, re.MULTILINE)
    assert len(shown) == 7
    assert [
        (words, level)
        for words, level in shown
        if not any(words in line and fatal == (level == "error") for line, fatal in said)
    ] == []
