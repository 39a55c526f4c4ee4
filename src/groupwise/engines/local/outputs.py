"""Tokens sampled so far, a row of memory per completion, and the completions that they become.

Shapes: N completions, R live rows, S steps since the last flush, V vocabulary, L routers, K experts a token.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from groupwise.core.records import Completion, SamplerTop, Support
from groupwise.engines.local.sampler import Draw


class Outputs:
    """Steps are appended as they are drawn and written to their completions in one go, by `flush`.

    begun    of each completion, the ids that were drawn before; it goes on behind them
    longest  tokens of the longest one, these included
    stops    [V] bool, the ids that end a completion
    """

    def __init__(self, begun: Sequence[tuple[int, ...]], longest: int, stops: Tensor) -> None:
        self.stops, count = stops, len(begun)
        self._drawn = [len(tokens) for tokens in begun]
        # The last column takes what a finished row draws before it leaves; it is never read.
        self._tokens = torch.zeros(count, longest + 1, dtype=torch.long, device=stops.device)
        self._logp = torch.zeros(count, longest + 1, dtype=torch.float64, device=stops.device)
        self._length = torch.zeros(count, dtype=torch.long, device=stops.device)
        for slot, tokens in enumerate(begun):
            if tokens:
                self._tokens[slot, : len(tokens)] = torch.tensor(tokens, device=stops.device)
        self._steps: list[Draw] = []
        # Of each step since the last flush, the rows and ids of its support; then, flushed, (slot, token) and ids.
        self._step_support: list[tuple[Tensor, Tensor]] = []
        self._support: list[tuple[np.ndarray, np.ndarray]] = []
        # Of each step since the last flush; and of all tokens, ids and log-probabilities [N,longest + 1,K].
        self._step_top: list[tuple[Tensor, Tensor]] = []
        self._top: tuple[Tensor, Tensor] | None = None
        self._prompt_routes: dict[int, Tensor] = {}
        self._step_routes: list[Tensor] = []
        self._routes: Tensor | None = None
        # Of completions that ended so, the stop string.
        self._by_slot: dict[int, str] = {}

    def begin(self, slots: Sequence[int], routes: Sequence[Tensor]) -> None:
        """Begin completions after prompts with these routes, [prompt tokens,L,K] each, on the CPU."""
        self._prompt_routes.update(zip(slots, routes, strict=True))

    def append_routes(self, routes: Tensor) -> None:
        """Append [R,L,K], the experts chosen for the live rows' last drawn tokens, in the rows' present order."""
        self._step_routes.append(routes)

    def append(self, draw: Draw) -> None:
        """Append one step of the live rows, in their present order."""
        if draw.support is not None:
            self.append_support(draw.support)
            draw = draw._replace(support=None)
        if draw.top is not None:
            self.append_top(draw.top)
            draw = draw._replace(top=None)
        self._steps.append(draw)

    def append_support(self, support: Tensor) -> None:
        """Append [R,V] bool, the ids that one step of the live rows was drawn from."""
        # Ids now and not at the flush: a step's mask over a large vocabulary is too large to wait.
        row, ids = support.nonzero(as_tuple=True)
        self._step_support.append((row, ids.int()))

    def append_top(self, top: tuple[Tensor, Tensor]) -> None:
        """Append [R,K] each, the most likely ids of one step of the live rows and their log-probabilities."""
        self._step_top.append(top)

    def flush(self, slot: Tensor, age: Tensor, length: Tensor, run: Tensor) -> None:
        """Write the steps. Row r is completion slot[r], has drawn age[r] tokens, will have or has length[r], and run[r]
        of them have been through the model.
        """
        if not self._steps:
            self._flush_routes(slot, run)
            return
        tokens, chance, total = (torch.stack(steps, 1) for steps in list(zip(*self._steps, strict=True))[:3])
        self._steps = []
        self.write(slot, age, length, run, Draw(tokens, chance, total, None))

    def write(self, slot: Tensor, age: Tensor, length: Tensor, run: Tensor, drawn: Draw) -> None:
        """Write several steps, [R,S] each, as `flush` does, with their supports and routes that were appended."""
        self._flush_routes(slot, run)
        steps = drawn.tokens.shape[1]
        column = _columns(age, steps, self._tokens.shape[1])
        self._tokens[slot[:, None], column] = drawn.tokens
        self._logp[slot[:, None], column] = drawn.logp
        self._length[slot] = length
        if self._step_top:
            parts = [torch.stack(part, 1) for part in zip(*self._step_top, strict=True)]
            whole = self._top or tuple(p.new_zeros(*self._tokens.shape, p.shape[2]) for p in parts)
            for into, part in zip(whole, parts, strict=True):
                into[slot[:, None], column] = part
            self._top, self._step_top = (whole[0], whole[1]), []
        for token, (row, ids) in enumerate(self._step_support, start=-steps):
            at = age[row] + token
            live = at < length[row]
            owner = torch.stack([slot[row], at], 1)[live]
            self._support.append((owner.cpu().numpy(), ids[live].cpu().numpy()))
        self._step_support = []

    def _flush_routes(self, slot: Tensor, run: Tensor) -> None:
        if not self._step_routes:
            return
        routes = torch.stack(self._step_routes, 1)
        if self._routes is None:
            # A completion's last token is never run, so the last column is never read; a finished row writes there too.
            self._routes = routes.new_zeros(len(self._length), self._tokens.shape[1] - 1, *routes.shape[2:])
        self._routes[slot[:, None], _columns(run, routes.shape[1], self._routes.shape[1])] = routes
        self._step_routes = []

    def sampled(self, slots: Tensor, lengths: Tensor) -> list[tuple[int, ...]]:
        """Return the first `lengths` ids of completions that are flushed so far, with those drawn before."""
        rows = self._tokens[slots].cpu().numpy()  # slices cost less than a tensor's
        return [tuple(row[:length].tolist()) for row, length in zip(rows, lengths.tolist(), strict=True)]

    def end(self, slots: Tensor, lengths: Tensor, stops: Sequence[str]) -> None:
        """End completions that are flushed here, each by a stop string."""
        self._length[slots] = lengths
        self._by_slot.update(zip(slots.tolist(), stops, strict=True))

    def routes(self, slot: int, length: int) -> Tensor | None:
        """Return [T,L,K] on the CPU, of a completion that is flushed and has `length` tokens, those drawn before
        included: of its prompt's tokens and its own, all but the last. None if routes are not asked for.
        """
        run = None if self._routes is None else self._routes[slot, self._drawn[slot] : length - 1].cpu()
        return _joined(self._prompt_routes.get(slot), run)

    def texts(self, slots: Tensor) -> list[tuple[tuple[int, ...], str, str]]:
        """Return the new ids of finished completions, "stop" or "length", and the stop string or ""."""
        lengths = self._length[slots]
        at_end = self.stops[self._tokens[slots, lengths - 1]].tolist()
        stops = [self._by_slot.get(slot, "") for slot in slots.tolist()]
        finishes = ["stop" if end or stop else "length" for end, stop in zip(at_end, stops, strict=True)]
        begun = [self._drawn[slot] for slot in slots.tolist()]
        new = [tokens[drawn:] for tokens, drawn in zip(self.sampled(slots, lengths), begun, strict=True)]
        return list(zip(new, finishes, stops, strict=True))

    def completions(self, version: int) -> list[Completion]:
        """Return the completions in slot order, sampled by weights `version`. Call outside of inference mode."""
        texts = self.texts(torch.arange(len(self._length), device=self._length.device))
        lengths = [len(tokens) for tokens, _, _ in texts]
        drawn = np.array(self._drawn)
        support = _by_completion(self._support, drawn, np.array(lengths)) if self._support else [None] * len(texts)
        logp, routes = self._logp.cpu().numpy(), None if self._routes is None else self._routes.cpu()
        top = self._top and tuple(part.cpu() for part in self._top)
        ends = [begun + length for begun, length in zip(self._drawn, lengths, strict=True)]
        return [
            Completion.of_one_turn(
                tokens,
                logp_engine=tuple(logp[i, self._drawn[i] : ends[i]].tolist()),
                finish=finish,
                version=version,
                stop=stop,
                support=support[i],
                top=top and SamplerTop(*(part[i, self._drawn[i] : ends[i]].clone() for part in top)),
                routes=_joined(
                    self._prompt_routes.get(i), None if routes is None else routes[i, self._drawn[i] : ends[i] - 1]
                ),
            )
            for i, (tokens, finish, stop) in enumerate(texts)
        ]


def _columns(count: Tensor, steps: int, width: int) -> Tensor:
    """Map [R] tokens so far -> [R,steps] columns of the last `steps` of them, at most the last column."""
    column = (count - steps)[:, None] + torch.arange(steps, device=count.device)
    return column.clamp_(max=width - 1)


def _joined(prompt: Tensor | None, run: Tensor | None) -> Tensor | None:
    """Return the routes of one sequence, in memory of its own."""
    return None if prompt is None else torch.cat([prompt] if run is None else [prompt, run])


def _by_completion(
    steps: Sequence[tuple[np.ndarray, np.ndarray]], drawn: np.ndarray, length: np.ndarray
) -> list[Support]:
    """Sort supports as they were drawn, step by step, (slot, token) [n,2] and ids [n] -> one Support per completion, of
    its new tokens; `drawn` and `length` are how many were drawn before and are new.
    """
    owner, ids = (np.concatenate(column) for column in zip(*steps, strict=True))
    slot, token = owner.T
    token = token - drawn[slot]
    order = np.argsort(slot, kind="stable")  # within a completion they are in order already
    ends = np.cumsum(length)
    # The global number of each token; every token has at least one id, so counts are never 0.
    counts = np.bincount((ends - length)[slot] + token, minlength=int(ends[-1]))
    start = np.concatenate([[0], np.cumsum(counts)])
    flat = ids[order]
    edges = [start[end - tokens : end + 1] for end, tokens in zip(ends.tolist(), length.tolist(), strict=True)]
    return [Support(torch.from_numpy(flat[at[0] : at[-1]].copy()), torch.from_numpy(at - at[0])) for at in edges]
