"""Which engine samples, and how many completions it holds at once."""

from typing import Literal

from pydantic import Field

from groupwise.core.settings import Changeable, Settings
from groupwise.models.precision import WeightPrecision


class EngineSettings(Settings):
    """The section [engine].

    name       which engine samples
    max_rows   completions sampled side by side; the others wait for a place
    precision  of the engine's copy of the weights; "same" is as the learner's master weights are
    """

    name: Literal["local"] = "local"
    max_rows: Changeable[int] = Field(default=512, ge=1)
    precision: WeightPrecision = "same"
