"""Chat templates of several makes, with real tokenizers built here: what is rendered, and what the checks find."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from groupwise.core.collate import collate
from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.core.processes import trial
from groupwise.core.records import Group, Prompt
from groupwise.core.samples import Sample
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.chat.prompts import Chat, ChatSettings
from groupwise.models.chat.template_checks import TemplateFinding, check_chat, check_prompts, require_no_fatal
from groupwise.models.chat.thinking import answer_only, split_thinking
from groupwise.models.load import Policy, load_policy, prompt_ids
from groupwise.models.tiny import CHATML, ByteSpec, TinySpec
from groupwise.training.start.initial_policy import TINY

TURN = "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
OPENING = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#: Takes the thinking out of earlier answers, and writes an empty one where thinking is off.
THINKS = (
    "{% for m in messages %}{% if m['role'] == 'assistant' and not loop.last %}"
    "{{ '<|im_start|>assistant\\n' + m['content'].split('</think>')[-1].lstrip() + '<|im_end|>\\n' }}"
    "{% else %}" + TURN + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)
#: Writes BOS itself and strips what it is given.
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start|>' + m['role'] + '<|end|>\\n\\n' + m['content'] | trim + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}{% endif %}"
)
#: Has no generation prompt and needs none; refuses a system prompt.
INST = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% elif m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
DROPS_SYSTEM = "{% for m in messages %}{% if m['role'] != 'system' %}" + TURN + "{% endif %}{% endfor %}" + OPENING
LAST_ONLY = "{% for m in messages[-1:] %}" + TURN + "{% endfor %}" + OPENING
NO_PROMPT = "{% for m in messages %}" + TURN + "{% endfor %}"
SHOUTS = CHATML.replace("message['content']", "message['content'] | upper")
PLAIN_END = CHATML.replace("'<|im_end|>\\n'", "'\\n\\n'")
ENDS = CHATML.replace("assistant\\n'", "assistant\\n' + eos_token")
DATED = "{{ strftime_now('%Y') }}" + CHATML

ASKED = Sample("q1", "What is 2 + 3?", "5")
SYSTEM = ChatSettings(system="Be brief.")
TALK = Sample(
    "talk",
    "And 4 + 4?",
    "8",
    messages=(
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "And 4 + 4?"},
    ),
)
MARKS = ("<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>")


def tokenizer(template: Any, bos: str | None = None, adds: bool = False, eos: str = "<|im_end|>") -> Any:
    """Byte-level BPE with merges; `adds`: its post-processor puts the BOS in front."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<pad>", "<s>", "</s>", *MARKS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(["What is the answer? system user assistant question think " * 3], trainer)
    if adds:
        raw.post_processor = processors.TemplateProcessing(single="<s> $0", special_tokens=[("<s>", 1)])
    made = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token=eos, bos_token=bos)
    made.chat_template = template
    return made


