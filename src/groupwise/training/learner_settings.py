"""Settings of the policy's training: the section [learner] of a recipe."""

from typing import Annotated, Literal

from pydantic import Field

from groupwise.core.settings import Changeable
from groupwise.training.mesh import DEADLINE
from groupwise.training.optimizer import AUTO, Count, OptimizerSettings

#: The precision that a policy can be trained in.
LearnerPrecision = Literal["fp32", "bf16"]


class LearnerSettings(OptimizerSettings):
    """Training of the policy: optimizer, memory and ranks.

    precision        "bf16": compute in bfloat16 over float32 master weights
    shared_prefixes  compute shared prefixes, such as prompts, once, and no padding
    attention        attention over shared prefixes: torch's "flex" (GPU) or "blocks" of sequences; "auto": flex for a
                     large policy if both agree
    recompute        recompute activations in the backward pass: less memory, a third more time
    compile          compile the layers with torch.compile: fewer kernels, minutes at the start
    chunk_logits     logits computed at once; "auto": as many as fit in memory
    held_logits      log-probabilities kept for the backward pass; more are recomputed
    ranks            processes on this machine that share weights, gradients, optimizer and microbatches; results are
                     equal up to rounding
    rank_deadline    seconds a rank may keep the others waiting before the run ends and names it
    """

    precision: LearnerPrecision = "fp32"
    shared_prefixes: Changeable[bool] = True
    attention: Changeable[Literal["auto", "flex", "blocks"]] = "auto"
    recompute: Changeable[bool] = False
    compile: Changeable[bool] = False
    chunk_logits: Changeable[Count] = AUTO
    held_logits: Changeable[Literal["auto"] | Annotated[int, Field(ge=0)]] = AUTO
    ranks: Changeable[int] = Field(default=1, ge=1, le=1024)
    rank_deadline: Changeable[float] = Field(default=DEADLINE, gt=0, le=10**6)

    @property
    def bf16(self) -> bool:
        return self.precision == "bf16"
