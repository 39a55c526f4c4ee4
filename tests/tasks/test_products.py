"""Laws of the times tables: no answer of a held-out problem is in training, and the number that is stated counts."""

from __future__ import annotations

import pytest

from recipes.products import Products


def pairs(products: Products, split: str) -> list[tuple[int, int]]:
    factors = [sample.key.split("x") for sample in products.samples(split)]
    return [(int(a), int(b)) for a, b in factors]


@pytest.mark.parametrize("seed", range(20))
def test_both_splits_together_are_every_pair_once_and_mirror_images_stay_together(seed: int) -> None:
    products = Products(seed=seed)
    train, heldout = pairs(products, "train"), pairs(products, "heldout")
    assert (len(train), len(heldout)) == (85, 36)
    assert sorted(train + heldout) == [(a, b) for a in range(2, 13) for b in range(2, 13)]
    assert not {(b, a) for a, b in heldout} & set(train)


def test_a_seed_draws_other_problems_and_the_order_is_mixed() -> None:
    first, second = Products(seed=0), Products(seed=1)
    assert set(pairs(first, "heldout")) != set(pairs(second, "heldout"))
    assert first.samples("train") == Products().samples("train")
    for split in ("train", "heldout"):
        assert pairs(first, split) != sorted(pairs(first, split))


def test_prompts_and_answers() -> None:
    for sample in (*Products().samples("train"), *Products().samples("heldout")):
        a, b = map(int, sample.key.split("x"))
        assert sample.prompt == f"What is {a} times {b}? Answer with the number only."
        assert sample.answer == str(a * b)


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("56", 1.0),
        ("7 * 8 = 56", 1.0),
        ("7 times 8 is 56.", 1.0),
        ("The answer is 56, because 8 * 7 = 56.", 1.0),
        ("56 or 54", 0.0),
        ("54, 55, 56", 0.0),
        ("565", 0.0),
        ("To multiply 7 by 8, we can", 0.0),
        ("", 0.0),
    ],
)
def test_the_number_that_is_stated_counts(completion: str, score: float) -> None:
    products = Products()
    sample = next(s for split in ("train", "heldout") for s in products.samples(split) if s.key == "7x8")
    assert products.score(sample, completion) == score
