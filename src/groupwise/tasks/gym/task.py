"""The task `reasoning_gym`: any of its generators, alone or mixed by weight, scored by its own scorer.

Whether a problem is held out is decided by the hash of its prompt, so no seed, level or draw can move it across.
"""

import ast
import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, ClassVar

from groupwise.core.errors import UsageError, nearest
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration, Starting
from groupwise.tasks.gym.generators import (
    KNOWN,
    Generator,
    distinct_samples,
    entry_of,
    library,
    make_dataset,
    make_generator,
    mistaken_completion,
    right_completion,
    short_question,
)
from groupwise.tasks.settings import (
    SPLITS,
    SentAsSettings,
    field_defaults,
    hash_fraction,
    require_shares,
    require_split,
    require_type,
    split_by_prompt,
)

_SEEDS = 2**31  # numpy takes no larger seed than twice this


@dataclass(frozen=True)
class Curriculum:
    """The rule by which a generator's level moves. Without levels nothing does.

    levels        how many there are, level 0 the easiest; a generator that has fewer stays at its last
    up, down      pass rates of a step: at or above `up` one level up, at or below `down` one down
    completions   how many completions a rate must come from, or it moves nothing

    >>> Curriculum(levels=3).moved({"gcd": 1, "lcm": 2}, {"gcd": (0.9, 64), "lcm": (0.9, 64)})
    {'gcd': 2, 'lcm': 2}
    """

    levels: int = 1
    up: float = 0.8
    down: float = 0.2
    completions: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 100:
            raise UsageError(f"task.curriculum.levels must be at least 1 and at most 100, not {self.levels}")
        if self.completions < 1:
            raise UsageError(f"task.curriculum.completions must be at least 1, not {self.completions}")
        if not 0 <= self.down < self.up <= 1:
            what = f"not down = {self.down} and up = {self.up}"
            raise UsageError(f"task.curriculum: 0 <= down < up <= 1 must hold, {what}")

    def moved(self, levels: Mapping[str, int], rates: Mapping[str, tuple[float, int]]) -> dict[str, int]:
        """Return the levels after a step with these (pass rate, completions); a source without a rate stays."""
        known = {name: rate for name, (rate, completions) in rates.items() if completions >= self.completions}
        steps = {name: (rate >= self.up) - (rate <= self.down) for name, rate in known.items()}
        return {
            name: min(max(level + steps[name], 0), self.levels - 1) if name in steps else level
            for name, level in levels.items()
        }


def parameters_at(generator: str, level: int) -> dict[str, Any]:
    """Name -> value of the parameters that reasoning_gym's own curriculum gives a level: each range from its easiest
    value up to that level's. Empty where the generator has no curriculum.
    """
    factory = library("reasoning_gym.factory")
    if not factory.has_curriculum(generator):
        return {}
    schedule = factory.create_curriculum(generator)
    schedule.set_global_level(level)
    parameters = schedule.generate_configuration()
    # A range has two fields, any other attribute one.
    fields = ("field_name", "lower_field_name", "upper_field_name")
    names = [getattr(a, field) for a in schedule.attributes.values() for field in fields if hasattr(a, field)]
    return {name: getattr(parameters, name) for name in names}


