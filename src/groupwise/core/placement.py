"""The processes that a run is made of, and what becomes of it when one is lost."""

from pydantic import Field

from groupwise.core.settings import Changeable, Settings


class PlacementSettings(Settings):
    """The section [placement]: the processes that a run is made of.

    restarts  how often in a row a run goes on by itself, from its newest good checkpoint, after a rank was lost, or an
              engine for good. A step that was not done before begins the count again; at 0 the run ends, and says why
    """

    restarts: Changeable[int] = Field(default=0, ge=0, le=1000)
