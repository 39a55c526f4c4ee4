"""A chat template's first rendering, in a process that can be ended: a template is a program, and comes with a model.

The standard library and jinja2 only, so that the process starts in a moment.
"""

import json
import re
from functools import lru_cache

from jinja2.sandbox import ImmutableSandboxedEnvironment

from groupwise.core.channel import Channel
from groupwise.core.processes.trial import TOO_LARGE, limit_memory, tried

#: Characters that may become of a few words.
LENGTH = 2**20
#: What is rendered: a question, one with a system prompt, one that is answered, and a conversation.
ROLES = (("user",), ("system", "user"), ("user", "assistant"), ("system", "user", "assistant", "user"))


@lru_cache(maxsize=64)
def excess(template: str, tokens: str) -> str:
    """Tell what is wrong with a template that takes too much for a few words; "" for others, also one that refuses
    them.

    tokens  the tokenizer's special tokens by name, which templates write: JSON
    Raises RunError if no process can be started.
    """
    return tried(__name__, {"template": template, "tokens": json.loads(tokens)}, "the chat template")


def main(parent: Channel) -> None:
    """Say that it is ready, then what is wrong with the one template that it is sent."""
    limit_memory()
    parent.send({})
    question = parent.receive()
    try:
        longest = max(length(question["template"], question["tokens"], roles) for roles in ROLES)
        wrong = f"writes more than {LENGTH:,} characters" if longest > LENGTH else ""
    except MemoryError:
        wrong = TOO_LARGE
    parent.send({"excess": wrong})


def length(template: str, tokens: dict[str, object], roles: tuple[str, ...]) -> int:
    """Count the characters of a conversation of words, rendered as transformers.utils.chat_template_utils does; 0 if it
    is refused.

    The marks of what an assistant generated, which only transformers reads, are left out.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = json.dumps
    environment.globals.update(raise_exception=_refuse, strftime_now=str)
    messages = [{"role": role, "content": "word"} for role in roles]
    try:
        plain = environment.from_string(re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template))
        return len(plain.render(messages=messages, tools=None, documents=None, add_generation_prompt=True, **tokens))
    except MemoryError:
        raise
    except Exception:  # what it refuses, Chat says
        return 0


def _refuse(message: object) -> None:
    raise ValueError(message)
