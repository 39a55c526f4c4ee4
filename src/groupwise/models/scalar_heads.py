"""Models with a head of one number: reward models read it at the last token of prompt and completion, value models at
every token.

A reward model is transformers' sequence classifier over a policy's backbone; a value model is its token classifier,
started from a policy or a reward model.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from groupwise.core.collate import microbatches
from groupwise.core.errors import UsageError
from groupwise.core.numbers.reproducible import prepare
from groupwise.models.context import positions
from groupwise.models.files.folder import loading, read_config
from groupwise.models.forward.heads import hidden, require_same
from groupwise.models.load import Policy, from_pretrained, load_tokenizer, require_config, with_backbone
from groupwise.models.unread import device_of

Tokens = tuple[int, ...]


def tokens_at_once(device: str) -> int:
    """Return padded tokens of a forward. On a CPU more pay nothing, and ranks that share rows get more batches."""
    return 2048 if device == "cpu" else 16384


@dataclass(frozen=True)
class RewardModel:
    """score(prompt, completion) = head(hidden state of the last token), in reward units. Rows are padded on the right.

    model             a transformers sequence classifier with one label: `base_model` and a linear `score`
    tokenizer         the policy's, saved beside the weights
    tokens_per_batch  padded tokens of one forward, which bound memory; None: as many as the device is worth

    Only differences between completions of one prompt mean anything: preferences leave the constant free.
    """

    model: Any
    tokenizer: Any
    tokens_per_batch: int | None = None

    def scores(self, prompts: Sequence[Tokens], completions: Sequence[Tokens]) -> list[float]:
        """Return one score a row, in the order given; no gradient. The same call gives the same bits.

        Raises ValueError if the two are not of one length, a row is empty or does not fit the model's positions.
        """
        rows = self.rows(prompts, completions)
        out = torch.zeros(len(rows))
        with torch.inference_mode():
            for part in self.batches(rows):
                out[part] = self.forward([rows[i] for i in part.tolist()]).cpu().float()
        return out.tolist()

    def rows(self, prompts: Sequence[Tokens], completions: Sequence[Tokens]) -> list[Tokens]:
        """Return each prompt with its completion. Raises ValueError as `scores` does."""
        rows = [(*prompt, *completion) for prompt, completion in zip(prompts, completions, strict=True)]
        check_rows(rows, positions(self.model.config))
        return rows

    def batches(self, rows: Sequence[Tokens]) -> list[Tensor]:
        """Return the indices of the rows that are run together, batch after batch."""
        tokens = self.tokens_per_batch or tokens_at_once(self.model.device.type)
        return microbatches(torch.tensor([len(row) for row in rows]), tokens)

    def forward(self, rows: Sequence[Tokens]) -> Tensor:
        """Map rows of ids, prompt and completion -> [N] scores, differentiable in the weights."""
        length = torch.tensor([len(row) for row in rows])
        # Padded with 0, but any id will do: nothing looks at padding.
        tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        return last_scores(self.model, tokens.to(self.model.device), length.to(self.model.device))


def reward_model_of(policy: Policy) -> RewardModel:
    """Return a new reward model: a copy of the policy's backbone, the policy itself untouched, and a head of zeros.

    With a head of zeros every completion scores 0 at first, whatever the seed. Raises UsageError if transformers has
    no such classifier for the policy's kind of model.
    """
    config = copy.deepcopy(policy.model.config)
    config.num_labels = 1
    pad = policy.tokenizer.pad_token_id
    # For transformers' own forward; None, one row at a time, where an answer may end in that id.
    config.get_text_config().pad_token_id = None if pad is None or pad in policy.eos else int(pad)
    what = f"{type(policy.model).__name__}: no reward model can be made from it"
    model = with_backbone(AutoModelForSequenceClassification, config, policy.model.base_model, what)
    with loading(what):
        _require_score(model)
    for weight in model.score.parameters():
        torch.nn.init.zeros_(weight)
    return RewardModel(model, policy.tokenizer)


def load_reward_model(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> RewardModel:
    """Return the reward model saved in `folder`. Raises UsageError, naming the folder, if none is there whole."""
    where = f"reward model {str(folder)!r}"
    require_config(folder, where)
    what = f"{where}: does not load as a classifier"
    config = read_config(folder, what)
    if config.num_labels != 1:
        raise UsageError(f"{where}: {config.num_labels} labels; a reward model has one")
    tokenizer = load_tokenizer(folder, config)
    model, _ = from_pretrained(AutoModelForSequenceClassification, folder, what, config, dtype)
    for parameter in model.parameters():
        # Weights mapped from a file lie at odd addresses, where sums round differently from those that were saved.
        parameter.data = parameter.data.clone()
    prepare(device)
    with loading(f"{where}: does not run"):
        _require_score(model.to(device))
    return RewardModel(model, tokenizer)


def last_scores(model: Any, tokens: Tensor, length: Tensor) -> Tensor:
    """Map [N,T] ids padded on the right, [N] lengths -> [N] scores, each read at column length - 1; float32 at
    least.

    transformers takes the last id that is not the pad id, which is another one where answers end in the pad id.
    """
    states = hidden(model.base_model, tokens)
    last = states[torch.arange(len(tokens), device=tokens.device), length - 1]
    scores = model.score(last)[:, 0]
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def check_rows(rows: Sequence[Tokens], positions: int) -> None:
    """Raise ValueError, naming the row, if one is empty or longer than the model's positions."""
    for number, row in enumerate(rows):
        if not 0 < len(row) <= positions:
            raise ValueError(f"row {number} has {len(row)} tokens; the reward model takes from 1 to {positions}")


