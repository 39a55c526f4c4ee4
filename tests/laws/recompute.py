"""The metrics of a step once more, from nothing but its rows of rollouts.jsonl and the recipe: plain numpy, float64."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]
NOTHING = math.nan


def own(row: Row) -> np.ndarray:
    one = [{"start": 0, "stop": row["tokens"], "own": True}]
    return np.concatenate([np.full(s["stop"] - s["start"], s["own"]) for s in row.get("spans", one)])


def given(row: Row, name: str) -> np.ndarray:
    """A column of the row's own tokens, float32 as written, NaN where it has none."""
    return spread(row["per_token"].get(name), len(row["pieces"]), np.float32)[own(row)]


def seen(row: Row, number: int, name: str) -> np.ndarray:
    """What optimizer update `number` saw of the row's own tokens."""
    (update,) = [u for u in row["updates"] if u["update"] == number]
    return spread(update.get(name), len(row["pieces"]), np.float64 if name == "weight" else np.float32)[own(row)]


def versions(row: Row) -> np.ndarray:
    """The weights that sampled each own token of a row."""
    one = [{"start": 0, "stop": row["tokens"], "version": row["version"]}]
    return np.concatenate([np.full(s["stop"] - s["start"], s["version"]) for s in row.get("spans", one)])[own(row)]


def log_ratio(row: Row, number: int) -> np.ndarray:
    """As the trust region saw it: live - old in float32 where no column says otherwise."""
    (update,) = [u for u in row["updates"] if u["update"] == number]
    if "log_ratio" in update:
        return seen(row, number, "log_ratio")
    live, old = seen(row, number, "logp_live"), given(row, "logp_old")
    return (live.astype(np.float32) - old.astype(np.float32)).astype(np.float64)


def spread(value: Any, length: int, kind: type) -> np.ndarray:
    column = np.asarray(value, dtype=kind).astype(np.float64)
    assert column.shape in ((), (length,))
    return np.broadcast_to(column, (length,))


def mean(values: Iterable[float]) -> float:
    told = list(values)
    return math.fsum(told) / len(told) if told else NOTHING


