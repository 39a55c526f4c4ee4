"""Reward functions as their users write them for verl's custom_reward_function: after its documentation."""

import asyncio


def my_reward_fn(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str) / 100


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if data_source != "gsm8k":
        raise NotImplementedError(f"no reward for {data_source!r}")
    right = solution_str.rsplit("####", 1)[-1].strip() == ground_truth
    return {"score": 1.0 if right else 0.1, "acc": right, "index": extra_info["index"]}


def scaled(data_source, solution_str, ground_truth, extra_info=None, scale=1.0):
    return scale * float(solution_str == ground_truth)


async def judged(data_source, solution_str, ground_truth, extra_info):
    await asyncio.sleep(0.2)
    return float(solution_str == ground_truth)


def batched(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):
    return [{"score": float(s == g)} for s, g in zip(solution_strs, ground_truths, strict=True)]
