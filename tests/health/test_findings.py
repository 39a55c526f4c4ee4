"""Each finding is raised by what it is for, from its limit on, and excused by what excuses it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from groupwise.health.symptoms.base import History
from groupwise.health.symptoms.signal import MADE_HERE
from groupwise.health.symptoms.updates import later_share
from groupwise.health.watch import BAD, GOOD, NEUTRAL, SYMPTOMS, WARN, Watch
from groupwise.training.start.initial_policy import TINY
from tests.health.health_rows import (
    DAPO,
    GSPO,
    JUDGED,
    OWN_REWARD,
    PLANTED,
    RECIPE,
    WATCHED,
    WITH_FORMAT,
    Rows,
    drop_keys,
    dropping,
    evaluation,
    everywhere,
    findings,
    gap_from,
    healthy,
    named,
    planted,
    rates,
    recipe,
    rising_level,
    watched,
)


def test_every_finding_is_planted_here() -> None:
    assert list(PLANTED) == [s.name for s in SYMPTOMS]


@pytest.mark.parametrize("name", PLANTED)
def test_what_a_finding_is_for_raises_it(name: str) -> None:
    rows, settings, words = PLANTED[name]
    seen = named(findings(rows, settings))[name]
    assert words in seen.words
    assert seen.tone in (NEUTRAL, GOOD, WARN, BAD)
    assert re.fullmatch(r"[A-Z\d].*\.", seen.words)
    assert seen.advice
    assert not seen.advice.endswith(".")


@pytest.mark.parametrize(
    ("level", "seen"), [("token", False), ("sequence", True), ("sequence-token", True), ("turn", True)]
)
def test_an_epsilon_of_tokens_is_too_wide_for_means_of_many(level: str, seen: bool) -> None:
    rows = everywhere(share_passed=1.0)
    assert ("trust region without effect" in named(findings(rows, recipe(algorithm__ratio={"level": level})))) == seen


@pytest.mark.parametrize(
    ("beta", "place", "entropy", "words"),
    [
        (0.0, "loss", 0.0, "their advantages are 0, so they train nothing."),
        (0.04, "loss", 0.0, "their advantages are 0, so they train only the KL term."),
        (0.0, "loss", 0.001, "their advantages are 0, so they train only the entropy bonus."),
        (0.04, "loss", 0.001, "their advantages are 0, so they train only the KL term and the entropy bonus."),
        (0.04, "reward", 0.0, "only the KL tells their completions apart, so they train nothing else."),
    ],
)
def test_groups_without_signal_train_what_the_loss_has_beside_advantages(
    beta: float, place: str, entropy: float, words: str
) -> None:
    settings = recipe(algorithm__kl={"beta": beta, "place": place}, algorithm__entropy_coefficient=entropy)
    rows = planted(groups_all_right_share=0.62, groups_mixed_share=0.38, groups_all_wrong_share=0.0)
    assert named(findings(rows, settings))["groups all right"].words.partition(": ")[2].startswith(words)


@pytest.mark.parametrize(
    ("silent", "compares", "seen"), [(0.6, True, True), (0.0, True, False), (0.6, False, True), (0.0, False, False)]
)
def test_that_tied_groups_train_nothing_is_what_the_rows_have(silent: float, compares: bool, seen: bool) -> None:
    """Whatever the recipe would make one think: by what share of the trained completions had advantages of 0."""
    shares = {"groups_all_right_share": 0.62, "groups_mixed_share": 0.38, "groups_all_wrong_share": 0.0}
    found = findings(planted(**shares, zero_advantage_share=silent), recipe(), compares_within_group=compares)
    words = [finding.words for finding in found if finding.name == "groups all right"]
    assert len(words) == seen
    said = "60 % of the trained completions had advantages of 0 and trained only the KL term"
    assert all(said in each for each in words)


@pytest.mark.parametrize(
    ("model", "start", "steps", "words"),
    [
        ("tiny-dense", None, 0, "or a warm start"),
        ("tiny-dense", None, 1000, "or a longer warm start"),
        ("tiny-dense", "runs/a", 1000, ""),
        ("Qwen/Qwen3-0.6B", None, 0, ""),
        ("models/smollm2", None, 300, ""),
    ],
)
def test_a_warm_start_is_advised_to_policies_that_groupwise_makes(
    model: str, start: str | None, steps: int, words: str
) -> None:
    settings = recipe(model=model, start=start, warm_start__steps=steps)
    advice = named(findings(planted(groups_all_wrong_share=0.8), settings))["groups all wrong"].advice
    assert words in advice
    assert ("warm start" in advice) == bool(words)


def test_every_policy_that_groupwise_makes_has_a_name_that_findings_know() -> None:
    assert all(name.startswith(MADE_HERE) for name in TINY)


def looks(name: str, rows: Rows, settings: dict[str, Any]) -> Any:
    """What the finding alone says of rows, evaluations among them or not."""
    steps = [row for row in rows if "evaluation" not in row]
    return next(s for s in SYMPTOMS if s.name == name).look(
        History(steps, [row for row in rows if "evaluation" in row], settings, compares_within_group=True)
    )


def entropy(end: float) -> Callable[[int], float]:
    """Entropy of 1 nat, and of `end` from the fifth of the last steps on."""
    return lambda i: 1.0 if i < 5 else end


FORMAT_FLAT = {"rewards.format.spread_within_groups": 0.0}


#: A rule's reward trains, and the task's own score does not.
BY_A_RULE = recipe(rewards={"mine": {"use": "mine.py:f"}})
LATE_GAP: dict[str, Any] = {"engine_gap_from_turn.1": 0.004, **gap_from(2, 0.009, 1.1)}

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
    ("completions without a score", everywhere(unscored_completions=512), JUDGED, True),
    ("groups of equal reward", planted(groups_signal_share=0.3), RECIPE, False),
    ("groups of equal reward", planted(groups_signal_share=0.6), OWN_REWARD, False),
    ("no entropy left", planted(entropy_mean=0.002, pass_rate=0.98), RECIPE, False),
    ("entropy cliff", planted(entropy_mean=entropy(0.1), pass_rate=lambda i: 0.5 + 0.03 * i), RECIPE, False),
    ("entropy cliff", planted(entropy_mean=entropy(0.5), pass_rate=0.6), RECIPE, False),
    ("entropy explosion", planted(entropy_mean=entropy(1.4), pass_rate=lambda i: 0.7 - 0.05 * i), RECIPE, False),
    ("engine gap grows", planted(1, **LATE_GAP), RECIPE, False),
    ("engine gap grows", planted(2, **LATE_GAP), RECIPE, True),
    ("engine gap grows", planted(2, **{**LATE_GAP, "engine_gap_from_turn.1": 0.005}), RECIPE, False),
    ("engine gap grows", planted(2, **gap_from(2, 0.009, 3.0)), RECIPE, False),
    ("engine gap grows", planted(2, **{**LATE_GAP, **gap_from(2, 0.009, 0.9)}), RECIPE, False),
    ("reward hacking", watched(gold=lambda i: 0.3), WATCHED, True),  # it stays
    ("reward hacking", watched(gold=lambda i: 0.3, pass_rate=0.95), WATCHED, False),  # little is left to follow
    ("reward hacking", watched(gold=lambda i: 0.3 + 0.005 * i), WATCHED, False),  # it follows, half as fast
    ("reward hacking", watched(gold=lambda i: 0.3 + 0.2 * (i % 2)), WATCHED, False),  # too noisy to tell
    (
        "reward hacking",
        watched(gold=lambda i: 0.5 - 0.01 * i, mine=lambda i: 0.4),
        WATCHED,
        False,
    ),  # nothing was gained
    ("reward hacking", watched(gold=lambda i: 0.5 - 0.01 * i)[-29:], WATCHED, False),  # too few steps
    ("reward hacking", watched(gold=lambda i: 0.5 - 0.01 * i), WITH_FORMAT, False),  # another run's
    ("reward hacking", rising_level(watched(gold=lambda i: 0.5 - 0.01 * i)), WATCHED, False),
    ("reward hacking", watched(gold=lambda i: 0.9, score_mean=lambda i: 0.5 - 0.01 * i), BY_A_RULE, True),
    ("falling", rising_level(planted(pass_rate=0.3)), RECIPE, False),
    ("falling", rates((20, 0.6), (10, 0.55)), RECIPE, False),
    ("falling", rates((10, 0.56), (10, 0.42), spread=0.4), RECIPE, False),
    ("falling", rates((3, 0.9), (30, 0.6)), RECIPE, False),
    ("falling", rates((10, 0.8), (10, 0.5)), RECIPE, True),
    ("falling", rates((10, 0.5), (10, 0.8), (10, 0.5)), RECIPE, True),
    ("held out apart", [*healthy(), evaluation(40, 0.6)], RECIPE, True),
    ("held out apart", [*healthy(), evaluation(40, 0.6, problems=10)], RECIPE, False),
    ("held out apart", [*healthy(), evaluation(40, 0.6, standard_error=0.2)], RECIPE, False),
    ("held out apart", rising_level([*healthy(), evaluation(40, 0.4)]), RECIPE, False),
    ("solved", rising_level(planted(pass_rate=0.97)), RECIPE, False),
    ("still rising", healthy(), recipe(steps=80), False),
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


@pytest.mark.parametrize(("name", "rows", "settings", "speaks"), LIMITS)
def test_a_finding_speaks_from_its_limit_on(name: str, rows: Rows, settings: dict[str, Any], speaks: bool) -> None:
    assert bool(looks(name, rows, settings)) == speaks


@pytest.mark.parametrize(
    ("fall", "words"), [(0.03, ""), (0.2, "rose from 0 to 0.5 while the pass rate fell from 0.7 to 0.5:")]
)
def test_a_small_fall_beside_a_rising_learned_score_is_chance(fall: float, words: str) -> None:
    rows = [{**row, "learned_mean": row["step"] // 11 / 2} for row in rates((10, 0.7), (10, 0.7 - fall))]
    seen = looks("over-optimisation", rows, JUDGED)
    assert bool(seen) == bool(words)
    assert not seen or words in seen.words


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
    (
        "scoring faults",
        planted(1, **{"faults.timeout in environment": 8, "tools.look.failures.timeout": 8}),
        RECIPE,
        "8 of 20480 completions have no score because their environment, or a tool, gave no answer: 8 timeout in "
        "environment (tool look 8 times).",
        'A faster environment or tool, or a longer scoring.deadline; or task.on_fault = "answer"',
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


@pytest.mark.parametrize(("name", "rows", "settings", "words", "advice"), SAID)
def test_a_finding_puts_its_numbers_in_order(
    name: str, rows: Rows, settings: dict[str, Any], words: str, advice: str
) -> None:
    seen = named(findings(rows, settings))[name]
    assert words in seen.words
    assert advice in seen.advice


def test_tied_groups_are_no_warning_where_the_run_earned_them_or_they_train_all_the_same() -> None:
    assert named(findings(PLANTED["groups all right"][0], RECIPE))["groups all right"].tone == NEUTRAL
    easy = everywhere(groups_all_right_share=0.8, groups_mixed_share=0.2)
    assert named(findings(easy, RECIPE))["groups all right"].tone == WARN
    assert named(findings(easy[1:], RECIPE))["groups all right"].tone == NEUTRAL, "its beginning is not known"
    solved = planted(groups_all_right_share=0.8, groups_mixed_share=0.2, pass_rate=0.97)
    assert "dapo" not in named(findings(solved, RECIPE))["groups all right"].advice
    for settings, compares in ((DAPO, True), (WITH_FORMAT, True), (JUDGED, True), (RECIPE, False), (RECIPE, None)):
        assert "groups all right" not in named(findings(easy, settings, compares))


def test_an_older_run_has_its_engine_gap_from_the_mean() -> None:
    rows = drop_keys(planted(engine_gap_mean=0.1), "engine_probability_error", "engine_effective_sample_share")
    assert named(findings(rows, RECIPE))["engine gap"].tone == BAD


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"log_ratio_abs_max": 0.0}, "no update changed"),
        ({"learning_rate": 0.0}, "learning rate was 0"),
        # With one update the ratio is 1 by construction.
        ({"log_ratio_abs_max": 0.0, "updates": 1, "share_passed": 1.0}, ""),
        ({"advantage_abs_mean": 0.0, "gradient_norm_max": 0.0}, ""),
        # The first update's groups were tied, and the last update moves what no ratio of this step sees.
        ({"log_ratio_abs_max": 0.0, "gradient_norm": 0.3, "gradient_norm_max": 0.6}, ""),
        ({"log_ratio_abs_max": 0.0, "gradient_norm": 0.3, "gradient_norm_max": 0.5}, "no update changed"),
    ],
)
def test_the_reasons_why_nothing_moves_are_told_apart(changes: dict[str, float], words: str) -> None:
    seen = looks("parameters frozen", everywhere(**changes), RECIPE)
    assert bool(seen) == bool(words)
    assert not seen or words in seen.words


def test_what_passes_after_the_first_update() -> None:
    row = {"updates": 4, "share_passed": (1 + 0.9 + 0.6 + 0.3) / 4}
    assert later_share([row], "share_passed") == pytest.approx(0.6)
    assert later_share([{"updates": 1, "share_passed": 1.0}], "share_passed") is None


def test_a_spike_that_was_clipped_long_ago_is_no_warning() -> None:
    rows = healthy()
    rows[20]["gradient_norm_max"] = 30.0
    assert named(findings(rows[:21], RECIPE))["gradient spikes"].tone == WARN
    assert named(findings(rows, RECIPE))["gradient spikes"].tone == NEUTRAL
    watch = Watch(RECIPE, True)
    assert [row["step"] for row in rows for f in watch(row) if f.name == "gradient spikes"] == [21]
    harmless = everywhere(gradient_norm=0.01, gradient_norm_max=0.02)
    harmless[-1]["gradient_norm_max"] = 0.9  # 90 times the steps before, and still below the clip
    assert "gradient spikes" not in named(findings(harmless, RECIPE))
    for row in rows[21:]:
        row["gradient_norm"] = 10.0  # what comes later says nothing of what was a spike then
    words = named(findings(rows, RECIPE))["gradient spikes"].words
    assert words.startswith("The gradient's norm jumped to 30 at step 21")


def test_short_completions_are_named_where_gspos_epsilons_do_not_fit() -> None:
    seen = named(findings(planted(share_passed=0.7), GSPO))["gradient stopped"]
    assert "Epsilons of 0.0004" in seen.words
    assert "epsilon_low" in seen.advice


def measured_rows(*pieces: tuple[int, float], spread: float = 0.02) -> Rows:
    """Steps of a run that is measured by a reward: no pass rate, and pieces of so many steps at such a mean."""
    rows = rates(*((steps, 0.5) for steps, _ in pieces))
    means = [mean for steps, mean in pieces for _ in range(steps)]
    for i, (row, mean) in enumerate(zip(rows, means, strict=True)):
        del row["pass_rate"]
        row["measured_mean"] = mean + spread * (-1) ** i * abs(mean)
    return rows


@pytest.mark.parametrize("scale", [0.001, 1.0, 1000.0])
def test_a_run_that_is_measured_by_a_reward_is_told_of_it_on_any_scale(scale: float) -> None:
    """The reward has no scale that is known: sentences speak of it, and no threshold is in its units."""
    falls = measured_rows((20, -1.0 * scale), (10, -3.0 * scale))
    assert looks("falling", falls, OWN_REWARD).words.startswith(f"The reward fell from {-scale:g} ")
    flat = measured_rows((40, 2.0 * scale))
    assert "reward is where it began" in looks("levelled off", flat, OWN_REWARD).words
    assert not looks("levelled off", measured_rows((30, scale), (10, 2 * scale)), OWN_REWARD)
    rising = measured_rows((20, scale), (10, 2 * scale), (10, 3 * scale))
    words = " ".join(f.words for f in findings(rising, OWN_REWARD))
    assert "The reward was still rising at the end" in words
    assert "pass rate" not in words
