"""Warm start: imitate demonstrations by next-token cross-entropy, so that sampling has something to reward."""

import hashlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from pydantic import Field
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from groupwise.core.errors import UsageError
from groupwise.core.numbers.reproducible import reproducible
from groupwise.core.numbers.transfer import to_device
from groupwise.core.samples import Sample
from groupwise.core.settings import Settings
from groupwise.core.task import Demonstration
from groupwise.models.chat.later_turns import thinking_of
from groupwise.models.chat.prompts import Chat
from groupwise.models.chat.thinking import closed_behind
from groupwise.models.load import text_ids
from groupwise.models.moe.record import record_routes, router_logits, routers
from groupwise.models.moe.settings import Balance, load_shares
from groupwise.training.optimizer import OnStep, silent

IGNORED = -100  # the label that cross-entropy leaves out

#: What a warm start calls in other modules, whose code decides its result as the code here does.
CALLED = (Balance, load_shares, router_logits, record_routes, closed_behind)

Example = tuple[list[int], int]  # ids of prompt, completion and end; how many of them are the prompt's
#: A batch of examples -> what goes through the model at once.
Split = Callable[[Sequence[Example]], Sequence[Sequence[Example]]]

#: x -> a x + b x^3 + c x^5 on singular values, steep at 0: after five times all of them are between 0.5 and 1.5.
COEFFICIENTS, TIMES = (3.4445, -4.7750, 2.0315), 5

#: The rates of random weights, which are to learn everything, and of a trained model, which is to lose nothing.
TINY_RATES = {"matrix_learning_rate": 1.5e-2, "learning_rate": 5e-3}
TRAINED_RATES = {"learning_rate": 2e-5}


class WarmStart(Settings):
    """Supervised warm start on demonstrations: linear warmup of the learning rates, then cosine decay to zero.

    steps                 updates; 0: no warm start
    batch_size            demonstrations per update
    demonstrations        number of different demonstrations, repeated as needed
    matrix_learning_rate  Muon's learning rate for the blocks' weight matrices; default: 0.015 for a tiny policy, AdamW
                          for a trained model
    learning_rate         AdamW's learning rate for all other weights; default: 0.005 for a tiny policy, 2e-5 for a
                          trained model (LoRA: times adapter.rate_factor)
    warmup                share of the steps over which the learning rates rise
    clip                  largest gradient norm
    load_balance          coefficient of an MoE's load-balancing loss; at 0, rarely chosen experts stay unused
    """

    steps: int = Field(default=0, ge=0, le=10**9)
    batch_size: int = Field(default=64, ge=1, le=2**20)
    demonstrations: int = Field(default=50_000, ge=1, le=10**7)
    matrix_learning_rate: float | None = Field(default=None, gt=0)
    learning_rate: float | None = Field(default=None, gt=0)
    warmup: float = Field(default=0.05, ge=0, le=1)
    clip: float = Field(default=1.0, gt=0)
    load_balance: float = Field(default=0.01, ge=0)

    def fitted(self, tiny: bool) -> "WarmStart":
        """Return the same with the rates that were not given: large ones for the random weights of a tiny policy."""
        usual = TINY_RATES if tiny else TRAINED_RATES
        return self.replace(**{key: rate for key, rate in usual.items() if getattr(self, key) is None})

    def rate(self, step: int) -> float:
        """Return the factor on both learning rates at `step`, counted from 1."""
        rising = max(1, round(self.warmup * self.steps))
        if step <= rising:
            return step / rising
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / (self.steps - rising + 1)))


def warm_start(
    model: Any,
    chat: Chat,
    demonstrations: Sequence[Demonstration],
    settings: WarmStart,
    seed: int,
    on_step: OnStep = silent,
) -> float:
    """Train `model` in place and return the last loss (nats a token); the same seed gives the same bits on a device."""
    loss, split = math.nan, halves if model.device.type == "cpu" else whole
    for step, loss in updates(model, chat, encoded(chat, demonstrations), settings, seed, split):
        on_step(step, settings.steps, loss)
    return loss


def updates(
    model: Any, chat: Chat, examples: Sequence[Example], settings: WarmStart, seed: int, split: Split
) -> Iterator[tuple[int, float]]:
    """Trains in place what of the model has a gradient -> the number of each update, from 1, and its loss before it.

    split  a batch -> what goes through the model at once
    """
    optimizers = _optimizers(model, settings)
    pad = pad_of(chat)
    model.train()
    for step, rows in enumerate(_batches(len(examples), settings, seed), start=1):
        loss = backward(model, split([examples[row] for row in rows]), pad, settings.load_balance)
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = settings.rate(step) * optimizer.defaults["lr"]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield step, loss
    model.eval()


