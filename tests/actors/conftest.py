"""The policy with experts that the tests of engines outside have."""

from tests.engines.outside.conftest import experts as experts
