"""The table of engines that a recipe may name: a new one is a package and a row here.

It is not in engines/make.py, which imports the settings of engines: these read the table.
"""

from collections.abc import Callable, Mapping

from groupwise.engines.kind import EngineKind
from groupwise.engines.local import LOCAL
from groupwise.engines.vllm import VLLM

#: The value of engine.name -> what is known of that engine.
KINDS: Mapping[str, EngineKind] = {kind.name: kind for kind in (LOCAL, VLLM)}


def setting(has: Callable[[EngineKind], bool]) -> str:
    """Name the first engine of which this holds, as a recipe does."""
    return next(f'engine.name = "{kind.name}"' for kind in KINDS.values() if has(kind))
