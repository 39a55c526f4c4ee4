"""Modules of one package import each other one way only, inside functions and for type checking too."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

import groupwise

SOURCE = Path(groupwise.__file__).parent


def imports(module: Path) -> set[str]:
    """Dotted names of what a module imports, anywhere in its text: `a.b` and, as b may be a module, `a`."""
    nodes = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ImportFrom)]
    return {
        name for node in nodes for alias in node.names for name in (node.module, f"{node.module}.{alias.name}") if name
    }


@pytest.mark.parametrize("package", ["tasks", "commands/check"])
def test_no_two_modules_import_each_other(package: str) -> None:
    modules = {
        ".".join(("groupwise", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): file
        for file in (SOURCE / package).rglob("*.py")
    }
    graph = {name: imports(file) & modules.keys() for name, file in modules.items()}
    assert sum(map(len, graph.values())) > len(graph) / 2, "imports are seen"
    assert list(graphlib.TopologicalSorter(graph).static_order())
