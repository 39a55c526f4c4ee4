r"""One spelling for mathematics: what LaTeX, Unicode and a keyboard write in many ways becomes one LaTeX text.

`spelled` changes how an answer is written and never what it says: what it does not know, it leaves as it is.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

#: Functions that are also read without their backslash.
FUNCTIONS = (
    "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "exp",
)  # fmt: skip
#: Ways to begin and end a formula.
DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))

RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢ", "0123456789+-()ni")
_RAISED_RUN, _LOWERED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢ]+")
#: ½ and its like: Unicode itself says what they are.
VULGAR = {
    chr(code): unicodedata.normalize("NFKC", chr(code)).split("⁄")
    for code in (*range(0xBC, 0xBF), *range(0x2150, 0x215F))
}
_SIGNS = {
    "−": "-", "–": "-", "‐": "-", "‑": "-", "∕": "/", "⁄": "/", "÷": r"\div ", "×": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "∗": r"\cdot ", "±": r"\pm ", "∓": r"\mp ", "∞": r"\infty ", "≤": r"\leq ",
    "⩽": r"\leq ", "≥": r"\geq ", "⩾": r"\geq ", "≠": r"\neq ", "≈": r"\approx ", "≡": r"\equiv ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "∉": r"\notin ", "∅": r"\emptyset ", "∖": r"\setminus ", "⊂": r"\subset ",
    "⊆": r"\subseteq ", "∠": r"\angle ", "°": r"^\circ ", "℃": r"^\circ C", "℉": r"^\circ F", "′": "'", "’": "'",
    "″": "''", "…": r"\ldots ", "⋯": r"\ldots ", "→": r"\to ", "∂": r"\partial ", "∇": r"\nabla ", "∫": r"\int ",
    "∑": r"\sum ", "∏": r"\prod ", "△": r"\triangle ", "⊥": r"\perp ", "∥": r"\parallel ", "⌊": r"\lfloor ",
    "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⟨": r"\langle ", "⟩": r"\rangle ", "√": r"\sqrt ",
    "∛": r"\sqrt[3]", "∜": r"\sqrt[4]", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
    "º": r"^\circ ", "、": ", ",
    "ℂ": r"\mathbb{C}", "∧": r"\land ", "∨": r"\lor ",
    "¬": r"\neg ", "ℵ": r"\aleph ", "\u200b": "", "\ufeff": "", "。": ".", "，": ", ",
}  # fmt: skip
#: The small letters from alpha on.
GREEK = re.findall(
    r"\w+",
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi "
    "psi omega",
)
_LETTERS = {
    **{chr(code): f"\\{name} " for code, name in zip((*range(0x3B1, 0x3C2), *range(0x3C3, 0x3CA)), GREEK, strict=True)},
    "Δ": r"\Delta ", "Ω": r"\Omega ", "Σ": r"\Sigma ", "Γ": r"\Gamma ", "Φ": r"\Phi ", "ϕ": r"\phi ", "ϵ": r"\epsilon ",
}  # fmt: skip
_SPELLED = str.maketrans(_SIGNS | _LETTERS | {sign: rf"\frac{{{one}}}{{{of}}}" for sign, (one, of) in VULGAR.items()})

_NAMED = "|".join(FUNCTIONS)
_WRAPPER = r"\\(?:text|textrm|textsf|mathrm|mathsf|mathit|textit|mbox|hbox|operatorname\*?)\s?"
#: Commands that set the type of the text in them, of words too.
_SET = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|boldsymbol)\s?\{([^{}]{0,200})\}")
_BOLD = re.compile(r"\\(?:textbf|mathbf|boldsymbol|bm|pmb)\s?\{((?:[^{}]|\{[^{}]*\})*)\}")
_UPRIGHT = re.compile(_WRAPPER + rf"\{{\s*(?:([eid])|({_NAMED}))\s*\}}")
_WORDS = re.compile(_WRAPPER + r"\{((?:[^{}]|\{[^{}]*\})*)\}")

_END = "(?![A-Za-z])"
#: A pattern, and what stands in place of what it matches.
Rule = tuple[str, str | Callable[[re.Match[str]], str]]
#: Rules that remove what only sets type, in numbers too.
TYPESETTING: tuple[Rule, ...] = (
    (rf"\\(?:left|right|[bB]igg?[lrm]?){_END}\s?\.?(?=[^\d]|$)", ""),
    (rf"\\(?:displaystyle|textstyle|limits|nolimits){_END}|\\!\s*", ""),
    (r"\\underline\s?\{([^{}]*)\}", r"\1"),
    (r"\\(?:text)?color\s?\{\w+\}", ""),
    (r"(?<!\\)\{\s*([-+:])\s*\}", r"\1"),
)


def renamed(**commands: str) -> Rule:
    """Make the rule that writes one command or sign for another."""
    return rf"\\({'|'.join(commands)}){_END}", lambda command: commands[command.group(1)]


def rewriter(*rules: Rule) -> Callable[[str], str]:
    """Make what applies rules to a text, one after the other."""
    compiled = [(re.compile(pattern), replacement) for pattern, replacement in rules]

    def rewrite(text: str) -> str:
        for pattern, replacement in compiled:
            text = pattern.sub(replacement, text)
        return text

    return rewrite


_rewrite = rewriter(
    *TYPESETTING,
    (rf"(?<!\\)\\[,;:> ]|\\(?:q?quad|thinspace){_END}|~", " "),
    renamed(
        wedge=r"\land ", vee=r"\lor ", lnot=r"\neg ", dfrac=r"\frac ", tfrac=r"\frac ", cfrac=r"\frac ",
        dbinom=r"\binom ", tbinom=r"\binom ", ast=r"\cdot ", cdotp=r"\cdot ",
    ),
    (r"\\text\{([A-Z][A-Za-z]*_[^{}]*)\}|\\text\{([A-Z][a-z]?)\}\s?(?=_)", r"\1\2"),
    (r"(_\{?\d\}?)\s?\\text\{([A-Z][a-z]?)\}", r"\1\2"),
    (rf"\\(?:rm|bf|it|sf|tt){_END}\s?", ""),
    (rf"\^\s?\{{?\s*(?:\\text\{{T\}}|\\top{_END}|\\intercal{_END})\s*\}}?", "^{T}"),
    (r"\\text\{([^{}]+?),? (and|or)\}", r"\\text{\1} \\text{\2}"),
    (r"(?<!\\)\{(\d{1,3}(?:,\d{3})+)\}", lambda number: "{" + number.group(1).replace(",", "") + "}"),
    (rf"(?<!\\)\{{([^{{}}]*)\\over{_END}([^{{}}]*)\}}", r"\\frac{\1}{\2}"),
    (rf"(?<!\\)\{{([^{{}}]*)\\choose{_END}([^{{}}]*)\}}", r"\\binom{\1}{\2}"),
    (r"\\(?:hat|vec)\s?\{?\s?\\?([ijk])(?:math)?\s?\}?(?![A-Za-z])", r"\1"),
    (r"(?<![A-Za-z\\])d([a-z])\s?/\s?d([a-z])(?![A-Za-z])", r"\\frac{d\1}{d\2}"),
    (r"(?<=\d)\^\s?\{?\s*(?:o|\\text\{o\})\s*\}?(?![A-Za-z])", r"^\\circ "),
    (r"(?<!\*)\*(?!\*)", r"\\cdot "),
    (r"\*\*", "^"),
    (rf"\\(?:le|leqslant){_END}|<\s?=", r"\\leq "),
    (rf"\\(?:ge|geqslant){_END}|>\s?=", r"\\geq "),
    (rf"\\ne{_END}|\\not\s?=|!=", r"\\neq "),
    (rf"\\[cl]?dots[bcmio]?{_END}|\.\.\.", r"\\ldots "),
    (rf"\\varnothing{_END}|\\\{{\s*\\\}}", r"\\emptyset "),
    renamed(
        lt="<", gt=">", vert="|", lvert="|", rvert="|", mid="|", lbrace=r"\{", rbrace=r"\}", rightarrow=r"\to ",
        longrightarrow=r"\to ", bar=r"\overline ",
    ),
    (r"->", r"\\to "),
    (rf"\^\s?\{{\s*((?:'|\\prime\s*)+)\}}|\^\s?(\\prime{_END})", r"\1\2"),
    (rf"\\prime{_END}\s*", "'"),
    (r"(?<=[fgh])\^\s?\{\s?\(\s?([123])\s?\)\s?\}", lambda times: "'" * int(times.group(1))),
    (rf"\^\s?\{{?\s?\\circ\s?\}}?|\\degree{_END}", r"^\\circ "),
    (rf"(?<![\\A-Za-z])({_NAMED}|sqrt|pi|infty){_END}", r"\\\1 "),
    (rf"(?<![\\A-Za-z])infinity{_END}", r"\\infty "),
    (r"\\mathbb\s?([A-Z])", r"\\mathbb{\1}"),
    # Degrees are a unit elsewhere; those of a function are a part of its value.
    (
        r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{?\d\}?)?)\s*(\()?(-?\d+(?:\.\d+)?)\s?\^\\circ(?![A-Za-z])(?(2)\s?\))",
        r"\1(\\frac{\3\\pi}{180})",
    ),
)  # fmt: skip
#: Signs of vectors, whose cross and dot are two products.
_VECTOR = re.compile(rf"\\(?:vec|overrightarrow|mathbf|boldsymbol|bm|nabla){_END}|∇")
#: A full stop, which none of several dots is.
_STOP = re.compile(r"(?<!\.)\.$")
_TIMES = re.compile(rf"\\times{_END}")
_ROOT_SHORT = re.compile(r"(\\sqrt\s*(?:\[[^\]]*\])?)\s*(\d+(?:\.\d+)?|\\[A-Za-z]+|[A-Za-z])")
_TWO = re.compile(r"\\(?:frac|binom)" + _END)
_ARGUMENT = re.compile(r"\s*(\\[A-Za-z]+|[A-Za-z0-9])")
#: An exponent or index without braces: from a keyboard all of its digits are meant.
_SCRIPT = re.compile(r"([\^_])\s?([+-]?\d+(?:\.\d+)?|-?\\(?!frac|sqrt|circ|text)[A-Za-z]+|[+-]?[A-Za-z])")
#: A blank is needed behind a command where a letter follows; elsewhere it goes.
_SPACE = re.compile(r"(\\[A-Za-z]+) (?=[^A-Za-z0-9]|$)")
_OPENED = re.compile(r"(?:\^|\\sqrt(?:\[[^\]]*\])?)\s*(\()")


@lru_cache(maxsize=8192)
def spelled(text: str) -> str:
    r"""Return the text in the one spelling, without the delimiters of a formula and a closing full stop.

    >>> spelled("4√2"), spelled("½"), spelled("x²"), spelled("1.5 × 10⁻³"), spelled(r"\dfrac12\pi")
    ('4\\sqrt{2}', '\\frac{1}{2}', 'x^{2}', '1.5 \\cdot 10^{-3}', '\\frac{1}{2}\\pi')
    >>> spelled(r"1 - \frac{1}{\mathrm{e}}"), spelled("sqrt(3)/2"), spelled("2^10"), spelled(r"$x \le 3$.")
    ('1 - \\frac{1}{e}', '\\sqrt{3}/2', '2^{10}', 'x \\leq 3')
    """
    text = outer(text)
    vectors = _VECTOR.search(text)
    text = _RAISED_RUN.sub(lambda run: "^{" + run.group().translate(RAISED) + "}", text)
    text = _LOWERED_RUN.sub(lambda run: "_{" + run.group().translate(_LOWERED) + "}", text)
    text = unicodedata.normalize("NFKC", text.translate(_SPELLED))
    text = _BOLD.sub(lambda bold: bold.group(1) if not re.search("[A-Za-z]{2}", bold.group(1)) else _text(bold), text)
    text = _UPRIGHT.sub(lambda match: match.group(1) or f"\\{match.group(2)} ", text)
    text = _WORDS.sub(_text, text)
    if not vectors:
        text = _TIMES.sub(r"\\cdot ", text)
    text = _rewrite(text)
    text = _both_arguments(_ROOT_SHORT.sub(r"\1{\2}", text))
    text = _SCRIPT.sub(r"\1{\2}", _in_braces(text))
    return _SPACE.sub(r"\1", " ".join(text.split()))


def outer(text: str) -> str:
    """Return the text without the delimiters of a formula around it, and without a full stop.

    >>> outer("$$x$$."), outer("$x$ or $y$")
    ('x', 'x or y')
    """
    text = text.strip().removeprefix("**").removesuffix("**").strip()
    text = _STOP.sub("", text).strip()
    for opening, closing in DELIMITERS:
        inside = text[len(opening) : -len(closing)]
        if text.startswith(opening) and text.endswith(closing) and inside.strip() and opening not in inside:
            return _STOP.sub("", inside.strip()).strip()
    plain = re.sub(r"(?<!\\)\\[()\[\]]", "", text)
    signs = re.findall(r"(?<!\\)\$", plain)
    return re.sub(r"(?<!\\)\$", "", plain).strip() if len(signs) % 2 == 0 else plain


def untypeset(text: str) -> str:
    """Return the text without what only sets type."""
    text = _SET.sub(r"\1", _SET.sub(r"\1", text)).replace("**", "").replace("$", "")
    return re.sub(r"\\[,;: ()\[\]]|\\(?:left|right|quad)(?![A-Za-z])|~", " ", text).strip()


def _text(match: re.Match[str]) -> str:
    return rf" \text{{{' '.join(match.group(1).replace('~', ' ').split())}}} "


def _both_arguments(text: str) -> str:
    r"""Write `\frac12`, `\frac{1}2` and `\frac\pi 2` with all their braces."""
    place = 0
    while command := _TWO.search(text, place):
        place = end = command.end()
        for _ in range(2):
            if short := _ARGUMENT.match(text, end):
                text = f"{text[:end]}{{{short.group(1)}}}{text[short.end() :]}"
                end += len(short.group(1)) + 2
            else:
                end = closing(text, end)
    return text


def _in_braces(text: str) -> str:
    r"""Write `^(...)` and `\sqrt(...)` with braces in place of the brackets."""
    place = 0
    while opened := _OPENED.search(text, place):
        start, end = opened.start(1), closing(text, opened.start(1))
        place = opened.end()
        if text[end - 1 : end] == ")":
            text = f"{text[:start]}{{{text[start + 1 : end - 1]}}}{text[end:]}"
    return text


def closing(text: str, start: int) -> int:
    """Find the end of the group that opens at `start`, blanks before it apart; `start` if none opens or ends."""
    opened = re.compile(r"\s*[({\[]").match(text, start)
    if opened is None:
        return start
    depth = 0
    for place in range(opened.end() - 1, len(text)):
        if text[place] in "({[":
            depth += 1
        elif text[place] in ")}]":
            depth -= 1
            if depth == 0:
                return place + 1
    return start
