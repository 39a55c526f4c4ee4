"""Codex, as its package installs it, with its own tools: worth 1.0 if its last words have the right number.

It fails where an answer of the policy's is cut off, which is worth 0.0.
"""

import json
import os
import re
import subprocess
from pathlib import Path

sample = json.loads(Path("sample.json").read_text())
Path("instructions.md").write_text("Answer with a number.")
provider = f'{{name = "run", base_url = "{os.environ["OPENAI_BASE_URL"]}", env_key = "OPENAI_API_KEY"}}'
settings = {"model_provider": '"run"', "model_providers.run": provider, "model_instructions_file": '"instructions.md"'}
without = ("multi_agent", "goals", "apps", "plugins", "image_generation", "shell_snapshot")
ended = subprocess.run(
    [
        "codex", "exec", "--skip-git-repo-check", "--ephemeral", "--model", os.environ["OPENAI_MODEL"],
        *(word for key, value in settings.items() for word in ("--config", f"{key}={value}")),
        *(word for name in without for word in ("--disable", name)), sample["prompt"],
    ],
    env={**os.environ, "HOME": os.getcwd()}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
)  # fmt: skip
if ended.returncode and "max_output_tokens" not in ended.stderr:
    raise SystemExit(ended.stderr)
numbers = [] if ended.returncode else re.findall(r"\d+", ended.stdout)
print(1.0 if sample["answer"] in numbers else 0.1 * bool(numbers))
