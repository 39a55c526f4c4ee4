"""Code that runs in the child. Everything here may be rewritten by the program it runs: nothing here is trusted.

The first frame says what to do:
    {"mode": "run", "program": text}                  as a script; the supervisor reads its output and how it ended
    {"mode": "calls", "program": text, "nonce": n}    loads it, then answers {"nonce": n, "call": name, "args": [...]}
    {"mode": "tests", "tests": [text], "names": [...], "nonce": n}
                                                      runs tests; the names are calls that the supervisor passes on
"""

import atexit
import builtins
import linecache
import os
import random
import sys
import traceback
import types
from typing import Any, NoReturn

from groupwise.core.channel import pack, unpack
from groupwise.core.processes import codec

_CHUNK = 2**16
#: Whoever calls a function inside a loop (map, zip, filter, all, sum, next) takes these for the loop's end, not for a
#: failure. Other exceptions mean something only to who asks for them: by `except`, a default, or a method of its own.
_STEERING = (StopIteration, StopAsyncIteration)


class CandidateError(Exception):
    """Exception that a test sees where the function's own is none of Python's, or would steer the test."""


class Control:
    """Socket to the supervisor, as frames."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.buffer = descriptor, bytearray()
        self.calls = 0  # of tested functions
        self.raised: tuple[int, BaseException] | None = None  # the last call that raised: its number, and what

    def receive(self) -> dict[str, Any]:
        """Receive the next frame. The process ends where the supervisor is gone."""
        while (message := unpack(self.buffer)) is None:
            chunk = os.read(self.descriptor, _CHUNK)
            if not chunk:
                os._exit(0)
            self.buffer += chunk
        return message

    def send(self, message: dict[str, Any]) -> None:
        data = memoryview(pack(message))
        while data:
            data = data[os.write(self.descriptor, data) :]


def run(descriptor: int) -> NoReturn:
    """Do what the first frame says and end the process."""
    control = Control(descriptor)
    first = control.receive()
    random.seed(0)  # a program that draws numbers gets the same score in every run
    if first["mode"] == "run":
        os._exit(_script(first["program"]))
    elif first["mode"] == "calls":
        _answer(control, first)
    else:
        _test(control, first)
    os._exit(0)


def _script(program: str) -> int:
    code = 0
    try:
        _execute(program, "__main__")
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        code = 0 if stop.code is None else stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:
        code = 1
        print(_own_traceback(error), file=sys.stderr)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1
    return code & 255


def _answer(control: Control, first: dict[str, Any]) -> None:
    try:
        names = _execute(first["program"], "completion")
    except BaseException as error:
        control.send({"nonce": first["nonce"], **_failure(error)})
        return
    control.send({"nonce": first["nonce"], "value": None})
    while True:
        order = control.receive()
        try:
            args, kwargs = codec.decode(order["args"]), codec.decode(order["kwargs"])
            reply = {"value": codec.encode(_find(names, order["call"])(*args, **kwargs))}
        except BaseException as error:
            reply = _failure(error)
        control.send({"nonce": order["nonce"], **reply})


def _test(control: Control, first: dict[str, Any]) -> None:
    """Run each test in one shared namespace and say which passed, and of each that did not the number of the call
    whose exception ended it, None where none did. This process never sees the tested code.
    """
    names = {"__name__": "tests", "__builtins__": builtins, **{n: _proxy(control, n) for n in first["names"]}}
    passed: list[bool] = []
    raised: list[int | None] = []
    for number, test in enumerate(first["tests"]):
        cause = None
        try:
            exec(compile(test, f"<test {number + 1}>", "exec"), names)
            passed.append(True)
        except BaseException as error:
            passed.append(False)
            if control.raised is not None and control.raised[1] is error:
                cause = control.raised[0]
        raised.append(cause)
    control.send({"nonce": first["nonce"], "passed": passed, "raised": raised})


def _proxy(control: Control, name: str) -> Any:

    def call(*args: Any, **kwargs: Any) -> Any:
        control.send({"call": name, "args": codec.encode(args), "kwargs": codec.encode(kwargs)})
        reply = control.receive()
        number, control.calls = control.calls, control.calls + 1
        if "value" in reply:
            return codec.decode(reply["value"])
        error = _exception(reply["error"], reply["traceback"])
        control.raised = number, error
        raise error

    return call


def _exception(name: str, words: str) -> BaseException:
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, _STEERING):
        kind = CandidateError
    for nearest in kind.__mro__:
        try:
            return nearest(words)
        except TypeError:  # it is made of more than a text; UnicodeDecodeError is an UnicodeError, which is not
            continue
    return CandidateError(words)


def _execute(program: str, name: str) -> dict[str, Any]:
    """Run the program as the module `name`."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    linecache.cache["<completion>"] = (len(program), None, program.splitlines(True), "<completion>")
    exec(compile(program, "<completion>", "exec"), module.__dict__)
    return module.__dict__


def _find(names: dict[str, Any], path: str) -> Any:
    """Find the function by name; `Solution.solve` is a method of a fresh object of the class."""
    first, *rest = path.split(".")
    if first not in names:
        raise NameError(f"name {first!r} is not defined")
    function = names[first]
    for attribute in rest:
        function = getattr(function() if isinstance(function, type) else function, attribute)
    return function


def _failure(error: BaseException) -> dict[str, str]:
    return {"error": type(error).__name__, "traceback": _own_traceback(error)}


def _own_traceback(error: BaseException) -> str:
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<"):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))[-4000:].strip()
