"""Claim: a mean per sequence dilutes long answers, a mean over tokens does not."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import ascent
from groupwise.claims.verdict import Verdict, agree

NAME = "length-weights"
#: Tokens of the short answer, and of the long one beside it.
SHORT, LONG = 10, (10, 20, 50, 100, 200, 400)
#: The generation budget that a constant divides by.
LIMIT = 500
ROWS = {
    "sequence": algorithm("grpo", {"kl.beta": 0.0}),
    "token": algorithm("dapo"),
    "constant": algorithm("dr-grpo", {"aggregate.limit": LIMIT}),
}


def measure(seed: int, work: Path) -> dict[str, float]:
    """Two answers of advantage 1, on policy: what a token of each weighs in the gradient."""
    seen: dict[str, float] = {}
    for length in LONG:
        mask = torch.arange(max(LONG)) < torch.tensor([[length], [SHORT]])
        zero, advantage = torch.zeros(mask.shape, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
        for name, algo in ROWS.items():
            weight = ascent(algo, zero, zero, advantage, mask)
            seen[f"{name}_long_{length}"], seen[f"{name}_short_{length}"] = weight[:, 0].tolist()
            seen[f"{name}_total_{length}"] = float(weight[0].sum() / weight.sum())
    return seen


EXPERIMENT = computed(NAME, measure, seeds=1)


def judge(measured: Measurements) -> Verdict:
    """S0's example: tokens of 200 and of 10 weigh 1/400 and 1/20 in a mean per sequence, 1/210 in one over tokens."""
    expected = {"sequence_long": 1 / 400, "sequence_short": 1 / 20, "token_long": 1 / 210, "token_short": 1 / 210}
    apart = [abs(measured.mean(NAME, f"{key}_200") - weight) for key, weight in expected.items()]
    return agree(max(apart), 0.0, 1e-12, "the weights of 200 tokens and of 10, and 1/400, 1/20, 1/210 and 1/210")


CLAIM = Claim(
    name=NAME,
    title="GRPO dilutes the tokens of a long answer (1/400 each of 200, beside 1/20 each of 10); DAPO's mean over "
    "tokens weighs all alike (1/210).",
    source="S0 and S1, token-level loss; DAPO 2503.14476 section 3.3",
    argument="A mean inside each answer and then over answers gives every answer the same total, so that each token of "
    "a long one has less. One mean over all tokens, or a constant in the place of the length, gives every token the "
    "same.",
    expected="Holds.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(f"{words}, 200 tokens beside {SHORT}: {what}", NAME, f"{key}_{name}_200")
        for key, words in (
            ("sequence", "mean per sequence"),
            ("token", "mean over tokens"),
            ("constant", "constant of 500"),
        )
        for name, what in (("long", "a long token"), ("short", "a short one"), ("total", "the long answer's share"))
    ),
    judge=judge,
    figure=Figure(
        title="What a token weighs",
        across="tokens of the answer, beside one of 10",
        up="weight",
        at=LONG,
        lines=tuple(
            Line(words, NAME, tuple(f"{key}_long_{length}" for length in LONG))
            for key, words in (
                ("sequence", "mean per sequence"),
                ("token", "mean over tokens"),
                ("constant", "constant"),
            )
        ),
        hint="A mean per sequence falls with the answer's own length, a mean over tokens with everybody's, a constant "
        "not.",
        log_across=True,
        log_up=True,
    ),
)
