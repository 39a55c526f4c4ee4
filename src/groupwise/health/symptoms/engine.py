"""What the engine beside the run does: whether it stays alive, and whether sampling ahead is worth it."""

from collections.abc import Mapping
from statistics import median

from groupwise.health.symptoms.base import History, Seen, is_number, many, numbers, percent, short, symptom

#: Of a step's time that is waiting: then sampling beside training saves less than a tenth.
MOSTLY_WAITING = 0.9
#: Steps that are looked at, at least: the first wait is for a batch that nothing ran beside.
LEAST_STEPS = 5


@symptom(
    limit=f"median of seconds.wait above {MOSTLY_WAITING:g} of a step, over {LEAST_STEPS} steps or more",
    why="what can be hidden is the shorter of sampling and training; below a tenth is little for older completions",
)
def sampling_ahead_gains_little(h: History) -> Seen | None:
    seconds = [row.get("seconds") for row in h.recent]
    rows = [row for row in seconds if isinstance(row, Mapping) and is_number(row.get("wait"))]
    if len(rows) < LEAST_STEPS:
        return None
    waits = [float(row["wait"]) for row in rows]
    totals = [sum(float(value) for value in row.values() if is_number(value)) for row in rows]
    share = median(wait / total if total else 0.0 for wait, total in zip(waits, totals, strict=True))
    if share <= MOSTLY_WAITING:
        return None
    return Seen(
        f"Over {h.over} a step waited {short(median(waits))} s of {short(median(totals))} s for the batch that is "
        f"sampled ahead: training takes so little that sampling beside it saves at most {percent(1 - share)}, and the "
        "completions are one version older.",
        "rollout.ahead = 0, or more of what trains: prompts_per_step, passes_per_batch",
    )


@symptom(
    limit="engine_restarts of machine.jsonl above 0",
    why="a process that ends or stalls has a cause: no memory, a library that crashes, a deadline that is too short",
    live=False,
)
def engine_restarted(h: History) -> Seen | None:
    restarts = max(numbers("engine_restarts", h.machine), default=0)
    if not restarts:
        return None
    return Seen(
        f"The engine's process was started again {many(restarts, 'time')}: it ended or gave no sign. What was lost was "
        "sampled again, with the same completions; log.txt has the cause of each.",
        "engine.deadline, if it only was slow; more memory or a smaller engine.max_rows, if it was killed",
    )
