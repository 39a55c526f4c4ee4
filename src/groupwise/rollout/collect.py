"""Prompts to scored, filtered groups; and evaluation, which is the same without filtering or training.

A refill asks for as many prompts as the last round's keep rate suggests, four times what is missing at most. It ends
the whole round before it chooses, trains groups in the order of their draws and keeps the surplus for the next step, so
that short completions have no head start.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

import torch
from pydantic import Field

from groupwise.algorithms.calls import call
from groupwise.algorithms.parts.filters import RIGHT, Filter
from groupwise.core.engine import Distribution, Engine, Sampling, StopIds, Stops
from groupwise.core.numbers.measure import Logged, Measure, logged_of, values_of
from groupwise.core.numbers.metrics import mean_of, read
from groupwise.core.numbers.seeds import derive, stream
from groupwise.core.numbers.statistics import pass_at_k, standard_error
from groupwise.core.records import Completion, Evaluation, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.settings import Changeable
from groupwise.core.stream import Cohort, RolloutResult, StreamState
from groupwise.core.task import Streams
from groupwise.rollout.episodes import Plays
from groupwise.rollout.scoring import RewardWeights, Scorer, ScoringRound, with_learned
from groupwise.rollout.segments import Sampler, Segment, advance, unfinished

#: No refill round assumes that fewer than this share of groups will be kept, so that one unlucky step stays affordable.
LEAST_KEEP_RATE = 0.25
#: Problems of each held-out set that are evaluated where the recipe does not say.
USUAL_PROBLEMS = 512


Encode = Callable[[Sample], tuple[int, ...]]


class Prompts:
    """The training problems without end: draw i is a function of (seed, i), and of the levels where the task has any.

    A task's list comes in shuffled order, all of it before any comes again.
    """

    def __init__(self, source: Sequence[Sample] | Streams, encode: Encode, seed: int) -> None:
        self.source, self.encode, self.seed = source, encode, seed
        self._epoch, self._order = -1, torch.empty(0)

    def draw(self, index: int, levels: Mapping[str, int] | None = None) -> Prompt:
        sample = self._sample(index, levels or {})
        return Prompt(sample, self.encode(sample))

    def _sample(self, index: int, levels: Mapping[str, int]) -> Sample:
        if isinstance(self.source, Streams):
            return self.source.draw(index, self.seed, levels)
        epoch, position = divmod(index, len(self.source))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.randperm(len(self.source), generator=stream(self.seed, "prompts", epoch))
        return self.source[int(self._order[position])]


#: Prompts and completions, token ids, side by side -> a reward model's score of each, reward units.
Judge = Callable[[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]], list[float]]


@dataclass
class Rollout:
    """Generates, scores and filters until a step has its groups.

    turn_tokens  tokens that a completion draws in a round at most; None: it is sampled whole
    episodes     plays episodes, where the task has an environment; without it the engine samples completions
    top          most likely ids of the sampler that completions carry for each token, for a loss that reads them
    """

    engine: Engine
    scorer: Scorer
    prompts: Prompts
    sampling: Sampling
    samples_per_prompt: int
    filter: Filter
    judge: Judge | None = None
    measure: Measure = Measure()
    turn_tokens: int | None = None
    episodes: Plays | None = None
    top: int = 0
    state: StreamState = field(default_factory=StreamState)

    @property
    def by_score(self) -> bool:
        """True if the task's own score is all that trains."""
        return self.judge is None and self.scorer.by_score

    def collect(self, wanted: int, during: Callable[[str], None] = lambda phase: None) -> RolloutResult:
        """Collect the next `wanted` groups. Whole rounds of prompts are finished before any is chosen, so short
        completions have no head start; what is left over waits for the next step. If completions take several
        segments, each step samples at least one, so that none waits.
        """
        keep: list[Group] = list(self.state.surplus)
        generated: list[Group] = []
        dropped: list[Group] = []
        rounds = 0
        rate = self.state.keep_rate
        least = 1 if self.segment.count > 1 else 0
        while rounds < least or (len(keep) < wanted and rounds < self.filter.max_rounds):
            fresh = self._round(wanted, len(keep), max(rate, LEAST_KEEP_RATE), during)
            verdicts = [call("filter", self.filter, group) for group in fresh]
            keep += [group for group, verdict in zip(fresh, verdicts, strict=True) if verdict.keep]
            dropped += [group for group, verdict in zip(fresh, verdicts, strict=True) if not verdict.keep]
            generated += fresh
            rounds += 1
            rate = sum(v.keep for v in verdicts) / len(verdicts)
        fallback = dropped[: max(0, wanted - len(keep))]
        surplus = tuple(keep[wanted:])
        levels = moved(self.prompts.source, self.state.levels, generated)
        self.state = dataclasses.replace(self.state, surplus=surplus, keep_rate=rate, levels=levels)
        groups = (*keep[:wanted], *fallback)
        return RolloutResult(
            groups,
            tuple(generated),
            dropped=len(dropped),
            fallback=len(fallback),
            surplus=surplus,
            rounds=rounds,
            unfinished=unfinished(self.state.begun, self.segment),
        )

    def _round(self, wanted: int, ready: int, rate: float, during: Callable[[str], None]) -> list[Group]:
        """Sample a segment and return the groups that end in it; before the first, sample those in which none ends.

        wanted  groups a step
        ready   groups that there are for this one
        rate    the share of new groups that are taken to be kept
        """
        while len(self.state.begun) < self.segment.count - 1:
            during("generate")
            begun = self.sample(self._with_next(wanted, ready, rate), self.segment)
            self.state = dataclasses.replace(self.state, begun=tuple(begun))
        cohorts = self._with_next(wanted, ready, rate)
        groups, begun = ended(cohorts, self.sample, self.scorer, self.segment, self.judge, during)
        self.state = dataclasses.replace(self.state, begun=begun)
        return groups

    def _with_next(self, wanted: int, ready: int, rate: float) -> list[Cohort]:
        """Return the cohorts that have not ended, and one of new prompts: as many as bring a step's groups for each
        cohort, with those that are expected of the others; one at least.
        """
        begun = self.state.begun
        expected = ready + rate * sum(len(cohort.prompts) for cohort in begun)
        count = max(1, math.ceil((wanted * (len(begun) + 1) - expected) / rate))
        return [*begun, self.cohort(count)]

    def cohort(self, count: int) -> Cohort:
        """Draw the next `count` prompts."""
        first, seed = self.state.cursor, self.prompts.seed
        numbers = range(first, first + count)
        prompts = tuple(self.prompts.draw(i, self.state.levels) for i in numbers)
        self.state = dataclasses.replace(self.state, cursor=first + count)
        return Cohort(prompts, tuple(derive(seed, "completions", i) for i in numbers))

    def close(self) -> None:
        """End the processes that score, and those that episodes live in."""
        self.scorer.close()
        if self.episodes is not None:
            self.episodes.close()

    @property
    def sample(self) -> Sampler:
        """The sampler of a round."""
        return self.episodes or partial(advance, self.engine)

    @property
    def tools(self) -> Sequence[str]:
        """The names of the tools that the policy may call."""
        return self.episodes.tools if self.episodes is not None else ()

    @property
    def segment(self) -> Segment:
        """Sampling of a round."""
        return Segment(self.samples_per_prompt, self.sampling, self.turn_tokens, self.top)


