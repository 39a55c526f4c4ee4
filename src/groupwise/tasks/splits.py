"""Training and held-out problems: which split a problem is in, decided by a hash of its text."""

import hashlib
from collections.abc import Iterable

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample

SPLITS = ("train", "heldout")


def require_split(split: str, task: str) -> None:
    """Raises UsageError if the task has no such split."""
    if split not in SPLITS:
        raise UsageError(f"{task} has the splits {' and '.join(SPLITS)}, not {split!r}")


def hash_fraction(*parts: object) -> float:
    """Make a number in [0, 1) that depends on the parts' text alone: the same in every process and Python version."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:6], "big") / 2**48


def split_by_prompt(samples: Iterable[Sample], share: float, separator: str = " ") -> dict[str, tuple[Sample, ...]]:
    """Split samples, each split in the given order, about a `share` held out. The hash of the prompt decides, so no
    draw or seed can move a problem. `separator` is part of what is hashed.
    """
    splits: dict[str, list[Sample]] = {split: [] for split in SPLITS}
    for sample in samples:
        heldout = hash_fraction(f"split{separator}{sample.prompt}") < share
        splits["heldout" if heldout else "train"].append(sample)
    return {split: tuple(members) for split, members in splits.items()}


def in_hash_order(prompts: Iterable[str], seed: int) -> list[str]:
    """Put the prompts in an order that depends on seed and texts alone."""
    return sorted(prompts, key=lambda prompt: hash_fraction(f"order {seed} {prompt}"))
