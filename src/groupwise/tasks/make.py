"""A task by its name, with the keys of a recipe's [task]."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.core.code.user_code import (
    NO_FILES,
    Files,
    entry,
    load,
    offered,
    offered_name,
    raised,
    require_frozen_dataclass,
    use_of,
)
from groupwise.core.errors import UsageError, brief, nearest
from groupwise.core.files.paths import recipe_folder
from groupwise.core.files.plain import of_program, require_plain
from groupwise.core.samples import Sample
from groupwise.core.settings import fields_of
from groupwise.core.task import Task
from groupwise.tasks.agent import AgentTask
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.tasks.chats import Chats
from groupwise.tasks.code import Code
from groupwise.tasks.data.settings import VERL_ANSWER
from groupwise.tasks.data.task import Data
from groupwise.tasks.environment import EnvironmentTask
from groupwise.tasks.gym.task import Gym
from groupwise.tasks.settings import SPLITS, field_defaults, require_type
from groupwise.tasks.verifiers import VerifiersTask

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
    "calculator": {"use": "calculator.py:Calculator", "reward": "calculator.py:says_the_product", "max_turns": 3},
    "code-turns": {"use": "code_turns.py:CodeTurns", "max_turns": 2},
}

#: Tasks that lie beside their recipes: name -> what `task.use` calls the class there.
EXAMPLES: Mapping[str, str] = {"chain": "chain.py:Chain", "products": "products.py:Products"}

TASKS: Mapping[str, Any] = {
    "arithmetic": Arithmetic,
    "reasoning_gym": Gym,
    "code": Code,
    "data": Data,
    "chats": Chats,
    **dict.fromkeys(PRESETS, Data),
    "environment": EnvironmentTask,
    **dict.fromkeys(ENVIRONMENTS, EnvironmentTask),
    "agent": AgentTask,
    "verifiers": VerifiersTask,
}


#: The group of entry points by which packages offer tasks: the name of each is the name of its task.
GROUP = "groupwise.tasks"


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
    """Make the task `name` with a recipe's own keys under [task]; without a name a user's own, whose file is the key
    `use`. `files` are those that a run keeps.

    Raises UsageError for a name or key that does not exist, and for a value of another type.
    """
    keys = of_program(settings or {})
    if name is None:
        use = keys.pop("use", None)
        if not isinstance(use, str):
            such = 'such as name = "arithmetic" or use = "my_task.py:MyTask" under [task]'
            raise UsageError(f"task.name is missing; {such}")
        what = f"task.use = {brief(use)}"
        return _made(load(use, what, files), what, keys)
    if name not in names():
        what = f"task.name = {brief(name)}"
        if name in offered(GROUP):
            return _made(entry(GROUP, name, what), what, keys)
        raise UsageError(f"{what}: there is no such task; {nearest(name, [*names(), *offered(GROUP)])}")
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
    own_code = {"files": files} if TASKS.get(name) in (EnvironmentTask, AgentTask) else {}
    return kind(**{**preset, **keys}, **own_code)


def chosen_by(problems: Task) -> dict[str, str]:
    """Return the key under [task] that names a task of a class that has no name here, and the key's value."""
    name = offered_name(GROUP, type(problems))
    return {"name": name} if name else {"use": use_of(type(problems))}


def _made(kind: Any, what: str, keys: Mapping[str, object]) -> Task:
    """Make a task of a class that is not groupwise's own.

    Raises UsageError if it is no task, or for the first key that is wrong.
    """
    require_frozen_dataclass(kind, what)
    if Task not in kind.__mro__ or kind.samples is Task.samples or kind.score is Task.score:
        raise UsageError(f"{what}: {kind.__name__} is no task; make it a groupwise.Task with samples and score")
    try:
        task = kind(**fields_of(kind, "task", keys))
        splits = {split: task.samples(split) for split in SPLITS}
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"task.{error}") from None
    except Exception as error:
        raise raised(what, f"making {kind.__name__} and its samples", error) from None
    for field in dataclasses.fields(kind):
        require_plain(f"{what}: its field {field.name}", getattr(task, field.name))
    for split, samples in splits.items():
        _require_samples(samples, f"{what}: samples({split!r})")
    return task


def _require_samples(samples: object, what: str) -> None:
    if not isinstance(samples, Sequence) or isinstance(samples, (str, bytes)):
        raise UsageError(f"{what} is a {type(samples).__name__}; return a list or a tuple of groupwise.Sample")
    if not samples:
        raise UsageError(f"{what} is empty; a task has problems in both splits, train and heldout")
    for sample in samples:
        if not isinstance(sample, Sample):
            raise UsageError(f"{what} holds {brief(sample)}; each must be a groupwise.Sample(key, prompt, answer)")
    if len({sample.key for sample in samples}) < len(samples):
        raise UsageError(f"{what} has samples of one key; the key of each must be its own")
