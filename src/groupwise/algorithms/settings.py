"""The one place where strings become parts: a row's name and settings to an algorithm, and back."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

from groupwise.algorithms.algorithm import COEFFICIENTS, Algorithm
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.own_parts import GROUP, offered_kinds, offered_part, own_part, require_part, slot_of
from groupwise.algorithms.parts.advantage import (
    GroupMean,
    GroupZScore,
    LeaveOneOut,
    LengthWeightedMean,
    ProcessZScore,
    RelativeMean,
    RewardZScore,
)
from groupwise.algorithms.parts.aggregate import Constant, SequenceMean, TokenMean, TokenSum
from groupwise.algorithms.parts.divergence import BinaryKL, Quadratic, TotalVariation
from groupwise.algorithms.parts.filters import DropUniform, KeepAll
from groupwise.algorithms.parts.gae import GAE, DecoupledGAE, MonteCarlo, OneStepTD, Return
from groupwise.algorithms.parts.kl import K1, K2, K3, KL, Against, Full, K3Ratio, Place, TopK
from groupwise.algorithms.parts.mismatch import MIS, TIS, IcePop, NoMismatch, SequenceMIS, SequenceTIS
from groupwise.algorithms.parts.off_policy import (
    Centered,
    CenteredMIS,
    CenteredTIS,
    FutureKL,
    GammaWeight,
    OffPolicyMask,
    Tapered,
)
from groupwise.algorithms.parts.ratio import SequenceRatio, SequenceSum, SequenceTokenRatio, TokenRatio, TurnRatio
from groupwise.algorithms.parts.rejection import GeometricBand, NoRejection, SequenceBand, TokenBand, Veto
from groupwise.algorithms.parts.shaping import NoReward, OutcomeReward, Steps
from groupwise.algorithms.parts.trust import Cispo, Clip, Geometric, NoTrust, SoftGate
from groupwise.algorithms.parts.turns import StateGroups, TurnToGo
from groupwise.core.code.live_code import located
from groupwise.core.code.user_code import NO_FILES, Files, load, offered_name, raised, use_of
from groupwise.core.errors import UsageError, brief, nearest, no_such_algorithm
from groupwise.core.files.plain import of_program
from groupwise.core.settings import required

T = TypeVar("T")


KINDS: Mapping[str, Mapping[str, type]] = {
    "shaping": {"outcome": OutcomeReward, "steps": Steps, "none": NoReward},
    "filter": {"none": KeepAll, "drop-uniform": DropUniform},
    "advantage": {
        "group-zscore": GroupZScore,
        "group-mean": GroupMean,
        "leave-one-out": LeaveOneOut,
        "reward-zscore": RewardZScore,
        "relative-mean": RelativeMean,
        "length-weighted": LengthWeightedMean,
        "process-zscore": ProcessZScore,
        "turn-to-go": TurnToGo,
        "gigpo": StateGroups,
        "return": Return,
        "gae": GAE,
        "gae-decoupled": DecoupledGAE,
        "td": OneStepTD,
        "monte-carlo": MonteCarlo,
    },
    "ratio": {
        "token": TokenRatio,
        "sequence": SequenceRatio,
        "sequence-token": SequenceTokenRatio,
        "sequence-sum": SequenceSum,
        "turn": TurnRatio,
    },
    "trust": {
        "none": NoTrust,
        "clip": Clip,
        "soft": SoftGate,
        "cispo": Cispo,
        "geometric": Geometric,
        "total-variation": TotalVariation,
        "binary-kl": BinaryKL,
        "quadratic": Quadratic,
        "tapered": Tapered,
        "gamma": GammaWeight,
        "off-policy-mask": OffPolicyMask,
        "future-kl": FutureKL,
        "centered": Centered,
        "centered-tis": CenteredTIS,
        "centered-mis": CenteredMIS,
    },
    "mismatch": {
        "none": NoMismatch,
        "tis": TIS,
        "mis": MIS,
        "sequence-tis": SequenceTIS,
        "sequence-mis": SequenceMIS,
        "icepop": IcePop,
        # A rejection alone: what it accepts has weight 1.
        "geometric": GeometricBand,
        "veto": Veto,
    },
    "rejection": {
        "none": NoRejection,
        "token": TokenBand,
        "sequence": SequenceBand,
        "geometric": GeometricBand,
        "veto": Veto,
    },
    "aggregate": {
        "sequence-mean": SequenceMean,
        "token-mean": TokenMean,
        "constant": Constant,
        "token-sum": TokenSum,
    },
}
ESTIMATORS: Mapping[str, type] = {"k1": K1, "k2": K2, "k3": K3, "k3-ratio": K3Ratio}
DIVERGENCES: Mapping[str, type] = {"full": Full, "top-k": TopK}
PLACES: Mapping[str, Place] = {place: place for place in get_args(Place)}
AGAINST: Mapping[str, Against] = {name: name for name in get_args(Against)}

#: Types of a field: what a recipe may give for each, and that in words.
FIELDS: Mapping[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    str: (str, "text"),
}
#: A number of a part is at most so large, either side of 0: its square is finite in float32.
LARGEST = 1e9

#: The key that names a slot's part, where it is not `kind`.
KIND_KEY = {"ratio": "level", "kl": "estimator"}


def algorithm(name: str, settings: Mapping[str, object] | None = None, files: Files = NO_FILES) -> Algorithm:
    """Make the catalog's row `name`, with the keys a recipe has under [algorithm] laid over it.

    A slot's part is chosen by its name (`trust.kind = "soft"`), or by the file that it is in
    (`trust.use = "my_parts.py:StaleClip"`); `files` are those that a run keeps. Where an advantage is chosen that reads
    rewards at step ends, and nothing is said of the shaping, the rewards are those of steps. Raises UsageError naming
    the nearest keys or values that exist, or the parts that do not go together.

    >>> algorithm("grpo", {"trust.epsilon_high": 0.28}).trust
    Clip(epsilon_low=0.2, epsilon_high=0.28, dual_clip=0.0)
    """
    row, slots = _row(name), _by_slot(of_program(settings or {}))
    changed: dict[str, object] = {}
    for slot, values in slots.items():
        if slot in KINDS:
            changed[slot] = _rebuild(slot, getattr(row, slot), values, files)
        elif slot == "kl":
            changed[slot] = _rebuild_kl(row.kl, values, files)
        elif slot in COEFFICIENTS:
            changed[slot] = _checked(f"algorithm.{slot}", values.get("", values), float)
        else:
            known = ["name", "kl", *COEFFICIENTS, *KINDS]
            raise UsageError(f"algorithm.{slot}: there is no such key; {nearest(slot, known)}")
    if "shaping" not in slots and getattr(changed.get("advantage"), "reads_steps", False):
        changed["shaping"] = row.shaping if row.shaping.reads_steps else Steps()
    try:
        return dataclasses.replace(row, **changed)  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(f"algorithm.{error}") from None


def own(use: str, fields: Mapping[str, object]) -> object:
    """Make a part of a user's own by itself, of whichever slot. Raises UsageError as `algorithm` does."""
    kind = load(use, brief(use))
    require_part(kind, brief(use))
    return _rebuild(slot_of(kind), None, {**fields, "use": use}, NO_FILES)


