"""Program of a teacher's process at an address: it holds one policy, and scores what a run sends."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import torch

from groupwise.core.channel import Channel
from groupwise.core.engine import Sampling
from groupwise.core.errors import RunError
from groupwise.engines.outside.server import Server
from groupwise.engines.outside.wire import Message
from groupwise.models.context import positions
from groupwise.models.forward.adjustment import adjustment_of
from groupwise.models.load import digest, load_policy
from groupwise.training.learner import Learner, LearnerSettings
from groupwise.training.mesh import batch_of
from groupwise.training.reference import ReferenceSettings, frozen
from groupwise.training.teachers.address import vocabulary_of


def main(channel: Channel, machine: tuple[str, int], model: str) -> None:
    """Serve the run whose connection the server sends; `machine` is device and threads, `model` a folder."""
    os.dup2(2, 1)  # whatever is printed goes where the server shows it
    _, descriptors = channel.receive_with(1)
    TeacherServer(Channel(socket.socket(fileno=descriptors[0])), machine, Path(model)).serve()


class TeacherServer(Server):
    """One policy and its line to the run."""

    def __init__(self, run: Channel, machine: tuple[str, int], folder: Path) -> None:
        super().__init__(run, machine)
        self._folder, (self._on, threads) = folder, machine
        self._learner: Learner | None = None
        self._verbs = {"start": self._begin, "score": self._score}
        torch.set_num_threads(threads)

    def _begin(self, question: Message, _: Sequence[int]) -> Message:
        """Load the policy for a run's sampling -> what the run compares."""
        content, policy = question.content, load_policy(self._folder, device=self._on)
        sampling, config = Sampling.model_validate(content["sampling"]), policy.model.config
        vocabulary, tokenizer, identity = config.get_text_config().vocab_size, policy.tokenizer, digest(policy.model)
        model = frozen(policy.model, ReferenceSettings(precision=content["precision"]))
        adjustment = adjustment_of(sampling, frozenset(content["eos"]), vocabulary)
        self._learner = Learner(model, None, LearnerSettings(), sampling.temperature, 1, adjustment=adjustment)
        said = {
            "vocabulary": vocabulary_of(tokenizer),
            "embeddings": model.get_input_embeddings().weight.shape[0],
            "template": tokenizer.chat_template,
            "positions": positions(config),
            "digest": identity,
        }
        return Message(said, {})

    def _score(self, question: Message, _: Sequence[int]) -> Message:
        """Compute the log-probabilities of a batch's trained tokens, [N,T] nats."""
        learner = self._learner
        if learner is None:
            raise RunError("a run starts a teacher before it asks")
        batch = batch_of(question.content["lengths"], {n: torch.tensor(x) for n, x in question.arrays.items()})
        size = learner.model.get_input_embeddings().weight.shape[0]
        if not 0 <= int(batch.tokens.min()) <= int(batch.tokens.max()) < size:
            raise RunError(f"ids beyond the teacher's {size}")
        with torch.no_grad():
            return Message({}, {"logp": learner.logprobs(learner.model, batch).float().numpy()})