def unknowing() -> Any:
    """A tokenizer that knows one word."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "?": 2}, unk_token="<unk>")),
        unk_token="<unk>",
        eos_token="<eos>",
    )


def ends(made: Any) -> frozenset[int]:
    return frozenset({made.eos_token_id})


def findings(made: Any, settings: ChatSettings | None = None, *samples: Sample) -> list[TemplateFinding]:
    return check_chat(Chat(made, settings), ends(made), samples or (ASKED,))


def only(found: Sequence[TemplateFinding], text: str) -> TemplateFinding:
    (one,) = [finding for finding in found if text in str(finding)]
    return one


# What is rendered.


@pytest.mark.parametrize("prompt", ["2+3=", "What is it?", " two\n\nlines ", "Größe \U0001f600"])
@pytest.mark.parametrize("adds", [False, True])
def test_without_a_template_the_ids_are_those_of_the_plain_prompt(prompt: str, adds: bool) -> None:
    made = tokenizer(None, bos="<s>", adds=adds)
    chat = Chat(made)
    assert list(chat.encode(Sample("k", prompt, ""))) == prompt_ids(made, [prompt])[0]
    assert chat.encode(Sample("k", prompt, "")).count(1) == adds
    assert chat.has_bos == adds


def test_without_a_template_an_end_that_the_tokenizer_adds_is_taken_off() -> None:
    made = tokenizer(None)
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$0 <|im_end|>", special_tokens=[("<|im_end|>", made.eos_token_id)]
    )
    assert made("ab")["input_ids"][-1] == made.eos_token_id
    assert Chat(made).encode(Sample("k", "ab", ""))[-1] != made.eos_token_id


def test_chatml_renders_system_question_and_the_start_of_an_answer() -> None:
    made = tokenizer(CHATML)
    chat = Chat(made, SYSTEM)
    assert made.decode(chat.encode(ASKED)) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "system prompt 'Be brief.'" in chat.describe()
    own = Sample("s", "?", "", messages=({"role": "system", "content": "Own."}, {"role": "user", "content": "?"}))
    assert "Be brief." not in chat.text(own)
    assert "Own." in chat.text(own)


def test_the_ids_are_those_of_the_template_as_transformers_applies_it() -> None:
    for made in (tokenizer(CHATML), tokenizer(LLAMA3, bos="<s>", adds=True, eos="<|eot|>"), tokenizer(THINKS)):
        theirs = made.apply_chat_template([dict(m) for m in TALK.messages], add_generation_prompt=True)["input_ids"]
        assert list(Chat(made).encode(TALK)) == theirs


def test_messages_of_the_sample_are_not_changed() -> None:
    before = [dict(m) for m in TALK.messages]
    Chat(tokenizer(CHATML), SYSTEM).encode(TALK)
    assert [dict(m) for m in TALK.messages] == before


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_one_bos_whether_template_or_tokenizer_writes_it(writes: bool, adds: bool) -> None:
    template = LLAMA3 if writes else LLAMA3.replace("{{ bos_token }}", "")
    ids = Chat(tokenizer(template, bos="<s>", adds=adds, eos="<|eot|>")).encode(ASKED)
    assert ids.count(1) == (writes or adds)
    assert (ids[0] == 1) == (writes or adds)


def test_thinking_goes_to_a_template_that_reads_it_and_is_refused_elsewhere() -> None:
    made = tokenizer(THINKS)
    assert Chat(made, ChatSettings(thinking="off")).text(ASKED).endswith("assistant\n<think>\n\n</think>\n\n")
    assert Chat(made, ChatSettings(thinking="on")).text(ASKED).endswith("assistant\n")
    with pytest.raises(UsageError, match=r"chat\.thinking = 'off': the chat template does not read enable_thinking"):
        Chat(tokenizer(CHATML), ChatSettings(thinking="off"))


@pytest.mark.parametrize("template", [None, CHATML])
def test_the_opening_of_an_answer_is_the_end_of_the_prompt(template: str | None) -> None:
    made = tokenizer(template)
    plain, opened = Chat(made), Chat(made, ChatSettings(open="<think>\n"))
    assert opened.text(ASKED) == plain.text(ASKED) + "<think>\n"
    assert made.decode(opened.encode(ASKED)) == opened.text(ASKED)
    assert "'<think>\\n', not trained" in opened.describe()


def test_a_template_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("Q: {{ messages[0]['content'] }}\n{% if add_generation_prompt %}A:{% endif %}")
    assert Chat(tokenizer(CHATML), ChatSettings(template=str(path))).text(ASKED) == "Q: What is 2 + 3?\nA:"
    assert Chat(tokenizer(CHATML), ChatSettings(template="none")).text(ASKED) == ASKED.prompt


def test_what_cannot_be_done_is_refused_in_one_line(tmp_path: Path) -> None:
    latin, broken = tmp_path / "latin.jinja", tmp_path / "broken.jinja"
    latin.write_bytes("Gr\xf6\xdfe".encode("latin-1"))
    broken.write_text("{% for m in messages %}")
    cases: list[tuple[str | None, dict[str, str], str]] = [
        (None, {"template": "tokenizer"}, "tokenizer has no chat template"),
        (None, {"system": "x"}, r"chat\.system is set, but there is no chat template"),
        (None, {"thinking": "on"}, r"chat\.thinking is set, but there is no chat template"),
        (CHATML, {"template": "tokeniser"}, "No such file.*did you mean 'tokenizer'"),
        (CHATML, {"template": str(tmp_path)}, "directory"),
        (CHATML, {"template": str(latin)}, "not UTF-8 at byte 2"),
        (CHATML, {"template": str(broken)}, "does not render it: TemplateSyntaxError"),
    ]
    for template, settings, message in cases:
        with pytest.raises(UsageError, match=message) as refused:
            Chat(tokenizer(template), ChatSettings(**settings))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("key", "value"), [("thinking", "of"), ("template", "")])
def test_settings_without_meaning_are_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ValidationError, match=key):
        ChatSettings.model_validate({key: value})


def test_a_sample_that_cannot_be_put_is_named() -> None:
    with pytest.raises(UsageError, match="sample talk: a conversation of 3 messages, but there is no chat template"):
        Chat(tokenizer(None)).encode(TALK)
    answered = dataclasses.replace(TALK, messages=TALK.messages[1:2])
    with pytest.raises(UsageError, match="sample talk: it has no message before the assistant's"):
        Chat(tokenizer(CHATML)).encode(answered)
    with pytest.raises(UsageError, match=r"sample q1: the chat template .* System role not supported"):
        Chat(tokenizer(INST, eos="</s>"), SYSTEM).encode(ASKED)
    with pytest.raises(UsageError, match="sample q1: the model's tokenizer cannot read it"):
        Chat(TinySpec(max_length=64).tokenizer("0123")).encode(ASKED)


CALLED = (
    {"role": "user", "content": "What time is it?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "clock", "arguments": {"zone": "UTC"}}}],
    },
    {"role": "tool", "content": "12:00", "name": "clock"},
)
_CALL = {"function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
#: The same with arguments that are text, and without the name.
WRITTEN = (CALLED[0], {**CALLED[1], "tool_calls": [_CALL]}, {"role": "tool", "content": "12:00"})
#: Writes the calls of a turn, as most templates do; what is not written as an object is written as JSON once more.
CALLS = CHATML.replace(
    "message['content']",
    "message['content'] + (message['tool_calls'] | tojson if message['tool_calls'] is defined else '')",
)


@pytest.mark.parametrize(("template", "opening"), [(CHATML, "<|im_start|>assistant\n"), (None, "")])
@pytest.mark.parametrize("open_", ["", "<think>\n"])
def test_a_prefill_is_the_end_of_the_prompt(template: str | None, opening: str, open_: str) -> None:
    chat = Chat(tokenizer(template), ChatSettings(open=open_))
    asked = Sample("k", "1 + 1?", "2", messages=({"role": "user", "content": "1 + 1?"},))
    begun = dataclasses.replace(asked, messages=(*asked.messages, {"role": "assistant", "content": "It is"}))
    assert chat.text(begun) == chat.text(asked) + "It is"
    assert chat.text(asked).endswith(opening + open_)
    assert begun.messages[-1] not in chat.messages(begun)
    assert chat.prompts([begun]) == [list(chat.encode(begun))]


def test_calls_of_tools_reach_the_template_or_the_sample_is_refused() -> None:
    sample = Sample("k", "12:00", "", messages=CALLED)
    assert '"name": "clock", "arguments": {"zone": "UTC"}' in Chat(tokenizer(CALLS)).text(sample)
    told = "sample k: an assistant's turn holds tool_calls, which the chat template .* does not read; set chat.template"
    with pytest.raises(UsageError, match=told):
        Chat(tokenizer(CHATML)).encode(sample)
    assert only(findings(tokenizer(CHATML), None, sample), "tool_calls").fatal
    needs = (
        "{% for m in messages %}{{ raise_exception('empty') if not m['content'] and not m['tool_calls'] }}{% endfor %}"
    )
    assert Chat(tokenizer(needs + CALLS)).text(sample)


CLOCK = {"type": "function", "function": {"name": "clock", "description": "Tells the time."}}
#: Writes what may be called into a system turn of its own.
OFFERS = "{% if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}" + CHATML


@pytest.mark.parametrize("several", [False, True], ids=["one template", "one for tools"])
def test_functions_of_a_sample_are_what_transformers_gives_the_template(several: bool) -> None:
    made = tokenizer({"default": CHATML, "tool_use": OFFERS} if several else OFFERS)
    chat, sample = Chat(made), dataclasses.replace(ASKED, tools=(CLOCK,))
    turns = [{"role": "user", "content": ASKED.prompt}]
    theirs = made.apply_chat_template(turns, tools=[CLOCK], tokenize=False, add_generation_prompt=True)
    assert chat.text(sample) == theirs
    assert "Tells the time." in theirs
    assert chat.text(ASKED) == made.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert Chat(made).text(ASKED) == chat.text(ASKED)
    begun = dataclasses.replace(sample, messages=(*turns, {"role": "assistant", "content": "It is"}))
    assert chat.text(begun) == theirs + "It is"
    assert not [found for found in findings(made, None, sample) if found.fatal]


@pytest.mark.parametrize(("template", "words"), [(CHATML, "reads no tools"), (None, "there is no chat template")])
def test_functions_of_a_sample_that_no_prompt_would_mention_are_refused(template: str | None, words: str) -> None:
    chat, sample = Chat(tokenizer(template)), dataclasses.replace(ASKED, tools=(CLOCK,))
    assert chat.text(ASKED)
    for _ in range(2):
        with pytest.raises(UsageError, match=f'^sample q1: .*{words}.*is clock;.*or task.functions = ""') as told:
            chat.text(sample)
        assert "\n" not in str(told.value)


def test_what_a_template_does_not_read_of_a_message_or_writes_otherwise_is_told() -> None:
    found = findings(tokenizer(CALLS), None, Sample("k", "12:00", "", messages=CALLED))
    assert not only(found, "does not read 'name' of its messages").fatal
    found = findings(tokenizer(CALLS), None, Sample("k", "12:00", "", messages=WRITTEN))
    assert "write them in the data as an object" in str(only(found, "writes the arguments of a call otherwise"))
    assert not any("does not read" in str(one) for one in found)


HEAVY = {
    "{{ 'a' * 10 ** 10 }}": "takes more than 1,024 MiB of memory",
    "{{ '%2000000000d' % 1 }}": "takes more than 1,024 MiB of memory",
    "{{ 'a'.ljust(3 * 10 ** 6) }}": "writes more than 1,048,576 characters",
    "{% set n = namespace(x='a') %}{% for i in range(50) %}{% set n.x = n.x ~ n.x %}{% endfor %}": "takes more than",
    "{{ 10 ** (10 ** 9) }}": "takes more than 1 seconds",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "takes more than 1 seconds",
    "{% generation %}{{ bos_token + 'a' * 10 ** 10 }}{% endgeneration %}": "MiB of memory",
    "{% if messages | length > 2 %}{{ ['a'] * 10 ** 10 }}{% endif %}{{ messages | tojson(indent=1) }}": "MiB of memory",
}


@pytest.mark.parametrize("template", HEAVY)
def test_a_template_that_takes_all_memory_or_time_is_refused_before_it_is_used(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SECONDS", 1.0)
    with pytest.raises(
        UsageError, match=rf"the chat template \(the tokenizer's own, .*\) .*{HEAVY[template]}"
    ) as refused:
        Chat(tokenizer(template, bos="<s>"))
    assert "\n" not in str(refused.value)


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    made = tokenizer(CHATML)
    made.chat_template = 5
    with pytest.raises(UsageError, match="chat_template is not text"):
        Chat(made)
    with pytest.raises(UsageError):
        Chat(tokenizer(CHATML + "{{ '\ud800' }}"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="not a regular file"):
        Chat(tokenizer(None), ChatSettings(template=str(tmp_path / "fifo")))
    for name, words in (("a\0b", "null byte"), ("b" * 5000, "too long")):
        with pytest.raises(ValidationError, match=words):
            ChatSettings(template=name)


# What the checks find.


@pytest.mark.parametrize(
    "made",
    [
        tokenizer(None),
        tokenizer(CHATML),
        tokenizer(LLAMA3, bos="<s>", adds=True, eos="<|eot|>"),
        tokenizer(INST, eos="</s>"),
        tokenizer(CHATML, bos="<|im_start|>"),  # a BOS that is the start of every turn, as some models have it
        ByteSpec(max_length=512, chat=True).tokenizer(""),
        TinySpec(max_length=64).tokenizer("What is 2+3?"),
    ],
    ids=["plain", "chatml", "llama3", "inst", "bos-is-turn", "tiny-chat", "characters"],
)
def test_a_good_template_has_no_findings(made: Any) -> None:
    assert findings(made) == []


def spaced_inst() -> Any:
    """A tokenizer that joins the space at a prompt's end to what an answer begins with."""
    made = tokenizer(INST.replace("[/INST]'", "[/INST] '").replace("' ' + m", "m"), eos="</s>")
    made.backend_tokenizer.add_tokens([" Z"])
    return made


