"""A refusal: one line that names what it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from groupwise.core.errors import GroupwiseError, UsageError


@contextmanager
def refused(words: str, kind: type[GroupwiseError] = UsageError) -> Iterator[None]:
    """Require that the body is refused in one line which holds these words."""
    with pytest.raises(kind) as told:
        yield
    assert words in str(told.value)
    assert "\n" not in str(told.value)
