"""Answers of every kind made up: each is itself in every wrapping, none is another kind, and a near miss is wrong."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from groupwise.rewards.verifiers.answers import Math

WRAPPINGS = (
    r"So it is $\boxed{{{}}}$.", "The answer is ${}$.", "<answer>{}</answer>", "<think>7?</think>\n#### {}",
    "Hence\n$${}$$",
    "Final Answer: The final answer is ${}$. I hope it is correct.",
)  # fmt: skip

#: Odd, so that none is a factorial.
whole = st.integers(min_value=1, max_value=10**6).map(lambda number: 2 * number + 1)
letter = st.sampled_from("abcknpqrtuvwyz")
#: Kind -> answers of two numbers, which are never 0 or 1, with one more of another value.
SHAPES = {
    "number": "{a}", "negative": "-{a}", "decimal": "{a}.5", "factorial": "{s}!", "expression": "{a}{x}",
    "root": r"\sqrt{{{a}{x}}}",
    "sum": "{x}+{a}", "equation": "{x}+m={a}", "function": r"\sin {x} = \frac{{1}}{{{a}}}", "bar": "|{x}|={a}",
    "inequality": "{x} > {a}", "closed inequality": r"{x} \ge {a}", "set": r"\{{{a}, {b}\}}",
    "set of one": r"\{{{a}\}}",
    "pair": "({a}, {b})", "interval": "[{a}, {b}]", "list": "{a}, {b}", "triple": "({a}, {b}, 7)",
    "congruence": r"{x} \equiv 1 \pmod{{{a}}}",
    "base": "1{s}1_{{9}}", "dots": r"{a}, {b}, \ldots", "derivative": "{x}'({a})",
    "two quantities": r"{a} \text{{ feet }} {b} \text{{ inches}}",
    "column": r"\begin{{pmatrix}}{a}\\{b}\\7\end{{pmatrix}}", "words": r"\text{{exactly {x}}}",
}  # fmt: skip
#: Kinds that are compared with each other, where their values agree.
TOGETHER = ({"triple", "column"}, {"list", "set"})


@pytest.fixture(scope="module")
def math() -> Math:
    return Math()


def filled(shape: str, a: int, b: int, s: int, x: str) -> str:
    return SHAPES[shape].format(a=a, b=b, s=s, x=x)


@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(a=whole, more=whole, s=st.integers(min_value=3, max_value=7), x=letter, wrapping=st.sampled_from(WRAPPINGS))
def test_an_answer_is_itself_and_no_answer_of_another_kind(
    math: Math, a: int, more: int, s: int, x: str, wrapping: str
):
    answers = {shape: filled(shape, a, a + more, s, x) for shape in SHAPES}
    assert [gold for gold in answers.values() if math(wrapping.format(gold), gold) != 1.0] == []
    passing = [
        (gold, claim)
        for kind, gold in answers.items()
        for other, claim in answers.items()
        if kind != other and not any({kind, other} <= pair for pair in TOGETHER) and math(wrapping.format(claim), gold)
    ]
    assert passing == []


@settings(max_examples=20, deadline=None, phases=[Phase.generate])
@given(a=whole, more=whole, s=st.integers(min_value=2, max_value=7), x=letter, wrapping=st.sampled_from(WRAPPINGS))
def test_a_near_miss_is_wrong(math: Math, a: int, more: int, s: int, x: str, wrapping: str):
    b, other = a + more, "m" if x != "m" else "n"
    for shape, form in SHAPES.items():
        gold = filled(shape, a, b, s, x)
        misses = [filled(shape, a + 1, b + 1, s + 1, x)] * ("{a}" in form or "{s}" in form)
        misses += [filled(shape, a, b, s, chr(ord(x) + 1))] * ("{x}" in form)
        misses += [filled(shape, a, b + 1, s, x)] * ("{b}" in form)
        assert [miss for miss in misses if math(wrapping.format(miss), gold) != 0.0] == [], (gold, other)


@settings(max_examples=20, deadline=None, phases=[Phase.generate])
@given(a=whole, more=whole, x=letter, wrapping=st.sampled_from(WRAPPINGS))
def test_a_part_is_not_the_whole(math: Math, a: int, more: int, x: str, wrapping: str):
    b = a + more
    parts = {
        rf"\{{{a}, {b}\}}": (f"{a}", rf"\{{{a}\}}", f"{b}"),
        f"({a}, {b})": (f"{a}", f"{b}"),
        f"{a}, {b}": (f"{a}", f"{b}"),
        f"{x} = {a}, m = {b}": (f"{x} = {a}", f"{a}", f"m = {b}"),
        f"{x}+m={a}": (f"{a}", f"{x}+m", f"{x} = {a}"),
        f"{a} < {x} < {b}": (f"{x} < {b}", f"{x} > {a}", f"{a}", f"{b}"),
        rf"(-\infty, {a}) \cup ({b}, \infty)": (rf"(-\infty, {a})", rf"({b}, \infty)"),
        rf"{a} \text{{ hours and }} 7 \text{{ minutes}}": (f"{a}", rf"{a} \text{{ hours}}", r"7 \text{ minutes}"),
        rf"\pm {a}": (f"{a}", f"-{a}"),
        f"{a}{x}": (f"{a}", x),
    }
    assert [(whole, part) for whole, some in parts.items() for part in some if math(wrapping.format(part), whole)] == []