def with_tokens(made: Any, special: bool, *tokens: str) -> Any:
    made.add_tokens([AddedToken(token, special=special) for token in tokens])
    return made


def lowercase() -> Any:
    made = tokenizer(CHATML)
    made.backend_tokenizer.normalizer = normalizers.Lowercase()
    return made


def asking(prompt: str) -> Sample:
    return dataclasses.replace(ASKED, prompt=prompt)


THINKING_OFF, TAGS = ChatSettings(thinking="off"), ("<think>", "</think>")
TURN_MARK = CHATML.replace("<|im_end|>", "<turn|>")
OPENS_WITH = CHATML.replace("'<|im_start|>assistant\\n'", "'<|im_start|>'")


def case(
    words: str, made: Any, settings: ChatSettings | None = None, *, asked: Sample = ASKED, fatal: bool = False
) -> Any:
    return pytest.param(made, settings, asked, fatal, words, id=words)


DROPS, REFUSES = tokenizer(DROPS_SYSTEM), tokenizer(INST, eos="</s>")


@pytest.mark.parametrize(
    ("made", "settings", "asked", "fatal", "words"),
    [
        case("chat template: drops the system prompt; ", DROPS, SYSTEM, fatal=True),
        case("prompt of sample q1: .*drops the system", DROPS, SYSTEM, fatal=True),
        case("drops the system prompt", DROPS),
        case("chat template: refuses the system prompt", REFUSES, SYSTEM, fatal=True),
        case("prompts: sample q1: the chat template", REFUSES, SYSTEM, fatal=True),
        case("template: drops the text of earlier answers", tokenizer(LAST_ONLY)),
        case("template: drops the text of earlier answers", tokenizer(LAST_ONLY), asked=TALK, fatal=True),
        case("template: drops what the user said in earlier turns", tokenizer(LAST_ONLY)),
        case("template: drops what the user said in earlier turns", tokenizer(LAST_ONLY), asked=TALK, fatal=True),
        case("sample talk: .* drops the user's text: 'What is 2", tokenizer(LAST_ONLY), asked=TALK, fatal=True),
        case("template: drops the user's text", tokenizer(CHATML.replace("message['content']", "''")), fatal=True),
        case(
            r"changes the user's text: 'er\\n\\n Zq4 a", tokenizer(SHOUTS.replace("| upper", "| replace('the', 'a')"))
        ),
        case("sample q1: the chat template changes the user's text", tokenizer(SHOUTS)),
        case(
            r"without a generation prompt: .* has '<\|im_end\|>\\n<\|im_start\|>assistant\\n' before the answer",
            tokenizer(NO_PROMPT),
            fatal=True,
        ),
        case("begins with 2 BOS", tokenizer("{{ bos_token }}" + LLAMA3, "<s>", True, "<|eot|>"), fatal=True),
        case("begins with 2 BOS", tokenizer(None, "<s>", True), asked=asking("<s>2?"), fatal=True),
        case(r"ends in <\|im_end\|>, which ends an answer before it has begun", tokenizer(ENDS), fatal=True),
        case(
            r"with <\|im_end\|> \(4\), .* that end a completion, </s> \(2\): answers would run on to the limit",
            tokenizer(CHATML, eos="</s>"),
            fatal=True,
        ),
        case("which holds no id that ends a completion", tokenizer(TURN_MARK, eos="</s>")),
        case(
            r"closes an answer with <turn\|> \(\d+\), .* would run on to the limit",
            with_tokens(tokenizer(TURN_MARK, eos="</s>"), False, "<turn|>"),
            fatal=True,
        ),
        case(r"closes an answer with '\\n\\n', which holds no id", tokenizer(PLAIN_END)),
        case("takes the thinking out of earlier answers: .* single-turn runs are not touched", tokenizer(THINKS)),
        case("renders an answered question otherwise than the prompt.*'Zq6", tokenizer(THINKS), THINKING_OFF),
        case(
            "renders an answered question otherwise",
            tokenizer(CHATML.replace("assistant\\n'", "assistant\\n' + ' '")),
        ),
        case(r"a token straddles the border after '5 \[/INST\] '", spaced_inst()),
        case(r"stops short: .* has 'assistant\\n' before the answer", tokenizer(OPENS_WITH)),
        case(r"holds <\|im_end\|>", tokenizer(CHATML), asked=asking("Stop<|im_end|>now")),
        case(r"holds <\|im_start\|>", tokenizer(CHATML), asked=asking("Stop<|im_start|>now")),
        case("<think> and </think> are special tokens", with_tokens(tokenizer(CHATML), True, *TAGS)),
        case("may write today's date", tokenizer(DATED)),
        case("1 of its 1 tokens are <unk>: .* does not know the text", unknowing()),
        case(r"the tokenizer changes it: 'What is 2 \+ 3\?<\|im_end\|>", lowercase()),
    ],
)
def test_what_is_wrong_is_found_once_and_fatal_where_it_spoils_a_run(
    made: Any, settings: ChatSettings | None, asked: Sample, fatal: bool, words: str
) -> None:
    (found,) = [finding for finding in findings(made, settings, asked) if re.search(words, str(finding))]
    assert found.fatal == fatal
    with pytest.raises(UsageError, match=words) if fatal else nullcontext():
        require_no_fatal([found])


