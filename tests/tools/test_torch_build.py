"""The build of torch that `make install` downloads: for a CPU where no GPU is seen and its index answers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tools import torch_build

ROOT = Path(__file__).parents[2]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/whl/cpu/torch/" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def index() -> Iterator[str]:
    """An index that has torch, and nothing else."""
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/whl/cpu"
    server.shutdown()
    server.server_close()
    thread.join()


def driver(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """A PATH whose nvidia-smi does what these lines say."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder) + os.pathsep + os.environ["PATH"])


@pytest.mark.parametrize(
    ("system", "gpu", "from_cpu_index", "words"),
    [
        ("Linux", "", True, "no GPU is seen, so the build for a CPU, from http://127.0.0.1"),
        ("Linux", "GPU 0: H100", False, "for GPU 0: H100; with the libraries for GPUs that is some gigabytes"),
        ("Darwin", "", False, "on this system is for a CPU"),
    ],
)
def test_the_build_for_a_cpu_is_taken_where_no_gpu_is_seen(
    system: str, gpu: str, from_cpu_index: bool, words: str, index: str
) -> None:
    arguments, said = torch_build.choose(system, gpu, index)
    assert arguments == (["--index-url", index] if from_cpu_index else [])
    assert words in said


@pytest.mark.parametrize("path", ["/nothing", ""])
def test_an_index_that_does_not_answer_is_not_given(path: str, index: str) -> None:
    gone = index.replace("/whl/cpu", path) if path else "http://127.0.0.1:9/whl/cpu"
    arguments, said = torch_build.choose("Linux", "", gone)
    assert arguments == []
    assert f"{gone} cannot be reached: the package index's own build" in said


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ('echo "GPU 0: NVIDIA H100 (UUID: GPU-1)"; echo "GPU 1: NVIDIA H100 (UUID: GPU-2)"', "GPU 0: NVIDIA H100"),
        ('echo "NVIDIA-SMI has failed"; exit 9', ""),
        ("exit 0", ""),
    ],
)
def test_a_gpu_is_what_the_driver_lists(lines: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(tmp_path, monkeypatch, lines)
    assert torch_build.gpu_seen() == name


def test_pips_arguments_alone_are_on_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(tmp_path, monkeypatch, 'echo "GPU 0: NVIDIA H100 (UUID: GPU-1)"')
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "torch_build.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
    assert done.stderr.startswith("torch: the index's build, for GPU 0: NVIDIA H100")


def test_make_install_asks_for_the_build_and_shows_what_pip_does() -> None:
    command = ["make", "-n", "-B", "install"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert "tools/torch_build.py" in installs[0]
    assert [line for line in installs if "--quiet" in line] == []
