"""Trust regions: how far a clip lets a sequence and a token go, on which side it stops them, and SAPO's gate."""

import math
from itertools import product

import torch

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import algorithm
from groupwise.claims import experiments as runs
from groupwise.claims.claim import Claim, Figure, gains, grid, lines_of, matrix
from groupwise.claims.experiments import computed
from groupwise.claims.measurements import agree, below, both, every
from groupwise.claims.readings import in_words
from groupwise.claims.toys import ascent, passed

#: What GRPO's clip and GSPO's are, GSPO's ratio under a clip as wide as GRPO's, and SAPO's gate.
GRPO, GSPO, SAPO = algorithm("grpo", {"kl.beta": 0.0}), algorithm("gspo"), algorithm("sapo")
WIDE = algorithm("gspo", {"trust.epsilon_low": 0.2, "trust.epsilon_high": 0.2})
LENGTHS = (64, 256, 1024, 4096, 16384)
CLIPS = {"grpo": GRPO, "gspo": GSPO, "gspo_wide": WIDE}
#: So little inside the clip.
INSIDE = 1e-9


@computed("clip-product", seeds=1)
def bounds(seed: int) -> dict[str, float]:
    """Sum the largest log-ratios of a sequence, all at the upper end of the clip, where each token still has its whole
    gradient.
    """
    seen, shares = {}, []
    for (name, clip), length in product(CLIPS.items(), LENGTHS):
        epsilon: float = clip.trust.epsilon_high  # type: ignore[attr-defined]
        ends = torch.full((1, length), math.log1p(epsilon - INSIDE), dtype=torch.float64)
        seen[f"{name}_{length}"] = float(ends.sum())
        shares.append(float(passed(clip, ends, torch.ones(1, dtype=torch.float64)).mean()))
    return {**seen, "passed": min(shares)}


CLIP_PRODUCT = Claim(
    name="clip-product",
    title="Per-token clipping allows a ratio of 1.2^1024 = 10^81 in 1024 tokens. GSPO's geometric mean bounds the "
    "ratio directly.",
    source="S1; GSPO 2507.18071 eq 5 and 7",
    argument="With every ratio inside the clip no gradient stops. A clip of the mean at 1 + e allows the same product,"
    " (1 + e)^L: GSPO's bound comes from its width of 4e-4.",
    expected="The first half holds. The second does not: at equal width both bounds are equal.",
    of=bounds,
    numbers=matrix(
        "largest log-ratio (nats), {}",
        "{}_{}",
        "{} tokens",
        {"grpo": "GRPO at 0.2", "gspo": "GSPO at 4e-4", "gspo_wide": "GSPO at 0.2"},
        (1024, 16384),
    ),
    rule="The product is reached with no gradient stopped, and at equal width the clip of the mean bounds the "
    "log-ratio at half or less.",
    judge=lambda seen: both(
        seen.equal({"passed": 1.0}, 0.0, "share of gradient passed at the ends of the clips and 1"),
        seen.equal({"grpo_16384": 16384 * math.log(1.2)}, 1e-3, "GRPO's largest log-ratio and 16384 log 1.2"),
        below(
            seen.mean("gspo_wide_16384") / seen.mean("grpo_16384"),
            0.5,
            "GSPO's largest log-ratio over GRPO's at equal width:",
        ),
    ),
    figure=Figure(
        title="The largest log-ratio that is not clipped",
        axes=("tokens", "nats"),
        lines=lines_of(bounds, LENGTHS, {"GRPO, 0.2": "grpo", "GSPO's mean, 0.2": "gspo_wide", "GSPO, 4e-4": "gspo"}),
        hint="At equal width the two lines coincide: the width bounds a sequence, not the mean.",
        log=(True, True),
    ),
)

#: A rare token's probability under the old policy, in a vocabulary of two.
RARE = (0.3, 0.1, 0.03, 0.01)
POINTS = 1181


@computed("clip-confines", seeds=1)
def confines(seed: int) -> dict[str, float]:
    """Follow the ratio of a clipped token, and count gradients that are 0 elsewhere than the equation says."""
    return {"misplaced": _misplaced(), **{f"ratio_{rare}": _ratio_of_clipped_token(rare) for rare in RARE}}


