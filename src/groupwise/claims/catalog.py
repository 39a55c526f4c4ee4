"""Every claim, by subject, in the order of the page: what mathematics and toys say of one before what runs say."""

from collections.abc import Mapping, Sequence

from groupwise.claims.articles import (
    ablation_ladder,
    clip_confines,
    clip_product,
    clip_quadrants,
    clip_ranges,
    clipped_quality,
    clipped_quality_in_training,
    clipped_share,
    clipped_share_in_training,
    common_tokens,
    dynamic_sampling,
    engine_precision,
    entropy_in_training,
    equal_generation,
    gate_assumptions,
    gate_temperatures,
    group_baseline,
    group_deviation,
    group_size,
    gspo_token,
    kl_gradient,
    kl_place,
    kl_value,
    ladder_order,
    length_bias,
    length_weights,
    log_difference,
    long_answers,
    matched_clips,
    overlong,
    perplexity_ratio,
    process_supervision,
    rare_tokens,
    rare_tokens_in_training,
    replay_mends,
    replay_unneeded,
    rollout_efficiency,
    sequence_weight,
    silent_groups,
    silent_groups_in_training,
    soft_gate,
    toy_entropy,
    uniform_weights,
    weight_spread,
    without_critic,
    wrong_length,
)
from groupwise.claims.claim import Claim
from groupwise.core.errors import UsageError, brief, nearest

SUBJECTS: Mapping[str, tuple[Claim, ...]] = {
    "A group instead of a critic": (
        group_baseline.CLAIM,
        group_deviation.CLAIM,
        group_size.CLAIM,
        without_critic.CLAIM,
        process_supervision.CLAIM,
    ),
    "Groups without signal": (
        silent_groups.CLAIM,
        silent_groups_in_training.CLAIM,
        rollout_efficiency.CLAIM,
        dynamic_sampling.CLAIM,
        equal_generation.CLAIM,
    ),
    "What a clip does": (
        clip_product.CLAIM,
        clip_confines.CLAIM,
        clip_quadrants.CLAIM,
    ),
    "Clip-higher": (
        rare_tokens.CLAIM,
        common_tokens.CLAIM,
        rare_tokens_in_training.CLAIM,
        toy_entropy.CLAIM,
        entropy_in_training.CLAIM,
    ),
    "Length": (
        length_weights.CLAIM,
        long_answers.CLAIM,
        length_bias.CLAIM,
        wrong_length.CLAIM,
        overlong.CLAIM,
    ),
    "DAPO as a whole": (
        ablation_ladder.CLAIM,
        ladder_order.CLAIM,
    ),
    "GSPO's ratio": (
        perplexity_ratio.CLAIM,
        sequence_weight.CLAIM,
        log_difference.CLAIM,
        uniform_weights.CLAIM,
        weight_spread.CLAIM,
        gspo_token.CLAIM,
    ),
    "GSPO's clip": (
        clipped_share.CLAIM,
        clipped_share_in_training.CLAIM,
        clip_ranges.CLAIM,
        matched_clips.CLAIM,
        clipped_quality.CLAIM,
        clipped_quality_in_training.CLAIM,
        engine_precision.CLAIM,
    ),
    "SAPO's gate": (
        soft_gate.CLAIM,
        gate_assumptions.CLAIM,
        gate_temperatures.CLAIM,
    ),
    "Mixtures of experts": (
        replay_mends.CLAIM,
        replay_unneeded.CLAIM,
    ),
    "KL": (
        kl_value.CLAIM,
        kl_gradient.CLAIM,
        kl_place.CLAIM,
    ),
}
CLAIMS: tuple[Claim, ...] = tuple(claim for claims in SUBJECTS.values() for claim in claims)


def chosen(names: Sequence[str]) -> tuple[Claim, ...]:
    """The claims of these names; all where there is none. Raises UsageError for a name that no claim has."""
    by_name = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in by_name:
            raise UsageError(f"--only {brief(name)}: there is no such claim; {nearest(name, by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(names)) or CLAIMS
