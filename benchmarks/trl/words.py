"""What docs/findings/benchmarks_trl.md says around its tables."""

HEAD = """\
# groupwise against TRL

    make bench-trl

Whole steps of GRPO with beta = 0 and one update a batch, in float32, by groupwise and by TRL's `GRPOTrainer`, on one
machine. Written by `benchmarks/trl/table.py` from [evidence/bench-trl.jsonl](evidence/bench-trl.jsonl), a line for each
finished run.

- **The same**: model folder, prompts, group size, limit, temperature 1, reward (the share of repeated words; of SmolLM2
  1 for the right product, so that some groups are all right or all wrong; by the same code), loss (a mean over each
  sequence, then over sequences; clip 0.2), AdamW, threads, versions of torch and transformers.
- **The lengths** are the model's own: it is random, and ends at every token with one probability, the same for both
  sides; where lengths are equal its end token is never sampled. SmolLM2 ends where it wants to.
- **groupwise** runs `benchmarks/trl/recipe.toml` through `groupwise.train`. A step is all of a line of metrics.jsonl:
  its checks and the writing of every completion too.
- **TRL** recomputes no activations, logs and saves nothing, samples with `generate` and its cache of keys and values,
  and takes as many completions at once as was fastest in a trial ([below](#completions-at-once)).
- **Order**: every run is a fresh process; groupwise, TRL, TRL, groupwise is a block. Steps for warming up are left out,
  all others count: medians, and in brackets quartiles. Peak memory is the process's largest resident set, weights,
  libraries and interpreter included; in the table the largest of the side's runs.
"""

PHASES = """\
## By phase

Medians, seconds; in brackets the share of the ceiling: the operations that the phase's arithmetic needs (a prompt once
a group, nothing padded, the same count for both sides) over its seconds and the ceiling of its process. "Other" is what
is left of a step: of groupwise's the probe after the weights are loaded, the checks and the journal. groupwise leaves
completions of advantage 0 out of the update (those of a group that is all right or all wrong) and the count takes them
in, so that SmolLM2's update can come out above 100 %.
"""

TUNE = """\
## Completions at once

TRL's step, seconds (the median of two after one for warming up), by how many completions go through its learner at
once. The fastest, in bold, is what is timed above; where none was tried, a quarter.
"""

GROWTH = """\
## How the cost grows

One number of a step changes, everything else stays: 16 prompts of 64 tokens, 8 completions of 32 tokens each, 4 layers
of 128, vocabulary 1,024. Along the group size there are always 128 completions; along the width 2 x 64, 4 x 128,
4 x 256, 8 x 384 and 12 x 512 are layers and channels. Each side once, TRL with a quarter of the completions at once.
Seconds of a step, medians.

![Seconds of a step against group size, completion length, vocabulary and parameters](bench-trl-growth.png)

    python benchmarks/trl_pictures.py docs/evidence/bench-trl.jsonl docs
"""

CURVES = """\
## Learning the quickstart's task

Speed is not bought with correctness: from one warm-started policy a seed, with the numbers of `recipes/quickstart.toml`
(64 prompts x 8 completions, two updates a batch, 60 steps) and no KL term, on the task's own score. Pass rates on its
held-out problems are measured by groupwise's evaluation for both.

![Mean score of each step's completions, three seeds of each side](bench-trl-curves.png)
"""