def ended(
    cohorts: Sequence[Cohort],
    sample: Sampler,
    scorer: Scorer,
    segment: Segment,
    judge: Judge | None = None,
    during: Callable[[str], None] = lambda phase: None,
) -> tuple[list[Group], tuple[Cohort, ...]]:
    """Return the scored groups of the first cohort, which ends in a segment of all -> and the cohorts that go on.

    Slow scores are made beside generation; the phase "score" is what is left.
    """
    scoring = ScoringRound(scorer, cohorts[0].prompts)
    during("generate")
    done, *others = sample(cohorts, segment, scoring.begin)
    during("score")
    return scored_cohort(done, scorer, judge, scoring), tuple(others)


def scored_cohort(
    cohort: Cohort, scorer: Scorer, judge: Judge | None = None, scoring: ScoringRound | None = None
) -> list[Group]:
    """Return the groups of a cohort that has ended; `scoring` has been told of completions as they ended."""
    scores = (scoring or ScoringRound(scorer, cohort.prompts)).scored(cohort)
    groups = [Group(prompt, scored) for prompt, scored in zip(cohort.prompts, scores, strict=True)]
    return groups if judge is None else judged(groups, judge, scorer.rewards)


def scored_groups(
    sample: Sampler,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    seeds: Sequence[int],
    samples: int,
    sampling: Sampling,
    judge: Judge | None = None,
) -> list[Group]:
    """Sample and score a group for each prompt."""
    return ended([Cohort(tuple(prompts), tuple(seeds))], sample, scorer, Segment(samples, sampling), judge)[0]


