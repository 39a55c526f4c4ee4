"""The plan's arithmetic beside what others have published: bytes of a rank, what passes, and tokens a second.

python benchmarks/scale_published.py

Nothing here is measured: both columns are of other people's machines, one as they say it and one as the plan does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import LlamaConfig

from groupwise.planning.activations import without_memory
from groupwise.planning.run_shape import MicrobatchSizes, RunShape
from groupwise.planning.shard_groups import GroupedModel, groups_of, held_bytes, trained_part
from groupwise.planning.step_time import ADAMW, Work, device_of, passed

#: Llama 3 of 8 and of 70 billion parameters, from Meta's model cards.
LLAMA: dict[str, Any] = {"vocab_size": 128_256, "num_key_value_heads": 8, "tie_word_embeddings": False}
SIZES: dict[str, dict[str, Any]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70B": {"hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64},
}
#: Tokens of a sequence in all of them.
LENGTH = 8192


@dataclass(frozen=True)
class Published:
    """Tokens a second of a device, as others have it.

    rows       sequences of a device in a step
    recompute  whether the layers go forward twice; of "selective" recomputation, nothing is counted
    """

    model: str
    device: str
    ranks: int
    rows: int
    recompute: bool
    tokens: float
    where: str


TORCHTITAN = "torchtitan, its page on performance (FSDP2, bf16"
ROWS = (
    Published("8B", "a100", 64, 1, False, 2973, f"{TORCHTITAN}, 64 A100)"),
    Published("70B", "a100", 64, 1, True, 331, f"{TORCHTITAN}, 64 A100)"),
    Published("8B", "h100", 8, 2, False, 5762, f"{TORCHTITAN}, 8 H100, not compiled)"),
    Published("8B", "h100", 8, 2, False, 6667, f"{TORCHTITAN}, 8 H100, compiled)"),
    Published("8B", "h100", 128, 2, False, 5605, f"{TORCHTITAN}, 128 H100, not compiled)"),
)


def llama(size: str) -> Any:
    return without_memory(LlamaConfig(**LLAMA, **SIZES[size]))


def update(row: Published) -> list[Work]:
    """One microbatch on each device, forward and backward, and AdamW, by the plan."""
    model = llama(row.model)
    held = GroupedModel(model, groups_of(model, bf16=True))
    shape = RunShape(
        prompts=row.rows * row.ranks,
        samples=1,
        minibatches=1,
        prompt=1,
        completion=LENGTH,
        rows=1,
        truncates=False,
        adjusts=False,
        engine=0,
        reference=0,
        reward_model=False,
        ranks=row.ranks,
    )
    sizes = MicrobatchSizes(row.ranks, row.ranks * row.rows * LENGTH, row.rows * LENGTH)
    both = passed(held, shape, sizes, bf16=True, trains=True, recompute=row.recompute)
    return [both, Work(memory=ADAMW * trained_part(held.groups.every, row.ranks))]


def tokens_per_second(row: Published) -> float:
    """Of a device, by the plan."""
    device = device_of(row.device, row.ranks, 0)
    return row.rows * LENGTH / sum(work.seconds(device, row.ranks) for work in update(row))


def main() -> None:
    print("weights, gradients and moments of a rank (ZeRO, Rajbhandari et al. 2020, figure 1: 7.5 billion parameters)")
    numbers = 7.5e9
    for ranks, published in ((1, 120.0), (64, 1.88)):
        ours = 16 * numbers / ranks / 1e9
        print(f"  {ranks:>3} ranks: published {published:g} GB, of 16 bytes a parameter {ours:.3g} GB")
    groups = groups_of(llama("8B"))
    held = held_bytes(groups.every, 64) + 3 * trained_part(groups.every, 64)
    each = 64 * held / sum(w.rows * w.row for w in groups.every)
    print(f"   64 ranks: {each:.2f} bytes a parameter by the groups of Llama 3 8B, rows that fill up included")
    print("tokens a second of a device")
    for row in ROWS:
        ours = tokens_per_second(row)
        print(
            f"  {row.model:>4} on {row.ranks:>3} {row.device}: published {row.tokens:,.0f}, plan {ours:,.0f}, "
            f"{ours / row.tokens:.2f}; {row.where}"
        )


if __name__ == "__main__":
    main()
