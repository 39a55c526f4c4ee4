"""What a process prints never stops it and takes no room; the end of it is kept."""

from __future__ import annotations

import subprocess
import sys
import threading

from groupwise.core.processes.children import MOST, Tail

FLOOD = "import sys\nfor i in range(200_000): print('x' * 100, i, file=sys.stderr)\nprint('the end', file=sys.stderr)"


def test_a_flood_does_not_stop_who_prints_and_its_end_is_kept() -> None:
    tail = Tail()
    process = subprocess.Popen([sys.executable, "-c", FLOOD], stderr=tail.writing)
    tail.given()
    assert process.wait(60) == 0
    text = tail.text(20.0)
    assert text.endswith("199999\nthe end\n")
    assert len(text) == MOST


def test_the_thread_ends_with_the_process_and_does_not_wait_for_one_that_lives() -> None:
    tail = Tail()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stderr=tail.writing)
    tail.given()
    assert tail.text() == ""
    process.kill()
    process.wait()
    tail.text(20.0)
    assert not [thread for thread in threading.enumerate() if thread.name == "tail" and thread is tail._thread]
