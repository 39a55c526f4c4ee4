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
the paper's, with its filter, overlong penalty and wider clip. Where TRL is installed its own rewards are named by their
module: `use = "trl.rewards:accuracy_reward"`. Without another `check` the task compares nothing: what trains is what is
measured ([rewards.md](rewards.md)).

## A run of verl's as a recipe

`task.name = "verl"` reads what verl's data preprocessing writes: `data_source`, `prompt`, `reward_model.ground_truth`,
`extra_info` ([data.md](data.md)). `custom_reward_function` is `use = "file.py:compute_score"` in a table
`[rewards.NAME]`. The quickstart of verl's documentation, PPO on GSM8K:

    steps = 435                                 # trainer.total_epochs=15 of 7473 problems
    model = "Qwen/Qwen2.5-0.5B-Instruct"        # actor_rollout_ref.model.path, critic.model.path
    prompts_per_step = 256                      # data.train_batch_size
    samples_per_prompt = 1                      # actor_rollout_ref.rollout.n
    updates_per_batch = 4                       # 256 / actor_rollout_ref.actor.ppo_mini_batch_size=64
    passes_per_batch = 1                        # actor_rollout_ref.actor.ppo_epochs
    max_prompt_tokens = 512                     # data.max_prompt_length, data.filter_overlong_prompts
    sampling.max_new_tokens = 512               # data.max_response_length
    learner.learning_rate = 1e-6                # actor_rollout_ref.actor.optim.lr
    critic.learning_rate = 1e-5                 # critic.optim.lr
    evaluation.every = 10                       # trainer.test_freq
    checkpoint.every = 10                       # trainer.save_freq
    [task]
    name = "verl"
    path = "train.parquet"                      # data.train_files
    heldout = "test.parquet"                    # data.val_files
    [algorithm]
    name = "ppo"                                # algorithm.adv_estimator=gae
    advantage.lam = 1.0                         # algorithm.lam
    kl.beta = 0.0                               # algorithm.use_kl_in_reward=False
    trust.dual_clip = 3.0                       # actor_rollout_ref.actor.clip_ratio_c
    [rewards.gsm8k]
    use = "gsm8k.py:compute_score"              # verl/utils/reward_score/gsm8k.py
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
