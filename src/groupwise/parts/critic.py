"""The critic's loss, and how much of the returns its values explain."""

from __future__ import annotations

from torch import Tensor

from groupwise.masked import keep


def value_loss(value: Tensor, value_old: Tensor, returns: Tensor, mask: Tensor, clip: float) -> Tensor:
    """[N,T] each -> [N,T]: 0.5 max((V-R)^2, (clip(V, V_old-c, V_old+c)-R)^2), 0 where masked; clip 0 is off."""
    loss = (value - returns) ** 2
    if clip:
        loss = loss.maximum((value.clamp(value_old - clip, value_old + clip) - returns) ** 2)
    return keep(0.5 * loss, mask)


def explained_variance(value: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - Var(R - V) / Var(R) over the trained tokens; NaN where the returns do not vary."""
    v, r = value[mask].double(), returns[mask].double()
    spread = float(r.var(correction=0)) if len(r) else 0.0
    return 1 - float((r - v).var(correction=0)) / spread if spread else float("nan")
