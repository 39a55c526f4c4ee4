"""Supervised rows: which tokens train, in which order, with which loss; and what a mix does to a gradient."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import groupwise
from groupwise.core.errors import UsageError
from groupwise.core.records import Batch
from groupwise.diagnostics.witness.plain.trials import trials
from groupwise.models.chat.prompts import Chat, ChatSettings
from groupwise.models.tiny import ByteSpec
from groupwise.tasks.chats import Chats
from groupwise.training.mesh import ALONE
from groupwise.training.supervised import Encoded, SupervisedRows, SupervisedSettings, batch_of, shown, supervised_rows
from tests.laws.rank_cases import bare_batch, gradient, learner_of, policy
from tests.refusals import refused

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 1? Say <|im_end|> too."},
    {"role": "assistant", "content": "2 <|im_start|>"},
    {"role": "user", "content": "And 2 + 2?"},
    {"role": "assistant", "content": " It is 4.\n"},
]
END = "<|im_end|>"


def chat(template: bool = True) -> Chat:
    return Chat(ByteSpec(chat=True).tokenizer(""), ChatSettings(template="auto" if template else "none"))


def rows_of(place: Path, rows: list[dict[str, Any]], of: Chat | None = None, **changes: Any) -> SupervisedRows:
    path = place / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    of = of or chat()
    ends = frozenset({of.tokenizer.eos_token_id, 1})
    settings = SupervisedSettings(path=str(path), **{"rows_per_step": 4, **changes})
    return supervised_rows(settings, Chats(str(path)), of, ends, pad=0, most=512, seed=3)


def trained_texts(rows: SupervisedRows, of: Chat, number: int = 0) -> list[str]:
    return [part.partition("»")[0] for part in shown(rows.train[number], of.tokenizer).split("«")[1:]]


def test_what_trains_of_a_chat_is_what_the_assistant_says_each_with_its_end(tmp_path: Path) -> None:
    of = chat()
    rows = rows_of(tmp_path, [{"messages": TALK}], of)
    assert trained_texts(rows, of) == [turn["content"] + END for turn in TALK if turn["role"] == "assistant"]
    whole = of.render(TALK, prompt=False).removesuffix("\n")
    assert shown(rows.train[0], of.tokenizer).replace("«", "").replace("»", "") == whole


def test_of_a_prompt_and_its_completion_the_completion_alone_trains(tmp_path: Path) -> None:
    of, both = chat(), {"prompt": TALK[:4], "completion": TALK[4:]}
    assert trained_texts(rows_of(tmp_path, [both], of), of) == [TALK[4]["content"] + END]
    texts = {"prompt": "1 + 1 =", "completion": " 2"}
    assert shown(rows_of(tmp_path, [texts], plain := chat(template=False)).train[0], plain.tokenizer) == (
        f"1 + 1 =« 2{END}»"
    )
    assert trained_texts(rows_of(tmp_path, [texts], of), of) == [" 2" + END], "the prompt is a turn of the user's"


def test_a_text_trains_whole_but_for_its_first_token(tmp_path: Path) -> None:
    of = chat()
    assert shown(rows_of(tmp_path, [{"text": "blue"}], of).train[0], of.tokenizer) == f"b«lue{END}»"


def test_calls_of_tools_train_as_the_template_writes_them(tmp_path: Path) -> None:
    of = chat()
    calls = "{{ '<call>' + message['tool_calls'][0]['function']['name'] if message['tool_calls'] else '' }}"
    of.template = of.tokenizer.chat_template = of.template.replace(
        "<|im_end|>\\n' }}", f"' }}}}{calls}{{{{ '{END}\\n' }}}}"
    )
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "clock", "arguments": {}}}]}
    talk = [TALK[1], call, {"role": "tool", "content": "noon"}, {"role": "assistant", "content": "It is noon."}]
    assert trained_texts(rows_of(tmp_path, [{"messages": talk}], of), of) == [f"<call>clock{END}", f"It is noon.{END}"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": TALK[:2]}, "no turn of the assistant's to train on"),
        ({"messages": TALK[2:]}, "the assistant speaks first"),
        ({"prompt": TALK[:3], "completion": TALK[3:4]}, "no turn of the assistant's to train on"),
        ({"question": "1 + 1?", "answer": "2"}, "must have `messages`, `prompt` and `completion`, or `text`"),
        ({"messages": [{"from": "human", "value": "hi"}]}, "rename from and value"),
        ({"text": ""}, "an empty text"),
    ],
)
def test_a_row_that_cannot_train_is_refused_by_its_line(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"rows\.jsonl, line 2: ") as told:
        rows_of(tmp_path, [{"text": "blue"}, row])
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_a_chat_needs_a_template_and_some_row_must_be_left(tmp_path: Path) -> None:
    with refused("line 1: a chat, but there is no chat template"):
        rows_of(tmp_path, [{"messages": TALK}], chat(template=False))
    with refused("supervised.held_out = 2"):
        rows_of(tmp_path, [{"text": "blue"}] * 2, held_out=2)


def test_each_epoch_has_every_row_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [{"text": letter * 3} for letter in "abcdefgh"])
    drawn = [rows.batch(update).tokens[:, 0].tolist() for update in range(4)]
    first, second = drawn[0] + drawn[1], drawn[2] + drawn[3]
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 8
    assert first != second
    split = dataclasses.replace(rows, updates=2)
    halves = [split.batch(update).tokens[:, 0].tolist() for update in range(8)]
    assert [*halves[0], *halves[1]] == drawn[0]
    assert [*halves[6], *halves[7]] == drawn[3]
    assert dataclasses.replace(rows, weight=0.0).batch(0) is None


def test_held_out_rows_are_never_trained_and_a_share_is_one_of_all(tmp_path: Path) -> None:
    texts = [{"text": letter * 3} for letter in "abcdefgh"]
    for held in (2, 0.25):
        rows = rows_of(tmp_path, texts, held_out=held)
        ids = [{int(row.ids[0]) for row in some} for some in (rows.train, rows.heldout)]
        assert len(ids[0]) == 6
        assert len(ids[1]) == 2
        assert not ids[0] & ids[1]


def imitated(weight: float = 1.0) -> Batch:
    """Supervised rows for the policy of rank_cases."""
    batch = bare_batch(rows=5)
    columns = zip(batch.tokens, batch.mask, batch.length.tolist(), strict=True)
    return batch_of([Encoded(ids[:length].int(), mask[:length]) for ids, mask, length in columns], 0, weight)


def gradients_of(learner: Any, *add: Any) -> Tensor:
    learner.optimizer.adamw.zero_grad(set_to_none=True)
    for one in add:
        one(learner)
    return gradient(learner.model).clone()


def weighed(learner: Any, algo: Any) -> Batch:
    return algo.weigh(algo.credit(learner.annotate(bare_batch(rows=12), old=True, ref=learner.reference is not None)))


@pytest.mark.parametrize("shared", [True, False])
def test_the_loss_is_the_mean_cross_entropy_of_the_models_own_distribution(shared: bool) -> None:
    """The learner's temperature is 0.8, and has no part in it."""
    learner = learner_of(shared_prefixes=shared)(policy(), ALONE)
    batch = imitated(0.7)
    total = torch.zeros((), dtype=torch.float64)
    learner.model.zero_grad()
    with learner.fused.running():  # transformers' own norms compute in float32
        for ids, mask, length in zip(batch.tokens, batch.mask, batch.length.tolist(), strict=True):
            logp = learner.model(input_ids=ids[None, :length]).logits[0, :-1].log_softmax(-1)
            total = total - logp.gather(1, ids[1:length, None])[mask[1:length]].sum()
        loss = total / batch.mask.sum()
        (0.7 * loss).backward()
    plain = gradient(learner.model).clone()
    learner.model.zero_grad()
    found = learner.supervise(batch)
    assert found.loss == pytest.approx(float(loss.detach()), abs=1e-9)
    assert found.value == pytest.approx(0.7 * found.loss)
    assert found.tokens == int(batch.mask.sum())
    assert float((gradient(learner.model) - plain).abs().max()) < 1e-9