def judged(groups: Sequence[Group], judge: Judge, rewards: RewardWeights) -> list[Group]:
    """Return the groups with the judge's score of each completion beside the task's."""
    pairs = [(group.prompt.tokens, c.tokens) for group in groups for c in group.completions]
    scores = iter(judge([prompt for prompt, _ in pairs], [completion for _, completion in pairs]))
    return [
        dataclasses.replace(g, completions=tuple(with_learned(c, next(scores), rewards) for c in g.completions))
        for g in groups
    ]


def moved(source: object, levels: Mapping[str, int], generated: Sequence[Group]) -> Mapping[str, int]:
    """Return the levels after a step, where the task has any."""
    if not isinstance(source, Streams):
        return levels
    return source.moved({**dict.fromkeys(source.sources, 0), **levels}, pass_rates(generated))


def pass_rates(groups: Sequence[Group]) -> dict[str, tuple[float, int]]:
    """Return for each source the share of its scored completions that are right, and how many there are."""
    votes = {
        source: [c.score >= RIGHT for g in own for c in g.completions if not math.isnan(c.score)]
        for source, own in _by(groups, lambda sample: sample.source).items()
    }
    return {source: (sum(right) / len(right), len(right)) for source, right in votes.items() if right}


class EvaluationSettings(Distribution):
    """Held-out evaluation: problems, sampling and metric.

    problems  most problems per held-out set; 0: no evaluation; default: 512, or all if fewer
    samples   completions per problem
    every     steps between evaluations; 0: only before the first step and after the last
    metric    "correctness" (the task's score), "reward" (the one that trains) or a reward's name; default: correctness
              if it trains, else the reward
    pass_at   lowest reward of a passing completion; default: 1 for correctness, no pass rates for other rewards
    stop      default: as in [sampling]
    stop_ids  default: as in [sampling]
    """

    problems: int | None = Field(default=None, ge=0)
    samples: int = Field(default=1, ge=1, le=2**16)
    every: Changeable[int] = Field(default=0, ge=0)
    metric: str | None = Field(default=None, min_length=1)
    pass_at: float | None = Field(default=None, ge=-1e9, le=1e9)
    stop: Stops | None = None
    stop_ids: StopIds | None = None

    @property
    def most(self) -> int:
        """Problems of each set at most."""
        return USUAL_PROBLEMS if self.problems is None else self.problems

    @property
    def unread(self) -> set[str]:
        """The keys that nothing reads: where nothing is evaluated all others."""
        return set() if self.most else set(type(self).model_fields) - {"problems"}

    def sampling(self, training: Sampling) -> Sampling:
        """Return how an evaluation's completions are sampled, which are as long as those of training may be."""
        own = {key: getattr(self, key) for key in Distribution.model_fields}
        stop = training.stop if self.stop is None else self.stop
        stop_ids = training.stop_ids if self.stop_ids is None else self.stop_ids
        return Sampling(**own, stop=stop, stop_ids=stop_ids, max_new_tokens=training.max_new_tokens)

    def with_ends(self, training: Sampling) -> "EvaluationSettings":
        """Return these settings with nothing left to training's ends."""
        whole = self.sampling(training)
        return self.replace(stop=whole.stop, stop_ids=whole.stop_ids)


@dataclass(frozen=True)
class HeldoutAnswers:
    """Answers that an evaluation sampled: the groups, and what rewards logged of their calls."""

    groups: Sequence[Group]
    logged: Logged


