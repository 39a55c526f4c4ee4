"""A sound step has no disagreement, whatever its row; a column that is not its definition's has one that names it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.advantage import Advantage
from groupwise.algorithms.settings import algorithm
from groupwise.core.records import Batch, Completion, Group, Span
from groupwise.diagnostics.witness.reading import Unmeasured
from groupwise.health.checks import CREDIT_BY_DEFINITION, GROUPS_AS_SAMPLED, TRAINS_WHAT_WAS_SAID
from tests.diagnostics.witness.made import Made, disagreements, groups, result_of, said, step

ROWS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in ("ppo", "reinforce", "rloo", "reinforce++", "reinforce++-baseline", "grpo")},
    **{name: (name, {}) for name in ("dr-grpo", "gspo")},
    "cispo": ("cispo", {"filter.kind": "none"}),
    "dapo": ("dapo", {"shaping.limit": 5, "filter.kind": "none", "aggregate.kind": "token-sum"}),
    "masked": ("grpo", {"filter.mask_truncated": True}),
    "kl in the reward": ("grpo", {"kl.place": "reward", "kl.estimator": "k2"}),
    "td": ("ppo", {"advantage.kind": "td"}),
    "monte-carlo": ("ppo", {"advantage.kind": "monte-carlo", "advantage.gamma": 0.9}),
}
OF_TURNS: dict[str, tuple[str, dict[str, object]]] = {
    "grpo": ("grpo", {}),
    "grpo-process": ("grpo-process", {}),
    "turn-to-go": ("grpo", {"advantage.kind": "turn-to-go", "advantage.gamma": 0.9}),
    "gigpo": ("grpo", {"advantage.kind": "gigpo"}),
    "gigpo without deviation": ("grpo", {"advantage.kind": "gigpo", "advantage.deviation": False}),
    "gae by turn": ("ppo", {"advantage.level": "turn", "advantage.gamma": 0.9}),
    "outcome and steps": ("grpo", {"shaping.step_scale": 0.5}),
}
WEIGHTS = {"task": 1.0, "tidy": 0.25}


def combined(those: tuple[Group, ...]) -> tuple[Group, ...]:
    """The same groups with the weighted sum of two rewards."""

    def one(c: Completion) -> Completion:
        votes = [WEIGHTS[name] * score for name, score in c.reward_scores]
        return replace(c, combined=math.fsum(votes) if votes else math.nan)

    return tuple(replace(group, completions=tuple(map(one, group.completions))) for group in those)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ROWS)
def test_a_sound_step_has_no_disagreement(name: str, seed: int) -> None:
    row = algorithm(*ROWS[name])
    made = step(row, groups(seed))
    assert disagreements(row, made) == {}
    assert [one for _, one in said(row, made) if isinstance(one, Unmeasured)] == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", OF_TURNS)
def test_a_sound_step_of_episodes_has_no_disagreement(name: str, seed: int) -> None:
    row = algorithm(*OF_TURNS[name])
    made = step(row, groups(seed, with_turns=True))
    assert disagreements(row, made) == {}
    assert [one for _, one in said(row, made) if isinstance(one, Unmeasured)] == []


@pytest.mark.parametrize("each", [False, True])
def test_a_sound_step_of_several_rewards_has_no_disagreement(each: bool) -> None:
    row = algorithm("grpo")
    assert disagreements(row, step(row, combined(groups()), WEIGHTS, each)) == {}


def column(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Made], Made]:
    """A fault in one column of the batch, before anything trains."""

    def plant(made: Made) -> Made:
        batch = dataclasses.replace(made.seen.batch, **{name: change(getattr(made.seen.batch, name).clone())})
        return replace(made, seen=replace(made.seen, batch=batch))

    return plant


def minibatch(number: int, change: Callable[[Batch], Batch]) -> Callable[[Made], Made]:
    """A fault in one minibatch."""

    def plant(made: Made) -> Made:
        parts = [change(part) if i == number else part for i, part in enumerate(made.parts)]
        return replace(made, parts=parts)

    return plant


def one_more(x: Tensor) -> Tensor:
    x[2] += 1
    return x


def swapped(x: Tensor) -> Tensor:
    return x[torch.tensor([1, 0, *range(2, len(x))])]


def not_own(x: Tensor) -> Tensor:
    x[0, 0] = True
    return x


def heavier(part: Batch) -> Batch:
    return dataclasses.replace(part, weight=2 * part.need("weight"))


PLANTED: dict[str, tuple[str, Callable[[Made], Made]]] = {
    "group ids one row late": (GROUPS_AS_SAMPLED.name, column("group", lambda x: x.roll(1))),
    "two prompts in one group": (GROUPS_AS_SAMPLED.name, column("group", lambda x: x // 2)),
    "a group in two": (GROUPS_AS_SAMPLED.name, column("group", one_more)),
    "another's ids": (GROUPS_AS_SAMPLED.name, column("tokens", swapped)),
    "another's log-probabilities": (GROUPS_AS_SAMPLED.name, column("logp_engine", swapped)),
    "log-probabilities one column late": (GROUPS_AS_SAMPLED.name, column("logp_engine", lambda x: x.roll(1, 1))),
    "another's score": (GROUPS_AS_SAMPLED.name, column("score", lambda x: x.roll(1))),
    "a row too long": (GROUPS_AS_SAMPLED.name, column("length", one_more)),
    "a penalty with the other sign": (CREDIT_BY_DEFINITION.name, column("reward", lambda x: -x)),
    "a reward one column early": (CREDIT_BY_DEFINITION.name, column("reward", lambda x: x.roll(-1, 1))),
    "an advantage with the other sign": (CREDIT_BY_DEFINITION.name, column("advantage", lambda x: -x)),
    "another row's advantage": (CREDIT_BY_DEFINITION.name, column("advantage", lambda x: x.roll(1, 0))),
    "another row's returns": (CREDIT_BY_DEFINITION.name, column("returns", lambda x: x.roll(1, 0))),
    "an advantage that is no number": (CREDIT_BY_DEFINITION.name, column("advantage", lambda x: x * math.nan)),
    "prompts train": (TRAINS_WHAT_WAS_SAID.name, column("mask", not_own)),
    "the last token does not train": (TRAINS_WHAT_WAS_SAID.name, column("mask", lambda x: x & x.roll(-1, 1))),
    "younger than it is": (TRAINS_WHAT_WAS_SAID.name, column("version", lambda x: x + 1)),
    "one version for all tokens": (TRAINS_WHAT_WAS_SAID.name, column("token_version", lambda x: x.clamp(max=3))),
    "weights twice as large": (TRAINS_WHAT_WAS_SAID.name, minibatch(1, heavier)),
    "half a minibatch": (TRAINS_WHAT_WAS_SAID.name, minibatch(1, lambda part: part.rows(range(len(part) // 2)))),
    "rows in another order": (
        TRAINS_WHAT_WAS_SAID.name,
        minibatch(0, lambda part: dataclasses.replace(part, advantage=part.need("advantage").flip(0))),
    ),
    "one minibatch twice": (TRAINS_WHAT_WAS_SAID.name, lambda made: replace(made, parts=[made.parts[0]] * 4)),
    "one pass too few": (TRAINS_WHAT_WAS_SAID.name, lambda made: replace(made, parts=made.parts[:2])),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_in_a_step_is_found_where_it_is(name: str) -> None:
    row = algorithm("grpo")
    subject, plant = PLANTED[name]
    found = disagreements(row, plant(step(row, groups())))
    assert subject in found
    assert found[subject].about
    assert found[subject].detail


@pytest.mark.parametrize("name", OF_TURNS)
def test_tokens_that_an_environment_wrote_must_not_train(name: str) -> None:
    row = algorithm(*OF_TURNS[name])
    made = step(row, groups(with_turns=True))
    planted = column("mask", lambda x: x | made.seen.rows.inside)(made)
    assert TRAINS_WHAT_WAS_SAID.name in disagreements(row, planted)


def test_ids_of_groups_may_be_any_as_long_as_they_are_the_same_inside() -> None:
    row = algorithm("grpo")
    assert GROUPS_AS_SAMPLED.name not in disagreements(row, column("group", lambda x: 7 - 2 * x)(step(row, groups())))


def test_a_reward_with_other_weights_than_the_recipes_is_found() -> None:
    row = algorithm("grpo")
    made = step(row, combined(groups()), WEIGHTS)
    rules = replace(made.seen.rules, weights={"task": 1.0, "tidy": 0.5})
    assert GROUPS_AS_SAMPLED.name in disagreements(row, replace(made, seen=replace(made.seen, rules=rules)))


def test_each_reward_must_be_compared_by_itself_if_the_recipe_says_so() -> None:
    row = algorithm("grpo")
    together = step(row, combined(groups()), WEIGHTS)
    rules = replace(together.seen.rules, each=True)
    assert CREDIT_BY_DEFINITION.name in disagreements(row, replace(together, seen=replace(together.seen, rules=rules)))


def test_a_filter_that_keeps_what_its_definition_drops_is_found_and_so_is_one_that_loses_groups() -> None:
    row, those = algorithm("grpo", {"filter.kind": "drop-uniform"}), groups()
    made = step(row, those)  # the first two groups are all wrong
    assert GROUPS_AS_SAMPLED.name in disagreements(row, made)
    fills_up = replace(made.seen.result, fallback=2)
    assert disagreements(row, replace(made, seen=replace(made.seen, result=fills_up))) == {}
    whole = (those[2], those[2], those[3], those[3])
    without = step(row, whole)
    assert disagreements(row, without) == {}
    lost = replace(result_of(whole), generated=(*whole, groups(seed=5)[2]))
    assert GROUPS_AS_SAMPLED.name in disagreements(row, replace(without, seen=replace(without.seen, result=lost)))


def test_too_few_groups_or_completions_are_found() -> None:
    row, those = algorithm("grpo"), groups()
    assert GROUPS_AS_SAMPLED.name in disagreements(row, step(row, those[:2]))
    short = (replace(those[0], completions=those[0].completions[:2]), *those[1:])
    assert GROUPS_AS_SAMPLED.name in disagreements(row, step(row, short))


@dataclasses.dataclass(frozen=True)
class TwiceTheMean(Advantage):
    """A user's own: 2 (R_i - mean R of the group)."""

    equation = "A_i = 2 (R_i - mean_group R)"

    def __call__(self, reward, value, mask, group, step_end):
        usual, returns = algorithm("dr-grpo").advantage(reward, value, mask, group, step_end)
        return 2 * usual, returns


