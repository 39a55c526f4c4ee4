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
from groupwise.tasks.make import task as task_of
from recipes.grid_world import GridWorld
from recipes.guess_number import GuessNumber
from tests.tasks import test_arithmetic, test_chain, test_grid_world
from tests.tasks.made import both, refusal

TASKS = [
    *test_arithmetic.TASKS,
    *test_chain.TASKS,
    *(GridWorld(**settings) for settings in test_grid_world.SETTINGS),
    GuessNumber(),
]

every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)


MADE = """
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.tasks.gym.task import Gym
from recipes.chain import Chain
from recipes.grid_world import GridWorld
from recipes.guess_number import GuessNumber
# list_functions draws from Python's shared random numbers too.
gym = Gym(generators={"list_functions": {}, "gcd": {}}, problems=60)
tasks = (Arithmetic(), Chain(), GridWorld(), GuessNumber(), gym)
said = [str(sample) for task in tasks for split in ("train", "heldout") for sample in task.samples(split)]
said += map(str, gym.demonstrations(5, 1))
"""


def test_problems_are_the_same_in_every_process() -> None:
    here: dict[str, Any] = {}
    exec(MADE, here)
    for seed in ("1", "2"):
        told = {"env": {**os.environ, "PYTHONHASHSEED": seed}, "capture_output": True, "text": True, "check": True}
        done = subprocess.run([sys.executable, "-c", f"{MADE}print(said)"], **told)
        assert done.stdout.strip() == str(here["said"])


@every_task
def test_problems_are_in_one_split_and_once_and_demonstrations_depend_on_the_seed_alone(task: Any) -> None:
    keys = [sample.key for sample in both(task)]
    assert len(keys) == len(set(keys))
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


