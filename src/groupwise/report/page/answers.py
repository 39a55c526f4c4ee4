"""A newcomer's five questions answered from a run's rows, and the run's own checks in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from groupwise.health.symptoms.base import GROUP_RELATIVE, History, many, numbers, percent, short
from groupwise.health.symptoms.signal import FEW_MIXED, dropped_share
from groupwise.report.page.data import (
    BAD,
    GOOD,
    NEUTRAL,
    WARN,
    Answer,
    CheckLine,
    Finding,
    RolloutGroup,
)

Row = Mapping[str, Any]

QUESTIONS = (
    "Did it learn?",
    "On what?",
    "Is it healthy?",
    "Why are some groups not training?",
    "What would I try next?",
)
#: The normal quantile of a 95 % interval.
Z95 = 1.96
#: A gain of the pass rate below this is "a little" even where it is certain.
LITTLE = 0.02
#: Characters of an example that a sentence can hold.
EXAMPLE = 90
#: Tokens by which completions must change to be said to.
LENGTH = 0.5


@dataclass(frozen=True)
class Told:
    """What the answers are made of: rows of metrics.jsonl apart, the recipe's table, summary.json of a finished run.

    groups  a sample of rollouts, for an example; may be empty
    """

    recipe: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None
    steps: Sequence[Row] = ()
    evaluations: Sequence[Row] = ()
    groups: Sequence[RolloutGroup] = ()
    findings: Sequence[Finding] = ()

    @property
    def history(self) -> History:
        return History(self.steps, self.evaluations, self.recipe)

    @property
    def so_far(self) -> str:
        return "" if self.summary is not None else " so far"


def answers(told: Told) -> tuple[Answer, ...]:
    """One answer to each of QUESTIONS, in their order, each of at most two sentences."""
    made = (learned, on_what, healthy, silent_groups, next_try)
    return tuple(Answer(question, *answer(told)) for question, answer in zip(QUESTIONS, made, strict=True))


def learned(told: Told) -> tuple[str, str]:
    """Held out before and after, by whether their 95 % intervals overlap; (words, tone)."""
    found = [row for row in told.evaluations if _measure(row.get("evaluation"))]
    found = [row for row in found if _measure(row["evaluation"]) == _measure(found[0]["evaluation"])]
    if len(found) < 2 or found[-1].get("step") == found[0].get("step"):
        return _not_measured(told, found)
    first, last = found[0], found[-1]
    before, after = first["evaluation"], last["evaluation"]
    grown = _lengths(before, after)
    steps = f"in {last.get('step')} steps"
    if _measure(after) != "avg_at_k":
        a, b = before["learned_mean"], after["learned_mean"]
        yes, tone = ("Its score rose", GOOD) if b > a else ("No", WARN)
        return (
            f"{yes}{told.so_far}: the reward model's held-out score went from {short(a)} to {short(b)} {steps}{grown}. "
            "Nobody knows the right answers here, so read some completions before believing it.",
            tone,
        )
    verdict, tone, verb, remark = _verdict(before, after)
    low, high = interval(after)
    held = (
        f"the held-out pass rate {verb} {steps} "
        f"({many(after['problems'], 'problem')} x {many(after['samples'], 'sample')}; 95 % interval {low:.3f} to "
        f"{high:.3f}){grown}"
    )
    return f"{verdict}{told.so_far}: {held}.{remark}", tone


def on_what(told: Told) -> tuple[str, str]:
    """Task, policy, algorithm, batch, rewards; one example."""
    h = told.history
    if not told.recipe:
        return "Not known: the folder has no recipe.toml.", WARN
    warm = h.asks("warm_start.steps", 0)
    start = f" (warm start of {warm} steps)" if warm else ""
    sources = sorted(n.removeprefix("sources.").removesuffix(".pass_rate") for n in h.names("sources.") if "pass" in n)
    mixes = f" (a mix of {', '.join(sources)})" if len(sources) > 1 else ""
    words = (
        f"The task {h.asks('task.name', '?')}{mixes}, with the policy {h.asks('model', '?')}{start}: each step samples "
        f"{h.asks('samples_per_prompt', '?')} completions of at most {h.asks('sampling.max_new_tokens', '?')} tokens "
        f"for each of {h.asks('prompts_per_step', '?')} prompts, and {h.asks('algorithm.name', '?')} trains on "
        f"{_rewards(h)}."
    )
    return words + _example(told.groups), NEUTRAL


def healthy(told: Told) -> tuple[str, str]:
    """The checks first, then the worst findings."""
    if not told.steps:
        return "Not known yet: no step has been logged.", NEUTRAL
    checks = check_lines(told.steps)
    failed = [c for c in checks if c.verdict == "fail"]
    if failed:
        return f"No: the check '{failed[0].name}' {failed[0].words.removeprefix('It ')}", BAD
    held = [c for c in checks if c.verdict == "pass"]
    checked = f"all {len(held)} checks that were measured held at every step" if held else "no check was measured"
    for tone, start, answer in ((BAD, "No", BAD), (WARN, "Not quite", WARN)):
        found = [f for f in told.findings if f.tone == tone]
        if found:
            rest = sum(f.tone in (WARN, BAD) for f in told.findings) - 1
            more = f" ({rest} more below)" if rest else ""
            return f"{start}{told.so_far}, though {checked}: {found[0].name}{more}. {_first(found[0].words)}", answer
    past = [f for f in told.findings if f.words.startswith("Earlier")]
    was = f" Earlier there was a warning: {past[0].name}." if past else ""
    words = f"Yes{told.so_far}: {checked}, and nothing in the metrics of {told.history.over} warns.{was}"
    return words, GOOD if held else NEUTRAL


def silent_groups(told: Told) -> tuple[str, str]:
    """What became of the groups of the last steps, and why."""
    h = told.history
    mixed, right, wrong = (h.mean(f"groups_{kind}_share") for kind in ("mixed", "all_right", "all_wrong"))
    if mixed is None or right is None or wrong is None:
        return "Not known yet: no group has been logged.", NEUTRAL
    if mixed + right + wrong == 0:
        return "Nobody knows what is right here; every group with different scores trains.", NEUTRAL
    shares = f"{percent(mixed)} mixed right and wrong, {percent(right)} were all right and {percent(wrong)} all wrong"
    of = f"Of the groups generated in {h.over}, {shares}"
    if h.asks("algorithm.filter.kind", "none") != "none":
        cost = dropped_share(h, h.recent)
        spent = "" if cost is None else f", which took {percent(cost)} of the generation"
        filled = h.total("groups_fallback", h.recent)
        fell = f" The budget ran out, so {filled:.0f} of them trained all the same." if filled else ""
        return (
            f"{of}: only mixed ones train, and new prompts take the place of the others{spent}.{fell}",
            WARN if filled else NEUTRAL,
        )
    if h.asks("algorithm.advantage.kind") not in GROUP_RELATIVE:
        return (
            f"All of them train: {h.asks('algorithm.name', 'this algorithm')} does not compare within a group. {of}.",
            NEUTRAL,
        )
    if not h.tied_train_nothing:
        return f"{of}. Other rewards or penalties than being right can still tell their completions apart.", NEUTRAL
    why = "where all are equally right every advantage is 0, so such a group trains nothing"
    return f"{of}: {why}.", WARN if mixed < FEW_MIXED and not h.solved else NEUTRAL


def next_try(told: Told) -> tuple[str, str]:
    """The advice of the worst findings, at most two."""
    if not told.steps:
        return "Wait for the first steps, or look at log.txt.", NEUTRAL
    advice = list(dict.fromkeys(f.advice for f in told.findings if f.advice and not _past(f)))[:2]
    if advice:
        words = f"{_first_up(advice[0])}."
        return words + (f" Then: {advice[1]}." if advice[1:] else ""), NEUTRAL
    other = "dapo" if told.history.asks("algorithm.name") != "dapo" else "grpo"
    return (
        "Nothing asks for a change: the same recipe with seed = 1 and 2 shows how much of the result is chance, "
        f'and algorithm.name = "{other}" what another algorithm makes of it.',
        NEUTRAL,
    )


def interval(evaluation: Mapping[str, Any]) -> tuple[float, float]:
    """A 95 % interval of the pass rate over problems: p +- 1.96 standard_error, within 0 and 1.

    Where no standard error was logged, or it is 0: Wilson's interval with one vote a problem, which is never too
    narrow, because samples of one problem tell less than other problems would.

    >>> [round(x, 3) for x in interval({"avg_at_k": 0.5, "problems": 100, "standard_error": 0.05})]
    [0.402, 0.598]
    >>> [round(x, 3) for x in interval({"avg_at_k": 1.0, "problems": 100})]
    [0.963, 1.0]
    """
    p, n, error = evaluation["avg_at_k"], evaluation.get("problems") or 1, evaluation.get("standard_error")
    if error:
        return max(0.0, p - Z95 * error), min(1.0, p + Z95 * error)
    middle, spread = p + Z95**2 / (2 * n), Z95 * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
    whole = 1 + Z95**2 / n
    return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


#: By the check's name: that it held, that it failed, why it may not have been measured. checks.py computes them.
MEANINGS: Mapping[str, tuple[str, str, str]] = {
    "live = old on the first update": (
        "Two passes of the learner over the same weights gave the same log-probabilities: no dropout, and splitting "
        "a batch changes nothing.",
        "The same weights gave different log-probabilities twice; look at dropout, kernels, microbatching.",
        "logp_old is the engine's, or a batch has one update and the ratio is 1 by construction.",
    ),
    "learner = engine": (
        "The sampler and the learner gave each sampled token the same probability: what was trained is what was "
        "sampled.",
        "The sampler's distribution is not the one being trained; look at temperature, top-p and top-k, the prompt's "
        "template, or old weights in the engine.",
        "No trained row was sampled by the then current weights.",
    ),
    "KL to the reference is 0 at step 0": (
        "Before the first update the policy was its reference.",
        "The reference is not the starting policy.",
        "The algorithm reads no reference, or the run's first step is not here.",
    ),
    "weights reach their declared total": (
        "The loss's token weights added up to what its aggregate declares, however a batch was split.",
        "The loss is normalised wrongly.",
        "The policy was not updated.",
    ),
    "engine and learner agree after a weight load": (
        "After each weight load the engine answered a fixed question with the learner's probabilities: the new "
        "weights arrived.",
        "The engine serves old weights, or a cache made from them.",
        "The probe sampled nothing.",
    ),
}


def check_lines(steps: Sequence[Row]) -> tuple[CheckLine, ...]:
    """Each check over all of the steps: failed if it failed once, passed if it was measured once."""
    found: dict[str, list[tuple[Any, Mapping[str, Any]]]] = {}
    for row in steps:
        for name, check in (row.get("checks") or {}).items():
            if isinstance(check, Mapping):
                found.setdefault(name, []).append((row.get("step"), check))
    return tuple(_check_line(name, told) for name, told in found.items())


def _check_line(name: str, told: Sequence[tuple[Any, Mapping[str, Any]]]) -> CheckLine:
    held, cause, unmeasured = MEANINGS.get(name, ("It held.", "It does not hold.", "It was not measured."))
    measured = [check for _, check in told if check.get("verdict") in ("pass", "fail")]
    failed = [step for step, check in told if check.get("verdict") == "fail"]
    limits, values = numbers("limit", measured), numbers("value", measured)
    limit, largest = (limits[-1] if limits else None), (max(values) if values else None)
    if failed:
        steps = f"at step {failed[0]}" if len(failed) == 1 else f"at {len(failed)} steps, first at step {failed[0]}"
        words = f"It failed {steps}. {cause}"
        return CheckLine(name, "fail", words, len(measured), largest, limit)
    if measured:
        rest = len(told) - len(measured)
        words = held if len(measured) > 1 or not rest else f"{held} Measured once."
        return CheckLine(name, "pass", words, len(measured), largest, limit)
    return CheckLine(name, "not measured", unmeasured, 0, None, None)


def _verdict(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """(verdict, tone, verb, a second sentence or "") from the two intervals."""
    (low, high), (low_after, high_after) = interval(before), interval(after)
    gain = after["avg_at_k"] - before["avg_at_k"]
    moved = f"from {before['avg_at_k']:.3f} to {after['avg_at_k']:.3f}"
    verb = f"rose {moved}" if gain > 0 else f"fell {moved}" if gain < 0 else f"stayed at {after['avg_at_k']:.3f}"
    if low_after > high:
        return ("Yes" if gain >= LITTLE else "A little"), GOOD, verb, ""
    if high_after < low:
        return "No, it lost what it had", BAD, verb, ""
    apart = Z95 * math.hypot((high - low) / (2 * Z95), (high_after - low_after) / (2 * Z95))
    if gain > apart:
        return "A little", NEUTRAL, verb, ""
    return "No", WARN, verb, f" Before it was {low:.3f} to {high:.3f}: the intervals overlap, chance explains it."


def _not_measured(told: Told, found: Sequence[Row]) -> tuple[str, str]:
    """No second evaluation: what there is instead."""
    held = f" Held out at the start: {_held(found[0]['evaluation'])}." if found else ""
    names = {"pass_rate": "pass rate", "learned_mean": "learned score", "score_mean": "score"}
    for name, words in names.items():
        rates = numbers(name, told.steps)
        if len(rates) > 1:
            n = min(10, max(1, len(rates) // 2))
            change = f"{short(fmean(rates[:n]))} to {short(fmean(rates[-n:]))}"
            return (
                f"Not measured yet: in training the {words} went from {change} over {len(rates)} steps.{held}",
                NEUTRAL,
            )
    return f"Not measured yet.{held}", NEUTRAL


def _measure(evaluation: Any) -> str:
    """The name of what an evaluation measures; "" where it has no number."""
    row = [evaluation] if isinstance(evaluation, Mapping) else []
    return next((name for name in ("avg_at_k", "learned_mean") if numbers(name, row)), "")


def _held(evaluation: Mapping[str, Any]) -> str:
    name = _measure(evaluation)
    return f"{'pass rate' if name == 'avg_at_k' else 'learned score'} {short(evaluation[name])}"


def _lengths(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    a, b = numbers("length_mean", [before]), numbers("length_mean", [after])
    if not a or not b:
        return ""
    if abs(b[0] - a[0]) < LENGTH:
        return f"; completions stayed at {b[0]:.1f} tokens"
    return f"; completions {'grew' if b > a else 'shrank'} from {a[0]:.1f} to {b[0]:.1f} tokens"


def _rewards(h: History) -> str:
    own = h.asks("rewards", {})
    if own:
        listed = ", ".join(f"{n} (weight {r.get('weight', 1):g})" for n, r in own.items() if isinstance(r, Mapping))
        return f"the rewards {listed}" if len(own) > 1 else f"the reward {listed}"
    return "a reward model's score" if h.asks("preference") else "the task's own score"


def _example(groups: Sequence[RolloutGroup]) -> str:
    if not groups:
        return ""
    group = next((g for g in groups if g.prompt.strip()), groups[0])
    answer = f", whose answer is {_one_line(group.answer)}" if group.answer.strip() else ""
    return f" For example: {_one_line(group.prompt)}{answer}."


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return f'"{words if len(words) <= EXAMPLE else words[: EXAMPLE - 3] + "..."}"'


def _past(found: Finding) -> bool:
    return found.words.startswith("Earlier")


def _first(text: str) -> str:
    """The first sentence."""
    head, point, _ = text.partition(". ")
    return head + ("." if point else "")


def _first_up(text: str) -> str:
    """A sentence begins with a capital, unless a recipe's key stands there."""
    key = text.split(" ", 1)[0]
    return text if "." in key or "_" in key or " = " in text[: len(key) + 3] else text[:1].upper() + text[1:]
