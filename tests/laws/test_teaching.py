"""Laws of teachers: prompts of their own, several by source, and log-probabilities that are each model's own."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from groupwise.core.collate import collate
from groupwise.core.records import Batch, Completion, Group, Prompt, Span
from groupwise.core.samples import Sample
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import Policy, load_policy
from groupwise.training.learner import Learner, LearnerSettings
from groupwise.training.teachers.prompts import TeacherPrompt
from groupwise.training.teachers.teaching import Teaching, held, reference_of
from tests.refusals import refused
from tests.runs.tiny_runs import tiny_policy

#: Two problems of other sources, one with a completion of an environment's tokens and one that does not vote.
SAMPLES = (Sample("a", "1+2=", "3", source="sums"), Sample("b", "3-1=", "2", {"hint": "1+1"}, source="differences"))
TEXTS = (("3", "4+4"), ("2=2", "21"))
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Policy]:
    place = tmp_path_factory.mktemp("policies")
    return [load_policy(tiny_policy(place / str(seed), seed, layers=seed + 1)) for seed in range(3)]


def made(policy: Policy) -> list[Group]:
    chat = Chat(policy.tokenizer)

    def completion(text: str, score: float) -> Completion:
        ids = tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
        n = len(ids)
        spans = (Span(0, n, True, 0),) if n < 3 else (Span(0, 1, True, 0), Span(1, 2, False, 0), Span(2, n, True, 0))
        logp = tuple(0.0 if n >= 3 and i == 1 else -1.0 for i in range(n))
        return Completion(ids, logp, "stop", spans, text=text, score=score, logged=(("judge.reason", "0"),) * (n < 3))

    return [
        Group(Prompt(s, chat.encode(s)), tuple(completion(t, float(i)) for i, t in enumerate(texts)))
        for s, texts in zip(SAMPLES, TEXTS, strict=True)
    ]


def prompt_of(policy: Policy, template: str) -> TeacherPrompt:
    return TeacherPrompt(template, Chat(policy.tokenizer).encode, policy.decode)


def learner_of(policies: list[Policy]) -> Learner:
    models = [copy.deepcopy(policy.model) for policy in policies]
    return Learner(models[0], models[1], LearnerSettings(), TEMPERATURE, 1, teachers=models[2:])


def teaching(learner: Learner, policy: Policy, template: str = "", by_source: Any = (), **changes: Any) -> Teaching:
    others: dict[str, Any] = {"positions": 64, "pad": policy.pad, "masks_truncated": False, "say": pytest.fail}
    prompt = prompt_of(policy, template) if template else None
    return Teaching(reference_of(learner), dict(by_source), prompt, **{**others, **changes})


def brute(model: nn.Module, prompt: tuple[int, ...], completion: Completion) -> list[float]:
    """Log-probabilities of the policy's own tokens, of one forward of the row by itself."""
    ids = torch.tensor([prompt + completion.tokens])
    with torch.no_grad():
        logp = (model(ids).logits[0].double() / TEMPERATURE).log_softmax(-1)
    own = [i for span in completion.spans if span.own for i in range(span.start, span.stop)]
    return [float(logp[len(prompt) + i - 1, completion.tokens[i]]) for i in own]


def rows_of(logp: Tensor, batch: Batch) -> list[Tensor]:
    assert not logp[~batch.mask].any()
    return [row[inside].double() for row, inside in zip(logp, batch.mask, strict=True)]


TEMPLATES = [
    ("{answer}={prompt}", [["3=1+2="] * 2, ["2=3-1="] * 2]),
    ("{hint}={prompt}{prompt}", [["=1+2=1+2="] * 2, ["1+1=3-1=3-1="] * 2]),
    ("{completion}{prompt}", [["31+2=", "4+41+2="], ["2=23-1=", "213-1="]]),
    ("{feedback}={prompt}", [["0=1+2=", "+=1+2="], ["==3-1=", "0=3-1="]]),
    ("{best}{prompt}", [["4+41+2=", "1+2="], ["213-1=", "3-1="]]),  # the best has no other best: its own prompt
]


