"""A group instead of a critic: what its mean, its deviation and its size do to the gradient."""

import math
from itertools import product
from statistics import fmean

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Figure, Line, grid, lines_of, matrix, quantities
from groupwise.claims.experiments import GRPO, GRPO_LARGE, PPO, PPO_LARGE, computed
from groupwise.claims.measurements import above, below, both
from groupwise.claims.readings import in_words
from groupwise.claims.toys import chances_of

SIZES = (2, 4, 16, 64, 256)
CHANCES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
#: Without the deviation, as Dr. GRPO has it, and with it.
BASELINES = {"mean": algorithm("dr-grpo"), "deviation": algorithm("grpo")}


@computed("group-baseline", seeds=1)
def baseline(seed: int) -> dict[str, float]:
    """Compute the expected gradient of one prompt's pass rate p, by p itself, over all groups of G: 1 of REINFORCE with
    the exact baseline. d log p(right) = 1 / p, d log p(wrong) = -1 / (1 - p); groups by the binomial distribution.
    """
    seen: dict[str, float] = {}
    for (name, algo), size in product(BASELINES.items(), SIZES):
        rewards, advantage = _every_group(algo, size)
        for chance in CHANCES:
            score = (rewards - chance) / (chance * (1 - chance))
            seen[f"{name}_{size}_{chance}"] = float(_binomial(size, chance) @ (advantage * score).mean(1))
    return seen


def _every_group(algo: Algorithm, size: int) -> tuple[Tensor, Tensor]:
    """Make a group with each number of right completions, from none to all: rewards and advantages [G+1,G]."""
    right = torch.arange(size + 1)
    rewards = (torch.arange(size) < right[:, None]).double()
    return rewards, algo.advantages(rewards.flatten(), right.repeat_interleave(size)).view(size + 1, size)


def _binomial(size: int, chance: float) -> Tensor:
    """Compute the chances of so many right ones [G+1] from their logarithms."""
    ways = (math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1) for k in range(size + 1))
    logs = [log + k * math.log(chance) + (size - k) * math.log1p(-chance) for k, log in enumerate(ways)]
    return torch.tensor(logs, dtype=torch.float64).exp()


GROUP_BASELINE = Claim(
    name="group-baseline",
    title="As the group grows, the group-relative advantage without the deviation becomes REINFORCE with a baseline.",
    source="S1, limit of large groups",
    argument="The group mean includes the completion itself, which scales the gradient by (G - 1)/G and adds no bias.",
    expected="Holds at every G.",
    of=baseline,
    numbers=matrix("gradient over REINFORCE's", "mean_{}_0.5", "G = {}", (2, 16, 256)),
    rule="The gradient is (G - 1)/G of REINFORCE's at every group size and pass rate.",
    judge=lambda seen: seen.equal(
        {f"mean_{size}_{chance}": (size - 1) / size for size, chance in product(SIZES, CHANCES)},
        1e-9,
        "gradient over REINFORCE's and (G - 1)/G",
    ),
)

