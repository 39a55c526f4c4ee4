"""The contract of an engine, against the real vLLM: make test-vllm.

What vLLM and the local engine draw differs, for their random streams do; what they draw from does not. So greedy
completions are compared with the local engine's, rules of ending included, and log-probabilities with the learner's.
"""

from __future__ import annotations

import math
import os
import random
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import groupwise
from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.errors import RunError, UsageError
from groupwise.core.records import Completion, Prompt
from groupwise.core.samples import Sample
from groupwise.core.stream import Cohort
from groupwise.engines.make import make_engine, require_engine_support
from groupwise.engines.settings import EngineSettings
from groupwise.engines.vllm.engine import ModelFacts
from groupwise.engines.vllm.heads import BLOCK
from groupwise.engines.vllm.make import _memory, _scheduling
from groupwise.models.load import Policy, load_policy
from groupwise.rollout.segments import Segment, advance
from tests.engines.outside.made import assert_same, fields
from tests.engines.vllm.conftest import PYTHON, Served, dense, vllm_settings
from tests.moe_policy import save_moe

pytestmark = pytest.mark.vllm

REQUESTS = [
    Request((4, 5, 6), samples=3, seed=1),
    Request((7,), samples=4, seed=2**62),
    Request((4, 5, 6, 12, 2), samples=2, seed=3, max_new_tokens=5),
]
SAMPLINGS = {
    "plain": Sampling(max_new_tokens=20),
    "colder": Sampling(max_new_tokens=12, temperature=0.7),
    "with biases": Sampling(max_new_tokens=12, logit_bias={5: -3.0, 7: 1.5}),
    "not to end early": Sampling(max_new_tokens=12, min_new_tokens=6, stop_ids=(3, 4)),
}
ENDINGS = {
    "its own end": Sampling(max_new_tokens=30, temperature=0),
    "ids": Sampling(max_new_tokens=30, temperature=0, stop_ids=(3, 9)),
    "texts": Sampling(max_new_tokens=30, temperature=0, stop=("1", "=2", "88")),
    "texts, not early": Sampling(max_new_tokens=30, temperature=0, stop=("1", "2", "3", "4"), min_new_tokens=3),
    "biases": Sampling(max_new_tokens=30, temperature=0, logit_bias={5: -100.0, 7: 0.7}),
    "penalised": Sampling(max_new_tokens=30, temperature=0, repetition_penalty=1.3),
}
LIMIT = 1e-4  # nats, in float32
TURN = 4  # tokens


def distributions(policy: Policy, request: Request, completion: Completion, sampling: Sampling) -> torch.Tensor:
    """[tokens,V] nats by definition (core/engine.py: Distribution), from one plain forward; nothing is truncated."""
    ids = torch.tensor([[*request.tokens, *completion.tokens]])
    with torch.no_grad():
        logits = policy.model(ids).logits[0, len(request.tokens) - 1 : -1].float()
    for token, bias in sampling.logit_bias.items():
        logits[:, token] += bias
    logits[: sampling.min_new_tokens, sorted(policy.eos.union(sampling.stop_ids))] = -torch.inf
    return (logits / sampling.temperature).log_softmax(-1)


def logprobs(policy: Policy, request: Request, completion: Completion, sampling: Sampling) -> torch.Tensor:
    """[tokens] nats of the completion's own."""
    tokens = torch.tensor(completion.tokens)
    return distributions(policy, request, completion, sampling)[torch.arange(len(tokens)), tokens]


def largest_gap(served: Served, groups: Sequence[Sequence[Completion]], sampling: Sampling) -> float:
    return max(
        (logprobs(served.policy, request, c, sampling) - torch.tensor(c.logp_engine)).abs().max().item()
        for request, group in zip(REQUESTS, groups, strict=True)
        for c in group
    )


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_log_probabilities_are_those_of_what_was_sampled(served: Served, sampling: Sampling) -> None:
    groups = served.vllm.generate(REQUESTS, sampling)
    assert [len(group) for group in groups] == [3, 4, 2]
    assert largest_gap(served, groups, sampling) < LIMIT
    wrong = sampling.replace(temperature=sampling.temperature + 0.1)
    assert largest_gap(served, groups, wrong) > 10 * LIMIT, "this test could not fail"
    ends = served.policy.eos.union(sampling.stop_ids)
    for request, group in zip(REQUESTS, groups, strict=True):
        limit = request.max_new_tokens or sampling.max_new_tokens
        for completion in group:
            *before, last = completion.tokens
            assert not ends & set(before), "an end id ends"
            assert completion.finish == ("stop" if last in ends else "length")
            assert len(completion.tokens) == limit or last in ends
            assert completion.support is None
            assert completion.routes is None


