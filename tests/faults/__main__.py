"""`python -m tests.faults`: mutants of everything that can be given to groupwise; exit code 1 where one fails.

python -m tests.faults --mutants 10000                   what `make test-fuzz` runs, another seed each time
python -m tests.faults --mutants 200 --kinds model --seed 7
python -m tests.faults --again faults/model-1            a failure once more
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import random
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

# A recipe may name a model or data set that would be looked for on a hub. To record the engine's steps would take
# longer than all else that a command does here.
os.environ.update(
    HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", PYTORCH_JIT="0"
)


def main() -> int:
    options = _options()
    began = time.monotonic()
    if Path("/dev/shm").is_dir():
        tempfile.tempdir = "/dev/shm"  # a checkpoint waits for the disk, which is not what is tried here
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        ground = _prepared(Path(folder) / "ground")
        if options.again:
            return _again(options.again, ground, Path(folder))
        from tests.faults.hunt import KINDS, Tally, heading, pieces

        for before in (folder for kind in KINDS for folder in options.out.glob(f"{kind}-[0-9]*")):
            shutil.rmtree(before)
        kinds = options.kinds or list(KINDS)
        print(f"seed {options.seed}: {options.mutants:,} mutants; SEED={options.seed} draws the same", flush=True)
        tallies = {kind: Tally() for kind in kinds}
        with ProcessPoolExecutor(options.workers, mp_context=get_context("fork")) as pool:
            futures = {
                pool.submit(_hunt, piece, ground, options.seconds, options.shrink): piece.kind
                for piece in pieces(options.mutants, kinds, options.seed)
            }
            for future in as_completed(futures):
                tally = future.result()
                _show(tally, futures[future], options.out, ground)
                tallies[futures[future]].add(tally)
        print(heading())
        for kind, tally in tallies.items():
            print(tally.line(kind))
        failed = any(tally.failures for tally in tallies.values())
    print(f"{time.monotonic() - began:.0f} s in all")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--mutants", type=int, default=10_000, help="of all kinds together")
    parser.add_argument("--kinds", nargs="*", help="of hunt.KINDS; all of them if none is named")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--seconds", type=float, default=20.0, help="that a command may take")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shrink", type=float, default=10.0, help="seconds for each failure; 0 leaves it as it came")
    parser.add_argument("--out", type=Path, default=Path("faults"), help="where failures are kept")
    parser.add_argument("--again", type=Path, help="the folder of a failure, to run once more")
    return parser.parse_args()


def _prepared(box: Path):
    """The ground; built here, so that this process has imported everything and a mutant costs what its command does."""
    import torch

    from tests.faults.ground import ground

    torch.set_num_threads(1)
    built = ground(box)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    return built


def _hunt(piece, ground, seconds: float, shrink: float):
    from tests.faults.forked import Limits
    from tests.faults.hunt import hunt

    return hunt(piece, ground, Limits(seconds), shrink)


def _show(tally, kind: str, out: Path, ground) -> None:
    """Print every failure of a piece of work and write its folder: the first one can be mended while the rest runs."""
    from tests.faults.hunt import keep

    for failure, (count, first) in sorted(tally.failures.items()):
        folder = out / f"{kind}-{1 + len(list(out.glob(f'{kind}-*')))}"
        keep(first, folder, ground)
        fault = first.verdict.faults[0][:300].encode("ascii", "backslashreplace").decode()
        print(f"{count:>6,} x {kind}, {failure}\n         {first.mutant.what}: {fault}\n         {folder}", flush=True)


def _again(folder: Path, ground, into: Path) -> int:
    from tests.faults.hunt import in_box

    mutant = pickle.loads((folder / "result.pickle").read_bytes()).mutant
    box = into / "outer" / "inner" / "box"
    ground.copy(mutant.kind, box)
    result = in_box(mutant, box, ground)
    print(f"{mutant.what}: groupwise {' '.join(map(repr, mutant.words))}")
    print(re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "?", result.outcome.out + result.outcome.err))
    print(f"exit code {result.outcome.code}, {result.outcome.seconds:.1f} s")
    print("\n".join(result.verdict.faults) or "no fault")
    return 1 if result.verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
