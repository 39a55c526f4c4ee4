"""What is answered without torch: keys, recipes, algorithms and mistyped names, equal to what the settings declare."""

from __future__ import annotations

import subprocess
import sys

import pytest

from groupwise.algorithms import explain
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.settings import algorithm, settings
from groupwise.config import answers, keys, recipe
from groupwise.core.errors import UsageError


def test_the_file_is_made_from_todays_settings() -> None:
    assert answers.ANSWERS.read_text(encoding="utf-8") == keys.made_answers(), "run make docs"


def test_it_reads_back_as_what_it_was_made_from() -> None:
    assert answers.sections() == keys.sections()
    assert answers.family() == explain.family()
    assert {name: answers.explained(name) for name in CATALOG} == {name: explain.explain(name) for name in CATALOG}


@pytest.mark.parametrize(
    "words",
    [
        ["recipes"],
        ["keys"],
        ["keys", "learner"],
        ["keys", "lerner"],
        ["explain"],
        ["explain", "grpo"],
        ["explain", "gropo"],
        ["explain", "grpo", "--against", "gpso"],
        ["train", "quickstart", "--set", "algorithm.name=gropo"],
        ["train", "quikstart"],
        ["train", "quickstart", "--set", "stps=3"],
        ["train", "quickstart", "--set", "algorithm.nam=grpo"],
        ["train", "quickstart", "--set", "algorithm.trust.epsilon_hig=0.3"],
        ["check", "quickstart", "--set", "learner.rate=3"],
        ["plan", "quickstart", "--set", "num_generations=8"],
        ["train", "--resume", "runs/typo"],
        ["export", "runs/typo", "out"],
        ["eval", "runs/typo"],
        ["eval", "typo", "--recipe", "quikstart"],
        ["eval", "typo", "--recipe", "quickstart", "--set", "stps=3"],
        ["train"],
        ["trian"],
    ],
    ids=" ".join,
)
def test_an_answer_does_not_wait_for_torch(words: list[str]) -> None:
    program = "from groupwise.cli.__main__ import main\ntry:\n    main()\nfinally:\n    print('torch' in sys.modules)"
    code = f"import sys\n{program}"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stps": 3}, "quickstart.toml: stps: there is no such key; did you mean 'steps'?"),
        ({"learner": {"scedule": 1}}, "learner.scedule: there is no such key; did you mean 'schedule'?"),
        ({"lerner": {"beta1": 1}}, "lerner: there is no such key; did you mean 'learner'?"),
        ({"critic": {"learner": {"rate": 1}}, "sampling": {"x": 1}}, "sampling.x: there is no such key; "),
        ({"num_generations": 8}, "num_generations: a name of TRL's; here it is samples_per_prompt"),
        ({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}, "; and 2 more"),
        ({"trainer": {"clip_norm": 1}}, "quickstart.toml: trainer"),
        ({".".join("a" * 3000): 1}, "more than 16 tables and lists inside one another"),
    ],
)
def test_a_key_that_does_not_exist_is_answered_in_the_same_words_with_and_without_torch(changes, words) -> None:
    with pytest.raises(UsageError) as early:
        answers.require_known_keys("quickstart", changes)
    with pytest.raises(UsageError) as late:
        recipe.load("quickstart", changes)
    assert str(early.value) == str(late.value)
    assert words in str(early.value)


@pytest.mark.parametrize("name", [*CATALOG])
@pytest.mark.parametrize(
    "keys",
    [
        {"nam": "x"},
        {"kl.bet": 1},
        {"trust.epsilon_hig": 0.3},
        {"trust": {"kind": "soft", "tau_plus": 0.1}},
        {"ratio": {"kind": "token", "levle": 1}},
        {"kl": {"estimator": "full", "mixtur": 0.5}},
        {"advantage.knid": "z-score"},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_a_key_that_a_part_has_not_is_answered_in_the_same_words_with_and_without_torch(name, keys) -> None:
    with pytest.raises(UsageError) as late:
        algorithm(name, keys)
    with pytest.raises(UsageError) as early:
        answers.require_known_keys("quickstart", {f"algorithm.{k}": v for k, v in {"name": name, **keys}.items()})
    assert str(early.value) == str(late.value)


@pytest.mark.parametrize("name", [*CATALOG])
def test_what_a_row_has_is_refused_by_no_answer(name) -> None:
    row = algorithm(name)
    for slot, values in settings(row).items():
        answers.require_known_keys("quickstart", {"algorithm.name": name, f"algorithm.{slot}": values})
    answers.require_known_keys("quickstart", {"algorithm.trust": {"use": "mine.py:Part", "own": 1}})
    answers.require_known_keys("quickstart", {"algorithm.trust": {"kind": "of-a-package", "own": 1}})
    answers.require_known_keys("quickstart", {"algorithm.trust": {"kind": ["clip"], "own": 1}})


def test_an_algorithm_that_does_not_exist_is_answered_in_the_same_words_with_and_without_torch() -> None:
    said = []
    for ask in (
        lambda: answers.explained("gropo"),
        lambda: answers.require_known_keys("quickstart", {"algorithm.name": "gropo"}),
        lambda: explain.explain("gropo"),
    ):
        with pytest.raises(UsageError) as error:
            ask()
        said.append(str(error.value))
    assert said == said[:1] * 3
    assert said[0].startswith("algorithm.name = 'gropo': there is no such algorithm; did you mean 'grpo'?")
