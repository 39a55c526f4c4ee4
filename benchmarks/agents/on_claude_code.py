"""Claude Code, as its package installs it, with its tool Bash: worth 1.0 if its last words have the right number."""

import json
import os
import re
import subprocess

with open("sample.json") as file:
    sample = json.load(file)
own = {"HOME": os.getcwd(), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
ended = subprocess.run(
    [
        "claude", "--print", sample["prompt"], "--system-prompt", "Answer with a number.", "--output-format", "json",
        "--tools", "Bash", "--allowedTools", "Bash", "--max-turns", "3", "--no-session-persistence",
    ],
    env={**os.environ, **own}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
)  # fmt: skip
said = json.loads(ended.stdout).get("result") or ""
numbers = re.findall(r"\d+", said)
print(1.0 if sample["answer"] in numbers else 0.1 * bool(numbers))
