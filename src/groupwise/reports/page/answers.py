"""A newcomer's five questions answered from a run's rows, and the run's own checks in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from groupwise.core.numbers.change import FELL, UNTOLD
from groupwise.health.checks import invariant, of_limit
from groupwise.health.symptoms.base import (
    BAD,
    CORRECTNESS,
    GOOD,
    NEUTRAL,
    PASS_RATE,
    WARN,
    Finding,
    History,
    Measured,
    is_number,
    many,
    numbers,
    percent,
    short,
)
from groupwise.health.symptoms.signal import FEW_MIXED, dropped_share, what_ties_train
from groupwise.reports.folder.columns import change_of
from groupwise.reports.records import CheckLine, QuestionAnswer, RolloutGroup

Row = Mapping[str, Any]

#: A gain of the pass rate below this is "a little" even if it is certain.
LITTLE = 0.02
#: Characters of an example that a sentence can hold.
EXAMPLE = 90
#: Tokens by which completions must change to be said to.
LENGTH = 0.5


@dataclass(frozen=True)
class Known:
    """The sources of the answers.

    history   the rows of metrics.jsonl, and the recipe
    finished  the run has written its summary.json
    groups    a sample of rollouts, for an example; may be empty
    """

    history: History
    finished: bool = False
    groups: Sequence[RolloutGroup] = ()
    findings: Sequence[Finding] = ()

    @property
    def so_far(self) -> str:
        return "" if self.finished else " so far"


def learned(known: Known) -> tuple[str, str]:
    """Compare held out before and after: rose, fell, or cannot be told; (words, tone)."""
    what = known.history.measured
    rows = known.history.evaluated
    if len(rows) < 2 or rows[-1].get("step") == rows[0].get("step"):
        return _not_measured(known, rows, what)
    last = rows[-1]
    before, after = rows[0]["evaluation"], last["evaluation"]
    change = change_of(before, after, what)
    spell = "{:.3f}".format if what is PASS_RATE else short
    moved = f"from {spell(before[what.column])} to {spell(after[what.column])} in {last.get('step')} steps"
    size = " x ".join(many(n, thing) for thing in ("problem", "sample") for n in numbers(f"{thing}s", [after]))
    of = f" on {size}" if size else ""
    if change.verdict == UNTOLD:
        # Soon after the start that is as it should be.
        tone = WARN if known.finished else NEUTRAL
        verdict, held = f"It {UNTOLD}{known.so_far}, {change.grounds}", f"the held-out {what.words} went {moved}{of}"
        return f"{verdict}: {held}{_lengths(before, after)}.", tone
    held = f"the held-out {what.words} {change.verdict} {moved}{of}, {change.grounds}{_lengths(before, after)}"
    if change.verdict == FELL:
        return f"No, it lost what it had{known.so_far}: {held}.", BAD
    little = what is PASS_RATE and change.value < LITTLE
    read = "" if what is PASS_RATE else " A reward can rise without the text getting better: read some completions."
    return f"{'A little' if little else 'Yes'}{known.so_far}: {held}.{read}", GOOD


def on_what(known: Known) -> tuple[str, str]:
    """Name task, policy, algorithm, batch and rewards, and give an example."""
    h = known.history
    if not h.recipe:
        return "Not known: the folder has no recipe.toml.", WARN
    setting = partial(h.setting, default="?")
    task = h.setting("task.name") or str(setting("task.use")).rpartition(":")[2]  # a user's own by its class
    warm = 0 if h.setting("start") else h.setting("warm_start.steps", 0)
    start = f" (warm start of {warm} steps)" if warm else ""
    policy = h.setting("start") or setting("model")
    sources = sorted({name.removeprefix("sources.").rpartition(".")[0] for name in h.names("sources.")})
    mixes = f" (a mix of {', '.join(sources)})" if len(sources) > 1 else ""
    if h.supervised_alone:
        rows = f"{setting('supervised.rows_per_step')} supervised rows train"
        source = h.setting("supervised.path") or "the task's demonstrations"
        return f"The task {task}, with the policy {policy}{start}: in each step {rows}, of {source}.", NEUTRAL
    limit, samples, prompts = map(setting, ("sampling.max_new_tokens", "samples_per_prompt", "prompts_per_step"))
    kept = " that the filter keeps" if h.drops else ""
    of_each = f"{samples} completion{'s' * (samples != 1)} of at most {limit} token{'s' * (limit != 1)}"
    words = (
        f"The task {task}{mixes}, with the policy {policy}{start}: each step samples {of_each} for each of {prompts} "
        f"prompt{'s' * (prompts != 1)}{kept}, and {setting('algorithm.name')} trains on {_rewards(h)}."
    )
    return words + _example(known.groups), NEUTRAL


def healthy(known: Known) -> tuple[str, str]:
    """Tell of the checks first, then of the worst findings."""
    if not known.history.rows:
        return "Not known yet: no step has been logged.", NEUTRAL
    checks = check_lines(known.history.rows, known.history.machine)
    failed = [line for line in checks if line.verdict == "fail"]
    if failed:
        return f"No: the check '{failed[0].name}' {failed[0].words.removeprefix('It ')}", BAD
    held = [line for line in checks if line.verdict == "pass"]
    checked = f"all {len(held)} checks that were measured held at every step" if held else "no check was measured"
    for tone, start in ((BAD, "No"), (WARN, "Not quite")):
        worst = next((finding for finding in known.findings if finding.tone == tone), None)
        if worst:
            rest = sum(finding.tone in (WARN, BAD) for finding in known.findings) - 1
            more = f" ({rest} more below)" if rest else ""
            sentence, point, _ = worst.words.partition(". ")
            words = f"{start}{known.so_far}, though {checked}: {worst.name}{more}. {sentence}{'.' if point else ''}"
            return words, tone
    past = [finding for finding in known.findings if _past(finding)]
    was = f" Earlier there was a warning: {past[0].name}." if past else ""
    words = f"Yes{known.so_far}: {checked}, and nothing in the metrics of {known.history.over} warns.{was}"
    return words, GOOD if held else NEUTRAL


def silent_groups(known: Known) -> tuple[str, str]:
    """Tell what became of the groups of the last steps, and why some do not train."""
    h = known.history
    if h.supervised_alone:
        return "There are none: supervised rows alone train.", NEUTRAL
    shares = tuple(h.mean(f"groups_{kind}_share") for kind in ("mixed", "all_right", "all_wrong"))
    by_reward = h.setting("algorithm.filter.metric", CORRECTNESS) != CORRECTNESS or not h.by_score
    if (by_reward or None in shares) and h.mean("groups_signal_share") is not None:
        return _groups_by_reward(h)
    mixed, right, wrong = shares
    if mixed is None or right is None or wrong is None:
        return "Not known yet: no group has been logged.", NEUTRAL
    if mixed + right + wrong == 0:
        return "No right answer is known; every group with different scores trains.", NEUTRAL
    shown = f"{percent(mixed)} mixed right and wrong, {percent(right)} were all right and {percent(wrong)} all wrong"
    of = f"Of the groups generated in {h.over}, {shown}"
    if h.drops:
        return _dropped(h, of, "mixed")
    if h.compares_within_group is None:
        return f"{of}.", NEUTRAL
    if not h.compares_within_group:
        return f"{_all_train(h)} {of}.", NEUTRAL
    if not h.tied_train_nothing:
        return f"{of}. Other rewards or penalties than being right can still tell their completions apart.", NEUTRAL
    return f"{of}{_of_ties(h, 'all are equally right')}.", WARN if mixed < FEW_MIXED and not h.solved else NEUTRAL


def next_try(known: Known) -> tuple[str, str]:
    """Give the advice of the worst findings, at most two; none that another one holds already."""
    if not known.history.rows:
        return "Wait for the first steps, or look at log.txt.", NEUTRAL
    findings = [finding for finding in known.findings if finding.advice and not _past(finding)]
    every = list(dict.fromkeys(finding.advice for finding in findings))
    advice = [each for i, each in enumerate(every) if not any(each in before for before in every[:i])][:2]
    if advice:
        return _sentence(advice[0]) + (f" Then: {advice[1]}." if advice[1:] else ""), NEUTRAL
    h = known.history
    seed, other = h.setting("seed", 0), "dapo" if h.setting("algorithm.name") != "dapo" else "grpo"
    groups = f', and algorithm.name = "{other}" what another algorithm makes of it' * bool(h.compares_within_group)
    same = f"the same recipe with seed = {seed + 1} and {seed + 2} shows how much of the result is chance"
    return f"Nothing asks for a change: {same}{groups}.", NEUTRAL


MAKERS = {
    "Did it learn?": learned,
    "On what?": on_what,
    "Is it healthy?": healthy,
    "Why are some groups not training?": silent_groups,
    "What would I try next?": next_try,
}
QUESTIONS = tuple(MAKERS)


def answers(known: Known) -> tuple[QuestionAnswer, ...]:
    """Answer each of QUESTIONS, in their order, in at most two sentences each."""
    return tuple(QuestionAnswer(question, *answer(known)) for question, answer in MAKERS.items())


def check_lines(steps: Sequence[Row], machine: Sequence[Row] = ()) -> tuple[CheckLine, ...]:
    """Judge each check over all of the steps: failed if it failed once, passed if it was measured once.

    machine  rows of machine.jsonl, which have every check of the witness; those of `steps` have one that failed, too
    """
    by_name: dict[str, dict[Any, Mapping[str, Any]]] = {}
    for row, key in (*((row, "checks") for row in steps), *((row, "witness") for row in machine)):
        table = row.get(key)
        for name, check in table.items() if isinstance(table, Mapping) else ():
            if isinstance(check, Mapping):
                by_name.setdefault(name, {})[row.get("step")] = check
    return tuple(_check_line(name, [*checks.items()]) for name, checks in by_name.items())


def _check_line(name: str, checks: Sequence[tuple[Any, Mapping[str, Any]]]) -> CheckLine:
    """Judge one check; `checks` are (step, what metrics.jsonl has of it)."""
    known = invariant(name)
    measured = [check for _, check in checks if check.get("verdict") in ("pass", "fail")]
    failed = [step for step, check in checks if check.get("verdict") == "fail"]
    sound = [check for check in measured if numbers("value", [check]) and numbers("limit", [check])]
    worst = max(sound, key=lambda check: of_limit(check["value"], check["limit"]), default={})
    largest, limit = worst.get("value"), worst.get("limit")
    if failed:
        steps = f"at step {failed[0]}" if len(failed) == 1 else f"at {len(failed)} steps, first at step {failed[0]}"
        words = f"It failed {steps}. {_sentence(known.cause)}"
        return CheckLine(name, "fail", words, len(measured), largest, limit)
    if measured:
        once = len(measured) == 1 < len(checks)
        words = f"{known.held} Measured once." if once else known.held
        return CheckLine(name, "pass", words, len(measured), largest, limit)
    return CheckLine(name, "not measured", _sentence(known.unmeasured), 0, None, None)


def _groups_by_reward(h: History) -> tuple[str, str]:
    signal = h.mean("groups_signal_share") or 0.0
    apart, tied = percent(signal), percent(1 - signal)
    of = f"In {apart} of the groups generated in {h.over} rewards differ, in {tied} they do not"
    if h.drops:
        return _dropped(h, of, "differing")
    if not h.compares_within_group:
        return (f"{of}." if h.compares_within_group is None else f"{_all_train(h)} {of}."), NEUTRAL
    return f"{of}{_of_ties(h, 'all completions earn the same')}.", WARN if signal < FEW_MIXED else NEUTRAL


def _all_train(h: History) -> str:
    name, silent = h.setting("algorithm.name", "this algorithm"), h.mean("zero_advantage_share")
    if silent:
        return f"{name} does not compare within a group, and {what_ties_train(h)}."
    return f"All of them train: {name} does not compare within a group."


def _of_ties(h: History, tied: str) -> str:
    words = what_ties_train(h)
    return f": where {tied} {words}" if words.startswith(("their ", "only ")) else f"; {words}"


def _dropped(h: History, of: str, kind: str) -> tuple[str, str]:
    cost = dropped_share(h, h.recent)
    spent = "" if cost is None else f", which took {percent(cost)} of the generation"
    filled = h.total("groups_fallback", h.recent)
    fell = f" The budget ran out, so {filled:.0f} of them trained all the same." if filled else ""
    words = f"{of}: only {kind} ones train, and new prompts take the place of the others{spent}.{fell}"
    return words, WARN if filled else NEUTRAL


def _not_measured(known: Known, rows: Sequence[Row], what: Measured) -> tuple[str, str]:
    held = f" Held out at the start: {what.words} {short(rows[0]['evaluation'][what.column])}." if rows else ""
    begun = f"Not measured{'' if known.finished else ' yet'}"
    if known.history.setting("evaluation.problems", 1) == 0:
        begun = "Not measured, for evaluation.problems = 0"
    held_rows = numbers("supervised_loss", [row["evaluation"] for row in known.history.evaluations])
    if len(held_rows) > 1:
        change = f"{held_rows[0]:.3f} to {held_rows[-1]:.3f} nats a token"
        return f"The loss of held-out rows went from {change}; nothing measured answers.", NEUTRAL
    names = {what.training_column: what.words, "learned_mean": "learned score", "score_mean": "score"}
    names |= {"supervised_loss": "supervised loss"} if known.history.supervised_alone else {}
    for name, words in names.items():
        rates = numbers(name, known.history.rows)
        if len(rates) > 1:
            n = min(10, max(1, len(rates) // 2))
            change = f"{short(fmean(rates[:n]))} to {short(fmean(rates[-n:]))}"
            return f"{begun}: in training the {words} went from {change} over {len(rates)} steps.{held}", NEUTRAL
    return f"{begun}.{held}", NEUTRAL


def _lengths(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    a, b = numbers("length_mean", [before]), numbers("length_mean", [after])
    if not a or not b:
        return ""
    if abs(b[0] - a[0]) < LENGTH:
        return f"; completions stayed at {b[0]:.1f} tokens"
    return f"; completions {'grew' if b > a else 'shrank'} from {a[0]:.1f} to {b[0]:.1f} tokens"


def _rewards(h: History) -> str:
    rewards = h.setting("rewards", {})
    if rewards:
        weights = {name: table.get("weight", 1) for name, table in rewards.items() if isinstance(table, Mapping)}
        listed = ", ".join(f"{name} (weight {x:g})" for name, x in weights.items() if is_number(x))
        return f"the rewards {listed}" if len(rewards) > 1 else f"the reward {listed}"
    return "a reward model's score" if h.setting("preference") else "the task's own score"


def _example(groups: Sequence[RolloutGroup]) -> str:
    if not groups:
        return ""
    group = next((g for g in groups if g.prompt.strip()), groups[0])
    prompt, answer = (" ".join(text.split()) for text in (group.prompt, group.answer))
    prompt, answer = (text if len(text) <= EXAMPLE else text[: EXAMPLE - 3] + "..." for text in (prompt, answer))
    return f' For example: "{prompt}"' + (f', whose answer is "{answer}".' if answer else ".")


def _past(finding: Finding) -> bool:
    return finding.words.startswith("Earlier")


def _sentence(text: str) -> str:
    """Write a text with a capital at its beginning, unless a recipe's key stands there."""
    key = text.split(" ", 1)[0]
    begins_with_key = "." in key or "_" in key or " = " in text[: len(key) + 3]
    return f"{text if begins_with_key else text[:1].upper() + text[1:]}."
