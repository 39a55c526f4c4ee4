"""Functions and classes that a program holds: where another process finds them, or a file that has one of them whole.

Nothing is serialized: what a run is made of is text that a person can read, and that the run keeps.
"""

import __future__

import ast
import builtins
import dis
import inspect
import linecache
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from types import CodeType, ModuleType
from typing import Any

from groupwise.core.code.user_code import LARGEST_FILE, Source
from groupwise.core.errors import UsageError, brief

#: How a file begins that holds a function of a program. It was in no file that could change or go.
WRITTEN = "# Written by groupwise: "

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_OF_THE_PROGRAM = ("__main__", "__mp_main__")


def located(definition: Any) -> str:
    """Return `file.py:Name` or `package.module:Name` of what a module has under its own name; "" if only this process
    has it: what a notebook or the program itself defines, what stands inside a function, an object.
    """
    module = sys.modules.get(getattr(definition, "__module__", None) or "")
    name = getattr(definition, "__qualname__", "")
    if module is None or module.__name__ in _OF_THE_PROGRAM or _named(module, name) is not definition:
        return ""
    loader, file = getattr(module, "__loader__", None), getattr(module, "__file__", None) or ""
    if isinstance(loader, Source):
        return f"{loader.path}:{name}"
    in_package = "." in module.__name__ or hasattr(module, "__path__")
    return f"{file if file.endswith('.py') and not in_package else module.__name__}:{name}"


def require_as_in_its_file(definition: Any, what: str) -> None:
    """Raise UsageError, `what` first, if a function's file says another than when it was imported."""
    plain = inspect.isfunction(definition) and inspect.unwrap(definition) is definition
    if plain and definition.__code__.co_name == definition.__name__ and _source(definition) is None:
        file, name = definition.__code__.co_filename, definition.__name__
        raise UsageError(
            f"{what}: {file} was changed since {name} was imported from it; import it again (importlib.reload), or "
            f"give {f'{file}:{name}'!r}"
        )


def extracted(function: Any, what: str, home: str) -> bytes:
    """Return the text of a file that holds a function of this program whole: with the imports, the constants and the
    functions it uses.

    home  the file that the message of a UsageError advises
    Raises UsageError, `what` first, if a source is not known, or does not say all that its function does.
    """
    name = getattr(function, "__name__", type(function).__name__)
    whole = f"{home}:{name if name.isidentifier() else 'NAME'}"
    remedy = f"write it, with what it uses, into a file {home} and give {whole!r}"
    if not inspect.isfunction(function):
        why = "is a class of this program" if inspect.isclass(function) else "is an object of this program"
        raise UsageError(f"{what}: {name}{_place(function)} {why}, so no other process can have it; {remedy}")
    text = _Text(what, remedy)
    text.add(function)
    head = f"{WRITTEN}{name}, as the program had it when the run began\nfrom __future__ import annotations\n\n"
    above = "".join(sorted(text.lines, key=lambda line: (not line.startswith(("import ", "from ")), line)))
    below = "\n\n".join((*text.sources, "".join(text.aliases)))
    content = f"{head}{above}\n\n{below.rstrip()}\n".encode()
    if len(content) > LARGEST_FILE:
        raise text.refusal(function, f"comes with its constants to more than {LARGEST_FILE >> 20} MiB")
    if other := _with_other_defaults(content, text.functions):
        raise text.refusal(other, "has other defaults than its source would give it now")
    return content


