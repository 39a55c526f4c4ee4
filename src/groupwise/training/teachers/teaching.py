"""The reference's pass of a step where it is more than one model that reads the policy's own prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from groupwise.core.collate import collate
from groupwise.core.records import Batch, Group, Prompt
from groupwise.models.on_host import on_device
from groupwise.training.learner import Learner
from groupwise.training.teachers.prompts import TeacherPrompt

#: Begins to compute log-probabilities [N,T] nats of a batch's trained tokens, 0 elsewhere, without gradient; what it
#: returns waits for them.
Reader = Callable[[Batch], Callable[[], Tensor]]


@dataclass(frozen=True)
class Teaching:
    """Log-probabilities of a batch's completions under their teachers.

    reader           of rows whose problem's source has no teacher of its own
    by_source        teachers of the problems of a source
    prompt           makes the teachers' prompts; None: they read the policy's
    positions        most tokens of a teacher's prompt and a completion; a longer row keeps the policy's prompt
    pad              id that fills up rows
    masks_truncated  whether completions that were cut off at the limit are not trained
    say              hears of rows that are too long
    close            leaves what is at an address
    """

    reader: Reader
    by_source: Mapping[str, Reader]
    prompt: TeacherPrompt | None
    positions: int
    pad: int
    masks_truncated: bool
    say: Callable[[str], None]
    close: Callable[[], None] = lambda: None

    def begin(self, groups: Sequence[Group], batch: Batch) -> Callable[[], Tensor]:
        """Begin to compute logp_ref [N,T] nats of the batch that was made of these groups.

        What is returned waits for it and, of teachers that are held here, computes it.
        """
        seen = batch if self.prompt is None else self._behind_its_prompts(self.prompt, groups)
        sources = [group.prompt.sample.source for group in groups for _ in group.completions]
        owners = [source if source in self.by_source else "" for source in sources]
        begun = list[tuple[Tensor, Batch, Callable[[], Tensor]]]()
        for owner in sorted({*owners}):
            rows = torch.tensor([one == owner for one in owners])
            part = seen if rows.all() else seen.rows(rows.nonzero()[:, 0])
            begun.append((rows, part, self.by_source.get(owner, self.reader)(part)))

        def wait() -> Tensor:
            logp = torch.zeros(batch.mask.shape)
            for rows, part, read in begun:
                found = read()
                logp = logp.to(found.dtype)
                logp[batch.mask & rows[:, None]] = found[part.mask]
            return logp

        return wait

    def _behind_its_prompts(self, prompt: TeacherPrompt, groups: Sequence[Group]) -> Batch:
        """Return the same completions behind the teachers' prompts; each is a group of its own."""
        rows, long = list[Group](), 0
        for group in groups:
            for completion in group.completions:
                ids = prompt(group, completion)
                if len(ids) + len(completion.tokens) > self.positions:
                    ids, long = group.prompt.tokens, long + 1
                rows.append(Group(Prompt(group.prompt.sample, ids), (completion,)))
        if long:
            self.say(
                f"{long} of {len(rows)} completions are too long for reference.template: with its prompt they exceed "
                f"the teacher's {self.positions} positions, and it reads them behind the policy's own"
            )
        seen = collate(rows, self.pad, mask_truncated=self.masks_truncated)
        return replace(seen, routes_engine=None, engine_ids=None, engine_top=None)


def reference_of(learner: Learner) -> Reader:
    """Return what reads a batch with the learner's own reference, on all of its ranks."""

    def read(batch: Batch) -> Tensor:
        return learner.annotate(batch, old=False, ref=True, routed=False).need("logp_ref")

    return lambda batch: partial(read, batch)


def held(learner: Learner, model: nn.Module) -> Reader:
    """Return what reads a batch with a teacher that is held beside the learner, of one process."""

    def read(batch: Batch) -> Tensor:
        with on_device(model, learner.device), torch.no_grad():
            return learner.logprobs(model, batch)

    return lambda batch: partial(read, batch)
