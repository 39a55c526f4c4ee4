"""What a run cannot be is refused in one line that names the key, before anything is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.config.recipe import load
from groupwise.config.resolve import resolve
from groupwise.models.load import load_policy, save_policy
from groupwise.models.scalar_heads import reward_model_of
from groupwise.models.tiny import TinySpec
from tests.refusals import refused
from tests.runs.tiny_runs import laid_over, tiny_policy, tiny_run

HERE = Path(__file__).parent
ENVIRONMENT, MINE = f"{HERE / 'environment_of_a_run.py'}:Sum", f"{HERE / 'rewards_of_a_run.py'}"
#: Prompts without answers and a reward of one's own.
ALONE: dict[str, Any] = {
    "task": {"name": "trl", "path": "PLACE/prompts.jsonl"},
    "model": "tiny-bytes",
    "rewards.mine.use": f"{HERE / 'rewards_without_answers.py'}:distinct",
}


def episodes(**task: Any) -> dict[str, Any]:
    return {"task": {"name": "environment", **task}}


#: A change of a sound run, and the beginning of a line or what stands in it; PLACE is the folder of these tests.
CASES: list[tuple[dict[str, Any], str]] = [
    # An algorithm and what it reads.
    ({"algorithm.name": "grpo-process", "task": {"use": f"{HERE / 'task_of_a_run.py'}:Sums"}}, "needs scores of steps"),
    ({"critic.learning_rate": 1e-3}, "critic.learning_rate: set, but nothing in this run reads it"),
    ({"logp_old": "engine", "algorithm.mismatch.kind": "tis"}, "logp_old = 'engine': then pi_old / pi_engine is 1"),
    ({"logp_old": "engine", "algorithm.rejection.kind": "veto"}, "corrects nothing; set algorithm.rejection.kind"),
    ({"algorithm.name": "gspo", "algorithm.mismatch.kind": "icepop"}, "mismatch.kind (IcePop"),
    ({"algorithm.name": "reinforce", "rollout.ahead": 1}, "rollout.ahead = 1: the completions are an older policy's"),
    ({"algorithm.name": "reinforce", "rollout.turn_tokens": 1}, "rollout.turn_tokens = 1: the completions are"),
    ({"rollout.ahead": 1, "rollout.free": 2}, "ahead = 1 and free = 2 are two lags"),
    *(({"rollout.turn_tokens": n}, f"rollout.turn_tokens = {n!r}: must be") for n in (0, -1, 2.5, "4")),
    # A critic.
    ({"algorithm.name": "ppo", "critic.start": "/nowhere"}, "critic.start = '/nowhere': no such folder"),
    ({"algorithm.name": "ppo", "critic.warmup_steps": 2}, "critic.warmup_steps = 2: the policy would wait"),
    ({"algorithm.name": "ppo", "critic.clp": 0.1}, "critic.clp: there is no such key; did you mean 'clip'?"),
    ({"algorithm.name": "ppo", "critic.start": "reward-model"}, "critic.start = 'reward-model': this run has"),
    # A guard.
    ({"guard": "halt"}, "guard = 'halt': must be 'warn', 'stop' or 'rollback'"),
    ({"guard": "rollback", "rollback.most": 0}, "rollback.most = 0: must be at least 1"),
    ({"guard": "rollback", "rollback.rate_factor": 1.0}, "rollback.rate_factor = 1.0: must be less than 1"),
    ({"guard": "rollback", "rollback.factor": 0.5}, "did you mean 'rate_factor'? known: most, rate_factor"),
    ({"rollback.most": 3}, "rollback.most: set, but nothing in this run reads it"),
    ({"guard": "stop", "rollback.rate_factor": 0.5}, "rollback.rate_factor: set, but nothing in this run reads it"),
    ({"guard": "rollback", "checkpoint.every": 4, "checkpoint.keep": 3}, "before them; set checkpoint.keep = 4"),
    # A reward model.
    ({"preference.model": "/nowhere"}, "preference.model = '/nowhere': there is no such folder"),
    ({"preference.model": "PLACE/empty"}, "empty': no config.json"),
    ({"preference.model": "PLACE/judge"}, "its tokenizer is not the policy's"),
    ({"preference.path": "/nowhere.jsonl"}, "/nowhere.jsonl: cannot be read as a file of pairs: there is no such file"),
    ({"preference.path": "PLACE/pairs.jsonl", "preference.noise": 0.1}, "preference.noise: set, but nothing"),
    (
        {"preference.path": "PLACE/pairs.jsonl", "preference.pairs": 5, "preference.samples": 3},
        "preference.pairs, preference.samples: set, but nothing in this run reads it",
    ),
    ({"preference.model": "PLACE/empty", "preference.epochs": 2}, "preference.epochs: set, but nothing in this run"),
    # Rewards of the catalog, and those of one's own.
    ({"rewards.x": {"kind": "tag"}}, "rewards.x.kind = 'tag': there is no such reward; did you mean 'tags'"),
    ({"rewards.tags": {"tag": 1}}, "rewards.tags.tag: tags has no such key; did you mean 'tags'"),
    ({"rewards.tags": {"weight": "1"}}, "rewards.tags.weight = '1': must be a number"),
    ({"rewards.task": {"weight": 0.0}}, "rewards: every weight is 0"),
    ({"rewards.task": {"kind": "tags"}}, "rewards.task: it has a weight and nothing else"),
    ({"rewards.learned": {}}, "rewards.learned: this run has no reward model"),
    ({"preference": {}, "rewards.task": {}}, "its score would train nothing"),
    ({"scoring.combine": "after"}, "there is one reward only"),
    ({"scoring.combine": "after", "rewards.task": {}, "algorithm.name": "ppo"}, "compares no outcomes inside a group"),
    ({"scoring.combine": "after", "rewards.task": {}, "algorithm.name": "dapo"}, "overlong_cache = 0.0"),
    ({"rewards.mine": {"use": f"{MINE}:shor"}}, "did you mean 'short'"),
    ({"rewards.mine": {"use": "nowhere.py:f"}}, "nowhere.py"),
    ({"task": {"name": "data", "path": __file__}}, "test_refusals.py"),
    ({**{k: v for k, v in ALONE.items() if k != "rewards.mine.use"}}, "task.check = 'none': there are no right"),
    ({**ALONE, "rewards.task": {}}, "rewards.task: the task has no score of its own here"),
    ({**ALONE, "evaluation.metric": "correctness"}, "evaluation.metric = 'correctness': the task has no right answers"),
    ({**ALONE, "evaluation.metric": "mime"}, "no such reward in this run; did you mean 'mine'"),
    ({**ALONE, "algorithm.name": "dapo", "algorithm.filter.metric": "acc"}, "algorithm.filter.metric = 'acc': no such"),
    ({**ALONE, "algorithm.filter.metric": "reward"}, "algorithm.filter.metric: filter 'none' has no such key"),
    ({**ALONE, "evaluation.pass_at": "1"}, "evaluation.pass_at"),
    ({**ALONE, "task": {**ALONE["task"], "answer": "gold"}}, "task.answer"),
    # Environments.
    (episodes(use="nowhere.py:Sum"), "nowhere.py"),
    (episodes(use=ENVIRONMENT.replace("Sum", "Some")), "has no 'Some'"),
    (episodes(use="groupwise.core.samples:Attempt"), "Attempt"),
    (episodes(use=ENVIRONMENT, max_turns=0), "task.max_turns must be 1 or more"),
    (episodes(use=ENVIRONMENT, on_fault="wait"), "task.on_fault = 'wait': there is no such choice"),
    (episodes(use=ENVIRONMENT, prompt="question"), "task.prompt: set, but without task.path nothing reads it"),
    (episodes(use=ENVIRONMENT, settings={"falt": 1}), "falt"),
    (episodes(), "task.use is missing"),
    ({**episodes(use=ENVIRONMENT), "rollout.turn_tokens": 4}, "rollout.turn_tokens = 4: "),
    # Where a run begins, and what it is measured against.
    ({"start": "nowhere"}, "start = 'nowhere': there is no such run (RUN or RUN:STEP); a model's folder is `model`"),
    ({"start": "PLACE/runs/source:7"}, "it has no checkpoint of step 7; there are 1, 2"),
    ({"start": "PLACE/runs/source/checkpoints/step-000002/policy"}, "there is no such run"),
    ({"reference.model": "nowhere"}, "reference.model = 'nowhere': there is no such folder; or one of: start"),
    ({"reference.model": "PLACE/other"}, "its tokenizer is another than the policy's"),
    ({"reference.model": "PLACE/large", "algorithm.name": "dapo"}, "reference.model: set, but nothing in this run"),
    ({"reference.every": 2, "algorithm.name": "dapo"}, "reference.every: set, but nothing in this run reads it"),
    ({"reference.every": 2, "reference.model": "PLACE/large"}, "its weights have other shapes"),
    # Sampling, precision and processes.
    ({"sampling.stop": ["\n"]}, "sampling.stop = '\\n': the model's tokenizer cannot read it"),
    ({"adapter.rank": 4, "adapter.targets": ["qproj"]}, "'qproj' matches no linear layer of Qwen3ForCausalLM"),
    ({"learner.ranks": 2, "learner.compile": True}, "learner.ranks = 2 with learner.compile: "),
    ({"engine.compile": True, "device": "cpu"}, "engine.compile = true with device = 'cpu': steps are compiled on a"),
    ({"learner.moments": "host"}, "learner.moments = 'host' with device = 'cpu': a processor has one memory; take it"),
    ({"learner.moments": "8bit"}, "learner.moments = '8bit' with device = 'cpu': there bitsandbytes takes 20 times"),
    ({"reference.offload": True}, "reference.offload = true with device = 'cpu': a processor has one memory; take it"),
    ({"reference.offload": True, "adapter.rank": 4}, "reference.offload: set, but nothing in this run reads it"),
    (
        {"learner.attention": "flex", "device": "cpu"},
        'learner.attention = "flex": torch has no backward of it on a CPU',
    ),
]


@pytest.mark.parametrize("lag", ["rollout.ahead", "rollout.turn_tokens"])
@pytest.mark.parametrize(
    "remedy", [{"algorithm.mismatch.kind": "tis"}, {"logp_old": "engine"}, {"algorithm.name": "grpo"}]
)
def test_an_older_policys_completions_go_with_each_remedy(lag: str, remedy: dict[str, str]) -> None:
    resolve(load("quickstart", {"algorithm.name": "reinforce", lag: 1, **remedy}))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("refusals")
    groupwise.train("quickstart", tiny_run(place, name="source"))
    (place / "empty").mkdir()
    tiny_policy(place / "large", layers=2)
    TinySpec(layers=1, width=16, heads=2, kv_heads=2, head_dim=8).build("+-=0123456789", place / "other", seed=0)
    judge = reward_model_of(load_policy(place / "other"))
    save_policy(judge.model, judge.tokenizer, place / "judge")
    pairs = [{"prompt": f"{i}+1=", "chosen": f"{i + 1}", "rejected": f"{i}"} for i in range(9)]
    prompts = [{"prompt": f"Say {i}"} for i in range(60)]
    for name, rows in (("pairs", pairs), ("prompts", prompts)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


@pytest.mark.parametrize(("changes", "words"), CASES, ids=lambda case: case if isinstance(case, str) else "")
def test_what_a_run_cannot_be_is_refused_in_one_line(changes: dict[str, Any], words: str, place: Path) -> None:
    placed = json.loads(json.dumps(changes).replace("PLACE", str(place)))
    settings = laid_over(tiny_run(place, name="refused"), placed)
    with refused(words):
        groupwise.train("quickstart", settings)
    assert not (place / "runs" / "refused").exists()
