"""What a recipe says of where the run's processes live, and of what becomes of it when one is lost."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from groupwise.core.processes.address import Address
from groupwise.core.processes.place import Role
from groupwise.core.settings import Changeable, Settings

#: A Ray that runs on this machine already, and one that is started for the run.
AUTO, LOCAL = "auto", "local"


def _ray_address(text: str) -> str:
    """Raises ValueError for what is no Ray's."""
    if text in (AUTO, LOCAL):
        return text
    try:
        return str(Address.of(text))
    except ValueError:
        raise ValueError(f"give HOST:PORT of a Ray, {AUTO!r} or {LOCAL!r}") from None


#: What the key `placement.ray` may say.
RayAddress = Annotated[str, AfterValidator(_ray_address)]
Cpus = Annotated[float, Field(ge=0.01, le=4096)]
Gpus = Annotated[float, Field(ge=0, le=64)]


class PlacementSettings(Settings):
    """The section [placement]: the processes that a run has beside its own.

    restarts  how often in a row a run goes on by itself, from its newest good checkpoint, after a rank was lost, or an
              engine for good. A step that was not done before begins the count again; at 0 the run ends, and says why
    ray       "HOST:PORT" of a Ray, "auto" of the one that this machine belongs to, "local" for one that is started for
              the run and ends with it: other ranks, engines in children and what scores in processes are actors there;
              without this key they are children of the run
    strategy  how Ray lays them out: "pack" on few machines, "spread" over many, each as far as it can; "strict-pack" on
              one machine, "strict-spread" on one each, or not at all
    deadline  seconds in which Ray must be reached, have what the run asks for, and have started a process that scores
    rank_cpus, engine_cpus, pool_cpus  CPUs that each other rank, each engine, each pool that scores asks Ray for
    rank_gpus, engine_gpus, pool_gpus  GPUs that each of them asks for; a pool has as many processes as CPUs, where
                                       scoring.workers does not say
    """

    restarts: Changeable[int] = Field(default=0, ge=0, le=1000)
    ray: Changeable[RayAddress | None] = None
    strategy: Changeable[Literal["pack", "spread", "strict-pack", "strict-spread"]] = "pack"
    deadline: Changeable[float] = Field(default=60.0, ge=1, le=86_400)
    rank_cpus: Changeable[Cpus] = 1.0
    rank_gpus: Changeable[Gpus] = 0.0
    engine_cpus: Changeable[Cpus] = 1.0
    engine_gpus: Changeable[Gpus] = 0.0
    pool_cpus: Changeable[Cpus] = 1.0
    pool_gpus: Changeable[Gpus] = 0.0

    def resources(self, role: Role) -> dict[str, float]:
        """What a process of a role asks Ray for, by Ray's names.

        >>> PlacementSettings(engine_cpus=2.0, engine_gpus=1.0).resources(Role.ENGINE)
        {'CPU': 2.0, 'GPU': 1.0}
        """
        every = {"CPU": getattr(self, f"{role}_cpus"), "GPU": getattr(self, f"{role}_gpus")}
        return {name: count for name, count in every.items() if count}

    def unread(self, roles: set[Role]) -> set[str]:
        """The keys that nothing reads where a run has processes of these roles: without Ray all that are about it.

        >>> sorted(PlacementSettings(ray="local").unread({Role.ENGINE, Role.POOL}))
        ['rank_cpus', 'rank_gpus']
        """
        of_roles = {role: {f"{role}_cpus", f"{role}_gpus"} for role in Role}
        if self.ray is None:
            return {"ray", "strategy", "deadline"}.union(*of_roles.values())
        return set().union(*(keys for role, keys in of_roles.items() if role not in roles))


#: What a role's processes are called, one and several.
NAMES = {
    Role.RANK: ("other rank", "other ranks"),
    Role.ENGINE: ("engine", "engines"),
    Role.POOL: ("pool that scores", "pools that score"),
}


def in_words(role: Role, count: int) -> str:
    """So many processes of a role.

    >>> in_words(Role.ENGINE, 2), in_words(Role.RANK, 1)
    ('2 engines', '1 other rank')
    """
    return f"{count} {NAMES[role][count > 1]}"


def resources_in_words(settings: PlacementSettings, role: Role) -> str:
    """What a process of a role asks Ray for.

    >>> resources_in_words(PlacementSettings(rank_gpus=1.0), Role.RANK)
    '1 CPU and 1 GPU'
    """
    return " and ".join(f"{count:g} {name}" for name, count in settings.resources(role).items())