GROUP_DEVIATION = Claim(
    name="group-deviation",
    title="Dividing by the group's deviation gives more weight to prompts that are nearly always or nearly never "
    "solved.",
    source="Dr. GRPO 2503.20783, question-level difficulty bias",
    argument="In the limit a prompt with pass rate p weighs 1/sqrt(p(1 - p)). In groups of two, all prompts weigh the "
    "same.",
    expected="Holds from G = 4 on. Extreme prompts reach the limit late, because most of their groups have no signal.",
    of=baseline,
    numbers=matrix("weight of a prompt, G = {}", "deviation_{}_{}", "p = {}", (2, 16, 256), (0.05, 0.5)),
    rule="At G = 16, prompts at 0.05 and 0.95 weigh at least 1.2 times a prompt at 0.5. At G = 256, weights are "
    "within 5 % of 1/sqrt(p(1 - p)).",
    judge=lambda seen: both(
        *(
            above(
                seen.mean(f"deviation_16_{p}") / seen.mean("deviation_16_0.5"),
                1.2,
                f"weight at {p} over weight at 0.5:",
            )
            for p in (0.05, 0.95)
        ),
        below(
            max(abs(seen.mean(f"deviation_256_{p}") / (p * (1 - p)) ** -0.5 - 1) for p in (0.1, 0.2, 0.5, 0.8, 0.9)),
            0.05,
            "relative error of 1/sqrt(p(1 - p)) at G = 256:",
        ),
    ),
    figure=Figure(
        title="Weight of a prompt with GRPO's deviation",
        axes=("its pass rate", "weight"),
        lines=lines_of(baseline, CHANCES, grid("G = {}", "deviation_{}", SIZES)),
        hint="G = 2 is flat: all prompts weigh the same. Larger groups lift both ends toward 1/sqrt(p(1-p)).",
    ),
)

NOISE_SIZES = (2, 4, 8, 16, 32, 64)
#: Pass rates of the prompts, each as likely: all alike, and spread as in training.
PROMPTS = {"alike": (0.2,), "spread": (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)}
IN_WORDS = {"alike": "equal prompts (0.2)", "spread": "mixed prompts (0.02 to 0.98)"}
#: Completions in all, of whichever number of prompts.
COMPLETIONS = 512
#: Leave-one-out: unbiased at every G, so that nothing but noise differs.
RLOO = algorithm("rloo", {"kl.beta": 0.0})


@computed("group-size", seeds=1)
def noise(seed: int) -> dict[str, float]:
    """Compute deviation over mean of the gradient of a logit that all prompts share, from 512 completions: with others
    of the group as baseline, and, one completion a prompt, with its true pass rate, which no critic could better.
    """
    seen: dict[str, float] = {}
    for name, chances in PROMPTS.items():
        truth = fmean(p * (1 - p) for p in chances)
        squares = fmean(p * (1 - p) ** 4 + (1 - p) * p**4 for p in chances)
        seen[f"{name}_critic"] = math.sqrt((squares - truth**2) / COMPLETIONS) / truth
        for size in NOISE_SIZES:
            means, squares = zip(*(_moments(size, p) for p in chances), strict=True)
            seen[f"{name}_bias_{size}"] = fmean(means) / truth - 1
            seen[f"{name}_{size}"] = math.sqrt((fmean(squares) - fmean(means) ** 2) * size / COMPLETIONS) / truth
    return seen


def _moments(size: int, chance: float) -> tuple[float, float]:
    """Compute mean and mean square of a group's gradient, exactly: d log p(R) / d logit = R - p."""
    rewards, advantage = _every_group(RLOO, size)
    gradient = (advantage * (rewards - chance)).mean(1)
    binomial = torch.tensor(chances_of(size, chance), dtype=torch.float64)
    return float(binomial @ gradient), float(binomial @ gradient.square())


GROUP_SIZE = Claim(
    name="group-size",
    title="A small group's mean is a noisy baseline; a larger group gives a less noisy gradient.",
    source="S1, noise at finite G",
    argument="Baseline noise falls with 1/(G - 1). But with equal completions, larger groups mean fewer prompts, which"
    " adds noise if prompts differ in difficulty.",
    expected="Holds for prompts of equal difficulty, with little gain beyond G = 8. Does not hold for mixed prompts.",
    of=noise,
    numbers=matrix(
        "noise over signal, {}",
        "{}_{}",
        "{}",
        IN_WORDS,
        {**{f"{size}": f"G = {size}" for size in (2, 8, 64)}, "critic": "perfect critic"},
    ),
    rule="The gradient is unbiased at every G, and with equal completions groups of 64 have less noise than groups"
    " of 8.",
    judge=lambda seen: both(
        seen.equal(
            {f"{name}_bias_{size}": 0.0 for name, size in product(PROMPTS, NOISE_SIZES)},
            1e-9,
            "mean gradient and true gradient",
        ),
        below(
            seen.mean("spread_64") / seen.mean("spread_8"),
            1.0,
            "noise of groups of 64 over groups of 8, mixed prompts:",
        ),
    ),
    figure=Figure(
        title="Noise of a gradient from 512 completions",
        axes=("completions a prompt", "deviation over mean"),
        lines=(
            *lines_of(noise, NOISE_SIZES, grid("{}, group mean", "{}", IN_WORDS)),
            Line(
                "mixed prompts, perfect critic, one completion",
                dict.fromkeys(NOISE_SIZES, (noise.name, "spread_critic")),
            ),
        ),
        hint="With mixed prompts, small groups have the least noise: beyond them, missing prompts cost more than the "
        "baseline saves.",
        log=(True, False),
    ),
)

