"""Code of a user's own, `file.py:Name` or `package.module:Name`: one way to load it for rewards, parts and tasks.

A file is imported from its content, under a module name that no other content has. So a run goes on with the file that
it began with, whatever becomes of it, and two versions of one file do not mix in a process.
"""

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import abc, metadata, util
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from groupwise.core.code.trace import own_traceback, place
from groupwise.core.errors import UsageError, nearest
from groupwise.core.files.atomic import open_regular
from groupwise.core.files.json_text import writable
from groupwise.core.files.paths import expanded

#: Bytes of a file at most.
LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class Source(abc.ExecutionLoader):
    """A file of a user's own, and the loader of the module that it is.

    path     where it lies, or lay when a run began with it; absolute
    content  what it said then
    """

    path: Path
    content: bytes

    def __str__(self) -> str:
        return f"{self.path}, sha256 {self.sha256[:16]}"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def module_name(self) -> str:
        """Name that two sources share if path and content are equal, and only then."""
        identity = hashlib.sha256(os.fsencode(self.path) + b"\0" + self.content).hexdigest()
        return f"{re.sub(r'[^a-zA-Z0-9]', '_', self.path.stem)}_{identity[:16]}"

    def get_filename(self, fullname: str) -> str:
        """Return what a traceback names: the user's own file."""
        return str(self.path)

    def get_source(self, fullname: str) -> str:
        return util.decode_source(self.content)

    def is_package(self, fullname: str) -> bool:
        return False

    def module(self) -> ModuleType:
        """Import the file, once in this process. What it raises comes through."""
        name = self.module_name
        if name in sys.modules:
            return sys.modules[name]
        spec = util.spec_from_loader(name, self)
        assert spec is not None
        module = util.module_from_spec(spec)
        if str(self.path.parent) not in sys.path:
            sys.path.append(str(self.path.parent))  # for what lies beside it
        sys.modules[name] = module  # before it runs: its dataclasses look their module up
        try:
            self.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


#: The files that a run keeps, by the path that a recipe names: they are taken in place of what lies there now.
Files = Mapping[Path, Source]
NO_FILES: Files = MappingProxyType({})


def source(use: str, what: str, files: Files = NO_FILES) -> Source | None:
    """Read the file that `use` names; None if it names a module. `what` begins the message of a UsageError."""
    where, _ = _divided(use, what)
    if not where.endswith(".py"):
        return None
    try:
        path = Path(expanded(where)).absolute()
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None
    return files[path] if path in files else _read(path, what)


def whole_use(use: str, what: str, files: Files = NO_FILES) -> str:
    """Return the `use` with the file's absolute path, so that it can be found from any folder; a module's as it is."""
    file = source(use, what, files)
    return f"{file.path}:{use.rpartition(':')[2]}" if file else use


def load(use: str, what: str, files: Files = NO_FILES) -> Any:
    """Load what `use` names. Raises UsageError, with the user's traceback as its note, if it cannot be loaded."""
    where, name = _divided(use, what)
    file = source(use, what, files)
    try:
        module = file.module() if file else _module(where, what)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise _not_imported(what, error, file) from None
    return attribute(module, name, what)


def attribute(module: ModuleType, name: str, what: str) -> Any:
    """Return the dotted name in a module. Raises UsageError with the nearest there is."""
    owner: Any = module
    for part in name.split("."):
        if not hasattr(owner, part):
            public = [n for n, v in vars(owner).items() if callable(v) and not n.startswith("_")]
            raise UsageError(f"{what}: {module.__file__} has no {part!r}; {nearest(part, public)}")
        owner = getattr(owner, part)
    return owner


def source_of(kind: type) -> Source | None:
    """Return the user's file that a class is from; None if it is from a module."""
    loader = getattr(sys.modules.get(kind.__module__), "__loader__", None)
    return loader if isinstance(loader, Source) else None


def use_of(kind: type) -> str:
    """Return the `use` that names a class: `load(use_of(kind), "")` is the class."""
    file = source_of(kind)
    return f"{file.path if file else kind.__module__}:{kind.__qualname__}"


def require_frozen_dataclass(kind: Any, what: str) -> None:
    """Raise UsageError, `what` first, if something is not a class, or not a frozen dataclass of its own."""
    if not isinstance(kind, type):
        raise UsageError(f"{what}: a {type(kind).__name__}, not a class; write a frozen dataclass")
    if "__dataclass_params__" not in vars(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise UsageError(f"{what}: {kind.__name__} is no frozen dataclass; write @dataclass(frozen=True) above it")


def raised(what: str, doing: str, error: BaseException) -> UsageError:
    """Return what a user's code raised, in a line, with its traceback as a note."""
    at = place(error)
    words = " ".join(writable(str(error)).split())
    wrong = UsageError(f"{what}: {doing} raised {type(error).__name__}: {words}{f' ({at})' if at else ''}")
    wrong.add_note(own_traceback(error))
    return wrong


def offered(group: str) -> dict[str, metadata.EntryPoint]:
    """Return what installed packages offer in a group of entry points, by name."""
    return {one.name: one for one in metadata.entry_points(group=group)}


def entry(group: str, name: str, what: str) -> Any:
    """Load what a package offers by a name. Raises UsageError if its package cannot be."""
    chosen = offered(group)[name]
    try:
        return chosen.load()
    except Exception as error:
        package = chosen.dist.name if chosen.dist else chosen.module
        raise raised(what, f"loading {chosen.value} of the package {package}", error) from None


def offered_name(group: str, kind: type) -> str | None:
    """Return the name under which an installed package offers a class; None if none does."""
    place = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, one in offered(group).items() if one.value == place), None)


def _divided(use: str, what: str) -> tuple[str, str]:
    where, colon, name = use.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"{what}: write path/to/file.py:Name or package.module:Name")
    return where, name


def _read(path: Path, what: str) -> Source:
    if not path.is_file():
        there = [file.name for file in sorted(path.parent.glob("*.py"))] if path.parent.is_dir() else []
        raise UsageError(f"{what}: no file {path}" + (f"; {nearest(path.name, there)}" if there else ""))
    try:
        with open_regular(path) as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{what}: {path} cannot be read: {error.strerror}") from None
    if len(content) > LARGEST_FILE:
        raise UsageError(f"{what}: {path} is longer than {LARGEST_FILE >> 20} MiB; no file of code is")
    return Source(path, content)


def _module(where: str, what: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise  # it is there, and something that it imports is not
        there = sorted(file.stem for file in Path.cwd().glob("*.py"))
        hint = nearest(where, there) if there else "this folder has no .py file"
        raise UsageError(f"{what}: no module {error.name!r} here or installed; {hint}") from None


def _not_imported(what: str, error: BaseException, file: Source | None) -> UsageError:
    wrong = raised(what, "importing it", error)
    if file is None or not isinstance(error, ModuleNotFoundError) or error.name is None:
        return wrong
    missing = UsageError(
        f"{what}: it imports {error.name!r}, which is not installed and not in {file.path.parent}; a run keeps a copy "
        f"of {file.path.name} alone, so put what it needs into it, or into a package that is installed"
    )
    missing.add_note(own_traceback(error))
    return missing
