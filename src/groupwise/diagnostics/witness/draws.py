"""Draws of a step: seeds of completions, the order of problems, who said what, and what is evaluated."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from groupwise.core.records import Completion, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.task import HoldsOutSets, PlaysTurns, Task
from groupwise.diagnostics.witness.reading import Disagreement, Reading, Said, StepSeen, Unmeasured, agree, differs
from groupwise.diagnostics.witness.requests import Heard, HeardEngine
from groupwise.health.checks import DRAWS_ARE_NEW

#: Steps whose requests are remembered: what is sampled ahead, or in segments, trains in one of the next.
REMEMBERED = 4


class DrawsReading(Reading):
    """No two completions have one seed, and each that trains is an answer that the engine gave to its own prompt."""

    subject = DRAWS_ARE_NEW

    def __init__(self, engine: HeardEngine, in_segments: bool) -> None:
        """`in_segments`: a completion may go on in a later request."""
        self._engine, self._in_segments = engine, in_segments
        self._seeds: deque[set[tuple[int, int, int]]] = deque(maxlen=REMEMBERED)
        self._heard: deque[list[Heard]] = deque(maxlen=REMEMBERED)
        self._since = 0

    def restart(self, step: int, rate_factor: float) -> None:
        """Forget the seeds: a return draws the same ones again. What older weights sampled was heard by no one here."""
        self._seeds.clear()
        self._heard.clear()
        self._engine.take()
        self._since = step

    def begin(self, seen: StepSeen) -> Said:
        """Compare the requests since the step before with each other and with earlier ones, and answers with rows."""
        heard, seeds = self._engine.take(), set[tuple[int, int, int]]()
        twice = agree()
        for request, *_ in heard:
            key = (request.seed, request.first, request.drawn)
            if key in seeds or any(key in before for before in self._seeds):
                when = "in this step" if key in seeds else "in a step before"
                words = f"seed {request.seed}, completion {key[1]}, was drawn {when} already; look at seeds in collect"
                twice = differs("a request to the engine", words)
            seeds.add(key)
        self._seeds.append(seeds)
        self._heard.append(heard)
        yield twice
        if self._in_segments:
            yield from self._goes_on(heard)
        yield from self._answered(seen)

    def _goes_on(self, heard: Sequence[Heard]) -> Iterator[Disagreement]:
        """Look for requests that go on from an answer and do not say how many of its tokens were drawn before."""
        known: dict[tuple[int, ...], int] = {}
        for one in (one for step in self._heard for one in step):
            known |= {one.request.tokens + x: one.request.drawn + len(x) for x in one.answers if x}
        for request, *_ in heard:
            drawn = known.get(request.tokens, request.drawn)
            if drawn != request.drawn and request.samples == 1:  # a new prompt has its whole group
                words = f"its last {drawn} tokens were drawn before, and it says {request.drawn}; look at segments"
                yield differs("a request to the engine", words)
                return

    def _answered(self, seen: StepSeen) -> Iterator[Disagreement]:
        """Look for each completion that was sampled here among the answers to its own prompt."""
        others = [
            (group, number, completion)
            for group in seen.result.generated
            for number, completion in enumerate(group.completions)
        ]
        for heard in reversed(self._heard):  # most are answers of the step itself
            direct = {(one.request.tokens, answer, one.version) for one in heard for answer in one.answers}
            others = [
                (group, number, completion)
                for group, number, completion in others
                if (group.prompt.tokens, completion.tokens, completion.spans[-1].version) not in direct
            ]
            if not others:
                return
        every = (one for heard in self._heard for one in heard)
        whole = {(one.request.tokens + answer, one.version) for one in every for answer in one.answers}
        for group, number, completion in others:
            last = _up_to_last(group.prompt, completion)
            if last is not None and last[1] >= self._since and last not in whole:
                about = f"completion {number} of the prompt {group.prompt.sample.prompt[-40:]!r}"
                words = f"the engine gave no such answer to this prompt under weights {last[1]}"
                yield differs(about, f"{words}; look at how groups and spans are made")
                return


def _up_to_last(prompt: Prompt, completion: Completion) -> tuple[tuple[int, ...], int] | None:
    """Return what the model read and said up to the last token that the policy said, and that token's version."""
    own = [span for span in completion.spans if span.own]
    if not own or not own[-1].stop:
        return None
    anew = [span.start for span in completion.spans if span.anew and span.start < own[-1].stop]
    before = () if anew else prompt.tokens
    return (*before, *completion.tokens[anew[-1] if anew else 0 : own[-1].stop]), own[-1].version


class ProblemsReading(Reading):
    """Problems come again only once all have come, and those that are evaluated are held out and never trained on.

    train  the training problems of the run; None where a task makes them one by one
    """

    subject = DRAWS_ARE_NEW

    def __init__(self, task: Task, train: Sequence[Sample] | None) -> None:
        self._task, self._count = task, None if train is None else len(train)
        self._by_key = isinstance(task, PlaysTurns)  # an environment may add to a prompt
        self._drawn, self._draws = Counter[str](), 0
        self._evaluated: set[object] = set()
        self._heldout: set[object] | None = None

    def restart(self, step: int, rate_factor: float) -> None:
        """Forget which problems came."""
        self._forget()

    def _forget(self) -> None:
        self._drawn.clear()
        self._draws = 0

    def begin(self, seen: StepSeen) -> Said:
        """Count the problems that were drawn, and look for those that are evaluated among them."""
        if self._count is not None:
            for group in seen.result.generated:
                self._drawn[group.prompt.sample.key] += 1
                self._draws += 1
                if self._drawn[group.prompt.sample.key] > 2:
                    words = f"it was drawn 3 times within {self._draws} draws of {self._count} problems"
                    yield differs(f"the problem {group.prompt.sample.key}", f"{words}; look at the order of draws")
                    self._forget()
                if self._draws >= self._count:
                    self._forget()
        trained = (group.prompt.sample for group in seen.result.groups)
        both = [sample for sample in trained if self._name(sample) in self._evaluated]
        if not both:
            yield agree()
        elif self._count is None:
            yield Unmeasured("problems that the task makes one by one may be held-out ones by chance")
        elif any(self._name(sample) == self._name(both[0]) for sample in self._task.samples("train")):
            yield Unmeasured("the task has a problem among its training problems and its held-out ones")
        else:
            yield differs(
                f"the problem {both[0].prompt[-40:]!r}", "it is held out, and trains; look at the task's split"
            )

    def evaluated(self, step: int, groups: Sequence[Group]) -> Said:
        """Compare the problems of an evaluation with those that the task holds out."""
        if self._heldout is None:
            self._heldout = self._held_out()
        samples = [group.prompt.sample for group in groups]
        self._evaluated = {self._name(sample) for sample in samples}
        other = next((sample for sample in samples if self._name(sample) not in self._heldout), None)
        if other is None:
            yield agree()
        elif self._held_out() != self._heldout:
            yield Unmeasured("the task holds out other problems each time that it is asked")
        else:
            words = "it is evaluated, and the task does not hold it out; look at what an evaluation is given"
            yield differs(f"the problem {other.prompt[-40:]!r}", words)

    def _held_out(self) -> set[object]:
        sets = self._task.sets if isinstance(self._task, HoldsOutSets) else {}
        every = [sample for own in sets.values() for sample in own] or self._task.samples("heldout")
        return {self._name(sample) for sample in every}

    def _name(self, sample: Sample) -> object:
        """Name a problem by what the policy reads of it."""
        return sample.key if self._by_key else (sample.prompt, str(sample.messages))
