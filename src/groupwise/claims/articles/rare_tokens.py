"""Claim: clip-higher is for rare tokens."""

from itertools import pairwise
from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import ToyRun
from groupwise.claims.verdict import Verdict, above, below, every

NAME = "rare-tokens"
#: DAPO's clip, and the same without the higher end.
HIGHER, USUAL = algorithm("dapo"), algorithm("dapo", {"trust.epsilon_high": 0.2})
RATE, UPDATES, STEPS = 10.0, 8, 4
#: Old probabilities, from each to the next.
EDGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MIDDLES = tuple(round((low + high) / 2, 2) for low, high in pairwise(EDGES))


def measure(seed: int, work: Path) -> dict[str, float]:
    """A toy run with the usual clip. Of better completions, by their old probability: the tokens that this clip stops,
    those of them that the higher one would not stop, and all. Their mean, the share above a half, the shares by tenths.
    """
    run = ToyRun(USUAL, seed, RATE, UPDATES)
    columns: dict[str, list[torch.Tensor]] = {"stopped": [], "freed": [], "better": []}
    for _ in range(STEPS):
        for update in run.step():
            mask, chance = torch.ones_like(update.old, dtype=torch.bool), update.old.exp()
            better = (update.advantage > 0)[:, None] & mask
            passed = HIGHER.loss(update.live, update.old, update.advantage, mask).share
            stopped = better & (update.out.share == 0)
            for name, rows in (("stopped", stopped), ("freed", stopped & (passed > 0)), ("better", better)):
                columns[name].append(chance[rows])
    joined = {name: torch.cat(column) for name, column in columns.items()}
    seen = {"most_probable": float(joined["stopped"].max()), "example": _example()}
    seen["share_freed"] = len(joined["freed"]) / len(joined["stopped"])
    for name, chances in joined.items():
        count = max(1, len(chances))
        seen |= {f"{name}_mean": float(chances.sum()) / count, f"{name}_common": float((chances > 0.5).sum()) / count}
        share = torch.histogram(chances, torch.tensor(EDGES, dtype=chances.dtype)).hist / count
        seen |= {f"{name}_{middle}": float(value) for middle, value in zip(MIDDLES, share, strict=True)}
    return seen


def _example() -> float:
    """S0's: a good token rose from 0.2 to 0.4; what clip-higher passes of its gradient."""
    old, live = (torch.tensor([[chance]], dtype=torch.float64).log() for chance in (0.2, 0.4))
    return float(HIGHER.loss(live, old, torch.ones(1, dtype=torch.float64), torch.ones(1, 1).bool()).share)


EXPERIMENT = computed(NAME, measure, seeds=10)


def judge(measured: Measurements) -> Verdict:
    """Clip-higher frees a twentieth or more of what the usual clip stops; this is less probable than tokens of better
    completions are on average; and nothing is stopped beyond 1 / 1.2, where nothing can be.
    """
    some = above(measured.interval(NAME, "share_freed"), 0.05, "of the stopped it lets through a share of")
    freed, better = (measured.values(NAME, f"{name}_mean") for name in ("freed", "better"))
    ratio = measured.interval_of({seed: freed[seed] / better[seed] for seed in freed})
    rarer = below(ratio, 1.0, "the mean probability of what clip-higher lets through, over that of all good tokens,")
    none = below(measured.largest(NAME, "most_probable"), 1 / 1.2, "the most probable that the usual clip stops had")
    return every([some, rarer, none])


CLAIM = Claim(
    name=NAME,
    title="Clip-higher lets tokens of low probability rise: those that the usual clip stops are the less probable "
    "ones.",
    source="S0, S1; DAPO 2503.14476 section 3.1 and figure 3a (mean probability below 0.2)",
    argument="A ratio is above 1.2 only where the old probability is below 1/1.2, and a softmax moves the ratio of a "
    "token by its share that is left, 1 - p. It frees ratios from 1.2 to 1.28 alone: S0's own example, from 0.2 to "
    "0.4, has a ratio of 2 and stays clipped.",
    expected="Holds, and S0's example does not get its gradient back. How rare they are is the policy's: tokens of "
    "this toy are less sure of themselves than a language model's, whose clipped ones DAPO found below 0.2.",
    experiments=(EXPERIMENT,),
    quantities=(
        Quantity("mean old probability of the tokens that clip-higher lets through", NAME, "freed_mean"),
        Quantity("of all tokens of better completions", NAME, "better_mean"),
        Quantity("of those that the usual clip stops", NAME, "stopped_mean"),
        Quantity("share of the stopped that clip-higher lets through", NAME, "share_freed"),
        Quantity("share of the freed that were more probable than 0.5", NAME, "freed_common"),
        Quantity("share of all of better completions that were", NAME, "better_common"),
        Quantity("the most probable of the stopped", NAME, "most_probable"),
        Quantity("gradient that passes in S0's example, from 0.2 to 0.4", NAME, "example"),
    ),
    judge=judge,
    figure=Figure(
        title="Whom clip-higher concerns",
        across="old probability",
        up="share of such tokens of better completions",
        at=MIDDLES,
        lines=tuple(
            Line(words, NAME, tuple(f"{name}_{middle}" for middle in MIDDLES))
            for name, words in (("stopped", "stopped at 1.2"), ("freed", "let through up to 1.28"), ("better", "all"))
        ),
        hint="By tenths of the old probability: of those that are sure of themselves none is stopped, nor let through.",
    ),
)
