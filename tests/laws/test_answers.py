"""Laws of the answer checkers: written forms are right, guesses are wrong, and no answer outlasts its deadline."""

from __future__ import annotations

import copy
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from groupwise.core.errors import UsageError
from groupwise.rewards.verifiers.answers import CHECKERS, Choice, Exact, Math, Numeric
from groupwise.rewards.verifiers.symbolic import equal

HANG = r"\boxed{\lfloor(\sqrt{2}+\sqrt{3}+\sqrt{5}+\sqrt{7})^{3000}\rfloor}"
LATEX = (r"\boxed{\frac{x}{2}}", "x/2")

WRITTEN = (
    "{n}", "{n:,}", "${n:,}", "{n}.00", "+{n}", "{n} dollars", "{n}%", r"\boxed{{{n}}}", "#### {n}",
    "<answer>{n}</answer>", "The answer is {n}.", "**Answer:** ${n}$", "So she earns {n:,} dollars a day.",
    "5 + 7 = {n} in all.", "After 3 days, 5 of them have {n}.", r"The total is $\boxed{{{n}}}$ per day",
    "<think>the answer is 3</think>{n}", "The answer is {n}, since 2 * 2 = 4.", "Answer:\n\n{n}", "x = {n}",
)  # fmt: skip

GUESSES = (
    "{a}, {b}, {n}", "{n}, {a}", "it is {a} or {b} or {n}", "{a} {b} {n}", "{a}/{b}/{n}", "between {b} and {n}",
    "It is {b}. It is {n}.", r"\boxed{{{b}}} \boxed{{{n}}}", r"\boxed{{{b}, {n}}}", r"\boxed{{{b} \text{{ or }} {n}}}",
    "The answer is {b}. The answer is {n}.", "The answer is {b} or {n}", "#### {b}\n#### {n}", "x = {b}\nx = {n}",
    "<answer>{b}</answer><answer>{n}</answer>", "{b}\n{n}", "<think>{n}", r"\boxed{{{b}}} The answer is {n}",
)  # fmt: skip


@pytest.fixture(scope="module")
def math() -> Math:
    check = Math(deadline=1.0)
    assert check(*LATEX) == 1.0
    return check


def filled(form: str, n: int) -> str:
    return form.format(n=n, a=n - 2, b=n - 1)


#: What no machine can build, or not in time.
HUGE = (
    "2^{70}!", "2^{7^{10}}", "(2^{9999})^{9999}", r"\binom{10^9}{5 \cdot 10^8}", "x^{10^9}", "2^{10^9 x}", "(10^9 x)!",
    "e^{e^{e^{e^{5}}}}", r"\lfloor e^{9^9} \rfloor", r"\exp(10^{10^{10}})", "(3000!)!", "10^10^10",
)  # fmt: skip


@pytest.mark.parametrize("huge", HUGE)
def test_a_number_too_large_to_be_built_is_compared_letter_by_letter_and_at_once(math: Math, huge: str):
    begin = time.monotonic()
    assert [math(rf"\boxed{{{claim}}}", huge) for claim in (huge, huge + "+1", "5")] == [1.0, 0.0, 0.0]
    assert time.monotonic() - begin < 0.5
    assert math.tally.late == math.tally.died == 0


@pytest.mark.parametrize("kind", [Numeric(), Math()])
@pytest.mark.parametrize("n", [18, 1018, 25_000_000])
def test_a_written_form_is_right_with_the_number_and_wrong_with_the_next(kind, n: int):
    assert [form for form in WRITTEN if kind(filled(form, n), str(n)) != 1.0] == []
    assert [form for form in WRITTEN if kind(filled(form, n + 1), str(n)) != 0.0] == []


@pytest.mark.parametrize("kind", [Numeric(), Math()])
def test_a_list_of_guesses_never_wins(kind):
    assert [form for form in GUESSES if kind(filled(form, 18), "18") != 0.0] == []
    for gold in (1, 18, 100):
        for separator in (", ", "\n", " ", " or ", ". "):
            assert kind(separator.join(map(str, range(1, 101))), str(gold)) == 0.0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.5", r"\frac12", True),
        ("-3/4", r"-\frac{3}{4}", True),
        ("1.5e3", "1500", True),
        (r"2 \times 10^3", "2000", True),
        ("2 1/2", "2.5", True),
        ("\u22125", "-5", True),
        ("0.333333333", "1/3", False),
        ("0.1", r"10\%", False),
        ("2x", "2", False),
        ("2 million", "2", False),
        ("2 million", "2000000", True),
        ("3/0", "3", False),
    ],
)
def test_numbers_are_compared_exactly(one: str, other: str, same: bool):
    assert Numeric()(one, other) == float(same)


def test_a_tolerance_is_a_share_of_the_gold_answer():
    assert Numeric(tolerance=0.01)("101", "100") == 1.0
    assert Numeric(tolerance=0.01)("101.1", "100") == 0.0


def test_no_text_takes_long():
    """Nothing is evaluated, and no pattern goes over the text again and again."""
    begin = time.perf_counter()
    for text in ("10**10**10", "9" * 50_000, "1," * 50_000, "<answer>" * 12_000, r"\boxed{" * 15_000, "=" * 100_000,
                 "1 " * 50_000, "answer: " * 12_000, "1/" * 50_000, "{" * 100_000,
                 " " * 100_000, "$" * 100_000):  # fmt: skip
        assert Numeric()(text, "18") == 0.0
        assert Choice()(text, "B") == 0.0
        assert Exact()(text, "B") == 0.0
    assert time.perf_counter() - begin < 10


