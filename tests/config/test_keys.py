"""`groupwise keys` and docs/reference/keys.md hold every key that a recipe may have, each with what it means."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from groupwise.algorithms.settings import DIVERGENCES, KINDS, algorithm, settings
from groupwise.cli.__main__ import app
from groupwise.config.described import KeySection, chosen, page, text
from groupwise.config.keys import sections
from groupwise.config.recipe import Recipe, section_type
from groupwise.config.recipe_files import find, first_sentence, shipped
from groupwise.core.errors import UsageError
from groupwise.core.settings import Settings
from groupwise.rewards.functions import form
from groupwise.tasks.make import kind_of, names

#: Section -> its part of the page.
PARTS = dict(part.split("\n", 1) for part in page(sections()).split("\n## ")[1:])
EVERY = {(section.name, key.name): key for section in sections() for key in section.keys}


def declared() -> set[str]:
    """Every key of every object that a recipe is read into."""
    keys = {f"task.{field.name}" for name in names() for field in dataclasses.fields(kind_of(name))}
    keys |= {f"rewards.NAME.{field.name}" for kind in form.KINDS.values() for field in dataclasses.fields(kind)}
    keys |= {
        f"algorithm.{slot}.{field.name}"
        for slot, kinds in KINDS.items()
        for kind in kinds.values()
        for field in dataclasses.fields(kind)
    }
    keys |= {f"algorithm.kl.{field.name}" for kind in DIVERGENCES.values() for field in dataclasses.fields(kind)}
    for slot, values in settings(algorithm("grpo")).items():
        keys |= {f"algorithm.{slot}.{key}" for key in values} if isinstance(values, dict) else {f"algorithm.{slot}"}
    for name, field in Recipe.model_fields.items():
        kind = section_type(field.annotation)
        if isinstance(kind, type) and issubclass(kind, Settings):
            keys |= {f"{name}.{key}" for key in kind.model_fields}
        elif name not in ("task", "algorithm", "rewards"):
            keys.add(name)
    return keys


def test_every_key_of_every_section_is_there_and_no_other() -> None:
    naming = {"algorithm.name", "rewards.NAME.weight", "rewards.NAME.kind", "task.name", "task.use"}
    naming |= {f"algorithm.{slot}.use" for slot in (*KINDS, "kl")}
    assert {name for _, name in EVERY} == declared() | naming


@pytest.mark.parametrize("place", EVERY)
def test_every_key_has_a_type_and_a_meaning(place: tuple[str, str]) -> None:
    key = EVERY[place]
    assert len(key.meaning.split()) > 1
    assert key.kind or key.default, "a preset's keys have values"


def test_the_page_in_docs_is_made_from_todays_settings() -> None:
    assert (Path(__file__).parents[2] / "docs" / "reference" / "keys.md").read_text() == page(sections()), (
        "run make docs"
    )


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.name)
def test_the_page_has_every_key_of_a_section_or_names_the_one_that_has_it(section: KeySection) -> None:
    text = PARTS[section.name]
    if link := re.search(
        r"^All keys of \[([\w.-]+)\]\(#[\w-]+\), with these changes and additions:$", text, re.MULTILINE
    ):
        text += PARTS[link[1]]
    for key in section.keys:
        assert f"`{key.name}`" in text
        assert not key.default or f"| `{key.default}` |" in text + PARTS.get(section.alike, "")


def test_sections_that_are_alike_exist_and_share_a_key() -> None:
    assert {section.alike for section in sections() if section.alike} <= PARTS.keys()
    without = {s.name for s in sections() if s.alike and f"](#{s.alike.replace('.', '')})" not in PARTS[s.name]}
    assert without == {"algorithm.ratio"}, "its key `use` names `level`, where others have `kind`"


def test_a_key_is_not_written_twice_where_another_section_has_it() -> None:
    assert "| `evaluation.top_k` |" not in PARTS["evaluation"]
    assert "As in [sampling](#sampling): `evaluation.temperature`" in PARTS["evaluation"]
    assert "`task.prompt`" not in PARTS["task.environment"], "all of them are those of task.data"
    assert "| `task.repeats` | boolean | `true` |" in PARTS["task.environment"], "but this one has another default"


@pytest.mark.parametrize("before", range(90, 109))
def test_a_line_of_the_page_does_not_begin_with_a_sign_of_markdown(before: int) -> None:
    title = f"{'x' * before} - y + z * a > b"
    lines = page([KeySection("one", title, ())]).partition("## one")[2].splitlines()
    assert all(len(line) <= 110 and line[:2] not in ("- ", "+ ", "* ", "> ") for line in lines)


def test_defaults_and_bounds_are_the_declared_ones() -> None:
    for key, default, bounds in (
        ("sampling.temperature", "1.0", "0 to 100"),
        ("learner.tokens_per_microbatch", '"auto"', ">= 1"),
        ("adapter.alpha", "32.0", "> 0"),
        ("learner.beta1", "0.9", ">= 0, < 1"),
        ("evaluation.problems", "", ">= 0"),
    ):
        entry = EVERY[key.partition(".")[0], key]
        assert (entry.default, entry.bounds) == (default, bounds)
    assert EVERY["learner", "learner.tokens_per_microbatch"].kind == '"auto" or integer'
    assert EVERY["learner", "learner.schedule"].kind == '"constant", "linear", "cosine"'


def test_a_section_is_printed_with_those_inside_it() -> None:
    assert [section.name for section in chosen(sections(), "checkpoint")] == ["checkpoint"]
    assert {"algorithm.trust", "algorithm.trust.clip"} <= {
        section.name for section in chosen(sections(), "algorithm.trust")
    }
    assert "  checkpoint.every = 50  (integer, >= 1)\n      steps between" in text(chosen(sections(), "checkpoint"))


def test_a_key_is_printed_alone_in_its_section() -> None:
    (section,) = chosen(sections(), "learner.learning_rate")
    assert (section.name, [key.name for key in section.keys]) == ("learner", ["learner.learning_rate"])
    limits = {section.name for section in chosen(sections(), "task.limit")}
    assert limits == {"task.data", "task.environment", "task.agent"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("lerner", r"keys 'lerner': there is no such section or key; did you mean 'learner'\?"),
        ("trust", r"keys 'trust': there is no such section or key; did you mean 'algorithm\.trust'\?"),
        ("learner.learning_rat", r"there is no such section or key; did you mean 'learner\.learning_rate'\?"),
        ("num_generations", r"keys 'num_generations': a name of TRL's; here it is samples_per_prompt: "),
    ],
)
def test_a_name_that_is_neither_is_answered(wrong: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        chosen(sections(), wrong)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--version"], "groupwise 0.1.0"),
        (["keys", "journal"], "[journal]  Report, per-token columns and trackers."),
        (["recipes"], "quickstart "),
        (["explain"], "grpo        "),
    ],
)
def test_the_commands_say_it(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    app(words, standalone_mode=False)
    assert any(shown.startswith(line) for shown in capsys.readouterr().out.splitlines())


def test_every_recipe_that_comes_along_says_what_it_is() -> None:
    assert "quickstart" in shipped()
    assert all(len(first_sentence(find(name)).split()) > 2 for name in shipped())