@dataclasses.dataclass(frozen=True)
class Drifts(TwiceTheMean):
    """A user's own that is another function each time."""

    calls: list[int] = dataclasses.field(default_factory=list, hash=False)

    def __call__(self, reward, value, mask, group, step_end):
        self.calls.append(0)
        usual, returns = super().__call__(reward, value, mask, group, step_end)
        return len(self.calls) * usual, returns


def of_a_user(part: Advantage) -> Algorithm:
    return dataclasses.replace(algorithm("grpo"), advantage=part)


def test_a_users_own_part_is_asked_again_and_one_that_is_no_function_is_not_measured() -> None:
    row = of_a_user(TwiceTheMean())
    made = step(row, groups())
    assert disagreements(row, made) == {}
    assert CREDIT_BY_DEFINITION.name in disagreements(row, column("advantage", lambda x: 2 * x)(made))
    drifts = of_a_user(part := Drifts())
    made = step(drifts, groups())
    assert disagreements(drifts, made) == {}
    assert any("when it is asked again" in one.why for _, one in said(drifts, made) if isinstance(one, Unmeasured))
    assert len(part.calls) == 1  # the run's own call: copies were asked


def test_spans_say_who_wrote_what() -> None:
    """Of ids 5 6 8 9 behind a prompt of one, of which an environment wrote 8, columns 1, 2 and 4 train."""
    those = list(groups())
    spans = (Span(0, 2, True, 3), Span(2, 3, False, 3), Span(3, 4, True, 4))
    one = Completion((5, 6, 8, 9), (-0.5, -0.5, 0.0, -0.5), "stop", spans, score=1.0)
    those[0] = replace(those[0], completions=(one, *those[0].completions[1:]))
    rows = step(algorithm("grpo"), those).seen.rows
    assert rows.mask[0].nonzero()[:, 0].tolist() == [1, 2, 4]
    assert rows.version[0].tolist()[:5] == [-1, 3, 3, -1, 4]
