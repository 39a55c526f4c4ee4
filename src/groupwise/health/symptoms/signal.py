"""The signal that there is to learn from: groups with and without signal, lengths, faults."""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from groupwise.health.symptoms.base import (
    BAD,
    CORRECTNESS,
    NEUTRAL,
    RECENT,
    WARN,
    History,
    Row,
    Seen,
    many,
    percent,
    short,
    symptom,
)

# Thresholds; each symptom says why it stands where it does.
NO_SIGNAL = 0.5
FEW_MIXED = 0.2
DROPPED = 0.75
CUT_OFF = 0.1
#: Steps from which on, and a part of what it was below which, a share of cut completions is judged and is falling.
EARLIEST, FALLING = 3, 0.75
#: How the names of the policies begin that groupwise makes itself, with random weights.
MADE_HERE = ("tiny-", "small-")
LONGER, GROWN = 2.0, 1.5

#: What to do about a fault of {what} failed, by the word its name begins with.
MEND = {
    "timeout": "a faster {what}, or a longer scoring.deadline",
    "memory": "a {what} that takes less memory, or a larger scoring.memory_mib",
    "crash": "a {what} that does not end its process",
    "nan": "a {what} that returns a finite number for every completion",
    "unreachable": "a judge whose server runs, or fewer requests at once ({what})",
}
#: The place of faults that are an environment's; core.environment names it, and health imports nothing.
ENVIRONMENT = "environment"
#: What failed, by the name that its faults have; every other name is a reward's.
FAILED: Mapping[str, str] = {"task": "score of the task", ENVIRONMENT: "environment or tool"}


@symptom(
    limit=f"groups_all_right_share above {NO_SIGNAL:g}; a warning only if the first ten steps were too",
)
def groups_all_right(h: History) -> Seen | None:
    share = h.mean("groups_all_right_share")
    if share is None or share <= NO_SIGNAL or not h.tied_train_nothing or h.drops:
        return None
    words = f"{percent(share)} of the groups of {h.over} were all right: {what_ties_train(h)}."
    beginning = h.mean("groups_all_right_share", h.rows[:RECENT])
    from_start = h.rows[0].get("step") == 1 and len(h.rows) >= RECENT
    easy = from_start and beginning is not None and beginning > NO_SIGNAL
    if easy:
        words += " It was so from the beginning: the problems are too easy for this policy."
    few_left = h.solved or not h.compares_within_group
    replace = "" if few_left else ', algorithm.name = "dapo" to replace such groups'
    return Seen(words, f"Harder problems{replace}, or stop here", WARN if easy else NEUTRAL)


@symptom(
    limit=f"groups_all_wrong_share above {NO_SIGNAL:g}",
)
def groups_all_wrong(h: History) -> Seen | None:
    share = h.mean("groups_all_wrong_share")
    if share is None or share <= NO_SIGNAL or not h.tied_train_nothing:
        return None
    fate = "they are dropped and replaced" if h.drops else what_ties_train(h)
    return Seen(
        f"{percent(share)} of the groups of {h.over} were all wrong: {fate}. Nothing in them is worth preferring.",
        easier(h),
    )


@symptom(
    limit=f"groups_signal_share below {1 - NO_SIGNAL:g}, where more than the task's score trains",
)
def groups_of_equal_reward(h: History) -> Seen | None:
    share = h.mean("groups_signal_share")
    if share is None or share >= 1 - NO_SIGNAL or h.by_score or not h.compares_within_group:
        return None
    fate = "they are dropped and replaced" if h.drops else what_ties_train(h)
    return Seen(
        f"In {percent(1 - share)} of the groups of {h.over} every completion had the same reward: {fate}.",
        f"A finer reward than all or nothing, {h.more_samples}, or other problems",
    )


