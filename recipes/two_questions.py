"""Two questions: an agent that asks for a number above another, and then for one below it.

    groupwise train two-questions

    above 47:      the agent's first request
    81             the policy
    below 47:      the agent's second request, with all that was said before
    52             the policy: each right answer is worth a half

An agent knows nothing of training: it is given a problem, an address and a key, asks as any client of a chat model
does, and returns what the answers were worth. This one needs no library. `samples`, `alphabet` and `demonstrations`
stand beside it because a tiny policy has neither a file of problems nor a tokenizer of its own.
"""

import json
import random
import urllib.request
from collections.abc import Sequence

from groupwise import Demonstration, Sample

#: Every character that is said.
alphabet = "0123456789abovelw: \n"
QUESTIONS = {"above": lambda number, limit: number > limit, "below": lambda number, limit: number < limit}
#: Numbers that are asked about, and how many of them are held out.
NUMBERS, HELDOUT = range(20, 80), 15


def run(sample: Sample, base_url: str, key: str) -> float:
    """Play a session -> its reward."""
    messages, right = list[dict[str, str]](), 0
    for name, holds in QUESTIONS.items():
        messages.append({"role": "user", "content": f"{name} {sample.answer}:"})
        messages.append(_asked(base_url, key, messages))
        said = messages[-1]["content"].strip()
        right += said.isdecimal() and holds(int(said), int(sample.answer))
    return right / len(QUESTIONS)


def samples(split: str) -> list[Sample]:
    """List the problems of "train" or "heldout": each number is in one of them."""
    numbers = list(map(str, NUMBERS))
    random.Random(0).shuffle(numbers)
    chosen = numbers[HELDOUT:] if split == "train" else numbers[:HELDOUT]
    return [Sample(number, f"above {number}:", number) for number in chosen]


def demonstrations(count: int, seed: int) -> list[Demonstration]:
    """Draw answers to imitate: any number of two digits."""
    draw, shown = random.Random(seed), list[Demonstration]()
    for sample in draw.choices(samples("train"), k=count):
        first, second = draw.randint(10, 99), draw.randint(10, 99)
        if draw.random() < 0.5:
            shown.append(Demonstration(sample.prompt, f"{first}\n"))
        else:
            shown.append(Demonstration(f"{sample.prompt}{first}\nbelow {sample.answer}:", f"{second}\n"))
    return shown


def _asked(base_url: str, key: str, messages: Sequence[dict[str, str]]) -> dict[str, str]:
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]
