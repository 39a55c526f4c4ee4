"""Program that vLLM's interpreter runs: an engine that sleeps as it would on a GPU, around the real vLLM of a CPU.

The worker of a CPU gives no memory back, but all that is above it sleeps: a scheduler that is paused, memory whose tags
have to be woken.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from groupwise.core.engine import Request, Sampling, silent
from groupwise.core.errors import RunError
from groupwise.engines.outside.spec import folder_writer, spec_of
from groupwise.engines.settings import EngineSettings
from groupwise.engines.vllm.make import vllm_engine
from groupwise.models.load import load_policy


def main(place: str) -> None:
    """Print what is sampled before a sleep, what is said of a call in it, and what is sampled after new weights."""
    policy = load_policy(Path(place))
    weights = {name: parameter.detach() for name, parameter in policy.model.named_parameters()}
    settings = EngineSettings.model_validate({"name": "vllm", "cache_mib": 64})
    requests, sampling = [Request((4, 5, 6), samples=3, seed=1)], Sampling(max_new_tokens=8)
    with tempfile.TemporaryDirectory() as folder:
        folder_writer(policy)(Path(folder))
        engine = vllm_engine(spec_of(policy, settings, routes=False), Path(folder), weights, silent)
        engine._sleeps = True
        llm = engine._llm
        engine.load_weights(weights.items(), 1)
        print("before", [c.tokens for c in engine.generate(requests, sampling)[0]])
        engine.sleep()
        engine.sleep()
        print("asleep", llm.llm_engine.is_sleeping())
        try:
            engine.generate(requests, sampling)
        except RunError as error:
            print("refused", error)
        engine.load_weights(weights.items(), 2)
        print("asleep", llm.llm_engine.is_sleeping())
        after = engine.generate(requests, sampling)[0]
        print("after", [c.tokens for c in after])
        print("version", after[0].version)


if __name__ == "__main__":
    main(sys.argv[1])
