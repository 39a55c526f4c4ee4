"""A task by its name, with the keys of a recipe's [task]."""

from collections.abc import Mapping
from typing import Any

from groupwise.core.code.user_code import NO_FILES, Files, offered, offered_name, use_of
from groupwise.core.errors import UsageError, brief, nearest
from groupwise.core.files.plain import of_program
from groupwise.core.task import Task
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.tasks.chain import Chain
from groupwise.tasks.code.task import Code
from groupwise.tasks.data.settings import VERL_ANSWER
from groupwise.tasks.data.task import Data
from groupwise.tasks.environment.task import EnvironmentTask
from groupwise.tasks.gym.task import Gym
from groupwise.tasks.own import GROUP, offered_task, own_task
from groupwise.tasks.products import Products
from groupwise.tasks.settings import field_defaults, require_type

#: Well-known data sets: name -> keys of the task `data` that the name sets. Any key of a recipe replaces the one here.
PRESETS: Mapping[str, Mapping[str, object]] = {
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
    # verl's files, as its examples/data_preprocess write them: reward_model is {style, ground_truth}.
    "verl": {"prompt": "prompt", "answer": VERL_ANSWER, "source": "data_source", "check": "math"},
    # TRL's prompt-only sets: text or a conversation as `prompt`; every other column, a `solution` too, goes to rewards
    # by its name, and nothing says which of them is a gold answer.
    "trl": {"prompt": "prompt", "answer": "", "check": "none"},
    # Prompts alone, or a file of pairs: the reward model of [preference] scores completions.
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

#: Environments that come along: name -> keys of the task `environment` that the name sets.
ENVIRONMENTS: Mapping[str, Mapping[str, object]] = {
    "guess-number": {"use": "groupwise.tasks.environment.guess_number:GuessNumber", "max_turns": 4},
    "grid-world": {"use": "groupwise.tasks.environment.grid_world:GridWorld", "max_turns": 10},
    "calculator": {
        "use": "groupwise.tasks.environment.calculator:Calculator",
        "reward": "groupwise.tasks.environment.calculator:says_the_product",
        "max_turns": 3,
    },
    "code-turns": {"use": "groupwise.tasks.environment.code_turns:CodeTurns", "max_turns": 2},
}

TASKS: Mapping[str, Any] = {
    "arithmetic": Arithmetic,
    "chain": Chain,
    "products": Products,
    "reasoning_gym": Gym,
    "code": Code,
    "data": Data,
    **dict.fromkeys(PRESETS, Data),
    "environment": EnvironmentTask,
    **dict.fromkeys(ENVIRONMENTS, EnvironmentTask),
}


def task(name: str | None, settings: Mapping[str, object] | None = None, files: Files = NO_FILES) -> Task:
    """The task `name` with a recipe's own keys under [task]; without a name that of a user's own, whose file is the key
    `use`. `files` are those that a run keeps.

    Raises UsageError for a name or key that does not exist, and for a value of another type.
    """
    keys = of_program(settings or {})
    if name is None:
        return own_task(keys.pop("use", None), keys, files)
    if name not in TASKS and name in offered(GROUP):
        return offered_task(name, keys)
    if name not in TASKS:
        raise UsageError(
            f"task.name = {brief(name)}: there is no such task; {nearest(name, [*TASKS, *offered(GROUP)])}"
        )
    defaults = field_defaults(TASKS[name])
    if "use" in keys and "use" not in defaults:
        raise UsageError("task: name and use both name the task; take one of them out")
    for key, value in keys.items():
        if key not in defaults:
            raise UsageError(f"task.{key}: {name} has no such key; {nearest(key, ['name', *defaults])}")
        require_type(f"task.{key}", value, defaults[key])
    own_code = {"files": files} if TASKS[name] is EnvironmentTask else {}
    return TASKS[name](**{**PRESETS.get(name, {}), **ENVIRONMENTS.get(name, {}), **keys}, **own_code)


def chosen_by(problems: Task) -> dict[str, str]:
    """The key under [task] that names a task of a class that is not in TASKS, and its value."""
    name = offered_name(GROUP, type(problems))
    return {"name": name} if name else {"use": use_of(type(problems))}
