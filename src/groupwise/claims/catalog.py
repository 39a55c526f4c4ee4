"""Every claim, in the order of the page."""

from groupwise.claims.articles import (
    clip_product,
    clipped_share,
    group_baseline,
    gspo_token,
    kl_estimators,
    perplexity_ratio,
    soft_gate,
    token_weights,
)
from groupwise.claims.claim import Claim
from groupwise.core.errors import UsageError, brief, nearest

CLAIMS: tuple[Claim, ...] = (
    clip_product.CLAIM,
    group_baseline.CLAIM,
    perplexity_ratio.CLAIM,
    token_weights.CLAIM,
    clipped_share.CLAIM,
    gspo_token.CLAIM,
    soft_gate.CLAIM,
    kl_estimators.CLAIM,
)


def chosen(names: list[str]) -> tuple[Claim, ...]:
    """The claims of these names; all where there is none. Raises UsageError for a name that no claim has."""
    by_name = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in by_name:
            raise UsageError(f"--only {brief(name)}: there is no such claim; {nearest(name, by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(names)) or CLAIMS
