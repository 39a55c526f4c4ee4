"""Model folders and problems that both sides read: python benchmarks/trl/prepare.py CASE FOLDER

A random model samples its end token by chance. Here one direction of the residual stream is nearly constant, and the
head reads from it how likely the end token, the padding and a few frequent words are: so a completion ends at every
token with the same probability, whatever was sampled before, and some words repeat, which is what the reward sees.
"""

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from cases import CASES, SMOLLM2, Case, Shape
from groupwise.models.load import save_policy

PAD, END = 0, 1
#: Words whose probability is raised where there are many, and what they have together.
FREQUENT, SHARE = 8, 0.5
#: A logit so far below the others that its token is never sampled.
NEVER = -80.0


def main(case: Case, folder: Path) -> None:
    """Make the case's model and problems in `folder`, where they are not there yet."""
    target = folder / case.model_name
    if not (target / "config.json").exists():
        if case.model is None:
            command = [sys.executable, "-m", "groupwise.cli", "model", SMOLLM2, str(target)]
            if subprocess.run(command, check=False).returncode:  # it has said what is missing
                sys.exit(1)
        else:
            build(case, case.model, target)
    problems = folder / f"{case.name}.jsonl"
    if not problems.exists():
        *rows, heldout = products() if case.model is None else words(case, case.model.vocabulary)
        write(problems, rows)
        write(folder / f"{case.name}-heldout.jsonl", [heldout])


def write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps({"answer": "none", **row}) + "\n" for row in rows))


def words(case: Case, vocabulary: int) -> list[dict[str, str]]:
    """Different prompts of the case's length, enough for every step and one to hold out."""
    rng = random.Random(0)
    count = case.prompts * case.steps + 1
    prompts: dict[str, None] = {}
    while len(prompts) < count:
        prompts[" ".join(f"w{rng.randrange(END + 1, vocabulary)}" for _ in range(case.prompt_tokens))] = None
    return [{"prompt": text} for text in prompts]


def products() -> list[dict[str, str]]:
    """Questions as recipes/products.py asks them, for SmolLM2, whose own end ids say where an answer ends. The last one
    is held out.
    """
    pairs = [*((a, b) for a in range(2, 13) for b in range(2, 13)), (13, 13)]
    words = "What is {} times {}? Answer with the number only."
    return [{"prompt": words.format(a, b), "answer": str(a * b)} for a, b in pairs]


def build(case: Case, shape: Shape, target: Path) -> None:
    """Write the model with its tokenizer; always the same weights for one case."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(configuration(shape, case.prompt_tokens + case.limit)).eval()
    with torch.no_grad():
        set_lengths(model, end_probability(case.mean_length, case.limit) if case.mean_length else 0.0)
    model.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=PAD)
    save_policy(model, tokenizer(shape.vocabulary), target)


def configuration(shape: Shape, positions: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads // 2,
        head_dim=32,
        intermediate_size=3 * shape.width,
        max_position_embeddings=max(1024, positions),
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
    )


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One token a word; what a policy samples are words too."""
    ids = {"<pad>": PAD, "<end>": END, **{f"w{i}": i for i in range(END + 1, vocabulary)}}
    fast = Tokenizer(models.WordLevel(ids))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, eos_token="<end>", pad_token="<pad>", clean_up_tokenization_spaces=False
    )


def set_lengths(model: Any, end: float) -> None:
    """Make `end` the probability of the end token at each position (0: never), and a few words frequent.

    Channel 0 of every embedding is as large as all others together, so the last norm leaves it nearly constant, c. A
    head's weight of b / c there adds b to the token's logit.
    """
    embedding, head = model.get_input_embeddings().weight, model.lm_head.weight
    vocabulary, width = embedding.shape
    embedding[:, 0] = model.config.initializer_range * math.sqrt(width)
    hidden = model.model(torch.randint(END + 1, vocabulary, (64, 32))).last_hidden_state.flatten(0, 1)
    constant = float(hidden[:, 0].mean())
    head[:, 0] = 0.0
    head[[PAD, END], 0] = NEVER / constant
    if vocabulary > 4 * FREQUENT:
        others = (vocabulary - 2 - FREQUENT) / (1 - SHARE)
        head[END + 1 : END + 1 + FREQUENT, 0] = math.log(SHARE * others / FREQUENT) / constant
    if end:
        head[END, 0] = weight_of_end(hidden, head, end)


def weight_of_end(hidden: Tensor, head: Tensor, end: float) -> float:
    """The end's weight on channel 0 for which its mean probability over `hidden` [M,width] is `end`."""
    logits = hidden @ head.T
    others = logits[:, [i for i in range(len(head)) if i != END]].logsumexp(-1)
    own = logits[:, END] - head[END, 0] * hidden[:, 0]
    low, high = NEVER, -NEVER
    for _ in range(60):
        middle = (low + high) / 2
        reached = torch.sigmoid(own + middle * hidden[:, 0] - others).mean() > end
        low, high = (low, middle) if reached else (middle, high)
    return low


def end_probability(mean: float, limit: int) -> float:
    """p for which a completion of at most `limit` tokens that ends at each with p has `mean` tokens, its end included.

    mean = (1 - (1 - p)^limit) / p, which falls from limit to 1 as p rises.
    """
    low, high = 1e-9, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if -math.expm1(limit * math.log1p(-middle)) / middle > mean else (low, middle)
    return low


if __name__ == "__main__":
    main(CASES[sys.argv[1]], Path(sys.argv[2]))
