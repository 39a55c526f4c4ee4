"""Chat templates that do what known models' do, written anew, and random conversations to put into them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

#: As Qwen3: thinking stays in answers after the last question of the user's and is taken out of those before it; tools
#: answer inside a turn of the user's; enable_thinking = false begins each answer with an empty thought.
QWEN3 = (
    "{% set asked = namespace(at=messages | length - 1) %}"
    "{% for m in messages %}{% if m.role == 'user' and not (m.content.startswith('<tool_response>') and "
    "m.content.endswith('</tool_response>')) %}{% set asked.at = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}{{ '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}"
    "{{ messages[0].content + '\\n\\n' }}{% endif %}{{ 'Functions:' }}{% for tool in tools %}"
    "{{ '\\n' + tool | tojson }}{% endfor %}{{ '\\nCall as <tool_call>JSON</tool_call><|im_end|>\\n' }}"
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
    "{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% elif m.role == 'assistant' %}"
    "{% set said = m.content.split('</think>')[-1].lstrip('\\n') if '</think>' in m.content else m.content %}"
    "{% set thought = m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n')"
    " if '</think>' in m.content else '' %}"
    "{% set keeps = loop.index0 > asked.at and (loop.last or thought) %}"
    "{{ '<|im_start|>assistant\\n' }}"
    "{% if keeps %}{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said.lstrip('\\n') }}"
    "{% else %}{{ said }}{% endif %}{{ '<|im_end|>\\n' }}"
    "{% elif m.role == 'user' or not loop.first %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)
#: As Llama 3: BOS of its own, text without the white space around it; as 3.1, what a tool says is quoted.
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + m.content | tojson + '<|eot_id|>' }}{% else %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
#: As SmolLM2-135M-Instruct: ChatML with a system prompt where the conversation has none.
SMOLLM2 = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou answer in short.<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
#: A turn's end that is plain text and a control token, and texts in brackets, as Mistral's: no generation prompt.
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|endoftext|>")
#: Added and not special, as Qwen3 has them.
ORDINARY = ("<think>", "</think>", "<tool_call>", "</tool_call>")
#: What is one word: marks take the line ends after them, as those of Qwen3 and Llama 3 do.
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tokenizer(template: str | None, eos: str = "<|im_end|>", bos: str | None = None) -> Any:
    """Byte-level BPE with merges over white space and marks, so that texts beside each other share tokens."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=["<pad>", "<s>", "</s>", *SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = (
        '\n\n\n<tool_response>\n\n higher </tool_response>\n  user [INST]  ."  \n\nassistant\n>>\n<<< "quoted" \n\n\n'
    )
    raw.train_from_iterator([text * 3], trainer)
    built = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token=eos, bos_token=bos)
    built.add_tokens([AddedToken(token, special=False) for token in ORDINARY])
    built.chat_template = template
    return built


@dataclass(frozen=True)
class Make:
    """A template with what its tokenizer needs; `role` is the environment's, `bare`: it strips what is said."""

    template: str
    role: str = "user"
    eos: str = "<|im_end|>"
    bos: str | None = None
    bare: bool = False
    thinks: bool = False

    def tokenizer(self) -> Any:
        return tokenizer(self.template, self.eos, self.bos)


#: Templates that only append.
MAKES = {
    "qwen3, tools": Make(QWEN3, "tool"),
    "qwen3, tools and thinking": Make(QWEN3, "tool", thinks=True),
    "llama3": Make(LLAMA3, eos="<|eot_id|>", bos="<s>", bare=True),
    "llama3, tools": Make(LLAMA3, "tool", eos="<|eot_id|>", bos="<s>", bare=True),
    "smollm2": Make(SMOLLM2),
    "smollm2, tools": Make(SMOLLM2, "tool"),
    "brackets": Make(BRACKETS, eos="</s>"),
}

WORDS = (
    "higher",
    "lower",
    " ",
    "\n",
    "\n\n",
    "  ",
    "<",
    ">",
    "|",
    '"',
    "\\",
    "\t",
    "7",
    "42",
    "Größe",
    "日本",
    "\U0001f600",
    ".",
    "im_end",
    "think",
)


def clean(draw: random.Random, most: int = 6) -> str:
    """A random text without control tokens; white space and marks anywhere in it, and perhaps nothing at all."""
    text = "".join(draw.choice(WORDS) for _ in range(draw.randrange(most + 1)))
    return clean(draw, most) if any(token in text for token in (*SPECIAL, *ORDINARY)) else text


def answer(draw: random.Random, make: Make) -> str:
    """A random answer as the template writes it: no white space around it where it strips, thinking where it thinks."""
    said = clean(draw).strip() or "7"
    return f"<think>\n{clean(draw).strip() or 'hm'}\n</think>\n\n{said}" if make.thinks else said
