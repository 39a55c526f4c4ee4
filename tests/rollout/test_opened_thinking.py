"""Thinking that the prompt opens and a completion never closes has no answer, whatever check the task has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from groupwise.core.engine import Finished
from groupwise.core.records import Completion, Prompt
from groupwise.core.samples import TASK, Attempt
from groupwise.core.stream import Cohort
from groupwise.core.task import Demonstration
from groupwise.models.chat.later_turns import thinking_of
from groupwise.models.chat.prompts import Chat, ChatSettings
from groupwise.models.tiny import CHATML
from groupwise.rewards.functions.form import TaskScore
from groupwise.rewards.pool.pool import Pool
from groupwise.rollout.scoring import Scorer, ScoringRound
from groupwise.tasks.make import task
from groupwise.training.start.initial_policy import TINY
from groupwise.training.start.warm_start import encoded

ANSWERS = {"numeric": "5", "math": "x+5", "choice": "B", "exact": "Paris"}
THINKING = "<think>\n"


def data(folder: Path, check: str):
    rows = [{"prompt": f"question {number}", "answer": ANSWERS[check]} for number in range(2)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return task("data", {"path": str(path), "check": check, "heldout_share": 0.0, "repeats": True})


@pytest.mark.parametrize("check", ["numeric", "choice", "exact"])
def test_unfinished_thinking_scores_0(tmp_path: Path, check: str) -> None:
    named, answer = data(tmp_path, check), ANSWERS[check]
    sample = named.samples("train")[0]
    texts = (answer, f"It is {answer}. The answer is {answer}", f"hm</think>{answer}", f"hm</think>{answer}<think>or")
    attempts = [Attempt(sample, text) for text in texts]

    def scores(thinking: str) -> list[float]:
        scorer = Scorer(named, str, thinking=thinking)
        return [result.value for result in scorer.beside().quick_results(attempts, [None] * len(attempts))[TASK]]

    assert scores(THINKING) == [0.0, 0.0, 1.0, 0.0]
    assert scores("") == [1.0, 1.0, 1.0, 0.0]


def test_unfinished_thinking_scores_0_in_the_processes_that_score(tmp_path: Path) -> None:
    named = data(tmp_path, "math")
    prompt = Prompt(named.samples("train")[0], (3,))
    texts = {(1,): r"\boxed{5+x}", (2,): r"hm</think>\boxed{5+x}"}
    with Pool({TASK: TaskScore(named)}) as pool:
        scoring = ScoringRound(Scorer(named, texts.__getitem__, pool=pool, thinking=THINKING), [prompt])
        completions = tuple(Completion.of_one_turn(ids, (-0.5,), "stop", version=0) for ids in texts)
        for place, ids in enumerate(texts):
            scoring.begin(Finished(0, place, ids, "stop"))
        (scored,) = scoring.scored(Cohort((prompt,), (0,), (completions,)))
    assert [completion.score for completion in scored] == [0.0, 1.0]
    assert [completion.text for completion in scored] == list(texts.values())


def test_what_a_prompt_opens_is_found_in_its_template_and_in_chat_open(tmp_path: Path) -> None:
    tokenizer = TINY["tiny-chat"].tokenizer("")
    template = tmp_path / "r1.jinja"
    template.write_text(CHATML.replace("assistant\\n'", "assistant\\n<think>\\n'"))
    off = tmp_path / "off.jinja"
    off.write_text(CHATML.replace("assistant\\n'", "assistant\\n<think>\\n\\n</think>\\n'"))
    assert thinking_of(Chat(tokenizer, ChatSettings(template=str(template)))) == THINKING
    assert thinking_of(Chat(tokenizer, ChatSettings(open=THINKING))) == THINKING
    assert thinking_of(Chat(tokenizer, ChatSettings(open="<think></think>"))) == ""
    assert thinking_of(Chat(tokenizer, ChatSettings(template=str(off)))) == ""
    assert thinking_of(Chat(tokenizer)) == ""


@pytest.mark.parametrize("check", ["numeric", "math", "choice", "exact"])
@pytest.mark.parametrize("prompt", ["Which?\n<think>", "Which? Assistant: <think>\n", "A: <think> Let me see. "])
def test_thinking_that_the_rows_own_prompt_opens_has_no_answer(tmp_path: Path, check: str, prompt: str) -> None:
    path, answer = tmp_path / "rows.jsonl", ANSWERS[check]
    rows = [{"prompt": prompt, "answer": answer}, {"prompt": "Think in <think> first.", "answer": answer}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = task("data", {"path": str(path), "check": check, "heldout_share": 0.0, "repeats": True})
    opened, plain = sorted(named.samples("train"), key=lambda sample: "first" in sample.prompt)
    assert [named.score(opened, text) for text in (answer, f"hm</think>{answer}", named.gold(opened))] == [
        0.0,
        1.0,
        1.0,
    ]
    assert named.score(plain, answer) == 1.0

    def scored(turns: bool) -> float:
        attempt = Attempt(opened, answer)
        seen = Scorer(named, str, turns=turns).beside().for_task(attempt)
        return named.score(seen.sample, seen.completion)

    assert (scored(turns=False), scored(turns=True)) == (0.0, 1.0)  # in a turn of the user's it opens nothing


#: What opens thinking: a template's generation prompt, chat.open, a row's own prompt, and its prefill.
OPENED: dict[str, tuple[str, str, str]] = {
    "template": ("assistant\\n<think>\\n", "", ""),
    "chat.open": ("assistant\\n", THINKING, ""),
    "prefill": ("assistant\\n", "", "<think> Well,"),
    "plain prompt": ("", "", ""),
}
SOLUTIONS = ("so it is 5", "<think>\n2 + 3\n</think>\nso it is 5", "2 + 3</think>so it is 5")


@pytest.mark.parametrize("solution", SOLUTIONS)
@pytest.mark.parametrize("how", OPENED)
def test_a_demonstration_behind_opened_thinking_is_one_that_its_own_task_finds_right(
    tmp_path: Path, how: str, solution: str
) -> None:
    generation, open, prefill = OPENED[how]
    (tmp_path / "r1.jinja").write_text(CHATML.replace("assistant\\n'", f"{generation}'"))
    template = str(tmp_path / "r1.jinja") if generation else "none"
    asked = [{"role": "user", "content": "2 + 3?"}, *([{"role": "assistant", "content": prefill}] if prefill else [])]
    row = {"prompt": asked if generation else "2 + 3? <think>", "answer": "5", "solution": solution}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    keys = {"path": str(tmp_path / "rows.jsonl"), "check": "numeric", "solution": "solution", "heldout_share": 0.0}
    named = task("data", keys)
    chat = Chat(TINY["tiny-chat"].tokenizer(""), ChatSettings(template=template, open=open))
    [(ids, start)] = encoded(chat, named.demonstrations(1, seed=0))
    prompt, completion = chat.tokenizer.decode(ids[:start]), chat.tokenizer.decode(ids[start:-1])
    assert (prompt + completion).count("<think>") == 1 == (prompt + completion).count("</think>")
    scorer = Scorer(named, str, thinking=thinking_of(chat), turns=chat.template is not None).beside()
    attempt = Attempt(named.samples("train")[0], completion)
    assert scorer.quick_results([attempt], [None])[TASK][0].value == 1.0


def test_a_demonstration_behind_no_thinking_is_what_its_row_says(tmp_path: Path) -> None:
    chat = Chat(TINY["tiny-chat"].tokenizer(""))
    for prompt in ("2 + 3?", "2 + 3? <think>"):  # in a turn of the user's it opens nothing
        [(ids, start)] = encoded(chat, [Demonstration(prompt, "it is 5")])
        assert chat.tokenizer.decode(ids[start:-1]) == "it is 5"
