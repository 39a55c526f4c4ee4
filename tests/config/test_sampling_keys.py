"""The keys of [sampling] and [evaluation]: what is refused, and why; what an evaluation takes from training."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from groupwise.config import recipe, recipe_files
from groupwise.config.resolve import resolved_recipe
from groupwise.core.engine import Distribution, Sampling
from groupwise.core.errors import UsageError
from groupwise.engines.make import make_engine, require_sampling
from groupwise.engines.settings import EngineSettings
from groupwise.health.symptoms.progress import SAMPLED_BY
from groupwise.models.load import Policy
from tests.config.made import plan, refusal


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampling.stop": [""]}, "sampling.stop.0 = '': string should have at least 1 character"),
        ({"sampling.stop": "\n"}, r"sampling.stop = '\\n': a list is expected, such as \[\"\\n\"\]"),
        (
            {"evaluation.stop": ["a\ufffd"]},
            "evaluation.stop.0 = .*: holds U\\+FFFD, which stands for half a character",
        ),
        ({"sampling.stop": ["a"] * 65}, "sampling.stop = .*at most 64 items"),
        ({"sampling.stop_ids": [-1]}, "sampling.stop_ids.0 = -1: must be at least 0"),
        ({"sampling.stop_ids": [True]}, "sampling.stop_ids.0 = True"),
        ({"sampling.min_p": 1.5}, "sampling.min_p = 1.5: must be at most 1"),
        ({"sampling.logit_bias.the": 1.0}, "sampling.logit_bias.the = 'the': a token's id is expected before the bias"),
        ({"sampling.logit_bias": 5}, "sampling.logit_bias = 5: a table of token id = bias is expected, such as "),
        ({"sampling.logit_bias.5": 1e9}, "sampling.logit_bias.5 = 1000000000.0: must be at most"),
        ({"sampling.min_new_tokens": 65}, "sampling.min_new_tokens = 65: more than sampling.max_new_tokens = 64"),
        ({"evaluation.min_new_tokens": 65}, "evaluation.min_new_tokens = 65: more than sampling.max_new_tokens = 64"),
        ({"sampling.repetition_penalty": 1.2}, "sampling.repetition_penalty = 1.2: it changes each token's .* learner"),
        (
            {"algorithm.kl.estimator": "full", "sampling.top_p": 0.9},
            "kl.estimator, full.*, with sampling.top_p = 0.9: it",
        ),
        (
            {"algorithm.kl.estimator": "top-k", "sampling.min_p": 0.1},
            "kl.estimator, top-k.*, with sampling.min_p = 0.1",
        ),
        (
            {"algorithm.kl.estimator": "full", "reference.template": "{prompt}"},
            "kl.estimator, full.*, with reference.template: such a teacher gives",
        ),
        (
            {"algorithm.kl.estimator": "full", "reference.offload": True},
            "kl.estimator, full.* every update runs the ref",
        ),
        ({"evaluation.temperature": 0, "evaluation.min_p": 0.1}, "evaluation.min_p = 0.1: evaluation.temperature = 0"),
        ({"evaluation.temperature": 0.0, "evaluation.top_k": 3}, "evaluation.top_k = 3: evaluation.temperature = 0 "),
    ],
)
def test_what_cannot_be_sampled_or_trained_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    assert re.search(words, refusal({"sampling.max_new_tokens": 64} | changes))


def test_what_does_not_train_is_allowed_in_an_evaluation() -> None:
    found = plan({"evaluation.repetition_penalty": 1.2, "sampling.max_new_tokens": 9}).recipe.evaluation_sampling
    assert found == Sampling(repetition_penalty=1.2, max_new_tokens=9)


def test_an_evaluations_completions_end_where_training_s_do_unless_it_says_otherwise() -> None:
    ends = {"sampling.stop": ["="], "sampling.stop_ids": [3], "sampling.max_new_tokens": 9}
    same = plan(ends).recipe.evaluation_sampling
    assert (same.stop, same.stop_ids, same.max_new_tokens) == (("=",), (3,), 9)
    own = plan({**ends, "evaluation.stop": [], "evaluation.min_p": 0.1})
    assert own.recipe.evaluation_sampling == Sampling(stop_ids=(3,), min_p=0.1, max_new_tokens=9)


def test_a_resolved_recipe_says_the_ends_and_biases() -> None:
    """That it reads back is a law of test_recipe.py."""
    found = plan({"sampling.stop": ["\n", "="], "sampling.logit_bias": {"5": -1.5, "12": 2.0}})
    assert found.recipe.sampling.logit_bias == {5: -1.5, 12: 2.0}
    assert resolved_recipe(found)["evaluation"]["stop"] == ("\n", "=")


def test_a_bias_is_set_from_the_command_line_by_its_id() -> None:
    key, value = recipe_files.assignment("sampling.logit_bias.198=-5")
    assert recipe.load("quickstart", {key: value}).sampling.logit_bias == {198: -5.0}


def test_the_finding_on_held_out_results_compares_every_key_of_the_two_samplings() -> None:
    assert {*SAMPLED_BY} == {*Sampling.model_fields} - {"max_new_tokens"}
    assert {*Distribution.model_fields} < {*Sampling.model_fields}


def test_an_engine_that_lacks_an_option_refuses_it_by_name(policy: Policy) -> None:
    few = SimpleNamespace(options=frozenset({"temperature", "max_new_tokens"}), generate=lambda requests, sampling: [])
    require_sampling(few, policy, Sampling(temperature=0.5), "sampling")  # type: ignore[arg-type]
    for key, value in (("min_p", 0.1), ("stop", ("=",)), ("logit_bias", {3: 1.0}), ("top_p", 0.5)):
        with pytest.raises(
            UsageError, match=rf"^evaluation.{key} = .*: the run's engine does not have it; take it out"
        ):
            require_sampling(few, policy, Sampling(**{key: value}), "evaluation")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (Sampling(stop=("=", "x")), "sampling.stop = 'x': the model's tokenizer cannot read it"),
        (Sampling(stop=("<eos>",)), r"sampling.stop = .<eos>.: no text .*; it is special: set stop_ids = \[1\]"),
        (Sampling(stop_ids=(99,)), "sampling.stop_ids: 99: the model's ids are 0 to 14"),
        (Sampling(logit_bias={15: 1.0}), "sampling.logit_bias: 15: the model's ids are 0 to 14"),
    ],
)  # fmt: skip
def test_what_the_policy_cannot_follow_is_refused_before_anything_is_sampled(
    policy: Policy, sampling: Sampling, words: str
) -> None:
    engine = make_engine(policy=policy, settings=EngineSettings())
    with pytest.raises(UsageError, match=f"^{words}"):
        require_sampling(engine, policy, sampling, "sampling")
    require_sampling(engine, policy, Sampling(stop=("=",), stop_ids=(3,), logit_bias={14: 1.0}), "sampling")
