"""Gradient weights of all algorithms side by side, taken from their parts by autograd, and the constants of others."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.explain import dialects, wrapped

#: Ratios of the table, and probabilities of the token under the live policy that the picture has a column for.
RATIOS = (0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 4.0)
PROBABILITIES = (0.01, 0.5, 0.99)
#: What the gradient of a token is, in words, and where the numbers come from.
HEAD = """\
Weight w of a token: its gradient is w A grad log pi. r = pi_live / pi_old, and pi_live = {p:g}.
Completions have one token. Empty: pi_old = {p:g} / r would be above 1. On policy w = 1 everywhere.
Of score-centering r is pi_live / pi_engine, and w is without the term that it subtracts."""

PAGE = """\
# Atlas: how much gradient each algorithm gives a token

Made by `make docs` from the catalog's parts; `groupwise explain --atlas` prints the tables.

![gradient weight over the ratio, a panel per algorithm, for better and worse tokens](../assets/atlas.png)

Solid lines are for A > 0, dashed for A < 0; colors are the token's probability now (0.01, 0.5, 0.99).
Completions have one token, so the ratio is the token's and the completion's alike. Of score-centering it is
to the sampler, and the weight is without the term that is subtracted.
[Algorithms](algorithms.md) has the parts. Redraw: `python benchmarks/atlas.py docs/assets/atlas.png`.

{tables}

## Constants of others

The catalog's values are the paper's, or those of the framework that its page names. Others set:

| algorithm | framework | keys and notes |
|---|---|---|
{constants}
"""


def weight(row: Algorithm, ratio: Tensor, sign: int, p: float) -> Tensor:
    """Compute the weight [K] of a token's gradient at ratios [K], for an advantage of 1 or -1; NaN where p / r > 1.

    p  probability of the token under the live policy

    >>> weight(CATALOG["cispo"], torch.tensor([1.0, 10.0]), 1, 0.01)
    tensor([1., 5.], dtype=torch.float64)
    """
    log_ratio = ratio.double().log()[:, None]
    old = math.log(p) - log_ratio
    live = torch.full_like(old, math.log(p)).requires_grad_()
    mask = torch.ones_like(old, dtype=torch.bool)
    advantage = torch.full_like(old, float(sign))
    value = row.trust(row.ratio(live, old, mask), advantage, live, mask).value
    (gradient,) = torch.autograd.grad(value.sum(), live)
    return torch.where(old <= 1e-12, sign * gradient + 0.0, math.nan)[:, 0]


def table(p: float = 0.5, ratios: Sequence[float] = RATIOS) -> str:
    """Write the weights of all algorithms at some ratios, as text."""
    width, at = max(map(len, CATALOG)), torch.tensor(ratios)
    lines = [HEAD.format(p=p)]
    for sign, words in ((1, "A > 0"), (-1, "A < 0")):
        lines += ["", f"{words:<{width}}" + "".join(f"{f'r={r:g}':>8}" for r in ratios)]
        for name, row in CATALOG.items():
            cells = ("" if math.isnan(w) else f"{w:.2f}" for w in weight(row, at, sign, p).tolist())
            lines.append(f"{name:<{width}}" + "".join(f"{cell:>8}" for cell in cells))
    return "\n".join(lines)


def page() -> str:
    """Make docs/reference/atlas.md."""
    tables = "\n".join(f"    {line}".rstrip() for line in table().splitlines())
    said = ((row.name, *pair) for row in CATALOG.values() for pair in dialects(row))
    constants = "\n".join(f"| `{name}` | {who} | {what} |" for name, who, what in said)
    return wrapped(PAGE.format(tables=tables, constants=constants))
