"""How answers are judged and how fast: the tables of docs/reference/answers.md, from files of GSM8K (JSON lines).

python benchmarks/answers.py train.jsonl test.jsonl [--solutions example_model_solutions.jsonl]

The last file is OpenAI's, in github.com/openai/grade-school-math: four models' solutions of the 1,319 test problems,
each labelled right or wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
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


#: How a model's solution may end: its last line is `A: 18`.
ENDS = {
    "as it stands": "{body}\nA: {answer}",
    "its last line is `#### 18`": "{body}\n#### {answer}",
    "its last line is `The answer is 18.`": "{body}\nThe answer is {answer}.",
    "without its last line": "{body}",
}


def labelled(path: str) -> list[tuple[str, str, bool]]:
    """(solution, gold answer, whether it is labelled right) of every model and problem."""
    problems = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [
        (model["solution"], problem["ground_truth"].rpartition("A:")[2].strip(), bool(model["is_correct"]))
        for problem in problems
        for model in problem.values()
        if isinstance(model, dict)
    ]


def models(data: list[tuple[str, str, bool]], check: Checker) -> Iterator[str]:
    """The table: how often the check disagrees with the labels of models' solutions."""
    yield "| a model's solution | labelled wrong, scores 1 | labelled right, scores 0 |"
    yield "|---|---|---|"
    for name, form in ENDS.items():
        counts = Counter[tuple[bool, float]]()
        for solution, gold, right in data:
            body, marked, answer = solution.rpartition("\nA: ")
            counts[right, check(form.format(body=body, answer=answer) if marked else solution, gold)] += 1
        wrong, right_ones = (sum(counts[right, score] for score in (0.0, 1.0)) for right in (False, True))
        yield f"| {name} | {counts[False, 1.0]:,} of {wrong:,} | {counts[True, 0.0]:,} of {right_ones:,} |"


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", help="files of GSM8K")
    parser.add_argument("--solutions", help="models' solutions, labelled")
    given = parser.parse_args()
    data = rows(given.problems)
    judged = [models(labelled(given.solutions), Numeric())] if given.solutions else []
    for lines in (verdicts(data, Numeric()), *judged, speeds(data)):
        print("\n".join(lines), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
