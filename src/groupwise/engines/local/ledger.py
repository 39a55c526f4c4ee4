"""What has been sampled so far, one line per completion, and the completions it becomes.

Shapes: N completions, R live rows, S steps since the last flush, L routers, K experts a token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from groupwise.core.records import Completion, Kept
from groupwise.engines.local.sampler import Draw


class Ledger:
    """Steps are appended as they are drawn and written to their completions in one go, by `flush`."""

    def __init__(self, count: int, longest: int, device: torch.device) -> None:
        # The last column takes what a finished row draws before it leaves; nobody reads it.
        self._tokens = torch.zeros(count, longest + 1, dtype=torch.long, device=device)
        self._logp = torch.zeros(count, longest + 1, dtype=torch.float64, device=device)
        self._length = torch.zeros(count, dtype=torch.long, device=device)
        self._steps: list[Draw] = []
        self._support: list[tuple[Tensor, Tensor]] = []
        self._kept_ids: list[np.ndarray] = []
        self._kept_owner: list[np.ndarray] = []
        self._prompts: dict[int, Tensor] = {}
        self._ran: list[Tensor] = []
        self._routes: Tensor | None = None

    def begin(self, slots: Sequence[int], routes: Sequence[Tensor]) -> None:
        """Completions begin after prompts with these routes, [prompt tokens,L,K] each, on the CPU."""
        self._prompts.update(zip(slots, routes, strict=True))

    def ran(self, routes: Tensor) -> None:
        """[R,L,K], the experts chosen for the live rows' last drawn tokens, in the rows' present order."""
        self._ran.append(routes)

    def log(self, draw: Draw) -> None:
        """One step of the live rows, in their present order."""
        if draw.kept is not None:
            # Ids now and not at the flush: a step's mask over a large vocabulary is not to be kept around.
            row, ids = draw.kept.nonzero(as_tuple=True)
            self._support.append((row, ids.int()))
            draw = dataclasses.replace(draw, kept=None)
        self._steps.append(draw)

    def flush(self, slot: Tensor, age: Tensor, length: Tensor, run: Tensor) -> None:
        """Write the logged steps. Row r is completion slot[r], has drawn age[r] tokens, will have or has length[r], and
        run[r] of them have been through the model.
        """
        self._flush_routes(slot, run)
        if not self._steps:
            return
        steps = len(self._steps)
        column = (age - steps)[:, None] + torch.arange(steps, device=age.device)
        column.clamp_(max=self._tokens.shape[1] - 1)
        tokens, chance, total = (
            torch.stack([getattr(step, name) for step in self._steps], 1) for name in ("tokens", "chance", "total")
        )
        self._tokens[slot[:, None], column] = tokens
        self._logp[slot[:, None], column] = Draw(tokens, chance, total, None).logp
        self._length[slot] = length
        self._flush_support(slot, age - steps, length)
        self._steps, self._support = [], []

    def _flush_routes(self, slot: Tensor, run: Tensor) -> None:
        if not self._ran:
            return
        routes = torch.stack(self._ran, 1)
        if self._routes is None:
            # A completion's last token is never run, so nobody reads the last column; a finished row writes there too.
            self._routes = routes.new_zeros(len(self._length), self._tokens.shape[1] - 1, *routes.shape[2:])
        column = (run - len(self._ran))[:, None] + torch.arange(len(self._ran), device=run.device)
        self._routes[slot[:, None], column.clamp_(max=self._routes.shape[1] - 1)] = routes
        self._ran = []

    def written(self, slots: Tensor, stops: Tensor) -> list[tuple[tuple[int, ...], str]]:
        """The ids of completions that are whole and flushed, and how each ended."""
        lengths = self._length[slots].tolist()
        rows = self._tokens[slots].tolist()
        stopped = stops[self._tokens[slots, self._length[slots] - 1]].tolist()
        return [
            (tuple(row[:length]), "stop" if stop else "length")
            for row, length, stop in zip(rows, lengths, stopped, strict=True)
        ]

    def completions(self, stops: Tensor, version: int) -> list[Completion]:
        """The completions in slot order; `stops` [V] bool are the end ids. Call outside of inference mode."""
        lengths = self._length.cpu()
        last = self._tokens.gather(1, (self._length - 1)[:, None])[:, 0]
        stopped = stops[last].tolist()
        kept = _split_kept(self._kept_ids, self._kept_owner, lengths.numpy()) if self._kept_ids else None
        tokens, logp = self._tokens.cpu().numpy(), self._logp.cpu().numpy()  # slices cost less than a tensor's
        run = None if self._routes is None else self._routes.cpu()
        return [
            Completion(
                tokens=tuple(tokens[i, :length].tolist()),
                logp_engine=tuple(logp[i, :length].tolist()),
                finish="stop" if stopped[i] else "length",
                version=version,
                kept=kept[i] if kept else None,
                routes=_joined(self._prompts.get(i), None if run is None else run[i, : length - 1]),
            )
            for i, length in enumerate(lengths.tolist())
        ]

    def _flush_support(self, slot: Tensor, age: Tensor, length: Tensor) -> None:
        for step, (row, ids) in enumerate(self._support):
            token = age[row] + step
            live = token < length[row]
            self._kept_ids.append(ids[live].cpu().numpy())
            self._kept_owner.append(torch.stack([slot[row], token], 1)[live].cpu().numpy())


def _joined(prompt: Tensor | None, run: Tensor | None) -> Tensor | None:
    """The routes of one sequence, in memory of its own."""
    return None if prompt is None else torch.cat([prompt] if run is None else [prompt, run])


def _split_kept(ids: list[np.ndarray], owner: list[np.ndarray], length: np.ndarray) -> list[Kept]:
    """Kept ids as they were drawn, step by step -> one Kept per completion; owner holds (slot, token) pairs."""
    slot, token = np.concatenate(owner).T
    order = np.argsort(slot, kind="stable")  # within a completion they are in order already
    ends = np.cumsum(length)
    # The global number of each token; every token keeps at least one id, so counts are never 0.
    counts = np.bincount((ends - length)[slot] + token, minlength=int(ends[-1]))
    start = np.concatenate([[0], np.cumsum(counts)])
    flat = np.concatenate(ids)[order]
    kept = []
    for end, tokens in zip(ends.tolist(), length.tolist(), strict=True):
        at = start[end - tokens : end + 1]
        kept.append(Kept(torch.from_numpy(flat[at[0] : at[-1]].copy()), torch.from_numpy(at - at[0])))
    return kept