def fields_by_slot(name: str, settings: Mapping[str, object], files: Files = NO_FILES) -> dict[str, list[str]]:
    """List the fields of each slot's part, as the settings choose it. Raises UsageError if a part does not exist."""
    row, slots = _row(name), _by_slot(settings)
    kinds = {slot: _kind(slot, type(getattr(row, slot)), slots.get(slot, {}), files) for slot in KINDS}
    if "shaping" not in slots and kinds["advantage"].reads_steps and not row.shaping.reads_steps:
        kinds["shaping"] = Steps
    return {slot: [field.name for field in dataclasses.fields(kind)] for slot, kind in kinds.items()}


def keys_of_parts() -> dict[str, dict[str, list[str]]]:
    """List the keys of each part of the catalog, by slot and name."""
    kinds: dict[str, Mapping[str, type]] = {**KINDS, "kl": {**ESTIMATORS, **DIVERGENCES}}
    beside = {"kl": ["beta", "place", "against"]}
    return {
        slot: {
            name: [
                KIND_KEY.get(slot, "kind"),
                "use",
                *beside.get(slot, []),
                *(f.name for f in dataclasses.fields(kind)),
            ]
            for name, kind in parts.items()
        }
        for slot, parts in kinds.items()
    }


def names_of_parts(row: Algorithm) -> dict[str, str]:
    """Name the part in each slot of a row of the catalog."""
    return {slot: _name(type(row.kl.estimator if slot == "kl" else getattr(row, slot))) for slot in (*KINDS, "kl")}


