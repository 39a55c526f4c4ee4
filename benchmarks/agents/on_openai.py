"""An agent on the library openai, with two tools; it has never heard of training."""
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportCallIssue=false

import json
import os
import re

from openai import OpenAI

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
FUNCTIONS = {"multiply": lambda a, b: a * b, "add": lambda a, b: a + b}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"Use to {name} two integers.", "parameters": NUMBERS},
    }
    for name in FUNCTIONS
]

with open("sample.json") as file:
    sample = json.load(file)
client, messages, said = OpenAI(), sample["messages"], None
for _ in range(3):
    answer = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, tools=TOOLS)
    said = answer.choices[0].message
    messages.append(said)
    if not said.tool_calls:
        break
    for call in said.tool_calls:
        try:
            result = str(FUNCTIONS[call.function.name](**json.loads(call.function.arguments)))
        except (KeyError, TypeError, ValueError) as error:
            result = f"error: {error}"
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(float(sample["answer"] in re.findall(r"\d+", said.content or "")))
