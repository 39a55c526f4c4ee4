"""Trial of one small folder: what groupwise does with it, stage by stage, and how exact its numbers are."""

from __future__ import annotations

import dataclasses
import re
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import groupwise
from groupwise.commands.build.policy import export
from groupwise.core.collate import collate
from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import GroupwiseError
from groupwise.core.records import Batch, Completion, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.files.folder import quiet
from groupwise.models.load import Policy, load_policy
from groupwise.models.moe.record import routing_modules
from groupwise.training.learner import Learner, LearnerSettings

if __package__:
    from .build import save_small
    from .sizes import WINDOW
else:
    from build import save_small
    from sizes import WINDOW

#: Tokens of a prompt and completions of it, prompt by prompt.
Asked = Sequence[tuple[int, int]]
#: Prompts in an order in which rows of the engine come and go.
ASKED: Asked = ((3, 2), (20, 2), (9, 1), (33, 1), (5, 1))
#: Tokens of an answer: five windows.
ANSWER = 5 * WINDOW
#: Nats up to which log-probabilities are the model's own.
EXACT = 1e-4
#: A run of a second; what it rewards is what random ids have: that few of them come twice.
RUN: dict[str, Any] = {
    "seed": 0,
    "steps": 3,
    "prompts_per_step": 3,
    "samples_per_prompt": 4,
    "updates_per_batch": 1,
    "task.name": "arithmetic",
    "task.operands": [2, 2],
    "task.largest": 9,
    "algorithm.name": "grpo",
    "rewards.repetition": {"n": 1, "tokens": True},
    "sampling.max_new_tokens": ANSWER,
    "learner.learning_rate": 1e-3,
    "evaluation.problems": 0,
    "journal.report": False,
}


class Trial:
    """Stages of one kind's trial, each with "" if it went well, else what was said."""

    def __init__(self, kind: str, class_name: str, place: Path) -> None:
        """place  an empty folder"""
        self.kind, self.own_class = kind, getattr(transformers, class_name)
        self.folder, self.runs = place / "model", place / "runs"
        self.stages: dict[str, str] = {}
        self.numbers: dict[str, float] = {}
        self.whole_texts = ""

    def run(self) -> dict[str, Any]:
        """Go through the stages -> the row of the table."""
        begun = time.perf_counter()
        if self.passes("builds", lambda: save_small(self.kind, self.folder)):
            self.passes("checks", self._check)
            if self.passes("loads", lambda: load_policy(self.folder, training=True)):
                self.passes("samples", self._sample)
                self.passes("trains", lambda: self._train(steps=3))
                if self._has_experts():
                    self.passes("routes", lambda: self._train(steps=2, **{"routing.replay": "engine"}))
                self.passes("adapters", self._adapters)
        return {
            "kind": self.kind,
            "class": self.own_class.__name__,
            "stages": self.stages,
            **self.numbers,
            "whole_texts": self.whole_texts,
            "seconds": round(time.perf_counter() - begun, 2),
        }

    def passes(self, stage: str, act: Callable[[], Any]) -> bool:
        """Try a stage, and keep what was said if it fails."""
        try:
            act()
            self.stages[stage] = ""
        except GroupwiseError as error:
            self.stages[stage] = " ".join(str(error).split())
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{Path(where.filename).name}:{where.lineno}"
            words = " ".join(str(error).split())[:200]
            fault = "" if stage == "builds" else f"traceback at {at}: "
            self.stages[stage] = f"{fault}{type(error).__name__}: {words}"
        self.stages[stage] = self.stages[stage].replace(f"{self.folder.parent}/", "")
        return not self.stages[stage]

    def _has_experts(self) -> bool:
        return bool(routing_modules(self._own()))

    def _own(self) -> Any:
        """Load the model as its own class does."""
        with quiet():
            return self.own_class.from_pretrained(self.folder, dtype=torch.float32).eval()

    def _recipe(self, **changes: Any) -> dict[str, Any]:
        return {**RUN, "model": str(self.folder), "runs": str(self.runs), **changes}

    def _check(self) -> None:
        faults = groupwise.check(self._recipe()).faults
        if faults:
            raise GroupwiseError(faults[0])

    def _train(self, **changes: Any) -> groupwise.Run:
        run = groupwise.train(self._recipe(**changes), quiet=True)
        if not any(run.metrics()["gradient_norm"]):
            raise GroupwiseError("no update had a gradient")
        return run

    def _sample(self) -> None:
        policy = load_policy(self.folder)
        self.numbers = dict(zip(("engine", "learner"), apart(policy, self._own()), strict=True))
        self.whole_texts = LocalEngine(policy.model, frozenset(), policy.pad).remark
        if max(self.numbers.values()) > EXACT:
            raise GroupwiseError(
                f"engine and learner are {self.numbers['engine']:.1e} and {self.numbers['learner']:.1e} nats from the "
                "model's own forward"
            )

    def _adapters(self) -> None:
        run = self._train(steps=2, **{"adapter.rank": 2})
        exported = self.folder.with_name("exported")
        export(run.folder, exported, None, lambda line: None)
        ids = torch.arange(4, 24)[None]
        with quiet(), torch.no_grad():
            again, info = self.own_class.from_pretrained(exported, dtype=torch.float32, output_loading_info=True)
            if lost := [*info["missing_keys"], *info["unexpected_keys"]]:
                raise GroupwiseError(f"the export is another architecture: {lost[0]} of {len(lost)} weights")
            apart = float((again.eval()(input_ids=ids).logits - run.policy().model(input_ids=ids).logits).abs().max())
            moved = float((again.eval()(input_ids=ids).logits - self._own()(input_ids=ids).logits).abs().max())
        if apart > EXACT or not moved:
            raise GroupwiseError(f"the export's logits are {apart:.1e} from the run's and {moved:.1e} from the base's")


