"""Laws of Muon: updates are orthogonal matrices of AdamW's size, and torch's own Muon differs by its rounding alone."""

from __future__ import annotations

import pytest
import torch

from groupwise.training.start.warm_start import COEFFICIENTS, TIMES, Muon, orthogonalised

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
    assert s.min() >= 0.5
    assert s.max() <= 1.5


def test_scale_does_not_matter_and_zero_stays_zero() -> None:
    matrix = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(orthogonalised(1000 * matrix), orthogonalised(matrix))
    assert orthogonalised(torch.zeros(3, 2)).tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_torchs_muon_but_for_rounding(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    start, gradients = torch.randn(shape, generator=generator), torch.randn(4, *shape, generator=generator)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    one = Muon([ours], lr=0.1)
    other = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        one.step()
        other.step()
    difference = (ours - theirs).norm() / (theirs - start).norm()
    assert difference.item() < 0.03  # bfloat16 has 8 bits, and an update goes through 15 products


def test_what_has_no_gradient_does_not_move() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    Muon([weight], lr=1.0).step()
    assert weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