def _misplaced() -> float:
    """Compare with PPO's gradient, 0 if A > 0 and r > 1.2, or A < 0 and r < 0.8; no point lies just on an end."""
    ratio = torch.linspace(0.05, 3.0, POINTS, dtype=torch.float64)
    up, down = (ascent(GRPO, ratio.log()[:, None], sign * torch.ones_like(ratio))[:, 0] for sign in (1.0, -1.0))
    return float(((up == 0) != (ratio > 1.2)).sum() + ((down == 0) != (ratio < 0.8)).sum())


def _ratio_of_clipped_token(rare: float) -> float:
    """Descend on a common token of negative and a rare one of positive advantage until the clip stops both."""
    old = torch.tensor([[math.log(rare)], [math.log1p(-rare)]], dtype=torch.float64)
    logit = torch.tensor(math.log(rare / (1 - rare)), dtype=torch.float64, requires_grad=True)
    advantage, mask = torch.tensor([1.0, -1.0], dtype=torch.float64), torch.ones(2, 1, dtype=torch.bool)
    for _ in range(10_000):
        live = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)])[:, None]
        (gradient,) = torch.autograd.grad(GRPO.loss(live, old, advantage, mask).value, logit)
        if gradient == 0:
            break
        with torch.no_grad():
            logit -= 0.3 * gradient
    return float(torch.sigmoid(logit.detach())) / rare


CLIP_CONFINES = Claim(
    name="clip-confines",
    title="Clipping at 0.8 and 1.2 keeps any single token's probability from changing by more than that.",
    source="S0, S1; PPO 1707.06347 eq 7",
    argument="The clip removes a token's gradient but does not hold its ratio: other tokens move the same parameters. "
    "In a vocabulary of two, a rare token rises as long as the common one falls.",
    expected="Does not hold. The common token stops at 0.8 of its probability. At 0.01 the rare one then reaches (1 - "
    "0.8 x 0.99)/0.01 = 20.8.",
    of=confines,
    numbers=matrix("final ratio, by old probability", "ratio_{}", "{}", RARE)
    | {f"misplaced zero gradients, of {2 * POINTS:,}": "misplaced"},
    rule="The gradient is 0 exactly where PPO's equation says, and a clipped token's ratio stays below 1.3.",
    judge=lambda seen: both(
        seen.equal({"misplaced": 0.0}, 0.0, "zero gradients, measured and by the equation,"),
        below(seen.mean("ratio_0.01"), 1.3, "final ratio of a clipped token:"),
    ),
    figure=Figure(
        title="Final ratio of a clipped token",
        axes=("the token's old probability", "ratio"),
        lines=lines_of(confines, RARE, {"after descent on one batch": "ratio"}),
        marks=((1.2, "the clip's upper end"),),
        hint="The rarer the token, the farther it leaves the band after its own gradient stopped.",
        log=(True, True),
    ),
)

#: log r from -1 to 1; no point at 0, and none on an end of a clip.
LOGS = torch.linspace(-1, 1, 2000, dtype=torch.float64)
SHOWN = (0.4, 0.6, 0.79, 0.81, 0.9, 1.0, 1.1, 1.19, 1.21, 1.5, 2.0, 2.7)
ROWS = {"grpo": GRPO, "gspo": WIDE, "sapo": SAPO}
SIGNS = {"better": 1.0, "worse": -1.0}
#: The sign of the advantage, and that of log r.
QUADRANTS = {
    "better_rose": (1.0, 1.0),
    "better_fell": (1.0, -1.0),
    "worse_fell": (-1.0, -1.0),
    "worse_rose": (-1.0, 1.0),
}


@computed("clip-quadrants", seeds=1)
def quadrants(seed: int) -> dict[str, float]:
    """Measure, for log-ratios from -1 to 1 and either sign of the advantage, the share of gradient that passes in each
    quadrant, and at some ratios.
    """
    seen: dict[str, float] = {}
    for name, algo in ROWS.items():
        for quadrant, (sign, side) in QUADRANTS.items():
            seen[f"{name}_{quadrant}"] = float(_passed(algo, LOGS[LOGS * side > 0], sign).mean())
        for words, sign in SIGNS.items():
            shown = _passed(algo, torch.tensor(SHOWN, dtype=torch.float64).log(), sign).tolist()
            seen |= {f"{name}_{words}_at_{ratio}": value for ratio, value in zip(SHOWN, shown, strict=True)}
    return seen


