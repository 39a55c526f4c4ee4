"""A run's reward model from the run's own policy and preference pairs, cached by everything that determines it."""

import dataclasses
import inspect
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from groupwise.core.engine import Sampling
from groupwise.core.files.dataclass_json import to_json
from groupwise.core.numbers.seeds import derive
from groupwise.engines.make import make_engine, require_sampling
from groupwise.engines.settings import EngineSettings
from groupwise.models import scalar_heads
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import Policy, digest, save_policy
from groupwise.models.scalar_heads import reward_model_of
from groupwise.rollout.collect import Prompts
from groupwise.rollout.scoring import Scorer
from groupwise.training.optimizer import OnStep, silent
from groupwise.training.start import pairs, reward_report
from groupwise.training.start.cache import cached_folder
from groupwise.training.start.pairs import Comparison, encode_pairs, read_pairs, sample_pairs, split_by_prompt
from groupwise.training.start.reward_model import PreferenceSettings, train_reward_model
from groupwise.training.start.reward_report import REPORT, report_on
from groupwise.training.start.warm_start import fingerprint

#: Of a file of pairs, at most this share is held out.
LARGEST_HELDOUT_SHARE = 0.2


def cached_reward_model(
    policy: Policy,
    chat: Chat,
    scorer: Scorer,
    sampling: Sampling,
    settings: PreferenceSettings,
    seed: int,
    cache: Path,
    engine_settings: EngineSettings = EngineSettings(),
    on_step: OnStep = silent,
    note: Callable[[str], None] = print,
) -> Path:
    """Return the folder in `cache` of a policy's reward model and its report; made where the same one is not there yet,
    or, with a line by `note`, where it is damaged.

    The pairs come from the file `settings.path`, or else are the policy's own completions of training prompts, ranked
    by the task's score. Held-out pairs come from other prompts of the same origin; the task's held-out split stays
    untouched.
    """
    from_file = None if settings.path is None else read_pairs(Path(settings.path))
    device = next(policy.model.parameters()).device.type
    code = [inspect.getsource(module) for module in (pairs, scalar_heads, reward_report, sys.modules[__name__])]
    how = settings.replace(path=None)  # a file is known by its pairs, wherever it lies
    # Of the policy count its weights, the ids of every token, and those that end an answer.
    vocabulary = sorted(policy.tokenizer.get_vocab().items())
    policy_parts = (digest(policy.model), vocabulary, sorted(policy.eos), chat.settings)
    sources = (*policy_parts, scorer.task, sampling, how, seed, from_file, engine_settings, device, *code)
    folder = cache / f"reward-{fingerprint(*sources)}"

    def sampled() -> list[Comparison]:
        """Training and held-out pairs together, all from the task's training problems."""
        prompts = Prompts(scorer.task.samples("train"), chat.encode, derive(seed, "preference"))
        count = settings.pairs + settings.heldout_pairs
        with closing(make_engine(policy=policy, settings=engine_settings, note=note)) as engine:
            require_sampling(engine, policy, sampling, "sampling")
            return sample_pairs(engine, scorer, prompts, sampling, settings.samples, count, settings.noise, seed)

    def write(target: Path) -> None:
        began = time.perf_counter()
        if from_file is None:
            comparisons, heldout, ceiling = sampled(), settings.heldout_pairs, 1 - settings.noise
        else:
            comparisons, ceiling = encode_pairs(policy, from_file), None
            heldout = min(settings.heldout_pairs, max(1, int(len(comparisons) * LARGEST_HELDOUT_SHARE)))
        train, held = split_by_prompt(comparisons, heldout, seed)
        model = reward_model_of(policy)
        updates = train_reward_model(model, train, settings, seed, on_step)
        report = report_on(model, held, ceiling, len(train), updates)
        report = dataclasses.replace(report, seconds=time.perf_counter() - began)
        save_policy(model.model, model.tokenizer, target)
        (target / REPORT).write_text(json.dumps(to_json(report), indent=2) + "\n", encoding="utf-8")

    cached_folder(folder, write, "the reward model", note)
    return folder
