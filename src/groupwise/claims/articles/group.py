"""A group instead of a critic: what its mean, its deviation and its size do to the gradient."""

import math
from itertools import product
from statistics import fmean

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Figure, Line, grid, lines_of, quantities
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
    source="S1, on the limit of large groups",
    argument="The group's mean holds the completion itself, which scales the expected gradient by (G - 1)/G and biases "
    "nothing: it is REINFORCE with a baseline at every G, not only in the limit.",
    expected="Holds, at every G.",
    of=baseline,
    numbers=grid("expected gradient over REINFORCE's, G = {}, p = {}", "mean_{}_{}", SIZES, (0.05, 0.5)),
    rule="(G - 1) / G at every size and pass rate: a scale alone, which tends to 1.",
    judge=lambda seen: seen.equal(
        {f"mean_{size}_{chance}": (size - 1) / size for size, chance in product(SIZES, CHANCES)},
        1e-9,
        "the gradient over REINFORCE's and (G - 1)/G, at whatever G and p,",
    ),
)

GROUP_DEVIATION = Claim(
    name="group-deviation",
    title="Dividing by the group's deviation gives prompts that are nearly always or nearly never solved more weight.",
    source="Dr. GRPO 2503.20783 (question-level difficulty bias), against S1, who leaves it out of the limit",
    argument="A prompt of pass rate p weighs 1/sqrt(p(1-p)) in the limit, so that what is ascended is the mean of "
    "2 arcsin sqrt(p) and not of p. In a group of two the deviation is the same wherever there is one, and favours "
    "nobody.",
    expected="Holds from G = 4 on; the limit is reached late for extreme prompts, whose groups are mostly without "
    "signal.",
    of=baseline,
    numbers=grid("weight of a prompt, G = {}, p = {}", "deviation_{}_{}", SIZES, (0.02, 0.05, 0.5)),
    rule="At G = 16 prompts of 0.05 and 0.95 weigh a fifth more than one of 0.5; at G = 256 all weigh 1/sqrt(p(1-p)).",
    judge=lambda seen: both(
        *(
            above(
                seen.mean(f"deviation_16_{p}") / seen.mean("deviation_16_0.5"),
                1.2,
                f"a prompt of {p} weighs, against one of 0.5,",
            )
            for p in (0.05, 0.95)
        ),
        below(
            max(abs(seen.mean(f"deviation_256_{p}") / (p * (1 - p)) ** -0.5 - 1) for p in (0.1, 0.2, 0.5, 0.8, 0.9)),
            0.05,
            "at G = 256 the weights are off 1/sqrt(p(1-p)) by a share of",
        ),
    ),
    figure=Figure(
        title="What a prompt weighs under GRPO's deviation",
        axes=("its pass rate", "weight"),
        lines=lines_of(baseline, CHANCES, grid("G = {}", "deviation_{}", SIZES)),
        hint="Flat is the pass rate itself, as for G = 2; larger groups lift both ends toward 1/sqrt(p(1-p)).",
    ),
)

NOISE_SIZES = (2, 4, 8, 16, 32, 64)
#: Pass rates of the prompts, each as likely: all alike, and spread as in training.
PROMPTS = {"alike": (0.2,), "spread": (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)}
IN_WORDS = {"alike": "prompts all of 0.2", "spread": "prompts of 0.02 to 0.98"}
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
    title="A small group's mean is a noisy baseline, and a larger group makes a less noisy gradient.",
    source="S1 (with finite G this estimate is noisy, the price of not maintaining a critic)",
    argument="The noise that the baseline adds falls with 1/(G - 1). From as many completions a larger group also "
    "means fewer prompts, and where these are of unlike difficulty that adds more than the baseline saves.",
    expected="For prompts that are alike it holds, with little left to gain from G = 8 on; for unlike ones it does "
    "not.",
    of=noise,
    numbers=grid(
        "noise over signal of 512 completions, {}, {}",
        "{}_{}",
        IN_WORDS,
        {**{f"{size}": f"G = {size}" for size in NOISE_SIZES}, "critic": "a perfect critic, one a prompt"},
    ),
    rule="Unbiased at every G; and at as many completions groups of 64 have less noise than groups of 8.",
    judge=lambda seen: both(
        seen.equal(
            {f"{name}_bias_{size}": 0.0 for name, size in product(PROMPTS, NOISE_SIZES)},
            1e-9,
            "the mean gradient and the true one",
        ),
        below(
            seen.mean("spread_64") / seen.mean("spread_8"),
            1.0,
            "noise of groups of 64 over that of groups of 8, from as many completions,",
        ),
    ),
    figure=Figure(
        title="Noise of a gradient from 512 completions",
        axes=("completions a prompt", "deviation over mean"),
        lines=(
            *lines_of(noise, NOISE_SIZES, grid("{}, group mean", "{}", IN_WORDS)),
            Line(
                "prompts of 0.02 to 0.98, a perfect critic and one completion",
                dict.fromkeys(NOISE_SIZES, (noise.name, "spread_critic")),
            ),
        ),
        hint="Where prompts differ, noise has its least at a group of a few: then missing prompts cost more than the "
        "baseline.",
        log=(True, False),
    ),
)