#: Of a policy of 34 million parameters: the peak of the tiny one is of the libraries, a critic is 2 MiB of it.
LARGE = {"34 million parameters, GRPO": GRPO_LARGE, "34 million parameters, PPO": PPO_LARGE}
#: A score that is lower by less counts as as good.
TOLERATED = 0.03
WITHOUT_CRITIC = Claim(
    name="without-critic",
    title="Without a critic, GRPO matches PPO at equal generation and takes less time and memory.",
    source="S0, S1, S2; DeepSeekMath 2402.03300 section 4.1",
    argument="A critic as large as the policy doubles what is stored and trained, but could learn which step of an "
    "answer went wrong.",
    expected="Holds.",
    of={"GRPO": GRPO, "PPO": PPO},
    numbers=in_words("heldout_mean", "generated_tokens", "seconds_training"),
    beside=quantities(LARGE, in_words("memory_peak_mib")),
    rule="GRPO's mean held-out pass rate is at most 0.03 below PPO's. PPO takes more time, and more memory at 34 "
    "million parameters.",
    judge=lambda measured: both(
        above(measured.difference(PPO.name, GRPO.name, "heldout_mean"), -TOLERATED, "GRPO's pass rate minus PPO's:"),
        *(
            above(measured.across(lambda grpo, ppo: ppo / grpo, name, *pair), 1.0, f"{words}, PPO over GRPO:")
            for words, name, pair in (
                ("seconds", "seconds_training", (GRPO.name, PPO.name)),
                ("memory", "memory_peak_mib", (GRPO_LARGE.name, PPO_LARGE.name)),
            )
        ),
    ),
)

#: The most steps, the chance of a right one, and the chances to go on that are tried; a right step is worth 1.
STEPS, RIGHT, GO_ON = 3, 0.5, (0.2, 0.4, 0.6, 0.8)
GROUP = 4
CREDITS = {
    "loo": RLOO,
    "trajectory": algorithm("grpo", {"kl.beta": 0.0}),
    "process": algorithm("grpo-process", {"kl.beta": 0.0}),
}


@computed("process-supervision", seeds=1)
def process(seed: int) -> dict[str, float]:
    """Compute the expected gradient of two decisions, to take another step and to take it well, under a credit, over
    groups of 4, in units of the true one; and the first over the second, which a scale of the credit does not change.
    """
    seen: dict[str, float] = {}
    for chance in GO_ON:
        chances, reward, *_, by_go_on, by_quality = every_one = _trajectories(chance)
        truth = [float(chances @ (reward.sum(1) * slope.sum(1))) for slope in (by_go_on, by_quality)]
        seen[f"true_{chance}"] = truth[0]
        for name, algo in CREDITS.items():
            go_on, quality = (of / true for of, true in zip(_expected(algo, *every_one), truth, strict=True))
            seen[f"{name}_go_on_{chance}"], seen[f"{name}_quality_{chance}"] = go_on, quality
            seen[f"{name}_{chance}"] = go_on / quality
    return seen


