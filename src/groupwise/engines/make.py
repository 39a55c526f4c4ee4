"""The one place where an engine is built, and what training requires of one."""

from groupwise.core.engine import Engine, Sampling
from groupwise.core.errors import UsageError
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy


def make_engine(*, policy: Policy, settings: EngineSettings, routes: bool = False) -> Engine:
    """An engine that samples from a copy of the policy; `routes`: with the experts chosen. Close it after use.

    Raises UsageError where the policy's model cannot be sampled, or has no experts to record.
    """
    return LocalEngine(
        policy.model,
        eos=policy.eos,
        pad=policy.pad,
        max_rows=settings.max_rows,
        routes=routes,
        precision=settings.precision,
    )


def require_engine_support(engine: Engine, sampling: Sampling) -> None:
    """Raises UsageError where training needs the ids that top-p or top-k left and the engine does not return them."""
    if sampling.truncates and not engine.keeps_support:
        raise UsageError(
            f"sampling.top_p = {sampling.top_p:g}, sampling.top_k = {sampling.top_k}: {type(engine).__name__} does not "
            "return the ids that were left to draw from (Completion.support), over which training renormalises; set "
            "top_p = 1 and top_k = 0, or take an engine that does"
        )
