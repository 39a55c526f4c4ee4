"""Partial rollouts: completions are sampled in segments of at most C tokens, the next segment under later weights.

With limit L and K = ceil(L / C), a cohort of groups is begun in each segment, and every completion that has not ended
draws at most C tokens more. The cohort that was begun K - 1 segments before has ended then, whatever its lengths:

    segment     1    2    3    4        C = L / 3
    cohort a    x    x    x             trains after segment 3
    cohort b         x    x    x        trains after segment 4
    cohort c              x    x  ...

So cohorts train whole and in the order in which they were begun: nothing is dropped, and a short completion has no
head start. A token is at most K - 1 segments older than the last of its cohort. With K = 1 a cohort begins and ends in
one segment.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from groupwise.core.engine import Engine, Finished, OnFinish, Request, Sampling
from groupwise.core.records import Completion, SamplerTop, Support
from groupwise.core.stream import Cohort


def segments_of(limit: int, tokens: int | None) -> int:
    """Return K, the number of segments that a completion of `limit` tokens takes; one where nothing bounds a segment.

    >>> segments_of(64, 16), segments_of(65, 16), segments_of(64, 100), segments_of(64, None)
    (4, 5, 1, 1)
    """
    return 1 if tokens is None else math.ceil(limit / tokens)


@dataclass(frozen=True)
class Segment:
    """Sampling of one segment.

    samples  completions of a prompt
    tokens   new tokens of a completion at most; None: as many as it has
    top      most likely ids that completions carry for each token
    """

    samples: int
    sampling: Sampling
    tokens: int | None = None
    top: int = 0

    @property
    def count(self) -> int:
        """Segments that the longest completion takes."""
        return segments_of(self.sampling.max_new_tokens, self.tokens)


class Sampler(Protocol):
    """Cohorts -> the same after a segment, in which those without completions are begun.

    on_finish  hears of the first cohort's completions as they end; a sampler that does not know so early need not
               call it
    """

    def __call__(
        self, cohorts: Sequence[Cohort], segment: Segment, on_finish: OnFinish | None = None
    ) -> list[Cohort]: ...


@dataclass(frozen=True)
class SegmentRequest:
    """One request of a segment: new completions of a cohort's prompt, or one completion that was begun before.

    sample  the number of its first completion
    before  what there is of it; None where it is new
    """

    cohort: int
    prompt: int
    sample: int
    before: Completion | None
    request: Request


def advance(
    engine: Engine, cohorts: Sequence[Cohort], segment: Segment, on_finish: OnFinish | None = None
) -> list[Cohort]:
    """Return the cohorts after a segment, in which those without completions are begun.

    on_finish  hears of the first cohort's completions as they end, those that ended in earlier segments included
    """
    limit = segment.sampling.max_new_tokens
    pieces = list(_pieces(cohorts, segment))
    for i, group in enumerate(cohorts[0].completions if on_finish else ()):
        for j, completion in enumerate(group):
            if on_finish is not None and not goes_on(completion, limit):
                on_finish(Finished(i, j, completion.tokens, completion.finish))

    def hears(done: Finished) -> None:
        """Tell of a completion of the first cohort that has ended, whole and by its number there."""
        piece = pieces[done.request]
        tokens = (*(piece.before.tokens if piece.before else ()), *done.tokens)
        if on_finish is not None and piece.cohort == 0 and (done.finish != "length" or len(tokens) == limit):
            on_finish(Finished(piece.prompt, piece.sample + done.sample, tokens, done.finish))

    requests = [replace(piece.request, top=segment.top) for piece in pieces]
    answers = engine.generate(requests, segment.sampling, on_finish and hears)
    completions = [[list(group) for group in cohort.completions or [()] * len(cohort.prompts)] for cohort in cohorts]
    for piece, answer in zip(pieces, answers, strict=True):
        group = completions[piece.cohort][piece.prompt]
        if piece.before is None:
            group.extend(answer)
        else:
            group[piece.sample] = joined(piece.before, answer[0])
    return [
        replace(cohort, completions=tuple(map(tuple, groups)))
        for cohort, groups in zip(cohorts, completions, strict=True)
    ]


def goes_on(completion: Completion, limit: int) -> bool:
    """Return whether it was cut off by a segment's end and not by its limit. An episode is always whole."""
    return completion.ended is None and completion.finish == "length" and completion.length < limit


def unfinished(cohorts: Sequence[Cohort], segment: Segment) -> int:
    """Return how many completions of the cohorts have not ended."""
    limit = segment.sampling.max_new_tokens
    return sum(goes_on(c, limit) for cohort in cohorts for group in cohort.completions for c in group)


def merged(cohorts: Sequence[Cohort]) -> Cohort:
    """Merge cohorts into one."""
    prompts, seeds, completions = zip(*((c.prompts, c.seeds, c.completions) for c in cohorts), strict=True)
    return Cohort(sum(prompts, ()), sum(seeds, ()), sum(completions, ()))


def joined(before: Completion, new: Completion) -> Completion:
    """Return a completion and what was sampled after it, as one: tokens of one version are one span."""
    begin = len(before.tokens)
    spans = list(before.spans)
    for span in new.spans:
        later = replace(span, start=span.start + begin, stop=span.stop + begin)
        last = spans[-1]
        if (last.own, last.version) == (later.own, later.version) and not later.anew:
            spans[-1] = replace(last, stop=later.stop)
        else:
            spans.append(later)
    support = None
    if before.support is not None and new.support is not None:
        start = torch.cat([before.support.start, new.support.start[1:] + before.support.start[-1]])
        support = Support(torch.cat([before.support.ids, new.support.ids]), start)
    top = None
    if before.top is not None and new.top is not None:
        top = SamplerTop(torch.cat([before.top.ids, new.top.ids]), torch.cat([before.top.logp, new.top.logp]))
    routes = None
    if before.routes is not None and new.routes is not None:
        # The pass over what was there already has routes of its own, under other weights; those of the draws stay.
        routes = torch.cat([before.routes, new.routes[len(before.routes) :]])
    return replace(
        before,
        tokens=before.tokens + new.tokens,
        logp_engine=before.logp_engine + new.logp_engine,
        finish=new.finish,
        stop=new.stop,
        spans=tuple(spans),
        support=support,
        routes=routes,
        top=top,
    )


def _pieces(cohorts: Sequence[Cohort], segment: Segment) -> Iterator[SegmentRequest]:
    limit = segment.sampling.max_new_tokens
    most = min(segment.tokens or limit, limit)
    for number, cohort in enumerate(cohorts):
        for i, (prompt, seed) in enumerate(zip(cohort.prompts, cohort.seeds, strict=True)):
            if not cohort.completions:
                yield SegmentRequest(number, i, 0, None, Request(prompt.tokens, segment.samples, seed, most))
                continue
            for j, begun in enumerate(cohort.completions[i]):
                if goes_on(begun, limit):
                    count = len(begun.tokens)
                    tokens = (*prompt.tokens, *begun.tokens)
                    request = Request(tokens, 1, seed, min(most, limit - count), first=j, drawn=count)
                    yield SegmentRequest(number, i, j, begun, request)
