"""The policy that crosses to another process."""

from __future__ import annotations

import pytest

from groupwise.models.load import Policy, load_policy
from tests.moe_policy import save_moe


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A mixture of experts, so that routes cross as well, with a buffer that its configuration does not make."""
    policy = load_policy(save_moe(tmp_path_factory.mktemp("policy") / "moe", max_position_embeddings=512))
    policy.model.model.rotary_emb.inv_freq.mul_(1.1)
    return policy