#: What each task refuses before it reads a file, by the key that the line names.
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "arithmetic": [
        ({"operands": (1, 3)}, "task.operands must be"),
        ({"operands": (4, 3)}, "task.operands must be"),
        ({"operands": (3,)}, "task.operands = (3,): must be"),
        ({"largest": 0}, "task.largest must be"),
        ({"worked_share": 1.5}, "task.worked_share must be"),
        ({"heldout_share": 0.0}, "task.heldout_share must lie"),
        ({"heldout_share": 1.0}, "task.heldout_share must lie"),
        ({"problems": 1}, "task.problems must be"),
    ],
    "reasoning_gym": [
        ({"generator": "chain_sun"}, "no generator 'chain_sun'; did you mean 'chain_sum'?"),
        ({"generators": {"gdc": {}}}, "task.generators.gdc: reasoning_gym has no generator 'gdc'; did you mean 'gcd'?"),
        ({"generator": "composite"}, "reasoning_gym has no generator 'composite'"),
        ({"generators": {"gcd": {"max_valu": 5}}}, "task.generators.gcd.max_valu: there is no such parameter; did you"),
        ({"generator": "gcd", "parameters": {"max_value": "5"}}, "task.parameters.max_value = '5': must be a int"),
        ({"generator": "gcd", "parameters": {"min_numbers": 1}}, "min_numbers must be at least 2"),
        ({"generator": "gcd", "parameters": {"seed": 1}}, "task.parameters.seed: it is set for all generators"),
        ({"generator": "word_sorting", "parameters": {"transformation": "upper"}}, "did you mean 'uppercase'?"),
        ({"generators": {"gcd": {"weight": 0}}}, "task.generators.gcd.weight = 0: must be a number above 0"),
        ({}, "set generator = "),
        ({"generator": "gcd", "generators": {"lcm": {}}}, "set generator = "),
        ({"generators": {"gcd": {}}, "parameters": {"max_value": 5}}, "task.parameters belong to task.generator"),
        ({"generators": {"gcd": 3}}, "task.generators.gcd = 3: must be a table"),
        ({"generator": "lcm", "question": "short"}, "lcm can only be asked in full"),
        ({"generator": "lcm", "question": "brief"}, "task.question = 'brief'"),
        ({"generator": "lcm", "tags": True, "answer_after": "="}, "task.tags and task.answer_after"),
        ({"generator": "lcm", "problems": 1}, "task.problems must be at least 2"),
        ({"generator": "lcm", "heldout_share": 1.0}, "task.heldout_share"),
        ({"generator": "lcm", "worked_share": 1.5}, "task.worked_share"),
        ({"generator": "lcm", "curriculum": {"level": 3}}, "task.curriculum.level: there is no such key; did you mean"),
        ({"generator": "lcm", "curriculum": {"up": 0.9}}, "task.curriculum.levels is missing"),
        ({"generator": "lcm", "curriculum": {"levels": 0}}, "task.curriculum.levels must be at least 1"),
        ({"generator": "lcm", "curriculum": {"levels": 2.5}}, "task.curriculum.levels = 2.5: must be a whole number"),
        ({"generator": "lcm", "curriculum": {"levels": 2, "down": 0.9}}, "down < up"),
        ({"generator": "knight_swap", "curriculum": {"levels": 2}}, "knight_swap refuses"),
        ({"generator": "lcm", "parameters": 3}, "task.parameters = 3: must be a table"),
    ],
    "chain": [
        ({"operations": [1, 3]}, "task.operations must be"),
        ({"operations": [4, 3]}, "task.operations must be"),
        ({"operations": [4, 26]}, "task.operations must be"),
        ({"operations": [4]}, "task.operations = "),
        ({"operations": "many"}, "task.operations = 'many': must be a list of 2 whole numbers"),
        ({"written_share": 1.5}, "task.written_share must be from 0 to 1, not 1.5"),
        ({"again_share": 0.95}, "task.again_share must be from 0 to 0.9, not 0.95"),
        ({"again_share": float("nan")}, "task.again_share"),
        ({"slip_share": -0.1}, "task.slip_share must be from 0 to 1, not -0.1"),
        ({"guess_share": 2}, "task.guess_share must be from 0 to 1, not 2"),
        ({"heldout_share": 0.0}, "task.heldout_share must lie between 0 and 1"),
        ({"operations": [2, 2], "heldout_share": 1e-9}, "leaves a split empty"),
        ({"modulus": 10}, "task.modulus: chain has no such key"),
    ],
    "products": [
        ({"factors": [1, 12]}, "task.factors"),
        ({"factors": [2, 100]}, "task.factors"),
        ({"factors": [12, 2]}, "task.factors"),
        ({"heldout_share": 1.0}, "task.heldout_share must lie between 0 and 1"),
        ({"heldout_share": 0.001}, "leaves a split empty"),
        ({"factors": [2, 2]}, "task.problems must be at least 2, not 1"),
        ({"largest": 12}, "task.largest: products has no such key"),
    ],
    "calculator": [
        ({"factors": [9, 3]}, "factors = [9, 3]"),
        ({"factors": [1]}, "factors = [1]"),
        ({"factors": "99"}, "factors = '99'"),
        ({"factors": [2, 9]}, "too few products for 576 problems"),
        ({"problems": 0}, "problems = 0"),
        ({"heldout": 1.5}, "heldout = 1.5"),
        ({"seed": 1}, "Calculator cannot be made with them: "),
    ],
    "guess-number": [
        ({"largest": [1, 9]}, "largest = [1, 9]: must be whole numbers from 2 to 99"),
        ({"largest": []}, "largest = []"),
        ({"problems": 0}, "problems = 0, heldout = 126"),
        ({"wildest": 8}, "wildest = 8: must be from 9 to 999"),
    ],
    "grid-world": [
        ({"size": 1}, "task.settings.size must be from 2 to 9, not 1"),
        ({"size": 10}, "task.settings.size must be from 2 to 9, not 10"),
        ({"size": "four"}, "task.settings.size = 'four': must be a whole number"),
        ({"size": True}, "task.settings.size = True: must be a whole number"),
        ({"distance": [3]}, "task.settings.distance = [3]: must be a list of 2 whole numbers"),
        ({"distance": [4, 3]}, "task.settings.distance = [4, 3], turns = 10: must be"),
        ({"distance": [0, 3]}, "task.settings.distance = [0, 3], turns = 10: must be"),
        ({"distance": [3, 11]}, "task.settings.distance = [3, 11], turns = 10: must be"),
        ({"turns": 3}, "task.settings.distance = [2, 4], turns = 3: must be"),
        ({"problems": 0}, "task.settings.problems = 0, heldout = 64: must be 1 or more each"),
        ({"heldout": -1}, "task.settings.problems = 512, heldout = -1: must be 1 or more each"),
        ({"walls": -1}, "task.settings.walls = -1, size = 4: too few layouts"),
        ({"walls": 0}, "task.settings.walls = 0, size = 4: too few layouts"),
        ({"walls": 25}, "task.settings.walls = 25, size = 4: too few layouts"),
        (
            {"size": 2, "walls": 2, "distance": [1, 3]},
            "task.settings.walls = 2, size = 2: too few layouts",
        ),
        (
            {"walls": 3, "distance": [9, 10]},
            "task.settings.distance = [9, 10]: of 28800 layouts only 10 have",
        ),
        ({"wals": 3}, "task.settings: GridWorld cannot be made with them"),
    ],
    "code-turns": [
        ({"settings": {"second": 1.0}}, "task.settings.second: code has no such key; did you mean 'seconds'"),
        ({"settings": {"seconds": "5"}}, "task.settings.seconds = '5': must be a number"),
        ({"settings": {"seconds": 0.0}}, "task.settings.seconds must be from 0.05 to 3600 and task.settings.memory"),
        ({"settings": {"steps": [1, 9]}}, "task.settings.steps must be"),
        ({"settings": {"mended_share": 1.5}}, "task.settings.mended_share must be from 0 to 1, not 1.5"),
        ({"settings": {"slip_share": -1}}, "task.settings.slip_share must be from 0 to 1, not -1"),
        ({"settings": {"path": "nowhere.jsonl"}}, "nowhere.jsonl: there is no such file"),
        ({"settings": {"sandbox": "off"}}, "task.settings.sandbox = 'off': must be empty or"),
        ({"path": "problems.jsonl"}, "task.settings.path names the file of its problems"),
        ({"max_turns": 0}, "task.max_turns must be 1 or more"),
    ],
    "data": [
        (
            {"path": "absent.jsonl", "check": "maths"},
            "task.check = 'maths': there is no such check; did you mean 'math'? known: ",
        ),
        ({"heldout_share": 1.0}, "task.heldout_share must be at least 0 and below 1, not 1.0"),
        (
            {"path": "absent.jsonl", "unreadable_limit": -0.1},
            "task.unreadable_limit must be at least 0 and below 1, not -0.1",
        ),
        ({"limit": -1}, "task.limit must not be negative, not -1"),
        (
            {"path": "absent.jsonl", "answer": ""},
            "task.answer is empty: task.check = 'math' compares completions with gold answers; ",
        ),
        (
            {"path": "absent.jsonl", "prompt": ""},
            "task.prompt is empty: it must name a column, or task.messages one of conversations",
        ),
        ({"solution_without": "("}, "task.solution_without = '(': no regular expression: "),
        ({"prompt": "{a"}, "task.prompt = '{a': no template: "),
        (
            {"path": "absent.jsonl", "prompt": "{a[b]}"},
            "task.prompt = '{a[b]}': {a[b]} must be the name of a column and nothing else",
        ),
        ({"filter": {"a": {"most": 3}}}, "task.filter.a.most: no such bound; known: min, max"),
        ({"filter": {"a": {"max": "3"}}}, "task.filter.a.max = '3': must be a number"),
        ({"filter": {"a": []}}, "task.filter.a = []: nothing would be left"),
        ({"filter": "level"}, "task.filter = 'level': must be a table, such as [task.filter]"),
        ({"answer_boxed": 1}, "task.answer_boxed = 1: must be true or false"),
        ({"limit": 2.5}, "task.limit = 2.5: must be a whole number"),
        ({"heldout_share": "0.1"}, "task.heldout_share = '0.1': must be a number"),
        ({"column": "a"}, "task.column: data has no such key; "),
        (
            {"path": "absent.jsonl", "check": "choice", "letters": "abc"},
            "task.letters must be capital letters such as 'ABCD', not 'abc'",
        ),
        ({"check": "choice", "letters": ""}, "task.letters must be capital letters"),
        ({"check": "math", "letters": "ABCD"}, "task.letters = 'ABCD': only task.check = "),
    ],
}


@pytest.mark.parametrize(
    ("name", "keys", "words"), [(name, *each) for name, every in REFUSED.items() for each in every]
)
def test_keys_that_cannot_be_are_refused_in_one_line(name: str, keys: dict[str, Any], words: str) -> None:
    """Keys of an environment are those of its class; a data set is not looked for first."""
    in_settings = name in ("calculator", "guess-number", "grid-world")
    whole = {"settings": keys} if in_settings else {"path": "absent.jsonl", **keys} if name == "data" else keys
    assert words in refusal(lambda: task_of(name, whole).samples("train"))
