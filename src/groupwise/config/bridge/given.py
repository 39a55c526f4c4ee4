"""Files of TRL and verl as options with values: YAML, JSON, Python (read, never run) and command lines."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from groupwise.config.bridge.shell import PROCESSES, divided, given_in, is_set, processes_in, words_of
from groupwise.core.errors import UsageError, brief, one_line
from groupwise.core.files.paths import decoded, location, require_regular

#: Bytes of a file at most, values in it, and tables inside one another.
LARGEST_FILE, MOST_VALUES, DEEPEST = 2**20, 20_000, 40
#: Options of TRL that hold a table of further ones.
TABLES = ("model_init_kwargs", "generation_kwargs", "chat_template_kwargs", "lr_scheduler_kwargs")
OF_VERL = (
    "actor_rollout_ref",
    "algorithm",
    "trainer",
    "data",
    "critic",
    "reward",
    "reward_model",
    "custom_reward_function",
)
CONFIGS = re.compile(r"(GRPO|RLOO)Config$|ScriptArguments$|ModelConfig$|TrainingArguments$")
#: "none" stays a text: it is a value of some options.
WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None, "": None}
NUMBER = re.compile(r"[-+]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][-+]?\d+)?")
#: A value of another of the file's options, as OmegaConf writes it.
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,\s*([^}]*))?\}")


@dataclass(frozen=True)
class Code:
    """Value that is no literal: code, or a variable that the file does not set."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Given:
    """Options of a file: by their dotted names, with their values.

    of_verl  whether they are verl's; else TRL's
    rloo     whether they are RLOOTrainer's
    """

    name: str
    of_verl: bool
    rloo: bool
    options: Mapping[str, Any] = field(default_factory=dict)


def read(file: str) -> Given:
    """Read a file of TRL or verl. Raises UsageError, one line, if it is none."""
    path = location(file, "import")
    require_regular(path, f"import {brief(file)}")
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"{path}: longer than {LARGEST_FILE >> 20} MiB; no configuration is")
        text = decoded(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {one_line(error)}") from None
    reader = READERS.get(path.suffix.lower(), _of_any)
    try:
        options, rloo = reader(text, str(path))
    except RecursionError:
        raise UsageError(f"{path}: tables inside one another too deep to read") from None
    if not options:
        raise UsageError(f"{path}: no option in it; give options of TRL's or verl's, or a command line of theirs")
    of_verl = sum(name.partition(".")[0] in OF_VERL and "." in name for name in options) > len(options) / 2
    return Given(path.name, of_verl, rloo, _resolved(options) if of_verl else options)


def plain(value: Any) -> Any:
    """Return a text that is a number, a truth value or nothing as that; any other value as it is.

    >>> [plain(text) for text in ("1e-6", "8", "True", "null", "1_000", "k3")]
    [1e-06, 8, True, None, 1000, 'k3']
    """
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, str):
        return value
    if value in WORDS:
        return WORDS[value]
    if NUMBER.fullmatch(value) and len(value) < 40:
        return float(value) if re.search(r"[.eE]", value) else int(value)
    return value


def _of_yaml(text: str, where: str) -> tuple[dict[str, Any], bool]:
    try:
        if re.search(r"^\s*[^#'\"\n]*:\s*[&*]\w", text, re.MULTILINE):
            raise UsageError(f"{where}: it has anchors (& and *); write their values out")
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{where}: not a YAML file: {brief(one_line(error))}") from None
    return _of_table(loaded, where), False


def _of_json(text: str, where: str) -> tuple[dict[str, Any], bool]:
    try:
        loaded = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: not a JSON file: {one_line(error)}") from None
    return _of_table(loaded, where), False


def _of_table(loaded: Any, where: str) -> dict[str, Any]:
    if not isinstance(loaded, dict):
        raise UsageError(f"{where}: expected options with values, such as `learning_rate: 1e-6`, not {brief(loaded)}")
    options = dict(_flat(loaded, "", 0, where))
    if len(options) > MOST_VALUES:
        raise UsageError(f"{where}: {len(options):,} options; a configuration has at most {MOST_VALUES:,}")
    return options


def _flat(table: Mapping[Any, Any], prefix: str, depth: int, where: str) -> Iterator[tuple[str, Any]]:
    if depth > DEEPEST:
        raise UsageError(f"{where}: tables inside one another too deep to read")
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.", depth + 1, where)
        else:
            yield f"{prefix}{key}", plain(value)