def settings(row: Algorithm) -> dict[str, dict[str, object] | float]:
    """List every key of the row with its value, as a recipe has them: algorithm(row.name, settings(row)) == row."""
    values: dict[str, dict[str, object] | float] = {}
    for slot in KINDS:
        part = getattr(row, slot)
        values[slot] = {**_chosen_by(slot, type(part)), **_values(part)}
    kl = {"beta": row.kl.beta, "place": row.kl.place, "against": row.kl.against}
    values["kl"] = {**kl, **_chosen_by("kl", type(row.kl.estimator)), **_values(row.kl.estimator)}
    return {**values, **{name: getattr(row, name) for name in COEFFICIENTS}}


def as_keys(row: Algorithm) -> dict[str, Any]:
    """Make the section [algorithm] of a row: its name, and what differs from the catalog's row of that name.

    What is as the catalog has it is not said, so the run fills it in as it does for the name alone. A part of the
    user's own is named by its file. Raises UsageError if no other process could find that.

    >>> as_keys(algorithm("grpo", {"trust.epsilon_high": 0.28}))
    {'name': 'grpo', 'trust': {'epsilon_high': 0.28}}
    """
    known = settings(algorithm(row.name))
    keys: dict[str, Any] = {"name": row.name}
    for slot, values in settings(row).items():
        if isinstance(values, Mapping):
            part = row.kl.estimator if slot == "kl" else getattr(row, slot)
            changed: Any = _changed(slot, part, values, known[slot])
            if changed:
                keys[slot] = changed
        elif values != known[slot]:
            keys[slot] = values
    return keys


def describe(part: object) -> str:
    """Describe a part as the recipe does: its kind and its fields."""
    if isinstance(part, KL):
        if not part.beta:
            return "off"
        of = "" if part.against == "reference" else ", against the old policy"
        return f"{describe(part.estimator)} in the {part.place}{of}, beta={part.beta:g}"
    kind = _name(type(part))
    fields = ", ".join(f"{name}={value!r}" for name, value in _values(part).items())
    return f"{kind}({fields})" if fields else kind


def _row(name: str) -> Algorithm:
    if name not in CATALOG:
        raise UsageError(no_such_algorithm(name, CATALOG))
    return CATALOG[name]


def _values(part: Any) -> dict[str, object]:
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}


def _catalog_name(kind: type) -> str | None:
    known = (pair for kinds in (*KINDS.values(), ESTIMATORS, DIVERGENCES) for pair in kinds.items())
    return next((name for name, other in known if other is kind), None)


def _name(kind: type) -> str:
    """Return a kind's name in a recipe; of a kind that recipes do not know, its class's."""
    return _catalog_name(kind) or kind.__name__


def _chosen_by(slot: str, kind: type) -> dict[str, object]:
    name = _catalog_name(kind) or (offered_name(GROUP, kind) or "").removeprefix(f"{slot}.")
    return {KIND_KEY.get(slot, "kind"): name} if name else {"use": use_of(kind)}


def _kind(slot: str, current: type, values: Mapping[str, object], files: Files) -> type:
    """Return the class that a slot's settings choose, by name or by file; without either key the row's own."""
    kind_key, known = KIND_KEY.get(slot, "kind"), KINDS.get(slot, {**ESTIMATORS, **DIVERGENCES})
    if "use" in values and kind_key in values:
        raise UsageError(f"algorithm.{slot}: {kind_key} and use both name its part; take one of them out")
    if "use" in values:
        return own_part(slot, values["use"], files)
    name = values.get(kind_key)
    if kind_key not in values:
        return current
    ours = isinstance(name, str) and name in known
    if isinstance(name, str) and not ours and name in offered_kinds(slot):
        return offered_part(slot, name)
    return _choice(f"algorithm.{slot}.{kind_key}", name, known, () if ours else offered_kinds(slot))


