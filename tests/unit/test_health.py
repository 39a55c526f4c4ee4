"""What the numbers mean: each finding is raised by what it is for and by no healthy run; answers say what is known."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from groupwise import health
from groupwise.health import BAD, GOOD, NEUTRAL, WARN, WATCHERS, Finding, Watch, findings
from groupwise.report.answers import QUESTIONS, Told, answers, check_lines, interval
from groupwise.report.data import RolloutGroup
from groupwise.symptoms.base import RECENT, History, percent
from groupwise.symptoms.signal import windows
from groupwise.symptoms.updates import later_share

DOCS = Path(__file__).parents[2] / "docs"

RECIPE: dict[str, Any] = {
    "steps": 40,
    "model": "tiny-dense",
    "prompts_per_step": 64,
    "samples_per_prompt": 8,
    "updates_per_batch": 2,
    "passes_per_batch": 1,
    "task": {"name": "arithmetic"},
    "warm_start": {"steps": 1000},
    "algorithm": {
        "name": "grpo",
        "filter": {"kind": "none"},
        "advantage": {"kind": "group-zscore"},
        "ratio": {"level": "token"},
        "trust": {"kind": "clip", "epsilon_low": 0.2, "epsilon_high": 0.2},
        "kl": {"beta": 0.04, "place": "loss"},
        "shaping": {"kind": "outcome", "overlong_cache": 0.0, "step_scale": 0.0},
    },
    "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 32},
    "evaluation": {"temperature": 1.0, "top_p": 1.0, "top_k": 0},
    "learner": {"learning_rate": 3e-4, "clip_norm": 1.0},
}

Rows = list[dict[str, Any]]


def recipe(**changes: Any) -> dict[str, Any]:
    """RECIPE with dotted keys, their dots as two underscores, laid over it."""
    made: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in RECIPE.items()}
    made["algorithm"] = {k: dict(v) if isinstance(v, dict) else v for k, v in made["algorithm"].items()}
    for key, value in changes.items():
        *sections, last = key.split("__")
        table = made
        for section in sections:
            table = table.setdefault(section, {})
        table[last] = value
    return made


def healthy(steps: int = 40) -> Rows:
    """Steps of a run that learns and is not done: what they hold is what sound runs of the quickstart hold."""
    noise = random.Random(0)
    rows = []
    for i in range(steps):
        at = i / 40
        rows.append(
            {
                "step": i + 1,
                "score_mean": 0.4 + 0.4 * at + noise.gauss(0, 0.01),
                "pass_rate": 0.4 + 0.4 * at + noise.gauss(0, 0.01),
                "length_mean": 8.0 + 2 * at,
                "length_right_mean": 11.0,
                "length_wrong_mean": 6.0 + noise.gauss(0, 1),
                "truncated_share": 0.01,
                "unscored_completions": 0,
                "groups_mixed_share": 0.9 - 0.4 * at,
                "groups_all_right_share": 0.05 + 0.4 * at,
                "groups_all_wrong_share": 0.05,
                "generated_completions": 512,
                "generated_tokens": 4000,
                "generated_tokens_dropped": 0,
                "groups_generated": 64,
                "groups_dropped": 0,
                "groups_fallback": 0,
                "stale_rows_share": 0.0,
                "advantage_abs_mean": 0.5,
                "engine_gap_mean": 3e-7,
                "engine_probability_error": 1.0000003,
                "engine_effective_sample_share": 0.99999,
                "gradient_norm": 0.3,
                "gradient_norm_max": 0.3 + 0.4 * noise.random(),
                "learning_rate": 3e-4,
                "updates": 2,
                "updates_skipped": 0,
                "share_passed": 0.99,
                "share_passed_positive": 0.99,
                "share_passed_negative": 0.98,
                "ratio_token_p01": 0.95,
                "ratio_token_p99": 1.06,
                "log_ratio_abs_max": 0.1 + 0.1 * noise.random(),
                "log_ratio_clamped_tokens": 0.0,
                "effective_sample_share": 0.999,
                "entropy_mean": 0.33 * 0.9**i + 0.02,
                "kl_mean": 0.2 * at,
                "checks": checks(),
                "seconds": {"generate": 0.1, "update": 0.2},
            }
        )
    return rows


def checks(**changes: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "live = old on the first update": {"verdict": "pass", "value": 1e-7, "limit": 1e-5},
        "learner = engine": {"verdict": "pass", "value": 2e-6, "limit": 1e-4},
        "KL to the reference is 0 at step 0": {"verdict": "not measured", "value": None, "limit": None},
    }
    return {**told, **changes}


def planted(last: int = RECENT, **changes: Any) -> Rows:
    """Healthy steps, the last ones changed; a change is a value, or a function of the row's place among those."""
    rows = healthy()
    for place, row in enumerate(rows[-last:]):
        row |= {k: v(place) if callable(v) else v for k, v in changes.items()}
    return rows


def everywhere(**changes: Any) -> Rows:
    return planted(40, **changes)


def drop_keys(rows: Rows, *names: str) -> Rows:
    return [{k: v for k, v in row.items() if k not in names} for row in rows]


def dropping(**changes: Any) -> Rows:
    return everywhere(groups_all_right_share=0.6, groups_mixed_share=0.35, **changes)


