"""Verdicts kind by kind: what is right beside each gold answer, and what is wrong; then where a claim is looked for."""

from __future__ import annotations

import pytest

from groupwise.rewards.verifiers.answers import Choice, Exact, Math, Numeric
from groupwise.rewards.verifiers.kinds import Kind
from groupwise.rewards.verifiers.reading import read

#: Gold answer -> what a box may hold.
RIGHT = {
    "5": (
        "x=5", "5.0", "+5", r"\frac{10}{2}", r"5 \text{ apples}", r"\text{5}", r"\mathbf{5}", "{5}", "(5)", "2+3=5",
        r"\sqrt{25}",
        r"\text{The answer is } 5", r"5 \text{ km}", r"\$5", r"5\%", "5e0", r"\text{Area} = 5", "f(2)=5",
        r"\underline{5}",
        r"\angle ABC = 5^\circ", "5, since 2 + 3 = 5",
    ),
    "x+y=5": ("5=x+y", "y=5-x", "2x+2y=10", "x = 5 - y"),
    "x=1,y=2": ("y=2, x=1", "(x,y)=(1,2)", "(1,2)"),
    "1234.5": ("1 234.5", "1,234.5", "1{,}234.5", r"1\,234.5"),
    "1000000": ("10,00,000", "1 000 000", "10^6", "1\u202f000\u202f000", r"1 \text{ million}"),
    r"\frac{1}{6}": (r"0.1\bar{6}", "0.1(6)", r"0.1\dot{6}", "0.16\u0305", "⅙"),
    r"\sqrt{x+1}": ("√(x+1)", "(x+1)^{1/2}", "sqrt(x+1)"),
    r"\sqrt[3]{x^2}": ("x^{2/3}",),
    "a_1": ("a₁", "a_{1}"),
    "x^{-1}": ("x⁻¹", "1/x", r"\frac1x"),
    r"\log_2 8": ("3", "log₂8"),
    r"\mathbb{R}": ("ℝ", r"(-\infty,\infty)", r"\text{all real numbers}"),
    "1101_2": (r"1101_{\text{two}}", "1101₂", r"1101 \text{ (base 2)}", "1101"),
    r"x \equiv 3 \pmod 5": ("x ≡ 3 (mod 5)", r"x \equiv 8 \pmod{5}", r"x\equiv3\ (\text{mod } 5)"),
    "4:30 PM": ("4:30 p.m.", "16:30", "4:30pm", "04:30 PM"),
    r"1, 2, \ldots, n": ("1,2,...,n", "1, 2, …, n"),
    "B": ("(B)", r"\text{B}", r"\textbf{(B)}~12", "B) 12", r"\text{(B) } 12", "B. 12"),
    r"\textbf{(B)}\ 12": ("B", "12", "(B)"),
    r"5 \text{ cm}": ("5", "5cm", r"5 \text{ centimeters}", r"50 \text{ mm}", r"0.05 \text{ m}"),
    r"60 \text{ km/h}": (r"60\,\mathrm{km\,h^{-1}}", r"60 \text{ kilometers per hour}"),
    r"\$5.50": ("5.5", r"5.50 \text{ dollars}", r"550 \text{ cents}"),
    r"2 \text{ hours and } 30 \text{ minutes}": (r"150 \text{ minutes}", r"2 \text{ hours } 30 \text{ minutes}"),
    r"(-\infty,2)\cup(5,\infty)": (r"x<2 \text{ or } x>5", "(-∞,2)∪(5,∞)", r"x \in (5,\infty) \cup (-\infty,2)"),
    "3 < x < 5": ("5 > x > 3", "(3,5)", r"x \in (3,5)", r"x > 3 \text{ and } x < 5"),
    r"[3,\infty)": (r"x \ge 3", r"3 \le x", r"\{x : x \ge 3\}"),
    r"x \neq 3": (r"(-\infty,3)\cup(3,\infty)", r"\mathbb{R} \setminus \{3\}"),
    r"1 - \frac{1}{e}": (r"1-\frac{1}{\mathrm{e}}", "1-e^{-1}", r"1 - 1/{\rm e}"),
    "2i": (r"2\mathrm{i}", r"2\text{i}", r"\sqrt{-4}"),
    r"2\sin x\cos x": (r"\sin 2x",),
    "5!": ("120",),
    r"\binom{5}{2}": ("10", r"\frac{5!}{2!3!}", r"{5 \choose 2}"),
    r"\pm 3": ("3, -3", r"x = \pm 3", r"\{3,-3\}", r"3 \text{ and } -3"),
    "6, 9": ("9, 6", r"6 \text{ and } 9"),
    r"\begin{pmatrix}1\\2\end{pmatrix}": (r"\begin{bmatrix}1\\2\end{bmatrix}", "(1, 2)"),
    "3:5": ("6:10", r"\frac{3}{5}"),
    r"\text{no solution}": (r"\text{No solution}", "no solution"),
    r"\frac{2}{3}": (r"\frac{2}{3} \approx 0.667",),
}  # fmt: skip