def apart(policy: Policy, own: Any, asked: Asked = ASKED, answer: int = ANSWER) -> tuple[float, float]:
    """Sample ragged prompts -> the largest differences, nats, of the engine's and of the learner's log-probabilities
    from those of the model's own forward over each whole text.

    own     the model as its own class has it
    asked   tokens of each prompt and completions of it
    answer  tokens of each answer
    """
    requests = [
        Request(tuple(torch.randint(4, 250, (n,), generator=torch.Generator().manual_seed(n)).tolist()), s, seed=n)
        for n, s in asked
    ]
    engine = LocalEngine(policy.model, frozenset(), policy.pad, max_rows=3)
    answers = engine.generate(requests, Sampling(max_new_tokens=answer))
    pairs = [(request, one) for request, group in zip(requests, answers, strict=True) for one in group]
    plain = [own_logprobs(own, request.tokens, one) for request, one in pairs]
    batch = batch_of(requests, answers)
    learners = learner_logprobs(policy, batch)
    read = [text_length(own.config, one.tokens) for _, one in pairs]
    return (
        gap([torch.tensor(one.logp_engine) for _, one in pairs], plain, read),
        gap([row[mask] for row, mask in zip(learners, batch.mask, strict=True)], plain, read),
    )


def text_length(config: Any, tokens: tuple[int, ...]) -> int:
    """Count tokens up to the first placeholder of an image, video or sound, itself included.

    A multimodal model's own forward puts padding where a placeholder stands without its picture; a text's does not.
    """
    named = r"(image|video|audio|speech)_token_(id|index)"
    placeholders = {value for name, value in config.to_dict().items() if re.fullmatch(named, name)}
    return next((i + 1 for i, token in enumerate(tokens) if token in placeholders), len(tokens))


def own_logprobs(model: Any, prompt: tuple[int, ...], one: Completion) -> torch.Tensor:
    """Compute the log-probabilities [tokens] of a completion by the model's own forward over the whole sequence."""
    ids = torch.tensor([prompt + one.tokens])
    with torch.no_grad():
        own = model(input_ids=ids).logits[0].float().log_softmax(-1)
    return own[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]


def gap(ours: list[torch.Tensor], plain: list[torch.Tensor], read: list[int] | None = None) -> float:
    """Return the largest difference, nats, over the first `read` tokens of each, or all."""
    most = [len(one) for one in plain] if read is None else read
    return max(float((a - b)[:n].abs().max()) for a, b, n in zip(ours, plain, most, strict=True))


def batch_of(requests: list[Request], answers: list[tuple[Completion, ...]]) -> Batch:
    """Make the learner's batch of sampled completions."""
    groups = [
        Group(
            Prompt(Sample(str(number), str(number), ""), request.tokens),
            tuple(dataclasses.replace(one, score=0.0) for one in group),
        )
        for number, (request, group) in enumerate(zip(requests, answers, strict=True))
    ]
    return collate(groups, 0)


def learner_logprobs(policy: Policy, batch: Batch) -> torch.Tensor:
    """Compute the learner's log-probabilities [N,T] of a batch."""
    learner = Learner(policy.model, None, LearnerSettings(tokens_per_microbatch=300), 1.0, 1)
    return learner.annotate(batch, old=True, ref=False).need("logp_old")
