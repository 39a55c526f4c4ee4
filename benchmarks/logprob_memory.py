"""Peak memory of the log-probability pass at a large vocabulary, forward and backward, against whole logits.

python benchmarks/logprob_memory.py
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import torch
from torch import nn

from groupwise.models.forward.logprobs import token_logprobs

VOCABULARY, TOKENS, WIDTH = 151_936, 8_192, 64


def peak() -> float:
    """The process's largest resident memory so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(backward: bool) -> None:
    """Print what the pass adds to a process that already holds head, states and their gradients."""
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    states = torch.randn(TOKENS, WIDTH, requires_grad=True)
    head.weight.grad, states.grad = torch.zeros_like(head.weight), torch.zeros_like(states)
    targets = torch.randint(VOCABULARY, (TOKENS,))
    before, started = peak(), time.perf_counter()
    with torch.set_grad_enabled(backward):
        logp, *_ = token_logprobs(head, states, targets)
    if backward:
        logp.sum().backward()
    print(f"{peak() - before:.3f} {time.perf_counter() - started:.1f}")


def main() -> None:
    """One table; each row is measured in a process of its own, because a peak never comes down."""
    whole = VOCABULARY * TOKENS * 4 / 2**30
    print(f"log-probabilities of {TOKENS:,} tokens, vocabulary {VOCABULARY:,}, width {WIDTH}, float32")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"whole logits alone would need {whole:.2f} GiB\n")
    print(f"{'pass':<22}{'peak, GiB':>10}{'of whole logits':>17}{'seconds':>9}")
    for name in ("forward", "forward and backward"):
        command = [sys.executable, __file__, name]
        added, seconds = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
        print(f"{name:<22}{added:>10.2f}{added / whole:>16.1%}{seconds:>9.1f}")


if __name__ == "__main__":
    measure("backward" in sys.argv[1]) if len(sys.argv) > 1 else main()
