"""The one place where strings become parts: a row's name and settings to an algorithm, and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_type_hints

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.parts.advantage import GroupMean, GroupZScore, LeaveOneOut, ProcessZScore
from groupwise.algorithms.parts.aggregate import Constant, SequenceMean, TokenMean, TokenSum
from groupwise.algorithms.parts.filters import DropUniform, KeepAll
from groupwise.algorithms.parts.gae import GAE, MonteCarlo, OneStepTD, Return
from groupwise.algorithms.parts.kl import K1, K2, K3, KL, K3Ratio, Place
from groupwise.algorithms.parts.mismatch import MIS, TIS, IcePop, NoMismatch, SequenceMIS
from groupwise.algorithms.parts.ratio import SequenceRatio, SequenceSum, SequenceTokenRatio, TokenRatio
from groupwise.algorithms.parts.shaping import Outcome, Steps
from groupwise.algorithms.parts.trust import Cispo, Clip, Geometric, NoTrust, SoftGate
from groupwise.core.errors import UsageError, brief, nearest

T = TypeVar("T")


KINDS: Mapping[str, Mapping[str, type]] = {
    "shaping": {"outcome": Outcome, "steps": Steps},
    "filter": {"none": KeepAll, "drop-uniform": DropUniform},
    "advantage": {
        "group-zscore": GroupZScore,
        "group-mean": GroupMean,
        "leave-one-out": LeaveOneOut,
        "process-zscore": ProcessZScore,
        "return": Return,
        "gae": GAE,
        "td": OneStepTD,
        "monte-carlo": MonteCarlo,
    },
    "ratio": {
        "token": TokenRatio,
        "sequence": SequenceRatio,
        "sequence-token": SequenceTokenRatio,
        "sequence-sum": SequenceSum,
    },
    "trust": {"none": NoTrust, "clip": Clip, "soft": SoftGate, "cispo": Cispo, "geometric": Geometric},
    "mismatch": {"none": NoMismatch, "tis": TIS, "mis": MIS, "sequence-mis": SequenceMIS, "icepop": IcePop},
    "aggregate": {
        "sequence-mean": SequenceMean,
        "token-mean": TokenMean,
        "constant": Constant,
        "token-sum": TokenSum,
    },
}
ESTIMATORS: Mapping[str, type] = {"k1": K1, "k2": K2, "k3": K3, "k3-ratio": K3Ratio}
PLACES: Mapping[str, Place] = {place: place for place in get_args(Place)}

#: Types of a field: what a recipe may give for each, and that in words.
FIELDS = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    str: (str, "text"),
}
#: A number of a part is at most so large, either side of 0: its square is finite in float32.
LARGEST = 1e9

#: The key that names a slot's part, where it is not `kind`.
KIND_KEY = {"ratio": "level"}


def algorithm(name: str, settings: Mapping[str, object] | None = None) -> Algorithm:
    """The catalog's row `name`, with the keys a recipe has under [algorithm] laid over it.

    Raises UsageError naming the nearest keys or values that exist, or the parts that do not go together.

    >>> algorithm("grpo", {"trust.epsilon_high": 0.28}).trust
    Clip(epsilon_low=0.2, epsilon_high=0.28, dual_clip=0.0)
    """
    if name not in CATALOG:
        raise UsageError(f"algorithm.name = {brief(name)}: there is no such algorithm; {nearest(name, CATALOG)}")
    row = CATALOG[name]
    changed: dict[str, object] = {}
    for slot, values in _by_slot(settings or {}).items():
        if slot in KINDS:
            changed[slot] = _rebuild(slot, getattr(row, slot), values)
        elif slot == "kl":
            changed[slot] = _rebuild_kl(row.kl, values)
        elif slot == "entropy_coefficient":
            changed[slot] = _checked("algorithm.entropy_coefficient", values.get("", values), float)
        else:
            known = ["name", *KINDS, "kl", "entropy_coefficient"]
            raise UsageError(f"algorithm.{slot}: there is no such key; {nearest(slot, known)}")
    try:
        return dataclasses.replace(row, **changed)  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(f"algorithm.{error}") from None


def settings(row: Algorithm) -> dict[str, dict[str, object] | float]:
    """Every key of the row with its value, as a recipe has them: algorithm(row.name, settings(row)) == row."""
    values: dict[str, dict[str, object] | float] = {}
    for slot in KINDS:
        part = getattr(row, slot)
        values[slot] = {KIND_KEY.get(slot, "kind"): _name(type(part)), **vars(part)}
    values["kl"] = {**vars(row.kl), "estimator": _name(type(row.kl.estimator))}
    values["entropy_coefficient"] = row.entropy_coefficient
    return values


def describe(part: object) -> str:
    """A part as the recipe would say it: its kind and its fields."""
    if isinstance(part, KL):
        if not part.beta:
            return "off"
        return f"{_name(type(part.estimator))} in the {part.place}, beta={part.beta:g}"
    kind = _name(type(part))
    fields = ", ".join(f"{f.name}={getattr(part, f.name)!r}" for f in dataclasses.fields(part))  # type: ignore[arg-type]
    return f"{kind}({fields})" if fields else kind


def _name(kind: type) -> str:
    """A kind's name in a recipe; of one that recipes do not know, its class's."""
    known = (pair for kinds in (*KINDS.values(), ESTIMATORS) for pair in kinds.items())
    return next((name for name, other in known if other is kind), kind.__name__)


def _by_slot(settings: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Dotted or nested keys -> {slot: {field: value}}; a key without a field has the field ''."""
    slots: dict[str, dict[str, object]] = {}
    for key, value in settings.items():
        slot, _, field = key.partition(".")
        inner = value.items() if isinstance(value, Mapping) else [(field, value)]
        slots.setdefault(slot, {}).update(inner)
    return slots