class _Text:
    """Text of a function, and of what it uses of its program.

    lines      an import, or a constant, each
    sources    of functions; what one uses stands before it
    aliases    a function by another name, each
    functions  by the names under which their sources define them
    """

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        self.lines: dict[str, None] = {}
        self.sources: list[str] = []
        self.aliases: dict[str, None] = {}
        self.functions: dict[str, Any] = {}

    def refusal(self, function: Any, why: str) -> UsageError:
        """Return the error of a function, or of one that it uses, that another process cannot have."""
        name, user = function.__name__, next(iter(self.functions.values()), function)
        beside = "" if function is user else f", which {user.__name__} uses,"
        return UsageError(
            f"{self.what}: {name}{_place(function)}{beside} {why}, so no other process can have it; {self.remedy}"
        )

    def add(self, function: Any) -> None:
        """Add a function, after what it uses. Raises UsageError if it does not stand by itself."""
        name = function.__name__
        if name == "<lambda>":
            raise self.refusal(function, "has no name and no source of its own")
        if self.functions.get(name, function) is not function:
            raise self.refusal(function, f"is another function than the {name} that is used as well; rename one")
        if name in self.functions:
            return
        self.functions[name] = function
        owner = function.__qualname__.removesuffix(function.__name__).removesuffix(".")
        if owner and not owner.endswith("<locals>"):
            raise self.refusal(function, f"stands in the class {owner}")
        if hasattr(function, "__wrapped__"):
            raise self.refusal(function, f"has a decorator around it ({function.__code__.co_qualname.split('.')[0]})")
        if outer := function.__code__.co_freevars:
            raise self.refusal(function, f"takes {', '.join(outer)} from the function around it")
        if own := ", ".join(vars(function)):
            raise self.refusal(function, f"has attributes that its source does not give it ({own})")
        source = _source(function)
        if source is None and (sign := _line_separator(function)):
            raise self.refusal(
                function,
                f"holds the line separator U+{ord(sign):04X}, at which a notebook cuts its source: write it "
                f"as an escape ({sign.encode('unicode_escape').decode()})",
            )
        if source is None:
            raise self.refusal(function, "has no source, or it was changed since")
        for one in (*_outside(source), *_looked_up(source, function)):
            self._use(one, function, source)
        self.sources.append(source)

    def _use(self, name: str, function: Any, source: str) -> None:
        if name.startswith("global "):
            raise self.refusal(function, f"sets the variable {name.removeprefix('global ')} of the program")
        if name not in function.__globals__:
            if hasattr(builtins, name) or name == function.__name__:
                return
            raise self.refusal(function, f"uses {name}, which is not defined")
        value = function.__globals__[name]
        if inspect.isfunction(value) and value.__globals__ is function.__globals__:
            self.add(value)
            if name != value.__name__:
                self.aliases[f"{name} = {value.__name__}\n"] = None
            return
        line = _line(name, value, source)
        if not line:
            raise self.refusal(function, f"uses {name} of the program ({_kind(value)})")
        self.lines[line] = None


def _kind(value: Any) -> str:
    """Return what a value of the program is that no line can give another one."""
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    elsewhere = isinstance(home, str) and home not in _OF_THE_PROGRAM and not _installed(home)
    of = "" if isinstance(value, ModuleType) else f"{getattr(value, '__name__', type(value).__name__)} of "
    return f"{of}the module {home}, which is not installed" if elsewhere else brief(value)


def _named(module: ModuleType, name: str) -> Any:
    owner: Any = module
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return owner


def _place(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""


def _source(function: Callable[..., Any]) -> str | None:
    """Return the text of its definition; None if there is none, or where the text is of another function by now."""
    code = function.__code__
    try:
        source = textwrap.dedent(inspect.getsource(function))
        (definition,) = ast.parse(source).body
        # A notebook compiles each statement alone, Python a whole file: they differ in how a name is called.
        texts = (source, "".join(linecache.getlines(code.co_filename)))
        codes = [one for text in texts for one in _codes(_compiled(text, code.co_flags)) if one.co_name == code.co_name]
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    is_one = isinstance(definition, kinds) and definition.name == function.__name__
    return source if is_one and any(_same(one, code) for one in codes) else None


def _compiled(text: str, flags: int) -> CodeType:
    known = flags & _FUTURE | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(text, "", "exec", known, dont_inherit=True)


def _same(one: CodeType, other: CodeType) -> bool:
    """Tell whether two pieces of code do the same: instructions, names and constants, but for where they stand."""
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return False
    pairs = list(zip(one.co_consts, other.co_consts, strict=False))
    inner = [(a, b) for a, b in pairs if isinstance(a, CodeType) and isinstance(b, CodeType)]
    plain = [(a, b) for a, b in pairs if not (isinstance(a, CodeType) or isinstance(b, CodeType))]
    whole = len(one.co_consts) == len(other.co_consts) == len(inner) + len(plain)
    return whole and all(repr(a) == repr(b) for a, b in plain) and all(_same(a, b) for a, b in inner)


def _outside(source: str) -> list[str]:
    """Return the global names that a definition reads, annotations left out, but for those of its module; a name that
    it sets, with `global` in front.
    """
    names: dict[str, None] = {}
    for code in _codes(compile("from __future__ import annotations\n" + source, "", "exec", dont_inherit=True)):
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                names[step.argval] = None
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                names[f"global {step.argval}"] = None
    return [one for one in names if one not in ("annotations", "__name__", "__module__", "__qualname__")]


def _looked_up(source: str, function: Any) -> list[str]:
    """Return the global names that a definition reads by a text: `eval("NAME")`, `globals()["NAME"]`,
    `globals().get("NAME")`.

    A text that is made when it runs is not known, and one with a table of names of its own has what it needs.
    """
    names: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Name("eval" | "exec"), [ast.Constant(str(text))], []):
                names |= dict.fromkeys(_names_in(text))
            case ast.Subscript(ast.Call(ast.Name("globals"), [], []), ast.Constant(str(name))):
                names[name] = None
            case ast.Call(ast.Attribute(ast.Call(ast.Name("globals"), [], []), "get"), [ast.Constant(str(name)), *_]):
                names |= {name: None} if name in function.__globals__ else {}
    own = {name for code in _codes(function.__code__) for name in code.co_varnames + code.co_cellvars}
    return [name for name in names if name not in own]


