"""The measurement of a GPU, on a CPU: all of its lines run, nothing is lost where it is killed, tables are of rows."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer
from transformers import Qwen2Config, Qwen3Config

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Module = Callable[[str], ModuleType]


def command(folder: Path, *words: str) -> list[str]:
    own = ["--rows", str(folder / "gpu.jsonl"), "--page", str(folder / "gpu.md"), "--models", str(folder / "models")]
    return [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu", "--small", *own, *words]


def figures(folder: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in (folder / "gpu.jsonl").read_text().splitlines()]
    return [(row["part"], json.dumps(row["key"])) for row in rows if "failed" not in row]


@pytest.mark.slow
def test_a_measurement_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """The first figure is on the disk when the next begins; it is not measured again, and no process is left."""
    words = command(tmp_path, "--only", "ceilings")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as begun:
        assert begun.stdout is not None
        assert "measured" in begun.stdout.readline()
        begun.send_signal(signal.SIGKILL)
    first = figures(tmp_path)
    assert first
    with (tmp_path / "gpu.jsonl").open("a") as file:
        file.write('{"part": "ceilings", "key": {"of": "tf32')  # as a kill in the middle of a line leaves it
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = (tmp_path / "gpu.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines if not line.endswith("tf32")]
    every = [(row["part"], json.dumps(row["key"])) for row in rows]
    assert every[: len(first)] == first
    assert [row["key"]["of"] for row in rows] == ["copy", "bf16 product", "fp32 product", "tf32 product"]
    assert "| fp32 product |" in (tmp_path / "gpu.md").read_text()


def test_a_part_that_stands_still_is_ended_at_its_limit(module: Module, tmp_path: Path) -> None:
    """With every process that it started; the figures before stay."""
    gpu = module("gpu")
    pid = tmp_path / "pid"
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
        'print(\'ROW {"key": {"of": "one"}, "per_second": 1.0}\', flush=True)\n'
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, str(slow)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        seen = list(gpu.lines(child, time.monotonic() + 3))
        gpu.end(child)
    assert [line.startswith("ROW ") for line in seen] == [True]
    assert child.returncode == -signal.SIGKILL
    grandchild, until = Path(f"/proc/{pid.read_text()}/stat"), time.monotonic() + 10
    while (runs := grandchild.exists() and grandchild.read_text().split()[2] != "Z") and time.monotonic() < until:
        time.sleep(0.01)  # a process that is killed is there until it is next given a core
    assert not runs


def test_a_figure_that_fails_has_its_reason_and_the_next_one_is_measured(
    module: Module, capsys: pytest.CaptureFixture[str]
) -> None:
    measuring = module("gpu_parts.measuring")
    context = measuring.Context("cpu", True, Path("models"), Path("smollm2"), have=[{"of": "had"}])

    def wrong() -> dict[str, Any]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    for key, figure in (("had", wrong), ("wrong", wrong), ("right", lambda: {"value": 1})):
        context.measure({"of": key}, figure)
    rows = [json.loads(line.removeprefix("ROW ")) for line in capsys.readouterr().out.splitlines()]
    assert [row["key"]["of"] for row in rows] == ["wrong", "right"]
    assert "Tried to allocate 2.00 GiB" in rows[0]["failed"]
    with pytest.raises(measuring.NotEqual, match="not timed"):
        measuring.require_close("gradient", float("nan"), 0.1)


def test_an_engine_whose_weights_differ_is_not_timed(module: Module) -> None:
    decode, sizes = module("gpu_parts.decode"), module("gpu_parts.sizes")
    measuring = module("gpu_parts.measuring")
    size = sizes.SMALL[0]
    model = size.model("cpu", torch.bfloat16)
    engine = decode.LocalEngine(model, frozenset(), pad=0)
    difference, limit = decode.beside_plain(model, engine, sizes.SMALL_AMOUNTS)
    measuring.require_close("engine", difference, limit)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(3.0)
    difference, limit = decode.beside_plain(model, engine, sizes.SMALL_AMOUNTS)
    with pytest.raises(measuring.NotEqual):
        measuring.require_close("engine", difference, limit)


@pytest.mark.parametrize(
    ("name", "kind", "parameters"),
    [
        ("Qwen2.5-0.5B", Qwen2Config, 494_032_768),
        ("Qwen2.5-1.5B", Qwen2Config, 1_543_714_304),
        ("Qwen3-0.6B", Qwen3Config, 596_049_920),
        ("Qwen3-1.7B", Qwen3Config, 1_720_574_976),
    ],
)
def test_sizes_are_those_of_the_published_models(module: Module, name: str, kind: Any, parameters: int) -> None:
    sizes = module("gpu_parts.sizes")
    (size,) = [size for size in sizes.WHOLE_AMOUNTS.sizes if size.name == name]
    model = size.model("meta", torch.bfloat16)
    assert isinstance(model.config, kind)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_bytes_of_a_step_are_weights_and_what_rows_hold(module: Module) -> None:
    """0.5 B in bf16 with 64 rows of 8 groups in the middle of 512 tokens: 2 x 24 layers x 2 heads x 64 x 2 bytes a
    token of 8 x 128 + 64 x 256.
    """
    decode, sizes = module("gpu_parts.decode"), module("gpu_parts.sizes")
    size = sizes.QWEN25[0]
    counted = decode.bytes_of_a_step(size.configuration(), 64, sizes.WHOLE_AMOUNTS)
    matrices = sum(p.numel() for p in size.model("meta", torch.bfloat16).parameters() if p.dim() == 2)
    assert counted == 2 * matrices + (8 * 128 + 64 * 256) * 2 * 24 * 2 * 64 * 2


def test_a_page_keeps_its_words_and_gets_the_newest_rows(module: Module, tmp_path: Path) -> None:
    table = module("gpu_parts.table")
    machine = {"card": "One", "cuda": "13.0", "python": "3.12", "torch": "2.11", "transformers": "5.17", "cores": 16}
    machine |= {"source": "abc", "commit": ""}
    common = {"small": False, "at": "2026-01-02T00:00:00", "machine": machine}
    copies = [
        {"part": "ceilings", "key": {"of": "copy"}, "per_second": n, "unit": "bytes", **common} for n in (1e9, 2e9)
    ]
    page = tmp_path / "gpu.md"
    page.write_text(f"# Before\n\n{table.BEGIN}\nold\n{table.END}\n\nbehind\n")
    table.into_page(page, [])
    assert "No card has been measured." in page.read_text()
    failed = {"part": "load", "key": {"model": "a"}, "failed": "RuntimeError: no", **common}
    table.into_page(page, [*copies, failed])
    text = page.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("\n\nbehind\n")
    assert "| copy | 2.00 GB |" in text
    assert "1.00 GB" not in text
    assert "Weights to the engine, model a: RuntimeError: no" in text
    table.into_page(page, [*copies, failed])
    assert page.read_text() == text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"device": "tpu"}, "give cuda or cpu"),
        ({"device": "cpu"}, "add --small"),
        ({"only": "decode,fast"}, "no part fast"),
    ],
)
def test_what_cannot_be_measured_is_refused(given: dict[str, Any], said: str, module: Module, tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        module("gpu").main(rows=tmp_path / "rows.jsonl", **given)
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.slow
def test_every_part_runs_on_a_cpu(tmp_path: Path) -> None:
    """Those that need a library or a model that is not here say so, and nothing else fails."""
    ended = subprocess.run(command(tmp_path), capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert {row["part"] for row in rows} >= {"ceilings", "decode", "update", "step", "load", "runs", "several"}
    failed = [row for row in rows if "failed" in row]
    assert all("left out" in row["failed"] for row in failed), ended.stdout
    page = (tmp_path / "gpu.md").read_text()
    for title in (
        "Ceilings",
        "Decoding",
        "An update",
        "A whole step",
        "Weights to the engine",
        "Whole runs",
        "Several",
    ):
        assert f"**{title}" in page
