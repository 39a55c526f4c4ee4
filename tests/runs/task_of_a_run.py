"""A task of a user's own with a verdict that is chosen, and rewards that say nothing: for runs out of the ordinary."""

from dataclasses import dataclass

import groupwise


@dataclass(frozen=True)
class Sums(groupwise.Task):
    """Sums whose every completion has one score; "length" tells them apart by how long they are."""

    verdict: str = "wrong"
    alphabet = "0123456789+-="
    quick = True

    def samples(self, split):
        keep = range(9) if split == "train" else range(9, 12)
        return [groupwise.Sample(f"{n}", f"{n % 3}+{n // 3}=", str(n % 3 + n // 3)) for n in keep]

    def score(self, sample, completion):
        return {"wrong": 0.0, "right": 1.0, "length": float(len(completion) > 2)}[self.verdict]


def constant(sample, completion):
    return 0.5


def silent(sample, completion):
    return None


def raises(sample, completion):
    raise ValueError("planted")
