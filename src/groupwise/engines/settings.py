"""Which engine samples, where it lives, and how many completions it holds at once."""

import shutil
from typing import Literal

from pydantic import Field

from groupwise.core.errors import UsageError
from groupwise.core.settings import Changeable, Location, Settings
from groupwise.models.precision import WeightPrecision

#: The keys that only an engine in a child reads.
OF_A_CHILD = frozenset({"python", "deadline", "start_deadline", "restarts"})


class EngineSettings(Settings):
    """The section [engine].

    name            which engine samples
    process         "inside" is the run's own; "child" is one of its own, started again where it ends or stalls
    python          the child's interpreter, which has libraries of its own; without this key it is the run's
    deadline        seconds without a sign of progress after which a child counts as stalled
    start_deadline  seconds in which a child must have started
    restarts        how often in a row a child is started again; 0: the run stops instead
    max_rows        completions sampled side by side; the others wait for a place
    precision       of the engine's copy of the weights; "same" is as the learner's master weights are
    """

    name: Literal["local"] = "local"
    process: Literal["inside", "child"] = "inside"
    python: Location | None = None
    deadline: Changeable[float] = Field(default=120.0, ge=0.1, le=86_400)
    start_deadline: Changeable[float] = Field(default=600.0, ge=0.1, le=86_400)
    restarts: Changeable[int] = Field(default=2, ge=0, le=1000)
    max_rows: Changeable[int] = Field(default=512, ge=1)
    precision: WeightPrecision = "same"

    @property
    def unread(self) -> set[str]:
        """The keys that nothing reads: without a child those that are about it."""
        return set() if self.process == "child" else set(OF_A_CHILD)

    def require_interpreter(self) -> None:
        """Raises UsageError where there is no such program as `python` names."""
        if self.python is not None and shutil.which(self.python) is None:
            raise UsageError(
                f"engine.python = {self.python!r}: there is no such program; name an interpreter, such as "
                ".venv-vllm/bin/python"
            )

    def __str__(self) -> str:
        interpreter = f", run by {self.python}" if self.python else ""
        return f"{self.name}, in a child process{interpreter}" if self.process == "child" else self.name
