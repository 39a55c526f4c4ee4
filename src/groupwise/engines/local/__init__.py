"""groupwise's own engine, which samples whole groups and can live in the training process."""

from groupwise.engines.kind import EngineKind

LOCAL = EngineKind(
    name="local",
    title="the local engine",
    library="transformers",
    build="groupwise.engines.local.make:engine_of_spec",
    build_inside="groupwise.engines.local.make:local_engine",
    keeps_support=True,
)
