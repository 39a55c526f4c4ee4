"""groupwise inside a PyTorch loop of your own: a tiny policy learns to write digits that add up to the prompt's number.

    python docs/howto/own_loop.py gspo

Of groupwise only `algo.advantages`, `algo.loss` and the row's `kl` are used; model, sampler, reward and optimizer are
torch alone, and yours to replace. P prompts, G completions of each, N = P G rows, T words at most, V words there are.
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import Tensor, nn

import groupwise

END, EQUALS, V = 10, 11, 12  # words 0 to 9 are the digits
LARGEST, T = 18, 5  # "1 4 =" asks for digits that add up to 14 and an END: "9 5 END" is right, so is "7 0 7 END"
P, G, UPDATES = 32, 16, 4


class Policy(nn.Module):
    """words [N,L] -> logits of the next word [N,L,V]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(V, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, V)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.body(self.words(words))[0])


@torch.no_grad()
def sample(policy: Policy, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Targets [N] -> prompts [N,3], completions [N,T] and their mask [N,T], True up to and with the first END."""
    words = torch.stack([targets // 10, targets % 10, torch.full_like(targets, EQUALS)], dim=1)
    for _ in range(T):
        words = torch.cat([words, policy(words)[:, -1].softmax(-1).multinomial(1)], dim=1)
    ends = (words[:, 3:] == END).long()
    return words[:, :3], words[:, 3:], ends.cumsum(1) - ends == 0


def logprobs(policy: Policy, prompts: Tensor, completions: Tensor) -> Tensor:
    """[N,T] nats: the log-probability of every word of the completions."""
    logits = policy(torch.cat([prompts, completions], dim=1))[:, prompts.shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(-1, completions[..., None])[..., 0]


def score(targets: Tensor, completions: Tensor, mask: Tensor) -> Tensor:
    """[N]: 1 where the completion ended and its digits add up to the target, else 0."""
    digits = torch.where(mask & (completions < END), completions, 0).sum(1)
    return ((digits == targets) & (mask & (completions == END)).any(1)).float()


def pass_rate(policy: Policy) -> float:
    targets = torch.arange(LARGEST + 1).repeat_interleave(64)
    return score(targets, *sample(policy, targets)[1:]).mean().item()


def collect(algo: groupwise.Algorithm, policy: Policy, reference: Policy) -> dict[str, Tensor]:
    """One batch: completions, their log-probabilities [N,T] before the first update, their advantages [N,T]."""
    groups, targets = (x.repeat_interleave(G) for x in (torch.arange(P), torch.randint(LARGEST + 1, (P,))))
    prompts, completions, mask = sample(policy, targets)
    with torch.no_grad():
        old, ref = (logprobs(model, prompts, completions) for model in (policy, reference))
    last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    rewards = score(targets, completions, mask)[:, None] * last  # [N,T]; without the next two lines [N] would do
    if algo.kl.in_reward:  # rloo, reinforce++: the penalty is part of the reward, and rewards are the loop's own
        rewards = rewards - algo.kl.beta * algo.kl(old, ref, torch.zeros_like(old))
    columns = {"groups": groups, "prompts": prompts, "completions": completions, "mask": mask, "old": old, "ref": ref}
    return {**columns, "advantages": algo.advantages(rewards, groups, mask)}


def main(name: str, steps: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the tensors are tiny: a second thread costs more than it brings
    algo, policy, farthest = groupwise.algorithm(name), Policy(), 0.0
    reference, optimizer = copy.deepcopy(policy), torch.optim.Adam(policy.parameters(), lr=3e-3)
    print(f"{name}: pass rate {pass_rate(policy):.2f} before")
    for _ in range(steps):
        batch = collect(algo, policy, reference)
        for some in torch.randperm(P).chunk(UPDATES):  # minibatches of whole groups; from the second on ratios move
            m = {key: column[torch.isin(batch["groups"], some)] for key, column in batch.items()}
            live = logprobs(policy, m["prompts"], m["completions"])
            ref = m["ref"] if algo.kl.in_loss else None  # grpo, reinforce++-baseline: a KL term in the loss
            out = algo.loss(live, m["old"], m["advantages"], m["mask"], logp_ref=ref)
            optimizer.zero_grad()
            out.value.backward()
            optimizer.step()
            farthest = max(farthest, out.log_ratio.abs().max().item())
    print(f"{name}: pass rate {pass_rate(policy):.2f} after {steps} steps; largest log-ratio {farthest:.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "grpo", int(sys.argv[2]) if len(sys.argv) > 2 else 150)
