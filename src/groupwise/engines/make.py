"""The one place where an engine is built, and what training requires of one."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name

from groupwise.core.engine import Engine, Sampling
from groupwise.core.errors import UsageError
from groupwise.core.processes.place import HERE, Place, started
from groupwise.engines.address import addresses_of
from groupwise.engines.kinds import KINDS, setting
from groupwise.engines.outside.client import Note, Published, RemoteEngine
from groupwise.engines.outside.connection import Reaching
from groupwise.engines.outside.placed import reach_at
from groupwise.engines.replicas import Replicas
from groupwise.engines.settings import EngineSettings, Lives
from groupwise.engines.stop_strings import require_spelled
from groupwise.models.load import Policy


def inside(policy: Policy, settings: EngineSettings, routes: bool, note: Note, place: Place) -> Engine:
    """Make it in the run's own process."""
    return resolve_name(KINDS[settings.name].build_inside)(policy, settings, routes)


def in_child(policy: Policy, settings: EngineSettings, routes: bool, note: Note, place: Place) -> Engine:
    """Make it in a process of its own, or several in several."""
    child = partial(RemoteEngine, policy, settings, routes, note, reach=reach_at(place, settings))
    engine, libraries = _as_one([child] * settings.count, policy)
    if settings.python:
        _say(libraries, note)
    return engine


def at_address(policy: Policy, settings: EngineSettings, routes: bool, note: Note, place: Place) -> Engine:
    """Make it in a process that a server elsewhere starts, or several in several."""
    assert settings.address is not None, "its place says that it has one"
    reaches = [Reaching(address, settings.start_deadline) for address in addresses_of(settings.address)]
    makers = [partial(RemoteEngine, policy, settings, routes, note, reach=reach) for reach in reaches]
    engine, libraries = _as_one(makers, policy)
    _say(libraries, note)
    return engine


def _as_one(makers: Sequence[Callable[..., RemoteEngine]], policy: Policy) -> tuple[Engine, list[str]]:
    """Return the one engine, or several that share the run's newest weights and close them; and the library of each."""
    if len(makers) == 1:
        engine = makers[0]()
        return engine, [engine.library]
    weights = Published(policy)
    try:
        members = started([partial(maker, weights=weights) for maker in makers])
    except BaseException:
        weights.close()
        raise
    return Replicas(members, weights), [member.library for member in members]


def _say(libraries: Sequence[str], note: Note) -> None:
    """Note what samples, as it is not what the run itself would have sampled with."""
    for library in dict.fromkeys(libraries):
        note(f"engine       {library}")


#: Where an engine lives -> what makes it.
LIVES: Mapping[Lives, Callable[[Policy, EngineSettings, bool, Note, Place], Engine]] = {
    "inside": inside,
    "child": in_child,
    "address": at_address,
}


def make_engine(
    *,
    policy: Policy,
    settings: EngineSettings,
    routes: bool = False,
    note: Note = lambda line: None,
    place: Place = HERE,
) -> Engine:
    """Return an engine that samples from a copy of the policy; `routes`: with the experts chosen. Close it after use.

    note   hears of a process that is started again
    place  where processes of engines are started
    Raises UsageError if the policy's model cannot be sampled, or has no experts to record.
    """
    return LIVES[settings.place](policy, settings, routes, note, place)


def require_sampling(engine: Engine, policy: Policy, sampling: Sampling, section: str) -> None:
    """Raise UsageError, naming the key of the recipe's section, for a sampling that the engine or the policy's
    tokenizer cannot follow. Nothing is sampled.
    """
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


def require_engine_support(engine: Engine, sampling: Sampling) -> None:
    """Raise UsageError if training needs the ids that top-p, top-k or min-p left and the engine does not return
    them.
    """
    if sampling.truncates and not engine.keeps_support:
        raise UsageError(
            f"sampling.top_p = {sampling.top_p:g}, sampling.top_k = {sampling.top_k}, sampling.min_p = "
            f"{sampling.min_p:g}: the run's engine does not return the ids that were left to draw from "
            "(Completion.support), over which training renormalises; set top_p = 1, top_k = 0 and min_p = 0, or take "
            f"an engine that does: {setting(lambda kind: kind.keeps_support)}"
        )
