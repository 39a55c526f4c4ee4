"""The updates: gradients, the trust region, the reference, stale rows, the critic, frozen parameters."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from groupwise.health.checks import invariant
from groupwise.health.symptoms.base import (
    BAD,
    NEUTRAL,
    RECENT,
    WARN,
    History,
    Row,
    Seen,
    averages_tokens,
    lower_rate,
    many,
    numbers,
    percent,
    short,
    smaller_updates,
    symptom,
)

# Thresholds; each symptom says why it stands where it does.
SPIKE = 10.0
PASSED_LOW = 0.7
SIGN_GAP = 0.3
SEQUENCE_EPSILON = 0.05
KL_LARGE = 1.0
STALE = 0.25
STILL = 1e-3
#: Steps before a critic, or a learning rate, is judged: the first ones are warm-up.
PATIENCE = 5


@symptom(
    limit=f"gradient_norm_max above {SPIKE:g} times the median gradient_norm of the ten steps before, and above "
    "learner.clip_norm; warns for ten steps",
)
def gradient_spikes(h: History) -> Seen | None:
    clip = h.setting("learner.clip_norm", 1.0)
    high = [(x, times, at) for at in range(PATIENCE, len(h.rows)) for x, times in _jump(h, at, clip)]
    if not high:
        return None
    worst, times, at = max(high)
    step = h.rows[at].get("step", at + 1)
    clipping = f"was clipped to {clip:g}" if clip else "was not clipped: learner.clip_norm is 0"
    new = len(h.rows) - high[-1][2] <= RECENT
    return Seen(
        f"The gradient's norm jumped to {short(worst)} at step {step}, {times:.0f} times what it was in the steps "
        f"before, and {clipping}; {len(high)} of {len(h.rows)} steps had such a spike.",
        f"{smaller_updates(h) if clip else 'learner.clip_norm = 1.0'}; look at that step's completions" if new else "",
        tone=WARN if new else NEUTRAL,
    )


@symptom(
    limit="updates_skipped or critic_updates_skipped above 0 in any step",
)
def updates_skipped(h: History) -> Seen | None:
    count = h.total("updates_skipped") + h.total("critic_updates_skipped")
    if not count:
        return None
    return Seen(
        f"{many(count, 'update')} had a loss or gradient that was not finite and did not happen; the weights are "
        "sound.",
        smaller_updates(h),
    )


@symptom(
    limit='a check failed and the run went on, as with checks.witness = "warn"',
)
def check_failed(h: History) -> Seen | None:
    failed = [
        (row.get("step", 0), name, check)
        for row in h.rows
        if isinstance(table := row.get("checks"), Mapping)
        for name, check in table.items()
        if isinstance(check, Mapping) and check.get("verdict") == "fail"
    ]
    if not failed:
        return None
    step, name, check = failed[0]
    times = f"at step {step}, and in {len({at for at, *_ in failed})} of {len(h.rows)} steps"
    return Seen(
        f"The check {name!r} failed {times}: {check.get('cause') or invariant(name).cause}.",
        "the run is worth nothing before this is found; docs/concepts/checks.md says what the check reads",
        tone=BAD,
    )


@symptom(
    limit=f"less than {PASSED_LOW:g} of the gradient passes after a batch's first update: (U share_passed - 1) / "
    "(U - 1)",
)
def gradient_stopped(h: History) -> Seen | None:
    share = later_share(h.recent, "share_passed")
    if share is None or share >= PASSED_LOW:
        return None
    words = (
        f"Over {h.over}, {percent(share)} of the gradient passed the trust region after a batch's first update; the "
        "rest was stopped."
    )
    epsilon, length = h.setting("algorithm.trust.epsilon_high", 0.0), h.mean("length_mean")
    if averages_tokens(h) and epsilon < SEQUENCE_EPSILON and length is not None:
        words += (
            f" Epsilons of {epsilon:g} are made for completions of thousands of tokens; here they have {length:.0f}, "
            "and a short one's mean log-ratio varies more."
        )
        return Seen(words, "algorithm.trust.epsilon_low and epsilon_high ten times as wide, or fewer updates")
    return Seen(words, smaller_updates(h))


@symptom(
    limit=f"a ratio of completions or turns clipped at {SEQUENCE_EPSILON:g} or more, and share_passed is 1",
)
def trust_region_without_effect(h: History) -> Seen | None:
    share, epsilon = later_share(h.recent, "share_passed"), h.setting("algorithm.trust.epsilon_high", 0.0)
    clips = h.setting("algorithm.trust.kind") == "clip" and averages_tokens(h)
    if not clips or epsilon < SEQUENCE_EPSILON or share is None or share < 0.999:
        return None
    return Seen(
        f"The clip at {epsilon:g} stopped nothing over {h.over}: that width is made for the ratio of a token, and the "
        "mean log-ratio of many tokens varies far less, so there is no trust region.",
        "algorithm.trust.epsilon_low = 3e-4 and algorithm.trust.epsilon_high = 4e-4, the paper's",
    )


@symptom(
    limit=f"share_passed_positive and share_passed_negative more than {SIGN_GAP:g} apart after the first update, "
    "unless solved",
)
def one_sign_stopped(h: History) -> Seen | None:
    up, down = (later_share(h.recent, f"share_passed_{sign}") for sign in ("positive", "negative"))
    if up is None or down is None or abs(up - down) <= SIGN_GAP or h.solved:
        return None
    side, key = ("praised", "epsilon_high") if up < down else ("blamed", "epsilon_low")
    return Seen(
        f"After a batch's first update the trust region passed {percent(up)} of the gradient of praised tokens and "
        f"{percent(down)} of blamed ones over {h.over}: the policy is pulled one way.",
        f"A wider algorithm.trust.{key} lets {side} tokens through; {smaller_updates(h, lead='or ')}",
    )


@symptom(
    limit=f"median of kl_mean or kl_reward_mean above {KL_LARGE:g} nats per token",
)
def far_from_the_reference(h: History) -> Seen | None:
    medians = [x for x in (h.median("kl_mean"), h.median("kl_reward_mean")) if x is not None]
    if not medians or max(medians) <= KL_LARGE:
        return None
    beta = h.setting("algorithm.kl.beta", 0.0)
    return Seen(
        f"The KL to the reference was {short(max(medians))} nats per token over {h.over}: the policy has gone far from "
        "where it started.",
        f"algorithm.kl.beta = {beta * 3:g} (it is {beta:g}), or {lower_rate(h)}",
    )


@symptom(
    limit=f"stale_rows_share above {STALE:g}",
)
def stale_rows(h: History) -> Seen | None:
    share = h.mean("stale_rows_share")
    if share is None or share <= STALE:
        return None
    return Seen(
        f"{percent(share)} of the rows trained over {h.over} were sampled by older weights than the newest ones.",
        "Fewer surplus groups: another prompts_per_step, or problems of which fewer groups are dropped",
    )


@symptom(
    limit=f"median of explained_variance below 0, after {PATIENCE} steps or critic.warmup_steps, unless solved",
)
def critic_worse_than_none(h: History) -> Seen | None:
    explained = h.median("explained_variance")
    waiting = max(PATIENCE, h.setting("critic.warmup_steps", 0))
    if explained is None or explained >= 0 or h.step <= waiting or h.solved:
        return None
    return Seen(
        f"The critic explains less than nothing of the returns ({short(explained)} over {h.over}): its values make the "
        "advantages noisier than none would.",
        "A higher critic.learning_rate, critic.warmup_steps = 5, or an algorithm without a critic",
    )


@symptom(
    limit="gradient_norm_max 0, or learning_rate 0, or log_ratio_abs_max 0 over several updates with a gradient",
)
def parameters_frozen(h: History) -> Seen | None:
    rows = [row for row in h.recent if _updates(row)]
    if not rows or not h.total("advantage_abs_mean", rows):
        return None
    rates, norms = h.numbers("learning_rate", rows), h.numbers("gradient_norm_max", rows)
    if norms and max(norms) == 0:
        return Seen(
            f"Parameters are frozen: the gradient is exactly 0 over {h.over} although advantages are not.",
            "Look for parameters without requires_grad, or a trust region that stops everything (share_passed)",
            tone=BAD,
        )
    if rates and max(rates) == 0:
        return Seen(f"The learning rate was 0 over {h.over}: nothing can change.", "learner.learning_rate = 1e-6")
    several = [row for row in rows if _several_gradients(row)]
    moved = h.numbers("log_ratio_abs_max", several)
    if not moved or max(moved) > 0 or not any(numbers("learning_rate", several)):
        return None
    return Seen(
        f"Parameters are frozen: over {h.over}, no update changed the probability of any token.",
        "Look for an optimizer that holds other parameters than the model's, or a learning rate below float precision",
        tone=BAD,
    )


@symptom(
    limit=f"median of log_ratio_abs_max below {STILL:g}, over {PATIENCE} steps or more, unless solved",
)
def learning_rate_too_small(h: History) -> Seen | None:
    rows = [row for row in h.recent if _updates(row) > 1 and numbers("advantage_abs_mean", [row]) != [0.0]]
    moved, rate = h.median("log_ratio_abs_max", rows), h.mean("learning_rate", rows)
    if len(rows) < PATIENCE or not moved or moved >= STILL or h.solved or not rate:
        return None
    return Seen(
        f"Over {h.over}, no token's probability moved by more than {percent(moved)} within a step: at a learning rate "
        f"of {rate:.2g} nothing is learned.",
        f"learner.learning_rate = {rate * 10:.0e}",
    )


def later_share(rows: Sequence[Row], name: str) -> float | None:
    """Compute the share that passes after a batch's first update, on which every ratio is 1 and everything passes.

    A step's share is the mean of its U updates, so the others have (U share - 1) / (U - 1). None where U is 1.
    """
    later = []
    for row in rows:
        for share, updates in zip(numbers(name, [row]), numbers("updates", [row]), strict=False):
            if updates > 1:
                later.append(max(0.0, (updates * share - 1) / (updates - 1)))
    return fmean(later) if later else None


def _updates(row: Row) -> float:
    return sum(numbers("updates", [row]))


def _several_gradients(row: Row) -> bool:
    """Tell if more than one of a step's updates had a gradient: its ratios are taken before the last update moves."""
    mean, largest = numbers("gradient_norm", [row]), numbers("gradient_norm_max", [row])
    return _updates(row) > 1 and (not (mean and largest) or _updates(row) * mean[0] > largest[0] * (1 + 1e-6))


def _jump(h: History, at: int, clip: float) -> list[tuple[float, float]]:
    """Give (norm, times the median of the ten steps before) if row `at` is a spike; nothing if it is none."""
    norm = numbers("gradient_norm_max", [h.rows[at]])
    if not norm or norm[0] <= clip:
        return []
    before = h.median("gradient_norm", h.rows[max(0, at - RECENT) : at])
    return [(norm[0], norm[0] / before)] if before and norm[0] > SPIKE * before else []
