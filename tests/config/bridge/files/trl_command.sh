#!/bin/bash
# an RLOO run
set -x
MODEL=Qwen/Qwen2.5-1.5B-Instruct   # the policy
OUT="outputs/rloo"

accelerate launch --config_file zero3.yaml --num_processes 4 \
    examples/rloo.py \
    --model_name_or_path $MODEL \
    --dataset_name "trl-lib/ultrafeedback-prompt" \
    --learning_rate 2e-6 \
    # the batch
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 \
    --num_generations=4 --max_completion_length 300 \
    --beta 0.03 --bf16 --output_dir ${OUT} \
    --max_steps 200 --report_to none \
    --dataset_streaming --unheard_of 3
