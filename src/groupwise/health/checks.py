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

GROUPS_AS_SAMPLED = Invariant(
    "witness: groups and scores are as they were sampled",
    held="Each row of what trained was one completion behind its own prompt, in its own group, with its own score, and "
    "the filter kept what its definition keeps.",
    cause="the batch is not what was sampled and scored; look at how groups are collected and collated, and at the "
    "weights of rewards",
    unmeasured="nothing was sampled for the step",
)
CREDIT_BY_DEFINITION = Invariant(
    "witness: credit is by its definition",
    held="Rewards, advantages and returns, made again from scores by their equations, were the ones that trained.",
    cause="rewards, advantages or returns are not what the recipe's equations give; look at shaping, the KL penalty's "
    "sign and the advantage",
    unmeasured="the parts that give credit are not the catalog's, and are asked again only in slow readings",
)
TRAINS_WHAT_WAS_SAID = Invariant(
    "witness: what trains is what the policy said",
    held="The tokens that trained were those that the policy sampled, each once a pass, in whole groups, with the "
    "weights of the aggregate's definition.",
    cause="other tokens train than those that the policy said, or not each once a pass; look at the mask, the split "
    "into minibatches and the weights",
    unmeasured="nothing was trained in the step",
)
LOSS_BY_DEFINITION = Invariant(
    "witness: the loss is by its definition",
    held="The loss of an update, made again by its equation, was the one that was minimised.",
    cause="what is minimised is not the recipe's objective; look at ratio, trust region, the signs of KL and entropy, "
    "and the sum over microbatches",
    unmeasured="it is read in the first step of a process and every checks.witness_every steps",
)
UPDATE_AS_ASKED = Invariant(
    "witness: updates are as the recipe asks",
    held="Each update had the learning rate of the recipe's schedule, and a gradient of no more than the norm that it "
    "allows.",
    cause="an update is not what the recipe asks for; look at the learning rate's schedule, at clip_norm, and at what "
    "makes the gradient",
    unmeasured="no update was applied",
)
DRAWS_ARE_NEW = Invariant(
    "witness: draws are new and held-out problems are held out",
    held="No two completions were drawn with one seed, problems came in the order of their draws, and what was "
    "evaluated was not trained on.",
    cause="random numbers or problems come again that must not; look at the seeds of requests, at the order of "
    "problems, and at what is evaluated",
    unmeasured="nothing was asked of the engine",
)
MODEL_IS_TRAINED = Invariant(
    "witness: the model that trains is the one that samples",
    held="A plain forward pass gave the log-probabilities that trained, and what the update moved is what it was to "
    "move.",
    cause="log-probabilities are not those of the model that trains, or other weights move than were to",
    unmeasured="it is read in the first step of a process and every checks.witness_every steps",
)

#: What the witness reads a second time. When it does depends on when a process began, so that metrics.jsonl has these
#: checks only if they fail, and machine.jsonl has all.
WITNESSED = (
    GROUPS_AS_SAMPLED,
    CREDIT_BY_DEFINITION,
    TRAINS_WHAT_WAS_SAID,
    LOSS_BY_DEFINITION,
    UPDATE_AS_ASKED,
    DRAWS_ARE_NEW,
    MODEL_IS_TRAINED,
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
    *WITNESSED,
)


def invariant(name: str) -> Invariant:
    """Find the invariant of this name; one of another version has a verdict and no meaning."""
    unknown = Invariant(name, "It held.", "it does not hold", "it was not measured")
    return next((each for each in INVARIANTS if each.name == name), unknown)