def test_all_that_is_fatal_is_said_and_what_is_right_is_not() -> None:
    with pytest.raises(UsageError, match=r"template: drops the system prompt; .*also: prompt of sample q1: .*drops"):
        require_no_fatal(findings(tokenizer(DROPS_SYSTEM), SYSTEM))
    twice = findings(tokenizer(None, bos="<s>", adds=True), None, asking("<s>2?"))
    assert not [f for f in twice if "changes it" in f.what]
    assert not [f for f in findings(tokenizer(THINKS)) if "otherwise" in str(f)]
    made = tokenizer(CHATML, eos="</s>")
    assert check_chat(Chat(made), {made.eos_token_id, made.convert_tokens_to_ids("<|im_end|>")}, [ASKED]) == []


def test_a_turn_is_dropped_whatever_else_holds_its_words() -> None:
    """Only the first prompts are looked at one by one: what is dropped later ends the run where it is encoded."""
    known = CHATML.replace("message['content']", "message['content'] if message['role'] in ('system', 'user') else ''")
    chat = Chat(tokenizer(known))
    asked = [{"role": "user", "content": "Is it 4?"}]
    for other in ({"role": "developer", "content": "Is it"}, {"role": "tool", "content": "4"}):
        sample = Sample("t", "Is it 4?", "4", messages=(other, *asked))
        (found,) = [f for f in check_chat(chat, ends(chat.tokenizer), (sample,)) if f.fatal]
        assert f"the chat template drops the {other['role']}'s text: '{other['content']}'" in found.what
        with pytest.raises(UsageError, match=f"^sample t: the chat template .* drops the {other['role']}'s text: '"):
            chat.encode(sample)
    chat.encode(Sample("u", "Is it 4?", "4", messages=({"role": "system", "content": "Is it"}, *asked)))
    plain = Chat(tokenizer(None))
    assert plain.dropped([{"role": "tool", "content": "4"}]) is None


