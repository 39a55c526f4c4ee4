"""A task by its name, with the keys of a recipe's [task]."""

from collections.abc import Mapping
from typing import Any

from groupwise.core.code.user_code import NO_FILES, Files, load, offered, offered_name, use_of
from groupwise.core.errors import UsageError, brief, nearest
from groupwise.core.files.paths import recipe_folder
from groupwise.core.files.plain import of_program
from groupwise.core.task import Task
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.tasks.code.task import Code
from groupwise.tasks.data.settings import VERL_ANSWER
from groupwise.tasks.data.task import Data
from groupwise.tasks.environment.task import EnvironmentTask
from groupwise.tasks.gym.task import Gym
from groupwise.tasks.own import GROUP, offered_task, own_task
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

#: Environments that lie beside their recipes: name -> keys of the task `environment` that the name sets.
ENVIRONMENTS: Mapping[str, Mapping[str, object]] = {
    "guess-number": {"use": "guess_number.py:GuessNumber", "max_turns": 4},
    "grid-world": {"use": "grid_world.py:GridWorld", "max_turns": 10},
    "calculator": {
        "use": "calculator.py:Calculator",
        "reward": "calculator.py:says_the_product",
        "max_turns": 3,
    },
    "code-turns": {"use": "code_turns.py:CodeTurns", "max_turns": 2},
}

#: Tasks that lie beside their recipes: name -> what `task.use` calls the class there.
EXAMPLES: Mapping[str, str] = {"chain": "chain.py:Chain", "products": "products.py:Products"}

TASKS: Mapping[str, Any] = {
    "arithmetic": Arithmetic,
    "reasoning_gym": Gym,
    "code": Code,
    "data": Data,
    **dict.fromkeys(PRESETS, Data),
    "environment": EnvironmentTask,
    **dict.fromkeys(ENVIRONMENTS, EnvironmentTask),
}


def names() -> list[str]:
    """List the tasks that come with groupwise."""
    return [*TASKS, *EXAMPLES]


def kind_of(name: str, files: Files = NO_FILES) -> Any:
    """Find the class of the task `name`, one of `names()`. `files` are those that a run keeps."""
    return load(beside_recipes(EXAMPLES[name]), f"task.name = {name!r}", files) if name in EXAMPLES else TASKS[name]


def beside_recipes(use: str) -> str:
    """Name what lies in a file beside the recipes that come with groupwise, as `task.use` names it."""
    return str(recipe_folder() / use)


def task(name: str | None, settings: Mapping[str, object] | None = None, files: Files = NO_FILES) -> Task:
    """The task `name` with a recipe's own keys under [task]; without a name that of a user's own, whose file is the key
    `use`. `files` are those that a run keeps.

    Raises UsageError for a name or key that does not exist, and for a value of another type.
    """
    keys = of_program(settings or {})
    if name is None:
        return own_task(keys.pop("use", None), keys, files)
    if name not in names() and name in offered(GROUP):
        return offered_task(name, keys)
    if name not in names():
        raise UsageError(
            f"task.name = {brief(name)}: there is no such task; {nearest(name, [*names(), *offered(GROUP)])}"
        )
    kind = kind_of(name, files)
    defaults = field_defaults(kind)
    if "use" in keys and "use" not in defaults:
        raise UsageError("task: name and use both name the task; take one of them out")
    for key, value in keys.items():
        if key not in defaults:
            raise UsageError(f"task.{key}: {name} has no such key; {nearest(key, ['name', *defaults])}")
        require_type(f"task.{key}", value, defaults[key])
    preset = {**PRESETS.get(name, {}), **ENVIRONMENTS.get(name, {})}
    preset |= {key: beside_recipes(str(preset[key])) for key in ("use", "reward") if key in preset}
    own_code = {"files": files} if TASKS.get(name) is EnvironmentTask else {}
    return kind(**{**preset, **keys}, **own_code)


def chosen_by(problems: Task) -> dict[str, str]:
    """The key under [task] that names a task of a class that has no name here, and its value."""
    name = offered_name(GROUP, type(problems))
    return {"name": name} if name else {"use": use_of(type(problems))}