def pad_of(chat: Chat) -> int:
    """Return the id that fills rows up: any will do, because nothing looks at padding."""
    return chat.tokenizer.pad_token_id or 0


def halves(examples: Sequence[Example]) -> list[Sequence[Example]]:
    """Split examples by length: guesses are half as long as worked answers, and padding costs as much as text."""
    by_length = sorted(examples, key=lambda example: len(example[0]))
    middle = len(by_length) // 2
    return [half for half in (by_length[:middle], by_length[middle:]) if half]


def whole(examples: Sequence[Example]) -> list[Sequence[Example]]:
    """Leave examples together: a GPU waits for the interpreter, which calls half as many kernels so, and not for
    padding.
    """
    return [examples]


def fingerprint(*parts: object) -> str:
    """Return a short name for a warm start: the parts (task, spec, settings, seed), the code behind them and the
    libraries.

    The number of threads belongs to it: sums over several threads round differently.
    """
    behind = {__name__, *(part.__module__ for part in CALLED), *(type(part).__module__ for part in parts)}
    code = [inspect.getsource(sys.modules[name]) for name in sorted(behind) if name.startswith("groupwise.")]
    libraries = [torch.__version__, transformers.__version__, str(torch.get_num_threads())]
    return hashlib.sha256("\0".join([*map(repr, parts), *libraries, *code]).encode()).hexdigest()[:16]


def encoded(chat: Chat, demonstrations: Sequence[Demonstration]) -> list[Example]:
    """Tokenise prompts and completions apart, as in sampling: no token straddles the border.

    A prompt may open thinking, by its template, `chat.open` or its own text. A completion closes it before the answer,
    as one must that is scored.
    """
    if not demonstrations:
        raise UsageError("a warm start needs at least one demonstration")
    if chat.tokenizer.eos_token_id is None:
        raise UsageError("warm_start.steps: the tokenizer has no eos_token, which ends a demonstration; set it to 0")
    samples = [Sample("", d.prompt, "", messages=d.messages, tools=d.tools) for d in demonstrations]
    prompts, opening = chat.prompts(samples), thinking_of(chat)
    # A plain prompt that a template puts into a turn of the user's opens nothing.
    begun = [opening + (sample.begun if sample.messages or chat.template is None else "") for sample in samples]
    texts = [closed_behind(own, d.completion) for own, d in zip(begun, demonstrations, strict=True)]
    completions = text_ids(chat.tokenizer, texts, "a demonstration: ")
    end = [chat.tokenizer.eos_token_id]
    return [(prompt + answer + end, len(prompt)) for prompt, answer in zip(prompts, completions, strict=True)]


def _batches(count: int, settings: WarmStart, seed: int) -> Iterator[list[int]]:
    """Yield `steps` lists of `batch_size` rows below `count`: all once, in random order, before any comes again."""
    generator = torch.Generator().manual_seed(seed)
    queue: list[int] = []
    for _ in range(settings.steps):
        while len(queue) < settings.batch_size:
            queue += torch.randperm(count, generator=generator).tolist()
        yield queue[: settings.batch_size]
        del queue[: settings.batch_size]