def together(columns: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(columns) if columns else np.zeros(0)


def quantile(values: np.ndarray, place: float) -> float:
    """Between neighbours by straight line."""
    order = sorted(values.tolist())
    at = place * (len(order) - 1)
    low = math.floor(at)
    high = min(low + 1, len(order) - 1)
    return order[low] + (at - low) * (order[high] - order[low])


def deviation(scores: Sequence[float | None]) -> float:
    votes = [s for s in scores if s is not None]
    return statistics.stdev(votes) if len(votes) > 1 else 0.0


def effective_share(ratio: np.ndarray) -> float:
    return ratio.sum() ** 2 / (ratio**2).sum() / len(ratio) if len(ratio) else NOTHING


def by_group(rows: Sequence[Row]) -> list[list[Row]]:
    return [[r for r in rows if r["group"] == number] for number in sorted({r["group"] for r in rows})]


def right(row: Row) -> bool:
    return row["score"] is not None and row["score"] >= 1 - 1e-6


def rewarded(row: Row, weights: dict[str, float]) -> float | None:
    """What trains, before shaping: the weighted sum of the rewards that vote, a reward model's score, or the task's."""
    if not weights:
        return row.get("learned", row["score"])
    votes = row.get("parts", {})
    return None if not votes or None in votes.values() else sum(weights[name] * score for name, score in votes.items())


def differs(rewards: Sequence[float | None]) -> bool:
    votes = [reward for reward in rewards if reward is not None]
    return len(votes) > 1 and max(votes) - min(votes) > 1e-6


def mixed(group: Sequence[Row]) -> bool:
    return any(right(r) for r in group) and any(not right(r) and r["score"] is not None for r in group)


def lengths(rows: Sequence[Row]) -> list[int]:
    return [r["tokens"] for r in rows]


def of_passes(rows: Sequence[Row]) -> dict[str, float]:
    """What only a run has that is measured by the task's score."""
    if any("measured" in r for r in rows):
        return {"measured_mean": mean(r["measured"] for r in rows if r["measured"] is not None)}
    scored = [r for r in rows if r["score"] is not None]
    good, bad = [r for r in scored if right(r)], [r for r in scored if not right(r)]
    groups = by_group(rows)
    uniform = [g for g in groups if any(r["score"] is not None for r in g) and not mixed(g)]
    return {
        "measured_mean": mean(r["score"] for r in scored),
        "pass_rate": len(good) / len(scored) if scored else NOTHING,
        "length_right_mean": mean(lengths(good)),
        "length_wrong_mean": mean(lengths(bad)),
        "groups_mixed_share": mean(mixed(g) for g in groups),
        "groups_all_right_share": mean(g in uniform and any(right(r) for r in g) for g in groups),
        "groups_all_wrong_share": mean(g in uniform and not any(right(r) for r in g) for g in groups),
        **of_learned(rows, good, bad),
    }


def of_logged(rows: Sequence[Row]) -> dict[str, float]:
    names = {name for r in rows for name, value in r.get("logged", {}).items() if isinstance(value, float | int)}
    return {
        f"logged.{name}": mean(r["logged"][name] for r in rows if isinstance(r["logged"].get(name), float | int))
        for name in names
    }


def of_generated(rows: Sequence[Row], weights: dict[str, float]) -> dict[str, float]:
    scored = [r for r in rows if r["score"] is not None]
    groups = by_group(rows)
    return {
        **of_passes(rows),
        "score_mean": mean(r["score"] for r in scored),
        "length_mean": mean(lengths(rows)),
        "length_max": max(lengths(rows)),
        "truncated_share": mean(r["finish"] == "length" for r in rows),
        "unscored_completions": sum(rewarded(r, weights) is None for r in rows),
        "groups_signal_share": mean(differs([rewarded(r, weights) for r in g]) for g in groups),
        "score_spread_batch": deviation([r["score"] for r in rows]) if len(scored) > 1 else NOTHING,
        "score_spread_within_groups": mean(deviation([r["score"] for r in g]) for g in groups),
        "generated_completions": len(rows),
        "generated_tokens": sum(lengths(rows)),
        "generated_tokens_dropped": sum(lengths([r for r in rows if r["fate"] == "dropped"])),
        "groups_generated": len(groups),
        **of_rewards(groups),
        **of_logged(rows),
    }


def of_rewards(groups: Sequence[Sequence[Row]]) -> dict[str, float]:
    told: dict[str, float] = {}
    for name in {name for g in groups for r in g for name in r.get("parts", {})}:
        each = [[r.get("parts", {}).get(name) for r in g] for g in groups]
        told[f"rewards.{name}.mean"] = mean(s for scores in each for s in scores if s is not None)
        told[f"rewards.{name}.spread_within_groups"] = mean(deviation(scores) for scores in each)
    return told


def of_learned(rows: Sequence[Row], good: Sequence[Row], bad: Sequence[Row]) -> dict[str, float]:
    if not any("learned" in r for r in rows):
        return {}
    told = (("", rows), ("_right", good), ("_wrong", bad))
    return {f"learned{of}_mean": mean(r["learned"] for r in some) for of, some in told}


def stays(group: Sequence[Row]) -> bool:
    """Whether a filter that goes by what the run is measured by lets the group train."""
    return differs([r["measured"] for r in group]) if "measured" in group[0] else mixed(group)


def of_refill(rows: Sequence[Row], waiting: int, drops: bool) -> dict[str, float]:
    """`waiting` groups were left over before the step; `drops` says whether uniform groups are replaced."""
    kinds = [(g[0]["fate"], g[0]["fresh"], stays(g)) for g in by_group(rows)]
    fallback = sum(fate == "trained" and fresh and not mix for fate, fresh, mix in kinds) if drops else 0
    surplus = sum(fate == "surplus" for fate, _, _ in kinds)
    used = sum(fate == "trained" and not fresh for fate, fresh, _ in kinds)
    return {
        "groups_fallback": fallback,
        "groups_dropped": fallback + sum(fate == "dropped" for fate, _, _ in kinds),
        "groups_surplus": waiting + surplus - used,
    }


def of_batch(rows: Sequence[Row], kl: dict[str, Any]) -> dict[str, float]:
    """Of the rows with fate "trained"; those that do train have pieces."""
    training = [r for r in rows if "pieces" in r]
    newest = max(r["version"] for r in rows)
    age = together([rows[0]["step"] - 1 - versions(r) for r in training])
    told = {
        "token_age_mean": age.mean(),
        "token_age_max": age.max(),
        "reward_mean": mean(r["reward"] for r in training),
        "advantage_abs_mean": np.abs(together([given(r, "advantage") for r in training])).mean(),
        "zero_advantage_share": mean(not given(r, "advantage").any() for r in training),
        "trained_completions": len(training),
        "trained_tokens": sum(r["tokens"] for r in training),
        "stale_rows_share": mean(r["version"] < newest for r in rows),
    }
    value, returns = (together([given(r, name) for r in training]) for name in ("value", "returns"))
    if not np.isnan(value).any():
        told["value_mean"], told["returns_mean"] = value.mean(), returns.mean()
        spread = np.var(returns)
        told["explained_variance"] = 1 - np.var(returns - value) / spread if spread else 0.0
    correction = together([given(r, "correction") for r in training])
    if not np.isnan(correction).any():
        told["correction_mean"], told["correction_rejected_share"] = correction.mean(), (correction == 0).mean()
    if kl["beta"] and kl["place"] == "reward":
        assert kl["estimator"] == "k1"
        old, ref = (together([given(r, name) for r in training]) for name in ("logp_old", "logp_ref"))
        told["kl_reward_mean"] = (old - ref).mean()
    return told


def of_engine(rows: Sequence[Row], newest: int) -> dict[str, float]:
    """Tokens that the newest weights sampled, against the log-probabilities of the learner with those weights."""
    gaps, tokens, turns = [], [], []
    for row in (r for r in rows if "pieces" in r):
        new = versions(row) == newest
        if "logp_old" in row["per_token"]:
            gaps.append((given(row, "logp_old") - given(row, "logp_engine"))[new])
        elif any(u["update"] == 1 for u in row["updates"]):
            gaps.append((seen(row, 1, "logp_live") - given(row, "logp_engine"))[new])
        else:
            continue
        (place,) = own(row).nonzero()
        tokens.append(place[new])
        turns.append(1 + (np.diff(place, prepend=place[:1] - 1) > 1).cumsum()[new])
    gap = together(gaps)
    if not len(gap):
        names = ("engine_gap_mean", "engine_probability_error", "engine_effective_sample_share")
        return {"engine_gap_max": 0.0, **dict.fromkeys(names, NOTHING)}
    return {
        "engine_gap_mean": np.abs(gap).mean(),
        "engine_gap_max": np.abs(gap).max(),
        "engine_probability_error": np.exp(np.abs(gap)).mean(),
        "engine_effective_sample_share": effective_share(np.exp(gap)),
        **of_places("token", together(tokens) // 64, 64, np.abs(gap)),
        **of_places("turn", together(turns), 1, np.abs(gap)),
    }


def of_places(kind: str, place: np.ndarray, unit: int, size: np.ndarray) -> dict[str, float]:
    """Mean gaps of ranges that double, in float32: of the places 0, 1, 2 to 3, 4 to 7, ..."""
    ranges = {0: place < 1} | {2**k: (place >= 2**k) & (place < 2 ** (k + 1)) for k in range(20)}
    filled = {unit * begin: size[where].mean() for begin, where in ranges.items() if where.any()}
    if len(filled) < 2:
        return {}
    counts = {unit * begin: where.sum() for begin, where in ranges.items()}
    judged = {begin: mean / 1e-4 for begin, mean in filled.items() if counts[begin] >= 30}
    return {f"engine_gap_from_{kind}.{begin}": mean for begin, mean in filled.items()} | {
        f"engine_gap_of_limit_from_{kind}.{begin}": share for begin, share in judged.items()
    }


def of_updates(rows: Sequence[Row]) -> dict[str, float]:
    count = max(u["update"] for r in rows for u in r.get("updates", []))
    numbers = range(1, count + 1)
    by_update = [[r for r in rows if any(u["update"] == k for u in r.get("updates", []))] for k in numbers]
    names = ("weight", "share", "entropy", "kl")
    parts = [
        {n: together([seen(r, k, n) for r in by_update[k - 1]]) for n in names}
        | {"log_ratio": together([log_ratio(r, k) for r in by_update[k - 1]])}
        for k in numbers
    ]
    signs = [together([given(r, "advantage") for r in some]) for some in by_update]
    whole = {n: together([p[n] for p in parts]) for n in (*names, "log_ratio")}
    sign, ratio = together(signs), np.exp(whole["log_ratio"])

    def weighted(x: np.ndarray, where: np.ndarray) -> float:
        total = whole["weight"][where].sum()
        return (x * whole["weight"])[where].sum() / total if total else NOTHING

    told = {
        "updates": count,
        "share_passed": weighted(whole["share"], sign == sign),
        "share_passed_positive": weighted(whole["share"], sign > 0),
        "share_passed_negative": weighted(whole["share"], sign < 0),
        "ratio_mean": ratio.mean(),
        "ratio_max": ratio.max(),
        "log_ratio_abs_max": np.abs(whole["log_ratio"]).max(),
        "log_ratio_clamped_tokens": (np.abs(whole["log_ratio"]) >= 60).sum(),
        "effective_sample_share": mean(effective_share(np.exp(p["log_ratio"])) for p in parts),
        "entropy_mean": whole["entropy"].mean(),
        **of_ratios(by_update[-1], count),
    }
    if not np.isnan(whole["kl"]).any():
        told["kl_mean"] = weighted(whole["kl"], sign == sign)
    return told


def of_ratios(rows: Sequence[Row], last: int) -> dict[str, float]:
    """Live against old in the step's last update; without an old column both are one."""
    gaps = []
    for row in rows:
        live = seen(row, last, "logp_live")
        gaps.append(live - given(row, "logp_old") if "logp_old" in row["per_token"] else np.zeros(len(live)))
    told = {"token": together(gaps), "sequence": np.array([gap.mean() for gap in gaps])}
    quantiles = {
        f"ratio_{name}_p{place:02d}": quantile(np.exp(gap), place / 100)
        for name, gap in told.items()
        for place in (1, 10, 50, 90, 99)
    }
    return {"log_ratio_variance": told["token"].var(), **quantiles}


def own_tokens(row: Row, begin: int, stop: int) -> int:
    spans = row.get("spans") or [{"start": 0, "stop": row["tokens"], "own": True}]
    return sum(s["stop"] - s["start"] for s in spans if s["own"] and begin <= s["start"] and s["stop"] <= stop)


def of_episodes(rows: Sequence[Row]) -> dict[str, float]:
    if not any("ended" in r for r in rows):
        return {}
    longest = max(len(r["turns"]) for r in rows)
    reasons = ("done", "turns", "tokens", "seconds", "fault")
    every: dict[str, float] = {
        "turns_mean": mean(len(r["turns"]) for r in rows),
        "turns_max": longest,
        "rows_mean": mean(1 + sum(s.get("anew", False) for s in r.get("spans", [])[1:]) for r in rows),
        "answer_tokens_mean": mean(r["spans"][-1]["stop"] - r["tokens"] if "spans" in r else 0 for r in rows),
        **{f"ended.{why}": sum(r["ended"] == why for r in rows) for why in reasons},
    }
    for t in range(longest):
        alive = [r for r in rows if len(r["turns"]) > t]
        last = [r for r in alive if len(r["turns"]) == t + 1]
        begins = [r["turns"][t - 1]["stop"] if t else 0 for r in alive]
        sizes = [own_tokens(r, begin, r["turns"][t]["stop"]) for r, begin in zip(alive, begins, strict=True)]
        every[f"turns.{t + 1}.alive_share"] = len(alive) / len(rows)
        every[f"turns.{t + 1}.reward_mean"] = mean(r["turns"][t]["reward"] for r in alive)
        every[f"turns.{t + 1}.tokens_mean"] = mean(sizes)
        every[f"turns.{t + 1}.pass_rate"] = mean(right(r) for r in last)
    return every


def recomputed(step: int, rows: Sequence[Row], waiting: int, recipe: dict[str, Any]) -> dict[str, float]:
    algorithm, rewards = recipe["algorithm"], recipe.get("rewards", {})
    trained = [r for r in rows if r["fate"] == "trained"]
    return {
        **of_generated(
            [r for r in rows if r["fresh"]], {name: table.get("weight", 1.0) for name, table in rewards.items()}
        ),
        **of_episodes([r for r in rows if r["fresh"]]),
        **of_refill(rows, waiting, algorithm["filter"]["kind"] == "drop-uniform"),
        **of_batch(trained, algorithm["kl"]),
        **of_engine(trained, step - 1),
        **of_updates(trained),
    }
