"""Choose the build of torch that `make install` downloads: pip's arguments on stdout, and why on stderr.

    pip install $(python tools/torch_build.py) torch==2.13.0

On Linux the package index may have torch with the libraries for GPUs, which a machine without one never loads. It runs
before anything is installed, so on the standard library alone.
"""

import platform
import shutil
import subprocess
import sys
import urllib.request
from contextlib import suppress

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
#: Seconds that the index has to answer.
PATIENCE = 5.0


def main() -> None:
    """Print the arguments and say what they bring."""
    arguments, words = choose(platform.system(), gpu_seen(), CPU_INDEX)
    print(words, file=sys.stderr)
    print(" ".join(arguments))


def choose(system: str, gpu: str, index: str) -> tuple[list[str], str]:
    """Choose pip's arguments, and say what they bring.

    gpu  its name; "" if none is seen
    """
    if gpu:
        return [], f"torch: the index's build, for {gpu}; with the libraries for GPUs that is some gigabytes"
    if system != "Linux":
        return [], "torch: the index's build, which on this system is for a CPU, about 100 to 200 MB"
    if answers(index):
        return ["--index-url", index], f"torch: no GPU is seen, so the build for a CPU, from {index}; about 190 MB"
    return [], (
        f"torch: no GPU is seen, and {index} cannot be reached: the package index's own build, about 190 MB where that "
        "is for a CPU, and some gigabytes where it is for GPUs"
    )


def gpu_seen() -> str:
    """Name the first GPU that the driver lists; "" if there is no driver, or it lists none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False)
        first = done.stdout.strip().partition("\n")[0]
        if done.returncode == 0 and first:
            return first.partition(" (UUID")[0]
    return ""


def answers(index: str) -> bool:
    """Ask an index once whether it is there."""
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=PATIENCE) as answer:
            return answer.status == 200
    except (OSError, ValueError):  # a name that nobody knows, no route, no certificate, no page
        return False


if __name__ == "__main__":
    main()
