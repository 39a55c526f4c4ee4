"""Longest sequence of a model, and what its layers keep of one, by its configuration."""

from dataclasses import dataclass
from typing import Any

#: Ropes whose rotation of a position is one, however long its sequence: a cached key fits whatever comes behind it.
CONSTANT_ROPES = ("default", "linear", "yarn", "llama3", "proportional", "axial")
#: Keys of configurations that say how long a sequence may be.
LENGTHS = ("max_position_embeddings", "max_seq_len")
#: Tokens that a layer without a window sees: more than there will ever be.
EVERY = 1 << 62
#: Kinds of layers, as configurations name them: those with keys and values, those with a state, a convolution's or a
#: recurrence's, and those with neither. A hybrid layer has both.
ATTENTION = frozenset({"full_attention", "sliding_attention", "hybrid", "hybrid_sliding"})
STATE = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})
NEITHER = frozenset({"mlp", "moe"})


def positions(config: Any) -> int:
    """Return the most tokens, prompt and completion, that a model takes: as long as its rope is one function."""
    text, rope = config.get_text_config(), rope_limit(config)
    limits = [*(getattr(text, key, None) for key in LENGTHS), rope and rope.tokens]
    return min((int(limit) for limit in limits if limit and limit > 0), default=1 << 30)


@dataclass(frozen=True)
class RopeLimit:
    """Tokens beyond which a rope's frequencies change with the length of a sequence, and the key that says how many."""

    tokens: int
    key: str
    rope_type: str


def rope_limit(config: Any) -> RopeLimit | None:
    """Return the limit of a model's ropes, the lowest of several; None if their frequencies never change."""
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None)
    if not isinstance(rope, dict):
        return None
    ropes = [each for each in rope.values() if isinstance(each, dict)] or [rope]  # one for each kind of layer, or one
    return min((limit for each in ropes if (limit := _limit_of(each, text))), key=lambda one: one.tokens, default=None)


def _limit_of(rope: dict[str, Any], text: Any) -> RopeLimit | None:
    kind = str(rope.get("rope_type", "default"))
    if kind in CONSTANT_ROPES:
        return None
    # transformers' dynamic rope changes where the model's positions end, whatever it was trained on.
    keys = LENGTHS if "dynamic" in kind else ("original_max_position_embeddings", *LENGTHS)
    found = ((key, rope.get(key) or getattr(text, key, None)) for key in keys)
    return next((RopeLimit(tokens, key, kind) for key, tokens in found if type(tokens) is int), None)


def layer_kinds(config: Any) -> tuple[str, ...]:
    """Return the kind of each layer that keeps something of a text; layers that a configuration does not tell apart
    attend, within its window. The last layers of some models take keys and values of earlier ones.
    """
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * getattr(text, "num_hidden_layers", 0)
    return tuple(kinds[: len(kinds) - (getattr(text, "num_kv_shared_layers", None) or 0)])


def unknown_layers(config: Any) -> list[str]:
    """List the kinds of layers that keep something else than keys and values or a state in transformers' cache: of
    tokens that they choose, or compress.
    """
    return sorted({*layer_kinds(config)} - ATTENTION - STATE - NEITHER)


def has_states(config: Any) -> bool:
    """Tell whether tokens mix in a layer by a state, too: such a layer reads whatever stands before a token."""
    return not STATE.isdisjoint(layer_kinds(config))


def windows(config: Any) -> tuple[int, ...]:
    """Return of each layer with keys and values how many tokens it sees, its own among them: EVERY, or its sliding
    window.
    """
    window = getattr(config.get_text_config(), "sliding_window", None) or EVERY
    keyed = [kind for kind in layer_kinds(config) if kind not in (STATE | NEITHER) - ATTENTION]
    return tuple(window if "sliding" in kind else EVERY for kind in keyed)


def positions_in_words(config: Any) -> str:
    """Return the number of positions, and the reason if it is not max_position_embeddings."""
    most, rope = positions(config), rope_limit(config)
    if rope is None or most < rope.tokens:
        return f"the model's {most} positions"
    return (
        f"the {most} positions ({rope.key}) within which the model's rope ({rope.rope_type}) is one function: a longer "
        "sequence has other frequencies, and cached keys and values no longer fit"
    )
