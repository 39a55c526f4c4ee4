"""Add the runs of docs/moe.md to a file of claims' rows, those that it does not have yet:

    python benchmarks/moe_claims.py docs/evidence/moe-stability.jsonl docs/evidence/claims.jsonl
"""

import sys
from pathlib import Path

from groupwise.claims.moe_runs import finished
from groupwise.claims.store import append_row, read_rows


def main(runs: Path, rows: Path) -> None:
    known = {(row.experiment, row.seed, row.fingerprint) for row in read_rows(rows)}
    for row in finished(runs):
        if (row.experiment, row.seed, row.fingerprint) not in known:
            append_row(rows, row)
            print(f"{row.experiment}, seed {row.seed}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
