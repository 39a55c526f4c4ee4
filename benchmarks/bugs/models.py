"""Bugs between engine, learner and weights: sampling, forwards, loads, experts, adapters, the reference."""

from __future__ import annotations

from bugs.kinds import Bug

ENGINE, SAMPLER = "engines/local/engine.py", "engines/local/sampler.py"
LOAD = "copy_weights(self._model, weights, keeps=self.version)"

MODELS = (
    Bug(
        "temperature off by 0.1",
        "engine",
        SAMPLER,
        "    if sampling.temperature != 1:\n        logits = logits / sampling.temperature",
        "    logits = logits / (sampling.temperature - 0.1)",
    ),
    Bug(
        "top-p that nobody hears of",
        "engine",
        SAMPLER,
        "chance = torch.softmax(logits, -1)",
        "chance = torch.softmax(logits.masked_fill(~support_mask(logits, 0, 0.9), -torch.inf), -1)",
    ),
    Bug(
        "a top-p that the recipe does not ask for",
        "engine",
        SAMPLER,
        "support = support_mask(logits, *limits, looks=looks) if sampling.truncates else None",
        "support = support_mask(logits, 0, 0.9)",
    ),
    Bug(
        "log-probabilities before the temperature",
        "engine",
        SAMPLER,
        "return Draw(tokens, chance.gather(",
        "return Draw(tokens, torch.softmax(logits * sampling.temperature, -1).gather(",
        kind="cool",
    ),
    Bug(
        "log-probabilities one token late",
        "engine",
        "core/collate.py",
        "logp[start:stop] = torch.tensor(completion.logp_engine)",
        "logp[start + 1 : stop] = torch.tensor(completion.logp_engine[:-1])",
    ),
    Bug(
        "weights one update old",
        "engine",
        ENGINE,
        LOAD,
        "now = [(name, weight.clone()) for name, weight in weights]\n"
        "        first = [(name, weight.clone()) for name, weight in self._model.named_parameters()]\n"
        '        copy_weights(self._model, getattr(self, "_before", first), keeps=self.version)\n'
        "        self._before = now",
    ),
    Bug(
        "one layer's weights are not loaded",
        "engine",
        ENGINE,
        LOAD,
        "own = dict(self._model.named_parameters())\n"
        '        some = [(name, own[name] if "layers.1." in name else weight) for name, weight in weights]\n'
        "        copy_weights(self._model, some, keeps=self.version)",
    ),
    Bug(
        "weights are rounded to bfloat16 on their way",
        "engine",
        ENGINE,
        LOAD,
        "rounded = [(name, weight.bfloat16().to(weight.dtype)) for name, weight in weights]\n"
        "        copy_weights(self._model, rounded, keeps=self.version)",
    ),
    Bug(
        "the version stays as it was",
        "engine",
        ENGINE,
        "        self.version = version\n",
        "",
        first=2,
    ),
    Bug(
        "another template",
        "engine",
        "rollout/segments.py",
        "Request(prompt.tokens, segment.samples, seed, most)",
        "Request(prompt.tokens[1:], segment.samples, seed, most)",
    ),
    Bug(
        "a wrong position",
        "engine",
        "engines/local/cache.py",
        "return (self.column - self.start[: self.rows]).clamp_(max=last)",
        "return (self.column + 1 - self.start[: self.rows]).clamp_(max=last)",
    ),
    Bug(
        "a logit bias that the learner does not know",
        "learner",
        "commands/build/learner.py",
        '"adjustment": adjustment_of(recipe.sampling, policy.eos, policy.model.config.get_text_config().vocab_size),',
        "",
        kind="biased",
    ),
    Bug(
        "dropout in the learner",
        "learner",
        "models/forward/logprobs.py",
        "states = hidden_states(backbone, layout).index_select(0, read.places)",
        "states = torch.dropout(hidden_states(backbone, layout), 0.1, True).index_select(0, read.places)",
    ),
    Bug(
        "two predictions are taken for one",
        "learner",
        "models/forward/predictions.py",
        "ids = int(targets.max()) + 1",
        "ids = int(targets.max())",
    ),
    Bug(
        "log-probabilities in the rows of other completions",
        "learner",
        "training/learner.py",
        'found.add(micro.index, {"logp": out.logp})',
        'found.add(micro.index.flip(0), {"logp": out.logp})',
    ),
    Bug(
        "a reference that was rounded",
        "reference",
        "commands/build/teachers.py",
        "model = frozen(copy.deepcopy(policy.model) if source is policy",
        "model = frozen(copy.deepcopy(policy.model).bfloat16().float() if source is policy",
    ),
    Bug(
        "a reference that is renewed too seldom",
        "reference",
        "training/reference.py",
        "or step % self.every:",
        "or step % (self.every + 1):",
        kind="renewed",
        first=2,
    ),
    Bug(
        "experts of another row are replayed",
        "experts",
        "training/microbatch.py",
        "place_routes([run.replayed[i] for i in self.index.tolist()], self._laid)",
        "place_routes([run.replayed[i] for i in self.index.flip(0).tolist()], self._laid)",
        kind="experts",
    ),
    Bug(
        "gates of the experts that would have been chosen",
        "experts",
        "models/moe/replay.py",
        "topk((values.gather(-1, self.answer), self.answer))",
        "topk((values.gather(-1, self.own), self.answer))",
        kind="experts",
    ),
    Bug(
        "the balance loss has no gradient",
        "experts",
        "models/moe/record.py",
        "logits[layer] = wide[0]",
        "logits[layer] = wide[0].detach()",
        kind="experts",
    ),
    Bug(
        "adapters merged to 0.999",
        "adapters",
        "models/adapters/lora.py",
        "return whole + layer.get_delta_weight(NAME)",
        "return whole + 0.999 * layer.get_delta_weight(NAME)",
        kind="adapters",
    ),
    Bug(
        "adapters stay on in the reference",
        "adapters",
        "models/adapters/lora.py",
        "layer.enable_adapters(False)",
        "layer.enable_adapters(True)",
        kind="adapters",
        first=2,
    ),
    Bug(
        "the adapters' rate factor is forgotten",
        "adapters",
        "training/learner.py",
        "learning_rate=settings.learning_rate * adapter.rate_factor",
        "learning_rate=settings.learning_rate",
        kind="adapters",
    ),
    Bug(
        "norms train beside the adapters",
        "adapters",
        "models/adapters/lora.py",
        "        now = {id(parameter): name for name, parameter in model.named_parameters()}\n",
        "        now = {id(parameter): name for name, parameter in model.named_parameters()}\n"
        "        for name, parameter in model.named_parameters():\n"
        '            parameter.requires_grad_(parameter.requires_grad or "norm" in name)\n',
        kind="adapters",
    ),
)
