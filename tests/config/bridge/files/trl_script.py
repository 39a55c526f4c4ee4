import os
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

raise SystemExit("an import never runs this")


def reward_len(completions, **kwargs):
    return [-abs(20 - len(completion)) for completion in completions]


training_args = GRPOConfig(
    output_dir="Qwen2-0.5B-GRPO",
    learning_rate=5e-6,
    num_generations=8,
    per_device_train_batch_size=16,
    steps_per_generation=4,
    max_steps=1000,
    logging_steps=10,
    loss_type="cispo",
    epsilon_high=5.0,
    run_name=os.environ["RUN"],
    generation_kwargs={"stop": ["</answer>"]},
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2-0.5B-Instruct",
    reward_funcs=[reward_len],
    args=training_args,
    train_dataset=load_dataset("trl-lib/tldr", split="train"),
    peft_config=LoraConfig(r=8, lora_alpha=16),
)
trainer.train()
