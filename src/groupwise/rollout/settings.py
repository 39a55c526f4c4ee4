"""How completions are scored, and how the policy is evaluated."""

from typing import Literal

from pydantic import Field

from groupwise.core.engine import Sampling, Temperature, TopK, TopP
from groupwise.core.settings import Settings


class EvaluationSettings(Settings):
    """The section [evaluation]: held-out problems, and how their completions are sampled.

    problems  held-out problems
    samples   completions of each
    every     steps between evaluations; 0 evaluates only before the first step and after the last
    """

    problems: int = Field(default=512, ge=1)
    samples: int = Field(default=1, ge=1)
    every: int = Field(default=0, ge=0)
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: TopK = 0

    def sampling(self, max_new_tokens: int) -> Sampling:
        """The distribution of an evaluation's completions, which are as long as those of training may be."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, max_new_tokens=max_new_tokens)


class ScoringSettings(Settings):
    """The section [scoring]: how rewards come together, and the processes that score beside generation.

    combine      "before": rewards are added and then compared; "after": each has advantages of its own, then added
    workers      processes; 0 is one for each core
    deadline     seconds that one completion's score may take
    memory_mib   MiB that a process may hold
    fault_limit  the largest share of a step's completions that may go without a score
    """

    combine: Literal["before", "after"] = "before"
    workers: int = Field(default=0, ge=0)
    deadline: float = Field(default=10.0, gt=0)
    memory_mib: int = Field(default=4096, ge=64)
    fault_limit: float = Field(default=0.05, ge=0, le=1)

    @property
    def memory(self) -> int:
        """Bytes that a process may hold."""
        return self.memory_mib * 2**20
