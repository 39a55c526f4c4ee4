"""DAPO: which tokens its higher clip lets through, what becomes of the entropy, and its techniques together."""

from collections.abc import Mapping
from itertools import pairwise

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Figure, Line, LineOverSteps, gains, grid, lines_of
from groupwise.claims.experiments import CLIP_HIGHER, GRPO, LADDER, Experiment, computed
from groupwise.claims.measurements import above, below, both, every, instrument
from groupwise.claims.readings import in_words
from groupwise.claims.toys import ToyRun, passed

#: What each rung adds to the one before, in the order of the published table.
ADDED = (
    "naive GRPO",
    "overlong filtering",
    "clip-higher",
    "soft overlong punishment",
    "token mean",
    "dynamic sampling (DAPO)",
)
RUNGS: Mapping[str, Experiment] = dict(zip(ADDED, LADDER, strict=True))
ABLATION_LADDER = Claim(
    name="ablation-ladder",
    title="Each of DAPO's techniques raises the score: 30, 36, 38, 41, 42 and 50 in the published table.",
    source="S0, S1, S3; DAPO 2503.14476 table 1; another order in verl's rerun (52, without dynamic sampling 50, "
    "without the token mean too 44)",
    argument="Published are single runs, one rung upon the other, so that a gain depends on the order and on the seed. "
    "The soft punishment takes the place of filtering here, and the last rung is DAPO's row.",
    expected="Some rungs cannot be told; overlong filtering does not hold under a limit that is tight for most "
    "answers.",
    of=RUNGS,
    numbers=in_words("heldout_mean", "heldout_end", "truncated_share.end", "entropy_mean.end", "generated_tokens"),
    rule="The held-out pass rate, mean over evaluations, rises with each of the five rungs.",
    judge=gains(
        "heldout_mean",
        {f"with {words} higher by": pair for words, pair in zip(ADDED[1:], pairwise(LADDER), strict=True)},
    ),
    figure=Figure(
        title="DAPO's techniques, one upon the other",
        axes=("rung of the ladder", "held-out pass rate"),
        lines=[
            Line(words, {rung: (run.name, name) for rung, run in enumerate(LADDER, 1)})
            for words, name in (("mean over evaluations", "heldout_mean"), ("at the end", "heldout_end"))
        ],
        hint=f"Rungs 1 to {len(LADDER)}: {', '.join(ADDED)}; the published table has 30, 36, 38, 41, 42 and 50 points.",
    ),
)

LADDER_ORDER = Claim(
    name="ladder-order",
    title="Of DAPO's techniques dynamic sampling brings most (+8), and the token mean least (+1).",
    source="S1 (the bottleneck), S0, S3; DAPO 2503.14476 table 1; verl's rerun has +2 and +6",
    argument="Both are the last rungs of one ladder of single runs, and the rerun of another group turns them around.",
    expected="Dynamic sampling gains more here, for it is paid for with more generation.",
    of={words: RUNGS[words] for words in ADDED[-3:]},
    numbers=in_words("heldout_mean"),
    rule="Dynamic sampling gains more than the token mean, in the held-out pass rate, mean over evaluations.",
    judge=lambda measured: above(
        measured.across(
            lambda before, tokens, dapo: (dapo - tokens) - (tokens - before),
            "heldout_mean",
            *(run.name for run in LADDER[-3:]),
        ),
        0.0,
        "dynamic sampling gains more than the token mean by",
    ),
)
CLAIMS = (ABLATION_LADDER, LADDER_ORDER)


#: DAPO's clip, and the same without the higher end.
HIGHER, USUAL = algorithm("dapo"), algorithm("dapo", {"trust.epsilon_high": 0.2})
#: Learning rate of a toy run, and updates a step.
RATE, UPDATES = 10.0, 8
#: Old probabilities, from each to the next.
EDGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MIDDLES = tuple(round((low + high) / 2, 2) for low, high in pairwise(EDGES))