#: Gold answer -> what a box may not hold.
WRONG = {
    "5": (
        r"\{5\}", "(5, 6)", "[5]", "[5, 6]", "x+y=5", "|x|=5", "5x", r"5\pi", "5!", "5_8", r"x \ge 5", "5, 6", "5 6",
        r"5 \text{ or } 6", r"\pm 5", "5i", "5:1", "5:00", r"(5, \infty)", r"5 \pm 1", r"\neq 5", "<5", "5-7",
        "5 to 7", "-5",
        r"5 \text{ out of } 10", "5 R 3", "5^2", r"\overline{5}", "5'", r"5\ldots", "5k", r"5\frac{1}{2}",
        "5 and a half",
        r"5 \text{ hours and } 30 \text{ minutes}", "5 = 6", "6 = 5", r"5 \approx 6", r"6 \approx 5",
        r"5 \text{ million}", "5ab",
        r"\text{not } 5", r"\text{less than } 5", "5, \\text{ remainder } 1", r"5 \text{ per } 2 \text{ days}",
        r"5 \text{ BC}",
    ),
    "x + y = 5": ("5", "x - y = 5", "x+y", "x+y=6"),
    r"\sin x = 1": ("1", r"\cos x = 1", "x = 1"),
    "|x| = 3": ("3", "x = 3"),
    "x = 5": ("y=5", "x=-5", "2x = 10", "x - 5 = 0", "x^2=5", "x=5, y=2"),
    "y=2x+1": ("2x+1", "x=2y+1", "y>2x+1"),
    r"\alpha + \beta = 90^\circ": (r"\alpha - \beta = 90^\circ", r"90^\circ", r"\alpha = 90^\circ"),
    "2ab": ("2", "2cd", "2b"), "10t": ("10", "10s"), "3-ab": ("3",), "2m": ("2",), "5m^2n": ("5",),
    "f'(x)": ("f(x)", "f''(x)"), r"f^{-1}(x)": (r"\frac{1}{f(x)}",), r"\frac{dy}{dx}": (r"\frac{dx}{dy}",
    r"\frac{y}{x}"),
    r"\vec{a} \times \vec{b}": (r"\vec{a} \cdot \vec{b}",), r"\dot{x}": ("x",), "AB": ("BA",),
    r"\sum_{i=1}^{n} i": (r"\sum_{i=0}^{n} i", "i"), r"\max(a,b)": (r"\min(a,b)", "(a,b)"),
    r"\frac{1}{2004!}": (r"\frac{1}{2006!}", "0"), "0": ("10^{-20}", r"\emptyset", r"\{0\}", "e^{-100}"),
    r"\sin(10^{-20})": ("10^{-20}",), "1": ("1+10^{-20}", "0.999999999999999999"),
    "x > 3": (r"x \ge 3", "x < 3", "y > 3", "3", "(3, 5)", "x > 3, x < 5"),
    "[0, 1]": ("(0,1)", "[0,1)", "0, 1", r"\{0,1\}"), "(1,2)": ("[1,2]", "(2,1)", "1,2", r"\{1,2\}", "1 < x < 2"),
    r"\{1,2\}": ("(1,2)", "1", r"\{1\}", r"\{1,2,3\}"), "1, 2": ("(1, 2)", "1", "12", "1, 1, 2"),
    r"x \equiv 3 \pmod 5": ("3", "x = 3", r"x \equiv 3 \pmod{10}", r"x \not\equiv 3 \pmod 5", r"x \equiv 4 \pmod 5"),
    "1101_2": ("1101_8", "1011_2", "13"), "101": ("101_2",),
    "4:30 PM": ("4:30 AM", "4:30", "3:30 PM"), "3:30": ("7/2", "330", "1:10"),
    r"1, 3, 5, \ldots": ("1, 3, 5", r"1, 3, 7, \ldots", r"1, 5, 3, \ldots"),
    "B": ("A", r"\text{(C)}", "BC", "B^2"), r"\textbf{(B)}\ 12": ("13", r"\textbf{(C)}\ 12", r"\textbf{(B)}\ 13"),
    r"\text{even}": ("odd", "4"), "tea": ("eat",),
    r"5 \text{ cm}": (r"5 \text{ m}", r"5 \text{ cm}^2", r"5 \text{ kg}", "50"), r"\$5": (r"5 \text{ cents}",),
    r"50\%": ("0.5",), r"\$50 \text{ profit}": (r"\$50 \text{ loss}",),
    r"5 \text{ hours}": (r"5 \text{ hours and } 30 \text{ minutes}",),
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": (r"\begin{pmatrix}1&3\\2&4\end{pmatrix}",
    r"\begin{vmatrix}1&2\\3&4\end{vmatrix}"),
    r"\ln x": (r"\log_{10} x", r"\ln y"), r"\sqrt{x^2}": ("x",), r"\ln|x|": (r"\ln x",), r"\infty": (r"-\infty", "5"),
    r"0.\overline{3}": ("0.33", "0.3"), "1,234": ("1.234", "1, 234"), "1234": ("12 34",),
    r"\frac{\pi}{4} + k\pi, k \in \mathbb{Z}": (r"\frac{\pi}{4} + k\pi, k \in \mathbb{R}", r"\frac{\pi}{4}"),
    r"\frac{1}{2}": ("1/2x", "0.49"), "n!!": ("n!",),
}  # fmt: skip

