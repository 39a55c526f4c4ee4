"""Laws of the reward model: the Bradley-Terry loss, the score's place in a row, pairs, calibration."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from groupwise.core.errors import UsageError
from groupwise.core.records import Completion, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.models.load import digest, save_policy
from groupwise.models.scalar_heads import load_reward_model, reward_model_of
from groupwise.training.start.cached_reward_model import (
    calibration,
    calibration_error,
    flip,
    ranked,
    report_on,
    split_by_prompt,
)
from groupwise.training.start.reward_model import Comparison, PreferenceSettings, bradley_terry, gradients, rate
from tests.tiny_models import causal

KINDS: dict[str, dict[str, object]] = {
    "llama": {},
    "gpt2": {},
    "qwen3_moe": {"moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2},
}


def rows(count: int, seed: int = 0, end: int = 1) -> tuple[list, list]:
    """Prompts and completions of uneven lengths that end in the end id."""
    g = torch.Generator().manual_seed(seed)

    def row(low: int, high: int) -> tuple[int, ...]:
        return tuple(torch.randint(2, 15, (int(torch.randint(low, high, (), generator=g)),), generator=g).tolist())

    return [row(2, 6) for _ in range(count)], [(*row(1, 9), end) for _ in range(count)]


def comparisons(count: int, seed: int = 0) -> list[Comparison]:
    prompts, chosen = rows(count, seed)
    return [Comparison(p, c, r) for p, c, r in zip(prompts, chosen, rows(count, seed + 1)[1], strict=True)]


@pytest.fixture
def scorer(policy):
    """A reward model with a head that is not zero."""
    model = reward_model_of(policy)
    with torch.no_grad():
        model.model.score.weight.copy_(torch.linspace(-1, 1, model.model.score.weight.numel())[None])
    return model


def test_the_loss_is_its_closed_form():
    chosen = torch.tensor([0.0, 2.0, -1.0], dtype=torch.float64)
    rejected = torch.tensor([0.0, 0.5, 3.0], dtype=torch.float64)
    expected = sum(math.log1p(math.exp(-gap)) for gap in (0.0, 1.5, -4.0)) / 3
    assert bradley_terry(chosen, rejected).item() == pytest.approx(expected, abs=1e-15)


def test_its_gradient_is_minus_the_chance_of_the_other_order():
    chosen, rejected = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    chosen.requires_grad_(), rejected.requires_grad_()
    bradley_terry(chosen, rejected).backward()
    expected = -(rejected - chosen).detach().sigmoid() / 5
    assert chosen.grad is not None
    assert rejected.grad is not None
    torch.testing.assert_close(chosen.grad, expected, atol=1e-15, rtol=0)
    torch.testing.assert_close(rejected.grad, -expected, atol=1e-15, rtol=0)
    assert torch.autograd.gradcheck(bradley_terry, (chosen, rejected))


def test_a_constant_changes_nothing_and_large_gaps_stay_finite():
    chosen = torch.tensor([1000.0, -1000.0, 0.25], dtype=torch.float64, requires_grad=True)
    rejected = torch.zeros(3, dtype=torch.float64)
    loss = bradley_terry(chosen, rejected)
    loss.backward()
    assert loss.item() == pytest.approx((0 + 1000 + math.log1p(math.exp(-0.25))) / 3)
    assert chosen.grad is not None
    assert chosen.grad.isfinite().all()
    assert bradley_terry(chosen + 7, rejected + 7).item() == loss.item()


@pytest.mark.parametrize("shapes", [((0,), (0,)), ((2,), (3,)), ((2, 1), (2, 1))])
def test_scores_that_are_not_pairs_are_refused(shapes):
    with pytest.raises(ValueError, match="two equal rows"):
        bradley_terry(torch.zeros(shapes[0]), torch.zeros(shapes[1]))


def test_the_gradient_does_not_depend_on_the_split(scorer):
    scorer.model.double()
    batch = comparisons(9)
    found = []
    for budget in (10**6, 60, 1):
        scorer.model.zero_grad(set_to_none=True)
        loss = gradients(scorer, batch, PreferenceSettings(tokens_per_microbatch=budget, center=0.3))
        found.append((loss, torch.cat([p.grad.flatten() for p in scorer.model.parameters()])))
    assert found[0][1].norm() > 1e-3
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-12)
        torch.testing.assert_close(gradient, found[0][1], atol=1e-12, rtol=0)


def test_the_centre_is_the_mean_square_of_the_sums(scorer):
    scorer.model.double()
    batch = comparisons(6)
    with torch.no_grad():
        chosen = scorer.forward([(*b.prompt, *b.chosen) for b in batch])
        rejected = scorer.forward([(*b.prompt, *b.rejected) for b in batch])
    expected = bradley_terry(chosen, rejected) + 0.3 * ((chosen + rejected) ** 2).mean()
    assert gradients(scorer, batch, PreferenceSettings(center=0.3)) == pytest.approx(expected.item(), abs=1e-12)


def test_a_score_does_not_depend_on_order_budget_or_company(scorer):
    prompts, completions = rows(20)
    whole = scorer.scores(prompts, completions)
    assert max(whole) - min(whole) > 0.1
    alone = [scorer.scores([p], [c])[0] for p, c in zip(prompts, completions, strict=True)]
    small = replace(scorer, tokens_per_batch=30).scores(prompts[::-1], completions[::-1])[::-1]
    assert whole == pytest.approx(alone, abs=1e-5)
    assert whole == pytest.approx(small, abs=1e-5)
    assert whole == scorer.scores(prompts, completions)


def test_a_score_reads_the_last_token_and_nothing_of_the_padding(scorer):
    ids = torch.tensor([[5, 6, 7, 1, 0, 0], [5, 6, 7, 1, 9, 3]])
    from groupwise.models.scalar_heads import last_scores

    with torch.no_grad():
        four = last_scores(scorer.model, ids, torch.tensor([4, 4]))
        six = last_scores(scorer.model, ids, torch.tensor([4, 6]))
    assert four[0].item() == pytest.approx(four[1].item(), abs=1e-6)
    assert abs(six[1] - four[1]) > 1e-3


def test_a_saved_model_scores_the_same_in_transformers(scorer, tmp_path):
    prompts, completions = rows(6)
    told = scorer.scores(prompts, completions)
    save_policy(scorer.model, scorer.tokenizer, tmp_path)
    assert load_reward_model(tmp_path).scores(prompts, completions) == told
    whole = [[*p, *c] for p, c in zip(prompts, completions, strict=True)]
    width = max(map(len, whole))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in whole])
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        logits = classifier(input_ids=ids, attention_mask=(ids != 0).long()).logits
    assert logits.shape == (6, 1)
    assert logits[:, 0].tolist() == pytest.approx(told, abs=1e-5)


def test_where_answers_end_in_the_pad_id_transformers_scores_the_same_row_by_row(policy, tmp_path):
    policy.tokenizer.pad_token = policy.tokenizer.eos_token
    model = reward_model_of(replace(policy, pad=policy.tokenizer.pad_token_id))
    torch.nn.init.ones_(model.model.score.weight)
    save_policy(model.model, model.tokenizer, tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    prompts, completions = rows(4)
    with torch.no_grad():
        single = [
            float(classifier(input_ids=torch.tensor([[*p, *c]])).logits)
            for p, c in zip(prompts, completions, strict=True)
        ]
    assert single == pytest.approx(model.scores(prompts, completions), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_policies_keep_their_backbone(kind, policy):
    torch.manual_seed(0)
    model_of_kind = causal(kind, **KINDS[kind])
    model = reward_model_of(replace(policy, model=model_of_kind))
    prompts, completions = rows(3)
    assert model.scores(prompts, completions) == [0.0, 0.0, 0.0]
    torch.nn.init.ones_(model.model.score.weight)
    ids = torch.tensor([[*prompts[0], *completions[0]]])
    with torch.no_grad():
        expected = model_of_kind.base_model(input_ids=ids).last_hidden_state[0, -1].sum().item()
    assert model.scores(prompts[:1], completions[:1]) == pytest.approx([expected], abs=1e-4)


def test_the_policy_is_neither_changed_nor_shared(policy):
    before = digest(policy.model)
    config = copy.deepcopy(policy.model.config.to_dict())
    model = reward_model_of(policy)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.add_(1.0)
    assert digest(policy.model) == before
    assert policy.model.config.to_dict() == config


def test_a_kind_without_a_classifier_is_refused(policy):
    with pytest.raises(UsageError, match="CodeGenForCausalLM: no reward model"):
        reward_model_of(replace(policy, model=causal("codegen", rotary_dim=4)))


@pytest.mark.parametrize("lengths", [(0, 0), (200, 57)])
def test_rows_that_do_not_fit_are_refused(scorer, lengths):
    with pytest.raises(ValueError, match="row 1 has"):
        scorer.scores([(5,), (5,) * lengths[0]], [(6,), (6,) * lengths[1]])


def group(*scores: float) -> Group:
    made = tuple(Completion.of_one_turn((i + 2,), (0.0,), "stop", 0, score=s) for i, s in enumerate(scores))
    return Group(Prompt(Sample("k", "p", "a"), (9,)), made)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((1.0, 0.0, 0.0, 0.0), [(0, 3)]),
        ((0.0, 1.0, 1.0, 0.0), [(1, 3), (2, 0)]),
        ((1.0, 1.0, 1.0), []),
        ((0.5, 0.2, 0.9), [(2, 1)]),
        ((math.nan, 1.0, 0.0), [(1, 2)]),
    ],
)
def test_a_group_gives_pairs_of_the_better_and_the_worse_each_completion_once(scores, expected):
    found = ranked(group(*scores))
    assert [(p.chosen[0] - 2, p.rejected[0] - 2) for p in found] == expected
    assert all(p.prompt == (9,) and p.right for p in found)


def test_noise_swaps_its_share_of_labels_and_says_so():
    pairs = [replace(p, right=True) for p in comparisons(4000)]
    noisy = flip(pairs, 0.25, seed=1)
    wrong = sum(n == p.swapped() for n, p in zip(noisy, pairs, strict=True))
    assert abs(wrong / 4000 - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 4000)
    assert wrong == sum(not n.right for n in noisy) == 4000 - sum(n == p for n, p in zip(noisy, pairs, strict=True))
    assert flip(pairs, 0.25, seed=1) == noisy != flip(pairs, 0.25, seed=2)
    assert flip(pairs, 0.0, seed=1) == pairs


def test_no_prompt_has_pairs_on_both_sides():
    pairs = [replace(p, prompt=(i % 40, 3)) for i, p in enumerate(comparisons(100))]
    train, held = split_by_prompt(pairs, 20, seed=0)
    assert not {p.prompt for p in train} & {p.prompt for p in held}
    assert sorted(map(repr, train + held)) == sorted(map(repr, pairs))
    assert 20 <= len(held) < 20 + 3
    assert split_by_prompt(pairs, 20, seed=0) == (train, held) != split_by_prompt(pairs, 20, seed=1)


def test_pairs_of_one_prompt_cannot_be_split():
    with pytest.raises(UsageError, match="pairs of 1 prompts cannot be split"):
        split_by_prompt([replace(p, prompt=(3,)) for p in comparisons(5)], 2, seed=0)


def test_a_calibrated_model_has_no_calibration_error_and_an_overconfident_one_its_gap():
    # 100 pairs predicted at 0.75 of which 75 come out so; the other 25 are seen as -gap.
    gap = math.log(3) * torch.tensor([1.0] * 75 + [-1.0] * 25, dtype=torch.float64)
    assert calibration_error(calibration(gap)) == pytest.approx(0, abs=1e-12)
    sure = math.log(0.95 / 0.05) * gap.sign()
    assert calibration_error(calibration(sure)) == pytest.approx(0.2, abs=1e-12)
    bins = calibration(sure)
    assert [b.count for b in bins] == [100, 0, 0, 0, 0, 0, 0, 0, 0, 100]
    assert (bins[-1].predicted, bins[-1].observed) == pytest.approx((0.95, 0.75))
    assert bins[5].predicted is bins[5].observed is None


def test_calibration_looks_both_ways_and_counts_every_view():
    gap = 3 * torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gap[0], gap[1] = 800.0, -800.0  # predictions of exactly 1 and 0 have a bin, too
    bins = calibration(gap)
    assert sum(b.count for b in bins) == 1000
    assert [b.count for b in bins] == [b.count for b in reversed(bins)]
    for b, other in zip(bins, reversed(bins), strict=True):
        assert b.low <= b.predicted <= b.high
        assert b.predicted == pytest.approx(1 - other.predicted)
        assert b.observed == pytest.approx(1 - other.observed)


def test_the_true_ranking_is_scored_apart_from_the_labels(scorer):
    pairs = comparisons(40)
    chosen = scorer.scores([p.prompt for p in pairs], [p.chosen for p in pairs])
    rejected = scorer.scores([p.prompt for p in pairs], [p.rejected for p in pairs])
    # The truth is the model's own ranking, and every fourth label is wrong.
    true = [p if c > r else p.swapped() for p, c, r in zip(pairs, chosen, rejected, strict=True)]
    labelled = [replace(p, right=True) if i % 4 else replace(p, right=True).swapped() for i, p in enumerate(true)]
    report = report_on(scorer, labelled, ceiling=0.8)
    assert (report.accuracy, report.accuracy_true, report.labels_right) == (0.75, 1.0, 0.75)
    assert report.share_of_ceiling == pytest.approx(0.75 / 0.8)
    unknown = report_on(scorer, true, ceiling=None)
    assert (unknown.accuracy, unknown.accuracy_true, unknown.share_of_ceiling) == (1.0, None, None)


def test_a_model_that_knows_nothing_is_right_half_the_time(policy):
    report = report_on(reward_model_of(policy), comparisons(10), ceiling=None)
    assert report.accuracy == 0.5
    assert report.loss == pytest.approx(math.log(2))


@pytest.mark.parametrize("steps", [1, 2, 9, 100])
def test_the_rate_rises_to_one_and_falls_and_never_reaches_zero(steps):
    rates = [rate(step, steps) for step in range(1, steps + 1)]
    top = rates.index(1.0)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert min(rates) > 0
