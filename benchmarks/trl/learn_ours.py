"""groupwise learns the quickstart's task: python benchmarks/trl/learn_ours.py SEED MODELS OUT"""

import json
import sys
import tempfile
from pathlib import Path

import groupwise
from groupwise.journal.journal import read_metrics
from start import folder

#: What differs from the recipe: the start is given, there is no KL term, and the policy is evaluated at both ends only.
CHANGES = {"warm_start.steps": 0, "algorithm.kl.beta": 0.0, "evaluation.every": 0, "journal.report": False}


def main(seed: int, models: Path, out: Path) -> None:
    with tempfile.TemporaryDirectory() as runs:
        keys = {**CHANGES, "seed": seed, "model": str(folder(models, seed)), "runs": runs}
        run = groupwise.train("quickstart", keys)
        if not run.finished:
            sys.exit(f"seed {seed}: stopped by signal {run.stopped_by}")
        scores = [row["pass_rate"] for row in read_metrics(run.folder) if "evaluation" not in row]
    names = ("heldout_before", "heldout_after", "seconds_training")
    out.write_text(json.dumps({"scores": scores, **{name: run.summary[name] for name in names}}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