def _of_python(text: str, where: str) -> tuple[dict[str, Any], bool]:
    """Read the arguments of a config's call, and of a trainer's; the code is never run."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError) as error:
        raise UsageError(f"{where}: not a Python file: {one_line(error)}") from None
    options: dict[str, Any] = {}
    rloo = False
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = _called(call)
        rloo = rloo or name.startswith("RLOO")
        if CONFIGS.search(name):
            options |= dict(_arguments(call))
        elif name in ("GRPOTrainer", "RLOOTrainer"):
            own = {key: value for key, value in _arguments(call) if key not in ("args", "callbacks")}
            options |= {key: value for key, value in own.items() if key != "peft_config"}
        elif name == "LoraConfig":
            options |= {"use_peft": True, **dict(_of_lora(call))}
    return options, rloo


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _arguments(call: ast.Call) -> Iterator[tuple[str, Any]]:
    for keyword in call.keywords:
        if keyword.arg is None:
            yield "**", Code(ast.unparse(keyword.value))
        elif keyword.arg == "reward_funcs":
            functions = keyword.value.elts if isinstance(keyword.value, ast.List) else [keyword.value]
            yield "reward_funcs", [str(plain(_literal(one))) for one in functions]
        elif isinstance(value := _literal(keyword.value), dict) and keyword.arg in TABLES:
            yield from ((f"{keyword.arg}.{key}", plain(one)) for key, one in value.items())
        else:
            yield keyword.arg, value


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        return Code(ast.unparse(node))


#: Arguments of peft's LoraConfig -> the options of TRL's ModelConfig.
LORA = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}


def _of_lora(call: ast.Call) -> Iterator[tuple[str, Any]]:
    for keyword, value in _arguments(call):
        yield LORA.get(keyword, keyword if keyword.startswith(("lora_", "use_")) else f"lora_{keyword}"), value


def _of_shell(text: str, where: str) -> tuple[dict[str, Any], bool]:
    words = words_of(text, where)
    launcher, own = divided(words)
    options: dict[str, Any] = {f"--{name}": Code(" ".join([value] if isinstance(value, str) else value))
                               for name, value in given_in(launcher) if name not in PROCESSES}  # fmt: skip
    if (count := processes_in(launcher)) > 1:
        options["num_processes"] = count
    for name, value in given_in(own):
        options[name] = [_word(one) for one in value] if isinstance(value, list) else _word(value)
    return options, "rloo" in words or any(word.endswith("rloo.py") for word in words)


def _word(text: str) -> Any:
    """Read a value of a command line, lists and quotes as YAML has them."""
    if not is_set(text) and not REFERENCE.search(text):
        return Code(text)
    if text[:1] in "[{'\"":
        try:
            return plain(yaml.safe_load(text))
        except yaml.YAMLError:
            return text
    return plain(text)


def _of_any(text: str, where: str) -> tuple[dict[str, Any], bool]:
    """Read a file without a suffix that says what it is: a command line, JSON, or YAML."""
    if re.search(r"main_ppo|^\s*(\S+ )*trl (grpo|rloo)|(GRPO|RLOO)Config\(", text, re.MULTILINE):
        return _of_python(text, where) if re.search(r"(GRPO|RLOO)Config\(", text) else _of_shell(text, where)
    return _of_yaml(text, where)


READERS = {
    ".yaml": _of_yaml,
    ".yml": _of_yaml,
    ".json": _of_json,
    ".py": _of_python,
    ".sh": _of_shell,
    ".bash": _of_shell,
}


def _resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    """Put in what `${a.b}` and `${oc.select:a.b,default}` refer to, where the file has it."""

    def value(name: str, depth: int) -> Any:
        text = options.get(name)
        if not isinstance(text, str) or "${" not in text:
            return text
        found = REFERENCE.fullmatch(text)
        if not found or depth > DEEPEST:
            return Code(text)
        if found[1] in options:
            return value(found[1], depth + 1)
        return Code(text) if found[2] is None else plain(found[2].strip())

    return {name: value(name, 0) for name in options}


def trl_table(name: str) -> str:
    """Return the option that holds an inner one, model_init_kwargs of model_init_kwargs.dtype; else ""."""
    first = name.partition(".")[0]
    return first if first in TABLES and "." in name else ""
