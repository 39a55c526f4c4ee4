"""Claim: k3 in the loss pulls with the gradient of the KL."""

from groupwise.claims.articles import kl_value
from groupwise.claims.articles.kl_value import ESTIMATORS
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, below

OF = kl_value.NAME


def judge(measured: Measurements) -> Verdict:
    """On policy, where it is at its best, its gradient is within a hundredth of that of KL(live || reference)."""
    return below(
        measured.interval(OF, "gradient_k3_on"), 0.01, "on policy k3's gradient is off that of the KL by a share of"
    )


CLAIM = Claim(
    name="kl-gradient",
    title="k3 in the loss penalises KL(live || reference): its gradient is that of this KL.",
    source="S0, S1 and S3, who write the KL into the objective; DeepSeekMath 2402.03300 eq 3 and 4",
    argument="Differentiating the estimator leaves out that the samples depend on the policy as well. What is left of "
    "k3 is the gradient of KL(reference || live), of k2 that of KL(live || reference), of k1 nothing. In the reward k1 "
    "has the right one.",
    expected="Does not hold.",
    experiments=(kl_value.EXPERIMENT,),
    quantities=(
        *(
            Quantity(
                f"relative error of the gradient, {name} in the loss, {place} policy", OF, f"gradient_{name}_{place}"
            )
            for place in ("on", "off")
            for name in ESTIMATORS
        ),
        Quantity("relative error of the gradient, k1 in the reward, on policy", OF, "gradient_reward"),
    ),
    judge=judge,
)
