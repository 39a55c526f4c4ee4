"""Chat templates as Qwen3, Llama 3 and SmolLM2 have them, less what a conversation of texts does not reach, and others
that cannot be appended to; each with a tokenizer that has its control tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

#: Thinking is taken out of answers before the user's last words (a tool's do not count); tools speak inside a turn of
#: the user's, neighbours in the same one; thinking that is off is an empty one, which the prompt opens and closes.
#: Without tools it writes what the model's own writes, to the character.
QWEN3 = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
    "{% endif %}"
    "{% set seen = namespace(last=messages | length - 1) %}"
    "{% for m in messages %}{% if m.role == 'user' and not (m.content.startswith('<tool_response>') and "
    "m.content.endswith('</tool_response>')) %}{% set seen.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.previtem is not defined or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{% if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% elif m.role == 'assistant' %}"
    "{% set thinks = '</think>' in m.content %}"
    "{% set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') if thinks else '' %}"
    "{% set said = m.content.split('</think>')[-1].lstrip('\\n') if thinks else m.content %}"
    "{% if loop.index0 > seen.last and (loop.last or thought) %}"
    "{{ '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' + said.lstrip('\\n') + '<|im_end|>\\n' }}"
    "{% else %}{{ '<|im_start|>assistant\\n' + said + '<|im_end|>\\n' }}{% endif %}"
    "{% elif m.role == 'user' or not loop.first %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)
#: Strips what is said; what a tool says is written as JSON, in a turn of the role ipython.
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\\n\\n' }}"
    "{{ (m.content | tojson if m.role == 'tool' else m.content | trim) + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
#: Begins with words of its own where there is no system prompt; reads no tools.
SMOLLM2 = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
#: Rewrites history: the more answers there are, the less of the first ones is left.
HOSTILE = SMOLLM2.replace(
    "m.content +", "(m.content[:2] if m.role == 'assistant' and loop.revindex > 2 else m.content) +"
)
#: Counts the user's turns, so that no two openings are alike.
COUNTS = SMOLLM2.replace("m.role + '\\n'", "m.role + (loop.index | string if m.role == 'user' else '') + '\\n'")
#: As the first of Llama's with tools have it.
DATED = "{{ strftime_now('%d %b %Y') }}" + SMOLLM2
REFUSES_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tool here') }}{% endif %}{% endfor %}"
)
SCHEMA = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_TAGS = ("<think>", "</think>", "<tool_response>", "</tool_response>")
#: How today's byte-level tokenizers cut text into words: a letter takes one character before it, digits stand alone.
_WORDS = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_TEXT = (
    "user assistant system ipython higher lower The answer is:right right \n\n \n ok. <|im_end|> <|eot_id|> tool {}\n"
)


@dataclass(frozen=True)
class Make:
    """What a model's folder says: its template, its special tokens and others, and which of them ends a turn."""

    template: str | None
    special: tuple[str, ...]
    end: str
    tags: tuple[str, ...] = ()
    bos: str | None = None


QWEN3_MAKE = Make(QWEN3, _CHATML, "<|im_end|>", _TAGS)
LLAMA3_MAKE = Make(LLAMA3, _LLAMA, "<|eot_id|>", bos="<|begin_of_text|>")
SMOLLM2_MAKE = Make(SMOLLM2, _CHATML, "<|im_end|>", bos="<|im_start|>")
PLAIN_MAKE = Make(None, _LLAMA, "<|end_of_text|>", bos="<|begin_of_text|>")


def tokenizer_of(make: Make) -> Any:
    """Byte-level BPE with merges across letters and white space; a new one at every call."""
    raw = Tokenizer.from_str(_trained(make.special))
    if make.bos == "<|begin_of_text|>":
        raw.post_processor = processors.TemplateProcessing(
            single=f"{make.bos} $0", special_tokens=[(make.bos, raw.token_to_id(make.bos))]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=make.end, bos_token=make.bos)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in make.tags])
    tokenizer.chat_template = make.template
    return tokenizer


@cache
def _trained(special: tuple[str, ...]) -> str:
    raw = Tokenizer(models.BPE(ignore_merges=True))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator([_TEXT] * 3, trainer)
    return raw.to_str()


def ends_of(tokenizer: Any) -> frozenset[int]:
    return frozenset({tokenizer.eos_token_id})
