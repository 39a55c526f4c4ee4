"""`groupwise check`: each fault planted for real, its very line, and the exit code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from groupwise.cli import __main__ as cli
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.tiny import CHATML, ByteSpec

DOCS = Path(__file__).parents[2] / "docs" / "howto" / "check.md"

Check = Callable[..., tuple[int, list[str], str]]


def problem(number: int) -> dict[str, str]:
    """In the form of GSM8K."""
    has, total = 10 * number, 1000 + 10 * number
    return {
        "question": f"Ann has {has} apples and buys 1000 more. How many has she?",
        "answer": f"She has {has} + 1000 = <<{has}+1000={total}>>{total} apples.\n#### {total:,}",
    }


TRAIN, TEST = [*map(problem, range(40))], [*map(problem, range(100, 120))]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Check:
    """(words, rows of both files) -> exit code, lines of output, the line of an error. A small gsm8k unless told."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "bare.jinja").write_text(CHATML[: CHATML.index("{% if add_generation_prompt %}")])
    (tmp_path / "empty").mkdir()

    def call(
        *words: str,
        recipe: str = "gsm8k",
        train: Sequence[dict[str, Any]] = TRAIN,
        test: Sequence[dict[str, Any]] = TEST,
        model: str = "tiny-chat",
        load: bool = False,
    ) -> tuple[int, list[str], str]:
        told = ["evaluation.problems=8", "prompts_per_step=8", "scoring.workers=2", f"model={model}"]
        told.append(f"task.path={write(tmp_path / 'train.jsonl', train)}")
        told.append(f"task.heldout={write(tmp_path / 'test.jsonl', test)}")
        settings = [word for one in (told if recipe == "gsm8k" else []) for word in ("--set", one)]
        more = [word for one in words for word in (("--set", one) if "=" in one else (one,))]
        monkeypatch.setattr(sys, "argv", ["groupwise", "check", recipe, *settings, *more, *["--no-model"] * (not load)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        out, err = capfd.readouterr()
        assert not (tmp_path / "runs").exists(), "a check leaves no run behind"
        return int(leaving.value.code or 0), out.splitlines(), err

    return call


def faults(lines: Sequence[str]) -> list[str]:
    """What is listed at the end; each is also a line of its section."""
    (at,) = (i for i, line in enumerate(lines) if re.fullmatch(r"\d+ faults?", line))
    told = [line.strip() for line in lines[at + 1 :]]
    assert len(told) == int(lines[at].split()[0])
    assert all(f"  fault {what.partition(': ')[2]}" in lines for what in told)
    return told


def test_a_sound_recipe_has_no_fault_and_everything_is_shown(check: Check) -> None:
    code, lines, err = check(load=True)
    assert (code, err) == (0, "")
    assert lines[-1] == "no faults found"
    for title in ("plan", "problems", "duplicates and leakage", "rewards", "lengths", "rows", "model"):
        assert title in lines
    for line in (
        "  ok    40 problems to train on, 20 held out",
        "  ok    task: 60 of 60 gold completions score 1",
        "  ok    task: 60 of 60 gold answers alone score 1",
        "  ok    task: 0 of 60 gold answers + 1 score 1",
        "  ok    task: 0 of 60 gold completions of another problem score 1",
        "  ok    the tokenizer's 260 ids have embeddings, of which there are 260",
        "  ok    a completion ends with <eos>, <|im_end|>",
    ):
        assert line in lines
    parity = [line for line in lines if "learner = engine" in line]
    assert re.fullmatch(r"  ok    learner = engine: pass \(.*\) on 4 prompts x 2 completions", *parity)


def test_rows_show_the_ids_of_the_prompt_and_what_is_trained(check: Check) -> None:
    _, lines, _ = check("--rows", "1")
    at = lines.index("rows") + 1
    key, shown = lines[at], lines[at + 1 : lines.index("model") - 1]
    number = int(key.strip().split(":")[1]) - 1
    trained = f"She has {10 * number} + 1000 = {1000 + 10 * number} apples.\n#### {1000 + 10 * number:,}"
    assert shown == [
        "<|im_start|>user",
        problem(number)["question"],
        "Reason step by step, and end with a line that holds #### and the number alone.<|im_end|>",
        "<|im_start|>assistant",
        *f"«{trained}<|im_end|>»".split("\n"),
    ]
    counted = len("\n".join(shown[:4]).encode()) + 1 - len("<|im_start|><|im_end|><|im_start|>") + 3
    assert key == f"  train.jsonl:{number + 1}: {counted} prompt tokens, {len(trained) + 1} trained tokens"


ALONE = """
steps = 1
model = "tiny-bytes"
task = { name = "trl", path = "prompts.jsonl" }
algorithm.name = "grpo"
scoring.workers = 1
rewards.distinct.use = "REWARDS:distinct"
rewards.other.use = "REWARDS:letters"
"""


def test_prompts_alone_have_their_rewards_tried_and_show_nothing_that_is_not_there(
    check: Check, tmp_path: Path
) -> None:
    write(tmp_path / "prompts.jsonl", [{"prompt": f"Say {i}", "kind": None} for i in range(30)])
    rewards = Path(__file__).parent / "rewards_without_answers.py"
    (tmp_path / "alone.toml").write_text(ALONE.replace("REWARDS", str(rewards)))
    code, lines, _ = check(recipe="alone.toml")
    assert code == 0
    assert "  note  no problem shows a gold completion, so rewards are tried on prompts and on empty texts" in lines
    spread = r"  ok    distinct: mean 0\.000 on empty completions, [56]\.\d+ on prompts in the place of completions"
    assert len([line for line in lines if re.fullmatch(spread, line)]) == 1
    assert "  note  other: returns None for all 60 completions tried, so it has no vote on them" in lines
    at = lines.index("rows") + 1
    assert re.fullmatch(r"  prompts\.jsonl:\d+: [56] prompt tokens", lines[at])
    assert not any("«" in line for line in lines)


def test_swapped_columns_of_a_marked_answer_are_one_line_that_names_them(check: Check) -> None:
    code, _, err = check("task.prompt=answer", "task.answer=question", "task.solution=answer")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "task.answer = 'question': 60 gold answers that 'math' cannot read (" in err


@pytest.mark.parametrize("kind", ["math", "exact"])
def test_swapped_columns_of_plain_answers(check: Check, kind: str) -> None:
    """Either check finds a text equal to itself: the answers' look must tell."""
    rows = [{"question": f"What is {i} + 1, or {i} + 2 - 1?", "answer": f"{i + 1} it is"} for i in range(60)]
    keys = ("task.prompt=answer", "task.answer=question", "task.answer_after=", "task.solution=", f"task.check={kind}")
    code, lines, _ = check(*keys, train=rows[:40], test=rows[40:])
    told = faults(lines)
    assert code == 1
    look = "100% of the gold answers are questions and the prompts are not: task.prompt and task.answer look swapped"
    assert f"problems: {look}" in told
    assert not any("the reward does not recognise the data's own answers" in t for t in told)


def test_a_row_that_comes_twice_in_its_file_is_a_note(check: Check) -> None:
    code, lines, _ = check(train=[*TRAIN, problem(3)])
    assert code == 0
    assert "  note  1 row repeats a problem of their own split (train.jsonl:41): the first is kept" in lines


OWN = """
import re, time

def last(completion):
    found = re.findall(r"[\\d,]+", completion)
    return int(found[-1].replace(",", "")) if found and found[-1].strip(",") else -99

def gold(sample):
    return int(sample.answer.replace(",", ""))

def close(sample, completion):
    return float(abs(last(completion) - gold(sample)) <= 1)

def one_more(sample, completion):
    return float(last(completion) == gold(sample) + 1)

def right(sample, completion):
    return float(last(completion) == gold(sample))

def hashes(sample, completion):
    return float("####" in completion)

def short(sample, completion):
    return -len(completion) / 100

def hang(sample, completion):
    while True:
        time.sleep(1)

def breaks(sample, completion):
    raise KeyError(sample.extra["quesiton"])

def refuses_empty(sample, completion):
    return float(len(completion.split()[-1]) > 0)
"""


def test_rewards_of_one_recipe_are_told_apart(check: Check) -> None:
    names = ("right", "hashes", "short", "refuses_empty")
    code, lines, _ = check(*(f"rewards.{name}.use=own.py:{name}" for name in names))
    assert code == 0
    means = "gold completions, 0.000 on gold completions of another problem, 0.000 on gold answers + 1"
    assert any(line.startswith(f"  ok    right: mean 1.000 on {means}") for line in lines)
    for name in names[1:]:
        (told,) = [line for line in lines if line.startswith(f"  note  {name}: mean")]
        assert told.endswith("it does not depend on correctness; as a reward for form that is right")
    (told,) = [line for line in lines if "could not be scored" in line]
    assert told.startswith("  note  refuses_empty: 60 of 360 completions could not be scored (all of them empty): 60")


TWICE = {**problem(7), "question": problem(7)["question"].replace(" ", "  ")}
LONG = {"question": "Ann counts. " * 200 + "How many?", "answer": "#### 3"}

#: What is asked for, the one fault that is found, and the beginning of a line that is there all the same.
FAULTS: dict[str, tuple[tuple[str, ...], dict[str, Any], str, str]] = {
    "a held-out row that is trained on": (
        (),
        {"test": [*TEST, TWICE]},
        r"duplicates and leakage: 1 held-out problem is a training problem too \(test\.jsonl:21\): not held out",
        "",
    ),
    "a template without a generation prompt": (
        ("chat.template=bare.jinja",),
        {},
        r"model: chat template: .*it writes '<\|im_end\|>\\n', but an answered one has .*; add {% if add_generation_",
        "",
    ),
    "an off-by-one reward": (
        ("rewards.task.weight=1.0", "rewards.mine.use=own.py:close"),
        {},
        r"rewards: mine: scores 1 on answers that are off by one \(120 of 120 get as much as the gold ones\): ",
        "",
    ),
    "a reward that wants one more": (
        ("rewards.mine.use=own.py:one_more",),
        {},
        r"rewards: mine: scores 1 on answers that are off by one \(gold answers \+ 1\) and 0 on the right ones: ",
        "",
    ),
    "a reward that hangs, which is not waited for": (
        ("rewards.mine.use=own.py:hang", "scoring.deadline=0.2"),
        {},
        "rewards: mine: 6 of 6 completions could not be scored: 6 timeout; ",
        "",
    ),
    "a reward that raises": (
        ("rewards.mine.use=own.py:breaks",),
        {},
        "rewards: mine: 360 of 360 completions could not be scored: 360 exception; KeyError: 'quesiton'$",
        "",
    ),
    "a prompt that holds the answer": (
        ("task.prompt={question} {answer}",),
        {},
        r"problems: the prompt holds the answer in 60 of 60 problems \(.*\): look at task.prompt$",
        "",
    ),
    "a prompt longer than the model's positions": (
        ("max_prompt_tokens=0",),
        {"train": [*TRAIN, LONG], "load": True},
        r"lengths: sampling.max_new_tokens = 320: with a prompt of 25\d\d tokens that is beyond the model's 2048 ",
        "",
    ),
    "gold completions that would be cut off": (
        ("sampling.max_new_tokens=20",),
        {},
        "lengths: 60 of 60 gold completions are longer than sampling.max_new_tokens = 20, ",
        "",
    ),
    "no prompt that fits the limit": (
        ("max_prompt_tokens=20",),
        {},
        "lengths: max_prompt_tokens = 20: every held-out prompt is longer; raise it, or set prompt_truncation",
        "  ok    prompts: ",
    ),
    "a model that is not there": (
        (),
        {"model": "empty"},
        r"model: model = 'empty': no tokenizer \(tokenizer.json\) .*; so neither lengths nor rows can be shown$",
        "  ok    task: 60 of 60 gold completions score 1",
    ),
    "a dense model with settings for experts": (
        ('routing.replay="learner"',),
        {"load": True},
        "model: routing.replay = 'learner': .*it is dense, and there is nothing",
        "  ok    learner = engine: pass",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_and_hides_nothing_else(check: Check, name: str) -> None:
    words, given, told, beside = FAULTS[name]
    code, lines, _ = check(*words, **given)
    (fault,) = faults(lines)
    assert code == 1
    assert re.match(told, fault)
    assert any(line.startswith(beside) for line in lines)


def test_a_reward_file_that_does_not_import(check: Check, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    code, lines, err = check("rewards.mine.use=broken.py:f")
    assert code == 2
    assert lines[0] == "plan"
    assert err.startswith(
        f"groupwise: reward {tmp_path}/broken.py:f: it imports 'no_such_module', which is not installed"
    )
    assert len(err.splitlines()) == 1


def test_a_column_that_is_not_there(check: Check, tmp_path: Path) -> None:
    code, lines, err = check("task.prompt=questoin")
    assert (code, lines) == (2, [])
    there = "has no column 'questoin'; columns there: question, answer"
    assert err == f"groupwise: task.prompt = 'questoin': {tmp_path}/train.jsonl {there}\n"


def test_a_tokenizer_with_more_ids_than_the_model_has_embeddings(check: Check, tmp_path: Path) -> None:
    ByteSpec().build("", tmp_path / "small", seed=0)
    ByteSpec(chat=True).tokenizer("").save_pretrained(tmp_path / "small")
    code, lines, _ = check(model="small", load=True)
    assert code == 1
    assert faults(lines) == [
        "model: model = 'small': the tokenizer has 260 ids but the model only 258 embeddings; they do not belong "
        "together"
    ]


@pytest.mark.parametrize("replay", ["none", "learner", "engine"])
def test_a_mixture_of_experts_is_asked_with_the_runs_own_replay(check: Check, replay: str) -> None:
    code, lines, _ = check(f'routing.replay="{replay}"', recipe="quickstart-moe", load=True)
    assert (code, lines[-1]) == (0, "no faults found")
    assert "  ok    4 layers, 2 of 8 experts a token" in lines
    assert any(line.startswith("  ok    learner = engine: pass") for line in lines)


def test_an_engine_that_does_not_say_which_experts_it_chose(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    never = property(lambda engine: False, lambda engine, value: None)
    monkeypatch.setattr(LocalEngine, "routes", never, raising=False)
    code, lines, _ = check('routing.replay="engine"', recipe="quickstart-moe", load=True)
    assert code == 1
    (told,) = faults(lines)
    assert told.startswith("model: routing.replay = 'engine': LocalEngine does not return the experts it chose")


@pytest.mark.parametrize("recipe", ["quickstart", pytest.param("reasoning-gym", marks=pytest.mark.slow), "rlhf"])
def test_the_recipes_that_need_no_file_have_no_fault(check: Check, recipe: str) -> None:
    code, lines, _ = check(recipe=recipe, load=recipe == "quickstart")
    assert (code, lines[-1]) == (0, "no faults found")


def blocks() -> list[list[str]]:
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", DOCS.read_text(), re.MULTILINE)
    return [[line[4:] for line in block.strip("\n").split("\n")] for block in found]


def test_the_page_shows_what_the_command_prints(check: Check) -> None:
    """All but the plan, how far bfloat16 rounds on this processor, and bytes, of which each machine has its own."""

    def the_same_everywhere(line: str) -> str:
        line = re.sub(r"pass \(\S+, limit \S+\)", "pass", re.sub(r"[\d,]+ MB are free", "1 MB are free", line))
        return re.sub(r"(memory about) .* (at most, while \w+) .*", r"\1 \2", line)

    (shown,) = [block for block in blocks() if "duplicates and leakage" in block]
    test = [*TEST[:-1], problem(7)]
    _, lines, _ = check("--rows", "1", "rewards.mine.use=own.py:close", test=test, load=True)
    assert list(map(the_same_everywhere, shown)) == list(map(the_same_everywhere, lines[lines.index("problems") :]))
