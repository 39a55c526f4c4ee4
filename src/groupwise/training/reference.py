"""The frozen reference of a run: a copy of the starting policy that is never trained."""

import copy
from typing import Any

from groupwise.core.settings import Settings
from groupwise.models.precision import WeightPrecision, cast_weights


class ReferenceSettings(Settings):
    """The section [reference], of an algorithm that reads one.

    precision  of the reference's weights; "same" is as the learner's master weights are
    """

    precision: WeightPrecision = "same"


def frozen_reference(model: Any, settings: ReferenceSettings) -> Any:
    """A copy of the model, cast as the settings say."""
    return cast_weights(copy.deepcopy(model), settings.precision)
