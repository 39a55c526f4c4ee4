"""Experiments that compute: mathematics and toys, in this process, in seconds."""

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

from groupwise.claims import toys
from groupwise.claims.claim import Effort, Experiment

#: What a file of a claim reads its rows with; what stands above measures.
JUDGE = "judge"
#: Statements that compute something.
DEFINES = (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef)


def computed(name: str, measure: Callable[[int, Path], Mapping[str, Any]], seeds: int) -> Experiment:
    """A quick experiment with so many seeds.

    Its fingerprint is of the text that measures: what stands above `judge` in the file of `measure`, and the toys. Its
    code is of groupwise itself, whose parts it tries.
    """
    text = _measuring(sys.modules[measure.__module__]) + inspect.getsource(toys)
    return Experiment(name, measure, _digest(text.encode()), {Effort.QUICK: seeds}, _groupwise())


def _measuring(module: ModuleType) -> str:
    """The functions and constants of a module, down to its judge; words and imports do not count."""
    source = inspect.getsource(module)
    body = takewhile(lambda node: getattr(node, "name", "") != JUDGE, ast.parse(source).body)
    return "\n".join(ast.get_source_segment(source, node) or "" for node in body if isinstance(node, DEFINES))


@cache
def _groupwise() -> str:
    """Of every file of the package but those of the claims."""
    claims = Path(toys.__file__).parent
    files = sorted(path for path in claims.parent.rglob("*.py") if claims not in path.parents)
    return _digest(b"".join(path.read_bytes() for path in files))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]