def _names_in(text: str) -> list[str]:
    """Return the names that an expression or statements read; none of a text that is neither."""
    try:
        nodes = list(ast.walk(ast.parse(text.strip())))
    except (SyntaxError, ValueError):
        return []
    named = [node for node in nodes if isinstance(node, ast.Name)]
    made = {node.id for node in named if not isinstance(node.ctx, ast.Load)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return [node.id for node in named if node.id not in made]


def _line_separator(function: Any) -> str:
    """Return a sign in the texts of a function at which `str.splitlines` ends a line, and Python's grammar does not."""
    constants = "".join(one for code in _codes(function.__code__) for one in code.co_consts if isinstance(one, str))
    return next((sign for sign in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029" if sign in constants), "")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _line(name: str, value: Any, source: str) -> str:
    """Return the line that gives a module a global name; "" if no line does."""
    if isinstance(value, ModuleType):
        return _import(name, value, source) if _installed(value.__name__) else ""
    for home, own in _homes(value):
        if home and own and _installed(home) and getattr(sys.modules.get(home), own, None) is value:
            return f"from {home} import {own} as {name}\n"
    if isinstance(value, re.Pattern):
        return f"{name} = __import__('re').compile({value.pattern!r}, {int(value.flags)})\n"
    return f"{name} = {value!r}\n" if _is_plain(value) else ""


def _homes(value: Any) -> Iterator[tuple[str | None, str | None]]:
    """List where a value may be found: (module, its name there). `random.random` is a method of what `random` holds."""
    yield getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if (of := getattr(value, "__self__", None)) is not None:
        yield type(of).__module__, getattr(value, "__name__", None)


def _import(name: str, module: ModuleType, source: str) -> str:
    """Return the import of a module, and of those inside it that the source names, as in `import xml.etree`."""
    parts = set(ast.unparse(ast.parse(source)).replace(".", " ").replace("(", " ").split())
    inside = [one for one in list(sys.modules) if one.startswith(f"{module.__name__}.")]
    used = [one for one in inside if set(one.split(".")[1:]) <= parts]
    first = f"import {name}\n" if name == module.__name__ else f"import {module.__name__} as {name}\n"
    return first + "".join(f"import {one}\n" for one in sorted(used))


def _installed(module: str) -> bool:
    """Return whether it is of Python itself, of groupwise, or of an installed package: another process has these."""
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top == "groupwise" or top in metadata.packages_distributions()


def _is_plain(value: object) -> bool:
    """Tell whether `repr` of a value gives the value: a number, text, or a list, tuple, set or table of these."""
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))  # type: ignore[arg-type]
    if type(value) is dict:
        return all(_is_plain(one) for pair in value.items() for one in pair)
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in (int, str, bytes, bool, type(None))


def _with_other_defaults(content: bytes, functions: Mapping[str, Any]) -> Any:
    """Return the first function with other defaults in the file: a constant may have changed since they were set."""
    namespace: dict[str, Any] = {"__name__": next(iter(functions))}
    try:
        exec(compile(content, "", "exec", dont_inherit=True), namespace)
    except Exception:
        return next(iter(functions.values()))
    written = (
        (_defaults(namespace[name], namespace), _defaults(one, functions), one) for name, one in functions.items()
    )
    return next((one for there, here, one in written if there != here), None)


def _defaults(function: Any, known: Mapping[str, Any]) -> str:
    """Return the defaults of a function's arguments; one that is a known function is its name."""
    positional, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    each = {**dict(enumerate(positional)), **named}
    names = {key: getattr(value, "__name__", "") for key, value in each.items() if inspect.isfunction(value)}
    known_ones = {key: name for key, name in names.items() if known.get(name) is each[key]}
    return repr({**each, **known_ones})
