"""The one place where an engine is built, and what training requires of one."""

from collections.abc import Callable, Sequence
from functools import partial
from pkgutil import resolve_name

from groupwise.core.engine import Engine, Sampling
from groupwise.core.errors import UsageError
from groupwise.core.processes.place import HERE, Place, started
from groupwise.engines.kinds import setting
from groupwise.engines.outside.client import Note, RemoteEngine, Replicas
from groupwise.engines.outside.connection import addresses_of, reach_address, reach_place
from groupwise.engines.outside.newest import NewestWeights
from groupwise.engines.outside.spec import newest_weights
from groupwise.engines.settings import EngineSettings
from groupwise.engines.stop_strings import require_spelled
from groupwise.models.load import Policy


def make_engine(
    *,
    policy: Policy,
    settings: EngineSettings,
    routes: bool = False,
    note: Note = lambda line: None,
    place: Place = HERE,
    devices: Sequence[str] = (),
) -> Engine:
    """Return an engine that samples from a copy of the policy; `routes`: with the experts chosen. Close it after use.

    note     hears how an engine samples if not as it should, and of a process that is started again
    place    where processes of engines are started
    devices  of each of them; without any, the policy's
    Raises UsageError if the policy's model cannot be sampled, or has no experts to record.
    """
    if settings.place == "inside":
        engine = resolve_name(settings.kind.build_inside)(policy, settings, routes)
    else:
        engine = _outside(policy, settings, routes, note, place, devices)
    if engine.remark:
        note(f"engine       {engine.remark}")
    return engine


def _outside(
    policy: Policy, settings: EngineSettings, routes: bool, note: Note, place: Place, devices: Sequence[str]
) -> Engine:
    """Start the engine's processes; `note` hears what samples there if it is not what the run itself has."""
    settings.require_device(policy.device.type)
    if settings.address:
        key, seconds = settings.key, settings.start_deadline
        reaches = [reach_address(address, seconds, key) for address in addresses_of(settings.address)]
    else:
        reaches = [reach_place(place, settings.python, settings.start_deadline)] * settings.count
    each = devices or [str(policy.device)] * len(reaches)
    makers = [
        partial(RemoteEngine, policy, settings, routes, note, reach=reach, device=device)
        for reach, device in zip(reaches, each, strict=True)
    ]
    beside = settings.place == "child" and set(each) == {str(policy.device)}
    engine, libraries = _as_one(makers, partial(newest_weights, policy, on_card=beside, note=note))
    if settings.address or settings.python:  # not what the run itself would have sampled with
        for library in dict.fromkeys(libraries):
            note(f"engine       {library}")
    return engine


def _as_one(
    makers: Sequence[Callable[..., RemoteEngine]], newest: Callable[[], NewestWeights]
) -> tuple[Engine, list[str]]:
    """Return the one engine, or several that share the run's newest weights and close them; and the library of each."""
    if len(makers) == 1:
        engine = makers[0](weights=newest(), owns_weights=True)
        return engine, [engine.library]
    weights = newest()
    try:
        members = started([partial(maker, weights=weights) for maker in makers])
    except BaseException:
        weights.close()
        raise
    return Replicas(members, weights), [member.library for member in members]


def require_sampling(engine: Engine, policy: Policy, sampling: Sampling, section: str) -> None:
    """Raise UsageError, naming the key, for a sampling that engine or tokenizer cannot follow. Nothing is sampled."""
    for key, field in Sampling.model_fields.items():
        value = getattr(sampling, key)
        if key not in engine.options and value != field.default:
            raise UsageError(
                f"{section}.{key} = {value!r}: the run's engine does not have it; take it out, or take another engine"
            )
    try:
        require_spelled(policy, sampling.stop)
        engine.generate((), sampling)  # asked for nothing, it only looks at how
    except UsageError as error:
        raise UsageError(f"{section}.{error}") from None


def require_engine_top(engine: Engine, top: int) -> None:
    """Raise UsageError if training reads the sampler's `top` most likely ids and the engine returns none."""
    if top and not engine.keeps_top:
        raise UsageError(
            f"algorithm.trust.k = {top}: the run's engine does not return the most likely ids of each token "
            f"(Completion.top), which the loss reads; take {setting(lambda kind: kind.keeps_top)}, or an "
            "algorithm.trust.kind that reads none"
        )


def require_engine_support(engine: Engine, sampling: Sampling) -> None:
    """Raise UsageError if training needs the ids that top-p, top-k or min-p left and the engine returns none."""
    if sampling.truncates and not engine.keeps_support:
        raise UsageError(
            f"sampling.top_p = {sampling.top_p:g}, sampling.top_k = {sampling.top_k}, sampling.min_p = "
            f"{sampling.min_p:g}: the run's engine does not return the ids that were left to draw from "
            "(Completion.support), over which training renormalises; set top_p = 1, top_k = 0 and min_p = 0, or take "
            f"an engine that does: {setting(lambda kind: kind.keeps_support)}"
        )
