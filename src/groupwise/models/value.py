"""A value model: transformers' token classification with one label, started from a policy or a reward model."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from groupwise.core.errors import UsageError
from groupwise.models.files.folder import read_config
from groupwise.models.load import from_pretrained, with_backbone

#: The `start` that is no folder: the policy's own weights.
POLICY_START = "policy"
#: The reward model that the run itself has.
REWARD_START = "reward-model"


def from_policy(policy: Any) -> Any:
    """A value model with a copy of the policy's backbone and a head of zeros: V = 0 everywhere.

    Raises UsageError where transformers has no token classification for the policy's architecture.
    """
    return _token_model(policy.config, policy.base_model, None)


def from_folder(folder: Path, policy: Any) -> Any:
    """A value model from a Hugging Face folder: its backbone, and the head of a reward model (one label) if it has one.

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
    return _token_model(loaded.config, loaded.base_model, head if trained else None).to(policy.device)


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
    return torch.zeros(mask.shape, dtype=value.dtype, device=value.device).masked_scatter(wanted, value[wanted[:, 1:]])


def _token_model(config: Any, backbone: nn.Module, head: nn.Linear | None) -> Any:
    """Token classification with a copy of `backbone` and of `head` (zeros where None; no bias: zeros)."""
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
    """The one linear layer beside the backbone."""
    heads = [m for m in model.children() if isinstance(m, nn.Linear)]
    if len(heads) != 1 or heads[0].out_features != 1:
        raise UsageError(f"{type(model).__name__} has no single linear score head, which a critic is made of")
    return heads[0]