@pytest.mark.parametrize("template", [CHATML, INST, NO_PROMPT])
def test_an_opening_of_answers_does_not_hide_or_make_a_finding(template: str) -> None:
    made = tokenizer(template, eos="</s>" if template == INST else "<|im_end|>")
    plain, opened = findings(made), findings(made, ChatSettings(open="<think>\n"))
    assert [f.fatal for f in opened if f.fatal] == [f.fatal for f in plain if f.fatal]


def test_an_empty_prompt_is_fatal_and_each_kind_is_told_once() -> None:
    made = tokenizer(None)
    found = check_prompts(Chat(made), ends(made), [Sample("a", "", ""), Sample("b", "", ""), ASKED])
    assert [(f.where, f.what, f.fatal) for f in found] == [("prompt of sample a", "it has no tokens", True)]


def test_every_message_of_the_page_is_said() -> None:
    """docs/howto/chat.md quotes each finding as it is printed, and says whether it stops the run."""
    said = [
        finding
        for found in (
            findings(tokenizer(DROPS_SYSTEM), SYSTEM),
            findings(tokenizer(LAST_ONLY), None, TALK),
            findings(tokenizer(NO_PROMPT)),
            findings(tokenizer(CHATML, eos="</s>")),
            findings(tokenizer(None, bos="<s>", adds=True), None, dataclasses.replace(ASKED, prompt="<s>2")),
            findings(tokenizer(ENDS)),
            findings(tokenizer(None), None, Sample("a", "", "")),
            findings(tokenizer(THINKS)),
            findings(spaced_inst()),
            findings(tokenizer(PLAIN_END)),
            findings(tokenizer(DATED)),
            findings(tokenizer(CHATML), None, dataclasses.replace(ASKED, prompt="Stop<|im_end|>now")),
            findings(with_tokens(tokenizer(CHATML), True, *TAGS)),
            findings(unknowing()),
            findings(tokenizer(CALLS), None, Sample("called", "12:00", "", messages=CALLED)),
            findings(tokenizer(CALLS), None, Sample("text", "12:00", "", messages=WRITTEN)),
        )
        for finding in found
    ]
    page = (
        (Path(__file__).parents[2] / "docs" / "howto" / "chat.md")
        .read_text(encoding="utf-8")
        .partition("\n## Turns\n")[0]
    )
    shown = re.findall(r"^\| `([^`]+)` \| (error|warning) \|", page, re.MULTILINE)
    assert len(shown) == 16
    assert [
        (words, level)
        for words, level in shown
        if not any(words in str(finding) and finding.fatal == (level == "error") for finding in said)
    ] == []


