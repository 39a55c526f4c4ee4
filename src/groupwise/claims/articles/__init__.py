"""Claims of the articles, a file a subject, in the order of the page: mathematics and toys come before runs."""

from collections.abc import Mapping, Sequence

from groupwise.claims.articles import dapo, experts, group, gspo_clip, gspo_ratio, kl, length, silence, trust
from groupwise.claims.claim import Claim
from groupwise.core.errors import UsageError, brief, nearest

SUBJECTS: Mapping[str, tuple[Claim, ...]] = {
    "A group instead of a critic": group.CLAIMS,
    "Groups without signal": silence.CLAIMS,
    "What a clip does": trust.CLAIMS,
    "Clip-higher": dapo.CLIP_HIGHER_CLAIMS,
    "Length": length.CLAIMS,
    "DAPO as a whole": dapo.CLAIMS,
    "GSPO's ratio": gspo_ratio.CLAIMS,
    "GSPO's clip": gspo_clip.CLAIMS,
    "SAPO's gate": trust.GATE_CLAIMS,
    "Mixtures of experts": experts.CLAIMS,
    "KL": kl.CLAIMS,
}
CLAIMS: tuple[Claim, ...] = tuple(claim for claims in SUBJECTS.values() for claim in claims)


def chosen(names: Sequence[str]) -> tuple[Claim, ...]:
    """Find the claims of these names; all of them if there is none. Raises UsageError for a name that no claim has."""
    by_name = {claim.name: claim for claim in CLAIMS}
    for name in names:
        if name not in by_name:
            raise UsageError(f"--only {brief(name)}: there is no such claim; {nearest(name, by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(names)) or CLAIMS
