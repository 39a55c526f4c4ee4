"""Longest sequence of a model, and what its layers keep of one, by its configuration."""

from typing import Any

#: A rope whose frequencies are others for sequences longer than it was trained on: what is cached no longer fits then.
CHANGING_ROPE = "longrope"
#: Tokens that a layer without a window sees: more than there will ever be.
EVERY = 1 << 62
#: Kinds of layers, as configurations name them: those with keys and values, those with a state, a convolution's or a
#: recurrence's, and those with neither. A hybrid layer has both.
ATTENTION = frozenset({"full_attention", "sliding_attention", "hybrid", "hybrid_sliding"})
STATE = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})
NEITHER = frozenset({"mlp", "moe"})


def positions(config: Any) -> int:
    """Return the most tokens, prompt and completion, that a model takes: as long as its rope is one function."""
    limits = (getattr(config.get_text_config(), "max_position_embeddings", None), rope_limit(config))
    return min((int(limit) for limit in limits if limit), default=1 << 30)


def rope_limit(config: Any) -> int | None:
    """Return the tokens beyond which the rope's frequencies change with a sequence's length; None if they never do."""
    rope = getattr(config.get_text_config(), "rope_parameters", None)
    if not isinstance(rope, dict):
        return None
    ropes = [value for value in rope.values() if isinstance(value, dict)] or [
        rope
    ]  # one for each kind of layer, or one
    changing = (each for each in ropes if each.get("rope_type") == CHANGING_ROPE)
    limits = (each.get("original_max_position_embeddings") for each in changing)
    return min((limit for limit in limits if type(limit) is int), default=None)


def layer_kinds(config: Any) -> tuple[str, ...]:
    """Return the kind of each layer that keeps something of a text; layers that a configuration does not tell apart
    attend, within its window. The last layers of some models take keys and values of earlier ones.
    """
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
    return tuple(kinds[: len(kinds) - (getattr(text, "num_kv_shared_layers", None) or 0)])


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
    if rope is None or most < rope:
        return f"the model's {most} positions"
    return (
        f"the {most} positions (original_max_position_embeddings) within which the model's {CHANGING_ROPE} is one "
        "function: a longer sequence has other frequencies, and cached keys and values no longer fit"
    )