# The tiny models for text and for chat.


@pytest.fixture(scope="module")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("chat")
    dataclasses.replace(TINY["tiny-chat"], initializer_range=0.02, max_length=256).build("", folder, seed=0)
    return load_policy(folder)


def test_the_ids_trained_are_the_ids_sampled(tiny_chat: Policy) -> None:
    """Prompt and completion lie side by side in the batch as they were; nothing is rendered or encoded again."""
    chat = Chat(tiny_chat.tokenizer, SYSTEM)
    engine = LocalEngine(tiny_chat.model, tiny_chat.eos, tiny_chat.pad)
    prompt = Prompt(ASKED, chat.encode(ASKED))
    (done,) = engine.generate([Request(prompt.tokens, 64, seed=1)], Sampling(max_new_tokens=48))
    batch = collate([Group(prompt, tuple(dataclasses.replace(c, score=0.0) for c in done))], tiny_chat.pad)
    for row, mask, completion in zip(batch.tokens, batch.mask, done, strict=True):
        assert tuple(row[mask].tolist()) == completion.tokens
        assert tuple(row[: len(prompt.tokens)].tolist()) == prompt.tokens
    assert {c.tokens[-1] for c in done if c.finish == "stop"} == tiny_chat.eos  # both of its ends are honoured
    again = [
        tuple(chat.tokenizer(chat.tokenizer.decode(c.tokens, skip_special_tokens=True))["input_ids"]) for c in done
    ]
    assert again != [c.tokens for c in done]  # random bytes do not survive a detour by text: the law says something


