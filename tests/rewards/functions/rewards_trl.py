"""Reward functions as users write them for TRL's GRPOTrainer, after its documentation."""

import asyncio
import re


def length(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def tokens(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def boxed(completions, ground_truth, **kwargs):
    found = [re.search(r"\\boxed\{(.*?)\}", completion) for completion in completions]
    contents = [match.group(1) if match else "" for match in found]
    return [1.0 if content == truth else 0.0 for content, truth in zip(contents, ground_truth, strict=True)]


def think(completions, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(r"^<think>.*?</think><answer>.*?</answer>$", text) else 0.0 for text in contents]


def echo(prompts, completions, **kwargs):
    return [float(p[-1]["content"] == c[0]["content"]) for p, c in zip(prompts, completions, strict=True)]


def only_math(prompts, completions, task, **kwargs):
    return [1.0 if t == "math" else None for t in task]


async def slow(prompts, completions, **kwargs):
    await asyncio.sleep(0.01)
    return [1.0 if completion else 0.0 for completion in completions]


def logged(prompts, completions, completion_ids, log_extra=None, log_metric=None, trainer_state=None, **kwargs):
    log_extra("length", [len(completion) for completion in completions])
    log_metric("mean", 0.5)
    return [0.0 if trainer_state is None else 1.0 for _ in completions]


class Named:
    __name__ = "named"

    def __call__(self, prompts, completions, answer, **kwargs):
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]
