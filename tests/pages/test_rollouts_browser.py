"""The browser of rollouts in a real browser: it shows what it was given, and executes nothing of it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.reports.page.page import write
from groupwise.reports.records import (
    Page,
    RolloutGroup,
    RolloutRow,
    Rollouts,
    RunPage,
    Section,
    Status,
)

#: Longer than the suite's time allows; `make test-slow` has them.
pytestmark = pytest.mark.slow

HOSTILE = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>\n\ta\x00b\x1b\u202e\x7f"
COLUMNS = ("log_ratio", "advantage", "share", "entropy", "logp_old", "logp_engine")
Open = Callable[..., Any]


def row_of(rng: random.Random, score: float | None, tokens: int, told: bool = True) -> RolloutRow:
    pieces = [rng.choice([" x", " = 3", "\n", "because", HOSTILE]) for _ in range(tokens - 1)] + ["<end>"]
    signed = {"log_ratio", "advantage"}
    return RolloutRow(
        text="".join(pieces[:-1]),
        score=score,
        reward=score,
        advantage=None if score is None else score - 0.5,
        finish=rng.choice(["stop", "length"]),
        tokens=tokens,
        version=0,
        fault="" if score is not None else "timeout in task",
        pieces=pieces if told else [],
        columns={n: [rng.gauss(0, 1) if n in signed else rng.random() for _ in pieces] for n in COLUMNS if told},
    )


def group_of(rng: random.Random, step: int, number: int, told: bool = True, size: int = 4) -> RolloutGroup:
    kind = rng.choice(["mixed", "all right", "all wrong", "unscored"])
    scores = {"mixed": [0.0, 1.0, 0.25], "all right": [1.0], "all wrong": [0.0], "unscored": [None]}[kind]
    return RolloutGroup(
        step=step,
        group=number,
        key=f"train:{step * 100 + number}",
        source=rng.choice(["sums", "words"]),
        prompt=f"What is {step} + {number}?",
        answer=str(step + number),
        kind=kind,
        fate=rng.choice(["trained", "dropped", "surplus"]),
        fresh=True,
        completions=[row_of(rng, scores[i % len(scores)], rng.randint(3, 30), told) for i in range(size)],
    )


def groups_of(seed: int, steps: int, per_step: int, **how: Any) -> list[RolloutGroup]:
    rng = random.Random(seed)
    return [group_of(rng, step, number, **how) for step in range(1, steps + 1) for number in range(per_step)]


def load(browser: Any, folder: Path, groups: list[RolloutGroup], seen: list[str]) -> Any:
    """A whole page as a run writes it; `seen` collects what it complains about and asks for."""
    run = RunPage("run", "run", Status("finished", ""), rollouts=Rollouts("all of them", groups))
    write(Page("run", "", (Section("writes", "Writes", ""),), (), (run,)), folder / "page.html")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else seen.append(asked.url))
    page.goto(f"file://{folder}/page.html")
    return page


@pytest.fixture(scope="module")
def loaded(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[str]]:
    """One page for all tests: to load it anew for each would take longer than the tests."""
    seen: list[str] = []
    return load(chromium, tmp_path_factory.mktemp("page"), [], seen), seen


@pytest.fixture
def opened(loaded: tuple[Any, list[str]]) -> Iterator[Open]:
    """Draws the browser of these groups; afterwards nothing was executed, asked for or complained about."""
    page, seen = loaded

    def show(groups: list[RolloutGroup], named: str = "", width: int = 1200) -> Any:
        page.set_viewport_size({"width": width, "height": 900})
        told = json.dumps({"runs": [{"rollouts": {"words": "all of them", "groups": [asdict(g) for g in groups]}}]})
        page.evaluate(f"location.hash = '{named}'")
        page.evaluate("told => groupwise.rollouts(document.querySelector('#rollouts'), JSON.parse(told))", told)
        return page

    yield show
    assert (page.evaluate("window.hit"), seen) == (None, [])


def details(page: Any, group: RolloutGroup) -> Any:
    return page.locator(f"details.group[data-step='{group.step}'][data-group='{group.group}']")


def unfold(page: Any, group: RolloutGroup) -> Any:
    page.evaluate("name => { location.hash = ''; location.hash = name; }", f"rollout-{group.step}-{group.group}")
    found = details(page, group)
    found.locator("[data-text=prompt]").wait_for()
    return found


def ask(page: Any, **wanted: str) -> tuple[int, int]:
    """Resets, sets these filters -> (groups, completions) that match, as the page counts them."""
    page.locator("[data-filter=reset]").click()
    for name, value in wanted.items():
        control = page.locator(f"[data-filter='{name.replace('_', '-')}']")
        if name in ("kind", "fate", "finish", "source"):
            control.select_option(value)
        else:
            control.fill(value)
    count = page.locator(".rollouts .count")
    return int(count.get_attribute("data-groups")), int(count.get_attribute("data-completions"))


def matching(groups: list[RolloutGroup], wanted: dict[str, str]) -> tuple[int, int]:
    """The same, said plainly."""
    limits = {"from": (lambda a, b: a >= b), "to": (lambda a, b: a <= b)}

    def fits(group: RolloutGroup, row: RolloutRow) -> bool:
        told: dict[str, Any] = {**asdict(group), **asdict(row), "length": row.tokens}
        for name, value in wanted.items():
            column, _, end = name.partition("_")
            if name == "search":
                if all(value.lower() not in told[where].lower() for where in ("prompt", "answer", "key", "text")):
                    return False
            elif end:
                if told[column] is None or not limits[end](told[column], float(value)):
                    return False
            elif told[name] != value:
                return False
        return True

    found = [sum(fits(group, row) for row in group.completions) for group in groups]
    return sum(count > 0 for count in found), sum(found)


CHOICES = {
    "search": ["BECAUSE", "what is 3", "train:20", "<script>", "no such text"],
    "kind": ["mixed", "all right", "all wrong", "unscored"],
    "fate": ["trained", "dropped", "surplus"],
    "finish": ["stop", "length"],
    "source": ["sums", "words"],
    "score_from": ["0", "0.25", "0.3"],
    "score_to": ["0", "0.25", "1"],
    "length_from": ["8"],
    "length_to": ["20"],
    "step_from": ["2"],
    "step_to": ["4"],
}


def test_filters_find_what_a_plain_search_finds(opened: Open) -> None:
    groups = groups_of(seed=1, steps=5, per_step=8, told=False)
    page, rng = opened(groups), random.Random(2)
    assert ask(page) == (len(groups), sum(len(group.completions) for group in groups))
    asked = [{"search": words} for words in CHOICES["search"]]
    for _ in range(10):
        asked.append({name: rng.choice(CHOICES[name]) for name in rng.sample(sorted(CHOICES), rng.randint(1, 3))})
    for wanted in asked:
        assert ask(page, **wanted) == matching(groups, wanted), wanted


def test_completions_that_do_not_match_are_dimmed(opened: Open) -> None:
    group = groups_of(seed=3, steps=1, per_step=1)[0]
    group = replace(group, completions=[replace(row, tokens=9 + i) for i, row in enumerate(group.completions)])
    page = opened([group])
    found = unfold(page, group)
    ask(page, length_from="11")
    dimmed = "all => all.map(one => one.classList.contains('dimmed'))"
    assert found.locator("article").evaluate_all(dimmed) == [True, True, False, False]
    assert found.locator("summary .mark").evaluate_all(dimmed) == [True, True, False, False]


def test_a_token_tells_the_numbers_it_was_given(opened: Open) -> None:
    groups, rng = groups_of(seed=4, steps=3, per_step=3), random.Random(5)
    page = opened(groups)
    for _ in range(10):
        group = rng.choice(groups)
        number = rng.randrange(len(group.completions))
        row = group.completions[number]
        index = rng.randrange(len(row.pieces))
        unfold(page, group).locator(f"article[data-row='{number}'] .token[data-index='{index}']").focus()
        panel = page.locator(".rollouts-numbers")
        told = {name: float(panel.locator(f"[data-column={name}]").inner_text()) for name in (*COLUMNS, "ratio")}
        given = {name: row.columns[name][index] or 0.0 for name in COLUMNS}
        assert told == pytest.approx({**given, "ratio": math.exp(given["log_ratio"])}, rel=1e-6)


@pytest.mark.parametrize("own", [False, True], ids=["of the group", "of the completion"])
def test_colours_are_the_numbers_on_the_scale_that_the_legend_names(opened: Open, own: bool) -> None:
    group = groups_of(seed=6, steps=1, per_step=1)[0]
    found = unfold(opened([group]), group)
    found.locator("[data-heat=column]").select_option("log_ratio")
    found.locator("[data-heat=own-scale]").set_checked(own)
    most = [max(abs(v or 0.0) for v in row.columns["log_ratio"]) for row in group.completions]
    reach = most if own else [max(most)] * len(most)
    look = "all => all.map(one => [one.dataset.side, Number(one.style.getPropertyValue('--level'))])"
    for number, row in enumerate(group.completions):
        drawn = found.locator(f"article[data-row='{number}'] .token").evaluate_all(look)
        values = [v or 0.0 for v in row.columns["log_ratio"]]
        assert [side for side, _ in drawn] == ["above" if v > 0 else "below" for v in values]
        assert [level for _, level in drawn] == pytest.approx([abs(v) / reach[number] for v in values], abs=1e-4)
    ends = found.locator(".heat-legend:visible [data-high] b").all_inner_texts()
    assert [float(end) for end in ends] == pytest.approx(most if own else [max(most)], rel=1e-3)


def test_a_hostile_text_is_shown_and_nothing_of_it_is_executed(chromium: Any, tmp_path: Path) -> None:
    group = replace(groups_of(seed=7, steps=1, per_step=1)[0], prompt=HOSTILE, answer=HOSTILE, key=HOSTILE)
    seen: list[str] = []
    page = load(chromium, tmp_path, [group], seen)
    found = unfold(page, group)
    shown = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>\n\ta␀b␛⟨U+202E⟩␡"
    assert found.locator("[data-text=prompt]").text_content() == shown
    assert found.locator("[data-text=answer]").text_content() == shown
    assert found.locator("script, img").count() == 0
    pieces = "all => all.map(one => one.textContent)"
    drawn = [article.locator(".token").evaluate_all(pieces) for article in found.locator("article").all()]
    assert [len(texts) for texts in drawn] == [row.tokens for row in group.completions]
    assert shown.replace("\n", "↵\n").replace("\t", "␉") in {text for texts in drawn for text in texts}
    assert (page.evaluate("window.hit"), seen) == (None, [])
    page.close()


def test_a_run_without_tokens_shows_its_texts_and_says_why(opened: Open) -> None:
    group = replace(groups_of(seed=8, steps=1, per_step=1, told=False)[0], fate="trained", kind="mixed")
    group = replace(group, completions=[replace(row, score=1.0, text="plain  text") for row in group.completions])
    found = unfold(opened([group]), group)
    assert found.locator("[data-text=completion]").all_text_contents() == ["plain  text"] * 4
    assert "journal.token_budget" in found.locator("article .note").first.inner_text()
    assert found.locator("[data-heat]").count() == 0


def test_why_a_group_does_not_train_is_said_in_its_line(opened: Open) -> None:
    group = groups_of(seed=9, steps=1, per_step=1, told=False)[0]
    flat = [replace(row, score=1.0, advantage=0.0, learned=None) for row in group.completions]
    unscored = [replace(row, score=None, advantage=0.0) for row in flat]
    told = [
        (replace(group, group=0, kind="all right", fate="trained", completions=flat), "every advantage is 0"),
        (
            replace(group, group=1, kind="all wrong", fate="dropped", completions=flat),
            "dropped by the filter: all wrong",
        ),
        (replace(group, group=2, kind="mixed", fate="surplus", completions=flat), "surplus: trains next step"),
        (replace(group, group=3, kind="unscored", fate="trained", completions=unscored), "does not train"),
    ]
    page = opened([group for group, _ in told])
    for group, words in told:
        assert words in details(page, group).locator("summary .fate").inner_text()


def test_a_group_that_is_measured_by_a_reward_shows_rewards_and_what_was_logged(opened: Open) -> None:
    group = groups_of(seed=13, steps=1, per_step=1, told=False)[0]
    rewards = [-4.0, -2.0, -3.0, None]
    rows = [
        replace(row, score=None, measured=reward, logged={"mine.first": HOSTILE, "mine.length": 3.5}, fault="")
        for row, reward in zip(group.completions, rewards, strict=True)
    ]
    group = replace(group, kind="rewards differ", fate="trained", completions=rows)
    equal = replace(group, group=1, kind="rewards equal", fate="dropped")
    page = opened([group, equal])
    summary = details(page, group).locator("summary")
    assert "reward -4, reward -2, reward -3, no score" in summary.locator(".marks").get_attribute("aria-label")
    fills = [mark.evaluate("m => m.style.getPropertyValue('--fill')") for mark in summary.locator(".mark").all()]
    assert fills == ["0.000", "1.000", "0.500", "0.000"]
    assert "wrong" not in summary.inner_text()
    assert "every completion earned the same" in details(page, equal).locator("summary .fate").inner_text()
    found = unfold(page, group)
    assert found.locator("[data-field='measured']").first.inner_text() == "-4"
    assert found.locator("[data-field='logged.mine.length']").first.inner_text() == "3.5"
    assert found.locator("[data-field='logged.mine.first']").count() == 4
    assert found.locator("[data-field='score']").count() == 0
    assert ask(page, kind="rewards equal") == (1, 4)
    assert ask(page, measured_from="-3.2") == (2, 4)


def test_an_address_opens_a_group_that_filters_hide(opened: Open) -> None:
    groups = groups_of(seed=10, steps=6, per_step=8, told=False)
    page = opened(groups, "#rollout-6-7")
    details(page, groups[-1]).locator("[data-text=prompt]").wait_for()
    assert page.locator("details.group[open]").count() == 1
    assert ask(page, search="no such text") == (0, 0)
    unfold(page, groups[0])
    page.evaluate("location.hash = 'rollout-99-1'")
    page.wait_for_function("document.querySelector('.rollouts .count').textContent.includes('step 99 is not among')")


def test_arrow_keys_walk_over_the_tokens(opened: Open) -> None:
    group = groups_of(seed=11, steps=1, per_step=1)[0]
    page = opened([group], width=390)
    found = unfold(page, group)
    found.locator("article[data-row='0'] .token").first.focus()
    last = len(group.completions[0].pieces) - 1
    at = "document.activeElement.dataset.index"
    for key, index in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last), ("Home", 0)):
        page.keyboard.press(key)
        assert (page.evaluate(at), page.locator(".rollouts-numbers").get_attribute("data-index")) == (str(index),) * 2
    page.keyboard.press("Escape")
    assert page.locator(".rollouts-numbers").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_groups_that_come_later_push_out_the_oldest_but_none_that_is_open(opened: Open) -> None:
    groups = groups_of(seed=12, steps=40, per_step=10, told=False, size=1)
    page = opened(groups)
    found = unfold(page, groups[0])
    found.locator("[data-text=prompt]").focus()
    later = [asdict(replace(group, step=group.step + 40)) for group in groups[:30]]
    page.evaluate("told => groupwise.moreRollouts(JSON.parse(told))", json.dumps({"words": "", "groups": later}))
    assert ask(page) == (400, 400)
    assert ask(page, step_from="41") == (30, 30)
    assert ask(page, step_to="3") == (1, 1)
    page.locator("[data-filter=reset]").click()
    assert details(page, groups[0]).get_attribute("open") is not None
    assert "30 groups more" in page.locator(".rollouts .shown").inner_text()


def test_filters_answer_at_once(opened: Open) -> None:
    long = "and then we add twelve to both sides, because it follows. " * 25
    groups = groups_of(seed=13, steps=50, per_step=8, told=False, size=8)
    page = opened([replace(g, completions=[replace(r, text=long) for r in g.completions]) for g in groups])
    took = page.evaluate(
        """() => ["it follows", "nothing like it", "twelve"].map(words => {
            const search = document.querySelector("[data-filter=search]");
            const start = performance.now();
            search.value = words;
            search.dispatchEvent(new Event("input", { bubbles: true }));
            document.body.getBoundingClientRect();
            return performance.now() - start;
        })"""
    )
    assert min(took) < 100
