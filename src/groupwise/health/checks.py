"""The invariants of a run, in words: when each holds, when it fails, and why it may not be measured.

The checks (diagnostics.checks) and the report read the same records.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Invariant:
    """Something that must hold in every run.

    name        as metrics.jsonl has it
    held        what it says of a run in which it held, a sentence
    cause       what its failure means and where to look, as the end of a sentence
    unmeasured  why there may be no number for it, as the end of a sentence
    """

    name: str
    held: str
    cause: str
    unmeasured: str


def of_limit(value: float, limit: float) -> float:
    """Compute how much of its limit a value takes up; the value itself if the limit is 0.

    >>> of_limit(0.5, 2.0), of_limit(0.5, 0.0)
    (0.25, 0.5)
    """
    return value / limit if limit else value


LIVE_IS_OLD = Invariant(
    "live = old on the first update",
    held="Two passes of the learner over the same weights gave the same log-probabilities: no dropout, and splitting a "
    "batch changes nothing.",
    cause="the same weights gave different log-probabilities twice; look at dropout, kernels, microbatching",
    unmeasured="logp_old is the engine's, or a batch has one update and the ratio is 1 by construction",
)
LEARNER_IS_ENGINE = Invariant(
    "learner = engine",
    held="The sampler and the learner gave each sampled token the same probability: what was trained is what was "
    "sampled.",
    cause="the sampler's distribution is not the one being trained; look at temperature, top-p and top-k, the prompt's "
    "template, or old weights in the engine",
    unmeasured="no trained row was sampled by the then current weights",
)
RATIOS_AVERAGE_ONE = Invariant(
    "the mean of learner / engine is 1",
    held="Over the engine's own samples the learner's probabilities added up to the engine's, as those of any two "
    "distributions over the same tokens do.",
    cause="the engine draws from other tokens than the learner counts, or not from what it says it draws from; look at "
    "top-p and top-k, and at what the engine's log-probabilities are of",
    unmeasured="every token is compared in float32, or too few rows were sampled by the then current weights",
)
GAP_IS_LEVEL = Invariant(
    "learner - engine does not depend on the probability",
    held="The learner gave rare and likely tokens the engine's probabilities alike: one temperature on both sides.",
    cause="rare and likely tokens are off in opposite ways, as under another temperature; look at it on both sides",
    unmeasured="every token is compared in float32, or too few tokens were anything but certain",
)
REFERENCE_IS_START = Invariant(
    "KL to the reference is 0 at step 0",
    held="Before the first update the policy was its reference.",
    cause="the reference is not the starting policy",
    unmeasured="the algorithm reads no reference, reference.model is another model than the start, or the run's first "
    "step is not here",
)
WEIGHTS_REACH_TOTAL = Invariant(
    "weights reach their declared total",
    held="The loss's token weights added up to what its aggregate declares, however a batch was split.",
    cause="the loss is normalised wrongly",
    unmeasured="the policy was not updated",
)
ENGINE_IS_LOADED = Invariant(
    "engine and learner agree after a weight load",
    held="After each weight load the engine answered fixed questions with the learner's probabilities: the new "
    "weights arrived.",
    cause="the engine serves old weights, or a cache made from them",
    unmeasured="the probe sampled nothing",
)
REPLAYED_ARE_USED = Invariant(
    "replayed routes are the ones used",
    held="The experts that computed were the ones that the replay named.",
    cause="experts computed that the replay did not name; the model chooses its experts outside of its routers",
    unmeasured="no routes were replayed",
)

AGE_IS_BOUNDED = Invariant(
    "tokens are no older than the recipe says",
    held="Everything that was sampled for a step came from weights no older than the keys of [rollout] allow.",
    cause="completions waited longer than the recipe says, or the engine samples with weights of long ago; look at "
    "whether each load arrives",
    unmeasured="nothing was sampled for the step",
)

INVARIANTS = (
    LIVE_IS_OLD,
    LEARNER_IS_ENGINE,
    RATIOS_AVERAGE_ONE,
    GAP_IS_LEVEL,
    REFERENCE_IS_START,
    WEIGHTS_REACH_TOTAL,
    ENGINE_IS_LOADED,
    REPLAYED_ARE_USED,
    AGE_IS_BOUNDED,
)


def invariant(name: str) -> Invariant:
    """Find the invariant of this name; one of another version has a verdict and no meaning."""
    unknown = Invariant(name, "It held.", "it does not hold", "it was not measured")
    return next((each for each in INVARIANTS if each.name == name), unknown)
