"""The card of an exported folder says what the run's files say; a hub that refuses leaves the folder whole."""

from __future__ import annotations

import base64
import json
import shutil
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, ModelCard

import groupwise
from groupwise.commands.export import CARD, OTHER_CARD, export
from groupwise.commands.model_card import card_of
from groupwise.commands.train.run import evaluations_of
from groupwise.config.recipe_files import read_table
from groupwise.core.errors import RunError, UsageError
from groupwise.journal.journal import ABOUT
from groupwise.reports.folder.columns import interval
from tests.conftest import SMALL


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, warm_cache: Path) -> Path:
    runs = tmp_path_factory.mktemp("exported")
    (runs / ".cache").symlink_to(warm_cache)
    changes = {"runs": str(runs), "steps": 3, "evaluation.every": 2, "checkpoint.every": 1, "checkpoint.keep": 9}
    return groupwise.train("quickstart", {**SMALL, **changes}, quiet=True).folder


class Hub(ThreadingHTTPServer):
    """A hub that takes every upload, as far as the client's questions go; `status` refuses the first."""

    def __init__(self, has_card: bool = False, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.has_card, self.status = has_card, status
        self.files: dict[str, bytes] = {}
        self.made: list[dict[str, Any]] = []

    @property
    def api(self) -> HfApi:
        return HfApi(endpoint=f"http://127.0.0.1:{self.server_port}", token="hf_none")


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        here = f"http://127.0.0.1:{self.server.server_port}/me/mine"
        if self.path.endswith("/repos/create"):
            self.server.made.append(json.loads(body))
            self._answer({"url": here, "id": "me/mine"}, self.server.status)
        elif "/preupload/" in self.path:
            files = [{"path": f["path"], "uploadMode": "regular"} for f in json.loads(body)["files"]]
            self._answer({"files": [{**file, "shouldIgnore": False} for file in files]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer({"commitOid": "a" * 40, "commitUrl": f"{here}/commit/a", "hookOutput": ""})
        else:
            self._answer({})

    def do_GET(self) -> None:
        self._answer({}, self.server.status)

    def do_HEAD(self) -> None:
        self.send_response(200 if self.server.has_card else 404)
        if self.server.has_card:
            self.send_header("ETag", '"1"')
            self.send_header("X-Repo-Commit", "a" * 40)
        else:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, told: Any, status: int = 200) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> Iterator[Hub]:
    made = Hub(**getattr(request, "param", {}))
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_the_card_has_each_evaluation_with_its_interval_and_the_recipe_whole(run: Path, tmp_path: Path):
    assert export(run, tmp_path / "out", None, print) == 3
    card = (tmp_path / "out" / CARD).read_text()
    known = evaluations_of(run)
    assert sorted(known) == [0, 2, 3]
    for step, one in known.items():
        cells = f"| {step} | {one['avg_at_k']:.3f} | {interval(one)} | {one['length_mean']:.1f} |"
        assert cells in card, step
    recipe = card.partition("toml\n")[2].rpartition("\n```")[0]
    assert tomllib.loads(recipe) == read_table(run / "recipe.toml")
    about = json.loads((run / ABOUT).read_text())
    for told in (about["algorithm"]["paper"], about["algorithm"]["objective"], about["versions"]["torch"]):
        assert told in card
    read = ModelCard.load(tmp_path / "out" / CARD)
    assert read.data.library_name == "transformers"
    assert read.data.tags == ["groupwise", "reinforcement-learning", "grpo"]


def test_the_card_of_an_earlier_step_knows_nothing_later(run: Path):
    card = card_of(run, 1, "me/mine")
    assert "# mine\n" in card
    assert "from_pretrained('me/mine')" in card
    assert "for 1 of 3 steps" in card
    assert "\n| 2 |" not in card
    assert "\n| 3 |" not in card


def test_a_readme_of_the_model_stays_as_it_is(run: Path, tmp_path: Path):
    copy = shutil.copytree(run, tmp_path / "run")
    for policy in copy.glob("checkpoints/*/policy"):
        (policy / CARD).write_text("of the model")
    export(copy, tmp_path / "out", 3, print)
    assert (tmp_path / "out" / CARD).read_text() == "of the model"
    assert "## Results" in (tmp_path / "out" / OTHER_CARD).read_text()


def test_a_damaged_about_leaves_a_card(run: Path, tmp_path: Path):
    copy = shutil.copytree(run, tmp_path / "run")
    for damage in (
        "",
        "[]",
        '{"algorithm": 3, "versions": [], "resumed": []}',
        '{"algorithm": {"parts": [1, {"a|b": 2}]}}',
    ):
        (copy / ABOUT).write_text(damage)
        assert "## Results" in card_of(copy, 3, "x")


def test_a_folder_whose_name_holds_bytes_that_are_no_text_has_a_card(run: Path, tmp_path: Path):
    export(run, tmp_path / "half\udcff", 3, lambda line: None)
    assert "half\ufffd" in (tmp_path / "half\udcff" / CARD).read_text(encoding="utf-8")


def test_the_folder_is_sent_and_a_new_repository_is_private(run: Path, tmp_path: Path, hub: Hub):
    told: list[str] = []
    export(run, tmp_path / "out", None, told.append, push="me/mine", api=hub.api)
    assert hub.files == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert hub.made[0]["visibility"] == "private"
    assert told[-1] == f"{tmp_path / 'out'} is sent to http://127.0.0.1:{hub.server_port}/me/mine"


@pytest.mark.parametrize("hub", [{"has_card": True}], indirect=True)
def test_a_readme_on_the_hub_stays_as_it_is(run: Path, tmp_path: Path, hub: Hub):
    told: list[str] = []
    export(run, tmp_path / "out", None, told.append, push="me/mine", api=hub.api)
    assert set(hub.files) == {path.name for path in (tmp_path / "out").iterdir()} - {CARD}
    assert f"README.md of me/mine stays as it is; the new card is {tmp_path / 'out' / CARD}" in told


@pytest.mark.parametrize(
    ("hub", "advice"), [({"status": 401}, "hf auth login"), ({"status": 403}, "no right")], indirect=["hub"]
)
def test_a_hub_that_refuses_is_one_line_and_the_folder_stays(run: Path, tmp_path: Path, hub: Hub, advice: str):
    with pytest.raises(RunError) as error:
        export(run, tmp_path / "out", None, print, push="me/mine", api=hub.api)
    assert advice in str(error.value)
    assert "\n" not in str(error.value)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert hub.files == {}


def test_without_a_network_it_is_one_line_and_the_folder_stays(run: Path, tmp_path: Path):
    with pytest.raises(RunError) as error:
        export(run, tmp_path / "out", None, print, push="me/mine", api=HfApi(endpoint="http://127.0.0.1:9", token="x"))
    assert str(error.value).startswith(
        f"{tmp_path / 'out'} is written and was not sent to me/mine at http://127.0.0.1:9: "
    )
    assert str(error.value).endswith(
        f"send it with: hf upload me/mine {tmp_path / 'out'} (which overwrites a README.md there)"
    )
    assert (tmp_path / "out" / CARD).is_file()


@pytest.mark.parametrize("name", ["mine", "a/b/c", "/b", "a/", "a b/c", "https://x/y"])
def test_a_name_that_is_no_repository_is_refused_before_anything_is_written(run: Path, tmp_path: Path, name: str):
    with pytest.raises(UsageError, match="expected OWNER/NAME"):
        export(run, tmp_path / "out", None, print, push=name)
    assert not (tmp_path / "out").exists()