@pytest.mark.parametrize("top", [5, 999])
@pytest.mark.parametrize("name", ["plain", "colder", "not to end early", "a text ends it"])
def test_the_likely_ids_are_those_of_what_was_drawn_from(served: Served, name: str, top: int) -> None:
    """With their log-probabilities; of a vocabulary with fewer, all; and of greedy completions none."""
    sampling = {**SAMPLINGS, "a text ends it": Sampling(max_new_tokens=20, stop=("1", "2"))}[name]
    requests = [replace(request, top=top) for request in REQUESTS]
    for request, group in zip(requests, served.vllm.generate(requests, sampling), strict=True):
        for completion in group:
            every, found = distributions(served.policy, request, completion, sampling), completion.top
            assert found is not None
            assert found.ids.shape == (len(completion.tokens), min(top, every.shape[1]))
            own, likely = every.gather(1, found.ids.long()), every.topk(found.ids.shape[1]).values
            drawn = found.ids == torch.tensor(completion.tokens)[:, None]
            assert all(len(row.unique()) == len(row) for row in found.ids)
            torch.testing.assert_close(own, found.logp, rtol=0, atol=LIMIT)
            torch.testing.assert_close(likely, found.logp, rtol=0, atol=LIMIT)
            engine = torch.tensor(completion.logp_engine)[drawn.any(1)]
            torch.testing.assert_close(found.logp[drawn], engine, rtol=0, atol=1e-6)
    assert served.vllm.generate(requests, SAMPLINGS["plain"].replace(temperature=0.0))[0][0].top is None
    assert served.vllm.generate(REQUESTS, SAMPLINGS["plain"])[0][0].top is None


def test_tokens_are_drawn_with_their_probabilities(served: Served) -> None:
    """Chi-square of 16,000 first tokens over at most 15 ids: a temperature that is off by 0.1 fails."""
    request, sampling = Request((4, 5, 6), samples=16_000, seed=11), Sampling(max_new_tokens=1, temperature=1.3)
    counts = Counter(c.tokens[0] for c in served.vllm.generate([request], sampling)[0])
    with torch.no_grad():
        logits = served.policy.model(torch.tensor([request.tokens])).logits[0, -1].float()

    def chi_square(temperature: float) -> float:
        expected = 16_000 * (logits / temperature).softmax(-1)
        often = expected > 5
        seen = torch.tensor([float(counts[i]) for i in range(len(logits))])
        rest = torch.stack([seen[~often].sum(), expected[~often].sum()])
        terms = (seen[often] - expected[often]) ** 2 / expected[often]
        return float(terms.sum() + ((rest[0] - rest[1]) ** 2 / rest[1] if rest[1] > 5 else 0.0))

    assert chi_square(sampling.temperature) < 40.0  # 14 degrees of freedom are above with a chance of 3e-4
    assert chi_square(sampling.temperature - 0.1) > 40.0


@pytest.mark.parametrize("sampling", ENDINGS.values(), ids=ENDINGS)
def test_greedy_completions_end_as_the_local_engines_do(served: Served, sampling: Sampling) -> None:
    requests = [Request((i, 13 - i, i), samples=1, seed=0) for i in range(2, 12)]
    for mine, theirs in zip(
        served.vllm.generate(requests, sampling), served.local.generate(requests, sampling), strict=True
    ):
        assert (mine[0].tokens, mine[0].finish, mine[0].stop) == (theirs[0].tokens, theirs[0].finish, theirs[0].stop)


def test_completions_depend_on_seed_and_number_and_on_nothing_else(served: Served) -> None:
    sampling = SAMPLINGS["plain"]
    groups = served.vllm.generate(REQUESTS, sampling)
    assert_same(served.vllm.generate(REQUESTS, sampling), groups)
    assert len({c.tokens for c in groups[1]}) > 1
    alone = served.vllm.generate([REQUESTS[1]], sampling)[0]
    assert [c.tokens for c in alone] == [c.tokens for c in groups[1]]
    fewer = served.vllm.generate([Request((7,), samples=2, seed=2**62)], sampling)[0]
    assert [c.tokens for c in fewer] == [c.tokens for c in groups[1][:2]]
    other = served.vllm.generate([Request((7,), samples=4, seed=5)], sampling)[0]
    assert [c.tokens for c in other] != [c.tokens for c in groups[1]]