def _passed(algo: Algorithm, log_ratio: torch.Tensor, sign: float) -> torch.Tensor:
    return passed(algo, log_ratio[:, None], torch.full_like(log_ratio, sign))[:, 0]


def passed_by_equation() -> dict[str, float]:
    """Compute the share of the log-ratios of each quadrant that a clip at 0.8 and 1.2 passes."""
    ratio = LOGS.exp()
    up, down = (float(inside.double().mean()) for inside in (ratio[LOGS > 0] < 1.2, ratio[LOGS < 0] > 0.8))
    return {"better_rose": up, "better_fell": 1.0, "worse_fell": down, "worse_rose": 1.0}


CLIP_QUADRANTS = Claim(
    name="clip-quadrants",
    title="Of the four combinations of advantage and ratio, clipping limits two: a better token's rise and a worse "
    "token's fall.",
    source="S0, effect of the signs; PPO 1707.06347 eq 7",
    argument="Clipping stops moves that already followed the advantage, never moves against it. SAPO's gate damps all "
    "four.",
    expected="Holds for GRPO and GSPO. (S0 compares the signs of A and r, where r - 1 is meant.)",
    of=quadrants,
    numbers=matrix(
        "share passed, {}",
        "{}_{}",
        "{}",
        {"grpo": "GRPO", "sapo": "SAPO"},
        {name: name.replace("_", " token ") for name in QUADRANTS},
    ),
    rule="GRPO and GSPO pass the whole gradient where a better token fell or a worse one rose, and pass it up to "
    "the clip elsewhere.",
    judge=lambda seen: every(
        seen.equal(
            {f"{name}_{quadrant}": share for quadrant, share in passed_by_equation().items()},
            1e-9,
            f"{name.upper()}'s shares in the four quadrants and the equation's",
        )
        for name in ("grpo", "gspo")
    ),
    figure=Figure(
        title="The gradient that passes",
        axes=("ratio", "share"),
        lines=lines_of(
            quadrants,
            SHOWN,
            grid(
                "{}, A {} 0", "{}_{}_at", {"grpo": "clip at 0.2", "sapo": "SAPO's gate"}, {"better": ">", "worse": "<"}
            ),
        ),
        hint="A clip stops one side of each sign. The gate closes slowly, on both sides.",
        log=(True, False),
    ),
)
CLAIMS = (CLIP_PRODUCT, CLIP_CONFINES, CLIP_QUADRANTS)


TOKENS = 256
#: Deviation of a token's log-ratio, nats; 0.14 is a variance of 0.02, the largest of most sequences in the paper.
SIGMAS = (0.02, 0.05, 0.14, 0.3, 0.5, 1.0)
SOFT = algorithm("sapo")


@computed("soft-gate", seeds=5)
def gates(seed: int) -> dict[str, float]:
    """Compare the mean gate over tokens with the gate of the mean log-ratio: of log r, in units of the paper's bound
    tau^2/4 Var, and of r - 1, as it is computed.
    """
    numbers = torch.Generator().manual_seed(seed)
    tau: float = SOFT.trust.tau_positive  # type: ignore[attr-defined]
    seen: dict[str, float] = {}
    for sigma in SIGMAS:
        z = sigma * torch.randn(64, TOKENS, generator=numbers, dtype=torch.float64)
        gate = passed(SOFT, z, torch.ones(len(z), dtype=z.dtype))
        of_mean, bound = _gate(z.mean(1), tau), tau**2 / 4 * z.var(1, correction=0)
        gap = (_gate(z, tau).mean(1) - of_mean).abs()
        seen[f"gap_{sigma}"], seen[f"bound_{sigma}"] = float(gap.mean()), float(bound.mean())
        seen[f"of_bound_{sigma}"] = float((gap / bound).max())
        seen[f"computed_{sigma}"] = float((gate.mean(1) - of_mean).abs().mean())
    return seen


def _gate(z: torch.Tensor, tau: float) -> torch.Tensor:
    """Compute sech^2(tau z / 2)."""
    return 1 / torch.cosh(tau * z / 2) ** 2


