"""Longest sequence of a model, by its configuration."""

from typing import Any

#: A rope whose frequencies are others for sequences longer than it was trained on: what is cached no longer fits then.
CHANGING_ROPE = "longrope"


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


def window(config: Any) -> int | None:
    """Return the most tokens that a layer with a sliding window sees; None for a model without such a layer."""
    text = config.get_text_config()
    windowed = any("sliding" in kind for kind in getattr(text, "layer_types", None) or ["sliding"])
    return (getattr(text, "sliding_window", None) or None) if windowed else None


def positions_in_words(config: Any) -> str:
    """Return the number of positions, and the reason if it is not max_position_embeddings."""
    most, rope = positions(config), rope_limit(config)
    if rope is None or most < rope:
        return f"the model's {most} positions"
    return (
        f"the {most} positions (original_max_position_embeddings) within which the model's {CHANGING_ROPE} is one "
        "function: a longer sequence has other frequencies, and cached keys and values no longer fit"
    )