@pytest.mark.parametrize("sampling", ENDINGS.values(), ids=ENDINGS)
def test_what_goes_on_in_turns_ends_as_a_whole_completion_does(served: Served, sampling: Sampling) -> None:
    """Greedy, so that a draw cannot differ: the tokens of earlier turns count for ends, strings and penalties."""
    requests = REQUESTS[:2]
    whole = served.vllm.generate(requests, sampling)
    cohort = Cohort(tuple(Prompt(Sample("", "", ""), r.tokens) for r in requests), tuple(r.seed for r in requests))
    turn = Segment(samples=2, sampling=sampling, tokens=TURN)
    cohorts = [cohort]
    for _ in range(turn.count):
        cohorts = advance(served.vllm, cohorts, turn)
    several = 0
    for group, others in zip(cohorts[0].completions, whole, strict=True):
        for one, other in zip(group, others[:2], strict=True):
            assert (one.tokens, one.finish, one.stop) == (other.tokens, other.finish, other.stop)
            assert one.logp_engine == pytest.approx(other.logp_engine, abs=LIMIT)
            several += len(one.tokens) > TURN
    assert several


def test_what_goes_on_has_numbers_of_its_own(served: Served) -> None:
    """With the first token's numbers again a turn would draw much the same from much the same chances."""
    first = served.vllm.generate([Request((7,), 512, seed=4)], Sampling(max_new_tokens=1))[0]
    later = [Request((7, 7), 1, seed=4, first=i, drawn=1) for i in range(512)]
    again = [group[0] for group in served.vllm.generate(later, Sampling(max_new_tokens=1))]
    other = served.vllm.generate([Request((7, 7), 512, seed=4)], Sampling(max_new_tokens=1))[0]
    same_numbers = sum(a.tokens == b.tokens for a, b in zip(first, other, strict=True))
    new_numbers = sum(a.tokens == b.tokens for a, b in zip(first, again, strict=True))
    chance = sum((n / 512) ** 2 for n in Counter(c.tokens for c in other).values()) * 512
    assert new_numbers < chance + 5 * math.sqrt(chance) < same_numbers


def test_more_prompts_than_go_through_the_model_at_once_are_each_answered(served: Served) -> None:
    """vLLM would run the last of them in parts, and then draw a number too early."""
    requests = [Request(tuple(2 + (i * j) % 11 for j in range(1, 47)), samples=2, seed=i) for i in range(130)]
    groups = served.vllm.generate(requests, Sampling(max_new_tokens=2))
    assert sum(len(r.tokens) for r in requests) > 5000
    assert [len(group) for group in groups] == [2] * len(requests)


@pytest.mark.parametrize("sampling", [SAMPLINGS["plain"], Sampling(max_new_tokens=20, stop=("1", "2"))])
def test_completions_are_told_as_they_end_each_once(served: Served, sampling: Sampling) -> None:
    told: list[Finished] = []
    groups = served.vllm.generate(REQUESTS, sampling, told.append)
    assert len(told) == len({(done.request, done.sample) for done in told}) == sum(map(len, groups))
    for done in told:
        completion = groups[done.request][done.sample]
        assert (done.tokens, done.finish) == (completion.tokens, completion.finish)
    assert len(told[0].tokens) < max(len(done.tokens) for done in told)
    assert served.vllm.generate([], sampling) == []


def test_loaded_weights_are_those_that_sample_and_nothing_is_kept_of_older_ones(served: Served) -> None:
    """The prompt has whole blocks, which the prefix cache holds."""
    policy, sampling = served.policy, Sampling(max_new_tokens=8)
    room = served.policy.model.config.max_position_embeddings - 8
    long = [Request(tuple(2 + i % 9 for i in range(min(300, room))), samples=4, seed=3)]

    def gap() -> float:
        group = served.vllm.generate(long, sampling)[0]
        gaps = [(logprobs(policy, long[0], c, sampling) - torch.tensor(c.logp_engine)).abs().max() for c in group]
        return max(gaps).item()

    assert gap() < LIMIT
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1 + 0.1 * torch.randn(parameter.shape, generator=noise))
    assert gap() > 10 * LIMIT, "these weights are not there yet"
    served.vllm.load_weights(policy.model.named_parameters(), version=7)
    served.local.load_weights(policy.model.named_parameters(), version=7)
    assert gap() < LIMIT
    assert {c.version for c in served.vllm.generate(long, sampling)[0]} == {7}


