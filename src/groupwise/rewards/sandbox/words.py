"""Words that say why a program fails its tests, in one line that its author may read.

    wrong answer
    NameError: name 'y' is not defined
    SyntaxError: invalid syntax (line 1)
    timeout

What a program says of its own end is never passed on as it stands: it has seen the tests' inputs, and the clock. A
message is passed on where it is one of Python's own (`_MESSAGES`) and each name in it stands in the program, among
Python's or among those that the tests call; of any other exception the line has the type alone, where that is one of
Python's. What is wrong with a program's syntax is asked of a process that compiles it and does not run it. So the line
tells nothing of a test but which of these few dozen lines it came to, and is the same when the program runs again.
"""

import builtins
import re
from collections.abc import Iterable
from dataclasses import replace

from groupwise.core.errors import RunError
from groupwise.core.processes.codec import NotPlain
from groupwise.rewards.sandbox.box import Sandbox
from groupwise.rewards.sandbox.job import Kind
from groupwise.rewards.sandbox.judge import Failure

#: Characters of a line at most, and seconds that it may take beyond the program's own.
LONGEST, MARGIN = 120, 2.0
WRONG_ANSWER = "wrong answer"
_KINDS = {
    Kind.TIMEOUT: "timeout",
    Kind.MEMORY: "out of memory",
    Kind.OUTPUT: "too much output",
    Kind.CRASH: "crash",
    Kind.FINISHED: "it ended before it answered",
    Kind.EXCEPTION: "it ended with an error",
}
# What is shown of a message, and what may follow it: NAME is a name in quotes, TYPE one without.
_MESSAGES = {
    "name NAME is not defined": r"\..*",
    "cannot access (?:local|free) variable NAME where it is not associated with a value(?: in enclosing scope)?": "",
    "No module named NAME": ";.*",
    "(?:type object |module )?NAME (?:object )?has no attribute NAME": r"\..*",
    "NAME object is not (?:callable|iterable|subscriptable|reversible|an iterator)": r"\..*",
    "NAME object does not support item (?:assignment|deletion)": "",
    "NAME object cannot be interpreted as an integer": "",
    "cannot unpack non-iterable TYPE object": "",
    "(?:not enough|too many) values to unpack": r" \(.*",
    r"unsupported operand type\(s\) for (?:\*\*|//|<<|>>|[-+*/%@&|^])=?(?: or pow\(\))?: NAME and NAME": r"\..*",
    r"bad operand type for (?:unary [-+~]|abs\(\)): NAME": "",
    "'(?:<|>|<=|>=)' not supported between instances of NAME and NAME": "",
    r'can only concatenate TYPE \(not "TYPE"\) to TYPE': "",
    "can't multiply sequence by non-int of type NAME": "",
    "unhashable type: NAME": "",
    r"object of type NAME has no len\(\)": "",
    "argument of type NAME is not (?:iterable|a container or iterable)": "",
    r"TYPE\(\) missing 1 required positional argument: NAME": "",
    r"TYPE\(\) missing [2-4] required positional arguments": ":.*",
    r"TYPE\(\) takes [0-4] positional arguments?": " .*",
    r"TYPE\(\) got an unexpected keyword argument NAME": r"\..*",
    "(?:list|tuple|string) indices must be integers(?: or slices)?": ",.*",
    "(?:list|tuple|string|range|deque|array)(?: assignment)? index out of range": "",
    "pop from (?:an )?empty (?:list|set|deque)": "",
    r"invalid literal for int\(\) with base 10": ":.*",
    "could not convert string to float": ":.*",
    "(?:float |integer |complex )?(?:division|modulo|floor division)(?: or modulo)? by zero": "",
    "maximum recursion depth exceeded": ".*",
    "math (?:domain|range) error|substring not found": "",
    r"(?:min|max)\(\) (?:arg|iterable argument) is(?: an)? empty(?: sequence)?": "",
}
_NAMES = {"NAME": r"'(\w+(?:\.\w+)?)'", "TYPE": r"(\w+(?:\.\w+)?)"}
_PATTERNS = tuple(
    re.compile(re.sub("NAME|TYPE", lambda name: _NAMES[name[0]], f"({shown})(?:{rest})?"))
    for shown, rest in _MESSAGES.items()
)
_PYTHONS = frozenset(dir(builtins)) | {"NoneType", "function", "method", "module", "generator"}
_AGAIN = re.compile(r" \(detected at line \d+\)")  # which Python adds to some messages, and the line has for all
_WORD = re.compile(r"[^\W\d]\w*")
# What compile says is a function of the text: nothing of the program runs.
_COMPILES = """
try:
    compile({program!r}, "<program>", "exec")
except SyntaxError as error:
    print(type(error).__name__, " ".join(str(error.msg).split()), error.lineno or 1, sep="\\n")
"""


def in_words(box: Sandbox, failure: Failure, program: str, called: Iterable[str]) -> str:
    """Return the failure in a line of at most LONGEST characters; `called` are the names that the tests call.

    Raises RunError where the program never ran because the sandbox could not be put in place around it.
    """
    if failure.kind is Kind.REFUSED:
        raise RunError("sandbox: a program was not run, because a layer of protection could not be put in place")
    if failure.kind not in (None, Kind.EXCEPTION):
        return _KINDS[failure.kind]
    kind = getattr(builtins, failure.error, None)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        if failure.kind:
            return _KINDS[failure.kind]
        if failure.error == NotPlain.__name__:
            return f"{WRONG_ANSWER}: no plain value"
        return "an exception of its own" if failure.error else WRONG_ANSWER
    if issubclass(kind, MemoryError):
        return _KINDS[Kind.MEMORY]
    if issubclass(kind, SyntaxError):
        return _syntax(box, program) or failure.error
    message = failure.traceback.rpartition("\n")[2].partition(": ")[2]
    known = {*_WORD.findall(program), *_WORD.findall(" ".join(called)), *_PYTHONS}
    shown = _pythons(message, known)
    return _cut(f"{failure.error}: {shown}" if shown else failure.error)


def _pythons(message: str, known: set[str]) -> str:
    """Return the part of a message that is Python's own and names nothing but what is known; "" where there is none."""
    for match in filter(None, (pattern.fullmatch(message) for pattern in _PATTERNS)):
        shown, *names = match.groups()
        if known.issuperset(part for name in names for part in name.split(".")):
            return shown
    return ""


def _syntax(box: Sandbox, program: str) -> str:
    outcome = box.run(_COMPILES.format(program=program), limits=replace(box.limits, seconds=MARGIN))
    lines = outcome.stdout.splitlines()
    if outcome.kind is not Kind.FINISHED or len(lines) != 3:
        return ""
    kind, message, number = lines
    return _cut(f"{kind}: {_AGAIN.sub('', message)}", f" (line {number})")


def _cut(line: str, end: str = "") -> str:
    return line[: LONGEST - len(end)] + end