#: (gold, completion, right): where the final answer is.
PLACES = (
    ("18", "The answer is not 18.", 0), ("18", "The answer isn't 18.", 0), ("18",
    "I do not think that the answer is 18.", 0),
    ("18", "The answer is more than 18.", 0), ("18", "The answer is 18, not 19.", 1), ("18",
    "The answer is not 17 but 18.", 1),
    ("18", "The answer is 18? No.", 0), ("18", "The answer is 18. Wait, that is wrong.", 0), ("18", "It is 18!", 1),
    ("18", "It is 18. <think>Or 16?", 0), ("18", "<think>It is 18.", 0), ("18", "<think>16</think>18", 1),
    ("18", "It is 18. <think>" + "hm " * 50_000, 0), ("120", r"\boxed{5!}", 1), ("5", "The answer is 5!", 1), ("5",
    "5!", 0),
    ("x^2", "Hence it is $x^2$.", 1), ("x^2", "It is not $x^2$.", 0), ("x = 5", "Hence x = 5", 1), ("x = 5",
    "Hence y = 5", 0),
    ("The answer is 7.", r"\boxed{7}", 1), ("We add 2 and 5. So we get $2+5=7$.", r"\boxed{7}", 1),
    ("We add 2 and 5. So we get $2+5=7$.", r"\boxed{2}", 0), (r"\boxed{27}", "The answer is 27.", 1),
    ("Evelyn", "#### Evelyn", 1), ("Evelyn", "#### Evelyn\nThis section is about her.", 0),
    (r"\frac{2}{5}", r"The answer is $\frac{2}{5}$, not $\frac{5}{2}$.", 1), ("1, 2", "The answers are $1$ and $2$.",
    1),
)  # fmt: skip


@pytest.fixture(scope="module")
def math() -> Math:
    return Math()


@pytest.mark.parametrize("gold", RIGHT)
def test_the_same_answer_in_another_form_is_right(math: Math, gold: str):
    assert [claim for claim in (gold, *RIGHT[gold]) if math(rf"So it is $\boxed{{{claim}}}$.", gold) != 1.0] == []