def _optimizers(model: nn.Module, settings: WarmStart) -> list[Optimizer]:
    """Make Muon for the matrices inside the blocks, AdamW for everything else.

    Muon learns to copy the rest of a problem in half the steps that AdamW needs. The experts of a layer, a stack of
    matrices [experts, out, in], are AdamW's: Muon for each of them learns no faster and takes 1.6 times as long.
    """
    ends = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}
    ends.add(id(model.get_output_embeddings().weight))  # type: ignore[operator]
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    # Biases of experts have two dimensions too, and are vectors: one for each expert.
    inner = [p for name, p in named if p.ndim == 2 and not name.endswith("bias") and id(p) not in ends]
    chosen = {id(p) for p in inner} if settings.matrix_learning_rate is not None else set()
    outer = [p for _, p in named if id(p) not in chosen]
    assert settings.learning_rate is not None, "the settings are fitted to the policy"
    adamw = AdamW(outer, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return [Muon(inner, lr=settings.matrix_learning_rate), adamw] if settings.matrix_learning_rate else [adamw]


def backward(model: Any, parts: Sequence[Sequence[Example]], pad: int, load_balance: float) -> float:
    """Add the gradient of the mean cross-entropy of all completion tokens, end included; return it (nats a token).

    A mixture of experts gets that of its routers' own loss too, which is not in what is returned.
    """
    trained, count = sum(map(trained_tokens, parts)), sum(map(len, parts))
    loss = 0.0
    for part in parts:
        balance = load_balance * len(part) / count
        with reproducible(model.device), _routers_loss(model, part, balance) as routers_loss:
            own = cross_entropy(model, part, pad) / trained
            (own + routers_loss()).backward()
        loss += own.item()
    return loss


def trained_tokens(examples: Sequence[Example]) -> int:
    """Count the tokens of the completions, their ends included."""
    return sum(len(ids) - start for ids, start in examples)


@contextmanager
def _routers_loss(
    model: Any, examples: Sequence[Example], coefficient: float
) -> Iterator[Callable[[], Tensor | float]]:
    """Run one forward of the examples inside; yields what then gives its load-balancing loss, the mean over layers.

    The load is that of these examples alone, padding left out.
    """
    by_layer = routers(model) if coefficient else ()
    if not by_layer:
        yield lambda: 0.0
        return
    width = max(len(ids) for ids, _ in examples) - 1
    inside = torch.tensor([[t < len(ids) - 1 for t in range(width)] for ids, _ in examples]).flatten()
    with record_routes(model) as routes, router_logits(by_layer) as logits:

        def loss() -> Tensor:
            chosen = routes.tensor.flatten(0, 1)[inside]
            shares = load_shares(chosen, [router.experts for router in by_layer])
            return Balance(load=coefficient).mean_over_layers([x[inside] for x in logits], shares, len(chosen))

        yield loss


def cross_entropy(model: Any, examples: Sequence[Example], pad: int) -> Tensor:
    """Sum the cross-entropy of the completion tokens, nats -> scalar."""
    width = max(len(ids) for ids, _ in examples)
    rows = [ids + [pad] * (width - len(ids)) for ids, _ in examples]
    trained = [[IGNORED] * start + ids[start:] + [IGNORED] * (width - len(ids)) for ids, start in examples]
    tokens, labels = (to_device(torch.tensor(table), model.device) for table in (rows, trained))
    # Padding is on the right and attention is causal, so no real token sees it and no attention mask is needed.
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum")


class Muon(Optimizer):
    """M <- mu M + (1 - mu) G;  W <- W - rate * 0.2 sqrt(max(out, in)) * orthogonalised((1 - mu) G + mu M).

    The factor gives an update the size that AdamW's have (https://arxiv.org/abs/2502.16982). torch's own Muon computes
    in bfloat16, which takes forty times as long on a processor without bfloat16 units; this one in the weights' type.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            matrices = [p for p in group["params"] if p.grad is not None]
            directions = []
            for matrix in matrices:
                average = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                average.lerp_(matrix.grad, 1 - group["momentum"])
                directions.append(matrix.grad.lerp(average, group["momentum"]))
            on_cpu = all(matrix.device.type == "cpu" for matrix in matrices)
            turned = map(orthogonalised, directions) if on_cpu else orthogonalised_together(directions)
            for matrix, direction in zip(matrices, turned, strict=True):
                matrix.add_(direction, alpha=-group["lr"] * 0.2 * math.sqrt(max(matrix.shape)))


def orthogonalised_together(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Orthogonalise each matrix, those of one shape by one call of a kernel for all of them: a GPU's way."""
    turned = dict[int, Tensor]()
    for shape in dict.fromkeys(matrix.shape for matrix in matrices):
        same = [i for i, matrix in enumerate(matrices) if matrix.shape == shape]
        stack = torch.vmap(orthogonalised)(torch.stack([matrices[i] for i in same]))
        turned |= zip(same, stack.unbind(), strict=True)
    return [turned[i] for i in range(len(matrices))]


def orthogonalised(matrix: Tensor) -> Tensor:
    """U diag(s) V^T [out, in] -> U diag(s') V^T with every s' near 1, by a Newton-Schulz iteration of matrix products.

    A singular value below a thousandth of the matrix's norm stays smaller; a matrix of zeros stays one.
    Source: https://kellerjordan.github.io/posts/muon/
    """
    a, b, c = COEFFICIENTS
    x = matrix / matrix.norm().clamp(min=1e-7)
    x = x.mT if matrix.shape[0] > matrix.shape[1] else x
    for _ in range(TIMES):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrix.shape[0] > matrix.shape[1] else x
