"""Well-known data sets, as settings of the task `data`. Any key of a recipe replaces the one here."""

from __future__ import annotations

from collections.abc import Mapping

#: name -> keys under [task] that the name sets.
MAPPINGS: Mapping[str, Mapping[str, object]] = {
    "gsm8k": {
        "path": "openai/gsm8k:main",
        "prompt": "question",
        "answer": "answer",
        "answer_after": "####",
        "solution": "answer",
        # Its solutions hold the calls of a calculator that the policy does not have: 48/2 = <<48/2=24>>24.
        "solution_without": r"<<[^<>]*>>",
        # As its own solutions end, so that a warm start on them and the request agree.
        "instruction": "\nReason step by step, and end with a line that holds #### and the number alone.",
        "check": "math",
    },
    # Prompts alone, or a file of pairs: what a completion is worth, the reward model of [preference] says.
    "preference": {"answer": "", "check": "learned"},
    "math": {
        "path": "DigitalLearningGmbH/MATH-lighteval",
        "prompt": "problem",
        "answer": "solution",
        "answer_boxed": True,
        "solution": "solution",
        "instruction": "\nReason step by step, and put the final answer in \\boxed{}.",
        "check": "math",
    },
}