@pytest.mark.parametrize("gold", WRONG)
def test_another_answer_or_another_kind_is_wrong(math: Math, gold: str):
    assert [claim for claim in WRONG[gold] if math(rf"So it is $\boxed{{{claim}}}$.", gold) != 0.0] == []
    assert math(rf"\boxed{{{gold}}}", gold) == 1.0


@pytest.mark.parametrize(("gold", "completion", "right"), PLACES)
def test_the_final_answer_is_what_the_completion_says_that_it_is(math: Math, gold: str, completion: str, right: int):
    assert math(completion, gold) == right


def test_an_equation_is_no_number_for_the_numeric_check():
    check = Numeric()
    assert not check.readable("x + y = 5")
    wrong = (r"\boxed{x+y=5}", r"\boxed{\{5\}}", r"\boxed{5!}", r"\boxed{5ab}", r"\boxed{5_8}", r"\boxed{(5, 6)}")
    assert [text for text in wrong if check(text, "5") != 0.0] == []


def test_a_sentence_that_states_nothing_is_no_gold_answer():
    check = Math()
    assert not check.readable("This is a long text in which nobody ever says so much as one word of what it is about.")
    assert all(check.readable(text) for text in ("even numbers", "The answer is 7."))


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [
        ("B", r"The energy is $\boxed{\langle H \rangle \ll \Delta E}$." + "\n\n**Answer: B**", 1),
        ("E", r"\boxed{\Delta E}", 0), ("E", r"\boxed{E = mc^2}", 0), ("B", "\\boxed{3.5}\n\nAnswer: B", 1),
        ("B", "The answer is B. Note that A is common.", 1), ("D", "Answer: D) all of A, B and C", 1),
        ("A", "Answer: A (not B)", 1), ("A", "Answer: A, B", 0), ("A", "The answer is A or B", 0), ("A",
        "Answer: None of these", 0),
        ("B", "The answer is not B.", 0), ("B", "It cannot be B.", 0), ("B", "The answer is anything but B.", 0),
        ("B", "B is wrong.", 0),
        ("J", "The answer is (J).", 1), ("J", "The answer is B or J.", 0), ("P", r"\boxed{P}", 1), ("B", "b", 1),
    ],
)  # fmt: skip
def test_a_letter_is_named_and_not_read_out_of_a_formula(gold: str, text: str, right: int):
    assert Choice()(text, gold) == right


def test_the_wrapping_of_an_exact_answer_does_not_count():
    check = Exact()
    right = (
        "The answer is **Zürich**.",
        "\\boxed{\\text{Zürich}}",
        "The answer is Zu\u0308rich.",
        'The answer is "Zürich".',
    )
    assert [text for text in right if check(text, "Zürich") != 1.0] == []
    assert check("The answer is 東京。", "東京") == 1.0
    assert check("The answer is Zürich, Switzerland.", "Zürich") == check("zürich", "Zürich") == 0.0


def test_every_kind_is_read():
    texts = {
        Kind.NUMBER: "1,000", Kind.EXPRESSION: "x+1", Kind.EQUATION: "x+y=5", Kind.INEQUALITY: "x < y",
        Kind.INTERVAL: "[0,1)",
        Kind.UNION: r"[0,1) \cup (2,3]", Kind.SET: r"\{1,2\}", Kind.LIST: "1, 2", Kind.TUPLE: "(1, 2)",
        Kind.RATIO: "3:5",
        Kind.MATRIX: r"\begin{pmatrix}1&2\end{pmatrix}", Kind.MEASURES: r"5 \text{ feet } 6 \text{ inches}",
        Kind.TIME: "11:30 a.m.", Kind.CONGRUENCE: r"3 \pmod 5", Kind.BASE: "101_2", Kind.LETTER: "(B)",
        Kind.TEXT: "Evelyn",
        Kind.FORMULA: "f'(x)",
    }  # fmt: skip
    assert {kind: read(text).kind for kind, text in texts.items()} == {kind: kind for kind in Kind}
