"""Claim: clip-higher keeps entropy, in a toy run."""

from pathlib import Path

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import ToyRun
from groupwise.claims.verdict import Verdict, above, every, instrument

NAME = "toy-entropy"
RATE, UPDATES, STEPS = 10.0, 8, 8
#: Not 1, so that an entropy of another distribution than the one that is sampled would be seen.
TEMPERATURE = 0.8
WIDTHS = (0.2, 0.28)


def measure(seed: int, work: Path) -> dict[str, float]:
    """The same policy trained with either upper clip: entropy at the beginning of each step, pass rate at the end."""
    seen, apart = {}, 0.0
    for width in WIDTHS:
        algo = algorithm("dapo", {"trust.epsilon_high": width})
        run = ToyRun(algo, seed, RATE, UPDATES, TEMPERATURE)
        for step in range(STEPS):
            first, *_, last = run.step()
            seen[f"entropy_{width}_{step}"] = first.entropy
            apart = max(apart, abs(last.entropy - last.surprise))
            seen[f"right_{width}"] = float(last.reward.mean())
    ends = [seen[f"entropy_{width}_{STEPS - 1}"] for width in WIDTHS]
    return {**seen, "gained": ends[1] - ends[0], "apart": apart}


EXPERIMENT = computed(NAME, measure, seeds=12)


def judge(measured: Measurements) -> Verdict:
    """At the end the entropy is higher with the higher clip; measured only if it is that of what is sampled."""
    right = instrument(
        measured.largest(NAME, "apart"), 0.0, 1e-9, "the learner's entropy and -sum p log p of what is sampled"
    )
    return every([right, above(measured.interval(NAME, "gained"), 0.0, "clip-higher ends with more entropy (nats) by")])


CLAIM = Claim(
    name=NAME,
    title="Clip-higher keeps the entropy from collapsing, in a small policy that learns right completions.",
    source="S0, S1; DAPO 2503.14476 figure 2",
    argument="A higher upper clip lets rare tokens rise, which adds entropy, and common ones as well, which takes "
    "some. Which is more depends on where the right tokens stand; nothing in the clip decides it.",
    expected="Open.",
    experiments=(EXPERIMENT,),
    quantities=(
        Quantity("entropy at the beginning (nats)", NAME, f"entropy_{WIDTHS[0]}_0"),
        Quantity("at the end, upper clip 0.2", NAME, f"entropy_{WIDTHS[0]}_{STEPS - 1}"),
        Quantity("at the end, upper clip 0.28", NAME, f"entropy_{WIDTHS[1]}_{STEPS - 1}"),
        Quantity("difference", NAME, "gained"),
        Quantity("right completions at the end, upper clip 0.2", NAME, "right_0.2"),
        Quantity("right completions at the end, upper clip 0.28", NAME, "right_0.28"),
        Quantity("largest difference of the learner's entropy and -sum p log p", NAME, "apart"),
    ),
    judge=judge,
    figure=Figure(
        title="Entropy of a toy run under either upper clip",
        across="step",
        up="nats",
        at=tuple(range(STEPS)),
        lines=tuple(
            Line(f"upper clip {width}", NAME, tuple(f"entropy_{width}_{step}" for step in range(STEPS)))
            for width in WIDTHS
        ),
        hint="The claim would have the line of 0.28 above the other.",
    ),
)
