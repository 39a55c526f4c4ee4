"""A project of one's own to begin with: a recipe, a reward and ten rows of data that train as they are."""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from groupwise.core.errors import RunError, UsageError, disk_remedy
from groupwise.core.files.atomic import make_folder, require_place
from groupwise.core.machine.terminal import clean

RECIPE, REWARD, DATA, README = "recipe.toml", "reward.py", "data.jsonl", "README.md"

RECIPE_TEXT = """\
# A policy learns the sums of data.jsonl, scored by reward.py: less than a minute on two CPU cores.
# Change a value here, or for one run: groupwise train @RECIPE@ --set steps=20
# `groupwise keys` lists every key with its default; `groupwise keys learner` those of a section.
# Paths are from the folder in which you run groupwise.

# The run is written to runs/NAME; if that exists, to runs/NAME-2.
name = @NAME@
seed = 0
steps = 40

# A tiny policy of 150 thousand random weights, to see that everything works. For a real chat model:
#   groupwise model smollm2 models/smollm2
# or name any folder that save_pretrained wrote, or an id of a model hub, such as "Qwen/Qwen3-0.6B".
# Then set steps = 0 under [warm_start], learning_rate = 1e-5 under [learner] and max_new_tokens = 64 under [sampling].
model = "tiny-chat"
# model = "models/smollm2"

# Each step samples this many answers to each of this many problems, and compares the answers to one problem.
prompts_per_step = 8
samples_per_prompt = 16

# A row of the data is one problem; its columns `prompt` and `answer` are read, all others reach the reward.
[task]
name = "data"
path = @DATA@
# Every answer is scored by the reward below; "math", "numeric", "exact" or "choice" compare with the column `answer`.
check = "none"
# This share of the rows is held out: the policy never trains on it, and is evaluated on it.
heldout_share = 0.25
# The column that the warm start imitates.
solution = "answer"

# Updates by imitation before training, so that random weights say some right answers; 0 for a real model.
[warm_start]
steps = 8

[rewards.sums]
use = @REWARD@

# `groupwise explain` lists the algorithms, `groupwise explain gspo` explains one.
[algorithm]
name = "grpo"

# An answer ends by itself, or after max_new_tokens.
[sampling]
temperature = 1.0
max_new_tokens = 6

[learner]
learning_rate = 1e-3

# Held-out problems and answers to each, before the first step, every so many steps, and after the last.
[evaluation]
problems = 2
samples = 64
every = 20

[checkpoint]
every = 20
"""

REWARD_TEXT = '''\
"""Score answers: this file is yours. groupwise calls `score` for each answer, in a process with a time limit.

Try it by itself: python reward.py
"""

import re
from types import SimpleNamespace


def score(sample, completion):
    """Return 1.0 if the last number of the completion is the answer, 0.2 for another number, 0.0 without any.

    sample      the row: sample.prompt and sample.answer are texts, sample.extra holds its other columns
    completion  what the policy said
    """
    numbers = re.findall(r"\\d+", completion)
    if not numbers:
        return 0.0
    return 1.0 if numbers[-1] == sample.answer else 0.2


if __name__ == "__main__":
    problem = SimpleNamespace(prompt="2 + 3 = ?", answer="5", extra={})
    for said in ("5", "2 + 3 = 5", "6", "five"):
        print(repr(said), score(problem, said))
'''

README_TEXT = """\
# @TITLE@

    groupwise check @RECIPE@    # the data, the reward and the model, before anything trains
    groupwise train @RECIPE@    # less than a minute on two CPU cores
    groupwise runs    # every run: state, step, held-out result
    groupwise chat @RUN@    # talk to what was trained
    groupwise watch @RUN@    # its report in a browser, live

- `data.jsonl`: one problem a line. Replace the rows by your own; `prompt` and `answer` are the columns that are read.
- `reward.py`: the score of an answer. Change what is rewarded here.
- `recipe.toml`: the model, the algorithm and every number, each with a comment.

With eight sums to train on, the tiny policy learns these sums and not how to add: the reward in training rises, and
that on the two held-out sums stays low. More rows, or a real model, change that.
"""

