"""`python -m tests.rewards.sandbox.escapes`: every program of the corpus under every set of layers of this machine.

A line for each class of programs: how many there are, and what they achieved. What this machine does not give is named.
"""

import os
import shutil
import tempfile
from pathlib import Path

from groupwise.rewards.sandbox import Sandbox
from tests.rewards.sandbox import escapes

#: Without Landlock the home folder can be listed where Python's library lies below it: the way there is all it shows.
KNOWN = {"namespaces without landlock": ["files: the home folder: HOLE a call that had to fail"]}


def main() -> None:
    """Prints the table; exit code 1 where a program achieved something."""
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        outside = escapes.Outside(Path(folder))
        os.environ[escapes.SECRET_NAME] = outside.secret
        for name, without in escapes.SETS.items():
            with Sandbox(escapes.LIMITS, without=without) as box:
                if not escapes.offered(box.layers, name):
                    print(f"{name}: not tried, this machine gives only: {box.layers}")
                    continue
                print(f"{name}: {box.layers}")
                found = escapes.every_fault(box, outside, slow=True)
            for kind in (*escapes.ESCAPES, "resources", "grading", "honest", "steering"):
                own = [fault for fault in found if fault.startswith(f"{kind}: ")]
                print(f"  {kind:<10} {len(escapes.corpus(kind)):>3} programs, {len(own)} faults", *own, sep="\n    ")
            faults += [fault for fault in found if fault not in KNOWN.get(name, [])]
        outside.close()
    if shutil.which("bwrap") is None:
        print("not tried: bubblewrap, which is not installed")
    print(
        f"not tried: programs as another user than {os.getuid()}; the test of the corpus as an ordinary user does that"
    )
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