def evaluation(step: int, rate: float | None, **changes: Any) -> dict[str, Any]:
    told = {"problems": 512, "samples": 4, "avg_at_k": rate, "length_mean": 6.7 + step / 10, **changes}
    return {"step": step, "evaluation": told, "seconds": {"evaluate": 0.4}}


DAPO = recipe(algorithm__name="dapo", algorithm__filter={"kind": "drop-uniform", "max_rounds": 10})
GSPO = recipe(
    algorithm__ratio={"level": "sequence"}, algorithm__trust={"kind": "clip", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
)
WITH_FORMAT = recipe(rewards={"task": {}, "format": {"weight": 0.2}})
JUDGED = recipe(preference={"pairs": 2000})

#: For each finding: rows and a recipe that must raise it, and words that must be in it.
PLANTED: Mapping[str, tuple[Rows, dict[str, Any], str]] = {
    "ratio tails": (planted(ratio_token_p99=3.0), RECIPE, "3 times"),
    "few effective samples": (planted(effective_sample_share=0.5), RECIPE, "50 %"),
    "log-ratios clamped": (planted(2, log_ratio_clamped_tokens=3), RECIPE, "6 tokens"),
    "entropy cliff": (
        planted(entropy_mean=lambda i: 1.0 if i < 5 else 0.1, pass_rate=0.6),
        RECIPE,
        "from 1 to 0.1 nats",
    ),
    "entropy explosion": (
        planted(entropy_mean=lambda i: 0.2 + 0.3 * i, pass_rate=lambda i: 0.7 - 0.05 * i),
        RECIPE,
        "falling apart",
    ),
    "no entropy left": (planted(entropy_mean=0.002), RECIPE, "0.002 nats"),
    "engine gap": (planted(engine_probability_error=1.2), RECIPE, "factor of 1.2"),
    "few engine samples": (planted(engine_effective_sample_share=0.6), RECIPE, "60 %"),
    "gradient spikes": (planted(1, gradient_norm_max=30.0), RECIPE, "30 at step 40, 100 times"),
    "updates skipped": (planted(1, updates_skipped=1), RECIPE, "1 update had"),
    "gradient stopped": (planted(share_passed=0.7), RECIPE, "40 % of the gradient"),
    "trust region without effect": (
        everywhere(share_passed=1.0),
        recipe(algorithm__ratio={"level": "sequence"}),
        "clip at 0.2",
    ),
    "one sign stopped": (planted(share_passed_positive=0.75), RECIPE, "praised tokens"),
    "far from the reference": (planted(kl_mean=2.5), RECIPE, "2.5 nats"),
    "stale rows": (planted(stale_rows_share=0.4), DAPO, "40 %"),
    "critic worse than none": (everywhere(explained_variance=-0.5), RECIPE, "-0.5"),
    "parameters frozen": (everywhere(gradient_norm=0.0, gradient_norm_max=0.0), RECIPE, "frozen"),
    "learning rate too small": (everywhere(log_ratio_abs_max=1e-5, learning_rate=1e-9), RECIPE, "1e-09"),
    "groups all right": (
        planted(groups_all_right_share=0.62, groups_mixed_share=0.38, groups_all_wrong_share=0.0),
        RECIPE,
        "62 % of the groups of the last 10 steps were all right: their advantages are 0, so they train nothing",
    ),
    "groups all wrong": (planted(groups_all_wrong_share=0.8), RECIPE, "80 %"),
    "nothing right": (everywhere(pass_rate=0.0, score_mean=0.0), WITH_FORMAT, "(format)"),
    "few mixed groups": (
        planted(groups_all_right_share=0.45, groups_mixed_share=0.1, groups_all_wrong_share=0.45),
        RECIPE,
        "10 %",
    ),
    "generation dropped": (dropping(generated_tokens_dropped=3600), DAPO, "90 %"),
    "fallback": (planted(3, groups_fallback=4), DAPO, "12 groups without signal"),
    "completions cut off": (planted(truncated_share=0.4), RECIPE, "40 % of the completions of the last 10 steps"),
    "length bias": (planted(length_wrong_mean=40.0, length_right_mean=12.0), RECIPE, "to 40 tokens"),
    "scoring faults": (planted(2, **{"faults.timeout in mine": 3}), RECIPE, "6 timeout in mine"),
    "completions without a score": (planted(1, unscored_completions=7), RECIPE, "7 of 20480"),
    "over-optimisation": (
        everywhere(learned_mean=lambda i: i / 40, pass_rate=lambda i: 0.8 - abs(i - 10) / 100),
        JUDGED,
        "please the reward model",
    ),
    "reward model cannot tell": (planted(learned_right_mean=0.5, learned_wrong_mean=0.6), JUDGED, "no longer"),
    "reward without spread": (planted(**{"rewards.format.spread_within_groups": 0.0}), WITH_FORMAT, "format"),
    "solved": (planted(pass_rate=0.97), RECIPE, "0.97"),
    "still rising": (healthy(), RECIPE, "still rising"),
    "levelled off": (planted(20, pass_rate=0.65), RECIPE, "levelled off at 0.65"),
    "pass rate falling": (planted(pass_rate=0.3), RECIPE, "to 0.3"),
    "held out apart": ([*healthy(), evaluation(0, 0.4), evaluation(40, 0.4)], RECIPE, "0.4, and 0.7"),
    "never measured": (everywhere(engine_gap_mean=None), RECIPE, "engine_gap_mean"),
}


def named(found: tuple[Finding, ...]) -> dict[str, Finding]:
    assert len({f.name for f in found}) == len(found)
    return {f.name: f for f in found}


def test_every_finding_is_planted_here() -> None:
    assert list(PLANTED) == [w.name for w in WATCHERS]


@pytest.mark.parametrize("name", PLANTED)
def test_what_a_finding_is_for_raises_it(name: str) -> None:
    rows, told, words = PLANTED[name]
    found = named(findings(rows, told))[name]
    assert words in found.words
    assert found.tone in (NEUTRAL, GOOD, WARN, BAD)
    assert re.fullmatch(r"[A-Z\d].*\.", found.words)
    assert found.advice
    assert not found.advice.endswith(".")


def looks(name: str, rows: Rows, told: dict[str, Any]) -> Any:
    """What the finding alone says of rows, evaluations among them or not."""
    steps = [row for row in rows if "evaluation" not in row]
    return next(w for w in WATCHERS if w.name == name).look(
        History(steps, [row for row in rows if "evaluation" in row], told)
    )


def rates(*pieces: tuple[int, float], spread: float = 0.0, **changes: Any) -> Rows:
    """Steps whose pass rate is each piece's for its number of steps, up and down by `spread`."""
    flat = [rate for count, rate in pieces for _ in range(count)]
    rows = [dict(healthy()[0], step=i + 1, pass_rate=rate + spread * (-1) ** i) for i, rate in enumerate(flat)]
    return [{**row, **changes} for row in rows]


def rising_level(rows: Rows) -> Rows:
    return [{**row, "sources.sums.level": row["step"] // 31} if "evaluation" not in row else row for row in rows]


FORMAT_FLAT = {"rewards.format.spread_within_groups": 0.0}

#: Just inside and just outside of each limit, and what excuses a finding: (finding, rows, recipe, whether it speaks).
LIMITS: list[tuple[str, Rows, dict[str, Any], bool]] = [
    (
        "few mixed groups",
        planted(groups_all_right_share=0.45, groups_mixed_share=0.22, groups_all_wrong_share=0.33),
        RECIPE,
        False,
    ),
    ("generation dropped", dropping(generated_tokens_dropped=2800), DAPO, False),
    ("generation dropped", dropping(generated_tokens_dropped=3200), DAPO, True),
    ("completions cut off", planted(truncated_share=0.09), RECIPE, False),
    ("completions cut off", planted(truncated_share=0.12), RECIPE, True),
    ("length bias", planted(length_wrong_mean=20.0, length_right_mean=12.0), RECIPE, False),
    ("length bias", planted(length_wrong_mean=7.5, length_right_mean=3.0), RECIPE, False),
    ("reward model cannot tell", planted(learned_right_mean=0.55, learned_wrong_mean=0.5), JUDGED, False),
    ("reward without spread", planted(**{"rewards.task.spread_within_groups": 0.0}), WITH_FORMAT, False),
    ("reward without spread", planted(pass_rate=0.97, **FORMAT_FLAT), WITH_FORMAT, False),
    ("nothing right", planted(pass_rate=lambda i: 0.1 * (i == 5)), WITH_FORMAT, False),
    ("fallback", [*planted(3, groups_fallback=4), *rates((10, 0.8))], DAPO, False),
    ("completions without a score", planted(1, unscored_completions=7, learned_mean=0.5), JUDGED, True),
    ("completions without a score", everywhere(unscored_completions=512, learned_mean=0.5), JUDGED, False),
    ("pass rate falling", rates((20, 0.6), (10, 0.55)), RECIPE, False),
    ("pass rate falling", rates((10, 0.56), (10, 0.42), spread=0.4), RECIPE, False),
    ("pass rate falling", rates((3, 0.9), (30, 0.6)), RECIPE, False),
    ("pass rate falling", rates((10, 0.8), (10, 0.5)), RECIPE, True),
    ("pass rate falling", rates((10, 0.5), (10, 0.8), (10, 0.5)), RECIPE, True),
    ("held out apart", [*healthy(), evaluation(40, 0.6)], RECIPE, True),
    ("held out apart", [*healthy(), evaluation(40, 0.6, problems=10)], RECIPE, False),
    ("held out apart", [*healthy(), evaluation(40, 0.6, standard_error=0.2)], RECIPE, False),
    ("held out apart", rising_level([*healthy(), evaluation(40, 0.4)]), RECIPE, False),
    ("solved", rising_level(planted(pass_rate=0.97)), RECIPE, False),
    ("still rising", everywhere(pass_rate=lambda i: 0.6 + 0.0095 * i), RECIPE, False),
    ("still rising", rates((30, 0.5), (10, 0.55), spread=0.2), RECIPE, False),
    ("levelled off", rates((15, 0.5)), RECIPE, False),
    ("levelled off", rates((25, 0.5)), RECIPE, True),
    ("levelled off", rising_level(rates((40, 0.5))), RECIPE, False),
    ("levelled off", rates((10, 0.7), (30, 0.4)), RECIPE, False),
    ("never measured", everywhere(pass_rate=0.0, length_right_mean=None), RECIPE, False),
    ("never measured", everywhere(pass_rate=1.0, length_wrong_mean=None), RECIPE, False),
    ("never measured", everywhere(share_passed_positive=None), RECIPE, False),
]


@pytest.mark.parametrize(("name", "rows", "told", "speaks"), LIMITS)
def test_a_finding_speaks_from_its_limit_on(name: str, rows: Rows, told: dict[str, Any], speaks: bool) -> None:
    assert bool(looks(name, rows, told)) == speaks


@pytest.mark.parametrize(("fall", "speaks"), [(0.03, False), (0.1, True)])
def test_a_small_fall_beside_a_rising_learned_score_is_chance(fall: float, speaks: bool) -> None:
    rows = [{**row, "learned_mean": row["step"] / 40} for row in rates((20, 0.7), (10, 0.7 - fall))]
    assert bool(looks("over-optimisation", rows, JUDGED)) == speaks


#: Which number stands where, and which advice goes with which cause: (finding, rows, recipe, words, advice).
SAID: list[tuple[str, Rows, dict[str, Any], str, str]] = [
    ("groups all right", PLANTED["groups all right"][0], RECIPE, "62 %", '"dapo"'),
    ("groups all wrong", planted(groups_all_wrong_share=0.8), RECIPE, "their advantages are 0", "Easier"),
    ("groups all wrong", planted(groups_all_wrong_share=0.8), DAPO, "they are dropped and replaced", "Easier"),
    (
        "groups all wrong",
        planted(groups_all_wrong_share=0.8, truncated_share=0.4),
        RECIPE,
        "80 %",
        "max_new_tokens = 64",
    ),
    (
        "few mixed groups",
        planted(groups_all_right_share=0.48, groups_mixed_share=0.12, groups_all_wrong_share=0.4),
        RECIPE,
        "48 % were all right and 40 % all wrong",
        "samples_per_prompt = 16",
    ),
    ("generation dropped", dropping(generated_tokens_dropped=3600), DAPO, "all right: the task is", "Harder"),
    (
        "generation dropped",
        dropping(generated_tokens_dropped=3600, groups_all_wrong_share=0.7),
        DAPO,
        "all wrong: the task is too hard",
        "Easier",
    ),
    ("fallback", PLANTED["fallback"][0], DAPO, "In 3 of the last 10 steps, all 10 rounds", "max_rounds"),
    (
        "scoring faults",
        planted(1, **{"faults.timeout in a": 1, "faults.nan from b": 5}),
        RECIPE,
        "6 of 20480 completions have no score because scoring failed: 5 nan from b, 1 timeout in a",
        "A reward that returns a finite number",
    ),
    ("completions without a score", everywhere(unscored_completions=512), RECIPE, "nothing trains", "return value"),
    (
        "reward model cannot tell",
        PLANTED["reward model cannot tell"][0],
        JUDGED,
        "right completions 0.5 and wrong ones 0.6",
        "More pairs",
    ),
    ("levelled off", rates((40, 0.5)), RECIPE, "0.5 in the first 10 steps, 0.5 over", "learning_rate = 9e-04"),
    ("levelled off", rates((10, 0.3), (30, 0.6)), RECIPE, "levelled off at 0.6; it began at 0.3", "cosine"),
    (
        "still rising",
        rates((20, 0.2), (10, 0.4), (10, 0.6)),
        RECIPE,
        "0.4 in the third quarter of the run, 0.6 in",
        "steps = 80",
    ),
    (
        "never measured",
        [*everywhere(kl_mean=None), evaluation(40, 0.7)],
        RECIPE,
        "in any of 40 steps: kl_mean.",
        "docs",
    ),
]


@pytest.mark.parametrize(("name", "rows", "told", "words", "advice"), SAID)
def test_a_finding_puts_its_numbers_in_order(
    name: str, rows: Rows, told: dict[str, Any], words: str, advice: str
) -> None:
    found = named(findings(rows, told))[name]
    assert words in found.words
    assert advice in found.advice


def test_over_optimisation_says_what_rose_and_what_fell() -> None:
    rows = [{**row, "learned_mean": row["step"] // 11 / 2} for row in rates((10, 0.7), (10, 0.5))]
    words = named(findings(rows, JUDGED))["over-optimisation"].words
    assert re.search(r"rose from 0 to 0.5 while the pass rate fell from 0.7 to 0.5:", words)


def test_a_solved_run_is_not_sent_to_dynamic_sampling() -> None:
    rows = planted(groups_all_right_share=0.8, groups_mixed_share=0.2, pass_rate=0.97)
    assert "dapo" not in named(findings(rows, RECIPE))["groups all right"].advice


def test_only_a_run_known_from_its_first_step_was_easy_from_the_beginning() -> None:
    easy = everywhere(groups_all_right_share=0.8, groups_mixed_share=0.2)
    assert named(findings(easy[1:], RECIPE))["groups all right"].tone == NEUTRAL


def test_a_run_waits_three_steps_unless_something_is_wrong() -> None:
    def told(rows: Rows) -> list[tuple[int, str]]:
        watch = Watch(RECIPE)
        return [(row["step"], f.name) for row in rows for f in watch(row)]

    assert told(everywhere(truncated_share=0.9)) == [(3, "completions cut off")]
    assert told(everywhere(engine_probability_error=1.2)) == [(1, "engine gap")]
    assert [name for _, name in told(rates((20, 0.8), (20, 0.5)))] == ["pass rate falling"]
    assert told(planted(**{"faults.timeout in mine": 3})) == []


def test_the_worst_of_two_comes_first_and_their_order_within_a_tone_is_the_tables() -> None:
    found = findings(planted(engine_probability_error=1.2, truncated_share=0.5, ratio_token_p99=3.0), RECIPE)
    assert [f.name for f in found][:3] == ["engine gap", "ratio tails", "completions cut off"]
    assert [f.tone for f in found][:3] == [BAD, WARN, WARN]


def test_what_was_no_warning_of_the_run_itself_is_not_told_as_one_that_has_passed() -> None:
    rows = healthy()
    for row in rows[20:30]:
        row["length_wrong_mean"] = 40.0  # not told while a run goes on
    for row in rows[10:20]:
        row |= {"groups_all_right_share": 0.8, "groups_mixed_share": 0.15}  # earned: no warning
    assert not [f.words for f in findings(rows, RECIPE) if f.words.startswith("Earlier")]


def test_an_earlier_moment_sees_as_many_steps_as_the_run_did() -> None:
    found = named(findings(rates((10, 0.9), (80, 0.5), (10, 0.9)), recipe(steps=200)))
    assert found["pass rate falling"].words.startswith("Earlier, at step 50:")


def test_the_last_moment_before_now_is_looked_at() -> None:
    rows = healthy()
    for row in rows[25:30]:
        row["truncated_share"] = 0.9
    assert named(findings(rows, RECIPE))["completions cut off"].words.startswith("Earlier, at step 30:")


@pytest.mark.parametrize("steps", [1, 2, 5, 10, 11, 25, 40])
@pytest.mark.parametrize("told", [RECIPE, GSPO, DAPO, {}])
def test_a_healthy_run_gives_no_warning(steps: int, told: dict[str, Any]) -> None:
    rows = [evaluation(0, 0.41), *healthy(steps)]
    assert not {f.name for f in findings(rows, told) if f.tone in (WARN, BAD)}
    watch = Watch(told)
    assert not [f for row in healthy(steps) for f in watch(row)]


@pytest.mark.parametrize("name", PLANTED)
def test_findings_survive_gaps(name: str) -> None:
    rows, told, _ = PLANTED[name]
    watcher = next(w for w in WATCHERS if w.name == name)
    before = repr(rows)
    for key in sorted({key for row in rows for key in row} - {"step", "evaluation"}):
        watcher.look(History(drop_keys(rows, key), (), told))
        watcher.look(History([{**row, key: None} for row in rows], (), told))
        watcher.look(History([{**row, key: float("nan")} if i % 3 else row for i, row in enumerate(rows)], (), told))
    findings(rows[-1:], told)
    findings(rows, None)
    assert findings([], told) == ()
    assert findings([evaluation(0, 0.5)], told) == ()
    assert repr(rows) == before


def test_the_worst_comes_first_and_what_has_passed_is_told_as_such() -> None:
    rows = healthy()
    for row in rows[12:20]:
        row["effective_sample_share"] = 0.3
    rows[-1]["log_ratio_clamped_tokens"] = 1
    found = findings(rows, RECIPE)
    order = [BAD, WARN, NEUTRAL, GOOD]
    tones = [order.index(f.tone) for f in found]
    assert tones == sorted(tones)
    assert found[0].name == "log-ratios clamped"
    past = named(found)["few effective samples"]
    assert past.tone == NEUTRAL
    assert past.words.startswith("Earlier, at step 20:")


def test_tied_groups_are_no_warning_where_the_run_earned_them_or_they_train_all_the_same() -> None:
    rows = PLANTED["groups all right"][0]
    assert named(findings(rows, RECIPE))["groups all right"].tone == NEUTRAL
    easy = everywhere(groups_all_right_share=0.8, groups_mixed_share=0.2)
    assert named(findings(easy, RECIPE))["groups all right"].tone == WARN
    for told in (DAPO, WITH_FORMAT, JUDGED, recipe(algorithm__advantage={"kind": "gae"})):
        assert "groups all right" not in named(findings(easy, told))


def test_a_solved_task_may_have_no_entropy() -> None:
    assert "no entropy left" not in named(findings(planted(entropy_mean=0.002, pass_rate=0.98), RECIPE))


def test_entropy_that_falls_while_the_run_learns_is_no_cliff() -> None:
    rows = planted(entropy_mean=lambda i: 1.0 if i < 5 else 0.1, pass_rate=lambda i: 0.5 + 0.03 * i)
    assert "entropy cliff" not in named(findings(rows, RECIPE))


def test_entropy_that_changes_a_little_is_neither_a_cliff_nor_an_explosion() -> None:
    falls = planted(entropy_mean=lambda i: 1.0 if i < 5 else 0.5, pass_rate=0.6)
    assert "entropy cliff" not in named(findings(falls, RECIPE))
    rises = planted(entropy_mean=lambda i: 1.0 if i < 5 else 1.4, pass_rate=lambda i: 0.7 - 0.05 * i)
    assert "entropy explosion" not in named(findings(rises, RECIPE))


def test_a_curriculum_may_lower_the_pass_rate() -> None:
    rows = planted(pass_rate=0.3)
    for row in rows:
        row["sources.sums.level"] = row["step"] // 31
    assert "pass rate falling" not in named(findings(rows, RECIPE))


def test_only_a_run_at_its_end_was_stopped_too_early() -> None:
    assert "still rising" in named(findings(healthy(), RECIPE))
    assert "still rising" not in named(findings(healthy(), recipe(steps=80)))


def test_an_older_run_has_its_engine_gap_from_the_mean() -> None:
    rows = drop_keys(planted(engine_gap_mean=0.1), "engine_probability_error", "engine_effective_sample_share")
    assert named(findings(rows, RECIPE))["engine gap"].tone == BAD


def test_the_reasons_why_nothing_moves_are_told_apart() -> None:
    still = named(findings(everywhere(log_ratio_abs_max=0.0), RECIPE))["parameters frozen"]
    assert "no update changed" in still.words
    zero = named(findings(everywhere(learning_rate=0.0), RECIPE))["parameters frozen"]
    assert "learning rate was 0" in zero.words
    alone = everywhere(log_ratio_abs_max=0.0, updates=1, share_passed=1.0)  # one update: the ratio is 1 by construction
    assert "parameters frozen" not in named(findings(alone, RECIPE))
    tied = everywhere(advantage_abs_mean=0.0, gradient_norm_max=0.0)
    assert "parameters frozen" not in named(findings(tied, RECIPE))


def test_what_passes_after_the_first_update() -> None:
    row = {"updates": 4, "share_passed": (1 + 0.9 + 0.6 + 0.3) / 4}
    assert later_share([row], "share_passed") == pytest.approx(0.6)
    assert later_share([{"updates": 1, "share_passed": 1.0}], "share_passed") is None


def test_a_spike_that_was_clipped_long_ago_is_no_warning() -> None:
    rows = healthy()
    rows[20]["gradient_norm_max"] = 30.0
    assert named(findings(rows[:21], RECIPE))["gradient spikes"].tone == WARN
    assert named(findings(rows, RECIPE))["gradient spikes"].tone == NEUTRAL
    watch = Watch(RECIPE)
    assert [row["step"] for row in rows for f in watch(row) if f.name == "gradient spikes"] == [21]
    harmless = everywhere(gradient_norm=0.01, gradient_norm_max=0.02)
    harmless[-1]["gradient_norm_max"] = 0.9  # 90 times the steps before, and still below the clip
    assert "gradient spikes" not in named(findings(harmless, RECIPE))
    for row in rows[21:]:
        row["gradient_norm"] = 10.0  # what comes later says nothing of what was a spike then
    words = named(findings(rows, RECIPE))["gradient spikes"].words
    assert words.startswith("The gradient's norm jumped to 30 at step 21")


def test_short_completions_are_named_where_gspos_epsilons_do_not_fit() -> None:
    found = named(findings(planted(share_passed=0.7), GSPO))["gradient stopped"]
    assert "Epsilons of 0.0004" in found.words
    assert "epsilon_low" in found.advice


@pytest.mark.parametrize("n", [1, 9, 10, 11, 20, 37])
def test_windows_cover_every_row_once(n: int) -> None:
    rows = [{"step": i} for i in range(n)]
    pieces = windows(rows)
    assert [row for piece in pieces for row in piece] == rows
    assert all(len(piece) == RECENT for piece in pieces[1:])


def test_a_warning_is_told_once_and_only_of_what_a_run_can_see() -> None:
    watch = Watch(RECIPE)
    told = [(row["step"], f.name) for row in planted(truncated_share=0.9) for f in watch(row)]
    assert [name for _, name in told] == ["completions cut off"]
    assert 30 < told[0][0] < 35
    assert len(watch._rows) <= health.KEPT


def test_a_step_costs_the_same_after_two_thousand() -> None:
    rows = healthy()
    watch = Watch(RECIPE)

    def seconds(steps: int) -> float:
        best = float("inf")
        for i in range(steps):
            began = time.perf_counter()
            watch({**rows[-1], "step": i})
            best = min(best, time.perf_counter() - began)
        return best

    seconds(100)
    early = seconds(100)
    seconds(1800)
    late = seconds(100)
    assert late < 3 * early
    assert late < 5e-3


def test_the_page_has_the_table() -> None:
    page = (DOCS / "reading_a_report.md").read_text()
    assert health.table() in page


def test_health_needs_no_torch() -> None:
    code = "import sys, groupwise.health, groupwise.report.answers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_percent_never_says_all_of_what_is_not_all() -> None:
    assert percent(0.9999) == "99.99 %"
    assert percent(1.0) == "100 %"
    assert percent(0.0) == "0 %"


# ---- answers


def told(rows: Rows | None = None, ended: bool = True, **changes: Any) -> Told:
    """What is told of a finished run that learned, with changes."""
    rows = healthy() if rows is None else rows
    evaluations = changes.pop("evaluations", [evaluation(0, 0.479), evaluation(40, 0.973, standard_error=0.0033)])
    table = changes.pop("recipe", RECIPE)
    given = {
        "recipe": table,
        "summary": {"steps": 40} if ended else None,
        "steps": rows,
        "evaluations": evaluations,
        "findings": findings([*rows, *evaluations], table),
    }
    return Told(**{**given, **changes})


def one(question: str, run: Told) -> tuple[str, str]:
    found = {a.question: a for a in answers(run)}
    return found[question].answer, found[question].tone


def sentences(text: str) -> int:
    return len(re.findall(r"[a-z%)\d\"]\.(?= [A-Z]|$)", text))


def group(prompt: str = "3+4+1=", answer: str = "8") -> RolloutGroup:
    return RolloutGroup(1, 0, "k", "", prompt, answer, "mixed", "trained", True, [])


RUNS: Mapping[str, Callable[[], Told]] = {
    "finished": told,
    "going": lambda: told(healthy(12), ended=False, evaluations=[evaluation(0, 0.479)]),
    "crashed before its first step": lambda: told([], ended=False, evaluations=[evaluation(0, 0.479)]),
    "empty": lambda: Told(),
    "no recipe": lambda: told(recipe={}),
    "no evaluation": lambda: told(evaluations=[]),
    "one step": lambda: told(healthy(1), ended=False),
    "reward model": lambda: told(
        everywhere(
            pass_rate=None,
            score_mean=None,
            learned_mean=lambda i: i / 40,
            groups_mixed_share=0.0,
            groups_all_right_share=0.0,
            groups_all_wrong_share=0.0,
        ),
        recipe=JUDGED,
        evaluations=[evaluation(0, None, learned_mean=0.1), evaluation(40, None, learned_mean=1.2)],
    ),
    "dapo": lambda: told(dropping(generated_tokens_dropped=3600, groups_fallback=2), recipe=DAPO),
    "troubled": lambda: told(planted(engine_probability_error=1.2, truncated_share=0.5)),
    "failed check": lambda: told(
        planted(1, checks=checks(**{"learner = engine": {"verdict": "fail", "value": 0.5, "limit": 1e-4}}))
    ),
    "with an example": lambda: told(groups=[group("  <b>3+4</b>\n " * 50)]),
}


@pytest.mark.parametrize("run", RUNS)
def test_the_five_questions_have_answers_of_two_sentences(run: str) -> None:
    found = answers(RUNS[run]())
    assert tuple(a.question for a in found) == QUESTIONS
    for answer in found:
        assert 1 <= sentences(answer.answer) <= 2, answer.answer
        assert "None" not in answer.answer
        assert "nan" not in answer.answer
        assert "\n" not in answer.answer
        assert answer.tone in (NEUTRAL, GOOD, WARN, BAD)


def test_a_run_that_learned_says_by_how_much() -> None:
    words, tone = one("Did it learn?", told())
    assert words == (
        "Yes: the held-out pass rate rose from 0.479 to 0.973 in 40 steps (512 problems x 4 samples; 95 % interval "
        "0.967 to 0.979); completions grew from 6.7 to 10.7 tokens."
    )
    assert tone == GOOD


@pytest.mark.parametrize(
    ("before", "after", "words", "tone"),
    [
        (0.40, 0.60, "Yes", GOOD),
        (0.40, 0.45, "Yes", GOOD),
        (0.40, 0.415, "A little", GOOD),
        (0.40, 0.407, "A little", NEUTRAL),
        (0.40, 0.403, "No:", WARN),
        (0.40, 0.40, "No:", WARN),
        (0.40, 0.397, "No:", WARN),
        (0.40, 0.30, "No, it lost", BAD),
    ],
)
def test_learned_is_said_by_the_intervals(before: float, after: float, words: str, tone: str) -> None:
    error = 0.0025  # 95 % of +- 0.0049
    run = told(evaluations=[evaluation(s, x, standard_error=error) for s, x in ((0, before), (40, after))])
    answer, found = one("Did it learn?", run)
    assert answer.startswith(words)
    assert found == tone


def test_what_is_not_known_yet_is_said_so() -> None:
    going, _ = one("Did it learn?", RUNS["going"]())
    assert going.startswith("Not measured yet: in training the pass rate went from")
    assert "pass rate 0.479" in going
    assert one("Did it learn?", Told())[0] == "Not measured yet."
    assert "so far" in one("Did it learn?", told(ended=False))[0]
    assert "so far" in one("Is it healthy?", told(ended=False))[0]
    judged, _ = one("Did it learn?", RUNS["reward model"]())
    assert "learned" not in judged.split(":")[0]
    assert "from 0.1 to 1.2" in judged


def test_the_other_answers_hold_the_numbers() -> None:
    assert one("On what?", told(groups=[group()]))[0].endswith('For example: "3+4+1=", whose answer is "8".')
    assert "the rewards task (weight 1), format (weight 0.2)" in one("On what?", told(recipe=WITH_FORMAT))[0]
    assert one("Is it healthy?", told()) == (
        "Yes: all 2 checks that were measured held at every step, and nothing in the metrics of the last 10 steps "
        "warns.",
        GOOD,
    )
    words, tone = one("Is it healthy?", RUNS["troubled"]())
    assert words.startswith("No, though all 2 checks")
    assert "engine gap (1 more below)" in words
    assert tone == BAD
    words, tone = one("Is it healthy?", RUNS["failed check"]())
    assert words.startswith("No: the check 'learner = engine' failed at step 40.")
    words, _ = one("Why are some groups not training?", told())
    assert "5 % all wrong" in words
    assert "every advantage is 0" in words
    words, tone = one("Why are some groups not training?", RUNS["dapo"]())
    assert "took 90 % of the generation" in words
    assert tone == WARN
    assert one("What would I try next?", told())[0].startswith("steps = 80.")


def test_learned_compares_the_first_evaluation_with_the_last() -> None:
    run = told(evaluations=[evaluation(0, 0.4), evaluation(20, 0.2), evaluation(40, 0.6)])
    words, _ = one("Did it learn?", run)
    assert words.startswith("Yes: the held-out pass rate rose from 0.400 to 0.600 in 40 steps")
    twice = told(evaluations=[evaluation(40, 0.4), evaluation(40, 0.4)])
    assert one("Did it learn?", twice)[0].startswith("Not measured yet")


@pytest.mark.parametrize(
    ("before", "after", "start", "tone"), [(0.1, 1.2, "Its score rose:", GOOD), (1.2, 0.1, "No", WARN)]
)
def test_a_learned_score_rises_or_does_not(before: float, after: float, start: str, tone: str) -> None:
    judged = [evaluation(0, None, learned_mean=before), evaluation(40, None, learned_mean=after)]
    words, found = one("Did it learn?", told(recipe=JUDGED, evaluations=judged))
    assert words.startswith(start)
    assert f"from {before:g} to {after:g}" in words
    assert found == tone


def test_training_is_told_from_then_to_now() -> None:
    words, _ = one("Did it learn?", told(rates((10, 0.3), (10, 0.6)), evaluations=[]))
    assert words == "Not measured yet: in training the pass rate went from 0.3 to 0.6 over 20 steps."


def test_healthy_without_a_check_is_no_praise_and_keeps_what_has_passed() -> None:
    words, tone = one("Is it healthy?", told(everywhere(checks={})))
    assert "no check was measured" in words
    assert tone == NEUTRAL
    rows = healthy()
    for row in rows[12:20]:
        row["effective_sample_share"] = 0.3
    run = told(rows, evaluations=[])
    assert one("Is it healthy?", run)[0].endswith("Earlier there was a warning: few effective samples.")
    assert one("What would I try next?", run)[0] == "steps = 80."  # nothing for what has passed


def test_few_groups_that_train_are_a_warning_until_the_task_is_solved() -> None:
    question = "Why are some groups not training?"
    few = {"groups_mixed_share": 0.1, "groups_all_right_share": 0.45, "groups_all_wrong_share": 0.45}
    assert one(question, told(planted(**few)))[1] == WARN
    assert one(question, told(planted(**few, pass_rate=0.97)))[1] == NEUTRAL


def test_where_nothing_is_wrong_another_algorithm_is_named() -> None:
    for table, other in ((RECIPE, "dapo"), (DAPO, "grpo")):
        words, _ = one("What would I try next?", told(recipe=table, findings=()))
        assert f'algorithm.name = "{other}"' in words


def test_a_check_that_failed_twice_says_when_first() -> None:
    rows = healthy(9)
    for row in (rows[2], rows[7]):
        row["checks"] = checks(**{"learner = engine": {"verdict": "fail", "value": 0.5, "limit": 1e-4}})
    failed = {line.name: line for line in check_lines(rows)}["learner = engine"]
    assert "at 2 steps, first at step 3." in failed.words


def test_an_interval_stays_within_0_and_1() -> None:
    assert interval({"avg_at_k": 0.99, "problems": 9, "standard_error": 0.1}) == (pytest.approx(0.794), 1.0)
    assert interval({"avg_at_k": 0.01, "problems": 9, "standard_error": 0.1})[0] == 0.0


def test_an_interval_without_a_standard_error_is_wider_than_one_over_samples() -> None:
    low, high = interval({"avg_at_k": 0.5, "problems": 100, "samples": 8})
    assert high - low == pytest.approx(0.192, abs=1e-3)
    assert interval({"avg_at_k": 0.0, "problems": 50, "standard_error": 0.0})[1] > 0.05


def test_check_lines_speak_of_all_steps() -> None:
    rows = healthy(5)
    name = "learner = engine"
    rows[0]["checks"] = checks(
        **{"KL to the reference is 0 at step 0": {"verdict": "pass", "value": 0.0, "limit": 1e-5}}
    )
    rows[3]["checks"] = checks(**{name: {"verdict": "pass", "value": 8e-5, "limit": 1e-4}})
    lines = {line.name: line for line in check_lines(rows)}
    assert (lines[name].verdict, lines[name].steps, lines[name].largest, lines[name].limit) == ("pass", 5, 8e-5, 1e-4)
    once = lines["KL to the reference is 0 at step 0"]
    assert (once.verdict, once.steps, once.largest) == ("pass", 1, 0.0)
    rows[2]["checks"] = checks(**{name: {"verdict": "fail", "value": None, "limit": 1e-4}})
    failed = {line.name: line for line in check_lines(rows)}[name]
    assert failed.verdict == "fail"
    assert "at step 3" in failed.words
    assert check_lines([]) == ()
    assert check_lines([{"step": 1, "checks": None}, {"step": 2}]) == ()
    never = {line.name: line for line in check_lines(healthy(3))}["KL to the reference is 0 at step 0"]
    assert (never.verdict, never.steps, never.largest, never.limit) == ("not measured", 0, None, None)


def test_the_history_of_a_run_that_was_cut_knows_it_does_not_begin_at_its_start() -> None:
    assert History(healthy(5)).from_start
    assert not History(healthy(5)[1:]).from_start
