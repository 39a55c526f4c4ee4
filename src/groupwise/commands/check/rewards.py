"""Whether the rewards can tell right from wrong. Pure: from marks to remarks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from groupwise.commands.check.golds import OFF_BY_ONE, WRONG, Kind, Probe
from groupwise.commands.check.remarks import Remark, fault, graded, listed, note, ok
from groupwise.commands.check.scores import Tried, mean

#: A completion that scores this much is solved.
SOLVED = 1 - 1e-6
#: The least share of gold completions that must be solved, and the largest of wrong ones.
GOLD_LIMIT, WRONG_LIMIT = 0.95, 0.05
#: Scores closer than this are equal.
EQUAL = 1e-6


def of_task(found: Tried, probes: Sequence[Probe]) -> list[Remark]:
    """What the task's own score makes of right and wrong completions: it is what evaluation measures."""
    gold, bare = found.values(Kind.GOLD), found.values(Kind.BARE)
    remarks = [_gold(found, gold, probes)] if gold else []
    if bare:
        level = ok if _solved(bare) >= GOLD_LIMIT else note
        remarks.append(level(f"task: {_told(Kind.BARE, bare)}"))
    for kind in WRONG:
        values = found.values(kind)
        what = f"task: {_told(kind, values)}"
        if values and _solved(values) > WRONG_LIMIT:
            why = "it scores 1 on answers that are off by one" if kind in OFF_BY_ONE else "these are wrong"
            what = f"{what}: the reward cannot tell right from wrong, {why}"
        if values:
            remarks.append(graded(_solved(values), WRONG_LIMIT, what))
    return remarks


def of_own(found: Tried) -> list[Remark]:
    """What a reward of the recipe makes of them. Its scale and its meaning are its own: only differences count."""
    gold, other = found.values(Kind.GOLD), found.values(Kind.OTHER)
    if not gold:
        return []
    told = ", ".join(f"{mean(values):.3f} on {kind}" for kind in (Kind.GOLD, *WRONG) if (values := found.values(kind)))
    means = f"{found.name}: mean {told}"
    wrong = [*_off_by_one(found), *_upside_down(found)]
    if wrong:
        return [ok(means), *wrong]
    if other and not _depends(found):
        return [note(f"{means}: it does not depend on correctness; as a reward for form that is right")]
    return [ok(means)]


def without_score(found: Tried, limit: float) -> list[Remark]:
    """Completions that the reward failed on, by cause; on empty ones alone that is a note."""
    marks = found.marks(*Kind)
    failed = [mark for mark in marks if mark.cause is not None]
    if not failed:
        return []
    on_text = found.marks(*(kind for kind in Kind if kind is not Kind.EMPTY))
    share = sum(mark.cause is not None for mark in on_text) / len(on_text)
    counts = Counter(str(mark.cause) for mark in failed)
    causes = ", ".join(f"{count} {cause}" for cause, count in sorted(counts.items()))
    only = " (all of them empty)" if not share else ""
    lines = failed[0].detail.strip().splitlines() or [""]
    what = f"{found.name}: {len(failed)} of {len(marks)} completions could not be scored{only}: {causes}; {lines[-1]}"
    return [fault(what) if share > limit else note(what)]


def _gold(found: Tried, gold: Sequence[float], probes: Sequence[Probe]) -> Remark:
    told = f"task: {_told(Kind.GOLD, gold)}"
    if _solved(gold) >= GOLD_LIMIT:
        return ok(told)
    marks = zip(probes, found.told, strict=False)
    missed = [
        f"{p.sample.key} scores {marked[Kind.GOLD].value:g} for {_short(p.texts[Kind.GOLD])}, answer "
        f"{_short(p.sample.answer)}"
        for p, marked in marks
        if marked[Kind.GOLD].cause is None and marked[Kind.GOLD].value < SOLVED
    ]
    why = "the reward does not recognise the data's own answers: swapped columns, or another task.check?"
    return fault(f"{told}: {why} {listed(missed)}")


def _off_by_one(found: Tried) -> list[Remark]:
    """Where a reward tells a problem's gold from another's, it must tell it from a number that is off by one."""
    pairs = [(g, o, w) for kind in OFF_BY_ONE for g, o, w in _triples(found, kind) if g > o + EQUAL]
    fooled = [w for g, _, w in pairs if w >= g - EQUAL]
    if not fooled or len(fooled) <= WRONG_LIMIT * len(pairs) or not _depends(found):
        return []
    what = (
        f"{found.name}: scores {mean(fooled):g} on answers that are off by one ({len(fooled)} of {len(pairs)} get as "
        "much as the gold ones): the reward cannot tell right from wrong"
    )
    return [fault(what)]


def _upside_down(found: Tried) -> list[Remark]:
    """Wrong numbers that earn more than right ones, by more than form could explain."""
    for kind in OFF_BY_ONE:
        pairs = found.pairs(kind)
        more = [w for g, w in pairs if w > g + EQUAL]
        gain = mean([w - g for g, w in pairs])
        if pairs and len(more) > len(pairs) / 2 and gain > WRONG_LIMIT * _range(found):
            right = mean([g for g, _ in pairs])
            return [
                fault(
                    f"{found.name}: scores {mean(more):g} on answers that are off by one ({kind}) and {right:g} on the "
                    "right ones: the reward has them the wrong way round"
                )
            ]
    return []


def _triples(found: Tried, kind: Kind) -> list[tuple[float, float, float]]:
    """(gold, another problem's, this kind) of every probe that has all three."""
    wanted = (Kind.GOLD, Kind.OTHER, kind)
    full = [told for told in found.told if all(k in told and told[k].cause is None for k in wanted)]
    return [(told[Kind.GOLD].value, told[Kind.OTHER].value, told[kind].value) for told in full]


def _depends(found: Tried) -> bool:
    """Whether gold completions earn more than those of other problems: the same texts, so that form cannot be why."""
    gaps = [g - o for g, o in found.pairs(Kind.OTHER)]
    centre = mean(gaps)
    if not gaps or centre <= WRONG_LIMIT * _range(found):
        return False
    spread = math.sqrt(mean([(gap - centre) ** 2 for gap in gaps]))
    return centre > 2 * spread / math.sqrt(len(gaps))


def _range(found: Tried) -> float:
    values = found.values(*Kind)
    return max(values) - min(values)


def _solved(values: Sequence[float]) -> float:
    return sum(value >= SOLVED for value in values) / len(values)


def _told(kind: Kind, values: Sequence[float]) -> str:
    solved = sum(value >= SOLVED for value in values)
    mean_told = f", mean {mean(values):.3f}" if any(value not in (0.0, 1.0) for value in values) else ""
    return f"{solved} of {len(values)} {kind} score 1{mean_told}"


def _short(text: str, longest: int = 40) -> str:
    """The end of a text, where its answer stands."""
    told = " ".join(text.split())
    return repr(told if len(told) <= longest else "..." + told[-longest:])