def test_a_turn_that_goes_on_computes_only_what_whole_blocks_do_not_hold(served: Served) -> None:
    policy, sampling = served.policy, Sampling(max_new_tokens=8)
    room = policy.model.config.max_position_embeddings - 24
    prompt = tuple(2 + i % 9 for i in range(min(300, room)))

    def run(request: Request) -> tuple[int, Completion, float]:
        """Tokens computed, the completion, and how far its log-probabilities are from the learner's."""
        before = served.vllm.tokens_run
        ((completion,),) = served.vllm.generate([request], sampling)
        gap = (logprobs(policy, request, completion, sampling) - torch.tensor(completion.logp_engine)).abs().max()
        return served.vllm.tokens_run - before, completion, gap.item()

    count, first, _ = run(Request(prompt, 1, seed=3, hold=True))
    assert count == len(prompt) + len(first.tokens) - 1
    history = (*prompt, *first.tokens)
    again, held = (Request((*history, 5, 6, 7), 1, seed=4, held=n) for n in (0, len(history)))
    whole, _, _ = run(again)
    assert whole > len(history)
    run(Request(prompt, 1, seed=3, hold=True))
    going_on, completion, gap = run(held)
    blocks = (len(history) - 1) // BLOCK * BLOCK  # the last token was drawn and not run
    assert going_on == len(held.tokens) - blocks + len(completion.tokens) - 1
    assert gap < LIMIT
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    served.vllm.load_weights(policy.model.named_parameters(), version=9)
    served.local.load_weights(policy.model.named_parameters(), version=9)
    loaded, _, gap = run(held)
    assert loaded > len(history), "nothing is held of older weights"
    assert gap < LIMIT


def test_weights_that_do_not_arrive_whole_change_nothing_and_say_why(served: Served) -> None:
    greedy = Sampling(max_new_tokens=8, temperature=0)
    before, version = served.vllm.generate(REQUESTS, greedy), served.vllm.version
    given = {name: parameter.detach() * 1.5 for name, parameter in served.policy.model.named_parameters()}
    name = list(given)[3]
    for wrong, words in (
        ({other: tensor for other, tensor in given.items() if other != name}, f"missing: {name}"),
        ({**given, "no.such": torch.zeros(2)}, "unexpected: no.such"),
        ({**given, name: torch.zeros(2)}, f"of another shape: {name} (2,) for "),
    ):
        with pytest.raises(RunError) as error:
            served.vllm.load_weights(wrong.items(), version=9)
        assert f"which keeps version {version}: {words}" in str(error.value)
        assert "\n" not in str(error.value)
    assert_same(served.vllm.generate(REQUESTS, greedy), before)
    served.vllm.load_weights(served.policy.model.named_parameters(), version)
    assert_same(served.vllm.generate(REQUESTS, greedy), before)


def test_what_the_local_engine_refuses_is_refused_in_the_same_words(served: Served) -> None:
    asked = [
        ([], Sampling(stop_ids=(99,))),
        ([Request((4,) * 600, 1, 0)], Sampling(max_new_tokens=9)),
        ([Request((99,), 1, 0)], Sampling(max_new_tokens=9)),
    ]
    for requests, sampling in asked:
        words = []
        for engine in (served.local, served.vllm):
            with pytest.raises(UsageError) as error:
                engine.generate(requests, sampling)
            words.append(str(error.value))
        assert words[0] == words[1]
    with pytest.raises(UsageError, match="does not return the ids that were left to draw from"):
        require_engine_support(served.vllm, Sampling(top_p=0.9))


def test_killed_while_it_decodes_it_answers_with_the_same_completions(served: Served) -> None:
    """Also after a load. What was told is not told again."""
    asked = [
        *(Request((4, 5, 6), samples=1, seed=limit, max_new_tokens=limit) for limit in range(1, 9)),
        Request((7, 8), samples=64, seed=9),
    ]
    # Long enough that it still decodes when the kill comes, also where the machine is busy.
    endless = Sampling(max_new_tokens=250, logit_bias={1: -100.0})
    expected = served.vllm.generate(asked, endless)
    pid, told, count = served.vllm.pid, [], random.Random(0).randint(1, 8)
    assert pid is not None
    served.notes.clear()

    def kill(done: Finished) -> None:
        told.append(done)
        if len(told) == count:
            os.kill(pid, signal.SIGKILL)

    assert_same(served.vllm.generate(asked, endless, kill), expected)
    assert served.vllm.pid != pid
    assert len({(done.request, done.sample) for done in told}) == len(told) == sum(map(len, expected))
    assert [note.split(":")[0] for note in served.notes] == ["engine       its process is lost"]


