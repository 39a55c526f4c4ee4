"""Questions about values of a recipe that are possible and seldom meant: nothing is refused for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groupwise.training.start.initial_policy import TINY


@dataclass(frozen=True)
class Usual:
    """Range in which nearly every run has a key's value, ends included, and what lies outside of it."""

    key: str
    low: float
    high: float
    why: str

    def question(self, table: Mapping[str, Any]) -> str:
        """Ask a question about a resolved recipe's table; "" if the value is usual or the key is not there."""
        value: Any = table
        for name in self.key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or self.low <= value <= self.high:
            return ""
        return f"{self.key} = {value:g}: usual is {self.low:g} to {self.high:g}; {self.why}; is it meant?"


#: 0 stands in a range where it turns something off that many runs go without.
USUAL = (
    Usual("learner.learning_rate", 1e-8, 3e-3, "real models learn at 1e-7 to 1e-5, tiny ones up to 1e-3, and a larger "
          "rate ruins a policy in a few updates"),
    Usual("learner.clip_norm", 0.01, 100, "0 lets one odd batch move the weights as far as it likes, and a very small "
          "one makes every update the same length"),
    Usual("learner.weight_decay", 0, 0.3, "more pulls the weights to zero faster than rewards move them"),
    Usual("learner.beta1", 0.5, 0.99, "gradients of a few steps are to be averaged"),
    Usual("learner.beta2", 0.9, 0.9999, "squared gradients of tens to thousands of updates are to be averaged"),
    Usual("critic.learning_rate", 1e-7, 1e-2, "a critic learns about ten times as fast as its policy"),
    Usual("sampling.temperature", 0.3, 1.5, "colder, the completions of a prompt are nearly equal and there is nothing "
          "to compare; hotter, they turn to noise"),
    Usual("sampling.top_p", 0.5, 1, "with less, few tokens are ever tried"),
    Usual("samples_per_prompt", 1, 256, "hundreds of completions of one prompt cost much and say little more"),
    Usual("updates_per_batch", 1, 64, "later updates of a batch are far from the policy that sampled it"),
    Usual("passes_per_batch", 1, 8, "later passes are far from the policy that sampled the batch"),
    Usual("algorithm.kl.beta", 0, 0.5, "a larger penalty keeps the policy at its start"),
    Usual("algorithm.entropy_coefficient", 0, 0.05, "a larger bonus, or a negative one, outweighs most rewards"),
    Usual("algorithm.trust.epsilon_low", 1e-4, 0.6, "0 stops every gradient of worse tokens, and 1 none"),
    Usual("algorithm.trust.epsilon_high", 0, 10, "so wide a range stops nothing"),
    Usual("adapter.rank", 0, 512, "adapters of so high a rank hold as much as the weights"),
)  # fmt: skip


#: AdamW's largest usual rate in the warm start of a trained model; adapters take more than all weights do.
MOST_WARM = 1e-3
#: Keys that change what is learned; [sampling] and [evaluation] have each its own.
SHAPING = ("logit_bias", "min_new_tokens")


def unusual(table: Mapping[str, Any]) -> list[str]:
    """Ask a question for each value of a resolved recipe's table that is out of the ordinary.

    >>> unusual({"learner": {"learning_rate": 0.5}})[0][:60]
    'learner.learning_rate = 0.5: usual is 1e-08 to 0.003; real m'
    """
    kl_alone = table.get("algorithm", {}).get("shaping", {}).get("kind") == "none"  # a teacher's: nothing else trains
    asked = (usual for usual in USUAL if not (kl_alone and usual.key == "algorithm.kl.beta"))
    values = [question for usual in asked if (question := usual.question(table))]
    return [*values, *_shaped_in_training_alone(table), *_harsh_warm_start(table)]


def _shaped_in_training_alone(table: Mapping[str, Any]) -> list[str]:
    """Ask a question for each key of SHAPING that a policy trains with and is evaluated without."""
    sampling, evaluation = table.get("sampling", {}), table.get("evaluation", {})
    if not evaluation.get("problems", 1):
        return []
    alone = [key for key in SHAPING if sampling.get(key) and not evaluation.get(key)]
    return [
        f"sampling.{key} is set and evaluation.{key} is not: the policy learns with it and is evaluated without it, "
        f"and of tokens that it rules out nothing is learned; is it meant?"
        for key in alone
    ]


def _harsh_warm_start(table: Mapping[str, Any]) -> list[str]:
    """Ask a question for a warm start that a trained model is not likely to survive: at rates of random weights."""
    warm, adapted = table.get("warm_start", {}), table.get("adapter", {})
    if not warm.get("steps") or table.get("model") in TINY:
        return []
    rate = (warm.get("learning_rate") or 0) * (adapted.get("rate_factor", 1) if adapted.get("rank") else 1)
    muon = warm.get("matrix_learning_rate")
    high = f"warm_start.learning_rate = {warm.get('learning_rate'):g} makes AdamW's rate {rate:g}: usual is up to"
    return [
        *([f"{high} {MOST_WARM:g} for a trained model; is it meant?"] if rate > MOST_WARM else []),
        *(
            [f"warm_start.matrix_learning_rate = {muon:g}: Muon is for random weights, and moves those of a trained "
             "model far in a few updates; leave it out, and AdamW trains them; is it meant?"] if muon else []
        ),
    ]  # fmt: skip