def test_the_tiny_chat_model_passes_its_own_checks_and_survives_saving(tiny_chat: Policy) -> None:
    chat = Chat(tiny_chat.tokenizer, SYSTEM)
    assert check_chat(chat, tiny_chat.eos, [ASKED, TALK]) == []
    assert {tiny_chat.tokenizer.convert_ids_to_tokens(i) for i in tiny_chat.eos} == {"<|im_end|>", "<eos>"}
    assert tiny_chat.tokenizer.chat_template == CHATML


@pytest.mark.parametrize(
    "text", ["abc", " Größe\t\n", "\U0001f600\u200d日本 \x00\x7f", "a<pad", "".join(map(chr, range(300)))]
)
def test_any_text_goes_in_and_comes_back_a_token_a_byte(text: str) -> None:
    made = ByteSpec(max_length=512).tokenizer("")
    ids = made(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert made.decode(ids) == text


def test_every_byte_has_its_own_id_and_specials_are_left_out() -> None:
    made = ByteSpec(max_length=512, chat=True).tokenizer("")
    assert len(made) == 260
    assert made.decode([*made("hi")["input_ids"], *made.all_special_ids], skip_special_tokens=True) == "hi"
    assert made.convert_tokens_to_ids(["<pad>", "<eos>"]) == [0, 1]


@pytest.mark.parametrize("name", ["tiny-bytes", "tiny-chat"])
def test_the_tiny_models_for_text_are_the_same_bits_every_time(name: str, tmp_path: Path) -> None:
    for part in "ab":
        TINY[name].build("", tmp_path / part, seed=5)
    TINY[name].build("", tmp_path / "c", seed=6)
    files = sorted(f.name for f in (tmp_path / "a").iterdir())
    assert [(tmp_path / "a" / f).read_bytes() for f in files] == [(tmp_path / "b" / f).read_bytes() for f in files]
    assert (tmp_path / "a/model.safetensors").read_bytes() != (tmp_path / "c/model.safetensors").read_bytes()
    assert load_policy(tmp_path / "a").positions == 2048
    assert (TINY[name].rope_theta, isinstance(TINY[name], ByteSpec)) == (10000.0, True)


def test_a_character_model_refuses_a_task_without_an_alphabet(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use model = 'tiny-bytes'"):
        TINY["tiny-dense"].build("", tmp_path, seed=0)


# Thinking.


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>a</think>b", False, ("a", "b")),
        ("a</think>\n\nb ", True, ("a", "b")),
        ("a</think>b</think>c", True, ("a</think>b", "c")),
        ("<think>a</think>b<think>c", False, ("a</think>b<think>c", "")),
        ("<think>a", False, ("a", "")),
        ("a", True, ("a", "")),
        ("a", False, ("", "a")),
        ("", False, ("", "")),
        ("7 <think>8", False, ("7 <think>8", "")),
    ],
)
def test_thinking_and_answer_are_told_apart(text: str, opened: bool, expected: tuple[str, str]) -> None:
    assert split_thinking(text, opened=opened) == expected
    assert answer_only(text, opened=opened) == expected[1]


def test_a_template_that_an_editor_marked_does_not_put_the_mark_into_prompts(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{% for m in messages %}\n{{ m.content }}{% endfor %}", encoding="utf-8-sig", newline="\r\n")
    assert (
        Chat(tokenizer(None), ChatSettings(template=str(path))).template
        == "{% for m in messages %}\n{{ m.content }}{% endfor %}"
    )
    path.write_text("{{ messages }}", encoding="utf-16")
    with pytest.raises(UsageError, match="it is saved as UTF-16 or UTF-32; save it as UTF-8"):
        Chat(tokenizer(None), ChatSettings(template=str(path)))
