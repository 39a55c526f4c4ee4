"""DAPO: which tokens its higher clip lets through, what becomes of the entropy, and its techniques together."""

from collections.abc import Mapping
from itertools import pairwise

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Figure, Line, LineOverSteps, gains, grid, lines_of, matrix
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
    title="Each of DAPO's techniques raises the score: 30, 36, 38, 41, 42, and 50 in the published table.",
    source="S0, S1, S3; DAPO 2503.14476 table 1; verl's rerun (52, without dynamic sampling 50, also without the "
    "token mean 44)",
    argument="The published gains come from single runs, so they depend on order and seed. Here soft punishment "
    "replaces filtering, and the last rung is the algorithm dapo.",
    expected="Some rungs cannot be told. Overlong filtering does not hold under a limit that is tight for most "
    "answers.",
    of=RUNGS,
    numbers=in_words("heldout_mean", "heldout_end", "truncated_share.end", "generated_tokens"),
    rule="The mean held-out pass rate rises with each of the five rungs.",
    judge=gains(
        "heldout_mean",
        {f"pass rate gained with {words}:": pair for words, pair in zip(ADDED[1:], pairwise(LADDER), strict=True)},
    ),
    figure=Figure(
        title="DAPO's techniques, added one by one",
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
    title="Of DAPO's techniques, dynamic sampling adds the most (+8) and the token mean the least (+1).",
    source="S0, S1, S3; DAPO 2503.14476 table 1; verl's rerun has +2 and +6",
    argument="Both are rungs of one ladder of single runs, and another group's rerun reverses them.",
    expected="Dynamic sampling gains more here, because it generates more.",
    of={words: RUNGS[words] for words in ADDED[-3:]},
    numbers=in_words("heldout_mean"),
    rule="Dynamic sampling gains more mean held-out pass rate than the token mean.",
    judge=lambda measured: above(
        measured.across(
            lambda before, tokens, dapo: (dapo - tokens) - (tokens - before),
            "heldout_mean",
            *(run.name for run in LADDER[-3:]),
        ),
        0.0,
        "gain of dynamic sampling minus gain of the token mean:",
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
    title="Clip-higher lets low-probability tokens rise: the tokens that the usual clip stops are the less probable"
    " ones.",
    source="S0, S1; DAPO 2503.14476 section 3.1, figure 3a",
    argument="A ratio above 1.2 needs an old probability below 1/1.2. Clip-higher frees only ratios from 1.2 to 1.28: "
    "S0's example, from 0.2 to 0.4, has a ratio of 2 and stays clipped.",
    expected="Holds, and S0's example gets no gradient. How rare the tokens are depends on the policy.",
    of=rare,
    numbers={
        "mean old probability, freed tokens": "freed_mean",
        "mean old probability, all tokens of better completions": "better_mean",
        "mean old probability, clipped tokens": "stopped_mean",
        "share of clipped tokens that clip-higher frees": "share_freed",
        "gradient passed in S0's example": "example",
    },
    rule="Clip-higher frees at least 5 % of the clipped tokens. These are less probable than the average token of "
    "better completions. No clipped token is above 1/1.2.",
    judge=lambda seen: both(
        above(seen.interval("share_freed"), 0.05, "share of clipped tokens freed:"),
        below(
            seen.combined(lambda freed, better: freed / better, "freed_mean", "better_mean"),
            1.0,
            "mean probability of freed tokens over that of better completions:",
        ),
        below(seen.largest("most_probable"), 1 / 1.2, "highest probability of a clipped token:"),
    ),
    figure=Figure(
        title="Tokens that clip-higher frees",
        axes=("old probability", "share of such tokens of better completions"),
        lines=lines_of(rare, MIDDLES, {"clipped at 1.2": "stopped", "freed up to 1.28": "freed", "all": "better"}),
        hint="By tenths of the old probability: no token of high probability is clipped or freed.",
    ),
)
COMMON_TOKENS = Claim(
    name="common-tokens",
    title="Clip-higher keeps high-probability tokens from being clipped too much.",
    source="S2, clip-higher",
    argument="A token with probability 0.9 cannot reach a ratio above 1/0.9, so an upper clip at 1.2 never stops it.",
    expected="Does not hold: the upper clip stops rare tokens.",
    of=rare,
    numbers={
        "share of freed tokens with probability above 0.5": "freed_common",
        "highest probability of a clipped token": "most_probable",
    },
    rule="More than half of the tokens that clip-higher frees had a probability above 0.5.",
    judge=lambda seen: above(seen.interval("freed_common"), 0.5, "share of freed tokens with probability above 0.5:"),
)

RUNS = {"0.2": GRPO, "0.28": CLIP_HIGHER}
IN_WORDS = {f"upper clip {width}": run for width, run in RUNS.items()}
#: DAPO's figure 3a: the mean probability of stopped tokens stays below this.
STOPPED, RARE = "probability_stopped_positive", 0.2
RARE_IN_TRAINING = Claim(
    name="rare-tokens-in-training",
    title="In training, the upper clip stops rare tokens: their mean old probability is below 0.2.",
    source="DAPO 2503.14476 section 3.1, figure 3a; S2 says the opposite",
    argument="A token at 0.9 can never pass a ratio of 1.2. A token at 0.01 only has to reach 0.012.",
    expected="Holds.",
    of=IN_WORDS,
    numbers=in_words("probability_stopped_positive", "probability_stopped_negative", "probability"),
    rule="The mean old probability of clipped tokens is below 0.2 with either clip.",
    judge=lambda measured: every(
        below(measured.interval_of(measured.numbers(run.name, STOPPED)), RARE, f"upper clip {words}, mean probability:")
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
    title="Clip-higher prevents entropy collapse in a small policy that learns right completions.",
    source="S0, S1; DAPO 2503.14476 figure 2",
    argument="A higher clip lets rare tokens rise, which adds entropy, and common tokens too, which removes some.",
    expected="Open.",
    of=entropy,
    numbers={"initial entropy (nats)": "entropy_0.2_0"}
    | matrix("final entropy (nats)", f"entropy_{{}}_{STEPS - 1}", "upper clip {}", WIDTHS)
    | matrix("right completions at the end", "right_{}", "upper clip {}", WIDTHS),
    rule="The final entropy is higher with clip-higher. It counts only if the learner's entropy is that of the "
    "sampled distribution.",
    judge=lambda seen: both(
        instrument(seen.largest("apart"), 0.0, 1e-9, "learner's entropy and sampled entropy"),
        above(seen.interval("gained"), 0.0, "final entropy gained with clip-higher (nats):"),
    ),
    figure=Figure(
        title="Entropy of a toy run with each upper clip",
        axes=("step", "nats"),
        lines=lines_of(entropy, range(STEPS), grid("upper clip {}", "entropy_{}", WIDTHS)),
        hint="The claim predicts the line of 0.28 above the other.",
    ),
)
ENTROPY_IN_TRAINING = Claim(
    name="entropy-in-training",
    title="In training, clip-higher (0.28 instead of 0.2) prevents entropy collapse.",
    source="S0, S1, S2, S3; DAPO 2503.14476 section 3.1, figure 2",
    argument="A clip at 1.28 leaves unlikely tokens more room, so the policy may stay wider.",
    expected="Cannot be told: one token in a hundred is clipped here, and few of those lie between 1.2 and 1.28.",
    of=IN_WORDS,
    numbers=in_words("entropy_mean.start", "entropy_mean.end", "stopped_tokens"),
    rule="The entropy of the last ten steps is higher with clip-higher.",
    judge=gains("entropy_mean.end", {"entropy gained (nats a token):": (GRPO, CLIP_HIGHER)}),
    figure=Figure(
        title="Entropy in training with each upper clip",
        axes=("step", "nats a token"),
        lines=[LineOverSteps(words, run.name, "entropy_mean") for words, run in IN_WORDS.items()],
        hint="The claim predicts the line of 0.28 above the other at the end.",
    ),
)
CLIP_HIGHER_CLAIMS = (RARE_TOKENS, COMMON_TOKENS, RARE_IN_TRAINING, TOY_ENTROPY, ENTROPY_IN_TRAINING)
