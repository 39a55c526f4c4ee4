"""Classes of causal language models: of any configuration the one that computes its text, as transformers has it, or a
text model of transformers with a head.
"""

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING


def is_multimodal(config: Any) -> bool:
    """Tell if a configuration is of a model of which text is one part, as of images and text."""
    return config.get_text_config() is not config


def text_config(config: Any) -> Any:
    """Return the configuration of the causal language model of a text, which a multimodal one holds; another as it is.

    If the head is the embedding is said by the outer configuration.
    """
    text = config.get_text_config()
    if text is config:
        return config
    own = copy.deepcopy(text)
    own.name_or_path = config.name_or_path
    own.tie_word_embeddings = bool(getattr(config, "tie_word_embeddings", getattr(own, "tie_word_embeddings", False)))
    return own


@dataclass(frozen=True)
class ModelClass:
    """A class of models that is made and loaded as transformers' Auto classes are."""

    cls: Any

    def from_config(self, config: Any, trust_remote_code: bool = False, **options: Any) -> Any:
        """Make a model with random weights."""
        return self.cls._from_config(config, **options)

    def from_pretrained(self, folder: Any, trust_remote_code: bool = False, **options: Any) -> Any:
        """Load a model, and what transformers says about the loading if it is asked for."""
        return self.cls.from_pretrained(folder, **options)


class CausalLM:
    """The causal language model of a configuration, of its text alone if it is multimodal; as AutoModelForCausalLM."""

    @staticmethod
    def from_config(config: Any, **options: Any) -> Any:
        """Make a model with random weights. Raises ValueError if there is none of that configuration."""
        text = text_config(config)
        return _kind(text).from_config(text, **options)

    @staticmethod
    def from_pretrained(folder: Any, config: Any, **options: Any) -> Any:
        """Load a model whose configuration is not multimodal."""
        return _kind(config).from_pretrained(folder, config=config, **options)


def _kind(text: Any) -> Any:
    """Return what makes the causal language model of a text's configuration."""
    known = type(text) in MODEL_FOR_CAUSAL_LM_MAPPING or type(text) not in MODEL_MAPPING
    return AutoModelForCausalLM if known else ModelClass(_with_head(MODEL_MAPPING[type(text)]))


@cache
def _with_head(backbone: Any) -> Any:
    """Make the class of a text model with a linear head, of the kind that `backbone` is."""
    family: Any = backbone.__bases__[0]

    class TextForCausalLM(family, GenerationMixin):
        base_model_prefix = "model"
        config_class = backbone.config_class
        _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}
        # transformers finds out by reading the file of a class, which is this one here.
        _can_set_attn_implementation = backbone._can_set_attn_implementation
        _can_set_experts_implementation = backbone._can_set_experts_implementation

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = backbone(config)
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(
            self, input_ids: Tensor | None = None, logits_to_keep: int | Tensor = 0, **others: Any
        ) -> CausalLMOutputWithPast:
            output = self.model(input_ids=input_ids, **others)
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(output.last_hidden_state[:, kept])
            return CausalLMOutputWithPast(logits=logits, past_key_values=output.past_key_values)

    TextForCausalLM.__name__ = TextForCausalLM.__qualname__ = f"{backbone.__name__.removesuffix('Model')}ForCausalLM"
    return TextForCausalLM