def heldout_answers(
    sample: Sampler,
    scorer: Scorer,
    problems: Sequence[Sample],
    encode: Encode,
    samples: int,
    sampling: Sampling,
    seed: int,
    judge: Judge | None = None,
) -> HeldoutAnswers:
    """Sample every problem `samples` times and score; the same seed gives the same random numbers each time."""
    prompts = [Prompt(s, encode(s)) for s in problems]
    seeds = [derive(seed, "evaluation", i) for i in range(len(prompts))]
    beside = scorer.beside()
    groups = scored_groups(sample, beside, prompts, seeds, samples, sampling, judge)
    return HeldoutAnswers(groups, beside.take_logged())


def measured(answers: HeldoutAnswers, measure: Measure, has_answers: bool) -> Evaluation:
    """Measure the answers of an evaluation; `has_answers` where the task knows right ones."""
    groups, completions = answers.groups, [c for g in answers.groups for c in g.completions]
    samples, has_mark = len(groups[0].completions), measure.pass_at is not None
    passed = [sum(measure.passes(c) for c in g.completions) for g in groups]
    logged = logged_of(completions).merged(answers.logged)
    by_problem = problem_values(groups, measure)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= samples and has_mark]
    return Evaluation(
        problems=len(groups),
        samples=samples,
        avg_at_k=math.fsum(passed) / len(completions) if has_mark else math.nan,
        pass_at_k={k: math.fsum(pass_at_k(samples, c, k) for c in passed) / len(groups) for k in ks},
        length_mean=sum(c.length for c in completions) / len(completions),
        truncated_share=sum(c.finish == "length" for c in completions) / len(completions),
        score_mean=_score_mean(groups) if has_answers else math.nan,
        unscored=sum(math.isnan(measure.value(c)) for c in completions),
        measured_mean=_measured_mean(groups, measure),
        standard_error=standard_error(list(by_problem.values())),
        rewards=_reward_means(completions),
        logged=read(logged.means),
        logged_total=read(logged.totals),
        by_source=_source_results(groups, measure, has_answers),
        by_problem=by_problem,
    )


def problem_values(groups: Sequence[Group], measure: Measure) -> dict[str, float]:
    """Return by each problem's key the share of its completions that pass; without a pass mark their mean value."""
    if measure.pass_at is not None:
        return {g.prompt.sample.key: fmean(map(measure.passes, g.completions)) for g in groups}
    values = ((g.prompt.sample.key, values_of(g, measure.metric)) for g in groups)
    return {key: fmean(of_problem) for key, of_problem in values if of_problem}


def _reward_means(completions: Sequence[Completion]) -> dict[str, float]:
    scores: dict[str, list[float]] = {}
    for completion in completions:
        for name, score in completion.reward_scores:
            scores.setdefault(name, []).extend([] if math.isnan(score) else [score])
    return {name: mean_of(values).read() for name, values in scores.items()}


def _by(groups: Sequence[Group], name: Callable[[Sample], str]) -> dict[str, list[Group]]:
    named: dict[str, list[Group]] = {}
    for group in groups:
        named.setdefault(name(group.prompt.sample), []).append(group)
    return named


def _source_results(groups: Sequence[Group], measure: Measure, has_answers: bool) -> dict[str, dict[str, float]]:
    """Return the results of each source and each held-out set with a name; a set's name comes first."""
    has_mark = measure.pass_at is not None
    by_name = {**_by(groups, lambda sample: sample.source), **_by(groups, lambda sample: sample.heldout_set)}
    return {
        source: {
            "problems": len(own),
            **({"avg_at_k": fmean(measure.passes(c) for g in own for c in g.completions)} if has_mark else {}),
            **({"score_mean": _score_mean(own)} if has_answers else {}),
            "measured_mean": _measured_mean(own, measure),
        }
        for source, own in sorted(by_name.items())
        if source
    }


def _score_mean(groups: Sequence[Group]) -> float:
    scores = [c.score for g in groups for c in g.completions]
    return math.fsum(s for s in scores if not math.isnan(s)) / len(scores)


def _measured_mean(groups: Sequence[Group], measure: Measure) -> float:
    return mean_of([value for group in groups for value in values_of(group, measure.metric)]).read()