def _require_score(model: Any) -> None:
    """Refuse a classifier whose logits are not its score layer on the last hidden state."""
    kind = type(model).__name__
    if not isinstance(getattr(model, "score", None), torch.nn.Linear):
        raise UsageError(f"{kind} has no linear layer `score` on its hidden states; groupwise cannot use it")
    vocabulary, pad = model.config.get_text_config().vocab_size, model.config.get_text_config().pad_token_id
    ids = torch.tensor([[i for i in range(min(5, vocabulary)) if i != pad]], device=next(model.parameters()).device)
    with torch.no_grad():
        own = model(input_ids=ids, use_cache=False).logits[:, 0]
        scores = last_scores(model, ids, torch.tensor([ids.shape[1]], device=ids.device))
    require_same(scores, own, f"{kind} does not score by `score` of the last hidden state; groupwise cannot use it")


#: The `start` that is no folder: the policy's own weights.
POLICY_START = "policy"
#: The reward model that the run itself has.
REWARD_START = "reward-model"


def from_policy(policy: Any) -> Any:
    """Return a value model with a copy of the policy's backbone and a head of zeros: V = 0 everywhere.

    Raises UsageError if transformers has no token classification for the policy's architecture.
    """
    return _token_model(policy.config, policy.base_model, None)


def from_folder(folder: Path, policy: Any) -> Any:
    """Return a value model from a Hugging Face folder: its backbone, and the head of a reward model (one label) if it
    has one.

    A causal language model's folder has no such head: it starts at zeros. Raises UsageError, naming the folder, where
    it is no such model, has more than one label, or fewer embeddings than the policy.
    """
    where = f"critic.start = {str(folder)!r}"
    what = f"{where}: does not load as a reward model or causal language model"
    config = read_config(folder, what, num_labels=1)
    other_head = "Classification" not in str(config.architectures)
    dtype = next(policy.parameters()).dtype
    loaded, info = from_pretrained(AutoModelForSequenceClassification, folder, what, config, dtype, other_head)
    head = _head(loaded)
    if loaded.get_input_embeddings().weight.shape[0] < policy.get_input_embeddings().weight.shape[0]:
        raise UsageError(f"{where}: it has fewer embeddings than the policy; they do not share a tokenizer")
    names = {name for name, module in loaded.named_children() if module is head}
    trained = not any(name.split(".")[0] in names for name in info["missing_keys"])
    return _token_model(loaded.config, loaded.base_model, head if trained else None).to(device_of(policy))


def token_values(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """tokens, mask [N,T] -> V(s_t) [N,T] in reward units, float32 or better, 0 where the mask is False.

    s_t = (prompt, y_<t): column t is the model's output at position t - 1, the last that the choice of y_t could see.
    Rows are padded on the right, which causal attention never looks at. Column 0 has no state and holds 0.
    """
    wanted = mask.clone()
    wanted[:, 0] = False
    seen = tokens[:, :-1] if tokens.shape[1] > 1 else tokens
    value = model(input_ids=seen, use_cache=False).logits[:, : tokens.shape[1] - 1, 0]
    value = value.to(torch.promote_types(next(model.parameters()).dtype, torch.float32))
    # By where: as many places as a mask has True would be a number, for which a GPU is waited for.
    return nn.functional.pad(value, (1, 0))[:, : mask.shape[1]].where(wanted, 0.0)


def _token_model(config: Any, backbone: nn.Module, head: nn.Linear | None) -> Any:
    """Return token classification with a copy of `backbone` and of `head` (zeros where None; no bias: zeros)."""
    config = copy.deepcopy(config)
    config.num_labels, config.classifier_dropout = 1, 0.0
    what = (
        f"transformers has no token classification for {type(backbone).__name__}, which a critic is made of; "
        "choose an algorithm without a critic"
    )
    model = with_backbone(AutoModelForTokenClassification, config, backbone, what)
    score = _head(model)
    for parameter in score.parameters():
        nn.init.zeros_(parameter)
    if head is not None:
        score.load_state_dict(head.state_dict(), strict=False)
    return model


def _head(model: Any) -> nn.Linear:
    heads = [m for m in model.children() if isinstance(m, nn.Linear)]
    if len(heads) != 1 or heads[0].out_features != 1:
        raise UsageError(f"{type(model).__name__} has no single linear score head, which a critic is made of")
    return heads[0]