@dataclass(frozen=True)
class Gym(SentAsSettings):
    """One reasoning_gym generator, or a mixture of `generators`.

    generator      name of a reasoning_gym generator
    parameters     parameters of that generator
    generators     mixture: generator -> its parameters and a `weight`
    problems       problems drawn per generator (and level), both splits together; duplicates count once
    heldout_share  share of problems held out
    question       "full": the generator's words; "short": a few characters, for tiny policies
    answer_after   the answer follows the last of these texts; "": the whole completion
    tags           the answer is between `<answer>` and `</answer>`
    worked_share   share of correct demonstrations
    curriculum     `levels`, `up`, `down` and `completions` (docs/howto/reasoning_gym.md); empty: fixed difficulty
    seed           seed of the problems

    >>> task = Gym(generator="gcd", parameters={"max_value": 50}, problems=100)
    >>> sample = task.samples("train")[0]
    >>> task.score(sample, sample.answer)
    1.0
    """

    generator: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    generators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: int = 2000
    heldout_share: float = 0.12
    question: str = "full"
    answer_after: str = ""
    tags: bool = False
    worked_share: float = 0.45
    curriculum: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    quick: ClassVar[bool] = False  # its scorers are many people's code
    late: ClassVar[float] = 0.0  # and some look for ever at an answer that is none

    def __post_init__(self) -> None:
        require_shares(self.heldout_share, self.worked_share, self.problems)
        if self.tags and self.answer_after:
            raise UsageError("task.tags and task.answer_after both say where the answer stands; set one of them")
        self._require_question()
        self._datasets  # noqa: B018  refuses impossible parameters before anything starts

    def start_inside(self, starting: Starting) -> None:
        """Load the generators' scorers inside of `starting()`."""
        with starting():
            self._datasets  # noqa: B018

    @property
    def sources(self) -> tuple[str, ...]:
        """The generators' names."""
        return tuple(self._generators)

    @cached_property
    def alphabet(self) -> str:
        """Every character of all prompts, answers and demonstrations, at every level."""
        characters = set("<answer></answer>" if self.tags else self.answer_after)
        for sample in itertools.chain(*(s for split in self._splits.values() for s in split.values())):
            characters.update(sample.prompt, sample.answer)
            if sample.source in KNOWN:
                characters.update(self._right(sample), mistaken_completion(sample, (), self.tags, random.Random()))
        return "".join(sorted(characters))

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the problems of "train" (at level 0, each generator in proportion to its weight, as many as the
        scarcest allows) or "heldout" (of every level, the generators in turn), the same in every process.
        """
        require_split(split, "reasoning_gym")
        return self._mixture if split == "train" else self._in_turn

    def score(self, sample: Sample, completion: str) -> float:
        """Score by the generator's own scorer the answer in the completion; some give part of a point when wrong.

        0.0 if the scorer fails: a text it cannot read is no answer.
        """
        answer = final_answer(completion, self.answer_after, self.tags)
        if answer is None or not harmless(sample.source, answer):
            return 0.0
        level: Any = sample.extra["level"]
        scorer, entry = self._datasets[sample.source, level], entry_of(sample)
        try:
            return float(scorer.score_answer(answer, entry))
        except Exception:  # some scorers take for granted that an answer looks like one
            return 0.0

    def gold(self, sample: Sample) -> str:
        """Write a right completion, in the form that answers are looked for; "" if the generator names no answer."""
        return self._right(sample) if sample.extra["answered"] else ""

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Draw `count` demonstrations on training problems of all levels, the generators by weight: a `worked_share` of
        them right, the others mistaken. Raises UsageError if no generator names its answers.
        """
        every = {name: [s for s in samples if s.extra["answered"]] for name, samples in self._splits["train"].items()}
        answered = {name: samples for name, samples in every.items() if samples}
        if not answered:
            raise UsageError(f"{', '.join(self.sources)}: reasoning_gym names no answer, so nothing can be shown")
        rng, weights = random.Random(seed), [self._generators[name].weight for name, _ in answered]
        shown = []
        for _ in range(count):
            samples = rng.choices(list(answered.values()), weights)[0]
            sample, right = rng.choice(samples), rng.random() < self.worked_share
            completion = self._right(sample) if right else mistaken_completion(sample, samples, self.tags, rng)
            shown.append(Demonstration(sample.prompt, completion))
        return shown

    def _right(self, sample: Sample) -> str:
        return right_completion(sample, self.answer_after, self.tags)

    def draw(self, index: int, seed: int, levels: Mapping[str, int]) -> Sample:
        """Draw training problem number `index` of a stream: its generator by weight, at that generator's level."""
        rng = random.Random(_seed("draw", seed, index))
        weights = [generator.weight for generator in self._generators.values()]
        name = rng.choices(self.sources, weights)[0]
        return rng.choice(self._splits["train"][name, min(levels.get(name, 0), self._curriculum.levels - 1)])

    def moved(self, levels: Mapping[str, int], rates: Mapping[str, tuple[float, int]]) -> Mapping[str, int]:
        """Return each generator's level after a step with these (pass rate, completions) of it."""
        return self._curriculum.moved(levels, rates)

    @cached_property
    def _generators(self) -> dict[str, Generator]:
        if bool(self.generator) == bool(self.generators):
            each = "a table [task.generators.chain_sum] for each of several"
            raise UsageError(f'task: set generator = "chain_sum", or {each}')
        if self.generators and self.parameters:
            raise UsageError("task.parameters belong to task.generator; write them under [task.generators.NAME]")
        if self.generator:
            return {self.generator: make_generator(self.generator, self.parameters, "task.parameters")}
        return {name: make_generator(name, table, f"task.generators.{name}") for name, table in self.generators.items()}

    @cached_property
    def _curriculum(self) -> Curriculum:
        defaults = field_defaults(Curriculum)
        for key, value in self.curriculum.items():
            if key not in defaults:
                raise UsageError(f"task.curriculum.{key}: there is no such key; {nearest(key, defaults)}")
            require_type(f"task.curriculum.{key}", value, defaults[key])
        if self.curriculum and "levels" not in self.curriculum:
            raise UsageError("task.curriculum.levels is missing; such as levels = 4")
        return Curriculum(**self.curriculum)

    @cached_property
    def _datasets(self) -> dict[tuple[str, int], Any]:
        """(generator, level) -> reasoning_gym's object. A recipe's parameter replaces the level's."""
        datasets = {}
        for (name, generator), level in itertools.product(self._generators.items(), range(self._curriculum.levels)):
            parameters = parameters_at(name, level) if self._curriculum.levels > 1 else {}
            parameters = {**parameters, **generator.parameters}
            datasets[name, level] = make_dataset(generator, parameters, _seed(self.seed, name, level), self.problems)
        return datasets

    @cached_property
    def _splits(self) -> dict[str, dict[tuple[str, int], tuple[Sample, ...]]]:
        """Split -> (generator, level) -> its different problems, in a shuffled order."""
        splits: dict[str, dict[tuple[str, int], tuple[Sample, ...]]] = {split: {} for split in SPLITS}
        for (name, level), dataset in self._datasets.items():
            question = short_question if self.question == "short" else itemgetter("question")
            samples = self._shuffled("order", distinct_samples(self._generators[name], dataset, level, question))
            for split, members in split_by_prompt(samples, self.heldout_share, separator="\0").items():
                if not members:
                    what = f"{self._generators[name].where}: {name} gives too few different problems to hold some out"
                    raise UsageError(f"{what} and train on others; raise task.problems, or its parameters")
                splits[split][name, level] = members
        return splits

    def _shuffled(self, name: str, samples: Iterable[Sample]) -> tuple[Sample, ...]:
        return tuple(sorted(samples, key=lambda sample: hash_fraction(name, self.seed, sample.key)))

    @cached_property
    def _mixture(self) -> tuple[Sample, ...]:
        easiest = [(self._splits["train"][name, 0], g.weight) for name, g in self._generators.items()]
        scale = min(len(samples) / weight for samples, weight in easiest)
        parts = (samples[: max(1, round(scale * weight))] for samples, weight in easiest)
        return self._shuffled("mixture", itertools.chain(*parts))

    @cached_property
    def _in_turn(self) -> tuple[Sample, ...]:
        """Any first part holds equally many of each generator and level; what two levels share counts for the first."""
        rounds = itertools.zip_longest(*self._splits["heldout"].values())
        members = [sample for turn in rounds for sample in turn if sample is not None]
        distinct = {sample.key: sample for sample in reversed(members)}
        return tuple(reversed(distinct.values()))

    def _require_question(self) -> None:
        if self.question not in ("full", "short"):
            raise UsageError(f'task.question = {self.question!r}: must be "full" or "short"')
        without = [name for name in self._generators if name not in KNOWN]
        if self.question == "short" and without:
            what = f"task.question = 'short': {', '.join(without)} can only be asked in full"
            raise UsageError(f"{what}; short are {', '.join(KNOWN)}")


