"""Agents in processes, most of which fail: functions, and a program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any


def asked(base_url: str, key: str, text: str) -> str:
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{base_url}/chat/completions", body, {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


async def run(sample: Any, base_url: str, key: str) -> Any:
    """Ask once, and then do what the prompt says."""
    await asyncio.to_thread(asked, base_url, key, sample.prompt)
    act = sample.prompt
    if act == "raise":
        raise ValueError("of its own")
    if act == "exit":
        sys.exit(3)
    if act == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if act == "hang":
        time.sleep(1000)
    return {"none": None, "text": "1.0"}.get(act, 1.0)


def killed_once(sample: Any, base_url: str, key: str) -> float:
    """Be killed from outside in the first try of each session, after an answer."""
    first = asked(base_url, key, sample.prompt)
    mark = Path(os.environ["GATEWAY_TEST_FOLDER"]) / sample.key
    if not mark.exists():
        mark.write_text(first)
        os.kill(os.getpid(), signal.SIGKILL)
    assert asked(base_url, key, first + mark.read_text()) is not None
    return float(mark.read_text() == first)


def killed_and_another(sample: Any, base_url: str, key: str) -> float:
    """Be killed from outside once, and ask with another text when it is played again."""
    mark = Path(os.environ["GATEWAY_TEST_FOLDER"]) / sample.key
    again = mark.exists()
    mark.touch()
    asked(base_url, key, f"{sample.prompt} again" if again else sample.prompt)
    if not again:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


if __name__ == "__main__":
    sample = json.loads(Path("sample.json").read_text())
    asked(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], sample["prompt"])
    match sample["prompt"]:
        case "file":
            Path("reward.txt").write_text("0.75\n")
        case "fails":
            sys.exit("no luck")
        case "flood":
            for _ in range(1000):
                print("x" * 10_000)
        case "words":
            print("well done")
            sys.exit()
    print("some words\n0.5")
