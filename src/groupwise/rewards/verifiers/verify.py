"""Whether two mathematical expressions are the same, by math-verify: what a guard runs as a process."""

import logging
import resource
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

from groupwise.core.channel import Channel
from groupwise.core.errors import UsageError, need
from groupwise.rewards.verifiers.hasten import replacements

#: An answer that needs more memory than this fails: bytes of address space.
MEMORY = 4 * 2**30
#: Pairs whose forms the parser meets first here, where no deadline runs.
_WARM = (
    (r"\frac{\sqrt{3}}{2}", r"\{1, x^2\}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("[0,1)", r"\sin x = 1"),
    (r"\frac{2\pi}{3}", r"2^{3}\cdot 4"),
    ("(1,-2)", r"\begin{pmatrix}1\\2\end{pmatrix}"),
)


def prepare() -> Callable[[str, str], bool]:
    """Loads math-verify and gives (gold, claim) -> whether they are equal, both LaTeX or plain text.

    Its own time limits are off: they need the main thread and SIGALRM; the guard outside holds the deadline.
    Its first parse builds tables for a good part of a second, which is done here and not in a question's time.
    """
    library = need("math_verify", "tasks", 'answers of kind "math"')
    modules = [import_module(name) for name in ("latex2sympy2_extended.latex2sympy2", "math_verify.grader")]
    for module, name, faster in replacements(*modules):
        setattr(module, name, faster)
    logging.disable(logging.CRITICAL)
    kinds = [library.LatexExtractionConfig(boxed_match_priority=0), library.ExprExtractionConfig()]

    @lru_cache(maxsize=4096)
    def parsed(text: str) -> list[object]:
        return library.parse(f"\\boxed{{{text}}}", kinds, parsing_timeout=None)

    @lru_cache(maxsize=4096)
    def same(gold: str, claim: str) -> bool:
        try:
            return bool(library.verify(parsed(gold), parsed(claim), timeout_seconds=None))
        except (MemoryError, RecursionError, OverflowError):
            return False

    for gold, claim in _WARM:
        same(gold, claim)
    return same


def main(parent: Channel) -> None:
    """Answers questions, pairs of (gold, claim), until the parent is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        same = prepare()
    except UsageError as error:
        parent.send({"lacks": str(error)})
        return
    parent.send({})
    while True:
        gold, claim = parent.receive()["question"]
        parent.send({"answer": same(gold, claim)})


if __name__ == "__main__":
    prepare()
