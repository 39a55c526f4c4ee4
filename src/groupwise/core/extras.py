"""Optional libraries: what is missing is said in one line, with the install that brings it."""

from importlib import import_module
from typing import Any

from groupwise.core.errors import UsageError


def need(module: str, extra: str, what: str) -> Any:
    """The module, imported. Raises UsageError, saying what needs it and how to install it, where it is missing.

    >>> need("json", "tasks", "task reasoning_gym").dumps([1])
    '[1]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # it is there, and something that it needs itself is not
        raise UsageError(f"{what} needs {module}, which is not installed: pip install 'groupwise[{extra}]'") from None
