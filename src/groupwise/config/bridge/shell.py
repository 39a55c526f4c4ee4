"""Command lines of TRL and verl in a shell script: the words of the one that trains. Nothing is run."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from groupwise.core.errors import UsageError, brief, one_line

#: Words of a command that trains by TRL or verl.
TRAINERS = re.compile(r"verl\.trainer\.|main_ppo|(^|/)trl$|^trl |grpo|rloo|\.py$", re.IGNORECASE)
#: The word behind which the options of training begin.
PROGRAM = re.compile(r"\.py$|main_ppo$|^(grpo|rloo)$")
#: NAME=value, the assignment of a variable.
ASSIGNMENT = re.compile(r"(?:export\s+|local\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
#: A value that holds a variable which the file does not set.
UNSET = re.compile(r"\$[\w{(@*]|`")
#: Options of launchers that say how many processes train.
PROCESSES = ("num_processes", "nproc_per_node")


def words_of(text: str, where: str) -> list[str]:
    """Return the words behind the program of the command that trains. Raises UsageError if the text has none."""
    variables: dict[str, str] = {}
    best: list[str] = []
    for line in _lines(text):
        words = _split(line, where)
        while words and (set_ := ASSIGNMENT.fullmatch(words[0])):
            variables[set_[1]] = _filled(set_[2], variables)
            words = words[1:]
        if words and words[0] in ("export", "local"):
            given = (ASSIGNMENT.fullmatch(word) for word in words[1:])
            variables |= {one[1]: _filled(one[2], variables) for one in given if one}
        elif any(TRAINERS.search(word) for word in words):
            filled = [one for word in words for one in _refilled(word, variables)]
            best = max(best, filled, key=lambda some: sum("=" in one or one.startswith("--") for one in some))
    if not best:
        raise UsageError(
            f"{where}: no command of TRL or verl in it, such as trl grpo ... or python -m verl.trainer.main_ppo ..."
        )
    return best


def given_in(words: Sequence[str]) -> Iterator[tuple[str, str | list[str]]]:
    """Yield each key of a command line with its text, or a list of texts: `key=value` of Hydra, `--key value` of TRL.

    >>> list(given_in(["trl", "grpo", "--beta", "0.1", "--tags", "a", "b", "--bf16", "+x.y=3"]))
    [('beta', '0.1'), ('tags', ['a', 'b']), ('bf16', 'true'), ('x.y', '3')]
    """
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values: list[str] = [value] if equals else []
            while not equals and at < len(words) and not words[at].startswith("--") and not _is_program(words[at]):
                values, at = [*values, words[at]], at + 1
            yield name.replace("-", "_"), values if len(values) > 1 else values[0] if values else "true"
        elif key := re.match(r"(\+\+|\+|~)?([A-Za-z_][\w./@-]*)=", word):
            yield key[2], word[key.end() :]
        elif word.startswith("~"):
            yield word[1:], "null"


def processes_in(words: Sequence[str]) -> int:
    """Count the processes that a launcher in front of the program starts; 1 without one."""
    counts = (value for name, value in given_in(words) if name in PROCESSES)
    return next((int(value) for value in counts if isinstance(value, str) and value.isdecimal() and value != "0"), 1)


def divided(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Divide a command line into its launcher with options, and what the program that trains is given.

    >>> divided(["torchrun", "--nproc-per-node", "2", "grpo.py", "--beta", "0"])
    (['torchrun', '--nproc-per-node', '2'], ['--beta', '0'])
    """
    programs = [at for at, word in enumerate(words) if PROGRAM.search(word)]
    first = programs[0] if programs else -1
    return words[: max(first, 0)], words[first + 1 :]


def is_set(text: str) -> bool:
    """Check that no variable is left in a text which the file does not set."""
    return not UNSET.search(text)


def _is_program(word: str) -> bool:
    return word.endswith(".py") or word in ("trl", "-m") or bool(re.match(r"[+~]*[a-z_]\w*\.[\w.]+=", word))


def _lines(text: str) -> Iterator[str]:
    """Yield commands, continued lines joined, lines of comments left out."""
    kept = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\[ \t]*\n", " ", kept)
    held = ""
    for line in joined.split("\n"):
        held = f"{held}\n{line}" if held else line
        if not _open_quote(held):
            yield from (one for one in re.split(r"\s(?:&&|\|\||;|\|)\s", held) if one.strip())
            held = ""
    if held.strip():
        yield held


def _open_quote(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


def _split(line: str, where: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {brief(line.strip())}: cannot be read as a command: {one_line(error)}") from None


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """Put in the values of variables that the file sets, or their defaults; HOME is ~."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        default = found[2]
        return {"HOME": "~", **variables}.get(name, found[0] if default is None else default)

    return VARIABLE.sub(value, text)


def _refilled(word: str, variables: Mapping[str, str]) -> list[str]:
    """Return a word with its variables filled in; one that is a variable alone is split, as a shell does."""
    filled = _filled(word, variables)
    return filled.split() if VARIABLE.fullmatch(word) and filled != word else [filled]
