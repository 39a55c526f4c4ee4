"""Every claim, in the order of the page."""

from collections.abc import Sequence

from groupwise.claims.articles import (
    clip_confines,
    clip_product,
    clip_quadrants,
    clip_ranges,
    clipped_quality,
    clipped_share,
    common_tokens,
    group_baseline,
    group_deviation,
    group_size,
    gspo_token,
    kl_gradient,
    kl_value,
    length_bias,
    length_weights,
    log_difference,
    long_answers,
    perplexity_ratio,
    process_supervision,
    rare_tokens,
    rollout_efficiency,
    sequence_weight,
    silent_groups,
    soft_gate,
    toy_entropy,
    uniform_weights,
    weight_spread,
)
from groupwise.claims.claim import Claim
from groupwise.core.errors import UsageError, brief, nearest

CLAIMS: tuple[Claim, ...] = (
    group_baseline.CLAIM,
    group_deviation.CLAIM,
    group_size.CLAIM,
    silent_groups.CLAIM,
    rollout_efficiency.CLAIM,
    clip_product.CLAIM,
    clip_confines.CLAIM,
    clip_quadrants.CLAIM,
    rare_tokens.CLAIM,
    common_tokens.CLAIM,
    toy_entropy.CLAIM,
    length_weights.CLAIM,
    long_answers.CLAIM,
    length_bias.CLAIM,
    perplexity_ratio.CLAIM,
    sequence_weight.CLAIM,
    log_difference.CLAIM,
    uniform_weights.CLAIM,
    weight_spread.CLAIM,
    clipped_share.CLAIM,
    clip_ranges.CLAIM,
    clipped_quality.CLAIM,
    gspo_token.CLAIM,
    soft_gate.CLAIM,
    kl_value.CLAIM,
    kl_gradient.CLAIM,
    process_supervision.CLAIM,
)


def chosen(names: Sequence[str]) -> tuple[Claim, ...]:
    """The claims of these names; all where there is none. Raises UsageError for a name that no claim has."""
    by_name = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in by_name:
            raise UsageError(f"--only {brief(name)}: there is no such claim; {nearest(name, by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(names)) or CLAIMS
