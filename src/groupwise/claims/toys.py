"""Small policies whose expectations can be written out in full, or that train in a blink."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from groupwise.algorithms.algorithm import Algorithm, LossOut
from groupwise.models.forward.logprobs import token_logprobs


def sequences(vocabulary: int, length: int) -> Tensor:
    """List every sequence of `length` tokens, [vocabulary ** length, length]."""
    return torch.tensor(list(product(range(vocabulary), repeat=length)))


def chances_of(size: int, chance: float) -> list[float]:
    """List the chances of 0 to `size` right completions in a group, each right with one chance: binomial."""
    return [math.comb(size, k) * chance**k * (1 - chance) ** (size - k) for k in range(size + 1)]


def ascent(
    algo: Algorithm, live: Tensor, advantage: Tensor, old: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Differentiate the objective by each token's log-probability, -d loss / d live [N,T].

    live, old   [N,T] nats; without `old`, live is the log-ratio
    mask        [N,T]; without it every token is trained
    """
    live = live.detach().clone().requires_grad_()
    old, mask = torch.zeros_like(live) if old is None else old, _all(live) if mask is None else mask
    (gradient,) = torch.autograd.grad(algo.loss(live, old, advantage, mask).value, live)
    return -gradient


def passed(algo: Algorithm, log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """Measure which share of each token's gradient the trust region passes [N,T], every token trained."""
    return algo.loss(log_ratio, torch.zeros_like(log_ratio), advantage, _all(log_ratio)).share


def _all(tokens: Tensor) -> Tensor:
    return torch.ones_like(tokens, dtype=torch.bool)


class Markov:
    """A policy over V tokens whose next token depends on the last one: logits [V+1,V], row V at the start."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    @classmethod
    def drawn(cls, seed: int, vocabulary: int, spread: float = 1.0) -> "Markov":
        """Draw logits from a normal distribution of that deviation, in float64."""
        numbers = torch.Generator().manual_seed(seed)
        return cls(spread * torch.randn(vocabulary + 1, vocabulary, generator=numbers, dtype=torch.float64))

    def moved(self, seed: int, size: float) -> "Markov":
        """Make another policy nearby."""
        return Markov(self.logits + Markov.drawn(seed, self.logits.shape[1], size).logits)

    def logprobs(self, tokens: Tensor) -> Tensor:
        """Score each token given the one before: nats, [N,T]."""
        return self.logits.log_softmax(-1)[self.before(tokens), tokens]

    def before(self, tokens: Tensor) -> Tensor:
        """Find the row of the logits that each token is drawn from, [N,T]."""
        return torch.cat([torch.full_like(tokens[:, :1], self.logits.shape[1]), tokens[:, :-1]], 1)


@dataclass(frozen=True)
class Update:
    """One update of a toy run, as it was before the policy moved.

    old, live       [N,T] nats
    reward          [N] 1 where a completion is right, else 0
    advantage       [N]
    out             what the loss said of them
    entropy         mean over tokens of the policy's entropy, nats, as the learner computes it
    surprise        the entropy by its definition, -sum_v p_v log p_v of the distribution that is sampled
    """

    old: Tensor
    live: Tensor
    reward: Tensor
    advantage: Tensor
    out: LossOut
    entropy: float
    surprise: float


class ToyRun:
    """A Markov policy that is trained by plain gradient descent on its logits, scored by groupwise's own head.

    A completion has LENGTH tokens and is right where more of its tokens than of the first policy's on average are even;
    PROMPTS groups of GROUP completions a step, cut into `updates` minibatches of whole groups.
    """

    VOCABULARY, LENGTH, PROMPTS, GROUP = 24, 16, 32, 16

    def __init__(
        self, algo: Algorithm, seed: int, learning_rate: float, updates: int, temperature: float = 1.0
    ) -> None:
        self.algo, self.rate, self.updates, self.temperature = algo, learning_rate, updates, temperature
        self.numbers = torch.Generator().manual_seed(seed)
        self.head = nn.Linear(self.VOCABULARY + 1, self.VOCABULARY, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(Markov.drawn(seed, self.VOCABULARY, spread=3.0).logits.T)
        self.usual = float((self.sampled(4096) % 2 == 0).double().mean())

    @property
    def policy(self) -> Markov:
        """The policy that is sampled."""
        return Markov(self.head.weight.detach().T / self.temperature)

    def sampled(self, count: int) -> Tensor:
        """Sample completions [N,T]."""
        chances = self.policy.logits.softmax(-1)
        token = torch.full((count,), self.VOCABULARY)
        drawn = []
        for _ in range(self.LENGTH):
            token = torch.multinomial(chances[token], 1, generator=self.numbers)[:, 0]
            drawn.append(token)
        return torch.stack(drawn, 1)

    def step(self) -> Iterator[Update]:
        """Sample, and make the updates one after the other."""
        tokens = self.sampled(self.PROMPTS * self.GROUP)
        reward = ((tokens % 2 == 0).double().mean(1) > self.usual).double()
        group = torch.arange(self.PROMPTS).repeat_interleave(self.GROUP)
        advantage = self.algo.advantages(reward, group)
        old = self.scored(tokens)[0].detach()
        for rows in torch.arange(len(tokens)).chunk(self.updates):
            yield self._update(tokens[rows], old[rows], reward[rows], advantage[rows])

    def scored(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log-probability and entropy [N,T] under the distribution that is sampled, nats."""
        states = torch.eye(self.VOCABULARY + 1, dtype=torch.float64)[self.policy.before(tokens).flatten()]
        logp, entropy, *_ = token_logprobs(self.head, states, tokens.flatten(), self.temperature)
        return logp.view(tokens.shape), entropy.view(tokens.shape)

    def _update(self, tokens: Tensor, old: Tensor, reward: Tensor, advantage: Tensor) -> Update:
        live, entropy = self.scored(tokens)
        out = self.algo.loss(live, old, advantage, torch.ones_like(tokens, dtype=torch.bool))
        log_p = self.policy.logits.log_softmax(-1)
        surprise = -(log_p.exp() * log_p).sum(-1)[self.policy.before(tokens)]
        (gradient,) = torch.autograd.grad(out.value, self.head.weight)
        with torch.no_grad():
            self.head.weight -= self.rate * gradient
        return Update(old, live.detach(), reward, advantage, out, float(entropy.mean()), float(surprise.mean()))
