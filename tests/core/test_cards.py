"""Which process takes which GPU, of any number of them, and which errors say that one is gone: no GPU is needed."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch

from groupwise.core.errors import UsageError
from groupwise.core.machine.cards import failure_of, placed, require_cards

EVERY = list(product((1, 2, 8), (1, 2, 3, 8), (0, 1, 2, 5, 8, 16)))


@pytest.mark.parametrize(("count", "ranks", "engines"), EVERY)
def test_no_process_is_on_a_card_that_is_not_there_and_none_waits_for_one_that_is_free(
    count: int, ranks: int, engines: int
) -> None:
    cards = placed(count, ranks, engines)
    assert (len(cards.ranks), len(cards.engines)) == (ranks, engines)
    assert {*cards.ranks, *cards.engines} <= set(range(count))
    assert len({*cards.ranks, *cards.engines}) == min(count, max(ranks + engines, min(ranks, count)))
    assert cards.shared == (ranks > count)
    shared = Counter(card for card in cards.engines if card in cards.ranks)
    each = [shared[card] for card in set(cards.ranks)]
    assert max(each) - min(each) <= 1, "those that share are spread"
    others = [shared[card] for card in cards.ranks[1:]]
    assert cards.beside_ranks == (shared[cards.ranks[0]], max(others, default=0))
    assert cards.alone == min(engines, max(0, count - ranks))
    assert cards.sampling == (len(set(cards.engines)) if engines else 1)


def test_what_a_person_reads_of_them() -> None:
    one, own, shared = placed(1, 1, 0), placed(8, 4, 2), placed(2, 2, 1)
    assert str(one) == "rank on card 0 of 1"
    assert str(own) == "ranks on cards 0 to 3 of 8, engines on 4, 5, of their own; not tried on several cards by us"
    assert str(shared) == "ranks on cards 0, 1 of 2, engine on 0; not tried on several cards by us"


def test_more_ranks_than_cards_are_one_line_unless_they_are_to_share() -> None:
    require_cards(8, 8)
    require_cards(1, 2, shares=True)
    with pytest.raises(UsageError) as refused:
        require_cards(2, 3)
    assert str(refused.value) == (
        "learner.ranks = 3: each rank takes a GPU of its own, and torch sees 2 GPUs here; set learner.ranks to 2, or "
        "start more machines with torchrun, or set placement.share_cards = true to try ranks that share a card, over "
        "gloo and slowly"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might"), "launch failure"),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), "uncorrectable ECC"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"), "EXECUTION_FAILED"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "CUDNN_STATUS"),
        (RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp"), "NVML_SUCCESS"),
        (RuntimeError("No CUDA GPUs are available"), "No CUDA GPUs"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), ""),
        (torch.AcceleratorError("CUDA error: out of memory"), ""),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), ""),
        (RuntimeError("[enforce fail at gloo/transport/tcp/pair.cc] Connection closed by peer"), ""),
        (ValueError("CUDA error: words of somebody else's"), ""),
        (RuntimeError(""), ""),
    ],
)
def test_errors_of_a_card_that_is_gone_are_told_from_all_others(error: Exception, words: str) -> None:
    failed = failure_of(error)
    assert "\n" not in failed
    assert bool(failed) == bool(words)
    assert words in failed