@computed("rare-tokens", seeds=10)
def rare(seed: int) -> dict[str, float]:
    """Make a toy run with the usual clip. By their old probability, of better completions: the tokens that this clip
    stops, those of them that the higher one would not stop, and all. Their mean, the share above a half, the shares by
    tenths.
    """
    run = ToyRun(USUAL, seed, RATE, UPDATES)
    columns: dict[str, list[torch.Tensor]] = {"stopped": [], "freed": [], "better": []}
    for update in (update for _ in range(4) for update in run.step()):
        mask = torch.ones_like(update.old, dtype=torch.bool)
        better = (update.advantage > 0)[:, None] & mask
        stopped = better & (update.out.share == 0)
        freed = stopped & (HIGHER.loss(update.live, update.old, update.advantage, mask).share > 0)
        for name, rows in (("stopped", stopped), ("freed", freed), ("better", better)):
            columns[name].append(update.old.exp()[rows])
    joined = {name: torch.cat(column) for name, column in columns.items()}
    doubled, better = torch.full((1, 1), 2.0).double().log(), torch.ones(1).double()  # S0's example: from 0.2 to 0.4
    seen = {"most_probable": float(joined["stopped"].max()), "example": float(passed(HIGHER, doubled, better))}
    seen["share_freed"] = len(joined["freed"]) / len(joined["stopped"])
    for name, chances in joined.items():
        count = max(1, len(chances))
        seen |= {f"{name}_mean": float(chances.sum()) / count, f"{name}_common": float((chances > 0.5).sum()) / count}
        share = torch.histogram(chances, torch.tensor(EDGES, dtype=chances.dtype)).hist / count
        seen |= {f"{name}_{middle}": float(value) for middle, value in zip(MIDDLES, share, strict=True)}
    return seen


RARE_TOKENS = Claim(
    name="rare-tokens",
    title="Clip-higher lets tokens of low probability rise: those that the usual clip stops are the less probable "
    "ones.",
    source="S0, S1; DAPO 2503.14476 section 3.1 and figure 3a (mean probability below 0.2)",
    argument="A ratio is above 1.2 only where the old probability is below 1/1.2, and a softmax moves the ratio of a "
    "token by its share that is left, 1 - p. It frees ratios from 1.2 to 1.28 alone: S0's own example, from 0.2 to "
    "0.4, has a ratio of 2 and stays clipped.",
    expected="Holds, and S0's example does not get its gradient back. How rare they are is the policy's: tokens of "
    "this toy are less sure of themselves than a language model's, whose clipped ones DAPO found below 0.2.",
    of=rare,
    numbers={
        "mean old probability of the tokens that clip-higher lets through": "freed_mean",
        "of all tokens of better completions": "better_mean",
        "of those that the usual clip stops": "stopped_mean",
        "share of the stopped that clip-higher lets through": "share_freed",
        "share of the freed that were more probable than 0.5": "freed_common",
        "share of all of better completions that were": "better_common",
        "the most probable of the stopped": "most_probable",
        "gradient that passes in S0's example, from 0.2 to 0.4": "example",
    },
    rule="Clip-higher frees a twentieth or more of what the usual clip stops; this is less probable than tokens of "
    "better completions are on average; and nothing is stopped beyond 1 / 1.2, where nothing can be.",
    judge=lambda seen: both(
        above(seen.interval("share_freed"), 0.05, "of the stopped it lets through a share of"),
        below(
            seen.combined(lambda freed, better: freed / better, "freed_mean", "better_mean"),
            1.0,
            "the mean probability of what clip-higher lets through, over that of all good tokens,",
        ),
        below(seen.largest("most_probable"), 1 / 1.2, "the most probable that the usual clip stops had"),
    ),
    figure=Figure(
        title="Whom clip-higher concerns",
        axes=("old probability", "share of such tokens of better completions"),
        lines=lines_of(
            rare, MIDDLES, {"stopped at 1.2": "stopped", "let through up to 1.28": "freed", "all": "better"}
        ),
        hint="By tenths of the old probability: of those that are sure of themselves none is stopped, nor let through.",
    ),
)
COMMON_TOKENS = Claim(
    name="common-tokens",
    title="Clip-higher keeps tokens of high probability from being clipped too much.",
    source="S2, clip-higher",
    argument="A token of probability 0.9 cannot have a ratio above 1/0.9, so no upper clip at 1.2 ever stops it.",
    expected="Does not hold: it is the rare ones that the upper clip stops.",
    of=rare,
    numbers={
        "share of the freed that were more probable than 0.5": "freed_common",
        "the most probable that the usual clip stops": "most_probable",
    },
    rule="More than half of what it lets through had a probability above a half.",
    judge=lambda seen: above(
        seen.interval("freed_common"), 0.5, "of what clip-higher lets through, a share above 0.5 of"
    ),
)

