"""The pictures of a mixture-of-experts policy; a dense one has no numbers for them. Laid out like the others."""

from __future__ import annotations

from groupwise.report.records import Plot, Series

ROUTING = (
    Plot(
        "routing-changed",
        "healthy",
        "Experts that changed, per layer",
        "Good: small and flat. Bad: rising: updates move tokens to other experts, and ratios with them.",
        "share of choices",
        (Series("*", "routing.changed.*"),),
        reach=(0, 0.1),
    ),
    Plot(
        "routing-after",
        "healthy",
        "Experts that changed, update by update",
        "After 1, 2, ... updates on a batch. Good: small. Bad: the last lines far above the first.",
        "share of choices",
        (Series("after *", "routing.changed_after.*"),),
        reach=(0, 0.1),
    ),
    Plot(
        "routing-used",
        "healthy",
        "Experts that changed: chosen, used",
        "With replay, good: used at 0; removed is what replay took away. Without it both are one.",
        "share of choices",
        (
            Series("chosen", "routing.changed"),
            Series("used", "routing.used_changed", dash="dash"),
            Series("removed by replay", "routing.removed", dash="dot"),
            Series("used, against the engine", "routing.used_engine_changed", dash="dashdot"),
        ),
        reach=(0, 0.1),
    ),
    Plot(
        "routing-engine",
        "healthy",
        "Experts that engine and learner choose differently",
        "Good: 0, or rounding. Bad: growing: the engine samples a policy with other experts.",
        "share of choices",
        (Series("*", "routing.engine_changed.*"),),
        reach=(0, 0.01),
    ),
    Plot(
        "routing-variance",
        "healthy",
        "Variance of log-ratios, by whether an expert changed",
        "Far apart: changed experts make the ratios vary. Close: something else does.",
        "nats squared",
        (
            Series("an expert changed", "log_ratio_variance_changed"),
            Series("none changed", "log_ratio_variance_same", dash="dash"),
        ),
        reach=(0, None),
    ),
    Plot(
        "routing-load",
        "healthy",
        "Load of experts: evenness, per layer",
        "1 is even. Good: flat. Bad: falling: few experts get all the tokens.",
        "entropy of load / log experts",
        (Series("*", "routing.load_entropy.*"),),
        reach=(0.8, 1),
    ),
    Plot(
        "routing-most",
        "healthy",
        "Load of experts: the busiest, per layer",
        "Good: a few times the even share at most. Bad: rising towards all of the experts' shares.",
        "times the even share",
        (Series("*", "routing.load_max.*"),),
        reach=(1, 2),
    ),
    Plot(
        "routing-dead",
        "healthy",
        "Load of experts: without a token",
        "Good: 0. Bad: rising: experts that are never chosen learn nothing and come back rarely.",
        "experts",
        (Series("*", "routing.dead_experts.*"),),
        reach=(0, 1),
    ),
    Plot(
        "routing-losses",
        "healthy",
        "The routers' own losses",
        "Before their coefficients. Load: 1 is even, good is near it. z: good is small and flat.",
        "",
        (Series("load balance", "balance_loss"), Series("z", "z_loss", dash="dash")),
    ),
)
