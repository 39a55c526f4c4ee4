"""Laws of every task that makes its own problems: their seed alone decides, and their alphabet is all they need."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.task import Demonstrates
from groupwise.tasks.arithmetic import Arithmetic
from recipes.chain import Chain
from recipes.grid_world import GridWorld
from recipes.guess_number import GuessNumber
from tests.tasks import test_arithmetic, test_chain, test_grid_world

TASKS = [
    *test_arithmetic.TASKS,
    *test_chain.TASKS,
    *(GridWorld(**settings) for settings in test_grid_world.SETTINGS),
    GuessNumber(),
]

every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)


def test_problems_are_the_same_in_every_process() -> None:
    code = (
        "from groupwise.tasks.arithmetic import Arithmetic; from recipes.chain import Chain;"
        "from recipes.grid_world import GridWorld; from recipes.guess_number import GuessNumber;"
        "tasks = (Arithmetic(), Chain(), GridWorld(), GuessNumber());"
        "print([str(sample) for task in tasks for split in ('train', 'heldout') for sample in task.samples(split)])"
    )
    tasks: Any = (Arithmetic(), Chain(), GridWorld(), GuessNumber())
    here = [str(sample) for task in tasks for split in ("train", "heldout") for sample in task.samples(split)]
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.strip() == str(here)


@every_task
def test_demonstrations_depend_on_the_seed_alone(task: Any) -> None:
    random.seed(1)
    first = task.demonstrations(50, seed=1)
    random.seed(2)
    assert first == task.demonstrations(50, seed=1) != task.demonstrations(50, seed=2)


@every_task
def test_the_alphabet_has_every_character_of_prompts_and_completions_once(task: Any) -> None:
    assert isinstance(task, Demonstrates)
    used = {c for shown in task.demonstrations(500, seed=0) for c in shown.prompt + shown.completion}
    assert used <= set(task.alphabet)
    assert len(set(task.alphabet)) == len(task.alphabet)


@every_task
def test_an_unknown_split_is_refused(task: Any) -> None:
    with pytest.raises(UsageError, match="has the splits train and heldout, not 'test'"):
        task.samples("test")
