"""Which engine samples, and how many completions it holds at once."""

from typing import Literal

from pydantic import Field

from groupwise.core.settings import Settings


class EngineSettings(Settings):
    """The section [engine].

    max_rows  completions sampled side by side; the others wait for a place
    """

    name: Literal["local"] = "local"
    max_rows: int = Field(default=512, ge=1)
