"""AdamW's moments in the host's memory and in 8 bits: the updates, the bytes, and what a checkpoint holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from groupwise.core.errors import UsageError
from groupwise.training.checkpoint import read_optimizer, write_optimizer
from groupwise.training.moments import SMALLEST, HostAdamW, make_adamw, moment_bytes, require_moments, visiting_bytes

SETTINGS = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}


class Policy(nn.Module):
    """An embedding, a matrix of more than `SMALLEST` numbers, and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.matrix = nn.Embedding(90, 50), nn.Linear(50, 90)


def policy() -> Policy:
    torch.manual_seed(0)
    return Policy()


def update(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=stream)
    optimizer.step()
    optimizer.zero_grad()


def numbers(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def copied(x: Tensor, device: torch.device) -> Tensor:
    """Copy as to another device: what is not brought back is lost."""
    return x.clone()


def test_an_update_with_moments_on_the_host_is_the_update_to_the_bit():
    models = [policy(), policy()]
    usual = make_adamw(models[0], "device", **SETTINGS)
    host = HostAdamW([*models[1].parameters()], copy=copied, fused=True, **SETTINGS)
    for seed in range(3):
        update(models[0], usual, seed)
        update(models[1], host, seed)
    assert torch.equal(*map(numbers, models))
    assert {x.device.type for state in host.state.values() for x in state.values()} == {"cpu"}


@pytest.mark.parametrize(("first", "second"), [("device", "host"), ("host", "device"), ("8bit", "8bit")])
def test_an_update_after_a_checkpoint_is_that_without_one(first: str, second: str, tmp_path: Path):
    if first == "8bit":
        pytest.importorskip("bitsandbytes")
    goes_on = policy()
    optimizer = make_adamw(goes_on, first, **SETTINGS)  # type: ignore[arg-type]
    for seed in range(2):
        update(goes_on, optimizer, seed)
    write_optimizer(tmp_path, goes_on, optimizer)
    returns = policy()
    returns.load_state_dict(goes_on.state_dict())
    other = make_adamw(returns, second, **SETTINGS)  # type: ignore[arg-type]
    read_optimizer(tmp_path, returns, other)
    kinds = [{name: type(x) for state in one.state.values() for name, x in state.items()} for one in (optimizer, other)]
    assert kinds[0] == kinds[1]
    for seed in range(2, 4):
        update(goes_on, optimizer, seed)
        update(returns, other, seed)
    assert torch.equal(numbers(goes_on), numbers(returns))


def test_moments_in_8_bits_give_nearly_the_update_and_those_of_embeddings_and_small_weights_give_it():
    pytest.importorskip("bitsandbytes")
    models = [policy(), policy()]
    start = numbers(models[0])
    optimizers = [make_adamw(model, kind, **SETTINGS) for model, kind in zip(models, ("device", "8bit"), strict=True)]
    for seed in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            update(model, optimizer, seed)
    moved, off = numbers(models[0]) - start, numbers(models[1]) - numbers(models[0])
    assert 1e-4 < off.norm() / moved.norm() < 0.05
    exact = [(a.embedding.weight, a.matrix.bias) for a in models]
    for one, other in zip(*exact, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
    state = optimizers[1].state
    kinds = {name: state[p]["state1"].dtype for name, p in models[1].named_parameters()}
    assert kinds == {"embedding.weight": torch.float32, "matrix.weight": torch.uint8, "matrix.bias": torch.float32}


@pytest.mark.parametrize("kind", ["device", "8bit"])
def test_the_bytes_that_are_planned_are_those_that_are_there(kind: str):
    if kind == "8bit":
        pytest.importorskip("bitsandbytes")
    model = policy()
    assert model.matrix.weight.numel() >= SMALLEST > model.matrix.bias.numel()
    optimizer = make_adamw(model, kind, **SETTINGS)  # type: ignore[arg-type]
    update(model, optimizer, seed=0)
    every = [x for state in optimizer.state.values() for name, x in state.items() if "map" not in name]
    held = sum(x.nbytes for x in every if isinstance(x, Tensor) and x.dim())
    assert moment_bytes(model, kind) == held  # type: ignore[arg-type]


def test_of_moments_on_the_host_the_device_has_those_of_the_largest_weight_at_once():
    assert (moment_bytes(policy(), "host"), visiting_bytes(policy(), "host")) == (0, 2 * 4 * 90 * 50)


def test_a_missing_library_is_named_with_its_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(UsageError, match=r"^learner.moments = '8bit' needs bitsandbytes.*groupwise\[bitsandbytes\]"):
        require_moments("learner.moments", "8bit")
    require_moments("learner.moments", "host")
