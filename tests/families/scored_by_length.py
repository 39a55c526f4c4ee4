"""A task of which a random policy has half of the answers right, scored where the run is: no other process starts."""

from __future__ import annotations

from dataclasses import dataclass

import groupwise


@dataclass(frozen=True)
class Characters(groupwise.Task):
    """Sums whose answer is right if its bytes make an even number of characters."""

    @property
    def quick(self) -> bool:
        return True

    def samples(self, split):
        keep = range(9) if split == "train" else range(9, 12)
        return [groupwise.Sample(f"{n}", f"{n % 3}+{n // 3}=", str(n % 3 + n // 3)) for n in keep]

    def score(self, sample, completion):
        return float(len(completion) % 2 == 0)
