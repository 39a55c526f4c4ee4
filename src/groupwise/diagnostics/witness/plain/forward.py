"""A plain reading of a batch by a model: padded rows, positions and attention mask made by hand, the model's own
forward and attention, log-probabilities by log_softmax; no packing, no layers of ours, no autocast.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from groupwise.core.records import Batch
from groupwise.models.forward.adjustment import Adjustment
from groupwise.models.forward.heads import changed_logits, halves
from groupwise.models.moe.record import Router, record_routes
from groupwise.models.moe.replay import replay_routes

#: Padded tokens of one forward at most, where a row that is longer is one by itself; and logits that are made at once.
TOKENS, LOGITS = 4096, 1 << 24


class RowPart(NamedTuple):
    """A part of a batch's row that the model reads with nothing before it: tokens start to stop of row `row`."""

    row: int
    start: int
    stop: int


class Answer(NamedTuple):
    """Log-probabilities and more that a model gives a batch's rows.

    logp, entropy  [n,T] nats at the tokens in the mask, 0 elsewhere
    routes         of each row [tokens run, L, K], the experts that computed; empty for a dense model
    logits         the routers' [tokens run of all rows, E], a layer each, if they were asked for
    among          [n,T,K] nats of the engine's most likely ids, where the rows have any
    """

    logp: Tensor
    entropy: Tensor
    routes: tuple[Tensor, ...] = ()
    logits: tuple[Tensor, ...] = ()
    among: Tensor | None = None


