"""How answers are judged and how fast: the tables of docs/answers.md, from files of GSM8K (JSON lines).

python benchmarks/answers.py train.jsonl test.jsonl
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from groupwise.rewards.verifiers.answers import Checker, Math, Numeric
from groupwise.rewards.verifiers.numerals import read

Pair = tuple[str, str]

#: How a right answer may be written; {n} is the number.
RIGHT = {
    "`18`": "{n}",
    "`1,018`": "{n:,}",
    "`$18`": "${n:,}",
    "`18.00`": "{n}.00",
    "`18 dollars`": "{n} dollars",
    r"`\boxed{18}`": r"So the total is $\boxed{{{n}}}$.",
    "`#### 18`": "5 + 7 = 12\n#### {n}",
    "`<answer>18</answer>`": "<think>it may be 3</think><answer>{n}</answer>",
    "`The answer is 18.`": "We add 5 and 7. The answer is {n}.",
    "`**Answer:** $18$`": "**Answer:** ${n}$",
    "`So she earns $18.`": "So she earns ${n:,}.",
    "`After 3 days, 5 of them have 18.`": "After 3 days, 5 of them have {n}.",
}

#: What lists guesses, the right one last or between others.
WRONG = {
    "`16, 17, 18`": "{a}, {b}, {n}",
    "`18, 19, 20`": "{n}, {c}, {d}",
    "`it is 16 or 17 or 18`": "it is {a} or {b} or {n}",
    "`It is 17. It is 18.`": "It is {b}. It is {n}.",
    r"`\boxed{17} \boxed{18}`": r"\boxed{{{b}}} \boxed{{{n}}}",
    r"`\boxed{17, 18}`": r"\boxed{{{b}, {n}}}",
    "`The answer is 17. The answer is 18.`": "The answer is {b}. The answer is {n}.",
    "`#### 17`, `#### 18`": "#### {b}\n#### {n}",
    "fifty numbers up to it, by commas": "{list}",
    "fifty numbers up to it, a line each": "{lines}",
}


def rows(paths: Sequence[str]) -> list[Pair]:
    """(worked solution, gold answer) of every problem."""
    lines = [line for path in paths for line in Path(path).read_text().splitlines()]
    solutions = [json.loads(line)["answer"] for line in lines]
    return [(solution, solution.rpartition("####")[2].strip()) for solution in solutions]


def written(form: str, answer: str) -> str:
    """The form with the number filled in; a, b below it, c, d above."""
    n = _whole(answer)
    upto = [str(k) for k in range(n - 49, n + 1)]
    return form.format(n=n, a=n - 2, b=n - 1, c=n + 1, d=n + 2, list=", ".join(upto), lines="\n".join(upto))


def verdicts(data: list[Pair], check: Checker) -> Iterator[str]:
    """The table: how many of the problems score 1 with each way to write, and with the number plus 1."""
    yield "| the completion | scores 1 with the gold answer | scores 1 with the gold answer plus 1 |"
    yield "|---|---|---|"
    ways: dict[str, Callable[[Pair], str]] = {
        "the whole solution, `#### n` included": lambda pair: pair[0],
        "the solution without its `#### n` line": lambda pair: pair[0].rpartition("####")[0],
        "the gold answer as it stands": lambda pair: pair[1],
        **{name: lambda pair, form=form: written(form, pair[1]) for name, form in {**RIGHT, **WRONG}.items()},
    }
    for name, way in ways.items():
        right = sum(check(way(pair), pair[1]) for pair in data)
        off = sum(check(way(_plus_one(pair)), pair[1]) for pair in data)
        shown = "(as before: its number is in the text)" if name.startswith("the solution without") else f"{off:,.0f}"
        yield f"| {name} | {right:,.0f} of {len(data):,} | {shown} |"


def latex(count: int, seed: int) -> list[Pair]:
    """(completion, gold) with LaTeX on both sides, all different, every second one right."""
    rng = random.Random(seed)
    return [_formula(rng, rng.randint(2, 99), rng.randint(2, 99), number % 2) for number in range(count)]


def speeds(data: list[Pair]) -> Iterator[str]:
    """Seconds for 1,024 answers in two processes, with the start of the processes and without."""
    rng = random.Random(0)
    forms = list(RIGHT.values())
    some = rng.sample(data, min(1024, len(data)))
    mixed = [(body.rpartition("####")[0] + "\n" + written(rng.choice(forms), gold), gold) for body, gold in some]
    yield "| 1,024 answers, kind math, two processes | seconds | right | with the start of both |"
    yield "|---|---|---|---|"
    for name, pairs in (("solutions as in GSM8K, twelve ways to end", mixed), ("LaTeX, all different", latex(1024, 0))):
        begin = time.perf_counter()
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            list(pool.map(timed, [pairs[:1], pairs[-1:]]))  # both have started, and their children
            warm = time.perf_counter()
            right = sum(pool.map(timed, [pairs[0::2], pairs[1::2]]))
            end = time.perf_counter()
        yield f"| {name} | {end - warm:.2f} | {right:.0f} | {end - begin:.2f} |"


_CHECK = Math()


def timed(pairs: list[Pair]) -> float:
    """How many are right, in this process."""
    _CHECK.start()
    if len(pairs) == 1:
        _CHECK(r"\boxed{y^2}", "x^2")  # waits for the child
    return sum(_CHECK(completion, gold) for completion, gold in pairs)


def _formula(rng: random.Random, a: int, b: int, right: int) -> Pair:
    wrong = 1 - right
    return rng.choice(
        (
            (rf"Hence \boxed{{x^2+{a + b}x+{a * b + wrong}}}.", f"(x+{a})(x+{b})"),
            (rf"\boxed{{{a}\sqrt{{{b}}}}}", rf"\sqrt{{{a * a * b + wrong}}}"),
            (rf"The answer is $\frac{{{a}\pi}}{{{b}}}$.", rf"\frac{{{2 * a + wrong}\pi}}{{{2 * b}}}"),
            (rf"\boxed{{\{{{a}, {-b}, {a + b}\}}}}", rf"\{{{-b}, {a + b}, {a + wrong}\}}"),
            (rf"\boxed{{[{a}, {a + b}]}}", rf"\left[{a},{a + b + wrong}\right]"),
            (rf"So $({a}, {b})$", f"({a},{b + wrong})"),
            (
                rf"\boxed{{\begin{{pmatrix}}{a} \\ {b}\end{{pmatrix}}}}",
                rf"\begin{{bmatrix}}{a}\\{b + wrong}\end{{bmatrix}}",
            ),
            (rf"\boxed{{{a}^{{{b}}}}}", rf"{a}^{{{b - 1}}}\cdot {a + wrong}"),
        )
    )


def _plus_one(pair: Pair) -> Pair:
    more = str(_whole(pair[1]) + 1)
    return pair[0].rpartition("####")[0] + "#### " + more, more


def _whole(answer: str) -> int:
    value = read(answer)
    assert value is not None, answer
    assert value.denominator == 1, answer
    return value.numerator


def main() -> None:
    data = rows(sys.argv[1:])
    for lines in (verdicts(data, Numeric()), speeds(data)):
        print("\n".join(lines), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
