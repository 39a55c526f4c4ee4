"""What a warm start of an environment's problems is found again by: everything that its demonstrations follow from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from groupwise.commands.check.trials import Kind, trials
from groupwise.core.errors import UsageError
from groupwise.core.task import KnowsGold
from groupwise.tasks.make import task
from groupwise.training.start.initial_policy import starting_policy
from groupwise.training.start.warm_start import WarmStart

MINE = """
import groupwise
from groupwise.core.task import Demonstration

class Echo:
    alphabet = "abc"
    def __init__(self, word="a"):
        self.word = word
    def samples(self, split):
        return [groupwise.Sample(split, "a", "b")]
    def reset(self, sample):
        return None
    def step(self, text):
        return "", 1.0, True
    def demonstrations(self, count, seed):
        return [Demonstration("a", self.word)] * count
"""


def contents(**keys: object) -> str:
    return task("environment", keys).contents  # type: ignore[attr-defined]


def test_other_settings_and_other_files_are_other_problems(tmp_path: Path) -> None:
    mine, problems = tmp_path / "mine.py", tmp_path / "problems.jsonl"
    mine.write_text(MINE)
    rows = [{"prompt": f"{number}?", "answer": str(number)} for number in range(20)]
    problems.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    use = f"{mine}:Echo"
    every = [
        contents(use=use),
        contents(use=use, settings={"word": "b"}),
        contents(use=use, seed=1),
        contents(use=use, path=str(problems)),
        contents(use="recipes/guess_number.py:GuessNumber"),
    ]
    assert contents(use=use) == every[0]
    problems.write_text(problems.read_text().replace('"7"', '"8"'))
    every.append(contents(use=use, path=str(problems)))
    mine.write_text(MINE.replace('"abc"', '"abcd"'))
    every.append(contents(use=use))
    assert len(set(every)) == len(every)


def test_a_policy_is_not_warmed_up_by_the_demonstrations_of_other_settings(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    warm = WarmStart(steps=1, batch_size=2, demonstrations=4)
    for word in ("a", "b", "a"):
        problems = task("environment", {"use": f"{mine}:Echo", "settings": {"word": word}})
        starting_policy("tiny-dense", problems, warm, 0, tmp_path / "cache", "cpu", lambda *step: None)
    assert len([folder for folder in (tmp_path / "cache").iterdir() if folder.is_dir()]) == 2


def test_what_a_class_says_of_its_settings_is_said_as_it_is() -> None:
    with pytest.raises(Exception, match=r"^task.settings: factors = .* must be"):
        task("calculator", {"settings": {"factors": [3, 2]}}).samples("train")


@pytest.mark.parametrize("name", ["guess-number", "calculator", "code-turns", "grid-world"])
def test_every_gold_of_an_environment_that_comes_along_wins(name: str) -> None:
    """A maze keeps its walls in `answer`: it has no first turn that wins, and is not asked for one."""
    named = task(name, {})
    known = trials(named, named.samples("heldout")[:8])
    assert bool(known) == (name != "grid-world")
    for trial in known if name != "calculator" else ():  # its reward reads episodes, which `score` does not play
        assert named.score(trial.sample, trial.completions[Kind.GOLD]) == 1.0


def golds(mine: Path, text: str, **keys: object) -> str:
    """What the environment in `text` gives as a turn that wins its first problem."""
    mine.write_text(text)
    named = task("environment", {"use": f"{mine}:Echo", **keys})
    assert isinstance(named, KnowsGold)
    return named.gold(named.samples("train")[0])


def test_an_answer_is_a_gold_turn_only_where_something_compares_turns_with_it(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    tools = MINE.replace("def step(self, text):", 'def look(self) -> str:\n        """Look."""')
    assert golds(mine, MINE) == ""
    assert golds(mine, f"{MINE}    def gold(self, sample):\n        return sample.answer * 2\n") == "bb"
    (tmp_path / "reward.py").write_text("def compares(environments, completions, answer, **more):\n    return [0.0]\n")
    assert golds(mine, tools, reward=f"{tmp_path / 'reward.py'}:compares") == "b"
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n{"prompt": "1 + 2?", "answer": "3"}\n')
    assert golds(mine, tools, path=str(tmp_path / "rows.jsonl"), check="numeric") in ("2", "3")
    assert golds(mine, MINE, path=str(tmp_path / "rows.jsonl"), check="numeric") == ""


@pytest.mark.parametrize(
    ("line", "words"), [("return 3", "returned 3; it must be the text"), ("return 1 / 0", "raised Zero")]
)
def test_a_gold_that_is_no_text_is_one_line(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(UsageError, match=rf"^task.use = .*gold\(\) of train.*{words}"):
        golds(tmp_path / "mine.py", f"{MINE}    def gold(self, sample):\n        {line}\n")


def test_rows_of_the_same_words_are_episodes_of_their_own_seeds(tmp_path: Path) -> None:
    """As TRL's data sets for environments are: one prompt, many times; what differs is drawn by `reset`."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "problems.jsonl").write_text('{"prompt": "Go on."}\n' * 30)
    keys = {"use": f"{tmp_path / 'mine.py'}:Echo", "path": str(tmp_path / "problems.jsonl"), "check": "none"}
    problems = task("environment", keys)
    samples = [sample for split in ("train", "heldout") for sample in problems.samples(split)]
    assert len(samples) == len({sample.seed for sample in samples}) == 30
    assert len(task("environment", {**keys, "repeats": False}).samples("train")) == 1