SOFT_GATE = Claim(
    name="soft-gate",
    title="If ratios are near 1 and vary little within a sequence, SAPO's gate per token is nearly one gate per "
    "sequence.",
    source="SAPO 2511.20347 section 4.1, eq 16 and 21 to 23",
    argument="The mean gate differs from the gate of the mean by at most tau^2/4 times the variance. This bounds a "
    "gate of log r; SAPO computes the gate of r - 1.",
    expected="Holds at the variances of the paper's figures. The bound is tight for small ones.",
    of=gates,
    numbers=matrix(
        "{}",
        "{}_{}",
        "deviation {} nats",
        {
            "gap": "gap between mean gate and gate of the mean",
            "of_bound": "largest gap over the bound",
            "computed": "gap of the computed gate",
        },
        (0.14, 1.0),
    ),
    rule="No gap exceeds the bound, and at the paper's variance the computed gates differ by less than 0.01.",
    judge=lambda seen: both(
        agree(
            max(1.0, *(seen.largest(f"of_bound_{sigma}") for sigma in SIGMAS)),
            1.0,
            1e-9,
            "largest gap (if over the bound) and bound",
        ),
        below(seen.interval("computed_0.14"), 0.01, "gap at a variance of 0.02:"),
    ),
    figure=Figure(
        title="Gap between the mean gate and one gate",
        axes=("deviation of log-ratios, nats", "difference of gates"),
        lines=lines_of(
            gates,
            SIGMAS,
            {"the paper's bound": "bound", "gate of log r": "gap", "gate as computed, of r - 1": "computed"},
        ),
        hint="The computed gate may exceed the bound, which is for a gate of log r. At the paper's 0.14 both gaps are "
        "small.",
        log=(True, True),
    ),
)

GATE_ASSUMPTIONS = Claim(
    name="gate-assumptions",
    title="In real runs ratios stay near 1 and vary little within a completion (variance mostly below 0.02).",
    source="S3; SAPO 2511.20347 section 4.1, figures 2 and 3",
    argument="These conditions make a gate per token nearly one per sequence. SAPO's gate still passes 0.9 at |r - 1| "
    "= 0.65, so it holds little back.",
    expected="Near 1 for nine tokens of ten: holds. Variance: does not hold at this size.",
    of={"SAPO": runs.SAPO, "GRPO": runs.GRPO},
    numbers=in_words("ratio_far", "variance_above", "variance_median", "gate_gap"),
    rule="In SAPO's own runs, fewer than half of the completions have a variance above 0.02, and fewer than a "
    "tenth of the tokens a ratio 0.2 or more from 1.",
    judge=lambda measured: every(
        below(measured.interval_of(measured.numbers(runs.SAPO.name, name)), bound, words)
        for name, bound, words in (
            ("variance_above", 0.5, "completions with a variance above 0.02:"),
            ("ratio_far", 0.1, "tokens with |r - 1| above 0.2:"),
        )
    ),
)

GATE_TEMPERATURES = Claim(
    name="gate-temperatures",
    title="tau should be higher for negative advantages than for positive ones: 1.05 is more stable than 1.0 and 0.95.",
    source="S3; SAPO 2511.20347 section 3 (eq 9), figure 5",
    argument="At a ratio of 1.2, a gate at 1.05 passes 0.989 of the gradient and a gate at 1.0 passes 0.990.",
    expected="Cannot be told: where nearly all ratios are, the gates differ by less than a hundredth.",
    of={f"tau {tau}": run for tau, run in (("0.95", runs.SAPO_BELOW), ("1.0", runs.SAPO_EQUAL), ("1.05", runs.SAPO))},
    numbers=in_words("heldout_end", "heldout_best"),
    rule="The final held-out pass rate rises from 0.95 to 1.0, and from 1.0 to 1.05.",
    judge=gains(
        "heldout_end",
        {
            "pass rate gained from 0.95 to 1.0:": (runs.SAPO_BELOW, runs.SAPO_EQUAL),
            "pass rate gained from 1.0 to 1.05:": (runs.SAPO_EQUAL, runs.SAPO),
        },
    ),
)
GATE_CLAIMS = (SOFT_GATE, GATE_ASSUMPTIONS, GATE_TEMPERATURES)