def _seed(*parts: object) -> int:
    return int(hash_fraction("seed", *parts) * _SEEDS)


_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_LONGEST = 2000  # characters; beyond it even reading an expression takes a while
_HIGHEST = 1000  # exponents multiplied: sympy works out 9**9**9**9, or tries to

_NUMBERS = (ast.Expression, ast.Constant, ast.UnaryOp, ast.UAdd, ast.USub, ast.BinOp, ast.Add, ast.Sub)
_LITERAL = (*_NUMBERS, ast.List, ast.Tuple, ast.Name, ast.Load)
_ARITHMETIC = (*_NUMBERS, ast.Mult, ast.Div, ast.Pow)
_FORMULA = (*_ARITHMETIC, ast.Name, ast.Load, ast.Call)
_TRIGONOMETRIC = ("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan")
_HYPERBOLIC = ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
_FUNCTIONS = frozenset({*_TRIGONOMETRIC, *_HYPERBOLIC, "exp", "log", "ln", "sqrt", "abs", "Abs"})


def final_answer(completion: str, after: str, tags: bool) -> str | None:
    """Find the answer in a completion, stripped: in the last <answer> tags (None if there are none), behind the last
    `after` (all of it where there is none), or all of it.

    >>> final_answer("12-4=8", "=", False), final_answer("so <answer>8</answer>.", "", True)
    ('8', '8')
    """
    if tags:
        tagged = _TAGGED.findall(completion)
        return tagged[-1].strip() if tagged else None
    return (completion.rsplit(after, 1)[-1] if after else completion).strip()


