"""The pictures of README and docs/assets, of a finished run and of a comparison: `make pictures`; needs chromium.

    python benchmarks/pictures.py runs/quickstart runs/quickstart-dapo docs/assets

Pages are drawn at 1400 and at 390 pixels, light and dark; commands are run as they stand in their pictures.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.text import Text

from groupwise.core.machine.terminal import Terminal
from groupwise.core.records import Evaluation
from groupwise.journal.journal import read_metrics
from groupwise.journal.lines import step_seconds
from groupwise.journal.live import PANEL, LiveView

#: Pixels of a page's picture: as wide as a desktop's window and as a phone's.
SIZES = {"": (1400, 900), "-phone": (390, 844)}
COLUMNS = 110
#: What was said of a step, which the panel keeps below its numbers; checks that hold are not.
SAID = re.compile(r"step (\d+): (?!.*: pass \()")


def main(runs: list[Path], target: Path) -> None:
    """Draw the reports and commands of these runs into the folder `target`."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("pictures: chromium is not installed")
    comparison = target.resolve() / "comparison.html"
    groupwise("report", *map(str, runs), "--out", str(comparison))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        draw(browser, runs[0] / "report.html", target, "report")
        draw(browser, comparison, target, "comparison")
        browser.close()
    comparison.unlink()
    terminal("groupwise runs", runs[0].parent.parent, target / "runs.svg")
    terminal(f"groupwise chat runs/{runs[0].name} -p 3+1-4+2= -n 3", runs[0].parent.parent, target / "chat.svg")
    log = (runs[0] / "log.txt").read_text().splitlines()
    text(["$ groupwise train quickstart", *lines_of_a_run(log)], target / "train.svg")
    panel(runs[0], target / "panel.svg")


def groupwise(*words: str, cwd: Path | None = None) -> str:
    """Run a command as on a terminal of `COLUMNS` columns, and return what it prints."""
    size = {**os.environ, "COLUMNS": str(COLUMNS)}
    command = [sys.executable, "-m", "groupwise", *words]
    return subprocess.run(command, cwd=cwd, env=size, capture_output=True, text=True, check=True).stdout


def draw(browser: Browser, page: Path, target: Path, name: str) -> None:
    """Draw the first screen of a page, light and dark, wide and narrow."""
    for suffix, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            view = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            view.goto(page.resolve().as_uri())
            view.wait_for_timeout(1500)  # plots in sight are drawn
            view.screenshot(path=str(target / f"{name}{suffix}{'-dark' * (scheme == 'dark')}.png"))
            view.close()


def terminal(command: str, where: Path, target: Path) -> None:
    """Run a command in a folder, and draw it with what it prints."""
    _, *words = shlex.split(command)
    text([f"$ {command}", *groupwise(*words, cwd=where).splitlines()], target)


def text(lines: list[str], target: Path) -> None:
    """Draw lines of a terminal as SVG."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115  ends with the process
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis")
    target.write_text(without_fonts(console.export_svg(title="groupwise")))


def panel(run: Path, target: Path) -> None:
    """Draw the panel of a terminal as it was halfway through a run, from what the run recorded."""
    rows = read_metrics(run)
    steps = [row for row in rows if "evaluation" not in row]
    half = steps[len(steps) // 2 - 1]["step"]
    terminal = Terminal(file=StringIO(), force_terminal=True, width=PANEL, height=40, record=True)
    view = LiveView(steps[-1]["step"], terminal, name=run.name)
    for row in (row for row in rows if row["step"] <= half):
        if "evaluation" in row:
            view.heldout.append((row["step"], Evaluation(**row["evaluation"])))
        else:
            view.rows.append(row)
    one = next(row for row in map(json.loads, (run / "rollouts.jsonl").open()) if row["step"] == half)
    view.completion(one["prompt"], one["completion"], one["score"])
    view.made = len(view.rows)
    log, now, first = (run / "log.txt").read_text(), time.perf_counter(), view.rows[0]
    view.opened = now - seconds_until(half, log)
    view.started = view.opened + seconds_until(first["step"], log) - step_seconds(first)
    view.said = [line for line in log.splitlines() if (said := SAID.match(line)) and int(said[1]) <= half]
    terminal.console.print(view.render())
    target.write_text(without_fonts(terminal.console.export_svg(title="groupwise train quickstart")))


def seconds_until(step: int, log: str) -> float:
    """Read from the clock of a run's log how long it had taken when a step was made."""
    clocks = re.findall(rf"^(\d\d):(\d\d):(\d\d) (?:(step +{step}/)|)", log, re.MULTILINE)
    seconds = [int(h) * 3600 + int(m) * 60 + int(s) for h, m, s, _ in clocks]
    last = next(place for place, clock in enumerate(clocks) if clock[3])
    return (seconds[last] - seconds[0]) % 86400


def without_fonts(drawn: str) -> str:
    """Leave out the fonts that a viewer would load from a network."""
    return re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def lines_of_a_run(log: list[str]) -> list[str]:
    """Choose from a run's log its first and last steps, its evaluations, and how it ended."""
    steps = [place for place, line in enumerate(log) if " step " in line and " | " in line]
    kept = {*steps[:4], *steps[-4:], *(place for place, line in enumerate(log) if " eval " in line)}
    kept |= set(range(steps[-1], len(log)))
    return [log[place] for place in sorted(kept)]


if __name__ == "__main__":
    *given, folder = map(Path, sys.argv[1:])
    main(given, folder)