@pytest.mark.parametrize(("template", "texts"), TEMPLATES)
def test_a_completion_has_its_log_probabilities_behind_the_teachers_prompt(policies, template: str, texts):
    """By one forward a row of the model alone; the environment's tokens have none, and stand where they stood."""
    policy, learner, groups = policies[0], learner_of(policies), made(policies[0])
    batch = collate(groups, policy.pad)
    found = rows_of(teaching(learner, policy, template).begin(groups, batch)(), batch)
    pairs = [
        (t, c) for group, own in zip(groups, texts, strict=True) for t, c in zip(own, group.completions, strict=True)
    ]
    for row, (text, completion) in zip(found, pairs, strict=True):
        ids = Chat(policy.tokenizer).ids(text)
        torch.testing.assert_close(
            row, torch.tensor(brute(learner.reference, ids, completion)).double(), rtol=0, atol=1e-6
        )


def test_a_template_of_the_prompt_alone_gives_the_bits_of_none(policies):
    policy, learner, groups = policies[0], learner_of(policies), made(policies[0])
    batch = collate(groups, policy.pad)
    plain = learner.annotate(batch, old=False, ref=True).need("logp_ref")
    assert torch.equal(teaching(learner, policy, "{prompt}").begin(groups, batch)(), plain)
    assert torch.equal(teaching(learner, policy).begin(groups, batch)(), plain)


@pytest.mark.parametrize("template", ["", "{answer}={prompt}"])
def test_two_teachers_of_a_mixed_batch_are_each_on_its_own_rows(policies, template: str):
    policy, learner, groups = policies[0], learner_of(policies), made(policies[0])
    other = copy.deepcopy(policies[2].model).eval()
    batch = collate(groups, policy.pad)
    both = teaching(learner, policy, template, {"differences": held(learner, other)}).begin(groups, batch)()
    for group, model in zip(groups, (learner.reference, other), strict=True):
        rows = batch.group == groups.index(group)
        alone = collate([group], policy.pad)
        one = teaching(learner, policy, template, {group.prompt.sample.source: held(learner, model)}).begin(
            [group], alone
        )()
        assert torch.equal(both[rows][batch.mask[rows]], one[alone.mask])
    assert both.any(1).all()


def test_a_row_beyond_the_teachers_positions_keeps_the_policys_prompt_and_that_is_said(policies):
    policy, learner, groups, said = policies[0], learner_of(policies), made(policies[0]), []
    batch = collate(groups, policy.pad)
    longest = max(len(g.prompt.tokens) + len(c.tokens) for g in groups for c in g.completions)
    short = teaching(learner, policy, "{answer}={prompt}", positions=longest, say=said.append).begin(groups, batch)()
    plain = learner.annotate(batch, old=False, ref=True).need("logp_ref")
    assert [torch.equal(a, b) for a, b in zip(short, plain, strict=True)] == [False, True, True, True]
    assert said == [
        f"3 of 4 completions are too long for reference.template: with its prompt they exceed the teacher's {longest} "
        "positions, and it reads them behind the policy's own"
    ]


def test_the_template_stands_in_the_last_user_message_of_a_conversation(policies):
    """What was said before, and an answer that was begun, stay; braces of a message are no places."""
    said = ("system", "0"), ("user", "1"), ("assistant", "2"), ("user", "{answer}"), ("assistant", "9")
    messages = tuple({"role": role, "content": content} for role, content in said)
    sample = Sample("c", "{answer}", "7", messages=messages)
    seen: list[Sample] = []
    encode = lambda s: (seen.append(s), (1,))[1]  # noqa: E731
    group = dataclasses.replace(made(policies[0])[0], prompt=Prompt(sample, (5,)))
    assert TeacherPrompt("{prompt} is {answer}", encode, policies[0].decode)(group, group.completions[0]) == (1,)
    assert seen[0].messages == (*messages[:3], {"role": "user", "content": "{answer} is 7"}, messages[4])


def test_places_that_nothing_fills_in_are_refused_in_one_line(policies):
    for template, words in (
        ("{anwser}", "there is no place {anwser}; did you mean 'answer'?"),
        ("no place", "it names no place, so that every problem would be the same; name {prompt}"),
    ):
        with refused(words):
            prompt_of(policies[0], template).require_places(SAMPLES)
    bare = [dataclasses.replace(sample, answer="") for sample in SAMPLES]
    with refused("{answer} is named, and the task has no answers; take it out"):
        prompt_of(policies[0], "{prompt}{answer}").require_places(bare)
    prompt_of(policies[0], "{prompt}{hint}").require_places(SAMPLES)