@symptom(
    limit="pass_rate 0 in all of the last ten steps, where other rewards train",
)
def nothing_right(h: History) -> Seen | None:
    rates = h.numbers("pass_rate") if h.setting("evaluation.metric", CORRECTNESS) == CORRECTNESS else []
    if not rates or max(rates) > 0 or h.tied_train_nothing:
        return None
    others = [name for name in h.rewards if name != "task"]
    what = f"only the other rewards ({', '.join(others)}) train" if others else "the task's score says nothing"
    if h.setting("preference") and not others:
        what = "only the reward model's score trains"
    if h.mean("zero_advantage_share") == 1:
        what = "nothing else told the completions apart either, so that all advantages were 0"
    return Seen(f"Not one completion of {h.over} was right: {what}.", easier(h))


@symptom(
    limit=f"groups_mixed_share below {FEW_MIXED:g}, and neither all-right nor all-wrong groups above {NO_SIGNAL:g}",
)
def few_mixed_groups(h: History) -> Seen | None:
    mixed, right, wrong = (h.mean(f"groups_{kind}_share") for kind in ("mixed", "all_right", "all_wrong"))
    if mixed is None or right is None or wrong is None:
        return None
    if not h.tied_train_nothing or h.drops or not h.compares_within_group:
        return None
    if mixed >= FEW_MIXED or max(right, wrong) > NO_SIGNAL:
        return None
    return Seen(
        f"Only {percent(mixed)} of the groups of {h.over} mix right and wrong; {percent(right)} were all right and "
        f"{percent(wrong)} all wrong: the problems are too easy or too hard, hardly any between.",
        f'Problems of middle difficulty, {h.more_samples}, or algorithm.name = "dapo"',
    )


@symptom(
    limit=f"generated_tokens_dropped / generated_tokens above {DROPPED:g}",
)
def generation_dropped(h: History) -> Seen | None:
    share = dropped_share(h, h.recent)
    if share is None or share <= DROPPED:
        return None
    right, wrong = h.mean("groups_all_right_share") or 0.0, h.mean("groups_all_wrong_share") or 0.0
    if h.setting("algorithm.filter.metric", CORRECTNESS) != CORRECTNESS:
        return Seen(
            f"{percent(share)} of the tokens generated in {h.over} went to groups that were dropped: their completions "
            "earned the same.",
            "A finer reward than all or nothing, or other problems",
        )
    cause = "all right: the task is nearly solved" if right >= wrong else "all wrong: the task is too hard"
    return Seen(
        f"{percent(share)} of the tokens generated in {h.over} went to groups that were dropped, most of them {cause}.",
        "Harder problems, or stop here" if right >= wrong else easier(h),
    )


@symptom(
    limit="groups_fallback above 0 in the last ten steps",
)
def fallback(h: History) -> Seen | None:
    count = h.total("groups_fallback", h.recent)
    if not count:
        return None
    steps = sum(1 for x in h.numbers("groups_fallback") if x)
    rounds = h.setting("algorithm.filter.max_rounds", 0)
    budget = f"all {rounds} rounds of generation" if rounds else "the rounds of generation"
    return Seen(
        f"In {steps} of {h.over if len(h.recent) > 1 else 'one step'}, {budget} were spent before the batch was "
        f"full: {many(count, 'group')} without signal filled it.",
        "A smaller prompts_per_step, other problems (harder where most are all right), or a larger "
        "algorithm.filter.max_rounds",
    )


@symptom(
    limit=f"truncated_share above {CUT_OFF:g}; only a note in the first {EARLIEST - 1} steps, or while the share falls "
    f"to {FALLING:g} times or less between the halves of the last ten steps",
)
def completions_cut_off(h: History) -> Seen | None:
    share, limit = h.mean("truncated_share"), h.setting("sampling.max_new_tokens", 0)
    if share is None or share <= CUT_OFF:
        return None
    late, long = (h.total(f"ended.{why}", h.recent) for why in ("seconds", "tokens"))
    if late > long:
        return Seen(
            f"{percent(share)} of the episodes of {h.over} were cut off, {late:.0f} because their environment took "
            "longer than task.seconds for its answers.",
            "A faster environment, or a larger task.seconds",
        )
    at = f" of {many(limit, 'token')}" if limit else ""
    rate = h.mean("pass_rate")
    wrong = h.by_score and rate is not None and rate < share / 2  # then most of them do not pass
    cut = f"{percent(share)} of the completions of {h.over} reached the limit{at} and were cut off"
    if passing := _passing(h.numbers("truncated_share")):
        return Seen(f"{cut}; {passing}.", tone=NEUTRAL)
    return Seen(
        cut + (": most count as wrong whatever they were about to say." if wrong else " before they had ended."),
        f"sampling.max_new_tokens = {2 * limit}" if limit else "A larger sampling.max_new_tokens",
    )


