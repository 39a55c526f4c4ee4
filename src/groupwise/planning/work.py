"""How many operations and bytes a model's passes are, from shapes alone.

A product with a weight of n numbers is 2 n operations a token forward. Backward it is 2 n for what came in, and 2 n
more for the weight's gradient where it trains. Attention is 4 operations for each pair of a token and one that it
attends to, and each channel of its heads. Norms, softmax and rotations are left out.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from groupwise.core.errors import UsageError
from groupwise.models.moe.record import routers
from groupwise.planning.activations import cached_widths
from groupwise.training.sharded import decoder_layers


@dataclass(frozen=True)
class Work:
    """What a model computes and reads.

    token    operations of a token forward through the layers; trained  those of them whose weights have a gradient
    pair     operations of a token with one that it attends to, through all layers
    head     operations of the head for one prediction
    layers   how many there are
    dense    numbers of the weights that every token goes through, the head's among them
    experts  numbers of the experts of all layers; chosen  the share of them that a token goes through
    cached   numbers of keys and values of a token
    """

    token: int
    trained: int
    pair: int
    head: int
    layers: int
    dense: int
    experts: int
    chosen: float
    cached: int

    def forward(self, tokens: float, pairs: float, predicted: float) -> float:
        """Operations of a pass without gradient."""
        return tokens * self.token + pairs * self.pair + predicted * self.head

    def training(self, tokens: float, pairs: float, predicted: float, recompute: bool, trains_head: bool) -> float:
        """Operations of a forward and backward pass; `recompute`: the layers go forward twice."""
        layers = tokens * self.token + pairs * self.pair
        backward = tokens * (self.token + self.trained) + pairs * 2 * self.pair
        head = predicted * self.head * (3 if trains_head else 2)
        return layers * (1 + recompute) + backward + head

    def read(self, rows: int) -> float:
        """Numbers of the weights that a step of `rows` tokens reads: of experts those that any of them goes to.

        Where each chooses as it comes, an expert is left out by all of them with probability (1 - chosen)^rows.
        """
        return self.dense + self.experts * (1 - (1 - self.chosen) ** rows)


def work_of(model: Any, value: bool = False) -> Work:
    """Of a model without memory; `value`: its head gives one number, a critic's.

    Raises UsageError for a mixture of experts whose routers do not say how many experts a token goes through.
    """
    layers = decoder_layers(model)
    stacks = {id(p): p for layer in layers for p in layer.parameters() if p.dim() == 3}
    share = _chosen_share(model) if stacks else 0.0
    matrices = {id(p): p for layer in layers for p in layer.parameters() if p.dim() == 2}
    dense, experts = (sum(p.numel() for p in group.values()) for group in (matrices, stacks))
    trained = sum(p.numel() for p in matrices.values() if p.requires_grad)
    trained_experts = sum(p.numel() for p in stacks.values() if p.requires_grad)
    head = model.get_output_embeddings().weight.numel()
    config = model.config.get_text_config()
    channels = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    return Work(
        token=int(2 * (dense + share * experts)),
        trained=int(2 * (trained + share * trained_experts)),
        pair=4 * channels * len(layers),
        head=2 * head,
        layers=len(layers),
        dense=dense + head,
        experts=experts,
        chosen=share,
        cached=0 if value else sum(cached_widths(model)),
    )


def _chosen_share(model: nn.Module) -> float:
    known = routers(model)
    if not known:
        raise UsageError(
            f"{type(model).__name__} holds experts, and no module that says how many of them a token goes through: its "
            "time cannot be estimated"
        )
    return known[0].chosen / known[0].experts
