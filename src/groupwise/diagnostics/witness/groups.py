"""The batch against the groups that it was made of, and the filter against its definition."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from groupwise.algorithms.parts.filters import DropUniform, Filter
from groupwise.core.records import Group
from groupwise.diagnostics.witness.reading import Disagreement, Reading, Said, StepSeen, agree, apart, differs
from groupwise.diagnostics.witness.rows import RIGHT, TIE, Rows, values_of
from groupwise.health.checks import GROUPS_AS_SAMPLED

#: Scores and log-probabilities are copied, and added up at most.
COPIED = 1e-6


class GroupsReading(Reading):
    """Each row is one completion behind its own prompt, in its own group, with its own score."""

    subject = GROUPS_AS_SAMPLED
    rests = True

    def __init__(self, keep: Filter) -> None:
        self._filter = keep

    def begin(self, seen: StepSeen) -> Said:
        """Compare the batch's columns with the records, and the groups that train with what the filter keeps."""
        batch, rows = seen.batch, seen.rows
        yield from self._counts(seen)
        yield apart(rows.place, batch.length, rows.lengths, 0.0, "the row's length; look at collate")
        if batch.tokens.shape != rows.inside.shape:
            yield differs("the batch", f"{tuple(batch.tokens.shape)} rows and columns, by its records "
                          f"{tuple(rows.inside.shape)}")  # fmt: skip
            return
        yield self._partition(seen)
        scores = torch.tensor(rows.score, dtype=torch.float64)
        about = "the score is not the completion's own, with the recipe's weights; look at collate and at [rewards]"
        yield apart(rows.place, batch.score, scores, COPIED, about)
        yield from self._kept(seen)
        if seen.slow:
            yield from self._copied(seen)

    def _copied(self, seen: StepSeen) -> Iterator[Disagreement]:
        """Compare ids and log-probabilities, token by token."""
        batch, rows = seen.batch, seen.rows
        look = "of a prompt and a completion that the records have there; look at collate"
        about = f"the id is not the one {look}"
        yield apart(_token_of(rows, rows.inside), batch.tokens[rows.inside], rows.tokens, 0.0, about)
        logp, about = batch.logp_engine[rows.answers], f"the engine's log-probability is not the one {look}"
        yield apart(_token_of(rows, rows.answers), logp, rows.logp_engine, COPIED, about)

    def _counts(self, seen: StepSeen) -> Iterator[Disagreement]:
        groups, rules = seen.result.groups, seen.rules
        if len(groups) != rules.groups:
            yield differs("the step", f"{len(groups)} groups train, and prompts_per_step = {rules.groups}")
        for i, group in enumerate(groups):
            if len(group.completions) != rules.samples:
                own = f"{len(group.completions)} completions, and samples_per_prompt = {rules.samples}"
                yield differs(f"group {i} (prompt {group.prompt.sample.prompt[-40:]!r})", own)
                return

    def _partition(self, seen: StepSeen) -> Disagreement:
        """Compare who is in a group with whom: the ids themselves may be any."""
        if torch.equal(seen.batch.group, seen.rows.groups_of):
            return agree()
        theirs, rows = seen.batch.group.tolist(), seen.rows
        ids: dict[int, int] = {}
        owners: dict[int, int] = {}
        for row, (id_, own) in enumerate(zip(theirs, rows.group, strict=True)):
            if ids.setdefault(own, id_) != id_ or owners.setdefault(id_, own) != own:
                other = owners.get(id_, own)
                with_ = f"that of the prompt {seen.result.groups[other].prompt.sample.prompt[-40:]!r}"
                said = f"its group's id is {id_}, {with_ if other != own else f'the rows before it have {ids[own]}'}"
                return differs(rows.words(row), f"{said}; look at the column group")
        return agree()

    def _kept(self, seen: StepSeen) -> Iterator[Disagreement]:
        """Compare what trains with what the filter's definition keeps; what replaces missing groups is counted."""
        if type(self._filter) is not DropUniform:  # the other of the catalog keeps all
            return
        result, weights = seen.result, seen.rules.weights
        dropped = [group for group in result.groups if not self._keeps(group, weights)]
        if len(dropped) > result.fallback:
            filled = f"train, and {result.fallback} fill up; look at filter and collect"
            words = f"{len(dropped)} groups that the filter ({self._filter}) drops {filled}"
            yield differs(f"the prompt {dropped[0].prompt.sample.prompt[-40:]!r}", words)
        there = {id(group) for group in (*result.groups, *result.surplus)}
        lost = [g for g in result.generated if id(g) not in there and self._keeps(g, weights)]
        if lost:
            words = f"{len(lost)} groups that the filter ({self._filter}) keeps neither train nor wait"
            yield differs(f"the prompt {lost[0].prompt.sample.prompt[-40:]!r}", f"{words}; look at filter and collect")
        waiting = [group for group in result.surplus if not self._keeps(group, weights)]
        if waiting:
            words = f"{len(waiting)} groups that the filter ({self._filter}) drops wait for the next step"
            yield differs(f"the prompt {waiting[0].prompt.sample.prompt[-40:]!r}", f"{words}; look at collect")

    def _keeps(self, group: Group, weights: Mapping[str, float]) -> bool:
        """Decide by the definition: completions that have a value differ in it, by correctness or by a reward."""
        values = values_of(group, self._filter.metric, weights)
        if self._filter.metric == "correctness":
            return 0 < sum(value >= RIGHT for value in values) < len(values)
        return len(values) > 1 and max(values) - min(values) > TIE


def _token_of(rows: Rows, where: Tensor) -> Callable[[tuple[int, ...]], str]:
    """Name the token that is number `at` of those where a table is True."""
    return lambda at: rows.place(tuple(where.nonzero()[at[0]].tolist()))
