"""The local engine from a policy and the recipe's settings, wherever it is to live."""

from groupwise.core.engine import Progress, silent
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy


def local_engine(policy: Policy, settings: EngineSettings, routes: bool, progress: Progress = silent) -> LocalEngine:
    """An engine in this process, with its own copy of the policy.

    Raises UsageError where the policy's model cannot be sampled, or has no experts to record.
    """
    return LocalEngine(
        policy.model,
        eos=policy.eos,
        pad=policy.pad,
        max_rows=settings.max_rows,
        routes=routes,
        precision=settings.precision,
        decode=policy.decode,
        progress=progress,
    )