def _rebuild(slot: str, part: object, values: dict[str, object]) -> object:
    """The slot's part with its kind and fields replaced as the settings say."""
    kind_key = KIND_KEY.get(slot, "kind")
    values = dict(values)
    kind: type = type(part)
    if kind_key in values:
        kind = _choice(f"algorithm.{slot}.{kind_key}", values.pop(kind_key), KINDS[slot])
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key, value in values.items():
        where = f"algorithm.{slot}.{key}" if key else f"algorithm.{slot}"
        if key not in fields:
            raise UsageError(f"{where}: {slot} {_name(kind)!r} has no such key; {nearest(key, [kind_key, *fields])}")
        values[key] = _checked(where, value, get_type_hints(kind)[key])
    same = {k: getattr(part, k) for k in fields if kind is type(part)}
    return _construct(f"algorithm.{slot}", kind, {**same, **values})


def _rebuild_kl(kl: KL, values: dict[str, object]) -> KL:
    fields: dict[str, object] = {"beta": kl.beta, "estimator": kl.estimator, "place": kl.place}
    for key, value in values.items():
        if key == "beta":
            fields[key] = _checked("algorithm.kl.beta", value, float)
        elif key == "estimator":
            fields[key] = _choice("algorithm.kl.estimator", value, ESTIMATORS)()
        elif key == "place":
            fields[key] = _choice("algorithm.kl.place", value, PLACES)
        else:
            raise UsageError(f"algorithm.kl.{key}: there is no such key; {nearest(key, fields)}")
    return _construct("algorithm.kl", KL, fields)  # type: ignore[return-value]


def _construct(where: str, kind: type, values: Mapping[str, object]) -> object:
    try:
        return kind(**values)
    except ValueError as error:
        raise UsageError(f"{where}.{error}") from None
    except TypeError as error:
        missing = str(error).rpartition(": ")[2]
        raise UsageError(f"{where}: {kind.__name__} also needs {missing}") from None


def _choice(where: str, value: object, choices: Mapping[str, T]) -> T:
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{where} = {brief(value)}: {nearest(value if isinstance(value, str) else '', choices)}")
    return choices[value]


def _checked(where: str, value: Any, kind: type) -> bool | int | float | str:
    """A field's value as its annotation has it: bool, int, float or text."""
    accepted, words = FIELDS[kind]
    if not isinstance(value, accepted) or isinstance(value, bool) is not (kind is bool):
        raise UsageError(f"{where} = {brief(value)}: must be {words}")
    if kind is not str and not -LARGEST <= value <= LARGEST:  # NaN is not
        raise UsageError(f"{where} = {brief(value)}: must be {words} from -{LARGEST:g} to {LARGEST:g}")
    return kind(value)
