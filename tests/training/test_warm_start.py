"""Laws of the warm start: it learns, only completions teach, the same seed gives the same bits; and of its Muon."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise.core.errors import UsageError
from groupwise.core.task import Demonstration
from groupwise.models.chat.prompts import Chat
from groupwise.models.moe.record import record_routes
from groupwise.models.tiny import MoeSpec, TinySpec
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.training.start.warm_start import (
    COEFFICIENTS,
    TIMES,
    Muon,
    WarmStart,
    backward,
    encoded,
    fingerprint,
    halves,
    orthogonalised,
    orthogonalised_together,
    warm_start,
    whole,
)

TASK = Arithmetic(operands=(2, 3), largest=3)
SETTINGS = WarmStart(steps=12, batch_size=16).fitted(tiny=True)
DEMONSTRATIONS = TASK.demonstrations(100, seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    TinySpec(layers=1, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=32).build(TASK.alphabet, path, seed=0)
    return path


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("moe")
    MoeSpec(layers=2, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=16).build(TASK.alphabet, path, seed=0)
    return path


def load(folder: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def train(folder: Path, seed: int, shown: list[Demonstration], settings: WarmStart = SETTINGS) -> dict[str, Tensor]:
    model, tokenizer = load(folder)
    warm_start(model, Chat(tokenizer), shown, settings.fitted(tiny=True), seed)
    return model.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_loss_falls_and_every_step_is_told(folder: Path) -> None:
    model, tokenizer = load(folder)
    losses: dict[int, float] = {}

    def on_step(step: int, steps: int, loss: float) -> None:
        losses[step] = loss

    last = warm_start(model, Chat(tokenizer), DEMONSTRATIONS, SETTINGS, 0, on_step)
    assert list(losses) == list(range(1, SETTINGS.steps + 1))
    assert last == losses[SETTINGS.steps] < 0.75 * losses[1]


@pytest.mark.parametrize("kind", ["folder", "experts"])
def test_every_weight_moves_and_a_seed_gives_the_same_bits_whatever_the_global_stream(
    kind: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    before = load(folder)[0].state_dict()
    torch.manual_seed(1)
    after = train(folder, 0, DEMONSTRATIONS)
    torch.manual_seed(2)
    assert same(after, train(folder, 0, DEMONSTRATIONS))
    assert not same(after, train(folder, 1, DEMONSTRATIONS))
    for name in before:
        still = before[name] == after[name]
        assert not (still.flatten(1).all(1) if ".experts." in name else still.all()).any(), name


def test_the_first_loss_is_the_mean_over_completion_tokens_and_the_end(folder: Path) -> None:
    model, tokenizer = load(folder)
    shown = [Demonstration("1+2=", "3"), Demonstration("1-2-1=", "-1-1=-2"), Demonstration("3-3+1=", "0+1=1")]
    nats: list[float] = []
    for d in shown:
        ids = tokenizer(d.prompt + d.completion)["input_ids"] + [tokenizer.eos_token_id]
        with torch.no_grad():
            logp = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        nats += [-float(logp[t - 1, ids[t]]) for t in range(len(d.prompt), len(ids))]
    first = warm_start(model, Chat(tokenizer), shown, WarmStart(steps=1, batch_size=3).fitted(tiny=True), seed=0)
    assert first == pytest.approx(sum(nats) / len(nats), rel=1e-5)


def test_a_tokenizer_needs_an_end_and_no_padding_and_there_must_be_demonstrations(folder: Path) -> None:
    expected = train(folder, 0, DEMONSTRATIONS)
    model, tokenizer = load(folder)
    tokenizer.pad_token = None
    warm_start(model, Chat(tokenizer), DEMONSTRATIONS, SETTINGS, 0)
    assert same(expected, model.state_dict())
    tokenizer.eos_token = None
    for shown, words in ((DEMONSTRATIONS, r"warm_start\.steps: the tokenizer has no eos_token"), ([], "demonstration")):
        with pytest.raises(UsageError, match=words):
            warm_start(model, Chat(tokenizer), shown, SETTINGS, 0)


def test_a_batch_larger_than_the_demonstrations_goes_through_them_again(folder: Path) -> None:
    assert train(folder, 0, DEMONSTRATIONS[:1], WarmStart(steps=2, batch_size=3))


def test_rates_rise_then_fall_and_never_reach_zero_before_the_end() -> None:
    settings = WarmStart(steps=100, warmup=0.1)
    rates = [settings.rate(step) for step in range(1, 101)]
    assert rates[0] == 0.1
    assert max(rates) == rates[9] == 1.0
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert min(rates) > 0


def test_the_balance_loss_is_that_of_the_tokens_without_padding(experts: Path) -> None:
    """Against plain forwards of each text by itself; the load is that of the shorter and of the longer half."""
    model, tokenizer = load(experts)
    halves = [
        [Demonstration("1+2=", "3"), Demonstration("1-2=", "-1")],
        [Demonstration("1-2-1=", "-1-1=-2"), Demonstration("3-3+1=", "0+1=1")],
    ]
    shown = [d for half in halves for d in half]
    told = {c: gradient(experts, shown, c) for c in (0.0, 0.5)}
    expected = torch.zeros(())
    for half in halves:
        texts = [tokenizer(d.prompt + d.completion, return_tensors="pt")["input_ids"] for d in half]
        ran = [model(input_ids=ids, output_router_logits=True).router_logits for ids in texts]
        for layer in range(2):
            x = torch.cat([each[layer] for each in ran])
            share = torch.bincount(x.topk(2).indices.flatten(), minlength=8) / (2 * len(x))
            expected = expected + 0.5 * 8 * (share * x.softmax(-1).mean(0)).sum() / 4  # two layers, two halves
    expected.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found = told[0.5][name] - told[0.0][name]
            torch.testing.assert_close(found, parameter.grad, rtol=1e-3, atol=2e-6, msg=name)
    assert float(model.model.layers[1].mlp.gate.weight.grad.norm()) > 1e-3


def gradient(folder: Path, shown: list[Demonstration], load_balance: float) -> dict[str, Tensor]:
    """What the first step sees."""
    model, tokenizer = load(folder)
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, n=name: found.update({n: p.grad.clone()}))
    settings = WarmStart(steps=1, batch_size=len(shown), load_balance=load_balance).fitted(tiny=True)
    warm_start(model, Chat(tokenizer), shown, settings, seed=0)
    return found


def test_the_balance_loss_evens_the_load_of_experts(experts: Path) -> None:
    ids = load(experts)[1](["1+2-3=", "3-3+1=", "0+2+2="], return_tensors="pt")["input_ids"]
    most = {}
    for coefficient in (0.0, 0.3):
        model, tokenizer = load(experts)
        settings = WarmStart(steps=40, batch_size=16, load_balance=coefficient).fitted(tiny=True)
        warm_start(model, Chat(tokenizer), DEMONSTRATIONS, settings, seed=0)
        with torch.no_grad(), record_routes(model) as routes:
            model(input_ids=ids)
        loads = [torch.bincount(routes.tensor[:, :, layer].flatten(), minlength=8) for layer in range(2)]
        most[coefficient] = int(torch.cat(loads).max())
    assert most[0.3] < most[0.0]


def test_a_dense_model_does_not_know_of_the_balance_loss(folder: Path) -> None:
    plain = train(folder, 0, DEMONSTRATIONS, SETTINGS.replace(load_balance=0.0))
    assert same(plain, train(folder, 0, DEMONSTRATIONS, SETTINGS.replace(load_balance=0.5)))


@pytest.mark.parametrize("name", ["steps", "batch_size", "demonstrations", "load_balance"])
def test_settings_that_train_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        WarmStart.model_validate({name: -1})


def test_a_fingerprint_follows_everything_that_decides_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (SETTINGS, TASK, TinySpec(), 0)
    first = fingerprint(*parts)
    assert first == fingerprint(*parts)
    assert len(first) == 16
    others = [(SETTINGS.replace(steps=13), *parts[1:]), (*parts[:3], 1), (parts[0], Arithmetic(), *parts[2:])]
    assert first not in {fingerprint(*other) for other in others}
    monkeypatch.setattr("transformers.__version__", "0")
    assert fingerprint(*parts) != first


@pytest.mark.parametrize("module", ["models.moe.settings", "models.moe.record", "training.start.warm_start"])
def test_a_fingerprint_follows_the_code_of_the_routers_loss(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, source = fingerprint(SETTINGS, TASK), inspect.getsource

    def edited(of: ModuleType) -> str:
        return source(of) + ("# edited" if of.__name__ == f"groupwise.{module}" else "")

    monkeypatch.setattr(inspect, "getsource", edited)
    assert fingerprint(SETTINGS, TASK) != first


SHAPES = [(6, 6), (4, 9), (9, 4), (1, 5)]


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_vectors_stay_and_singular_values_go_through_the_polynomial(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    a, b, c = COEFFICIENTS
    s = s / s.norm()
    for _ in range(TIMES):
        s = a * s + b * s**3 + c * s**5
    torch.testing.assert_close(orthogonalised(matrix), u @ s.diag() @ vt)
    assert 0.5 <= s.min() <= s.max() <= 1.5
    assert torch.equal(orthogonalised(0 * matrix), 0 * matrix)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_torchs_muon_but_for_rounding(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    start, gradients = torch.randn(shape, generator=generator), torch.randn(4, *shape, generator=generator)
    ours, theirs, still = (torch.nn.Parameter(start.clone()) for _ in range(3))
    one = Muon([ours, still], lr=0.1)
    other = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        one.step()
        other.step()
    difference = (ours - theirs).norm() / (theirs - start).norm()
    assert difference.item() < 0.03  # bfloat16 has 8 bits, and an update goes through 15 products
    assert torch.equal(still, start), "it has no gradient"


def test_matrices_of_one_shape_are_orthogonalised_together_as_each_by_itself() -> None:
    generator = torch.Generator().manual_seed(2)
    shapes = [*SHAPES, (4, 9), (6, 2), (6, 6), (4, 9)]
    matrices = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    for together, matrix in zip(orthogonalised_together(matrices), matrices, strict=True):
        torch.testing.assert_close(together, orthogonalised(matrix), rtol=1e-9, atol=1e-12)
    assert orthogonalised_together([]) == []


def test_a_batch_in_one_piece_has_the_gradient_of_its_halves(folder: Path) -> None:
    found = []
    for split in (halves, whole):
        model, tokenizer = load(folder)
        examples = encoded(Chat(tokenizer), list(DEMONSTRATIONS)[:16])
        assert len(split(examples)) == (2 if split is halves else 1)
        loss = backward(model.double(), split(examples), 0, 0.0)
        found.append((torch.tensor(loss), torch.cat([p.grad.flatten() for p in model.parameters()])))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