RUNS = {"0.2": GRPO, "0.28": CLIP_HIGHER}
IN_WORDS = {f"upper clip {width}": run for width, run in RUNS.items()}
#: DAPO's figure 3a: the mean probability of stopped tokens stays below this.
STOPPED, RARE = "probability_stopped_positive", 0.2
RARE_IN_TRAINING = Claim(
    name="rare-tokens-in-training",
    title="In training, the tokens that the upper clip stops are rare ones: their mean old probability is below 0.2.",
    source="DAPO 2503.14476 section 3.1, figure 3a; S2 says that they are the likely ones",
    argument="A token of probability 0.9 cannot pass a ratio of 1.2 at all, while one of 0.01 needs only to reach "
    "0.012.",
    expected="Holds.",
    of=IN_WORDS,
    numbers=in_words("probability_stopped_positive", "probability_stopped_negative", "probability"),
    rule="The mean probability that the old policy gave them is below 0.2, with either clip.",
    judge=lambda measured: every(
        below(measured.interval_of(measured.numbers(run.name, STOPPED)), RARE, f"stopped at {words}, probability")
        for words, run in RUNS.items()
    ),
)

STEPS, WIDTHS = 8, (0.2, 0.28)
#: Not 1, so that an entropy of another distribution than the one that is sampled would be seen.
TEMPERATURE = 0.8


@computed("toy-entropy", seeds=12)
def entropy(seed: int) -> dict[str, float]:
    """Train one policy with either upper clip: entropy at the beginning of each step, pass rate at the end."""
    seen, apart = {}, 0.0
    for width in WIDTHS:
        run = ToyRun(algorithm("dapo", {"trust.epsilon_high": width}), seed, RATE, UPDATES, TEMPERATURE)
        for step in range(STEPS):
            first, *_, last = run.step()
            seen[f"entropy_{width}_{step}"] = first.entropy
            apart = max(apart, abs(last.entropy - last.surprise))
            seen[f"right_{width}"] = float(last.reward.mean())
    low, high = (seen[f"entropy_{width}_{STEPS - 1}"] for width in WIDTHS)
    return {**seen, "gained": high - low, "apart": apart}


TOY_ENTROPY = Claim(
    name="toy-entropy",
    title="Clip-higher keeps the entropy from collapsing, in a small policy that learns right completions.",
    source="S0, S1; DAPO 2503.14476 figure 2",
    argument="A higher upper clip lets rare tokens rise, which adds entropy, and common ones as well, which takes "
    "some. Which is more depends on where the right tokens stand; nothing in the clip decides it.",
    expected="Open.",
    of=entropy,
    numbers={"entropy at the beginning (nats)": "entropy_0.2_0"}
    | grid("at the end, upper clip {}", f"entropy_{{}}_{STEPS - 1}", WIDTHS)
    | {"difference": "gained"}
    | grid("right completions at the end, upper clip {}", "right_{}", WIDTHS)
    | {"largest difference of the learner's entropy and -sum p log p": "apart"},
    rule="At the end the entropy is higher with the higher clip; measured only if it is that of what is sampled.",
    judge=lambda seen: both(
        instrument(seen.largest("apart"), 0.0, 1e-9, "the learner's entropy and -sum p log p of what is sampled"),
        above(seen.interval("gained"), 0.0, "clip-higher ends with more entropy (nats) by"),
    ),
    figure=Figure(
        title="Entropy of a toy run under either upper clip",
        axes=("step", "nats"),
        lines=lines_of(entropy, range(STEPS), grid("upper clip {}", "entropy_{}", WIDTHS)),
        hint="The claim would have the line of 0.28 above the other.",
    ),
)
ENTROPY_IN_TRAINING = Claim(
    name="entropy-in-training",
    title="In training, clip-higher (0.28 for 0.2) keeps the policy's entropy from collapsing.",
    source="S0, S1, S2, S3; DAPO 2503.14476 section 3.1, figure 2",
    argument="A token whose ratio has passed 1.2 with a positive advantage gets no more gradient. With 1.28 it has "
    "some way further to go, which matters for unlikely tokens, so that the policy may stay wider.",
    expected="Cannot be told: one token in a hundred is stopped here, and few of those lie between 1.2 and 1.28.",
    of=IN_WORDS,
    numbers=in_words("entropy_mean.start", "entropy_mean.end", "stopped_tokens", "heldout_end"),
    rule="The entropy of the last ten steps is larger with the higher clip.",
    judge=gains("entropy_mean.end", {"nats a token more:": (GRPO, CLIP_HIGHER)}),
    figure=Figure(
        title="Entropy over training under either upper clip",
        axes=("step", "nats a token"),
        lines=[LineOverSteps(words, run.name, "entropy_mean") for words, run in IN_WORDS.items()],
        hint="The claim would have the line of 0.28 above the other at the end.",
    ),
)
CLIP_HIGHER_CLAIMS = (RARE_TOKENS, COMMON_TOKENS, RARE_IN_TRAINING, TOY_ENTROPY, ENTROPY_IN_TRAINING)