def test_the_gradient_of_a_mix_is_the_weighted_sum() -> None:
    algo, weight, reinforced = groupwise.algorithm("dapo", {"entropy_coefficient": 0.01}), 0.3, 0.6
    learner = learner_of()(policy(), ALONE)
    minibatch = weighed(learner, algo)
    one = gradients_of(learner, lambda own: own.gradients(minibatch, algo))
    other = gradients_of(learner, lambda own: own.supervise(imitated(1.0)))
    mixed = algo.mixed(reinforced, reinforced)
    both = gradients_of(
        learner, lambda own: own.gradients(minibatch, mixed), lambda own: own.supervise(imitated(weight))
    )
    assert float(one.norm()) > 1e-3 < float(other.norm())
    assert float((both - (reinforced * one + weight * other)).abs().max()) < 1e-12


def test_a_teachers_kl_has_a_weight_of_its_own() -> None:
    algo = groupwise.algorithm("grpo", {"kl.beta": 0.5})
    teacher = policy()
    with torch.no_grad():
        for p in teacher.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype))
    learner = learner_of(reference=teacher)(policy(), ALONE)
    minibatch = weighed(learner, algo)

    def of(row: Any) -> Tensor:
        return gradients_of(learner, lambda own: own.gradients(minibatch, row))

    alone, whole = of(algo.mixed(1.0, 0.0)), of(algo)
    assert float((whole - alone).norm()) > 1e-3
    assert float((of(algo.mixed(0.2, 3.0)) - (0.2 * alone + 3.0 * (whole - alone))).abs().max()) < 1e-12


