"""Chunked log-probabilities against the plain ones, value and gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from groupwise.core.records import Support
from groupwise.models.forward.heads import LogitChange, halves
from groupwise.models.forward.logprobs import sequence_logprobs, token_logprobs


def plain(logits, targets, support=None):
    """Written out: log-softmax over the whole row or over the kept ids only, and its entropy."""
    logp, entropy = [], []
    for i, row in enumerate(logits):
        ids = torch.arange(len(row)) if support is None else torch.tensor(support[i])
        over = row[ids].log_softmax(0)
        logp.append(over[(ids == targets[i]).nonzero()[0, 0]])
        entropy.append(-(over.exp() * over).sum())
    return torch.stack(logp), torch.stack(entropy)


@pytest.mark.parametrize("chunk", [1, 7 * 11, 10**9])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("held", [0, 10**9])
@pytest.mark.parametrize("trains_entropy", [False, True])
def test_chunks_equal_the_plain_path(chunk, temperature, kept, held, trains_entropy):
    g = torch.Generator().manual_seed(0)
    head = nn.Linear(5, 11, bias=True).double()
    states = torch.randn(23, 5, dtype=torch.float64, generator=g).requires_grad_(True)
    targets = torch.randint(0, 11, (23,), generator=g)
    ids = [sorted({int(t), *torch.randperm(11, generator=g)[: int(t) % 4 + 1].tolist()}) for t in targets]
    start = torch.tensor([0, *map(len, ids)]).cumsum(0)
    support = Support(torch.tensor([i for row in ids for i in row], dtype=torch.int32), start) if kept else None
    weight = torch.randn(2, 23, dtype=torch.float64, generator=g)

    def gradients(logp, entropy):
        total = (weight[0] * logp + weight[1] * entropy).sum() if trains_entropy else weight[0] @ logp
        return torch.autograd.grad(total, [states, *head.parameters()])

    found = token_logprobs(head, states, targets, temperature, support, trains_entropy, chunk, held)[:2]
    expected = plain(head(states) / temperature, targets, ids if kept else None)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    for a, b in zip(gradients(*found), gradients(*expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_second_backward_is_refused():
    """The first has turned the probabilities that were held into slopes."""
    head, states = nn.Linear(5, 11), torch.randn(3, 5, requires_grad=True)
    logp, *_ = token_logprobs(head, states, torch.arange(3))
    logp.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logp.sum().backward()


CHANGES = {
    "none": None,
    "scale": LogitChange(scale=0.3),
    "cap": LogitChange(cap=2.0),
    "scale and cap": LogitChange(1.7, 2.0),
}


@pytest.mark.parametrize("held", [0, 10**9])
@pytest.mark.parametrize("chunk", [7 * 11, 10**9])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_added_and_barred_logits_equal_the_plain_path(held, chunk, kept, change):
    """What is added is behind the model's own change, which head and bias pass; a barred id has probability 0 and no
    gradient, entropy's included.
    """
    g = torch.Generator().manual_seed(1)
    head = nn.Linear(5, 11, bias=True).double()
    states = torch.randn(23, 5, dtype=torch.float64, generator=g).requires_grad_(True)
    added = torch.randn(11, generator=g, dtype=torch.float64)
    rows, ends = torch.rand(23, generator=g) < 0.5, torch.tensor([2, 7])
    targets = torch.randint(0, 11, (23,), generator=g)
    targets[rows & torch.isin(targets, ends)] = 4
    ids = [sorted({int(t), 2, *torch.randperm(11, generator=g)[:4].tolist()}) for t in targets]
    start = torch.tensor([0, *map(len, ids)]).cumsum(0)
    support = Support(torch.tensor([i for row in ids for i in row], dtype=torch.int32), start) if kept else None
    drawn = [
        sorted(set(row if kept else range(11)) - set(ends.tolist() if early else []))
        for row, early in zip(ids, rows.tolist(), strict=True)
    ]
    weight = torch.randn(2, 23, dtype=torch.float64, generator=g)

    def gradients(logp, entropy):
        return torch.autograd.grad((weight[0] * logp + weight[1] * entropy).sum(), [states, *head.parameters()])

    found = token_logprobs(
        head, states, targets, 0.7, support, True, chunk_elements=chunk, held_elements=held, added=added,
        barred=(rows, ends), change=change,
    )[:2]  # fmt: skip
    own = head(states) if change is None else change(head(states))
    expected = plain((own + added) / 0.7, targets, drawn)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    for a, b in zip(gradients(*found), gradients(*expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_sequence_is_what_the_whole_model_says(policy):
    """Rows of unequal length padded on the right, tokens that are not trained in between."""
    backbone, head = halves(policy.model)
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(2, 15, (4, 9), generator=g)
    mask = torch.rand(4, 9, generator=g) < 0.6
    mask[:, 0] = False
    mask[3] = False
    tokens[1, 6:], mask[1, 6:] = policy.pad, False
    with torch.no_grad():
        logp, entropy = sequence_logprobs(backbone, head, tokens, mask, 0.7)
        for i in range(4):
            length = 6 if i == 1 else 9
            over = (policy.model(tokens[i : i + 1, :length]).logits[0, :-1] / 0.7).log_softmax(-1)
            expected = over.gather(-1, tokens[i, 1:length, None])[:, 0] * mask[i, 1:length]
            torch.testing.assert_close(logp[i, 1:length], expected, rtol=0, atol=1e-5)
            torch.testing.assert_close(
                entropy[i, 1:length], -(over.exp() * over).sum(-1) * mask[i, 1:length], rtol=0, atol=1e-5
            )
    assert (logp[~mask] == 0).all()


def test_the_first_token_of_a_row_has_no_log_probability(policy):
    """Nothing comes before it: a mask that holds it all the same changes nothing else."""
    tokens, mask = torch.tensor([[3, 4, 5]]), torch.tensor([[False, True, True]])
    with torch.no_grad():
        plain, _ = sequence_logprobs(*halves(policy.model), tokens, mask)
        first, _ = sequence_logprobs(*halves(policy.model), tokens, torch.ones_like(mask))
    assert torch.equal(first, plain)


def test_a_token_without_its_support_is_refused(policy):
    backbone, head = halves(policy.model)
    tokens, mask = torch.tensor([[3, 4, 5]]), torch.tensor([[False, True, True]])
    with pytest.raises(ValueError, match="without the ids its sampling kept"):
        sequence_logprobs(backbone, head, tokens, mask, 1.0, [None])


def test_rows_of_which_no_token_is_trained_need_no_support(policy):
    """As those of a microbatch whose completions were all cut off, or could not be scored."""
    tokens, mask = torch.tensor([[3, 4, 5]]), torch.zeros(1, 3, dtype=torch.bool)
    logp, entropy = sequence_logprobs(*halves(policy.model), tokens, mask, 1.0, [None], True)
    assert torch.equal(logp, torch.zeros(1, 3))
    assert torch.equal(entropy, logp)
