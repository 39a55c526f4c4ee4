"""The task `code`: completions are programs, run in the sandbox and judged by tests.

Problems come from a JSONL file (one object a line: a prompt, its tests in a form of sandbox.judge, optionally an entry
point, a solution, and a prefix that is put before the completion); without a file they are the small functions of
`generated`, which a tiny policy can learn to write.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from groupwise.core.errors import UsageError, listed, one_line
from groupwise.core.files.json_text import encoded
from groupwise.core.files.paths import location, require_regular
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration, Starting
from groupwise.rewards.sandbox import ACCEPTED, Layers, Limits, Sandbox, judge, words
from groupwise.rewards.sandbox.judge import MARGIN, Failure, Test
from groupwise.tasks.data.formats import JsonLines
from groupwise.tasks.settings import (
    SPLITS,
    SentAsSettings,
    fewest_and_most,
    in_hash_order,
    require_shares,
    require_split,
    split_by_prompt,
)

PREFIX = "def f(x):"
ALPHABET = "0123456789+-*=:; xreturn"
_STEP = re.compile(r"[-+*][0-9]")
_STEPS = [sign + str(n) for sign, most in (("+", 9), ("-", 9), ("*", 4)) for n in range(1 + (sign == "*"), most + 1)]
_INPUTS = (-7, -1, 0, 2, 5)


@lru_cache(maxsize=8)
def chains(steps: tuple[int, int], heldout_share: float, problems: int, seed: int) -> dict[str, tuple[Sample, ...]]:
    """Return the samples of "train" and "heldout", at most `problems` together."""
    rng = random.Random(seed)
    prompts: set[str] = set()
    counts = range(steps[0], steps[1] + 1)
    for count in counts:
        for _ in range(4 * problems // len(counts)):
            chain = [rng.choice(_STEPS) for _ in range(count)]
            # Haste fails where a multiplication comes after a sum: Python would do it first.
            if re.search(r"[-+].*\*", "".join(chain)) and len(prompts) < problems:
                prompts.add("".join(chain) + ":")
    samples = []
    for prompt in in_hash_order(prompts, seed):
        tests = [{"call": "f", "args": [x], "expected": value(prompt, x)} for x in _INPUTS]
        samples.append(Sample(prompt, prompt, right(prompt), extra={"prefix": PREFIX, "tests": tests}))
    return split_by_prompt(samples, heldout_share)


def chain_demonstrations(train: Sequence[Sample], worked_share: float, count: int, seed: int) -> list[Demonstration]:
    """Draw `count` demonstrations on these problems, a `worked_share` of them right."""
    rng = random.Random(seed)
    chosen = [(rng.choice(train).prompt, rng.random() < worked_share) for _ in range(count)]
    return [Demonstration(prompt, right(prompt) if works else hasty(prompt)) for prompt, works in chosen]


def right(prompt: str) -> str:
    """Take step after step: `+3*2:` -> `x+=3;x*=2;return x`."""
    return "".join(f"x{step[0]}={step[1]};" for step in _STEP.findall(prompt)) + "return x"


def hasty(prompt: str) -> str:
    """Write the steps as they stand: `+3*2:` -> `return x+3*2`, which adds 6."""
    return "return x" + prompt.rstrip(":")


def value(prompt: str, x: int) -> int:
    """Compute what the steps make of x.

    >>> value("+3*2:", 1)
    8
    """
    for step in _STEP.findall(prompt):
        sign, number = step[0], int(step[1])
        x = x + number if sign == "+" else x - number if sign == "-" else x * number
    return x


#: A block in fences, as CommonMark has it: of backticks or tildes, closed by as many at least, and maybe indented.
_FENCE = re.compile(r"(^[ \t]*)?(`{3,}|~{3,})[ \t]*(\w*)[^\n]*\n(.*?)(?:^[ \t]*\2|\Z)", re.DOTALL | re.MULTILINE)
_LANGUAGES = ("python", "py", "python3")


@dataclass(frozen=True)
class Code(SentAsSettings):
    """Programs judged by tests, each in a new sandbox process.

    path           JSONL file of problems; "": small generated functions
    heldout        JSONL file of held-out problems; "": `heldout_share` of `path`
    heldout_share  share of problems held out
    prompt         column of the problem
    tests          column of the tests that judge a program
    entry_point    column of the function's name; optional
    solution       column of a correct program; optional
    partial        score the share of passed tests; false: 1.0 if all pass, else 0.0
    seconds        seconds for one completion's program, all tests together
    memory         address space of a program, MiB
    sandbox        "": refuse to run unprotected; or the sentence that accepts the risk
    steps          (fewest, most) steps of a generated function, 2 to 6
    worked_share   share of correct demonstrations of generated functions
    problems       most generated functions, both splits together
    seed           seed of the generated functions and their order
    """

    path: str = ""
    heldout: str = ""
    heldout_share: float = 0.12
    prompt: str = "prompt"
    tests: str = "tests"
    entry_point: str = "entry_point"
    solution: str = "solution"
    partial: bool = False
    seconds: float = 5.0
    memory: int = 512
    sandbox: str = ""
    steps: tuple[int, int] = (2, 3)
    worked_share: float = 0.4
    problems: int = 6_000
    seed: int = 0

    quick: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.sandbox not in ("", ACCEPTED):
            raise UsageError(f'task.sandbox = {self.sandbox!r}: must be empty or, to take the risk, "{ACCEPTED}"')
        require_shares(self.heldout_share, self.worked_share, self.problems)
        if not 0.05 <= self.seconds <= 3600 or not 64 <= self.memory <= 1 << 20:
            bounds = "task.seconds must be from 0.05 to 3600 and task.memory from 64 to 1048576 (MiB)"
            raise UsageError(f"{bounds}, not {self.seconds} and {self.memory}")
        object.__setattr__(self, "steps", fewest_and_most("steps", self.steps, limit=6))
        if self.heldout and not self.path:
            raise UsageError("task.heldout names a file and task.path does not; name the training problems too")
        if not all(self.samples(split) for split in SPLITS):
            raise UsageError(f"{self} leaves a split empty; raise task.problems or change task.heldout_share")

    @property
    def alphabet(self) -> str:
        """Every character of the generated functions; "" for those of a file."""
        return "" if self.path else ALPHABET

    @property
    def longest(self) -> float:
        """Seconds that scoring one completion may take, whatever its program does."""
        return self.seconds + MARGIN

    def start_inside(self, starting: Starting) -> None:
        """Let the sandbox start inside of `starting()`, from now on."""
        self._box.starting = starting

    @property
    def layers(self) -> Layers:
        """The protection of this machine from the completions. Raises UsageError if that is too little."""
        return self._box.layers

    @property
    def contents(self) -> str:
        """A hash of what the files say."""
        samples = [sample for split in SPLITS for sample in self._file_splits[split]] if self.path else []
        return hashlib.sha256(repr(samples).encode()).hexdigest()

    def notes(self) -> list[str]:
        """Say what stands between the completions and this machine. Raises UsageError if that is too little."""
        return [f"sandbox: {self.layers}"]

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the problems of "train" or "heldout", in the same order in every process.

        Raises UsageError naming file and line for a row that is no problem.
        """
        require_split(split, "code")
        if self.path:
            return self._file_splits[split]
        return chains(self.steps, self.heldout_share, self.problems, self.seed)[split]

    def score(self, sample: Sample, completion: str) -> float:
        """Return 1.0 if the completion passes every test, else 0.0; with `partial` the share of tests passed."""
        return self._worth(self._judged(sample, completion)[2])

    def explained(self, sample: Sample, completion: str) -> tuple[float, str]:
        """Return the score, and in a line of `sandbox.words` why a test failed: the first one; "" if all passed."""
        program, tests, results = self._judged(sample, completion)
        first = next((failure for failure in results if failure is not None), None)
        called = [name for test in tests for name in judge.called(test)]
        return self._worth(results), "" if first is None else words.in_words(self._box, first, program, called)

    def _judged(self, sample: Sample, completion: str) -> tuple[str, Sequence[Test], list[Failure | None]]:
        extra = sample.extra
        entry = str(extra.get("entry_point", ""))
        program, tests = assemble(completion, str(extra.get("prefix", "")), entry), judge.parse(extra["tests"], entry)
        return program, tests, judge.failures(self._box, program, tests, every=self.partial)

    def _worth(self, results: Sequence[Failure | None]) -> float:
        passed = [failure is None for failure in results]
        return sum(passed) / len(passed) if self.partial else float(all(passed))

    def gold(self, sample: Sample) -> str:
        """Return the problem's solution, "" if its row has none."""
        return sample.answer

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Draw `count` demonstrations: of generated functions a mixture of right and hasty ones, of a file its
        solutions.
        """
        train = self.samples("train")
        if not self.path:
            return chain_demonstrations(train, self.worked_share, count, seed)
        solved = [Demonstration(s.prompt, s.answer) for s in train if s.answer]
        if not solved and count:
            raise UsageError(f"{self.path} has no column {self.solution!r}, which the warm start would imitate")
        return [solved[i % len(solved)] for i in range(count)]

    @cached_property
    def _box(self) -> Sandbox:
        return Sandbox(Limits(self.seconds, self.memory * 2**20), accept_risk=self.sandbox == ACCEPTED)

    @cached_property
    def _file_splits(self) -> dict[str, tuple[Sample, ...]]:
        if not self.heldout:
            return split_by_prompt(self._read(self.path), self.heldout_share)
        return {"train": tuple(self._read(self.path)), "heldout": tuple(self._read(self.heldout))}

    def _read(self, path: str) -> Iterator[Sample]:
        file = location(path, "task.path")
        require_regular(file, path)
        row, source = None, JsonLines(str(file))
        for row in source.rows():
            yield self._sample(row.values, key=f"{file.name}:{row.number}", where=source.where(row.number))
        if row is None:
            raise UsageError(f"{path} is empty; it must hold one problem a line, as JSON")

    def _sample(self, row: Mapping[str, Any], key: str, where: str) -> Sample:
        missing = [column for column in (self.prompt, self.tests) if column not in row]
        if missing:
            raise UsageError(f"{where}: no column {missing[0]!r}; it has {listed(row)}")
        prompt, tests = row[self.prompt], row[self.tests]
        entry_point, prefix = row.get(self.entry_point) or "", row.get("prefix", "")
        for column, text in {self.prompt: prompt, "entry_point": entry_point, "prefix": prefix}.items():
            if not isinstance(text, str):
                raise UsageError(f"{where}: {column} must be text, not {text!r:.80}")
        try:
            judge.parse(tests, entry_point)
        except (ValueError, RecursionError, MemoryError) as error:  # the last two from Python's parser
            raise UsageError(f"{where}: {self.tests}: {one_line(error)}") from None
        solution = str(row.get(self.solution) or "")
        encoded(prompt + solution + entry_point + prefix, where)
        extra = {"tests": tests, "entry_point": entry_point, "prefix": prefix}
        return Sample(key, prompt, answer=solution, extra=extra)


def assemble(completion: str, prefix: str, entry_point: str) -> str:
    """Return the program of a completion, after the prefix: the last block in fences that defines the entry point,
    which stands alone; else its blocks of Python, and with a prefix the last of them; without fences all of it.

    >>> assemble("x+1", "def f(x): return ", "f")
    'def f(x): return x+1'
    >>> assemble("```python\\ndef f(x):\\n    return x+1\\n```\\nOutput:\\n```\\n3\\n```", "", "f")
    'def f(x):\\n    return x+1\\n'
    """
    blocks = list(_blocks(completion))
    tagged = [code for language, code in blocks if language in _LANGUAGES]
    programs = tagged or [code for language, code in blocks if not language]
    if not programs:
        return prefix + completion
    name = re.escape(entry_point)
    defines = re.compile(rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b|^{name}[ \t]*=", re.MULTILINE)
    if entry_point and (defining := [code for code in programs if defines.search(code)]):
        return defining[-1]
    return prefix + programs[-1] if prefix or not entry_point else "\n".join(programs)


def _blocks(completion: str) -> Iterator[tuple[str, str]]:
    """Return the language and the code of each block in fences; code is indented as far as its fence is."""
    for indent, _, language, code in _FENCE.findall(completion):
        yield language.lower(), re.sub(rf"^[ \t]{{1,{len(indent)}}}", "", code, flags=re.MULTILINE) if indent else code
