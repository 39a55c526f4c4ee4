"""What a recipe may say under [rewards.NAME], and how long a task may take beside [scoring]."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pytest

from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.config.rewards import read_reward_weights, with_whole_paths
from groupwise.core.errors import UsageError
from groupwise.core.task import Bounded
from groupwise.rewards.functions.form import Repetition, Tags, User
from groupwise.rollout.scoring import ScoringSettings
from groupwise.tasks.code import Code

JUDGED: dict[str, Any] = {"description": "Is it clear?"}
JUDGE: dict[str, Any] = {"url": "http://localhost:8000/v1", "model": "m", "criteria": {"clear": JUDGED}}


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        ("repetition", {"tokens": "no"}, "tokens = 'no': must be true or false"),
        ("repetition", {"tokens": 1}, "tokens = 1: must be true or false"),
        ("repetition", {"n": 2.0}, "n = 2.0: must be a whole number"),
        ("repetition", {"n": True}, "n = True: must be a whole number"),
        ("repetition", {"n": 10**9}, ": n must be from 1 to 100"),
        ("repetition", {"largest": math.nan}, "largest"),
        ("repetition", {"largest": -math.inf}, "largest"),
        ("repetition", {"largest": "-1"}, "largest = '-1': must be a number"),
        ("tags", {"opened": "yes"}, "opened = 'yes': must be true or false"),
        ("tags", {"tags": "think"}, "tags = 'think': "),
        ("tags", {"tags": [1, 2]}, "tags.0 = 1: must be text in quotes"),
        ("tags", {"weight": math.nan}, "weight = nan"),
        ("tags", {"weight": math.inf}, "weight = inf"),
        ("tags", {"weight": 1e300}, "weight = 1e+300"),
        ("tags", {"weight": True}, "weight = True: must be a number"),
        ("task", {"weight": "1"}, "weight = '1': must be a number"),
        ("learned", {"weight": math.nan}, "weight = nan"),
        ("format", {}, "pattern is missing"),
        ("format", {"pattern": 5}, "pattern = 5: must be text in quotes"),
        ("format", {"pattern": "("}, ": pattern '(' is not a regular expression: missing )"),
        ("format", {"pattern": "a{99999999999}"}, ": pattern 'a{99999999999}' is not a regular expression: the repet"),
        ("format", {"pattern": "a", "longest": "9"}, "longest = '9': must be a whole number"),
        ("mine", {"use": 5}, "use = 5: must be text in quotes"),
        ("mine", {"kind": "user"}, "use is missing"),
        ("mine", {"use": "x:f", "settings": "fast"}, "settings = 'fast': "),
        ("mine", {"use": "x:f", "setting": {}}, "setting: user has no such key; did you mean 'settings'"),
        ("mine", {"kind": ["tags"]}, "kind = ['tags']: there is no such reward"),
        ("judge", {}, "url is missing"),
        ("judge", {**JUDGE, "url": "localhost:8000/v1"}, "must be an address such as 'http://localhost:8000/v1'"),
        ("judge", {**JUDGE, "url": "http://h:99999/v1"}, "must be an address such as"),
        ("judge", {**JUDGE, "url": "http://h/v1?key=1"}, "must be an address such as"),
        ("judge", {**JUDGE, "url": "http://me:secret@h/v1"}, ": url: it holds a password; put the key into a file"),
        ("judge", {**JUDGE, "url": "http://h/v1/chat/completions"}, ": leave /chat/completions out, which is added"),
        ("judge", {**JUDGE, "keyfile": "k"}, "keyfile: judge has no such key; did you mean 'key_file'"),
        ("judge", {**JUDGE, "samples": 0}, ": samples must be from 1 to 64, not 0"),
        ("judge", {**JUDGE, "samples": 2}, ": samples = 2: at temperature 0 all are alike"),
        ("judge", {**JUDGE, "at_once": 257}, ": at_once must be from 1 to 256, not 257"),
        ("judge", {**JUDGE, "timeout": 0}, ": timeout must be from 0.05 to 3600, not 0"),
        ("judge", {**JUDGE, "retries": 1.5}, "retries = 1.5: must be a whole number"),
        ("judge", {**JUDGE, "highest": 0}, ": highest must be from 1e-06 to 1e+06, not 0"),
        ("judge", {**JUDGE, "template": "{completion}"}, ": template: {criteria} is missing"),
        ("judge", {**JUDGE, "template": "{criteria}{completoin}"}, "{completoin} cannot be filled in; did you mean"),
        ("judge", {**JUDGE, "request": {"stream": True}}, ": request.stream cannot be set"),
        ("judge", {**JUDGE, "request": {"at": datetime.date(2020, 1, 1)}}, ": request: it holds a value that JSON"),
        ("judge", {**JUDGE, "criteria": {}}, ": criteria must be from 1 to 59, not 0"),
        ("judge", {**JUDGE, "criteria": ["clear"]}, "criteria = ['clear']: must be a table"),
        ("judge", {**JUDGE, "criteria": {"clear": "Is it?"}}, "criteria.clear = 'Is it?': must be a table"),
        ("judge", {**JUDGE, "criteria": {"clear": {}}}, "criteria.clear.description must be text"),
        ("judge", {**JUDGE, "criteria": {"reason": JUDGED}}, "criteria.reason: name it with at most 40 letters"),
        ("judge", {**JUDGE, "criteria": {"a\nb": JUDGED}}, "name it with at most 40 letters"),
        ("judge", {**JUDGE, "criteria": {"clear": {**JUDGED, "wieght": 2}}}, "wieght: there is no such key; did you"),
        ("judge", {**JUDGE, "criteria": {"clear": {**JUDGED, "weight": 0}}}, "clear.weight = 0: must be a number abo"),
        ("judge", {**JUDGE, "criteria": {"clear": {**JUDGED, "weight": "1"}}}, "clear.weight = '1': must be a number"),
        ("judge", {**JUDGE, "cache": ""}, ": cache = '': an empty path"),
    ],
)
def test_a_value_of_another_type_is_refused_in_one_line_with_its_key(name: str, table: dict[str, Any], words: str):
    with pytest.raises(UsageError) as told:
        read_reward_weights({name: table}, each=False)
    assert str(told.value).startswith(f"rewards.{name}")
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_right_values_arrive_as_they_are():
    tables = {
        "task": {},
        "tags": {"tags": ["a", "b"], "weight": 2},
        "twice": {"kind": "repetition", "n": 2, "largest": -1, "tokens": True, "weight": -0.5},
        "mine": {"use": "x:f", "settings": {"a": [1, "b"], "c": {"d": 0.5}}},
    }
    rewards = read_reward_weights(tables, each=False)
    assert rewards.weights == {"task": 1.0, "tags": 2.0, "twice": -0.5, "mine": 1.0}
    assert rewards.own == {
        "tags": Tags(("a", "b")),
        "twice": Repetition(2, -1.0, True),
        "mine": User("x:f", {"a": [1, "b"], "c": {"d": 0.5}}),
    }
    assert type(rewards.own["twice"].largest) is float
    assert read_reward_weights(None, each=False).weights == {}


def test_a_task_ends_a_score_before_its_deadline_unless_the_recipe_is_refused():
    task = Code(problems=50)
    assert isinstance(task, Bounded)
    assert task.seconds < task.longest <= ScoringSettings().deadline, "the defaults fit each other"
    words = (
        "task.seconds = 30, scoring.deadline = 10: a score may take 32 s, and a program that hangs would have none "
        "instead of a wrong one; set scoring.deadline = 32 or more, or task.seconds = 8 or less"
    )
    changes: dict[str, object] = {"task.problems": 400, "evaluation.problems": 8}
    with pytest.raises(UsageError) as told:
        resolve(recipe.load("code-tiny", {**changes, "task.seconds": 30.0}))
    assert str(told.value) == words
    for fitting in ({"task.seconds": 30.0, "scoring.deadline": 32.0}, {"task.seconds": 8.0}, {}):
        resolve(recipe.load("code-tiny", {**changes, **fitting}))
    with pytest.raises(UsageError, match=r"set scoring.deadline = 7 or more$"):
        resolve(recipe.load("code-tiny", {**changes, "scoring.deadline": 1.0}))


def test_a_judges_files_are_named_from_the_root_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tables = {"grades": {"kind": "judge", **JUDGE, "key_file": "key", "weight": 2.0}, "tags": {}}
    whole = with_whole_paths(tables, read_reward_weights(tables, each=False))
    paths = {"cache": str(tmp_path / "runs" / ".cache" / "judge"), "key_file": str(tmp_path / "key")}
    assert whole == {"grades": {**tables["grades"], **paths}, "tags": {}}
