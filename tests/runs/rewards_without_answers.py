"""Rewards as users of TRL and verl write them for data without gold answers."""


def distinct(completions, log_extra=None, log_metric=None, **kwargs):
    """TRL's form: one reward for a list of completions, a column of the table and a number of the call."""
    log_extra("first", [text[:1] for text in completions])
    log_extra("characters", [len(text) for text in completions])
    log_metric("calls", 1.0)
    return [float(len(set(text))) for text in completions]


def by_length(data_source, solution_str, ground_truth=None, extra_info=None):
    """verl's form: a dictionary whose other keys are looked at and not trained on."""
    return {"score": len(solution_str) / 10, "acc": float(len(solution_str) > 4), "source": data_source}


def letters(prompts, completions, kind, **kwargs):
    """TRL's multi-task use: None for rows of another kind."""
    return [float(len(c)) if k == "letters" else None for c, k in zip(completions, kind, strict=True)]


def digits(prompts, completions, kind, **kwargs):
    return [-float(len(c)) if k == "digits" else None for c, k in zip(completions, kind, strict=True)]


def nothing(sample, completion):
    return None


def constant(sample, completion):
    return 0.25