def _passing(shares: Sequence[float]) -> str:
    """Say why a share of completions that are cut off may go away by itself; "" if nothing says so."""
    half = len(shares) // 2
    if len(shares) < EARLIEST:
        return "the first steps do not show yet whether the policy learns to end"
    falls = fmean(shares[-half:]) <= FALLING * fmean(shares[:half])
    return "the share is falling: the policy learns to end" if falls else ""


@symptom(
    limit=f"length_wrong_mean {LONGER:g} times length_right_mean or more, and {GROWN:g} times what it was in the "
    "first ten steps",
    live=False,
)
def length_bias(h: History) -> Seen | None:
    wrong, right = h.mean("length_wrong_mean"), h.mean("length_right_mean")
    start = h.mean("length_wrong_mean", h.rows[:RECENT])
    if wrong is None or right is None or start is None or len(h.rows) < 2 * RECENT or not right:
        return None
    if wrong < LONGER * right or wrong < GROWN * start:
        return None
    return Seen(
        f"Wrong completions grew from {short(start)} to {short(wrong)} tokens, and right ones have {short(right)}: a "
        "long wrong answer is punished less for each of its tokens (length bias).",
        'algorithm.name = "dr-grpo", algorithm.aggregate.kind = "token-mean", or '
        "algorithm.shaping.overlong_cache = 0.2",
    )


@symptom(
    limit="any faults.CAUSE above 0",
    live=False,
)
def scoring_faults(h: History) -> Seen | None:
    counts = h.counts("faults.", h.rows)
    if not counts:
        return None
    everything = h.total("generated_completions")
    of = f" of {everything:.0f}" if everything else ""
    tools = _tools_at_fault(h, {cause.partition(" in ")[0] for cause in counts if cause.endswith(ENVIRONMENT)}, h.rows)
    by_environment = all(cause.endswith(f" in {ENVIRONMENT}") for cause in counts)
    failed = "their environment, or a tool, gave no answer" if by_environment else "scoring failed"
    return Seen(
        f"{math.fsum(counts.values()):.0f}{of} completions have no score because {failed}: {_listed(counts)}{tools}. "
        "They neither vote nor train.",
        _advice(counts),
    )


@symptom(
    limit='turn_faults.CAUSE above 0 in the last ten steps, with task.on_fault = "answer"',
)
def turns_without_an_answer(h: History) -> Seen | None:
    counts = h.counts("turn_faults.", h.recent)
    if not counts or h.setting("task.on_fault", "mask") != "answer":
        return None
    return Seen(
        f"The environment, or a tool, gave no answer to {many(math.fsum(counts.values()), 'turn')} of {h.over}: "
        f"{_listed(counts)}{_tools_at_fault(h, counts, h.recent)}. The policy was told so.",
        _advice({f"{cause} in {ENVIRONMENT}": count for cause, count in counts.items()}, answered=True),
    )


@symptom(
    limit="more unscored_completions than scoring faults",
)
def completions_without_a_score(h: History) -> Seen | None:
    count, everything = h.total("unscored_completions"), h.total("generated_completions")
    failed = sum(h.total(name) for name in h.names("faults.", h.rows))
    if count <= failed or not everything:
        return None
    if count == everything:
        why = "Look at the task's or the reward's return value"
        return Seen("No completion has a score: nothing trains.", why, BAD)
    return Seen(
        f"{count:.0f} of {everything:.0f} completions have no score: no reward votes on them (NaN, or None), so they "
        "train nothing.",
        "A reward that votes on every row, 0 where there is nothing to reward; or leave such rows out (task.filter)",
    )


