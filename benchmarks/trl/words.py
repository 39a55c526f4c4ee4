"""What docs/findings/benchmarks_trl.md says around its tables."""

HEAD = """\
# Speed against TRL

Whole GRPO steps by groupwise and by TRL's `GRPOTrainer` on one machine, in float32, with beta = 0 and one
update per batch.

    make bench-trl

- **Both sides** share the model folder, prompts, group size, limit, temperature 1, reward code, loss (mean
  per sequence, clip 0.2), AdamW, threads, and versions of torch and transformers.
- **Lengths** come from the model. Random models end at every token with one probability; with equal lengths
  they never end early. SmolLM2 ends at its end token.
- **groupwise** runs `benchmarks/trl/recipe.toml`. A step includes its checks and writing every completion.
- **TRL** recomputes no activations, logs and saves nothing, samples with `generate` and its KV cache, and
  uses the number of completions at once that was fastest in a trial.
- **Order**: every run is a new process; groupwise, TRL, TRL, groupwise is a block. Warm-up steps are left
  out. Times are medians with quartiles. Peak memory is the largest resident set of a process, libraries
  included.

Rows: [bench-trl.jsonl](../evidence/bench-trl.jsonl), one line per finished run.
"""

PHASES = """\
## By phase

Median seconds. In brackets: the share of the machine's fastest matrix product that the arithmetic of the
phase reaches (a prompt once per group, no padding, counted alike for both sides). groupwise skips completions
with advantage 0 but the count includes them, so SmolLM2's update exceeds 100 %. "Other" is the rest of a
step.
"""

GROWTH = """\
## How the cost grows

One number changes, everything else stays: 16 prompts of 64 tokens, 8 completions of 32 tokens, 4 layers of
128, vocabulary 1,024. Group sizes keep 128 completions. Widths mean 2 x 64, 4 x 128, 4 x 256, 8 x 384, and 12
x 512 (layers x channels). Median seconds of a step; each side once, TRL with a quarter of the completions at
once.

![Seconds of a step against group size, completion length, vocabulary and parameters](bench-trl-growth.png)
"""

CURVES = """\
## Learning

Both sides learn the quickstart's task equally well. Each seed starts from one warm-started policy, with the
numbers of `recipes/quickstart.toml` and no KL term; groupwise's evaluation measures both.

![Mean score of each step's completions, three seeds of each side](bench-trl-curves.png)
"""
