"""Rewards themselves: a reward model against the truth, and rewards that say nothing within a group."""

from statistics import fmean

from groupwise.health.symptoms.base import BAD, History, Seen, numbers, short, symptom
from groupwise.health.symptoms.signal import windows

# Thresholds; each symptom says why it stands where it does.
FALL = 0.05
#: Reward units: no spread at all, rounding aside.
FLAT = 1e-9


@symptom(
    name="over-optimisation",
    limit=f"pass_rate more than {FALL:g} below its best ten steps while learned_mean is above what it was there",
    why="chance moves ten steps' pass rate by about 0.01 at 512 completions a step",
)
def over_optimised(h: History) -> Seen | None:
    parts = [(numbers("pass_rate", part), numbers("learned_mean", part)) for part in windows(h.rows)]
    means = [(fmean(rates), fmean(scores)) for rates, scores in parts if rates and scores]
    if len(means) < 2:
        return None
    best, at_best = max(means)
    rate, learned = means[-1]
    if rate >= best - FALL or learned <= at_best:
        return None
    return Seen(
        f"The reward model's score rose from {short(at_best)} to {short(learned)} while the pass rate fell from "
        f"{short(best)} to {short(rate)}: the policy has learned to please the reward model, not to be right.",
        f"Take an earlier checkpoint; a larger algorithm.kl.beta (it is {h.setting('algorithm.kl.beta', 0):g}), more "
        "or better pairs, or the task's own score as a second reward",
        tone=BAD,
    )


@symptom(
    limit="learned_right_mean not above learned_wrong_mean",
    why="from there on its score says nothing about being right",
)
def reward_model_cannot_tell(h: History) -> Seen | None:
    right, wrong = h.mean("learned_right_mean"), h.mean("learned_wrong_mean")
    if right is None or wrong is None or right > wrong:
        return None
    return Seen(
        f"The reward model scores right completions {short(right)} and wrong ones {short(wrong)} over {h.over}: it "
        "can no longer tell them apart.",
        "More pairs of what the policy writes now: preference.pairs, preference.noise; or stop here",
    )


@symptom(
    limit="rewards.NAME.spread_within_groups 0 in all of the last ten steps, unless solved",
    why="advantages come from differences within a group",
)
def reward_without_spread(h: History) -> Seen | None:
    columns = [name for name in h.names("rewards.") if name.endswith(".spread_within_groups")]
    spreads = {name.removeprefix("rewards.").removesuffix(".spread_within_groups"): h.mean(name) for name in columns}
    spreads.pop("task", None)  # the groups' own finding says that
    flat = [name for name, spread in spreads.items() if name in h.rewards and spread is not None and spread <= FLAT]
    if not flat or h.solved or h.compares_within_group is False:
        return None
    names = ", ".join(flat)
    return Seen(
        f"Reward {names} gave every completion of a group the same score over {h.over}: it trains nothing.",
        "A finer score than all or nothing" + (f", or leave [rewards.{flat[0]}] out" if may_go(h, flat[0]) else ""),
    )


def may_go(h: History, reward: str) -> bool:
    """Whether a recipe without this reward still has one that trains, and names it nowhere else."""
    named = {h.setting("evaluation.metric"), h.setting("algorithm.filter.metric")}
    return reward not in named and bool(h.rewards.keys() - {reward})
