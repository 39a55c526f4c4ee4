"""Spans: which tokens of a completion the policy sampled, and that nothing else trains, votes or is counted."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import groupwise
from groupwise.algorithms.parts.shaping import at_last_token
from groupwise.core.collate import collate
from groupwise.core.files.dataclass_json import from_json, to_json
from groupwise.core.records import Completion, Group, Prompt, Span, Support
from groupwise.core.samples import Sample
from groupwise.core.stream import StreamState
from groupwise.models.forward.logprobs import sequence_logprobs

PROMPT = Prompt(Sample("s", "p", "a"), (2, 3, 4))
TOKENS, LOGP = (9, 8, 7, 6, 5), (-1.0, -2.0, 0.0, 0.0, -3.0)
#: Two tokens of version 4, two of an environment, one of version 3.
SPANS = (Span(0, 2, True, 4), Span(2, 4, False, 4), Span(4, 5, True, 3))
OWN = [False] * 3 + [True, True, False, False, True]


def answered(score: float = 1.0) -> Completion:
    """A completion of two turns, with an environment's answer between them."""
    support = Support(torch.arange(6, dtype=torch.int32), torch.tensor([0, 2, 4, 6]))
    routes = torch.arange(7 * 2 * 2, dtype=torch.int16).reshape(7, 2, 2)
    return Completion(TOKENS, LOGP, "stop", SPANS, support=support, routes=routes, score=score)


def test_one_span_is_a_completion_of_one_turn_bit_for_bit():
    logp = (-1.0, -2.0, -0.5, -0.25, -3.0)
    spanned = Completion(TOKENS, logp, "stop", (Span(0, 5, True, 2),), score=1.0)
    assert Completion.of_one_turn(TOKENS, logp, "stop", 2, score=1.0) == spanned
    assert (spanned.length, spanned.version) == (5, 2)
    batch = collate([Group(PROMPT, (spanned,))], pad=0)
    assert batch.tokens.tolist() == [[*PROMPT.tokens, *TOKENS]]
    assert batch.mask.tolist() == [[False] * 3 + [True] * 5]
    assert torch.equal(batch.logp_engine, torch.tensor([[0.0] * 3 + list(logp)]))
    assert (batch.version.tolist(), batch.length.tolist()) == ([2], [8])


def test_two_versions_without_a_hole_differ_from_one_in_their_age_alone():
    one = Completion.of_one_turn(TOKENS, LOGP, "stop", 3, score=1.0)
    two = dataclasses.replace(one, spans=(Span(0, 2, True, 3), Span(2, 5, True, 5)))
    for name, column in vars(collate([Group(PROMPT, (one,))], pad=0)).items():
        other = getattr(collate([Group(PROMPT, (two,))], pad=0), name)
        if name == "token_version":
            assert (column.tolist(), other.tolist()) == ([[-1, -1, -1, 3, 3, 3, 3, 3]], [[-1, -1, -1, 3, 3, 5, 5, 5]])
            continue
        assert torch.equal(column, other) if isinstance(column, torch.Tensor) else column == other
    assert (two.version, two.length) == (3, 5)


def test_an_environments_tokens_are_in_the_row_and_outside_of_everything_else():
    done = answered()
    assert (done.length, done.version) == (3, 3)
    batch = collate([Group(PROMPT, (done, answered(0.0)))], pad=0)
    assert batch.tokens[0].tolist() == [*PROMPT.tokens, *TOKENS]
    assert batch.mask.tolist() == [OWN, OWN]
    assert (batch.length.tolist(), batch.version.tolist()) == ([8, 8], [3, 3])
    assert at_last_token(torch.tensor([2.0, 3.0]), batch.mask).nonzero().tolist() == [[0, 7], [1, 7]]
    algorithm = groupwise.algorithm("grpo", {"kl.beta": 0.0})
    credited = algorithm.weigh(algorithm.credit(batch))
    hole = torch.tensor(OWN).logical_not()
    for column in (credited.need("advantage"), credited.need("weight"), credited.need("reward")):
        assert (column[:, hole] == 0).all()
    assert (credited.need("advantage")[:, ~hole] != 0).all()
    assert credited.need("weight")[0, ~hole].tolist() == pytest.approx([1 / 6] * 3)


def test_the_support_has_a_set_for_each_sampled_token_alone():
    batch = collate([Group(PROMPT, (answered(),))], pad=0)
    batch = dataclasses.replace(batch, tokens=torch.tensor([[2, 3, 4, 0, 2, 7, 6, 4]]))  # each token is in its set
    embedding, head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
    with torch.no_grad():
        logp, _ = sequence_logprobs(_Bigram(embedding), head, batch.tokens, batch.mask, 1.0, batch.support)
        logits = head(embedding(batch.tokens[0]))
    sets = {3: [0, 1], 4: [2, 3], 7: [4, 5]}
    for t in range(8):
        expected = logits[t - 1, batch.tokens[0, t]] - logits[t - 1, sets[t]].logsumexp(-1) if t in sets else 0.0
        assert float(logp[0, t]) == pytest.approx(float(expected), abs=1e-6)


class _Bigram(torch.nn.Module):
    """A backbone that sees the last token alone."""

    def __init__(self, embedding: torch.nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, input_ids: torch.Tensor, **_: object) -> object:
        return type("Output", (), {"last_hidden_state": self.embedding(input_ids)})


def test_a_checkpoint_brings_spans_back_bit_for_bit():
    state = StreamState(7, (Group(PROMPT, (answered(), answered(float("nan")))),), 0.3, {"sums": 2})
    again = from_json(StreamState, json.loads(json.dumps(to_json(state))))
    assert (again.cursor, again.keep_rate, again.levels) == (7, 0.3, {"sums": 2})
    assert again.surplus[0].prompt == PROMPT
    for one, other in zip(state.surplus[0].completions, again.surplus[0].completions, strict=True):
        assert (one.tokens, one.logp_engine, one.finish, one.spans) == (
            other.tokens,
            other.logp_engine,
            other.finish,
            other.spans,
        )
        assert one.support is not None
        assert torch.equal(one.support.ids, other.support.ids)
        assert torch.equal(one.support.start, other.support.start)
        assert (other.support.ids.dtype, other.routes.dtype) == (torch.int32, torch.int16)
        assert torch.equal(one.routes, other.routes)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ((Span(0, 2, True, 0), Span(3, 5, True, 0)), "without gaps"),
        ((Span(0, 3, True, 0), Span(2, 5, True, 0)), "without gaps"),
        ((Span(2, 5, True, 0), Span(0, 2, True, 0)), "without gaps"),
        ((Span(0, 4, True, 0),), "without gaps"),
        ((Span(0, 6, True, 0), Span(6, 5, True, 0)), "without gaps"),
        ((), "without gaps"),
        ((Span(0, 2, False, 0), Span(2, 5, True, 0)), "belongs to the prompt"),
        ((Span(0, 1, True, 0), Span(1, 3, False, 0), Span(3, 5, True, 0)), "other than 0"),
    ],
    ids=["gap", "overlap", "order", "short", "back", "none", "foreign first", "foreign log-probability"],
)
def test_spans_that_do_not_say_who_wrote_each_token_are_refused(spans, message):
    with pytest.raises(ValueError, match=message):
        Completion(TOKENS, LOGP, "stop", spans)


def test_a_support_of_another_length_is_refused():
    with pytest.raises(ValueError, match="5 sampled tokens but a support of 3"):
        dataclasses.replace(answered(), spans=(Span(0, 5, True, 0),))