def _advice(faults: Mapping[str, float], answered: bool = False) -> str:
    advice = remedy(faults, answered)
    return f"{advice[:1].upper()}{advice[1:]}; log.txt has the first of each kind"


def _listed(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{count:.0f} {cause}" for cause, count in counts.items())


def _tools_at_fault(h: History, causes: Collection[str], rows: Sequence[Row]) -> str:
    """Name the tools whose calls failed for one of these causes, in brackets; "" if none is known. What a function
    raises is answered, and no fault.
    """
    pairs = ((name, *name.removeprefix("tools.").partition(".failures.")) for name in h.names("tools.", rows))
    failed = {tool: h.total(name, rows) for name, tool, _, kind in pairs if kind in causes and kind != "exception"}
    words = ", ".join(f"{tool} {count:.0f} times" for tool, count in failed.items() if count)
    return f" (tool {words})" if words else ""


def remedy(faults: Mapping[str, float], answered: bool = False) -> str:
    """Advise on the commonest of some faults, which are counted by cause and place.

    answered  the policy is told of faults of its environment already

    >>> remedy({"timeout in mine": 2, "nan in task": 1})
    'a faster reward mine, or a longer scoring.deadline'
    """
    cause, _, place = max(faults, key=lambda name: faults[name]).partition(" in ")
    what = FAILED.get(place, f"reward {place}".rstrip())
    words = MEND.get(cause.split()[0], "mend the {what}").format(what=what)
    told = '; or task.on_fault = "answer", under which the policy is told of it and the episode goes on'
    return words + told * (place == ENVIRONMENT and not answered)


def dropped_share(h: History, rows: Sequence[Row]) -> float | None:
    """Compute the share of generated tokens in dropped groups; the share of groups if a run did not count tokens."""
    for part, total in (("generated_tokens_dropped", "generated_tokens"), ("groups_dropped", "groups_generated")):
        if h.numbers(part, rows) and h.total(total, rows):
            return h.total(part, rows) / h.total(total, rows)
    return None


def windows(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """Cut the rows into pieces of RECENT; if they do not divide, the first piece is the shorter one."""
    n = len(rows)
    return [rows[max(0, end - RECENT) : end] for end in range(n - (n - 1) // RECENT * RECENT, n + 1, RECENT)]


def what_ties_train(h: History) -> str:
    """Tell what is left to train in groups whose completions earned the same."""
    silent, trained = h.mean("zero_advantage_share"), h.numbers("trained_completions")
    if trained and not any(trained):
        return "none of their completions trained"
    if h.kl_in_reward:
        return "only the KL tells their completions apart, so they train nothing else"
    left = ["the KL term"] if h.setting("algorithm.kl.beta", 0) > 0 else []
    left += ["the entropy bonus"] if h.setting("algorithm.entropy_coefficient", 0) else []
    trains = f"only {' and '.join(left)}" if left else "nothing"
    if silent is None:
        return f"their advantages are 0, so they train {trains}"
    return f"{percent(silent)} of the trained completions had advantages of 0 and trained {trains}"


def easier(h: History) -> str:
    """Advise on problems of which nothing comes out right. A warm start is for policies that groupwise makes: one that
    was trained already would forget what it can.
    """
    longer = (h.mean("truncated_share") or 0) > CUT_OFF
    limit = h.setting("sampling.max_new_tokens", 0)
    made_here = not h.setting("start") and str(h.setting("model", "")).startswith(MADE_HERE)
    warm = " or a longer warm start" if h.setting("warm_start.steps", 0) else " or a warm start"
    advice = f"Easier problems, {h.more_samples},{warm}" if made_here else f"Easier problems, or {h.more_samples}"
    return advice + (f", and sampling.max_new_tokens = {2 * limit}" if longer and limit else "")
