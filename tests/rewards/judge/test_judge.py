"""A judge scores by a rubric: what it says is a number by the schema or a fault by name; nothing is asked twice."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.records import Completion
from groupwise.core.samples import Attempt, Cause, Sample, ScoreResult
from groupwise.rewards.judge.answer import Unjudged, read_answer
from groupwise.rewards.judge.judge import Judge
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.work import Limits
from groupwise.rollout.scoring import RewardWeights, Scorer
from groupwise.tasks.arithmetic import Arithmetic
from tests.rewards.judge.server import BAD, CRITERIA, Reply, answer_of, chat, judge_server, scores

SAMPLE = Sample("one", "What is 2 * 3?", "6")


def judge_at(url: str, place: Path, **settings: Any) -> Judge:
    return Judge(**{"url": url, "model": "m", "criteria": CRITERIA, "cache": str(place / "cache"), **settings})


def attempts(*completions: str) -> list[Attempt]:
    return [Attempt(SAMPLE, completion) for completion in completions]


def scored(judge: Judge, work: list[Attempt], workers: int = 1, seconds: float = 10.0) -> list[ScoreResult]:
    with Pool({"judge": judge}, Limits(workers=workers, seconds=seconds)) as pool:
        return pool.wait(pool.submit("judge", work))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, ScoreResult], list[float], int]]:
    """Every bad answer twice, by name, and two good ones before and after; how many requests all took."""
    with judge_server(
        lambda body, number: BAD[answer_of(body)][0] if answer_of(body) in BAD else scores(5, 5)
    ) as served:
        judge = judge_at(served.url, tmp_path_factory.mktemp("wrong"), retries=0)
        work = attempts("good", *BAD, "well")
        once, again = scored(judge, work), scored(judge, work)
        assert [one.cause for one in once] == [one.cause for one in again]
        yield dict(zip(BAD, once[1:-1], strict=True)), [once[0].value, once[-1].value], len(served.bodies)


def test_a_completion_of_64_waits_no_three_seconds_and_a_second_epoch_sends_no_request(tmp_path: Path) -> None:
    def reply(body: dict[str, Any], number: int) -> Reply:
        return (500, b"") if number % 20 == 7 else scores(float(answer_of(body)) % 11, 10)

    work = attempts(*map(str, range(64)))
    with judge_server(reply, delay=0.3) as served:
        judge = judge_at(served.url, tmp_path)
        with Pool({"judge": judge}, Limits(workers=2)) as pool:
            pool.check([SAMPLE])
            assert len(served.bodies) == 1, "one request before the run"
            began = time.monotonic()
            tickets = [ticket for one in work for ticket in pool.submit("judge", [one])]
            results = pool.wait(tickets)
            waited = time.monotonic() - began
        assert waited < 3.0
        assert 16 < served.most <= judge.at_once == 32, "at_once is of all processes together"
        asked = len(served.bodies)
        assert asked == 1 + 64 + sum(number % 20 == 7 for number in range(asked))
        second = scored(judge, work, workers=2)
        assert len(served.bodies) == asked
    for k, one in enumerate(results):
        assert one.value == pytest.approx((k % 11 + 3 * 10) / 4 / 10), "in order, weighted, from 0 to 1"
        assert (one.columns["clear"], one.columns["hits"], one.columns["tokens"]) == (k % 11, 0, 50)
        assert 0.3 <= float(one.columns["seconds"] or 0) < 3
    assert sum(int(one.columns["requests"] or 0) for one in results) == asked - 1
    assert [one.value for one in second] == [one.value for one in results]
    assert all(one.columns["hits"] == 1 and one.columns["requests"] == 0 for one in second)
    assert all(one.columns["reason"] == "As it is." for one in (*results, *second))
    assert "seconds" not in second[0].columns, "nothing was waited for"


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_a_fault_by_name_and_no_zero(name: str, wrong: tuple[Any, ...]) -> None:
    result: ScoreResult = wrong[0][name]
    assert (result.cause, result.votes) == (BAD[name][1], False)
    assert result.detail
    assert "\n" not in result.detail


def test_a_bad_answer_costs_no_other_and_is_asked_again_while_a_good_one_is_not(wrong: tuple[Any, ...]) -> None:
    faults, good, requests = wrong
    assert good == [0.5, 0.5]
    assert requests == 2 * len(BAD) + 2
    assert len({one.cause for one in faults.values()}) >= 10
    assert faults["prose"].columns["reason"] == "It is quite good.", "what was said is kept"


def test_faults_are_shown_by_name_and_counted_as_those_of_a_user(wrong: tuple[Any, ...]) -> None:
    task: Any = Arithmetic()
    scorer = Scorer(task, lambda ids: "", RewardWeights({"judge": 1.0}))
    for result in wrong[0].values():
        scorer.note(SAMPLE, {"judge": result}, Completion.of_one_turn((5,), (-0.5,), "stop", version=0))
    shown = scorer.take_unshown()
    assert [words.partition(" in judge: ")[0] for words in shown] == list(dict.fromkeys(c for _, c in BAD.values()))


def test_words_around_one_object_are_accepted() -> None:
    for text in ('Well:\n```json\n{"clear": 7}\n```', '{"clear": 7} That is all.', '[{"clear": 7}]'):
        assert read_answer(text, ["clear"], 10.0).scores == {"clear": 7.0}
    with pytest.raises(Unjudged, match="answered"):
        read_answer('{"clear": 7} {"clear": 7}', ["clear"], 10.0)


def test_samples_are_averaged_and_one_bad_judgement_is_a_fault(tmp_path: Path) -> None:
    def reply(body: dict[str, Any], number: int) -> Reply:
        seed = body["seed"]
        return chat("no") if answer_of(body) == "bad" and seed == 2 else scores(seed, seed, f"Seed {seed}.")

    with judge_server(reply) as served:
        judge = judge_at(served.url, tmp_path, samples=3, request={"temperature": 0.7})
        good, bad = scored(judge, attempts("good", "bad"))
        assert [body["temperature"] for body in served.bodies] == [0.7] * 6
    assert good.value == pytest.approx(0.1)
    assert good.columns["reason"] == "Seed 0.\n\nSeed 1.\n\nSeed 2."
    assert (bad.cause, bad.columns["requests"]) == (Cause.NO_JSON, 3)


def test_equal_completions_are_asked_of_once(tmp_path: Path) -> None:
    with judge_server(lambda body, number: scores(number, number), delay=0.1) as served:
        results = scored(judge_at(served.url, tmp_path), attempts(*["same"] * 8))
        assert len(served.bodies) == 1
    assert {one.value for one in results} == {0.0}
    assert sorted(one.columns["hits"] for one in results) == [0] + [1] * 7  # type: ignore[type-var]


def test_what_changes_the_question_is_asked_anew_and_a_spoilt_file_of_the_cache_too(tmp_path: Path) -> None:
    with judge_server(lambda body, number: scores(5, 5)) as served:
        judge = judge_at(served.url, tmp_path)
        others = [
            dataclasses.replace(judge, model="other"),
            dataclasses.replace(judge, criteria={**CRITERIA, "right": {"description": "Is it true?"}}),
            dataclasses.replace(judge, template="{completion} {criteria}"),
            dataclasses.replace(judge, request={"temperature": 0.5}),
        ]
        for number, one in enumerate([judge, *others, judge, *others], start=1):
            assert one(attempts("a")) == [0.5]
            assert len(served.bodies) == min(number, 5)
        judge([Attempt(Sample("two", "Another prompt", ""), "a")])
        assert len(served.bodies) == 6
        for path in (tmp_path / "cache").glob("??/*"):
            path.write_text('{"clear": 99')
        assert judge(attempts("a")) == [0.5]
        assert len(served.bodies) == 7


def test_the_question_has_the_prompt_the_rubric_and_a_schema_and_fills_in_no_place_of_a_completion(
    tmp_path: Path,
) -> None:
    judge = judge_at("http://localhost:1/v1", tmp_path, template="{prompt}|{completion}|{answer}|{highest}|{criteria}")
    talk = Sample(
        "c", "Hi", "6", messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    )
    body = json.loads(judge.body(Attempt(talk, "{criteria} {answer}"), 0))
    rubric = "- clear: Is it clear?\n- right: Is it right?"
    content = f"system: Be brief.\n\nuser: Hi|{{criteria}} {{answer}}|6|10|{rubric}"
    assert body["messages"] == [{"role": "user", "content": content}]
    form = body["response_format"]["json_schema"]["schema"]
    assert [*form["properties"]] == form["required"] == ["reason", "clear", "right"]
    assert form["properties"]["right"] == {"type": "number", "minimum": 0, "maximum": 10.0}
    assert (body["model"], body["temperature"], "seed" in body) == ("m", 0.0, False)


def test_pauses_grow_between_requests_that_fail(tmp_path: Path) -> None:
    with judge_server(lambda body, number: (429, b"slow down") if number < 2 else scores(5, 5)) as served:
        (result,) = scored(judge_at(served.url, tmp_path), attempts("a"))
        first, second = (after - before for before, after in zip(served.times, served.times[1:], strict=False))
    assert (result.value, result.columns["requests"]) == (0.5, 3)
    assert 0.25 <= first < 0.5 <= second < 1.0


def test_a_judge_that_hangs_or_drips_is_unreachable_after_its_timeout_and_not_the_deadline(
    tmp_path: Path,
) -> None:
    def drip(listening: socket.socket) -> None:
        while True:
            try:
                one, _ = listening.accept()
                with one:
                    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
                    while True:
                        one.sendall(b" ")
                        time.sleep(0.02)
            except OSError:
                if listening.fileno() < 0:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=(listening,), daemon=True).start()
        dripping = judge_at(f"http://127.0.0.1:{listening.getsockname()[1]}", tmp_path, timeout=0.3, retries=0)
        (result,) = scored(dripping, attempts("a"))
        assert (result.cause, result.detail) == (Cause.UNREACHABLE, "no reply within 0.3 s (the last of 1 requests)")
    with judge_server(lambda body, number: scores(5, 5), delay=1.0) as served:
        assert scored(judge_at(served.url, tmp_path), attempts("a"), seconds=0.5)[0].value == 0.5
        (late,) = scored(judge_at(served.url, tmp_path, timeout=0.2, retries=1), attempts("b"))
    assert (late.cause, late.columns["requests"]) == (Cause.UNREACHABLE, 2)


@pytest.mark.parametrize(
    ("answered", "words"),
    [
        (None, "is no judge: unreachable: Connection refused (the last of 1 requests); start its server"),
        ((401, b"wrong key"), "is no judge: refused request: HTTP 401: 'wrong key'; start its server"),
        ((200, b"<html>Hello</html>"), "is no judge: no chat completion: the address sent '<html>Hello</html>'"),
    ],
)
def test_an_address_that_is_no_judge_is_refused_in_one_line_before_the_run(
    tmp_path: Path, answered: Reply | None, words: str
) -> None:
    with judge_server(lambda body, number: answered or (500, b"")) as served:
        url = served.url if answered else "http://127.0.0.1:1/v1"
        with (
            Pool({"mine": judge_at(url, tmp_path, retries=0)}, Limits(workers=1)) as pool,
            pytest.raises(UsageError) as told,
        ):
            pool.check([SAMPLE])
        assert len(served.bodies) == (answered is not None)
    assert str(told.value).startswith(f"rewards.mine: {url} is no judge")
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_a_judge_whose_first_answer_is_bad_begins(tmp_path: Path) -> None:
    with (
        judge_server(lambda body, number: chat("Hello!")) as served,
        Pool({"mine": judge_at(served.url, tmp_path)}, Limits(workers=1)) as pool,
    ):
        assert pool.check([SAMPLE]) == {"mine": "(attempt), one at a time, async: attempt"}


def test_the_key_is_sent_and_is_read_from_its_file_alone(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret\n")
    key.chmod(0o600)
    with judge_server(lambda body, number: scores(5, 5)) as served:
        judge = judge_at(served.url, tmp_path, key_file=str(key))
        assert scored(judge, attempts("a"))[0].value == 0.5
        assert served.headers[0]["Authorization"] == "Bearer sk-secret"
        assert "Authorization" not in (judge_at(served.url, tmp_path)(attempts("b")) and served.headers[1])
    assert not any("sk-secret" in path.read_text() for path in (tmp_path / "cache").glob("*/*"))
    assert "sk-secret" not in f"{judge!r} {dataclasses.asdict(judge)}"
    for content in ("two words", "", "ä"):
        key.write_text(content)
        with pytest.raises(UsageError, match="key': put the key of the judge's address there, and nothing else"):
            judge.bind()
    key.chmod(0o644)
    with pytest.raises(
        UsageError, match="key': others may read it, so it keeps nobody out; make it yours alone: chmod"
    ):
        judge.bind()
    key.unlink()
    with pytest.raises(UsageError, match="key': no such file or directory"):
        judge.bind()
