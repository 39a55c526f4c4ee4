"""`groupwise check`: each fault planted for real, its very line, and the exit code."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from groupwise import cli
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.tiny import CHATML, ByteSpec

DOCS = Path(__file__).parents[2] / "docs" / "check.md"

Check = Callable[..., tuple[int, list[str], str]]


def problem(number: int) -> dict[str, str]:
    """In the form of GSM8K."""
    has, total = 10 * number, 1000 + 10 * number
    return {
        "question": f"Ann has {has} apples and buys 1000 more. How many has she?",
        "answer": f"She has {has} + 1000 = <<{has}+1000={total}>>{total} apples.\n#### {total:,}",
    }


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Check:
    """(words, rows of both files) -> exit code, lines of output, the line of an error. A small gsm8k unless told."""
    monkeypatch.chdir(tmp_path)

    def call(
        *words: str,
        recipe: str = "gsm8k",
        train: Sequence[dict[str, Any]] = tuple(map(problem, range(40))),
        test: Sequence[dict[str, Any]] = tuple(map(problem, range(100, 120))),
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


def test_a_duplicated_test_row(check: Check) -> None:
    twice = problem(7) | {"question": problem(7)["question"].replace(" ", "  ")}
    code, lines, _ = check(test=[*map(problem, range(100, 120)), twice])
    assert code == 1
    assert faults(lines) == [
        "duplicates and leakage: 1 held-out problem is a training problem too (test.jsonl:21): not held out, but the "
        "files leak"
    ]


def test_a_row_that_comes_twice_in_its_file_is_a_note(check: Check) -> None:
    code, lines, _ = check(train=[*map(problem, range(40)), problem(3)])
    assert code == 0
    assert "  note  1 row repeats a problem of their own split (train.jsonl:41): the first is kept" in lines


def test_a_template_without_a_generation_prompt(check: Check, tmp_path: Path) -> None:
    bare = CHATML[: CHATML.index("{% if add_generation_prompt %}")]
    (tmp_path / "bare.jinja").write_text(bare)
    code, lines, _ = check("chat.template=bare.jinja")
    assert code == 1
    assert faults(lines) == [
        "model: chat template: a template without a generation prompt: after a question it writes '<|im_end|>\\n', but "
        "an answered one has '<|im_end|>\\n<|im_start|>assistant\\n' before the answer; add {% if "
        "add_generation_prompt %}...{% endif %} to it"
    ]


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


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return "own.py"


def test_an_off_by_one_reward(check: Check, own: str) -> None:
    code, lines, _ = check("rewards.task.weight=1.0", f"rewards.mine.use={own}:close")
    assert code == 1
    assert faults(lines) == [
        "rewards: mine: scores 1 on answers that are off by one (120 of 120 get as much as the gold ones): the reward "
        "cannot tell right from wrong"
    ]


def test_a_reward_that_wants_one_more(check: Check, own: str) -> None:
    code, lines, _ = check(f"rewards.mine.use={own}:one_more")
    assert code == 1
    assert faults(lines) == [
        "rewards: mine: scores 1 on answers that are off by one (gold answers + 1) and 0 on the right ones: the reward "
        "has them the wrong way round"
    ]


def test_rewards_of_one_recipe_are_told_apart(check: Check, own: str) -> None:
    names = ("right", "hashes", "short", "refuses_empty")
    code, lines, _ = check(*(f"rewards.{name}.use={own}:{name}" for name in names))
    assert code == 0
    means = "gold completions, 0.000 on gold completions of another problem, 0.000 on gold answers + 1"
    assert any(line.startswith(f"  ok    right: mean 1.000 on {means}") for line in lines)
    for name in names[1:]:
        (told,) = [line for line in lines if line.startswith(f"  note  {name}: mean")]
        assert told.endswith("it does not depend on correctness; as a reward for form that is right")
    (told,) = [line for line in lines if "could not be scored" in line]
    assert told.startswith("  note  refuses_empty: 60 of 360 completions could not be scored (all of them empty): 60")


def test_a_reward_that_hangs_is_counted_and_not_waited_for(check: Check, own: str) -> None:
    started = time.perf_counter()
    code, lines, _ = check(f"rewards.mine.use={own}:hang", "scoring.deadline=0.2")
    assert time.perf_counter() - started < 10
    assert code == 1
    (told,) = faults(lines)
    assert told.startswith("rewards: mine: 6 of 6 completions could not be scored: 6 timeout; ")


def test_a_pattern_that_hangs_is_counted_and_not_waited_for(check: Check) -> None:
    code, lines, _ = check("rewards.format.pattern='(.|.)*#### x'", "scoring.deadline=0.2")
    assert code == 1
    (told,) = faults(lines)
    assert re.match(r"rewards: format: \d of 6 completions could not be scored: \d timeout; ", told)


def test_a_reward_that_raises_is_counted_with_its_last_line(check: Check, own: str) -> None:
    code, lines, _ = check(f"rewards.mine.use={own}:breaks")
    assert code == 1
    assert faults(lines) == [
        "rewards: mine: 360 of 360 completions could not be scored: 360 exception; KeyError: 'quesiton'"
    ]


def test_a_reward_file_that_does_not_import(check: Check, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    code, lines, err = check("rewards.mine.use=broken.py:f")
    assert code == 2
    assert lines[0] == "plan"
    assert err == (
        f"groupwise: reward {tmp_path}/broken.py:f: it imports 'no_such_module', which is not installed and not in "
        f"{tmp_path}; a run keeps a copy of broken.py alone, so put what it needs into it, or into a package that is "
        "installed\n"
    )


def test_a_column_that_is_not_there(check: Check, tmp_path: Path) -> None:
    code, lines, err = check("task.prompt=questoin")
    assert (code, lines) == (2, [])
    there = "has no column 'questoin'; columns there: question, answer"
    assert err == f"groupwise: task.prompt = 'questoin': {tmp_path}/train.jsonl {there}\n"


def test_a_prompt_that_holds_the_answer(check: Check) -> None:
    code, lines, _ = check("task.prompt={question} {answer}")
    assert code == 1
    assert [re.sub(r"\(.*\)", "()", told) for told in faults(lines)] == [
        "problems: the prompt holds the answer in 60 of 60 problems (): look at task.prompt"
    ]


def test_prompts_longer_than_the_models_positions(check: Check) -> None:
    rows = [*map(problem, range(40)), {"question": "Ann counts. " * 200 + "How many?", "answer": "#### 3"}]
    code, lines, _ = check("max_prompt_tokens=0", train=rows, load=True)
    assert code == 1
    (told,) = faults(lines)
    assert re.fullmatch(
        r"lengths: sampling.max_new_tokens = 320: with a prompt of 25\d\d tokens that is beyond the model's 2048 "
        r"positions; leave longer prompts out with max_prompt_tokens",
        told,
    )


def test_gold_completions_that_would_be_cut_off(check: Check) -> None:
    code, lines, _ = check("sampling.max_new_tokens=20")
    assert code == 1
    assert faults(lines) == [
        "lengths: 60 of 60 gold completions are longer than sampling.max_new_tokens = 20, such answers would be cut off"
    ]


def test_no_prompt_fits_the_limit(check: Check) -> None:
    code, lines, _ = check("max_prompt_tokens=20")
    assert code == 1
    remedy = 'raise it, or set prompt_truncation = "left"'
    assert faults(lines) == [f"lengths: max_prompt_tokens = 20: every held-out prompt is longer; {remedy}"]
    assert any(line.startswith("  ok    prompts: ") for line in lines)


def test_a_model_that_is_not_there_hides_nothing_else(check: Check, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, lines, _ = check(model="empty")
    assert code == 1
    assert "  ok    task: 60 of 60 gold completions score 1" in lines
    assert faults(lines) == [
        "model: model = 'empty': no tokenizer (tokenizer.json) in it; save the tokenizer there too; so neither lengths "
        "nor rows can be shown"
    ]


def test_a_tokenizer_with_more_ids_than_the_model_has_embeddings(check: Check, tmp_path: Path) -> None:
    ByteSpec().build("", tmp_path / "small", seed=0)
    ByteSpec(chat=True).tokenizer("").save_pretrained(tmp_path / "small")
    code, lines, _ = check(model="small", load=True)
    assert code == 1
    assert faults(lines) == [
        "model: model = 'small': the tokenizer has 260 ids but the model only 258 embeddings; they do not belong "
        "together"
    ]


@pytest.mark.parametrize(("key", "value"), [("replay", "learner"), ("replay", "engine"), ("load_balance", 0.1)])
def test_a_dense_model_with_settings_for_experts(check: Check, key: str, value: object) -> None:
    """The line with which `train` refuses it; the rest of the model is looked at all the same."""
    code, lines, _ = check(f"routing.{key}={json.dumps(value)}", load=True)
    assert code == 1
    (told,) = faults(lines)
    assert told.startswith(f"model: routing.{key} = {value!r}: ")
    assert "it is dense, and there is nothing" in told
    assert any(line.startswith("  ok    learner = engine: pass") for line in lines)


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


@pytest.mark.parametrize("recipe", ["quickstart", "reasoning-gym", "rlhf"])
def test_the_recipes_that_need_no_file_have_no_fault(check: Check, recipe: str) -> None:
    code, lines, _ = check(recipe=recipe, load=recipe == "quickstart")
    assert (code, lines[-1]) == (0, "no faults found")


def blocks() -> list[list[str]]:
    """The page's indented blocks, line by line."""
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", DOCS.read_text(), re.MULTILINE)
    return [[line[4:] for line in block.strip("\n").split("\n")] for block in found]


def test_the_page_shows_what_the_command_prints(check: Check, own: str) -> None:
    """All but the plan, how far bfloat16 rounds on this processor, and bytes, of which each machine has its own."""

    def the_same_everywhere(line: str) -> str:
        line = re.sub(r"pass \(\S+, limit \S+\)", "pass", re.sub(r"[\d,]+ MB are free", "1 MB are free", line))
        return re.sub(r"(memory about) .* (at most, while \w+) .*", r"\1 \2", line)

    (shown,) = [block for block in blocks() if "duplicates and leakage" in block]
    test = [*map(problem, range(100, 119)), problem(7)]
    _, lines, _ = check("--rows", "1", f"rewards.mine.use={own}:close", test=test, load=True)
    assert list(map(the_same_everywhere, shown)) == list(map(the_same_everywhere, lines[lines.index("problems") :]))