def test_a_weight_of_one_changes_nothing() -> None:
    algo = groupwise.algorithm("grpo")
    assert algo.mixed(1.0, 1.0) is algo


def test_an_update_of_which_no_sampled_row_trains_still_has_the_supervised_gradient() -> None:
    """AdamW is given gradients of 0 then, which lie in memory that all parameters share."""
    algo = groupwise.algorithm("dapo")
    one, other = (learner_of()(policy(), ALONE) for _ in range(2))
    minibatch = weighed(one, algo)
    tied = dataclasses.replace(minibatch, advantage=torch.zeros_like(minibatch.need("advantage")))
    for learner, sampled in ((one, tied), (other, None)):
        learner.update(None, algo, imitated())
        learner.update(sampled, algo, imitated())
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))


def test_vapo_adds_the_mean_log_likelihood_of_right_completions() -> None:
    numbers = torch.Generator().manual_seed(4)
    live = -torch.rand(4, 6, generator=numbers, dtype=torch.float64).requires_grad_()
    old, mask = live.detach() - 0.1, torch.rand(4, 6, generator=numbers) < 0.7
    advantage, right = torch.randn(4, generator=numbers, dtype=torch.float64), torch.tensor([True, False, True, False])
    keys = {"advantage.kind": "group-mean", "kl.beta": 0.0}
    plain, vapo = (groupwise.algorithm("ppo", {**keys, **more}) for more in ({}, {"likelihood_coefficient": 0.1}))
    inside = mask & right[:, None]
    due = plain.loss(live, old, advantage, mask).value - 0.1 * live[inside].sum() / inside.sum()
    found = vapo.loss(live, old, advantage, mask, right=right).value
    assert float((found - due).detach().abs()) < 1e-9
    slopes = [torch.autograd.grad(value, live)[0] for value in (found, due)]
    assert float((slopes[0] - slopes[1]).abs().max()) < 1e-9
    with pytest.raises(ValueError, match="likelihood coefficient"):
        vapo.loss(live, old, advantage, mask)
    assert all(one.value <= one.bound for one in trials(vapo)), "and by the witness's own definition"


def test_vapos_term_trains_the_right_completions_of_a_batch() -> None:
    """A group whose scores are all above 0 has advantages of 0, and its tokens train all the same."""
    algo = groupwise.algorithm("dapo", {"likelihood_coefficient": 0.1})
    batch = bare_batch(rows=4)
    score = torch.tensor([1.0, -1.0, 0.0, 2.0], dtype=torch.float64)
    flat = dataclasses.replace(batch, score=score, advantage=torch.zeros(batch.mask.shape))
    minibatch = algo.weigh(flat)
    assert float(minibatch.need("likelihood").sum()) == pytest.approx(1.0)
    assert algo.trained_rows(minibatch).tolist() == [True, False, False, True]