@dataclass(frozen=True)
class Plain:
    """A causal language model with what sampling does to its logits.

    routers  of a mixture of experts whose routes are recorded
    """

    model: Any
    temperature: float
    adjustment: Adjustment
    routers: Sequence[Router] = ()

    def read(self, rows: Batch, router_losses: bool = False) -> Answer:
        """Read a batch's rows in one forward, with gradient if it is on; on the routes of the batch if it has any."""
        wanted = rows.mask.clone()
        wanted[:, 0] = False
        parts = parts_of(rows, None if self.routers else wanted)
        row, column = wanted.nonzero(as_tuple=True)
        item_of = torch.zeros_like(rows.tokens)
        for item, part in enumerate(parts):
            item_of[part.row, part.start : part.stop] = item
        item, starts = item_of[row, column], torch.tensor([part.start for part in parts])
        place = column - 1 - starts[item]
        backbone, head = halves(self.model)
        with ExitStack() as stack:
            recorded, logits = None, []
            if self.routers:
                if rows.routes is not None:
                    stack.enter_context(replay_routes(backbone, *_placed(rows.routes, parts)))
                recorded = stack.enter_context(record_routes(backbone))
                if router_losses:
                    logits = stack.enter_context(logits_of(self.routers))
            out = run(backbone, rows, parts).last_hidden_state
        device = out.device
        found, at_token = self._scored(head, out[item.to(device), place.to(device)], rows, wanted), (row, column)
        logp, entropy, likely = (
            x.cpu().new_zeros(*rows.mask.shape, *x.shape[1:]).index_put(at_token, x.cpu()) for x in found
        )
        among = None if rows.engine_ids is None else likely
        if recorded is None:
            return Answer(logp, entropy, among=among)
        chosen, places = recorded.chosen, _run_places(rows, parts)
        routes = tuple(torch.cat([chosen[i, :stop] for i, stop in own]).cpu() for own in places)
        flat = [i * chosen.shape[1] + t for own in places for i, stop in own for t in range(stop)]
        index = torch.tensor(flat, device=device)
        return Answer(logp, entropy, routes, tuple(layer[index] for layer in logits), among)

    def _scored(self, head: nn.Module, states: Tensor, rows: Batch, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map hidden states [W,H] of the wanted tokens -> their log-probability and entropy [W], and those [W,K] of the
        engine's most likely ids, of which there may be none.

        The logits of some tokens are made at once, and again in the backward pass.
        """
        targets = rows.tokens[wanted].to(states.device)
        early = (rows.mask.cumsum(1) <= self.adjustment.least)[wanted].to(states.device)
        ids = None if rows.support is None else _supports(rows, wanted).to(states.device)
        none = targets.new_empty(len(targets), 0)
        likely = none if rows.engine_ids is None else rows.engine_ids[wanted].long().to(states.device)
        size = max(1, LOGITS // max(1, self.model.config.get_text_config().vocab_size))
        answers = [
            checkpoint(
                self._distribution,
                *(head, states[at], targets[at], early[at], None if ids is None else ids[at], likely[at]),
                use_reentrant=False,
            )
            for at in (slice(start, start + size) for start in range(0, max(1, len(states)), size))
        ]
        logp, entropy, among = map(torch.cat, zip(*answers, strict=True))
        return logp, entropy, among

    def _distribution(
        self, head: nn.Module, states: Tensor, targets: Tensor, early: Tensor, ids: Tensor | None, likely: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map hidden states [M,H] -> log-probability of their targets and entropy [M] of what was drawn from, and the
        log-probabilities [M,K] of `likely`.

        early  tokens that may not be an end
        ids    [M,K] that sampling kept, -1 where it kept fewer; None: it left none out
        likely [M,K] further ids
        """
        x = changed_logits(self.model, head(states))
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.adjustment.bias is not None:
            x = x + self.adjustment.bias.to(x)
        x = x / self.temperature
        if self.adjustment.least and len(self.adjustment.ends):
            barred = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
            barred[self.adjustment.ends.to(x.device)] = True
            x = x.masked_fill(early[:, None] & barred, -torch.inf)
        own, others = x.gather(1, targets[:, None])[:, 0], x.gather(1, likely)
        if ids is not None:
            x = x.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
        log_p = x.log_softmax(1)
        entropy = -(log_p.exp() * log_p.masked_fill(log_p.isneginf(), 0.0)).sum(1)
        total = x.logsumexp(1)
        return own - total, entropy, others - total[:, None]


@contextmanager
def logits_of(routers: Sequence[Router]) -> Iterator[list[Tensor]]:
    """Collect what routers say of their experts in the forward inside, [tokens,E] a layer each, with its gradient."""
    logits: list[Tensor] = []

    def after(experts: int, module: nn.Module, args: Any, output: Any) -> None:
        every = output if isinstance(output, tuple | list) else (output,)
        logits.append(next(x for x in every if x.is_floating_point() and x.shape[-1] == experts))

    with ExitStack() as stack:
        for router in routers:
            stack.enter_context(router.module.register_forward_hook(partial(after, router.experts)))
        yield logits


def values(model: Any, rows: Batch) -> Tensor:
    """Map rows -> V(s_t) [n,T], what a token classifier says at the token before each trained one; 0 elsewhere."""
    parts, table = parts_of(rows, rows.mask), torch.zeros(rows.mask.shape)
    out = run(model, rows, parts).logits[..., 0]
    table = table.to(torch.promote_types(out.dtype, torch.float32))
    for said, (row, start, stop) in zip(out.to(table), parts, strict=True):
        table[row, start + 1 : stop] = said[: stop - start - 1]
    return table.masked_fill(~rows.mask, 0.0)


def last_values(model: Any, ids: Sequence[int]) -> float:
    """Return what a sequence classifier says at the last token of one row, not padded."""
    tokens = torch.tensor([list(ids)], device=next(model.parameters()).device)
    there = torch.ones_like(tokens)
    states = model.base_model(input_ids=tokens, attention_mask=there, use_cache=False).last_hidden_state
    return float(model.score(states)[0, -1, 0])


def run(model: Any, rows: Batch, parts: Sequence[RowPart]) -> Any:
    """Run a model over parts of rows, padded on the right -> what it returns."""
    device, width = next(model.parameters()).device, max(part.stop - part.start for part in parts)
    ids, there = torch.zeros(2, len(parts), width, dtype=torch.long)
    for item, (row, start, stop) in enumerate(parts):
        ids[item, : stop - start] = rows.tokens[row, start:stop]
        there[item, : stop - start] = 1
    known = signature(model.forward).parameters
    given = {"input_ids": ids, "attention_mask": there, "position_ids": torch.arange(width).expand(ids.shape)}
    given = {name: x.to(device) for name, x in given.items() if name in known or name == "input_ids"}
    return model(**given, use_cache=False)


def parts_of(rows: Batch, wanted: Tensor | None = None) -> list[RowPart]:
    """Split rows where the model reads anew.

    wanted  [n,T] tokens of which something is asked; a part without one, such as a prompt behind which another begins,
            is left out
    """
    if rows.read_from is None:
        return [RowPart(i, 0, n) for i, n in enumerate(rows.length.tolist())]
    parts: list[RowPart] = []
    for i, n in enumerate(rows.length.tolist()):
        starts = rows.read_from[i, :n].unique().tolist()
        parts += [RowPart(i, a, b) for a, b in zip(starts, [*starts[1:], n], strict=True)]
    if wanted is None:
        return parts
    return [part for part in parts if wanted[part.row, part.start : part.stop].any()] or parts[:1]


def budget(tokens: int) -> int:
    """Return the tokens of one forward: half of those that an update runs, as a plain forward holds more of each."""
    return min(tokens // 2, TOKENS)


def chunks(batch: Batch, tokens: int) -> Iterator[Tensor]:
    """Yield row indices of a batch that are run together within a budget, short rows with short ones."""
    most, part = budget(tokens), list[int]()
    for i in batch.length.argsort(stable=True).tolist():
        if part and (len(part) + 1) * int(batch.length[i]) > most:
            yield torch.tensor(part)
            part = []
        part.append(i)
    if part:
        yield torch.tensor(part)


def _run_places(rows: Batch, parts: Sequence[RowPart]) -> list[list[tuple[int, int]]]:
    """Return of each row its parts and how many tokens of each are run: all but the row's last."""
    places: list[list[tuple[int, int]]] = [[] for _ in range(len(rows))]
    for item, part in enumerate(parts):
        stop = min(part.stop, int(rows.length[part.row]) - 1)
        places[part.row].append((item, stop - part.start))
    return places


def _placed(routes: Sequence[Tensor], parts: Sequence[RowPart]) -> tuple[Tensor, Tensor]:
    """Lay routes of rows [tokens run, L, K] where the parts' tokens are run [parts,S,L,K], and say where there are
    any.
    """
    width = max(part.stop - part.start for part in parts)
    laid = routes[0].new_zeros(len(parts), width, *routes[0].shape[1:])
    there = torch.zeros(len(parts), width, dtype=torch.bool)
    for item, (row, start, stop) in enumerate(parts):
        own = routes[row][start:stop]
        laid[item, : len(own)], there[item, : len(own)] = own, True
    return laid, there


def _supports(rows: Batch, wanted: Tensor) -> Tensor:
    """Return the ids that sampling kept for each wanted token [W,K], -1 where it has fewer."""
    assert rows.support is not None
    counts = wanted.sum(1).tolist()
    each = [s.padded(0, n) for s, n in zip(rows.support, counts, strict=True) if n and s is not None]
    width = max(ids.shape[1] for ids in each)
    return torch.cat([torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=-1) for ids in each])