def _trajectories(go_on: float) -> tuple[Tensor, ...]:
    """List every trajectory that the policy can write: a step in each even column, after it whether it goes on.

    Chance [S]; reward, mask and step ends [S,T]; d log p by the logits of going on and of a right step [S,T].
    """
    rows = []
    for steps in range(1, STEPS + 1):
        for rights in product((0.0, 1.0), repeat=steps):
            reward, mask, end, by_go_on, by_quality = torch.zeros(5, 2 * STEPS - 1, dtype=torch.float64)
            chance = torch.ones((), dtype=torch.float64)
            for number, right in enumerate(rights):
                reward[2 * number], by_quality[2 * number] = right, right - RIGHT
                chance *= RIGHT if right else 1 - RIGHT
                mask[2 * number] = end[2 * number] = 1
                if number + 1 < STEPS:
                    goes = number + 1 < steps
                    mask[2 * number + 1], by_go_on[2 * number + 1] = 1, goes - go_on
                    chance *= go_on if goes else 1 - go_on
            rows.append((chance, reward, mask.bool(), end.bool(), by_go_on, by_quality))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _expected(
    algo: Algorithm, chances: Tensor, reward: Tensor, mask: Tensor, end: Tensor, *slopes: Tensor
) -> list[float]:
    """Sum up the gradient by each logit, a mean over the completions of a group."""
    groups = torch.cartesian_prod(*[torch.arange(len(chances))] * GROUP)
    rows, ids = groups.flatten(), torch.arange(len(groups)).repeat_interleave(GROUP)
    if algo.advantage.reads_steps:
        advantage = algo.advantages(reward[rows], ids, mask[rows], end[rows])
    else:
        advantage = algo.advantages(reward[rows].sum(1), ids, mask[rows])[:, None]
    weights = (advantage * slope[rows] * mask[rows] for slope in slopes)
    return [float(chances[groups].prod(1) @ weight.sum(1).view(-1, GROUP).mean(1)) for weight in weights]


PROCESS_SUPERVISION = Claim(
    name="process-supervision",
    title="If the policy decides when to stop, process supervision assigns wrong credit to taking another step.",
    source="against DeepSeekMath 2402.03300 section 4.1.3",
    argument="If a step is right half of the time, taking one is worth half a step. Centering over all steps of the "
    "group makes an average step worth nothing.",
    expected="Holds.",
    of=process,
    numbers=matrix(
        "share of the true gradient, {}",
        "{}_{}_0.6",
        "{}",
        {
            "loo": "leave-one-out (RLOO)",
            "trajectory": "trajectory z-scores (GRPO)",
            "process": "step z-scores (process supervision)",
        },
        {"go_on": "another step", "quality": "right step"},
    ),
    rule="Leave-one-out gives the true gradient. Relative to a right step, another step gets less than a third of "
    "its credit under process supervision, and more than half under trajectory z-scores.",
    judge=lambda seen: both(
        seen.equal(
            {f"loo_go_on_{chance}": 1.0 for chance in GO_ON},
            1e-9,
            "leave-one-out's share of the true gradient and 1",
        ),
        below(seen.mean("process_0.6"), 1 / 3, "credit of another step under process supervision:"),
        above(seen.mean("trajectory_0.6"), 1 / 2, "under trajectory z-scores:"),
    ),
    figure=Figure(
        title="Credit for another step, against credit for a right one",
        axes=("chance to go on", "over the true share"),
        lines=lines_of(
            process, GO_ON, {"leave-one-out": "loo", "z-score of trajectories": "trajectory", "of steps": "process"}
        ),
        hint="It should be 1. Process supervision gives almost no credit for another step, whatever the policy.",
    ),
)
CLAIMS = (GROUP_BASELINE, GROUP_DEVIATION, GROUP_SIZE, WITHOUT_CRITIC, PROCESS_SUPERVISION)