#: Of a policy of 34 million parameters: the peak of the tiny one is of the libraries, a critic is 2 MiB of it.
LARGE = {"34 million parameters, GRPO": GRPO_LARGE, "34 million parameters, PPO": PPO_LARGE}
#: A score that is lower by less counts as as good.
TOLERATED = 0.03
WITHOUT_CRITIC = Claim(
    name="without-critic",
    title="Without a critic GRPO is as good as PPO at equal generation, and takes less time and memory.",
    source="S0, S1, S2; DeepSeekMath 2402.03300 section 4.1",
    argument="The group's mean stands for the value of the prompt. A critic as large as the policy doubles what is "
    "held and trained; its estimate inside an answer could tell which step went wrong, if it learned that in time.",
    expected="Holds.",
    of={"GRPO": GRPO, "PPO": PPO},
    numbers=in_words("heldout_mean", "heldout_end", "generated_tokens", "seconds_training", "seconds_update"),
    beside=quantities(LARGE, in_words("memory_peak_mib", "seconds_update")),
    rule="GRPO's held-out pass rate, mean over evaluations, is at most 0.03 below PPO's; PPO takes more time, and more "
    "memory with a policy of 34 million parameters.",
    judge=lambda measured: both(
        above(measured.difference(PPO.name, GRPO.name, "heldout_mean"), -TOLERATED, "held-out pass rate higher by"),
        *(
            above(measured.across(lambda grpo, ppo: ppo / grpo, name, *pair), 1.0, f"{words}, PPO's over GRPO's,")
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
    title="Process supervision credits 'take another step' wrongly where the policy decides when to stop.",
    source="against DeepSeekMath 2402.03300 section 4.1.3, which has it as the finer credit",
    argument="Each step that is right half of the time is worth as much, so going on is worth half a step. Centred "
    "over all steps of the group, a usual step is worth nothing: going on to it has no credit, and one who stops loses "
    "none. Whether a step is done well is credited as it should be.",
    expected="Holds.",
    of=process,
    numbers={"true gradient of the logit of going on, chance 0.6": "true_0.6"}
    | grid(
        "{}: {}, over the true one",
        "{}_{}_0.6",
        {
            "loo": "leave-one-out of trajectories (RLOO)",
            "trajectory": "z-scores of trajectories (GRPO)",
            "process": "z-scores of steps (process supervision)",
        },
        {"go_on": "gradient of going on", "quality": "gradient of a right step"},
    ),
    rule="Leave-one-out over whole trajectories has the true gradient. Under process supervision another step gets "
    "less than a third of the credit that it should have beside a right one; under z-scores of trajectories more than "
    "a half.",
    judge=lambda seen: both(
        seen.equal(
            {f"loo_go_on_{chance}": 1.0 for chance in GO_ON},
            1e-9,
            "the gradient of going on under leave-one-out over the true one, and 1,",
        ),
        below(seen.mean("process_0.6"), 1 / 3, "under process supervision its share of the credit is"),
        above(seen.mean("trajectory_0.6"), 1 / 2, "under z-scores of trajectories it is"),
    ),
    figure=Figure(
        title="Credit for another step, against credit for a right one",
        axes=("chance to go on", "over the true share"),
        lines=lines_of(
            process, GO_ON, {"leave-one-out": "loo", "z-score of trajectories": "trajectory", "of steps": "process"}
        ),
        hint="It should be 1; process supervision pays next to nothing for another step, whatever the policy.",
    ),
)
CLAIMS = (GROUP_BASELINE, GROUP_DEVIATION, GROUP_SIZE, WITHOUT_CRITIC, PROCESS_SUPERVISION)
