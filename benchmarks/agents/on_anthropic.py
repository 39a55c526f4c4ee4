"""An agent on the library anthropic, with two tools, which streams; it has never heard of training."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import json
import os
import re

from anthropic import Anthropic

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
FUNCTIONS = {"multiply": lambda a, b: a * b, "add": lambda a, b: a + b}
TOOLS = [{"name": name, "description": f"Use to {name} two integers.", "input_schema": NUMBERS} for name in FUNCTIONS]


def result_of(use):
    try:
        return str(FUNCTIONS[use.name](**use.input))
    except (KeyError, TypeError, ValueError) as error:
        return f"error: {error}"


with open("sample.json") as file:
    sample = json.load(file)
client, messages, text = Anthropic(), sample["messages"], ""
for _ in range(3):
    model = os.environ["ANTHROPIC_MODEL"]
    with client.messages.stream(model=model, messages=messages, tools=TOOLS, max_tokens=64) as stream:
        said = stream.get_final_message()
    text = "".join(block.text for block in said.content if block.type == "text")
    uses = [block for block in said.content if block.type == "tool_use"]
    if not uses:
        break
    results = [{"type": "tool_result", "tool_use_id": use.id, "content": result_of(use)} for use in uses]
    messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": results}]
print(float(sample["answer"] in re.findall(r"\d+", text)))
