"""TRL's side: the loss methods of its trainers, on a trainer that has what they read, and no model.

Advantages are made by the trainers' `_generate_and_score_completions`, with completions and rewards that are given.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl.experimental.gmpo import GMPOTrainer  # pyright: ignore
from trl.experimental.iw_opd import IWOPDTrainer  # pyright: ignore

from peers.comparing import SIZE, WHOLE, WIDTH, Case, Draw, Kind, Side
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer  # pyright: ignore

DISTRIBUTION = "trl"
EPSILON = {"advantage.epsilon": 1e-4}
OWN = "TRL's defaults"


class One(SimpleNamespace):
    """The accelerator of one process."""

    num_processes, process_index, device, sync_gradients = 1, 0, torch.device("cpu"), True

    def gather(self, x: Tensor) -> Tensor:
        return x

    gather_for_metrics = gather

    def reduce(self, x: Tensor, reduction: str = "sum") -> Tensor:
        return x


class Stub:
    """A trainer's settings and columns; a method that it lacks is the trainer's own."""

    def __init__(self, kind: type, options: Mapping[str, Any], batch: Draw, live: Tensor) -> None:
        config = RLOOConfig if kind is RLOOTrainer else GRPOConfig
        args = config(output_dir="unused", use_cpu=True, bf16=False, report_to="none", num_generations=SIZE,
                      per_device_train_batch_size=len(batch.group), max_completion_length=WIDTH, **options)  # fmt: skip
        self.kind, self.args, self.batch, self.live = kind, args, batch, live
        self.accelerator, self.model = One(), SimpleNamespace(training=True)
        self._metrics = {"train": defaultdict(list)}
        self._logs: Any = defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list))
        self.epsilon_low, self.epsilon_high = args.epsilon, args.epsilon_high or args.epsilon
        self.importance_sampling_level = getattr(args, "importance_sampling_level", None)
        self.aux_loss_enabled = self._entropy_bonus_enabled = False
        self.current_gradient_accumulation_steps = 1
        self.num_generations, self.reward_weights = SIZE, batch.weights.clone()
        self.reward_funcs = self.reward_func_names = [f"reward_{k}" for k in range(batch.scores.shape[1])]

    def __getattr__(self, name: str) -> Any:
        if hasattr(self.kind, name):
            return inspect.getattr_static(self.kind, name).__get__(self, self.kind)
        return getattr(self.args, name)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, None]:
        return self.live, torch.zeros_like(self.live), None


def loss(kind: type, options: Mapping[str, Any], batch: Draw, live: Tensor, advantage: Tensor) -> Tensor:
    """Call the trainer's `_compute_loss`."""
    tokens = torch.zeros_like(batch.mask, dtype=torch.long)
    inputs = {
        "prompt_ids": tokens[:, :1], "prompt_mask": tokens[:, :1], "completion_ids": tokens,
        "completion_mask": batch.m, "advantages": advantage, "old_per_token_logps": batch.old,
        "old_logps": (batch.old * batch.m).sum(1), "ref_per_token_logps": batch.ref,
        "num_items_in_batch": batch.m.sum(),
    }  # fmt: skip
    return kind._compute_loss(Stub(kind, options, batch, live), None, inputs)  # type: ignore[attr-defined]


class Rollout(Stub):
    """A trainer whose completions, rewards and log-probabilities are given."""

    _tokenizer = SimpleNamespace(pad_token_id=0)
    environment_factories = environments = pad_to_multiple_of = images = None
    tools: tuple[()] = ()
    _pending_extra_logs: Mapping[str, Any] = {}
    _pending_metrics: Mapping[str, Any] = {}

    def __init__(self, kind: type, options: Mapping[str, Any], batch: Draw) -> None:
        super().__init__(kind, options, batch, batch.live)
        self.model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
        self.ref_model = self.model
        self.columns = iter((batch.old, batch.ref))
        self.num_iterations, self.steps_per_generation = 1, 1

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        ends = [int(row.nonzero().max()) + 1 for row in self.batch.mask]
        completions = [[1] * end for end in ends]
        prompt_ids = [[1]] * len(ends)
        if self.kind is RLOOTrainer:
            return prompt_ids, completions, [""] * len(ends)
        return prompt_ids, completions, None, [""] * len(ends), None, {}, None, None

    def _calculate_rewards(self, *args: Any) -> Tensor:
        return self.batch.scores.clone()

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None, None]:
        column = next(self.columns)
        width = int(self.batch.mask.any(0).nonzero().max()) + 1
        return column[:, :width], None, None


def credit(kind: type, options: Mapping[str, Any], batch: Draw) -> Tensor:
    """Call the trainer's `_generate_and_score_completions`, and return its advantages [N]."""
    inputs = [{"prompt": ""} for _ in batch.group]
    stub = Rollout(kind, options, batch)
    return kind._generate_and_score_completions(stub, inputs)["advantages"]  # type: ignore[attr-defined]


def side(loss_type: str = "grpo", kind: type = GRPOTrainer, **options: Any) -> Side:
    """Make the side of GRPOTrainer, or of a trainer that extends it."""
    whole = {"loss_type": loss_type, "use_bias_correction_kl": False, **options}

    def run(batch: Draw, live: Tensor) -> tuple[Tensor, Tensor]:
        advantage = credit(GRPOTrainer, {**whole, "beta": 0.0}, batch)
        return advantage, loss(kind, whole, batch, live, advantage)

    return run


