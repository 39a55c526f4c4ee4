"""A chat template's first rendering, in a process that can be ended: a template is a program, and comes with a model.

The standard library and jinja2 only, so that the process starts in a moment.
"""

import json
import re
import resource
from functools import lru_cache

from jinja2.sandbox import ImmutableSandboxedEnvironment

from groupwise.core.channel import Channel
from groupwise.core.errors import RunError
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import Child

#: Seconds in which the process must have started; then the most that a few words may take: seconds, bytes, characters.
START_SECONDS, SECONDS, MEMORY, LENGTH = 120.0, 10.0, 2**30, 2**20
#: What is rendered: a question, one with a system prompt, one that is answered, and a conversation.
ROLES = (("user",), ("system", "user"), ("user", "assistant"), ("system", "user", "assistant", "user"))


@lru_cache(maxsize=64)
def excess(template: str, tokens: str) -> str:
    """Tell what is wrong with a template that takes too much for a few words; "" for others, also one that refuses
    them.

    tokens  the tokenizer's special tokens by name, which templates write: JSON
    Raises RunError if no process can be started.
    """
    child = Child(__name__)
    try:
        try:
            child.receive(START_SECONDS)
        except PeerLost as lost:
            raise RunError(f"the process that tries the chat template did not start: {lost}") from None
        child.send({"template": template, "tokens": json.loads(tokens)}, seconds=SECONDS)
        return child.receive(SECONDS)["excess"]
    except PeerLost as lost:
        return f"takes more than {SECONDS:g} seconds" if lost.late else f"ends its process ({lost})"
    finally:
        child.close()


def main(parent: Channel) -> None:
    """Say that it is ready, then what is wrong with the one template that it is sent."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parent.send({})
    question = parent.receive()
    try:
        longest = max(length(question["template"], question["tokens"], roles) for roles in ROLES)
        wrong = f"writes more than {LENGTH:,} characters" if longest > LENGTH else ""
    except MemoryError:
        wrong = f"takes more than {MEMORY / 2**20:,.0f} MiB of memory"
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
