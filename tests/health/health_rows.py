"""Metrics of runs as they come, sound ones and such that trouble was planted in, for the tests of what they mean."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from groupwise.health import watch
from groupwise.health.symptoms.base import RECENT, Finding, History

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
    changed: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in RECIPE.items()}
    changed["algorithm"] = {k: dict(v) if isinstance(v, dict) else v for k, v in RECIPE["algorithm"].items()}
    for key, value in changes.items():
        *sections, last = key.split("__")
        table = changed
        for section in sections:
            table = table.setdefault(section, {})
        table[last] = value
    return changed


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
    verdicts: dict[str, Any] = {
        "live = old on the first update": {"verdict": "pass", "value": 1e-7, "limit": 1e-5},
        "learner = engine": {"verdict": "pass", "value": 2e-6, "limit": 1e-4},
        "KL to the reference is 0 at step 0": {"verdict": "not measured", "value": None, "limit": None},
    }
    return {**verdicts, **changes}


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
    measures = {"problems": 512, "samples": 4, "avg_at_k": rate, "length_mean": 6.7 + step / 10, **changes}
    return {"step": step, "evaluation": measures, "seconds": {"evaluate": 0.4}}


def gap_from(begin: int, gap: float, of_limit: float, kind: str = "turn") -> dict[str, Any]:
    return {f"engine_gap_from_{kind}.{begin}": gap, f"engine_gap_of_limit_from_{kind}.{begin}": of_limit}


DAPO = recipe(algorithm__name="dapo", algorithm__filter={"kind": "drop-uniform", "max_rounds": 10})
GSPO = recipe(
    algorithm__ratio={"level": "sequence"}, algorithm__trust={"kind": "clip", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
)
WITH_FORMAT = recipe(rewards={"task": {}, "format": {"weight": 0.2}})
JUDGED = recipe(preference={"pairs": 2000})
#: A run that is measured by a reward of the recipe's own.
OWN_REWARD = recipe(rewards={"mine": {"use": "mine.py:f", "weight": 1.0}}, evaluation__metric="reward")

#: A reward of a file trains, and another one watches.
WATCHED = recipe(rewards={"mine": {"use": "mine.py:f"}, "gold": {"use": "mine.py:gold", "weight": 0.0}})


def watched(
    gold: Callable[[int], float],
    mine: Callable[[int], float] = lambda i: 0.2 + 0.01 * i,
    last: int = 40,
    **changes: Any,
) -> Rows:
    """Rows of WATCHED, with what both rewards were in the steps from 0 on, up and down a little."""
    means = {"rewards.mine.mean": mine, "rewards.gold.mean": gold}
    rows = planted(last, **{name: lambda i, at=at: at(i) + 0.01 * (-1) ** i for name, at in means.items()}, **changes)
    spreads = {f"rewards.{name}.spread_within_groups": 0.3 for name in ("mine", "gold")}
    return [spreads | row for row in rows]


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
    "engine gap grows": (
        planted(2, **{"engine_gap_from_token.0": 0.02, **gap_from(128, 0.16, 3.2, "token")}),
        RECIPE,
        "0.16 nats a token apart from token 128 of a completion on, 3.2 times what precision allows",
    ),
    "few engine samples": (planted(engine_effective_sample_share=0.6), RECIPE, "60 %"),
    "sampling ahead gains little": (
        planted(seconds={"wait": 2.0, "annotate": 0.02, "update": 0.1}),
        recipe(rollout__ahead=1),
        "2 s of 2.12 s",
    ),
    "engine restarted": (planted(4, engine_restarts=2), RECIPE, "again 2 times"),
    "gradient spikes": (planted(1, gradient_norm_max=30.0), RECIPE, "30 at step 40, 100 times"),
    "updates skipped": (planted(1, updates_skipped=1), RECIPE, "1 update had"),
    "check failed": (
        planted(1, checks={"witness: credit": {"verdict": "fail", "value": 1.0, "limit": 0.1, "cause": "row 3"}}),
        RECIPE,
        "The check 'witness: credit' failed",
    ),
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
        "62 % of the groups of the last 10 steps were all right: their advantages are 0, so they train only the KL ",
    ),
    "groups all wrong": (planted(groups_all_wrong_share=0.8), RECIPE, "80 %"),
    "groups of equal reward": (planted(groups_signal_share=0.3), OWN_REWARD, "In 70 % of the groups"),
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
    "turns without an answer": (
        planted(2, **{"turn_faults.timeout": 3, "tools.look.failures.timeout": 2, "tools.add.failures.unanswered": 4}),
        recipe(task={"name": "environment", "on_fault": "answer"}),
        "6 turns of the last 10 steps: 6 timeout (tool look 4 times).",
    ),
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
    "falling": (planted(pass_rate=0.3), RECIPE, "to 0.3"),
    "held out apart": ([*healthy(), evaluation(0, 0.4), evaluation(40, 0.4)], RECIPE, "0.4, and 0.7"),
    "never measured": (everywhere(engine_gap_mean=None), RECIPE, "engine_gap_mean"),
    "reward hacking": (
        watched(gold=lambda i: 0.5 - 0.01 * i),
        WATCHED,
        "rose from 0.261 to 0.529, while gold, which only watches the same completions, fell from 0.441 to 0.169",
    ),
}


def findings(
    rows: Rows, table: Mapping[str, Any] | None = None, compares_within_group: bool | None = True
) -> tuple[Finding, ...]:
    """The findings of a run whose advantage compares within a group, as GRPO's does."""
    return watch.findings(history(rows, table, compares_within_group))


def history(rows: Rows, table: Mapping[str, Any] | None = None, compares_within_group: bool | None = True) -> History:
    """The rows as a page has them: steps, and evaluations, which have steps of their own."""
    steps = [row for row in rows if "evaluation" not in row]
    evaluations = [row for row in rows if "evaluation" in row]
    machine = [row for row in steps if "engine_restarts" in row]
    return History(steps, evaluations, table or {}, compares_within_group, machine)


def named(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    assert len({f.name for f in findings}) == len(findings)
    return {f.name: f for f in findings}


def rates(*pieces: tuple[int, float], spread: float = 0.0, **changes: Any) -> Rows:
    """Steps whose pass rate is each piece's for its number of steps, up and down by `spread`."""
    flat = [rate for count, rate in pieces for _ in range(count)]
    rows = [dict(healthy()[0], step=i + 1, pass_rate=rate + spread * (-1) ** i) for i, rate in enumerate(flat)]
    return [{**row, **changes} for row in rows]


def rising_level(rows: Rows) -> Rows:
    return [{**row, "sources.sums.level": row["step"] // 31} if "evaluation" not in row else row for row in rows]