#: Sums whose two held-out ones have answers that the others have too.
SUMS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (2, 3), (3, 2), (1, 4), (4, 1))


@dataclass(frozen=True)
class Project:
    """A folder that was written, and the command that trains it."""

    folder: Path
    files: tuple[str, ...]

    @property
    def recipe(self) -> str:
        """Path of the recipe, quoted for a shell."""
        return quote(_inside(self.folder, RECIPE))


def write_project(folder: Path) -> Project:
    """Write a recipe, a reward, ten rows of data and a README into a new or an empty folder, all of them or none.

    Raises UsageError if something is in the folder already, or it cannot be made; RunError if the disk refuses.
    """
    require_free(folder)
    require_place(folder / RECIPE if folder.is_dir() else folder, size=0)
    texts = contents(folder)

    def write(place: Path) -> None:
        place.mkdir(exist_ok=True)
        for name, text in texts.items():
            (place / name).write_text(text, encoding="utf-8")

    if folder.is_dir():
        _fill(folder, write, texts)
    else:
        make_folder(folder, write, "the project")
    return Project(folder, tuple(texts))


def _fill(folder: Path, write: Callable[[Path], None], names: Iterable[str]) -> None:
    """Write the files into an empty folder, which may be the current one, and is empty again if the disk refuses."""
    try:
        write(folder)
    except OSError as error:
        for name in names:
            (folder / name).unlink(missing_ok=True)
        remedy = disk_remedy(error, "take a folder that can be written to")
        raise RunError(f"{folder}: the project cannot be saved: {error.strerror}; {remedy}") from None


def require_free(folder: Path) -> None:
    """Raise UsageError if anything is at the path but an empty folder, or a recipe could not name files in it."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"{folder}: this exists and is no folder; name a new folder")
    try:
        there = sorted(os.listdir(folder)) if folder.is_dir() else []
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}; name a new folder") from None
    if there:
        raise UsageError(
            f"{folder}: it is not empty ({there[0]} is in it), and nothing is written over; name a new folder"
        )
    if clean(str(folder)) != str(folder) or "\n" in str(folder):
        raise UsageError(f"{folder}: its name has a character that steers a terminal; name another folder")


def contents(folder: Path) -> Mapping[str, str]:
    """Return the text of each file, by its name."""
    name = _run_name(folder.resolve().name)
    words = {
        "@RECIPE@": quote(_inside(folder, RECIPE)),
        "@NAME@": _toml(name),
        "@DATA@": _toml(_inside(folder, DATA)),
        "@REWARD@": _toml(f"{_inside(folder, REWARD)}:score"),
        "@TITLE@": name,
        "@RUN@": quote(f"runs/{name}"),
    }
    rows = ({"prompt": f"{a} + {b} = ?", "answer": str(a + b)} for a, b in SUMS)
    return {
        RECIPE: _filled(RECIPE_TEXT, words),
        REWARD: REWARD_TEXT,
        DATA: "".join(json.dumps(row) + "\n" for row in rows),
        README: _filled(README_TEXT, words),
    }


def _inside(folder: Path, name: str) -> str:
    """Name a file of the folder as a command or a recipe does: no option, and no other user's home.

    >>> _inside(Path("mine"), "reward.py"), _inside(Path("-x"), "reward.py"), _inside(Path("~me"), "reward.py")
    ('mine/reward.py', './-x/reward.py', './~me/reward.py')
    """
    path = str(folder / name)
    return f"./{path}" if path.startswith(("-", "~")) else path


def _run_name(folder: str) -> str:
    """Make the name of a run from that of a folder, which may hold other characters.

    >>> _run_name("my sums"), _run_name(".hidden"), _run_name("?")
    ('my-sums', 'hidden', 'mine')
    """
    return re.sub(r"[^\w.+-]+", "-", folder).strip("-.") or "mine"


def _filled(text: str, words: Mapping[str, str]) -> str:
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text


def _toml(text: str) -> str:
    r"""Write a text as TOML has it.

    >>> print(_toml('a "b"'))
    "a \"b\""
    """
    return json.dumps(text, ensure_ascii=False)