@pytest.mark.parametrize("seed", range(5))
def test_a_polynomial_is_equal_exactly_when_it_is_so_everywhere(seed: int):
    import sympy

    rng, (x, y) = random.Random(seed), sympy.symbols("x y")
    parts = [sympy.Rational(rng.randint(-9, 9), rng.randint(1, 9)) * x + rng.randint(-9, 9) * y + 1 for _ in range(3)]
    product = sympy.Mul(*parts, evaluate=False)
    assert equal(product, product.expand())
    assert not equal(product + sympy.Rational(1, 10**30) * x, product.expand())


def test_numbers_are_equal_relative_to_their_size():
    import sympy

    tiny = sympy.Rational(1, 10**40)
    assert not equal(tiny, sympy.Integer(0))
    assert not equal(sympy.sqrt(2), sympy.sqrt(2) + tiny)
    assert not equal(sympy.exp(-500), sympy.exp(-501))
    assert not equal(sympy.sin(sympy.Rational(1, 10**30)), sympy.Rational(1, 10**30))
    assert equal(sympy.sqrt(2) + sympy.sqrt(3), sympy.sqrt(5 + 2 * sympy.sqrt(6)))
    assert equal(sympy.Integer(72) ** 63, sympy.Mul(sympy.Pow(72, 62, evaluate=False), 72, evaluate=False))
    assert not any(equal(value, value) for value in (sympy.zoo, sympy.nan))


def test_a_hang_ends_at_the_deadline_in_any_thread_and_the_next_answer_is_right(math: Math):
    late, took = math.tally.late, []

    def hang():
        begin = time.perf_counter()
        took.append((math(HANG, "5"), time.perf_counter() - begin))

    thread = threading.Thread(target=hang)
    thread.start()
    thread.join()
    assert took[0][0] == 0.0
    assert 1.0 <= took[0][1] < 2.0
    assert math.tally.late == late + 1
    assert math(r"\boxed{\frac{y}{2}}", "y/2") == 1.0


def test_a_child_that_is_killed_is_replaced(math: Math):
    assert math(*LATEX) == 1.0
    child = math._guard._child
    assert child is not None
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait()
    died = math.tally.died
    assert math(r"\boxed{\frac{z}{2}}", "z/2") == 0.0
    assert math.tally.died == died + 1
    assert math(r"\boxed{\frac{z}{2}}", "z/2") == 1.0


def test_threads_at_once_each_get_their_own_answer(math: Math):
    wanted = {number: float(number % 2) for number in range(24)}
    got = {}

    def one(number: int):
        got[number] = math(rf"\boxed{{x+{number}+{number % 2}}}", f"x+{number + 1}")

    threads = [threading.Thread(target=one, args=(number,)) for number in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == wanted


def test_the_child_is_no_part_of_the_checker(math: Math):
    for other in (copy.deepcopy(math), pickle.loads(pickle.dumps(math)), Math(deadline=1.0)):
        assert other == math
        assert repr(other) == repr(math) == "Math(deadline=1.0, tolerance=0.0)"
        assert other._guard._child is None


def test_the_child_dies_with_its_parent_even_while_it_hangs(tmp_path: Path):
    script = (
        "import threading, time\n"
        "from groupwise.rewards.verifiers.answers import Math\n"
        "check = Math(deadline=60.0)\n"
        "check(r'\\boxed{\\frac{x}{2}}', 'x/2')\n"
        "print(check._guard._child.process.pid, flush=True)\n"
        f"check(r'{HANG}', '5')\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.5)
        assert running(child)
        parent.kill()
    end = time.monotonic() + 3
    while running(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not running(child)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_choice():
    right = (
        "B", "(B)", "B.", "b", "**B**", "B. Paris", "A is wrong. The answer is B", r"\boxed{\text{(B)}}", "Answer: B",
    )  # fmt: skip
    wrong = (
        "A", "A or B", "A, B", "(A) (B)", "The answer is A or B", r"\boxed{A} \boxed{B}", "Both", "",
        "A is it, not B",
    )  # fmt: skip
    assert [text for text in right if Choice()(text, "B") != 1.0] == []
    assert [text for text in wrong if Choice()(text, "(B)") != 0.0] == []
    assert Choice(letters="AB")("C", "C") == 0.0


def test_exact():
    assert Exact()("  New \n York ", "New York") == 1.0
    assert Exact()("It is big. The answer is New York.", "New York") == 1.0
    assert Exact()("The answer is Rome. The answer is Paris.", "Paris") == 0.0
    assert Exact()("paris", "Paris") == 0.0
    assert Exact(ignore_case=True)("paris", "Paris") == 1.0
    assert Exact()("", "") == 0.0


def test_what_cannot_be_checked_is_known_before():
    unreadable = {"numeric": "some", "choice": "FG", "exact": "  ", "math": r"\frac{1}{2"}
    readable = {"numeric": "1,000", "choice": "(b)", "exact": "x", "math": r"\frac{1}{2}"}
    for kind, check in ((kind, CHECKERS[kind]()) for kind in unreadable):
        assert not check.readable(unreadable[kind])
        assert check.readable(readable[kind])
        assert check("18", unreadable[kind]) == 0.0


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(Numeric, {"tolerance": -1}), (Math, {"deadline": 0}), (Math, {"tolerance": 2}), (Choice, {"letters": "ab"})],
)
def test_settings_that_mean_nothing_are_refused(kind, settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        kind(**settings)


def test_no_torch_and_no_library_is_loaded_to_check_numbers():
    script = (
        "import sys; from groupwise.rewards.verifiers.answers import Math; Math()('18', '18');"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'math_verify', 'sympy')))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], env=env, check=False).returncode == 0
