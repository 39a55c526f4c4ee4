"""What engine and learner are asked after a weight load: short questions that differ."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import groupwise
from groupwise.commands.build import parity
from groupwise.commands.build.parity import PROBE_PROMPT_TOKENS, shortened
from groupwise.core.records import Prompt
from groupwise.core.samples import Sample
from groupwise.diagnostics.checks import Probe
from groupwise.health.checks import ENGINE_IS_LOADED
from groupwise.journal.journal import read_metrics
from tests.runs.tiny_runs import tiny_run


def prompts(*tokens: tuple[int, ...]) -> list[Prompt]:
    return [Prompt(Sample("", "", ""), each) for each in tokens]


@pytest.mark.parametrize("shared", [0, 1, 5, 40, 200])
@pytest.mark.parametrize("own", [1, 3, 100])
def test_a_long_prompt_keeps_its_first_token_and_a_piece_that_tells_it_apart(shared: int, own: int) -> None:
    draw = random.Random(shared + own)
    begin = [draw.randrange(9) for _ in range(shared)]
    given = prompts(*((*begin, 100 + i, *(draw.randrange(9) for _ in range(own - 1))) for i in range(4)))
    for most in (2, 16, 64):
        cut = shortened(given, most)
        assert [len(prompt.tokens) for prompt in cut] == [min(most, len(prompt.tokens)) for prompt in given]
        assert len({prompt.tokens for prompt in cut}) == 4
        for short, whole in zip(cut, given, strict=True):
            pieces = {whole.tokens[at : at + most - 1] for at in range(1, len(whole.tokens))}
            assert short == whole or (short.tokens[0] == whole.tokens[0] and short.tokens[1:] in pieces)


def test_prompts_that_are_one_keep_their_ends() -> None:
    given = prompts(*[tuple(range(300))] * 2)
    assert shortened(given, 4) == prompts(*[(0, 297, 298, 299)] * 2)


def test_a_runs_probe_asks_no_more_than_its_tokens_and_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Probe]()
    monkeypatch.setattr(parity, "PROBE_PROMPT_TOKENS", 4)
    made = parity.Probe
    monkeypatch.setattr(parity, "Probe", lambda *given, **named: asked.append(made(*given, **named)) or asked[-1])
    run = groupwise.train("quickstart", tiny_run(tmp_path))
    (probe,) = asked
    assert {len(prompt.tokens) for prompt in probe.prompts} == {4} != {PROBE_PROMPT_TOKENS}
    rows = [row for row in read_metrics(run.folder) if "checks" in row]
    assert [row["checks"][ENGINE_IS_LOADED.name]["verdict"] for row in rows] == ["pass"] * len(rows)