def harmless(generator: str, answer: str) -> bool:
    """Tell if the generator's scorer may see the answer. Nine scorers hand it to Python's or sympy's evaluation,
    so that it could do anything; these get an answer only if it is a literal, or a formula of known functions.

    >>> harmless("countdown", "3*(4 + 5)"), harmless("countdown", "__import__('os').abort()")
    (True, False)
    """
    check = _CHECKS.get(generator)
    return check is None or (len(answer) <= _LONGEST and check(answer))


def _is_literal(answer: str) -> bool:
    """Tell if an answer is a literal, or no Python at all, which evaluation refuses before anything runs."""
    try:
        return all(isinstance(node, _LITERAL) for node in ast.walk(ast.parse(answer, mode="eval")))
    except SyntaxError:
        return True
    except (ValueError, MemoryError, RecursionError):
        return False


def _is_formula(answer: str, allowed: tuple[type[ast.AST], ...] = _FORMULA) -> bool:
    """Tell if an answer is a formula. Sympy reads more than Python (`5!`), so what is no Python is refused."""
    try:
        nodes = list(ast.walk(ast.parse(answer, mode="eval")))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return all(isinstance(node, allowed) and _is_tame(node) for node in nodes) and _height(nodes[0]) <= _HIGHEST


def _is_tame(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    return not isinstance(node, ast.Constant) or type(node.value) in (int, float)


def _height(node: ast.AST) -> float:
    """Find the largest product of nested exponents, 1 where there are none."""
    operands = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    inner = max(map(_height, operands), default=1.0)
    is_power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    return inner * max(1.0, _bound(node.right)) if is_power else inner  # type: ignore[union-attr]


def _bound(node: ast.AST) -> float:
    """Bound the value of an exponent, its symbols taken as 1; a division may only be by a whole number."""
    if isinstance(node, ast.Constant):
        return abs(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp):
        return _bound(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _bound(node.left), _bound(node.right)
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            divisor = node.right.value if isinstance(node.right, ast.Constant) else None
            return left if type(divisor) is int and divisor > 0 else float("inf")
        return left + right if isinstance(node.op, (ast.Add, ast.Sub)) else float("inf")
    return 1.0 if isinstance(node, (ast.Name, ast.Call)) else float("inf")


_CHECKS: Mapping[str, Callable[[str], bool]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), _is_literal),
    **dict.fromkeys(("countdown", "puzzle24"), partial(_is_formula, allowed=_ARITHMETIC)),
    **dict.fromkeys(("intermediate_integration", "polynomial_multiplication", "simple_integration"), _is_formula),
}