def _by_slot(settings: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Sort dotted or nested keys -> {slot: {field: value}}; a key without a field has the field ''."""
    slots: dict[str, dict[str, object]] = {}
    for key, value in settings.items():
        slot, _, field = key.partition(".")
        inner = value.items() if isinstance(value, Mapping) else [(field, value)]
        slots.setdefault(slot, {}).update(inner)
    for slot, own in KIND_KEY.items():  # every other slot has a `kind`, so people write it here too
        values = slots.get(slot, {})
        if "kind" in values and own not in values and "use" not in values:
            values[own] = values.pop("kind")
    return slots


def _rebuild(slot: str, part: object, values: Mapping[str, object], files: Files, beside: Sequence[str] = ()) -> object:
    """Rebuild the slot's part with the kind and fields of the settings; `beside` are the slot's other keys."""
    kind_key = KIND_KEY.get(slot, "kind")
    kind = _kind(slot, type(part), values, files)
    types, chosen = _field_types(f"algorithm.{slot}", kind), {}
    for key in (key for key in values if key not in (kind_key, "use")):
        where = f"algorithm.{slot}.{key}" if key else f"algorithm.{slot}"
        if key not in types:
            known = [kind_key, "use", *beside, *types]
            raise UsageError(f"{where}: {slot} {_name(kind)!r} has no such key; {nearest(key, known)}")
        chosen[key] = _checked(where, values[key], types[key])
    same = _values(part) if kind is type(part) else {}
    return _construct(f"algorithm.{slot}", kind, {**same, **chosen})


def _rebuild_kl(kl: KL, values: Mapping[str, object], files: Files) -> KL:
    own: dict[str, object] = {"beta": kl.beta, "place": kl.place, "against": kl.against}
    if "beta" in values:
        own["beta"] = _checked("algorithm.kl.beta", values["beta"], float)
    if "place" in values:
        own["place"] = _choice("algorithm.kl.place", values["place"], PLACES)
    if "against" in values:
        own["against"] = _choice("algorithm.kl.against", values["against"], AGAINST)
    of_estimator = {key: value for key, value in values.items() if key not in own}
    estimator = _rebuild("kl", kl.estimator, of_estimator, files, beside=list(own))
    return _construct("algorithm.kl", KL, {**own, "estimator": estimator})  # type: ignore[return-value]


def _field_types(where: str, kind: Any) -> dict[str, type]:
    """Return the type of each of a part's fields by its name. Raises UsageError if a recipe cannot hold one."""
    try:
        hints = get_type_hints(kind)
    except Exception as error:
        raise raised(where, f"reading the annotations of {kind.__name__}", error) from None
    types = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    for name, type_ in types.items():
        if type_ not in FIELDS:
            raise UsageError(
                f"{where}: the field {name!r} of {kind.__name__} is {type_}, which no recipe can set; the fields of a "
                "part are bool, int, float or str"
            )
    return types


def _construct(where: str, kind: Any, values: Mapping[str, object]) -> object:
    missing = [f.name for f in dataclasses.fields(kind) if required(f) and f.name not in values]  # type: ignore[arg-type]
    if missing:
        raise UsageError(f"{where}: {kind.__name__} also needs {', '.join(missing)}")
    try:
        part = kind(**values)
        equation = part.equation
    except ValueError as error:
        raise UsageError(f"{where}.{error}") from None
    except Exception as error:
        raise raised(where, f"making {kind.__name__}", error) from None
    if not isinstance(equation, str):
        raise UsageError(f"{where}: the equation of {kind.__name__} is {brief(equation)}; it must be text")
    return part


def _choice(where: str, value: object, choices: Mapping[str, T], others: Sequence[str] = ()) -> T:
    if not isinstance(value, str) or value not in choices:
        known = [*choices, *others]
        raise UsageError(f"{where} = {brief(value)}: {nearest(value if isinstance(value, str) else '', known)}")
    return choices[value]


def _checked(where: str, value: Any, kind: type) -> bool | int | float | str:
    accepted, words = FIELDS[kind]
    if not isinstance(value, accepted) or isinstance(value, bool) is not (kind is bool):
        raise UsageError(f"{where} = {brief(value)}: must be {words}")
    if kind is not str and not -LARGEST <= value <= LARGEST:  # NaN is not
        raise UsageError(f"{where} = {brief(value)}: must be {words} from -{LARGEST:g} to {LARGEST:g}")
    return kind(value)


def _changed(slot: str, part: object, values: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """Return the keys of a slot that neither the catalog's row nor the part's defaults give."""
    key = KIND_KEY.get(slot, "kind")
    chosen: dict[str, Any] = {}
    if "use" in values:
        name = type(part).__name__
        chosen["use"] = located(type(part))
        if not chosen["use"]:
            raise UsageError(
                f"algorithm.{slot}: {name} is a class of this program, so no other process can have it; write it into "
                f'a file parts.py and give groupwise.algorithm(NAME, {{"{slot}.use": "parts.py:{name}"}})'
            )
    elif values[key] != known[key]:
        chosen[key] = values[key]
    fields = {field.name: field.default for field in dataclasses.fields(part)}  # type: ignore[arg-type]
    usual = {**known, **fields} if chosen else known
    others = {name: value for name, value in values.items() if name not in (key, "use")}
    return chosen | {name: value for name, value in others.items() if value != usual[name]}