def leave_one_out(**options: Any) -> Side:
    """Make the side of RLOOTrainer."""

    def run(batch: Draw, live: Tensor) -> tuple[Tensor, Tensor]:
        advantage = credit(RLOOTrainer, options, batch)
        return advantage, loss(RLOOTrainer, options, batch, live, advantage)

    return run


def distilled(batch: Draw, live: Tensor) -> tuple[None, Tensor]:
    """Distillation without its weights by place; two tokens whose logits give the log-probabilities."""
    logits = torch.stack([live - torch.log(-torch.expm1(live)), torch.zeros_like(live)], -1)
    trainer = SimpleNamespace(temperature=1.0, iw_opd_gamma=0.0, iw_opd_epsilon=1e-8, model=One(training=True),
                              _metrics={"train": defaultdict(list)})  # fmt: skip
    tokens = torch.zeros_like(batch.mask, dtype=torch.long)
    labels = torch.where(batch.mask, tokens, -100)
    return None, IWOPDTrainer._compute_iw_opd_loss(trainer, logits, tokens, labels, batch.ref, batch.old)


FREE = {"epsilon": 1e9, "epsilon_high": 1e9}
PLAIN = {"shaping.scale": 1.0, "shaping.offset": 0.0, **EPSILON}
SHAPING = "from shaped scores on"
LOSS, RLOO = "loss_type ", "RLOOTrainer"
GSPO = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
MASKED = {"off_policy_mask_threshold": 0.5, "beta": 0.001, "use_bias_correction_kl": True, "scale_rewards": "none"}
ROUNDED = "TRL subtracts sums of log-probabilities, where float32 rounds; we sum differences"
CONTIGUOUS = Kind(holes=False)

CASES = (
    Case("rloo", RLOO, leave_one_out(**FREE), kind=CONTIGUOUS, spreads=WHOLE, words=ROUNDED),
    Case("rloo", RLOO, leave_one_out(), {"trust.kind": "clip"}, OWN, CONTIGUOUS, WHOLE, words=ROUNDED),
    Case("grpo", LOSS + "grpo", side(beta=0.04), EPSILON),
    Case("grpo", LOSS + "dapo", side("dapo"), {**EPSILON, "kl.beta": 0.0, "aggregate.kind": "token-mean"}, OWN),
    Case("grpo", LOSS + "bnpo", side("bnpo"), {**EPSILON, "kl.beta": 0.0, "aggregate.kind": "token-mean"},
         "loss_type bnpo, one process"),
    Case("dr-grpo", LOSS + "dr_grpo", side("dr_grpo", scale_rewards="none"), {"aggregate.limit": WIDTH}),
    Case("dapo", LOSS + "dapo", side("dapo", epsilon_high=0.28), PLAIN, words=SHAPING),
    Case("gspo", LOSS + "grpo, level sequence", side(**GSPO), EPSILON),
    Case("gspo-token", LOSS + "grpo, level sequence", side(**GSPO), EPSILON),
    Case("sapo", LOSS + "sapo", side("sapo"), EPSILON),
    Case("cispo", LOSS + "cispo", side("cispo", epsilon_high=5.0), PLAIN),
    Case("gmpo", "experimental GMPOTrainer", side(kind=GMPOTrainer, epsilon=0.4), EPSILON),
    Case("opd", "experimental IWOPDTrainer, iw_opd_gamma 0", distilled, kind=Kind(highest=-0.2), spreads=(0.0,),
         words="on policy: it has neither a ratio nor a trust region"),
    Case("deepseek-v3.2", LOSS + "grpo, off_policy_mask_threshold", side(**MASKED)),
    Case("vespo", LOSS + "vespo", side("vespo"), EPSILON),
    Case("luspo", LOSS + "luspo, level sequence", side("luspo", **{**GSPO, "epsilon": 2e-3, "epsilon_high": 2.5e-3}),
         EPSILON),
)  # fmt: skip

EDGES = (
    Case("grpo", LOSS + "grpo", side(), {"kl.beta": 0.0}, "TRL's epsilon of 1e-4, ours of 1e-6",
         words="no paper gives an epsilon: advantage.epsilon = 1e-4 is TRL's"),
    Case("gdpo", LOSS + "dapo, normalize_then_sum", side("dapo", multi_objective_aggregation="normalize_then_sum"),
         EPSILON, "several rewards", Kind(rewards=3), words="TRL whitens over completions, we over trained "
         "tokens, as verl; the authors' own code does either: with equal lengths both are one"),
    Case("gspo", LOSS + "grpo, level sequence, beta", side(**GSPO, beta=0.04, use_bias_correction_kl=True),
         {**EPSILON, "kl.beta": 0.04, "kl.estimator": "k3-ratio"}, "r k3 beside a sequence ratio",
         words="TRL multiplies the token's k3 by the completion's ratio; DeepSeek-V3.2 by the token's own, as we do"),
)  # fmt: skip

WITHOUT = {
    "ppo": "its PPOTrainer has been taken out",
    "dppo-tv": "has been taken out",
    "dppo-kl": "has been taken out",
}