def test_broken_weights_are_said_to_be_and_leave_nothing_behind(served: Served) -> None:
    """vLLM's cache then holds NaN, which would reach completions of good weights: the engine samples no more."""
    broken = [(name, parameter.detach() * math.nan) for name, parameter in served.policy.model.named_parameters()]
    served.vllm.load_weights(broken, version=8)
    with pytest.raises(RunError, match=r"^the model's logits are NaN or infinite \(weights version 8\)"):
        served.vllm.generate(REQUESTS, SAMPLINGS["plain"])
    with pytest.raises(RunError, match=r"^the engine is closed$"):
        served.vllm.generate(REQUESTS, SAMPLINGS["plain"])


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        (True, "routes are not recorded with it here; set routing.replay = \"learner\", or take engine.name = 'local'"),
        (
            False,
            "on a CPU it keeps the experts that it was started with, whatever is loaded; take engine.name = 'local'",
        ),
    ],
)
def test_experts_are_refused_on_a_cpu(routes: bool, words: str, tmp_path: Path) -> None:
    policy = load_policy(save_moe(tmp_path / "policy"))
    with pytest.raises(UsageError, match=f"^engine.name = 'vllm': {re.escape(words)}$"):
        make_engine(policy=policy, settings=vllm_settings(), routes=routes)


@pytest.mark.parametrize(("precision", "most"), [("bf16", 0.2), ("fp16", 0.02)])
def test_in_half_the_length_it_is_near_and_says_so(precision: str, most: float, policy: Policy) -> None:
    engine = make_engine(policy=policy, settings=vllm_settings(precision=precision))
    try:
        assert engine.precision == precision
        completions = engine.generate(REQUESTS, SAMPLINGS["plain"])
        gaps = [
            (logprobs(policy, request, c, SAMPLINGS["plain"]) - torch.tensor(c.logp_engine)).abs().mean().item()
            for request, group in zip(REQUESTS, completions, strict=True)
            for c in group
        ]
        assert LIMIT < max(gaps) < most
    finally:
        engine.close()


def test_float16_refuses_weights_beyond_it_and_samples_on(policy: Policy) -> None:
    weights = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    beyond = {**weights, "model.norm.weight": torch.full_like(weights["model.norm.weight"], 7e4)}
    engine = make_engine(policy=policy, settings=vllm_settings(precision="fp16"))
    try:
        before = engine.generate(REQUESTS, SAMPLINGS["plain"])
        words = (
            r"^model\.norm\.weight has a number of size 70000, and float16 ends at 65,504: the engine keeps version 0; "
        )
        with pytest.raises(RunError, match=words):
            engine.load_weights(beyond.items(), 1)
        assert_same(engine.generate(REQUESTS, SAMPLINGS["plain"]), before)
    finally:
        engine.close()
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(7e4)
    with pytest.raises(
        UsageError, match=r"^engine\.precision = 'fp16': model\.norm\.weight has a number of size 70000"
    ):
        make_engine(policy=policy, settings=vllm_settings(precision="fp16"))


def test_an_environment_without_vllm_is_named_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"^engine.name = 'vllm': the interpreter python3 has no vLLM; make one: "):
        EngineSettings(name="vllm", python="python3").placed().require_place()
    vllm_settings().require_place()
    assert fields(vllm_settings().process) == fields("child")


def test_one_that_sleeps_wakes_with_the_next_weights_and_samples_nothing_before(tmp_path: Path) -> None:
    """vLLM's own sleep gives nothing back on a CPU; its scheduler and the tags of its memory are the real ones."""
    dense(tmp_path)
    program = Path(__file__).with_name("asleep.py")
    command = [PYTHON, str(program), str(tmp_path)]
    source = str(Path(groupwise.__file__).parents[1])
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=False)
    said = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines() if line.startswith(("before", "after")))
    words = [line for line in ran.stdout.splitlines() if line.startswith(("asleep", "refused", "version"))]
    assert words == [
        "asleep True",
        "refused the engine sleeps, and has no weights until the next load",
        "asleep False",
        "version 2",
    ], ran.stderr
    assert said["before"] == said["after"]


def test_what_is_asked_of_vllm_on_a_gpu_is_spelled_as_this_version_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of it is asked for here: a word that it does not know would be found on a GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=1 << 36))
    model, gpu = ModelFacts(frozenset(), 20, 64, {}, {}), torch.device("cuda:1")
    asked = [
        *_memory(None, 1, 2, gpu),
        *_memory(0.5, 1, 2, gpu),
        *_scheduling(model, on_cpu=False),
        "enable_sleep_mode",
    ]
    words = "from vllm.engine.arg_utils import EngineArgs as E; print(*E.__dataclass_fields__)"
    known = subprocess.run([PYTHON, "-c", words], capture_output=True, text=True, check=True).stdout.split()
    assert {"kv_cache_memory_bytes", "gpu_memory_utilization", "device_ids", "async_scheduling"} <= set(asked)
    assert not set(asked) - set(known)
