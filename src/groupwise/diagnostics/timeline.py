"""Who worked when in a step: of each kind of work, when it began first and ended last. docs/metrics.md has its line."""

import math
from collections.abc import Mapping

from groupwise.core.machine.clock import Extent

#: The kind of work that a phase of a run's clock is; what is not here is no part of a step.
WORK = {
    "generate": "sampling",
    "score": "scoring",
    "annotate": "training",
    "update": "training",
    "check": "checking",
    "load weights": "loading",
    "wait": "waiting",
    "journal": "writing",
}


def timeline(phases: Mapping[str, Extent], beside: Mapping[str, Extent]) -> dict[str, dict[str, float]]:
    """{kind of work: {"begin", "end"}} in seconds from the step's beginning.

    phases  of the run's own clock, of which some belong to the step
    beside  of the batch that was sampled ahead meanwhile

    >>> timeline({"update": Extent(5.0, 7.0), "save": Extent(1.0, 2.0)}, beside={"generate": Extent(5.5, 9.0)})
    {'training': {'begin': 0.0, 'end': 2.0}, 'sampling': {'begin': 0.5, 'end': 4.0}}
    """
    own = [(WORK[phase], extent) for phase, extent in phases.items() if phase in WORK]
    every = [*own, *((WORK[phase], extent) for phase, extent in beside.items() if phase in WORK)]
    start = min((extent.begin for _, extent in own), default=0.0)
    work: dict[str, dict[str, float]] = {}
    for kind, extent in every:
        so_far = work.setdefault(kind, {"begin": math.inf, "end": -math.inf})
        so_far["begin"] = min(so_far["begin"], round(extent.begin - start, 6))
        so_far["end"] = max(so_far["end"], round(extent.end - start, 6))
    return work
