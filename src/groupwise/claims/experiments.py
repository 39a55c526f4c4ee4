"""Experiments: what is measured with which seeds, here in seconds or by training in a process of its own."""

import ast
import hashlib
import inspect
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import closing
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from groupwise.claims import readings, toys
from groupwise.core.errors import RunError
from groupwise.core.files.paths import recipe_folder
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import Child

#: Laid over every recipe: one thread, so that two runs side by side have the bits of one alone; no page; and as many
#: tokens a step with their columns as what is read of them needs.
USUAL: Mapping[str, object] = {"threads": 1, "journal.report": False, "journal.token_budget": 4000}
#: What of a run's numbers the machine decides (readings.of_machine).
COSTS = frozenset({"seconds_training", "seconds_generate", "seconds_update", "memory_peak_mib"})


class Effort(IntEnum):
    """The amount that is measured; each takes in those before it."""

    QUICK = 0  # mathematics and toys, minutes in all
    STANDARD = 1  # training runs of three seeds, an hour in all
    FULL = 2  # as many as an answer needs

    @property
    def words(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Experiment:
    """One thing to measure, with one seed or several.

    name         unique over all claims; claims that read the same runs name the same experiment
    measure      (seed, folder for what it writes) -> what was measured, by name; JSON values
    fingerprint  another one if the definition changes, so that older rows no longer count
    seeds        how many seeds each effort has, from seed 0; an effort that is left out has those of the one before
    code         a hash of what it computes with, if that is quick to measure again: `groupwise claims` does so if a row
                 has another one, and until then the row counts
    own_process  whether `measure` runs in a process of its own, so that several may run side by side
    costs        names of what the machine decides, such as seconds: another time they are others
    """

    name: str
    measure: Callable[[int, Path], Mapping[str, Any]]
    fingerprint: str
    seeds: Mapping[Effort, int]
    code: str = ""
    own_process: bool = False
    costs: frozenset[str] = frozenset()

    @property
    def effort(self) -> Effort:
        """The first effort that measures it."""
        return min(effort for effort, count in self.seeds.items() if count)

    def seeds_of(self, effort: Effort) -> range:
        """List the seeds that an effort measures."""
        return range(max((count for least, count in self.seeds.items() if least <= effort), default=0))


def computed(name: str, seeds: int) -> Callable[[Callable[[int], Mapping[str, Any]]], Experiment]:
    """Make a function of a seed an experiment of so many seeds that computes in this process, in seconds.

    Its fingerprint is of the text that measures: the function, what that reaches in its file, and the toys. Its code is
    of groupwise itself, whose parts it tries.
    """

    def made(measure: Callable[[int], Mapping[str, Any]]) -> Experiment:
        text = _reached(sys.modules[measure.__module__], {measure.__name__}) + _reached(toys)
        fingerprint, code = _digest(text.encode()), _groupwise()
        return Experiment(name, lambda seed, work: measure(seed), fingerprint, {Effort.QUICK: seeds}, code)

    return made


def _reached(module: ModuleType, start: Set[str] = frozenset()) -> str:
    """Join the texts of the functions, classes and constants of a module that those named come to use; of all that it
    defines, if none is named. Imports are no part of it: where another module lies changes no number.
    """
    source = inspect.getsource(module)
    defined = {name: node for node in ast.parse(source).body for name in _names(node)}
    reached, new = set[str](), set(start or defined)
    while new:
        reached |= new
        used = {each.id for name in new for each in ast.walk(defined[name]) if isinstance(each, ast.Name)}
        new = used & defined.keys() - reached
    texts = {ast.get_source_segment(source, node) or "" for name, node in defined.items() if name in reached}
    return "\n".join(sorted(texts))


def _names(node: ast.stmt) -> Iterator[str]:
    """List what a statement of a module defines; imports define nothing here."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


@cache
def _groupwise() -> str:
    claims = Path(toys.__file__).parent
    files = sorted(path for path in claims.parent.rglob("*.py") if claims not in path.parents)
    return _digest(b"".join(path.read_bytes() for path in files))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]


def trained(name: str, recipe: str, keys: Mapping[str, object], seeds: Mapping[Effort, int]) -> Experiment:
    """Make an experiment that trains a recipe with these keys, and reads the run (readings.py).

    Its fingerprint is of the recipe's table, the keys and what is read: with others the older rows no longer count.
    """
    laid, file = {**USUAL, **keys}, recipe_file(recipe)
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    fingerprint = _digest(json.dumps([laid, readings.VERSION, table], sort_keys=True).encode())
    measure = partial(_train, name, file, laid, fingerprint)
    return Experiment(name, measure, fingerprint, seeds, own_process=True, costs=COSTS)


def recipe_file(recipe: str) -> Path:
    """Find a recipe that comes with groupwise, whatever lies in the folder that the command is given in."""
    return recipe_folder() / f"{recipe}.toml"


def _train(
    name: str, recipe: Path, keys: Mapping[str, object], fingerprint: str, seed: int, work: Path
) -> Mapping[str, Any]:
    """Train, read, and put the run's folder away: what is asked of it is in the row. One that failed stays."""
    folder = work / f"{name.replace('/', '-')}-{fingerprint}-{seed}"
    settings = {**keys, "name": folder.name, "seed": seed, "runs": str(work)}
    options = {"recipe": str(recipe), "settings": settings, "folder": str(folder)}
    threads = {**os.environ, "OMP_NUM_THREADS": str(keys["threads"])}
    with closing(Child("groupwise.claims.training_process", options, environment=threads)) as child:
        try:
            answer = child.receive()
        except PeerLost as lost:
            raise RunError(f"{lost}; {folder} is gone on with the next time") from None
    if answer["error"]:
        raise RunError(answer["error"])
    shutil.rmtree(folder)
    return answer["measured"]


#: What an answer needs at least, and what is measured without a limit of time.
SEEDS: Mapping[Effort, int] = {Effort.STANDARD: 3, Effort.FULL: 5}
#: Of what hardly differs between seeds.
FEW: Mapping[Effort, int] = {Effort.STANDARD: 3}
#: At the recipe's own rate a clip of 0.2 stops one token in four thousand, at this one in two hundred.
RATE: Mapping[str, object] = {"learner.learning_rate": 1e-3}
#: Without a KL term, as DAPO, GSPO and SAPO are: what is compared should differ in one thing.
PLAIN: Mapping[str, object] = {"algorithm.name": "grpo", "algorithm.kl.beta": 0.0}
#: A limit that a fifth of the first completions do not keep to, and most of those that write every step out.
TIGHT: Mapping[str, object] = {"sampling.max_new_tokens": 144}
#: Soft punishment, as DAPO's row has it: +1 and -1, and the last fifth of the limit.
SOFT: Mapping[str, object] = {
    "algorithm.shaping.scale": 2.0,
    "algorithm.shaping.offset": -1.0,
    "algorithm.shaping.overlong_cache": 0.2,
}
FILTERED: Mapping[str, object] = {"algorithm.filter.mask_truncated": True}
HIGHER: Mapping[str, object] = {"algorithm.trust.epsilon_high": 0.28}
TOKENS: Mapping[str, object] = {"algorithm.aggregate.kind": "token-mean"}
#: Rounds of generation a step at most, where DAPO's row has ten: once most groups are all right, those cost minutes.
ROUNDS: Mapping[str, object] = {"algorithm.filter.max_rounds": 4}
DYNAMIC: Mapping[str, object] = {"algorithm.filter.kind": "drop-uniform", **ROUNDS}
#: A bf16 engine whose log-probabilities the ratio starts from; the learner computes in float32.
OTHER_ENGINE: Mapping[str, object] = {"engine.precision": "bf16", "logp_old": "engine"}


def condition(name: str, *keys: Mapping[str, object], seeds: Mapping[Effort, int] = SEEDS) -> Experiment:
    """Make an experiment: the recipe at `RATE` with these keys laid over it, later ones over earlier ones."""
    laid = {key: value for table in (RATE, *keys) for key, value in table.items()}
    return trained(f"chain/{name}", "chain", laid, seeds)


GRPO = condition("grpo", PLAIN)
TOKEN_MEAN = condition("token-mean", PLAIN, TOKENS)
#: The limit is about the first length, so that the gradient is of the same size.
CONSTANT = condition("constant", PLAIN, {"algorithm.aggregate.kind": "constant", "algorithm.aggregate.limit": 110})
CLIP_HIGHER = condition("clip-higher", PLAIN, HIGHER)
DYNAMIC_SAMPLING = condition("dynamic-sampling", PLAIN, DYNAMIC)

GSPO = condition("gspo", {"algorithm.name": "gspo"})
#: Widths that would have stopped as large a share of the tokens of a GRPO run as its own 0.2 did.
GSPO_MATCHED = condition(
    "gspo-matched",
    {"algorithm.name": "gspo", "algorithm.trust.epsilon_low": 0.016, "algorithm.trust.epsilon_high": 0.021},
)
SAPO = condition("sapo", {"algorithm.name": "sapo"})
SAPO_EQUAL = condition("sapo-equal", {"algorithm.name": "sapo", "algorithm.trust.tau_negative": 1.0})
SAPO_BELOW = condition("sapo-below", {"algorithm.name": "sapo", "algorithm.trust.tau_negative": 0.95})

GRPO_ENGINE = condition("grpo-engine", PLAIN, OTHER_ENGINE)
GSPO_ENGINE = condition("gspo-engine", {"algorithm.name": "gspo"}, OTHER_ENGINE)
SAPO_ENGINE = condition("sapo-engine", {"algorithm.name": "sapo"}, OTHER_ENGINE)

#: The recipe has no KL term, and a recipe's own beta stands whatever the algorithm's row says.
WITH_KL: Mapping[str, object] = {"algorithm.name": "grpo", "algorithm.kl.beta": 0.04}
KL_LOSS = condition("kl-loss", WITH_KL)
KL_REWARD = condition("kl-reward", WITH_KL, {"algorithm.kl.place": "reward", "algorithm.kl.estimator": "k1"})
#: As many updates as the others, and returns as they are: one score at the end has no use for a shorter look ahead.
CRITIC: Mapping[str, object] = {
    "algorithm.name": "ppo",
    "algorithm.kl.beta": 0.0,
    "algorithm.advantage.lam": 1.0,
    "passes_per_batch": 1,
    "critic.learning_rate": 1e-3,
}
PPO = condition("ppo", CRITIC)
#: Two steps of a policy whose weights take more than the libraries do, with nothing learned before; what is asked of it
#: is memory. A limit of 48 tokens is enough for that.
LARGE: Mapping[str, object] = {
    "model": "small-dense",
    "warm_start.steps": 0,
    "steps": 2,
    "sampling.max_new_tokens": 48,
    "evaluation.problems": 1,
}
GRPO_LARGE = condition("grpo-small-dense", PLAIN, LARGE, seeds=FEW)
PPO_LARGE = condition("ppo-small-dense", CRITIC, LARGE, seeds=FEW)

#: The ablation ladder under a tight limit, each rung with what the one before has. The soft punishment takes the place
#: of filtering, for with both nothing would ever train a completion at the limit; the last rung is DAPO's row.
NAIVE = condition("tight", PLAIN, TIGHT)
FILTERING = condition("tight+filtering", PLAIN, TIGHT, FILTERED)
LADDER = (
    NAIVE,
    FILTERING,
    condition("tight+filtering+higher", PLAIN, TIGHT, FILTERED, HIGHER),
    condition("tight+higher+soft", PLAIN, TIGHT, HIGHER, SOFT),
    condition("tight+higher+soft+tokens", PLAIN, TIGHT, HIGHER, SOFT, TOKENS),
    condition("tight+dapo", {"algorithm.name": "dapo"}, TIGHT, ROUNDS),
)
SOFT_ALONE = condition("tight+soft", PLAIN, TIGHT, SOFT)
