"""docs/from-trl-and-verl.md, from the table of TRL's and verl's options."""

import sys

from groupwise.config.elsewhere import Chapter, Option, chapters

PAGE = """\
# From TRL and verl

What an option is called here, or why it is not here. `make docs` writes the tables from `config/elsewhere.toml`, and
the same words answer a name of theirs on the command line or in a recipe:

    groupwise: quickstart.toml: beta: a name of TRL's; here it is algorithm.kl.beta: the row grpo has ...

A name that ends with * stands for all that begin so. [keys.md](keys.md) has every key of a recipe.

## A run of TRL's as a recipe

    from trl import GRPOConfig, GRPOTrainer           steps = 500
                                                      model = "Qwen/Qwen2.5-0.5B-Instruct"
    GRPOTrainer(                                      prompts_per_step = 8
        model="Qwen/Qwen2.5-0.5B-Instruct",           samples_per_prompt = 8
        reward_funcs=reward_len,                      [task]
        args=GRPOConfig(                              name = "trl"
            num_generations=8,                        path = "train.jsonl"
            max_completion_length=256,                [algorithm]
            beta=0.0,                                 name = "grpo"
            learning_rate=1e-6,                       kl.beta = 0.0
        ),                                            aggregate.kind = "token-mean"
        train_dataset=dataset,                        [rewards.length]
    )                                                 use = "rewards.py:reward_len"
                                                      [sampling]
                                                      max_new_tokens = 256

TRL's default loss (`loss_type="dapo"`, `beta=0`, one epsilon) is the row `grpo` with these two keys; the row `dapo` is
the paper's, with its filter, overlong penalty and wider clip.

## verl's files

`task.name = "verl"` reads what verl's data preprocessing writes: `data_source`, `prompt`, `reward_model.ground_truth`,
`extra_info` ([data.md](data.md)). `custom_reward_function` is `use = "file.py:compute_score"` in a table
`[rewards.NAME]`.
"""
TABLE = "| option | here | |\n|---|---|---|\n"


def page() -> str:
    """docs/from-trl-and-verl.md."""
    return PAGE + "".join(map(_section, chapters()))


def _section(chapter: Chapter) -> str:
    return f"\n## {chapter.project}: {chapter.title}\n\n{TABLE}{''.join(map(_row, chapter.options))}"


def _row(option: Option) -> str:
    here = ", ".join(f"`{key}`" for key in option.here) or "not here"
    return f"| `{option.name}` | {here} | {option.words} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
